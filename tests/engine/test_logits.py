"""Logits in chunks: each kind gives what the product gives, and sums are added in one order."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tna_onnx.engine import logits as logits_module
from tna_onnx.engine.logits import HeadLogits, KeptChunks, Logits, StoredLogits, TailLogits, sum_chunks
from tna_onnx.extraction import collect as collect_module
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.maps.temperature import Temperature

N, FEATURES, CLASSES = 700, 12, 4


def by_levels(parts: list[float]) -> float:
    """Add neighbours, then neighbouring sums, level by level: the definition."""
    while len(parts) > 1:
        odd_one = parts[len(parts) & ~1 :]
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)] + odd_one
    return parts[0]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=70))
def test_sums_have_the_bits_of_the_definition(values: list[float]) -> None:
    assert sum_chunks(lambda x: x, ((value,) for value in values)) == by_levels(values)


@given(st.lists(st.binary(max_size=3), min_size=1, max_size=40))
def test_parts_keep_their_order(words: list[bytes]) -> None:
    assert sum_chunks(lambda x: x, ((word,) for word in words)) == functools.reduce(operator.add, words)


def test_few_sums_are_in_memory() -> None:
    alive = 0
    most = 0

    class Part:
        def __init__(self) -> None:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def __add__(self, _: Part) -> Part:
            return Part()

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    sum_chunks(Part, (() for _ in range(1000)))
    # one for each binary digit of the number of parts, and those of the addition at work
    assert most <= math.log2(1000) + 4


def problem() -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[np.int64]]:
    """Return features, weight, bias and labels."""
    rng = np.random.default_rng(0)
    features, weight = (rng.standard_normal((rows, FEATURES)).astype(np.float32) for rows in (N, CLASSES))
    return features, weight, rng.standard_normal(CLASSES).astype(np.float32), rng.integers(0, CLASSES, N)


@pytest.mark.parametrize("kind", ["head", "tail", "stored"])
def test_every_kind_gives_the_product(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect_module, "_BLOCK", 2**10)  # several chunks
    features, weight, bias, labels = problem()
    expected = features @ weight.T + bias
    logits: Logits = HeadLogits(FeatureTable(features, labels), weight, bias)
    if kind == "tail":
        logits = TailLogits(FeatureTable(features, labels, 64), lambda z: z @ weight.T + bias, CLASSES)
    if kind == "stored":
        logits = StoredLogits(FeatureTable(expected, labels))
    mask = np.arange(N) % 3 == 0
    assert len(list(logits.chunks())) > 2
    np.testing.assert_array_equal(logits.predictions(), expected.argmax(axis=1))
    np.testing.assert_allclose(logits.at(np.flatnonzero(mask)), expected[mask], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(logits.scores().hit, expected.argmax(axis=1) == labels)
    np.testing.assert_array_equal(logits.mapped_scores(None, mask).hit, (expected.argmax(axis=1) == labels)[mask])


@pytest.mark.parametrize("size", [1, 3])
def test_batches_of_a_graph_that_takes_few_samples_are_joined(size: int) -> None:
    """Each pass of each fit has a cost for each chunk; labels and features stay beside their logits."""
    features, weight, bias, labels = problem()
    run: list[int] = []

    def of_batch(z: NDArray[Any]) -> NDArray[Any]:
        run.append(len(z))
        return np.asarray(z @ weight.T + bias)

    logits = TailLogits(FeatureTable(features, labels, size), of_batch, CLASSES)
    for _ in range(2):  # computed, then kept
        chunks = list(logits.chunks(features=True))
        assert len(chunks) <= -(-N // 256)
        for rows, of_rows, z in chunks:
            np.testing.assert_allclose(rows, z @ weight.T + bias, rtol=1e-5, atol=1e-5)
            assert len(of_rows) == len(rows)
        np.testing.assert_array_equal(np.concatenate([z for _, _, z in chunks]), features)
        np.testing.assert_array_equal(np.concatenate([of_rows for _, of_rows, _ in chunks]), labels)
    assert max(run) == size


# --- Logits that are kept: the same numbers from memory and from a temporary file, pass after pass


SAMPLES, WIDTH = 1000, 37


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
    values = np.random.default_rng(0).standard_normal((SAMPLES, WIDTH)).astype(dtype)
    cuts = [0, 400, 401, 900, SAMPLES]
    return (values[a:b] for a, b in itertools.pairwise(cuts))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_pass_gives_the_chunks(where: str, dtype: str) -> None:
    kept = KeptChunks(((chunk,) for chunk in _chunks(dtype)), SAMPLES, SAMPLES * WIDTH * 8)
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
    z, w = (rng.standard_normal((rows, 8)).astype(np.float32) for rows in (SAMPLES, WIDTH))
    table = FeatureTable(z, rng.integers(0, WIDTH, SAMPLES), 64)
    odd = np.arange(SAMPLES) % 2 == 1
    results = []
    for limit in (2**27, 0):
        monkeypatch.setattr(logits_module, "_IN_MEMORY", limit)
        logits = HeadLogits(table, w, np.zeros(WIDTH, np.float32))
        fitted = Temperature.fit(logits.reduce(odd))
        scores = logits.mapped_scores(fitted, odd)
        results.append((fitted.temperature, scores.nll.tolist(), logits.predictions().tolist()))
        logits.forget()
        assert logits._kept is None
        assert logits.mapped_scores(fitted, odd).nll.tolist() == scores.nll.tolist()
    assert results[0] == results[1]
