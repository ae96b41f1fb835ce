"""Scores of whole models: ONNX Runtime and NumPy say the same, and outputs that are none are refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from scipy.special import softmax
from sklearn.metrics import log_loss

from tests.builders import tensor_info
from tests.data.samples import open_source
from tests.extraction.samples import BIAS, CPU, WEIGHT, dense, inputs, opened, source_of
from tna_onnx.engine.scoring import FilePair, NotFinite, _Tally, run_both, score_model
from tna_onnx.errors import DataError, UnsupportedModel
from tna_onnx.extraction.sessions import open_model
from tna_onnx.graph.load import load_model
from tna_onnx.graph.readout import ClassOutput
from tna_onnx.graph.rewrite import rewrite
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.progress import silent
from tna_onnx.results.inspection import OutputDifference

X = inputs(50)
LABELS = np.arange(50) % 3
LOGITS = np.maximum(X, 0) @ WEIGHT.T + BIAS
P = softmax(LOGITS.astype(np.float64), axis=1)


class Gives:
    """A session whose output holds these rows, in order."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values
        self._done = 0

    def run(self, outputs: list[str], batch: dict[str, np.ndarray]) -> list[np.ndarray]:
        start = self._done
        self._done += len(batch["x"])
        return [self._values[start : self._done]]


def score(values: np.ndarray, kind: str, classes: int = 3, size: int = 16) -> SampleScores:
    source = source_of(opened(dense()), X)
    return score_model(Gives(values), ClassOutput("y", kind, classes), source, size, silent)[0]


@pytest.mark.parametrize("size", [1, 16, 64])
@pytest.mark.parametrize("softmax", [False, True])
def test_a_model_is_scored_batch_by_batch(size: int, softmax: bool) -> None:
    model = opened(dense(softmax=softmax))
    steps: list[tuple[str, int, int]] = []
    source = source_of(model, X)
    output = model.readout.class_output
    scores, predicted = score_model(model.session, output, source, size, lambda *step: steps.append(step))
    np.testing.assert_array_equal(scores.hit, P.argmax(axis=1) == LABELS)
    np.testing.assert_allclose(scores.confidence, P.max(axis=1), atol=1e-6)
    assert np.mean(scores.nll) == pytest.approx(log_loss(LABELS, P), abs=1e-6)
    np.testing.assert_array_equal(predicted, P.argmax(axis=1))
    assert steps[-1] == ("evaluate", 50, 50)
    assert len(steps) == -(-50 // size)


def test_every_kind_of_output_gives_the_same_scores() -> None:
    expected = score(LOGITS, "logits")
    for values, kind in ((P, "probabilities"), (np.log(P), "log_probabilities"), (P[:, :, None], "probabilities")):
        found = score(values, kind)
        np.testing.assert_array_equal(found.hit, expected.hit)
        np.testing.assert_allclose(found.nll, expected.nll, atol=1e-5)


def test_one_number_a_sample_is_the_second_class() -> None:
    model = opened(dense())
    source = open_source({"x": X[:4], "labels": np.array([0, 1, 0, 1])}, model.inputs, 3)
    p = np.array([0.2, 0.9, 0.6, 0.5])  # a tie goes to the first class
    output = ClassOutput("y", "positive_probability", 2)
    scores, predicted = score_model(Gives(p), output, source, 4, silent)
    assert predicted.tolist() == [0, 1, 1, 0]
    assert scores.hit.tolist() == [True, True, False, False]
    np.testing.assert_allclose(scores.nll, -np.log([0.8, 0.9, 0.4, 0.5]), rtol=1e-6)


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        (LOGITS[:, :2], "logits", r"'y' has shape \(16, 2\) for 16 samples; expected \(16, 3\)"),
        (np.where(np.arange(50)[:, None] == 33, np.nan, LOGITS), "logits", "of sample 33 holds NaN or infinite"),
        (P, "logits", "they are probabilities; say --output-kind probabilities"),
    ],
    ids=["shape", "NaN", "probabilities"],
)
def test_outputs_that_are_not_what_they_should_be(values: np.ndarray, kind: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        score(values, kind)


def test_more_columns_than_the_file_declares() -> None:
    """As a shape that ONNX Runtime cannot infer allows."""
    with pytest.raises(UnsupportedModel, match=r"has shape \(50, 3\); it declares \(50, 2\)"):
        ClassOutput("y", "logits", 2).in_order(LOGITS)


# --- How far outputs moved: both files run by ONNX Runtime, and counts by hand


def several() -> onnx.ModelProto:
    """Return the dense classifier with its features and a label as outputs too."""
    proto = dense()
    proto.graph.node.append(helper.make_node("ArgMax", ["logits"], ["label"], axis=1, keepdims=0))
    proto.graph.output.extend([tensor_info("z", ["N", 6]), tensor_info("label", ["N"], np.int64)])
    return proto


def moved(new: Any, size: int = 16, **fields: Any) -> OutputDifference:
    model = opened(several())
    both = FilePair(
        model.model, open_model(model.model, CPU), load_model(new), (model.readout,), model.readout.class_output
    )
    return run_both(replace(both, **fields), CPU, source_of(model, X), size, silent).outputs


def scaled(factor: float) -> onnx.ModelProto:
    model = opened(several())
    return rewrite(model.model, model.readout, np.float32(factor) * WEIGHT, metadata={}).proto


@pytest.mark.parametrize("size", [1, 16, 64])
def test_numbers_are_those_of_numpy_in_any_batches(size: int) -> None:
    found = moved(scaled(-0.5), size)
    z = np.maximum(X, 0)
    p, q = (softmax(z @ (factor * WEIGHT.T).astype(np.float64) + BIAS, axis=1) for factor in (1, -0.5))
    assert (found.samples, found.output, found.output_kind) == (50, "logits", "logits")
    assert found.largest == pytest.approx(np.max(np.abs(p - q)), abs=1e-6)
    assert found.mean == pytest.approx(np.mean(np.abs(p - q)), abs=1e-6)
    assert found.same_class == np.sum(p.argmax(axis=1) == q.argmax(axis=1)) < 50
    assert found.confidence_after == pytest.approx(np.mean(q.max(axis=1)), abs=1e-6)
    assert (found.accuracy_before, found.accuracy_after) == tuple(np.mean(v.argmax(axis=1) == LABELS) for v in (p, q))


def test_outputs_behind_the_head_are_told_from_those_in_front() -> None:
    features, label = moved(scaled(-0.5)).others
    assert (features.name, features.depends_on_head, features.differing, features.largest) == ("z", False, 0, 0.0)
    assert (features.values, label.values) == (300, 50)
    assert (label.name, label.depends_on_head) == ("label", True)
    assert label.differing > 0
    assert all(each.depends_on_head for each in moved(scaled(1), readouts=()).others)  # nobody knows


def test_files_that_cannot_be_compared() -> None:
    with pytest.raises(UnsupportedModel, match="other inputs or outputs"):
        moved(dense())  # lacks two outputs
    half = several()
    half.graph.input[0].name = half.graph.node[0].input[0] = "y"
    with pytest.raises(UnsupportedModel, match="other inputs or outputs"):
        moved(half)


def test_probabilities_that_are_no_numbers_name_the_samples() -> None:
    broken = several()
    broken.graph.node[1].attribute.append(helper.make_attribute("alpha", float("inf")))
    with pytest.raises(NotFinite, match="output 'logits' of sample 0 holds NaN or infinite"):
        moved(broken)


def test_a_tally_counts_nan_text_and_shapes() -> None:
    tally = _Tally()
    tally.add(np.array([1.0, np.nan, np.inf]), np.array([1.5, np.nan, np.inf]))
    assert (tally.values, tally.differing, tally.largest) == (3, 1, 0.5)
    tally.add(np.array([1.0]), np.array([np.nan]))
    assert (tally.differing, tally.largest) == (2, None)
    text = _Tally()
    text.add(np.array(["a", "b"], object), np.array(["a", "c"], object))
    text.add(np.zeros((2, 1)), np.zeros(2))
    assert (text.values, text.differing, text.largest) == (4, 3, None)
