"""Where samples enter a graph: what is given, as which tensor, and the written file run from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.extraction.samples import BIAS, CPU, WEIGHT, dense, divided, inputs, opened
from tna_onnx.data import Recipe
from tna_onnx.data.options import Data
from tna_onnx.errors import DataError, UsageError
from tna_onnx.extraction.collect import collect_features
from tna_onnx.extraction.opened_samples import Samples, open_samples
from tna_onnx.extraction.sessions import OpenModel
from tna_onnx.graph.readout import Head
from tna_onnx.graph.rewrite import rewrite
from tna_onnx.maps.temperature import Temperature
from tna_onnx.progress import silent

LABELS = np.arange(20) % 3


def enter(model: OpenModel, more: dict[str, Any] | None = None, **arrays: np.ndarray) -> Samples:
    return open_samples(model, Data({**arrays, "labels": LABELS}, **(more or {})))


def batch_of(samples: Samples) -> dict[str, np.ndarray]:
    return next(samples.source.batches(20))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_features_enter_at_the_head_in_its_dtype(dtype: type) -> None:
    model = opened(dense(dtype))
    samples = enter(model, features=inputs(20).astype(dtype))
    assert samples.given == {"z": np.dtype(dtype)}
    assert samples.readout is model.readout
    np.testing.assert_array_equal(batch_of(samples)["z"], inputs(20).astype(dtype))


@pytest.mark.parametrize(
    ("arrays", "more", "error", "message"),
    [
        ({"features": inputs(20, 7)}, {}, DataError, "features have 7 columns; expected 6"),
        ({"features": inputs(20)}, {"preprocessing": Recipe()}, UsageError, "leave the preprocessing out"),
    ],
)
def test_refusals(arrays: dict[str, Any], more: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        enter(opened(dense()), more, **arrays)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    model = opened(divided())
    samples = enter(model, x=inputs(20))
    folder = collect_features(model, model.readout, samples.source, 8, silent, tmp_path).folder
    assert folder is not None
    return folder


def test_a_store_brings_all_that_the_head_reads(store: Path) -> None:
    samples = open_samples(opened(divided()), Data(store))
    batch = batch_of(samples)
    assert set(samples.given) == set(batch) == {"z", "scale"}
    np.testing.assert_array_equal(batch["z"], np.maximum(inputs(20), 0))
    np.testing.assert_allclose(batch["scale"], 1 + np.abs(inputs(20)).mean(axis=1, keepdims=True), rtol=1e-6)
    np.testing.assert_array_equal(samples.source.labels, LABELS)


def test_a_store_of_another_model_is_refused(store: Path) -> None:
    with pytest.raises(DataError, match="computed with another model"):
        open_samples(opened(dense()), Data(store))
    with pytest.raises(UsageError, match="its own labels"):
        open_samples(opened(divided()), Data(store, labels=LABELS))


@pytest.mark.parametrize("entered", ["x", "features", "logits"])
def test_a_written_file_is_run_from_where_the_samples_enter(tmp_path: Path, entered: str) -> None:
    """A weight twice as large; logits that were given are what the file would give without a change."""
    model = opened(dense(softmax=True))
    assert isinstance(model.readout, Head)
    onnx.save(rewrite(model.model, model.readout, 2 * WEIGHT, metadata={}).proto, tmp_path / "o.onnx")
    samples = enter(model, **{entered: inputs(20, 3 if entered == "logits" else 6)})
    batch = batch_of(samples)
    (p,) = samples.open_written(tmp_path / "o.onnx", "p", CPU).run(["p"], batch)
    logits = inputs(20, 3)
    if entered != "logits":
        z = np.maximum(inputs(20), 0) if entered == "x" else inputs(20)
        logits = z @ (2 * WEIGHT).T + BIAS
    powers = np.exp(logits.astype(np.float64))
    np.testing.assert_allclose(p, powers / powers.sum(axis=1, keepdims=True), atol=1e-5)


def test_given_logits_enter_in_front_of_an_appended_map(tmp_path: Path) -> None:
    model = opened(dense())
    proto = rewrite(model.model, model.readout, None, write_map=Temperature(2.0).forward, metadata={}).proto
    onnx.save(proto, tmp_path / "o.onnx")
    logits = inputs(20, 3)
    samples = enter(model, logits=logits)
    (mapped,) = samples.open_written(tmp_path / "o.onnx", "logits", CPU).run(["logits"], batch_of(samples))
    np.testing.assert_allclose(mapped, logits / 2, rtol=1e-6)


def test_an_output_that_is_given_needs_no_session(tmp_path: Path) -> None:
    onnx.save(dense(), tmp_path / "o.onnx")
    samples = enter(opened(dense()), logits=inputs(20, 3))
    batch = batch_of(samples)
    runner = samples.open_written(tmp_path / "o.onnx", "logits", CPU)
    assert runner.run(["logits"], batch)[0] is batch["logits"]
