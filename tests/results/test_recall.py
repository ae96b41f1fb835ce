"""Recall in a report: intervals, the class that loses, and the gates that limit it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tna_onnx.errors import UsageError
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.results.gates import Gates
from tna_onnx.results.recall import Recall

Array = NDArray[Any]

LABELS = np.repeat([0, 1, 2], [500, 300, 200])
NAMES = ("cat", "dog", "fox")
METRICS = Metrics(1000, 15, 0.9, 0.1, 0.1, 0.3, 0.1)


def scored(hit: Array, labels: Array | None = None) -> SampleScores:
    values = np.zeros(len(hit), np.float32)
    return SampleScores(values, hit, values, values, labels=labels)


def hits(*right: int) -> Array:
    """Hits of so many samples of each class, its first ones."""
    starts = np.searchsorted(LABELS, LABELS)
    return np.arange(1000) - starts < np.array(right)[LABELS]


def recall(before: Array, after: Array, **fields: Any) -> Recall:
    return Recall.of(scored(before, LABELS), scored(after), NAMES, **fields)


SILENT = recall(hits(400, 200, 100), hits(480, 200, 20))


def test_the_class_that_loses_is_named_with_its_interval() -> None:
    worst = SILENT.worst
    assert worst is not None
    assert worst.name == "fox"
    assert worst.text().startswith("fox: recall 50.0 % -> 10.0 % (-4")
    assert worst.difference.low < worst.difference.difference == -0.4 < worst.difference.high < 0
    assert SILENT.balanced_before == pytest.approx((0.8 + 2 / 3 + 0.5) / 3)
    assert SILENT.balanced.difference == pytest.approx((0.96 + 2 / 3 + 0.1) / 3 - SILENT.balanced_before)


def test_a_loss_that_may_be_chance_is_not_named_as_one() -> None:
    """Three of 200: the interval of an adjusted Wald test holds zero."""
    found = recall(hits(400, 200, 100), hits(400, 200, 97))
    assert found.worst is None
    assert found.lowest.name == "fox"


def test_of_many_classes_the_worst_of_chance_is_not_named() -> None:
    """Nothing changes on average in 60 classes: the worst of them loses by chance, in one interval of 40 or so."""
    named = plain = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 60, 3000)
        before, after = (rng.random(3000) < 0.7 for _ in range(2))
        names = [str(c) for c in range(60)]
        found = Recall.of(scored(before, labels), scored(after), names)
        named += found.worst is not None
        plain += any(each.difference.high < 0 for each in found.classes)
    assert plain > 20
    assert named <= 4


def test_an_interval_that_holds_another_keeps_its_values_and_names_a_class_that_loses_in_both() -> None:
    before = hits(400, 200, 100)
    one, other = recall(before, hits(480, 200, 20)), recall(before, before)
    assert one.worst is not None
    both = one.holding(other)
    assert both.worst is None
    for mine, each, also in zip(both.classes, one.classes, other.classes, strict=True):
        assert (mine.after, mine.difference.difference) == (each.after, each.difference.difference)
        assert mine.difference.low == min(each.difference.low, also.difference.low)
        assert mine.difference.high == max(each.difference.high, also.difference.high)
    assert both.balanced.low == one.balanced.low


@pytest.mark.parametrize(("limit", "missed"), [(20, True), (38, False), (45, False)])
def test_the_whole_interval_is_beyond_the_limit(limit: float, *, missed: bool) -> None:
    """The loss is 40 points, 33 to 47."""
    lines = Gates(max_recall_drop=limit).recall_missed(SILENT, METRICS, "held-out")
    assert bool(lines) is missed
    if missed:
        assert lines[0].startswith("--max-recall-drop 20 missed: class fox: recall 50.0 % -> 10.0 %")


def test_the_balanced_accuracy_has_a_limit() -> None:
    value = 100 * SILENT.balanced_after
    assert Gates(min_balanced_accuracy=value - 0.01).recall_missed(SILENT, METRICS, "") == ()
    (line,) = Gates(min_balanced_accuracy=value + 0.01).recall_missed(SILENT, METRICS, "")
    assert f"balanced accuracy is {value:.6g} % on 1,000 samples" in line


@pytest.mark.parametrize("name", ["max_recall_drop", "min_balanced_accuracy"])
@pytest.mark.parametrize("value", [-1, 101])
def test_limits_are_per_cent(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=name):
        Gates(**{name: value})
