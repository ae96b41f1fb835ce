"""Logits that are kept: the same numbers from memory and from a temporary file, pass after pass."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tna_onnx.engine import logits as logits_module
from tna_onnx.engine.logits import HeadLogits, KeptChunks
from tna_onnx.extraction import collect as collect_module
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.maps.temperature import Temperature

N, CLASSES = 1000, 37


@pytest.fixture(params=["memory", "file", "no room"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where chunks are kept."""

    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    if request.param != "memory":
        monkeypatch.setattr(logits_module, "_IN_MEMORY", 0)
    if request.param == "no room":
        monkeypatch.setattr(logits_module, "reserve", refuse)
    return str(request.param)


def _chunks(dtype: str) -> Iterator[NDArray[Any]]:
    values = np.random.default_rng(0).standard_normal((N, CLASSES)).astype(dtype)
    cuts = [0, 400, 401, 900, N]
    return (values[a:b] for a, b in itertools.pairwise(cuts))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_pass_gives_the_chunks(where: str, dtype: str) -> None:
    kept = KeptChunks(_chunks(dtype), N, N * CLASSES * 8)
    assert (kept._mapped is not None) == (where == "file")
    for _ in range(3):
        for found, expected in zip(kept, _chunks(dtype), strict=True):
            assert type(found) is np.ndarray
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)
    # a pass that is left early
    np.testing.assert_array_equal(next(iter(kept)), next(_chunks(dtype)))
    np.testing.assert_array_equal(np.concatenate([*kept]), np.concatenate([*_chunks(dtype)]))


def test_fits_and_scores_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    monkeypatch.setattr(collect_module, "_BLOCK", 2**12)
    z, w = (rng.standard_normal((rows, 8)).astype(np.float32) for rows in (N, CLASSES))
    table = FeatureTable(z, rng.integers(0, CLASSES, N), 64)
    odd = np.arange(N) % 2 == 1
    results = []
    for limit in (2**27, 0):
        monkeypatch.setattr(logits_module, "_IN_MEMORY", limit)
        logits = HeadLogits(table, w, np.zeros(CLASSES, np.float32))
        fitted = Temperature.fit(logits.reduce(odd))
        scores = logits.mapped_scores(fitted, odd)
        results.append((fitted.temperature, scores.nll.tolist(), logits.predictions().tolist()))
        logits.forget()
        assert logits._kept is None
        assert logits.mapped_scores(fitted, odd).nll.tolist() == scores.nll.tolist()
    assert results[0] == results[1]
