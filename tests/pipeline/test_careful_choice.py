"""Rule 5 of a choice, each condition alone, on hand-made scores of 1,000 samples; and the choice of few samples."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from tests.conftest import Small
from tests.pipeline.samples import opened
from tna_onnx.engine.logits import StoredLogits
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline.crossfit import MapFits
from tna_onnx.pipeline.methods import INPUT, Method, Rule, scarce
from tna_onnx.pipeline.recalibrate import _strategy
from tna_onnx.pipeline.sample_checks import check_task_labels
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.strategy import Strategy
from tna_onnx.pipeline.writing import Writing

Array = NDArray[Any]

TS = Method(tilted=False, map="ts")
BIAS = Method(tilted=False, map="bias")
SVS = Method(tilted=False, map="svs")

N = 1000
# 800, 180 and 20 samples; of every class one in two is right, and the 20 of the third come last
LABELS = np.repeat([0, 1, 2], [800, 180, 20])
RIGHT = np.arange(N) % 2 == 0
CAREFUL = Rule(careful=True)


def scores(nll: Any, hit: Array = RIGHT, labels: Array | None = None) -> SampleScores:
    losses = np.broadcast_to(np.float32(nll), (N,))
    # far too sure, so that rule 4 takes nothing out
    sure = np.full(N, 0.99, np.float32)
    return SampleScores(sure, hit, losses, sure, labels=labels)


BEFORE = scores(2.0, labels=LABELS)


def spread(mean: float, deviation: float) -> Array:
    return mean + deviation * np.where(np.arange(N) // 2 % 2 == 0, 1, -1)


def moved(**won: int) -> Array:
    """Hits with so many more samples right of a class (`a`, `b`, `c`); fewer, where negative."""
    hit = RIGHT.copy()
    for name, number in won.items():
        own = np.flatnonzero("abc".index(name) == LABELS)
        rows = own[~RIGHT[own]] if number > 0 else own[RIGHT[own]]
        hit[rows[: abs(number)]] = number > 0
    return hit


def chosen(hit: Array, nll: Any = 0.5, rule: Rule = CAREFUL) -> Method:
    return rule.choose({INPUT: BEFORE, TS: scores(1.0), BIAS: scores(nll, hit)}, BEFORE)


@pytest.mark.parametrize(("lost", "expected"), [(1, TS), (0, BIAS)])
def test_the_balanced_accuracy_does_not_fall(lost: int, expected: Method) -> None:
    """A sample of 20 weighs as much as 40 of 800; neither 30 samples in 800 nor one in 20 is a loss that counts."""
    assert chosen(moved(a=30, c=-lost)) == expected


@pytest.mark.parametrize(("lost", "expected"), [(2, BIAS), (3, TS)])
def test_no_class_loses_more_than_ten_points(lost: int, expected: Method) -> None:
    """2 of 20 are 10 points: 1.5 standard errors. The other classes win more than that."""
    assert chosen(moved(a=200, b=40, c=-lost)) == expected


def test_fewer_than_ten_samples_tell_nothing_of_a_class() -> None:
    labels = np.where(np.arange(N) >= N - 9, 2, 0)
    before = scores(2.0, labels=labels)
    hit = RIGHT.copy()
    hit[N - 9 :] = False
    hit[: N - 9] = True
    table = {INPUT: before, TS: scores(1.0), BIAS: scores(0.5, hit)}
    assert CAREFUL.choose(table, before) == BIAS


@pytest.mark.parametrize(
    ("predictions", "rare", "covered", "expected"),
    [("auto", 9, True, TS), ("auto", 10, True, BIAS), ("auto", 10, False, TS), ("change", 9, False, BIAS)],
)
def test_predictions_change_only_with_ten_samples_of_every_class(
    predictions: str, rare: int, covered: bool, expected: Method
) -> None:
    """The first of four classes is too likely, which a bias repairs; the last lies far from the others."""
    rng = np.random.default_rng(0)
    right = rng.normal(0, 4, (1500, 3))
    labels = np.append((right + rng.gumbel(size=right.shape)).argmax(axis=1), [3] * rare)
    logits = np.full((len(labels), 4), -20, np.float32)
    logits[:1500, :3] = 2 * (right + np.array([1, 0, 0]))
    logits[1500:, 3] = 20
    stored = StoredLogits(FeatureTable(logits, labels))
    strategy = Strategy(
        lambda _: stored, None, "none", "auto", Settings().for_search, ("none", "ts", "bias"), predictions=predictions,
        covered=covered,
    )  # fmt: skip
    outcome = strategy.run(lambda *_: None)
    assert outcome.method == expected
    if expected == TS:
        assert outcome.changing == BIAS
        assert set(strategy.chosen_in_folds(outcome)) == {TS}


def test_a_method_that_is_worth_it_stands_for_a_better_one_that_is_not() -> None:
    table = {INPUT: BEFORE, TS: scores(1.0), BIAS: scores(0.4, moved(a=100, c=-6)), SVS: scores(0.5, moved(a=30, b=6))}
    assert CAREFUL.choose(table, BEFORE) == SVS
    assert Rule().choose(table, BEFORE) == BIAS
    assert CAREFUL.choice(table, BEFORE).left_out == {BIAS: "predictions"}


@pytest.mark.parametrize(("mean", "deviation", "gains"), [(1.9, 0.5, True), (1.9, 1.5, False), (1.999, 0.0, False)])
def test_a_gain_is_significant_and_large_enough_to_count(mean: float, deviation: float, *, gains: bool) -> None:
    assert CAREFUL.gains(BEFORE, scores(spread(mean, deviation))) is gains


@pytest.mark.parametrize(("n", "by_likelihood"), [(60, True), (250, False)])
def test_of_few_samples_a_likelihood_ratio_decides_on_one_temperature(n: int, *, by_likelihood: bool) -> None:
    """99 % of chi-squared numbers with one degree of freedom are below 6.63."""
    agree = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        drawn = rng.standard_normal((n, 3)).astype(np.float32)
        labels = (drawn + rng.gumbel(size=drawn.shape)).argmax(axis=1)
        logits = StoredLogits(FeatureTable(1.35 * drawn, labels))
        strategy = Strategy(lambda _: logits, None, "none", "auto", Settings().for_search, allowed=("none", "ts"))  # noqa: B023
        outcome = strategy.run(lambda *_: None)
        fitted = logits.mapped_scores(MapFits({}).one("ts", logits.reduce()))
        ratio = 2 * np.sum(outcome.before.nll - fitted.nll, dtype=np.float64)
        agree.append((outcome.method == TS) == (ratio > chi2.ppf(0.99, 1)))
        assert set(strategy.chosen_in_folds(outcome)) <= {INPUT, TS}
    assert all(agree) == by_likelihood


@pytest.mark.parametrize("groups", [9, 10])
def test_samples_of_one_group_count_as_one(groups: int) -> None:
    """The third class has 20 samples, of so many groups: of nine its recall is not known, and a loss of 5 of 20 too."""
    clusters = np.append(np.arange(N - 20), N + np.arange(20) % groups)
    before = BEFORE.clustered(clusters)
    assert scarce(before) == (groups < 10)
    table = {INPUT: before, TS: scores(1.0), BIAS: scores(0.5, moved(a=200, b=40, c=-5))}
    table = {method: each.clustered(clusters) for method, each in table.items()}
    assert CAREFUL.choose(table, before) == (TS if groups == 10 else BIAS)


@pytest.mark.parametrize("trusted", [False, True])
def test_a_class_without_a_sample_keeps_predictions_unless_it_is_said_not_to_occur(small: Small, trusted: bool) -> None:
    with np.load(small.calib) as arrays:
        rows = arrays["labels"] != 2
        calib = {"x": arrays["x"][rows], "labels": arrays["labels"][rows]}
    task = opened(small, calib=calib, settings=Settings(search="none", trust_labels=trusted))
    assert _strategy(Writing(task), check_task_labels(task)).covered == trusted
