"""The choice among methods, on hand-made scores: its rules alone, then all of them against their definition."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chi2

from tests.conftest import Small
from tests.pipeline.samples import opened
from tests.pipeline.toys import Fits
from tna_onnx.engine.logits import HeadLogits, StoredLogits
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.maps import CLAMPED
from tna_onnx.maps.linear import Bias
from tna_onnx.numerics.metrics import metric_value
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline.crossfit import MapFits, cross_scores
from tna_onnx.pipeline.methods import FOLDS, INPUT, Method, Rule, scarce
from tna_onnx.pipeline.recalibrate import _strategy
from tna_onnx.pipeline.sample_checks import check_task_labels
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.strategy import Strategy
from tna_onnx.pipeline.writing import Writing

Array = NDArray[Any]

TS = Method(tilted=False, map="ts")
ETS = Method(tilted=False, map="ets")
BIAS = Method(tilted=False, map="bias")
SVS = Method(tilted=False, map="svs")
KEPT = Method(tilted=False, map=f"{CLAMPED}bias")
TNA = Method(tilted=True, map="none")
TNA_TS = Method(tilted=True, map="ts")

N = 1000
EVEN = np.arange(N) % 2 == 0


def scores(nll: Any, hit: Any = EVEN, confidence: Any = 0.5, brier: Any = 0.5) -> SampleScores:
    """Scores of 1,000 samples; by default half of them hit at confidence 1/2, which is calibrated."""
    filled = [np.broadcast_to(np.float32(values), (N,)) for values in (confidence, nll, brier)]
    return SampleScores(filled[0], np.broadcast_to(hit, (N,)), *filled[1:])


BEFORE = scores(1.0)


# --- rule 1: accuracy


def fewer_hits(lost: int) -> Array:
    hit = EVEN.copy()
    hit[np.flatnonzero(EVEN)[:lost]] = False
    return hit


@pytest.mark.parametrize(("lost", "allowed"), [(0, True), (3, True), (4, False)])
def test_accuracy_that_may_be_lost(lost: int, *, allowed: bool) -> None:
    """0.3 points of 1,000 samples are three, exactly; by default none."""
    table = {INPUT: BEFORE, BIAS: scores(0.2, hit=fewer_hits(lost))}
    assert (Rule(max_accuracy_drop=0.003).choose(table, BEFORE) == BIAS) is allowed
    assert (Rule().choose(table, BEFORE) == BIAS) is (lost == 0)


def test_where_none_is_allowed_the_one_that_costs_the_least() -> None:
    table = {BIAS: scores(0.1, hit=fewer_hits(9)), SVS: scores(0.3, hit=fewer_hits(5))}
    assert Rule().choose(table, BEFORE) == SVS
    table[BIAS] = scores(0.9, hit=fewer_hits(5))
    assert Rule().choose(table, BEFORE) == BIAS  # of equals, the simplest


# --- rule 4: never against the calibration error


@pytest.mark.parametrize(("off", "chosen"), [(0.1, TS), (0.0005, BIAS), (0.0, BIAS)])
def test_what_raises_the_calibration_error_is_taken_out(off: float, chosen: Method) -> None:
    """A rise below a tenth of a point does not count, though it is exact."""
    sides = np.where(EVEN, 1 - off, off)  # hit - confidence is off by as much in each sample, and has no error
    before = scores(1.0, hit=EVEN, confidence=np.where(EVEN, 1.0, 0.0))
    table = {INPUT: before, TS: scores(0.8, confidence=np.where(EVEN, 1.0, 0.0)), BIAS: scores(0.2, confidence=sides)}
    assert Rule().choose(table, before) == chosen


# --- rule 3: what is hardly better


@pytest.mark.parametrize(("gain", "chosen"), [(0.0009, TS), (0.0011, BIAS)])
def test_of_two_changes_the_better_one_by_a_nat_in_all(gain: float, chosen: Method) -> None:
    """However much the difference scatters; the input stays within one standard error, here 0.03."""
    noise = np.where(EVEN, 1.0, -1.0)
    assert Rule().choose({INPUT: BEFORE, TS: scores(0.5), BIAS: scores(0.5 - gain + noise)}, BEFORE) == chosen
    assert Rule().choose({INPUT: BEFORE, BIAS: scores(1 - 10 * gain + noise)}, BEFORE) == INPUT


# --- all of them


def by_definition(table: dict[Method, SampleScores], before: SampleScores, drop: float) -> Method:
    """The four rules of the module, with loops."""
    left = {}
    for method, after in table.items():
        lost = (int(before.hit.sum()) - int(after.hit.sum())) / N
        if method.keeps_order or lost <= drop + 1e-12:
            left[method] = after
    if not left:
        return min(table, key=lambda m: (-int(table[m].hit.sum()), m.rank))
    while True:
        means = {m: math.fsum(left[m].nll.tolist()) / N for m in left}
        best = min(left, key=lambda m: (means[m], m.rank))
        near = []
        for method, after in left.items():
            pairs = [float(a) - float(b) for a, b in zip(after.nll, left[best].nll, strict=True)]
            mean = math.fsum(pairs) / N
            error = math.sqrt(math.fsum((x - mean) ** 2 for x in pairs) / N / N)
            if mean <= (max(error, 0.002) if method == INPUT else 1 / N):
                near.append(method)
        chosen = min(near, key=lambda m: m.rank)
        rise = metric_value(left[chosen], "ece") - metric_value(before, "ece")
        parts = []
        for each in (before, left[chosen]):
            bins = np.ceil(each.confidence.astype(np.float64) * 15).clip(1)
            residual = each.hit - each.confidence.astype(np.float64)
            parts.append(residual * [np.sign(residual[bins == b].sum()) for b in bins])
        if len(left) == 1 or rise <= max(0.001, 1.96 * float(np.std(parts[1] - parts[0])) / math.sqrt(N)):
            return chosen
        del left[chosen]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.01, 0.1]))
def test_the_choice_is_the_one_of_the_definition(seed: int, drop: float) -> None:
    rng = np.random.default_rng(seed)
    base = rng.gamma(2, 0.5, N)

    def drawn() -> SampleScores:
        confidence = np.clip(0.5 + rng.normal(0, 0.1) + rng.normal(0, 0.15, N), 0.21, 0.99).astype(np.float32)
        nll = base + rng.normal(0, 0.02) + rng.normal(0, 0.2, N)
        return scores(nll, hit=rng.random(N) < 0.5 + rng.normal(0, 0.02), confidence=confidence)

    before = drawn()
    table = {method: drawn() for method in (TS, ETS, BIAS, SVS, TNA, TNA_TS)} | {INPUT: before}
    assert Rule(max_accuracy_drop=drop).choose(table, before) == by_definition(table, before, drop)


# --- methods


def test_where_every_method_raises_the_error_the_best_is_kept() -> None:
    """Without the input among them: what was asked for by name is taken, not what is left over."""
    rng = np.random.default_rng(5)
    hit = rng.random(400) < 0.9

    def scores(nll: float, confidence: float) -> SampleScores:
        values = (nll + rng.normal(size=400) / 100).astype(np.float32)
        return SampleScores(np.full(400, confidence, np.float32), hit, values, np.zeros(400, np.float32))

    before = scores(1.0, 0.9)
    several = {Method(tilted=False, map="refit", step=k): scores(nll, 0.75) for k, nll in enumerate((0.7, 0.6, 2.0))}
    assert Rule(max_accuracy_drop=1.0).choose(several, before).step == 1


# --- Methods that have lost are not fitted again


SEED = 4


def shifted(shifts: dict[Method, float]) -> Fits:
    """Biases on 2,000 calibrated logits: none is best, and the larger, the worse."""
    rng = np.random.default_rng(0)
    drawn = 2 * rng.normal(size=(2000, 3)).astype(np.float32)
    labels = (drawn + rng.gumbel(size=drawn.shape)).argmax(axis=1)
    logits = HeadLogits(FeatureTable(drawn, labels), np.eye(3, dtype=np.float32), np.zeros(3, np.float32))
    maps = {INPUT: None, **{method: Bias(1.0, np.array([shift, 0.0, 0.0])) for method, shift in shifts.items()}}
    return Fits({method: lambda *_, fitted=fitted: (logits, fitted) for method, fitted in maps.items()})  # type: ignore[misc]


@pytest.mark.parametrize(
    ("kept", "confidence", "taken"),
    [(0.51, 0.505, True), (0.51, 0.514, True), (0.51, 0.516, False), (0.49, 0.52, True)],
)
def test_a_clamp_may_cost_half_a_point_of_ece(kept: float, confidence: float, taken: bool) -> None:
    """The ECE of one temperature is one point here. Confidences on the other side of 1/2 differ by chance alone."""
    loss = 0.1 * np.sin(np.arange(N))  # rule 3 measures a gain by its spread
    every = {INPUT: BEFORE, TS: scores(0.9 + loss, confidence=kept), KEPT: scores(0.8, confidence=confidence)}
    choice = Rule().choice(every, BEFORE)
    assert choice.method == (KEPT if taken else TS)
    assert choice.left_out == ({} if taken else {KEPT: "error"})


def test_a_clamp_is_no_simpler_than_what_folds_and_replaces_only_what_keeps_predictions() -> None:
    every = {INPUT: BEFORE, TS: scores(0.9), KEPT: scores(0.8995)}
    assert Rule().choose(every, BEFORE) == TS  # within the smallest effect
    assert Rule().choose({**every, BIAS: scores(0.85), KEPT: scores(0.5)}, BEFORE) == BIAS


def test_what_loses_clearly_is_fitted_once_and_left_out_unless_it_keeps_predictions() -> None:
    shifts = shifted({BIAS: 0.001, SVS: 3.0, TS: 3.0})
    scores = cross_scores(2000, SEED, shifts)
    assert shifts.counts == {INPUT: FOLDS, BIAS: FOLDS, SVS: 1, TS: FOLDS}
    assert list(scores) == [INPUT, BIAS, TS]


def giving(shown: SampleScores) -> Any:
    """Give scores in the place of logits."""
    logits = SimpleNamespace(mapped_scores=lambda _, rows: shown.take(rows))
    return lambda *_: (logits, None)


def losses_of(rng: np.random.Generator, **means: float) -> dict[Method, Array]:
    """Losses of maps are drawn; those of `TS` have a mean of 0."""
    return {Method(tilted=False, map=name): rng.normal(mean, 1, N) for name, mean in {"ts": 0.0, **means}.items()}


@pytest.mark.parametrize(
    ("worse", "groups", "least", "most"), [(0.0, N, 5, 5), (0.2, N, 1, 2), (0.2, 50, 5, 5)], ids=str
)
def test_what_would_have_won_is_hardly_ever_given_up(worse: float, groups: int, least: int, most: int) -> None:
    """100 draws; the rule promises one loss in 2,500 where it stops. `least` and `most`: fits, in the median."""
    rng = np.random.default_rng(1)
    given_up = 0
    numbers = []
    clusters = None if groups == N else np.arange(N) % groups
    for _ in range(100):
        losses = losses_of(rng, svs=worse)
        fits = Fits({method: giving(scores(each).clustered(clusters)) for method, each in losses.items()})
        best = min(losses, key=lambda method: losses[method].mean())
        given_up += best not in cross_scores(N, SEED, fits, clusters=clusters)
        numbers.append(fits.counts[SVS])
    assert given_up <= 1
    assert least <= np.median(numbers) <= most


def test_only_what_no_rule_leaves_out_rules_others_out() -> None:
    def left(rule: Rule = Rule(careful=True), **means: float) -> set[Method]:  # noqa: B008 - a frozen value
        losses = losses_of(np.random.default_rng(2), **means)
        fits = Fits({method: giving(scores(each)) for method, each in losses.items()})
        return set(cross_scores(N, SEED, fits, rule))

    # the second may yet lose accuracy, and the first be chosen
    assert left(bias=-1.0, svs=-3.0) == {TS, BIAS, SVS}
    # what reads features is fitted slowly, whether or not it keeps predictions
    assert left(aar=1.0, ets=1.0) == {TS, ETS}
    assert left(Rule(max_accuracy_drop=1.0), bias=-1.0, svs=-3.0) == {TS, SVS}


def test_what_was_tilted_for_all_samples_rules_nothing_out() -> None:
    shifts = shifted({SVS: 0.3, Method(tilted=True, map="bias"): 0.0})
    without_input = Fits({method: made for method, made in shifts.made.items() if method != INPUT})
    assert SVS in cross_scores(2000, SEED, without_input)


@pytest.mark.parametrize(("objective", "fits"), [("nll", {1}), ("brier", {1}), ("adaece", {2, 3, 4})])
def test_the_loss_is_that_of_the_objective(objective: Any, fits: set[int]) -> None:
    """The NLL of few samples tells what their error of calibration leaves to chance."""
    shifts = shifted({SVS: 1.5})
    assert list(cross_scores(2000, SEED, shifts, Rule(objective, bins=1))) == [INPUT]
    assert shifts.counts[SVS] in fits


def test_what_ties_by_the_rule_is_not_given_up() -> None:
    """A Brier score that is 0.0002 higher, without any doubt."""
    few, more = (scores(0.5, brier=0.5 + loss) for loss in (0.0, 0.0002))
    fits = Fits({TS: giving(few), SVS: giving(more)})
    assert SVS in cross_scores(N, SEED, fits, Rule("brier"))


# ---- Rule 5, each condition alone; and the choice of few samples


# 800, 180 and 20 samples; of every class one in two is right, and the 20 of the third come last
LABELS = np.repeat([0, 1, 2], [800, 180, 20])
CAREFUL = Rule(careful=True)


def sure(nll: Any, hit: Array = EVEN, labels: Array | None = None) -> SampleScores:
    """Scores that are far too sure, so that rule 4 takes nothing out."""
    return replace(scores(nll, hit, confidence=0.99), labels=labels)


SURE = sure(2.0, labels=LABELS)


def spread(mean: float, deviation: float) -> Array:
    return mean + deviation * np.where(np.arange(N) // 2 % 2 == 0, 1, -1)


def moved(**won: int) -> Array:
    """Hits with so many more samples right of a class (`a`, `b`, `c`); fewer, where negative."""
    hit = EVEN.copy()
    for name, number in won.items():
        own = np.flatnonzero("abc".index(name) == LABELS)
        rows = own[~EVEN[own]] if number > 0 else own[EVEN[own]]
        hit[rows[: abs(number)]] = number > 0
    return hit


def chosen(hit: Array, nll: Any = 0.5, rule: Rule = CAREFUL) -> Method:
    return rule.choose({INPUT: SURE, TS: sure(1.0), BIAS: sure(nll, hit)}, SURE)


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
    before = sure(2.0, labels=labels)
    hit = EVEN.copy()
    hit[N - 9 :] = False
    hit[: N - 9] = True
    table = {INPUT: before, TS: sure(1.0), BIAS: sure(0.5, hit)}
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
    table = {INPUT: SURE, TS: sure(1.0), BIAS: sure(0.4, moved(a=100, c=-6)), SVS: sure(0.5, moved(a=30, b=6))}
    assert CAREFUL.choose(table, SURE) == SVS
    assert Rule().choose(table, SURE) == BIAS
    assert CAREFUL.choice(table, SURE).left_out == {BIAS: "predictions"}


@pytest.mark.parametrize(("mean", "deviation", "gains"), [(1.9, 0.5, True), (1.9, 1.5, False), (1.999, 0.0, False)])
def test_a_gain_is_significant_and_large_enough_to_count(mean: float, deviation: float, *, gains: bool) -> None:
    assert CAREFUL.gains(SURE, sure(spread(mean, deviation))) is gains


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
    before = SURE.clustered(clusters)
    assert scarce(before) == (groups < 10)
    table = {INPUT: before, TS: sure(1.0), BIAS: sure(0.5, moved(a=200, b=40, c=-5))}
    table = {method: each.clustered(clusters) for method, each in table.items()}
    assert CAREFUL.choose(table, before) == (TS if groups == 10 else BIAS)


@pytest.mark.parametrize("trusted", [False, True])
def test_a_class_without_a_sample_keeps_predictions_unless_it_is_said_not_to_occur(small: Small, trusted: bool) -> None:
    with np.load(small.calib) as arrays:
        rows = arrays["labels"] != 2
        calib = {"x": arrays["x"][rows], "labels": arrays["labels"][rows]}
    task = opened(small, calib=calib, settings=Settings(search="none", trust_labels=trusted))
    assert _strategy(Writing(task), check_task_labels(task)).covered == trusted
