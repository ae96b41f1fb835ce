"""The honest numbers: of files that were run, of every sample once, or of nothing that changed."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.conftest import Small
from tests.pipeline.samples import few, opened, outcome_of, outputs, probabilities
from tna_onnx.errors import DataError
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.metrics import Interval, Metrics
from tna_onnx.numerics.residuals import CrossFit
from tna_onnx.pipeline.crossfit import folds
from tna_onnx.pipeline.job import Task
from tna_onnx.pipeline.methods import INPUT, Method
from tna_onnx.pipeline.reporting import compare_heads
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.strategy import Strategy
from tna_onnx.pipeline.writing import Shipped, Writing

SETTINGS = Settings(search="none", bins=10)


def strategy_of(task: Task, **fields: Any) -> Strategy:
    return Strategy(task.logits, task.weight, "none", "ts", SETTINGS.for_search, **fields)


@pytest.mark.parametrize("fold", [False, True])
def test_held_out_numbers_are_those_of_the_model_run_on_the_data(small: Small, fold: bool) -> None:
    """With the map folded or not: only the rounding of weights differs."""
    task = opened(small, held_out=few(small.test))
    outcome = outcome_of(task, Temperature(2.0))
    assert task.held_out is not None
    after = Writing(task, fold).shipped(outcome, task.held_out)
    assert (after.fitted is None) == fold
    compared = compare_heads(task, strategy_of(task), outcome, SETTINGS, after)
    data = few(small.test)
    (logits,) = outputs(small.model, data["x"])
    labels = data["labels"]
    rows = np.arange(len(labels))
    assert compared.comparison.how == "held-out"
    for scores, metrics, p in (
        (compared.before, compared.comparison.before, probabilities(logits)),
        (compared.after, compared.comparison.after, probabilities(logits / 2)),
    ):
        np.testing.assert_array_equal(scores.hit, p.argmax(axis=1) == labels)
        np.testing.assert_allclose(scores.confidence, p.max(axis=1), atol=1e-5)
        assert metrics.nll == pytest.approx(-np.mean(np.log(p[rows, labels])), abs=1e-5)
    assert compared.comparison.data == task.shown.source.describe() != task.source.describe()


def test_where_nothing_changed_both_are_the_same(small: Small) -> None:
    task = opened(small, calib=few(small.calib))
    outcome = outcome_of(task)
    compared = compare_heads(task, strategy_of(task), outcome, SETTINGS, Shipped(outcome.logits, outcome.fitted))
    assert compared.comparison.how == "unchanged"
    assert compared.before is compared.after
    for interval in compared.comparison.differences.values():
        assert (interval.low, interval.high) == (0, 0)


def test_where_folds_chose_otherwise_intervals_hold_the_method_of_the_file_too(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = opened(small, calib=few(small.calib))
    strategy = Strategy(task.logits, task.weight, "none", "auto", SETTINGS.for_search, allowed=("none", "ts"))
    outcome = strategy.run(lambda *_: None)
    assert outcome.method.map == "ts"

    def differences(*folds: Method) -> dict[str, Interval]:
        monkeypatch.setattr(Strategy, "chosen_in_folds", lambda *_: list(folds))
        compared = compare_heads(task, strategy, outcome, SETTINGS, Shipped(outcome.logits, outcome.fitted))
        return compared.comparison.differences

    alike, mixed = differences(*[outcome.method] * 5), differences(*[INPUT] * 4, outcome.method)
    # the input in four of five folds gains a fifth of what the file does
    assert alike["nll"].difference < mixed["nll"].difference < 0
    assert mixed["nll"].low == alike["nll"].low
    assert mixed["nll"].high > alike["nll"].high


def test_without_held_out_data_each_sample_counts_once(small: Small) -> None:
    task = opened(small, calib=few(small.calib))
    strategy = strategy_of(task)
    outcome = strategy.run(lambda *_: None)
    compared = compare_heads(task, strategy, outcome, SETTINGS, Shipped(outcome.logits, outcome.fitted))
    assert compared.comparison.how == "cross-fitted"
    for one in ("confidence", "hit", "nll"):  # in their own order
        np.testing.assert_array_equal(getattr(compared.before, one), getattr(outcome.before, one))
    np.testing.assert_array_equal(compared.before.hit, compared.after.hit)  # a temperature moves no class
    own = outcome.logits.mapped_scores(outcome.fitted)
    np.testing.assert_array_equal(compared.fitted.confidence, own.confidence)
    # scored by fits without them, samples look no better than scored by the fit with them
    assert np.mean(compared.after.nll, dtype=np.float64) >= np.mean(own.nll, dtype=np.float64)


@pytest.mark.parametrize("name", ["ts", "isotonic"])
def test_intervals_know_of_the_folds_and_of_predictions_that_stay(small: Small, name: str) -> None:
    task = opened(small, calib=few(small.calib))
    strategy = dataclasses.replace(strategy_of(task), map=name)
    outcome = strategy.run(lambda *_: None)
    assert outcome.keeps_predictions == (name == "ts")
    compared = compare_heads(task, strategy, outcome, SETTINGS, Shipped(outcome.logits, outcome.fitted))
    expected = paired_differences(
        compared.before,
        compared.after,
        10,
        seed=SETTINGS.seed,
        cross_fit=CrossFit(compared.fitted, folds(300, SETTINGS.seed)),
        same_predictions=name == "ts",
    )
    assert compared.comparison.differences == expected
    after = compared.comparison.after
    for metric, interval in expected.items():
        assert getattr(after, metric) - getattr(compared.comparison.before, metric) == pytest.approx(
            interval.difference, abs=1e-12
        )
    # the fit's own error is put back, which adds to a calibration error
    assert after.ece != Metrics.of(compared.after, 10).ece
    accuracy = compared.comparison.differences["accuracy"]
    assert (accuracy.low == accuracy.high == 0) == (name == "ts")


def test_held_out_logits_that_are_no_numbers_are_refused(small: Small) -> None:
    """A NaN would miss no gate: no limit is below it."""
    task = opened(small, held_out=few(small.test))
    assert task.held_out is not None
    features = np.array(task.held_out.table.features)
    features[7] = np.nan
    table = dataclasses.replace(task.held_out.table, features=features)
    task = dataclasses.replace(task, held_out=dataclasses.replace(task.held_out, table=table))
    outcome = outcome_of(task, Temperature(2.0))
    with pytest.raises(DataError, match="logits 'logits' of sample 7 hold NaN or infinite values"):
        compare_heads(
            task, strategy_of(task), outcome, SETTINGS, Writing(task, fold=True).shipped(outcome, task.held_out)
        )
