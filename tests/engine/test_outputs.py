"""Scores of whole models: ONNX Runtime and NumPy say the same, and outputs that are none are refused."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import log_loss

from tests.extraction.samples import BIAS, WEIGHT, dense, inputs, opened, source_of
from tna_onnx.data import open_source
from tna_onnx.engine.scoring import score_model
from tna_onnx.errors import DataError
from tna_onnx.graph.outputs import ClassOutput, output_of
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.progress import silent

X = inputs(50)
LABELS = np.arange(50) % 3
LOGITS = np.maximum(X, 0) @ WEIGHT.T + BIAS
P = np.exp(LOGITS.astype(np.float64)) / np.exp(LOGITS.astype(np.float64)).sum(axis=1, keepdims=True)


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
    output = output_of(model.readout)
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
