"""Every numeric path on a device that neither gives its tensors to NumPy nor mixes them with the host's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tna_onnx
from tests.conftest import Small
from tests.pipeline.test_label_models import model as label_model
from tests.runtimes.matrix import binary
from tests.support import with_options
from tna_onnx.engine.logits import HeadLogits, score_all
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.maps import MAPS, maps_of
from tna_onnx.pipeline import opening
from tna_onnx.pipeline.strategy import Strategy
from tna_onnx.search.candidates import SearchSettings

torch = pytest.importorskip("torch", reason="torch is in the extra 'gpu'")
strict_device = pytest.importorskip("tests.engine.strict_device")
strict = strict_device.strict

N, FEATURES, CLASSES = 1500, 16, 7


@pytest.fixture(scope="module")
def problem() -> tuple[FeatureTable, Any, Any]:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((CLASSES, FEATURES)).astype(np.float32)
    features = rng.standard_normal((N, FEATURES)).astype(np.float32)
    labels = np.argmax(features @ weight.T / 2 + rng.gumbel(size=(N, CLASSES)), axis=1)
    return FeatureTable(features, labels), weight, rng.standard_normal(CLASSES).astype(np.float32) / 10


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
    ("search", "name"),
    [("sparse", "none"), ("complete", "ets"), pytest.param("auto", "auto", marks=pytest.mark.slow)],
)
def test_searches(strict: Any, problem: tuple[FeatureTable, Any, Any], search: str, name: str) -> None:
    table, weight, bias = problem

    def logits_of(each: Any) -> HeadLogits:
        return HeadLogits(table, each, bias, strict)

    assert Strategy(logits_of, weight, search, name, SearchSettings(max_ensemble_size=20)).run(lambda *_: None)


def labelled(folder: Path) -> tuple[Path, Path]:
    rng = np.random.default_rng(3)
    onnx.save(label_model(), folder / "model.onnx")
    x = rng.standard_normal((400, 8)).astype(np.float32)
    np.savez(folder / "calib.npz", x=x, labels=(rng.random((400, 4)) < 0.4).astype(np.int64))
    return folder / "model.onnx", folder / "calib.npz"


def two_classes(folder: Path) -> tuple[Path, Path]:
    source = binary(folder)
    return source.model, source.calib


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (None, {"add": ["set", "confidence"], "search": "sparse", "map": "ts"}),
        (None, {"search": "sparse", "map": "isotonic"}),
        (two_classes, {"search": "none", "map": "beta"}),
        pytest.param(two_classes, {}, marks=pytest.mark.slow),
        (labelled, {}),
    ],
    ids=["decisions", "isotonic", "two classes, beta", "two classes", "several labels"],
)
def test_whole_commands(
    strict: Any,
    small: Small,
    made: Callable[[Path], tuple[Path, Path]] | None,
    words: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, data = (small.model, small.calib) if made is None else made(tmp_path)
    monkeypatch.setattr(opening, "placement_of", lambda *_: strict)
    report = with_options(tna_onnx.calibrate, model, data, output=tmp_path / "m.onnx", **words)
    assert not [note for note in report.notes if "instead of" in note]
    assert strict.count > 0
