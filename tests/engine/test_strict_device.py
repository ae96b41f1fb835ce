"""Every numeric path on a device that neither gives its tensors to NumPy nor mixes them with the host's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.engine.conftest import CLASSES, N
from tna_onnx.engine.logits import HeadLogits, score_all
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.maps import MAPS, maps_of
from tna_onnx.pipeline.strategy import Strategy
from tna_onnx.search.candidates import SearchSettings

torch = pytest.importorskip("torch", reason="torch is in the extra 'gpu'")
strict_device = pytest.importorskip("tests.engine.strict_device")
strict = strict_device.strict


@pytest.mark.parametrize(
    "mix",
    [np.asarray, lambda z: z + torch.ones(CLASSES), lambda z: z * np.ones(CLASSES), np.exp],
    ids=["an array of it", "with a tensor", "with an array", "a function of NumPy"],
)
def test_the_stand_in_refuses_what_a_device_refuses(strict: Any, mix: Callable[[Any], Any]) -> None:
    with pytest.raises((TypeError, RuntimeError)):
        mix(strict.put(np.ones((3, CLASSES), np.float32)))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_scores(strict: Any, problem: tuple[FeatureTable, Any, Any], kind: Any) -> None:
    table, weight, bias = problem
    table = FeatureTable(table.features.astype(kind), table.labels)
    here, there = HeadLogits(table, weight, bias), HeadLogits(table, weight, bias, strict)
    assert isinstance(next(there.chunks())[0], strict_device.Strict)
    np.testing.assert_array_equal(there.predictions(), here.predictions())
    np.testing.assert_allclose(there.at(np.arange(5)), here.at(np.arange(5)), rtol=0, atol=1e-4)
    for mine, theirs in (
        (here.scores(), there.scores()),
        (here.scaled_scores(0.3), there.scaled_scores(0.3)),
        (*score_all([here]), *score_all([there])),
    ):
        np.testing.assert_allclose(theirs.nll, mine.nll, rtol=0, atol=5e-5)


@pytest.mark.parametrize("name", sorted({*maps_of(2), *maps_of(3)}))
def test_maps(strict: Any, problem: tuple[FeatureTable, Any, Any], name: str) -> None:
    table, weight, bias = problem
    kind = MAPS[name]
    if kind.binary:
        weight, bias = weight[:2], bias[:2]
        noise = 2 * np.random.default_rng(1).gumbel(size=(N, 2))
        table = FeatureTable(table.features, np.argmax(table.features @ weight.T + bias + noise, axis=1))
    rows = np.arange(N) % 3 > 0
    means = []
    for placement in (None, strict):
        logits = HeadLogits(table, weight, bias, *([] if placement is None else [placement]))
        reduced = logits.reduce(rows, features=kind.needs_features)
        fitted = kind.fit(reduced)
        logits.predictions(fitted)
        if hasattr(kind, "fit_path"):
            assert list(kind.fit_path(reduced))
        means.append(float(np.mean(logits.mapped_scores(fitted, ~rows).nll)))
    assert means[1] == pytest.approx(means[0], abs=1e-3)


@pytest.mark.parametrize(
    ("search", "name"), [("sparse", "none"), ("complete", "ets"), pytest.param("auto", "auto", marks=pytest.mark.slow)]
)
def test_searches(strict: Any, problem: tuple[FeatureTable, Any, Any], search: str, name: str) -> None:
    table, weight, bias = problem

    def logits_of(each: Any) -> HeadLogits:
        return HeadLogits(table, each, bias, strict)

    assert Strategy(logits_of, weight, search, name, SearchSettings(max_ensemble_size=20)).run(lambda *_: None)
