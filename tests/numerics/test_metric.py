"""Rows of metrics: one for every formula, and what they write."""

import typing

import numpy as np
import pytest

from tna_onnx.numerics.metric import METRICS, OBJECTIVES, Objective
from tna_onnx.numerics.metrics import Metrics, metric_value
from tna_onnx.numerics.scores import SampleScores


def scores(seed: int) -> SampleScores:
    logits = np.random.default_rng(seed).normal(size=(60, 3))
    return SampleScores.of_logits(logits, np.arange(60) % 3)


def test_objectives_are_the_rows_that_say_so() -> None:
    assert typing.get_args(Objective) == OBJECTIVES
    for name in typing.get_args(Objective):
        assert metric_value(scores(0), name) == getattr(Metrics.of(scores(0)), name)


@pytest.mark.parametrize("row", METRICS.values(), ids=METRICS)
def test_standing_follows_the_better_side(row: typing.Any) -> None:
    assert row.standing(0.1, 0.2) == row.better
    assert row.standing(-0.2, -0.1) == -row.better
    assert row.standing(-0.1, 0.1) == 0
