"""Models of the corpus with a head, end to end: calibrate writes a file that verifies, by a comparison of its own.

The labels are drawn from the model's own probabilities made softer (or sharper, where they are soft already), so that
there is something to repair.
"""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

import tna_onnx
from tests.corpus import ALL
from tests.corpus.case import Case, Unavailable, quiet
from tests.corpus.test_exporters import TWINS
from tests.support import WALKED, saturates, with_options
from tna_onnx.errors import CheckFailed, DataError, UnsupportedModel
from tna_onnx.extraction.head_check import HeadDiffers
from tna_onnx.graph.load import load_model
from tna_onnx.graph.readout import Head
from tna_onnx.graph.scores import choose_head
from tna_onnx.runtime import Device, open_session

# several predictions a sample want labels of another shape: tests/pipeline/test_several.py
FOUND = [c for c in ALL if c.weight is not None and c.feeds is not None and c.route != "several"]
# graphs of our own, each another form; of what exporters write, where forms come again and again, every sixth
OURS = {"form", "ml", "qdq", "quantized", "summed", "two-stage"}
CASES = [
    pytest.param(case, marks=[pytest.mark.slow] if k % 50 or "dynamo" in case.name else [], id=case.name)
    for k, case in enumerate(FOUND)
    if (case.route in OURS or k % 6 == 0 or k % 50 == 0) and not TWINS.match(case.name)
]
SAMPLES = 600


def _head(path: Path, case: Case) -> Head:
    return choose_head(load_model(path), **case.choose)


def _drawn_labels(p: NDArray[np.float64]) -> NDArray[np.int64]:
    """Draw each label by itself, from its probability made softer."""
    odds = np.maximum(p, 1e-9) / np.maximum(1 - p, 1e-9)
    soft = odds ** (1 / 3) / (1 + odds ** (1 / 3))
    return (np.random.default_rng(2).random(p.shape) < soft).astype(np.int64)


def _probabilities(path: Path, case: Case, feeds: dict[str, NDArray[np.generic]]) -> NDArray[np.float64]:
    output = _head(path, case).class_output
    session = open_session(path, case.name, Device("cpu"))
    batches = [{name: x[k : k + 50] for name, x in feeds.items()} for k in range(0, SAMPLES, 50)]
    return np.asarray(output.probabilities(np.concatenate([session.run([output.name], b)[0] for b in batches])))


def _labels(p: NDArray[np.float64]) -> NDArray[np.int64]:
    power = 1 / 3 if p.max(axis=1).mean() > 0.7 else 3
    weights = np.maximum(p, 1e-9) ** power
    edges = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
    labels = np.argmax(edges > np.random.default_rng(2).random((len(p), 1)), axis=1)
    if len(np.unique(labels)) < 2:
        labels[::2] = (labels[0] + 1) % p.shape[1]
    return labels


def _recalibrate(case: Case, folder: Path) -> tuple[Path, Path, tna_onnx.Report]:
    for module in case.needs:
        pytest.importorskip(module)
    try:
        with quiet():
            path = case.build(folder)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert case.feeds is not None
    feeds = case.feeds(SAMPLES, np.random.default_rng(1))
    p = _probabilities(path, case, feeds)
    labels = _drawn_labels(p) if _head(path, case).multi_label else _labels(p)
    np.savez(folder / "calib.npz", labels=labels, **feeds)
    choose = {"head": case.choose.get("node"), "output_name": case.choose.get("output")}
    words = {"output": folder / "new.onnx", "max_accuracy_drop": 20, "trust_labels": True, **choose}
    try:
        report = with_options(tna_onnx.calibrate, path, folder / "calib.npz", **words, **WALKED | {"ensemble_size": 4})
    except HeadDiffers as error:
        if "the nodes between read" not in str(error):
            raise
        # logits that need more of the data than the features: no weight is searched, and a map goes behind them
        report = with_options(tna_onnx.calibrate, path, folder / "calib.npz", **words, map="ts")
        assert report.head == ""
    return path, folder / "new.onnx", report


def _check(case: Case, folder: Path) -> None:
    try:
        path, new, report = _recalibrate(case, folder)
    except HeadDiffers:
        if "qdq" not in case.name.lower() or not saturates():
            raise
        pytest.skip(
            "products of 8-bit integers overflow on this CPU, where the runtime joins what the cut graph does not"
        )
    except (CheckFailed, DataError) as error:
        for reason in ("the NLL falls all the way", "the result is worse", "its range may be too narrow"):
            if reason in str(error):  # random models, random labels, ranges of the uncalibrated outputs
                pytest.skip(reason)
        raise
    assert report.verification.max_difference <= report.verification.bound
    assert tna_onnx.verify(path, new).intact
    if report.folded:  # no map in the way of finding the head again
        head, before = _head(new, case), _head(path, case)
        assert head.weight.shape == before.weight.shape
    onnxruntime.InferenceSession(str(new), providers=["CPUExecutionProvider"])  # as a user would load it


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_form_of_a_head_is_recalibrated(case: Case, tmp_path: Path) -> None:
    try:
        _check(case, tmp_path)
    except (CheckFailed, UnsupportedModel):
        if case.route in ("qdq", "quantized") and saturates():
            pytest.skip("ONNX Runtime's 8-bit sums overflow on this processor, so the file is refused, rightly")
        raise
