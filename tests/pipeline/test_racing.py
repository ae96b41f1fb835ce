"""Methods that lose clearly on the first fold are not fitted again."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tna_onnx.engine.logits import HeadLogits
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.maps.bias import Bias
from tna_onnx.numerics.metrics import sample_losses
from tna_onnx.pipeline.crossfit import Fit, cross_scores
from tna_onnx.pipeline.methods import FOLDS, INPUT, Method

SEED = 4
BIAS = Method(tilted=False, map="bias")
SVS = Method(tilted=False, map="svs")
TS = Method(tilted=False, map="ts")


class Shifts:
    """Biases on calibrated logits: none is best, and the larger, the worse."""

    def __init__(self, samples: int, shifts: dict[Method, float]) -> None:
        rng = np.random.default_rng(0)
        logits = 2 * rng.normal(size=(samples, 3)).astype(np.float32)
        labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        self.logits = HeadLogits(FeatureTable(logits, labels), np.eye(3, dtype=np.float32), np.zeros(3, np.float32))
        self.shifts = shifts
        self.fits = dict.fromkeys(shifts, 0)

    def __call__(self, _: int, __: NDArray[Any]) -> Iterator[tuple[Method, Iterator[Fit]]]:
        yield INPUT, iter([(INPUT, self.logits, None)])
        for method in self.shifts:
            yield method, self._one(method)

    def _one(self, method: Method) -> Iterator[Fit]:
        self.fits[method] += 1
        yield method, self.logits, Bias(1.0, np.array([self.shifts[method], 0.0, 0.0]))


def test_what_loses_clearly_is_fitted_once_and_left_out() -> None:
    shifts = Shifts(2000, {BIAS: 0.001, SVS: 3.0})
    scores = cross_scores(2000, SEED, shifts)
    assert shifts.fits == {BIAS: FOLDS, SVS: 1}
    assert list(scores) == [INPUT, BIAS]


def test_what_keeps_predictions_stays() -> None:
    shifts = Shifts(2000, {TS: 3.0})
    assert list(cross_scores(2000, SEED, shifts)) == [INPUT, TS]


@pytest.mark.parametrize(("objective", "left"), [("nll", [INPUT]), ("brier", [INPUT]), ("adaece", [INPUT, SVS])])
def test_the_loss_is_that_of_the_objective(objective: Any, left: list[Method]) -> None:
    """The NLL of few samples tells what their error of calibration leaves to chance."""
    shifts = Shifts(2000, {SVS: 1.5})
    loss = functools.partial(sample_losses, objective=objective, bins=1)
    assert list(cross_scores(2000, SEED, shifts, loss)) == left
