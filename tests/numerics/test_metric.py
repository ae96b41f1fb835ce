"""Rows of metrics: one for every formula, and what they write."""

import dataclasses
import typing

import numpy as np
import pytest

from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.metric import METRICS, OBJECTIVES, Objective
from tna_onnx.numerics.metrics import Metrics, objective_value
from tna_onnx.numerics.scores import SampleScores


def scores(seed: int) -> SampleScores:
    logits = np.random.default_rng(seed).normal(size=(60, 3))
    return SampleScores.of_logits(logits, np.arange(60) % 3)


def test_every_formula_has_a_row() -> None:
    assert [field.name for field in dataclasses.fields(Metrics) if field.name in METRICS] == list(METRICS)
    assert list(paired_differences(scores(0), scores(1))) == list(METRICS)


def test_objectives_are_the_rows_that_say_so() -> None:
    assert typing.get_args(Objective) == OBJECTIVES
    for name in typing.get_args(Objective):
        assert objective_value(scores(0), name) == getattr(Metrics.of(scores(0)), name)


@pytest.mark.parametrize("row", METRICS.values(), ids=METRICS)
def test_standing_follows_the_better_side(row: typing.Any) -> None:
    assert row.standing(0.1, 0.2) == row.better
    assert row.standing(-0.2, -0.1) == -row.better
    assert row.standing(-0.1, 0.1) == 0


def test_numbers_are_written_in_the_unit_of_the_row() -> None:
    assert METRICS["accuracy"].number(0.98765) == "98.77"
    assert METRICS["accuracy"].change(-0.001) == "-0.10"
    assert METRICS["brier"].number(0.98765) == "0.9877"
    assert METRICS["nll"].title == "NLL, nats"
