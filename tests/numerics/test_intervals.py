"""Intervals of paired differences, against what each is defined to be and against simulated truths."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import integrate, special, stats
from scipy.stats import binom, binomtest

from tests.numerics.bernoulli import scores as scores_of
from tests.numerics.bernoulli import sharpened
from tna_onnx.numerics import intervals as intervals_module
from tna_onnx.numerics import residuals as sums_module
from tna_onnx.numerics.conformal import LEVEL, consistent_range, wilson_interval
from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import SHARES, Interval, Metrics, decisive_count, shares_by_width
from tna_onnx.numerics.positive import Classes, PositiveSide, positive_difference
from tna_onnx.numerics.residuals import CrossFit
from tna_onnx.numerics.scores import SampleScores, cluster_sums, mean_and_error
from tna_onnx.results.measured import estimates_of
from tna_onnx.results.verdict import Recall

Array = NDArray[Any]

SUMMED = 1e-12  # sums of a few thousand terms of size 1, in two orders


def simulated(rng: np.random.Generator, n: int, scale: float) -> tuple[SampleScores, SampleScores]:
    """Scores of a classifier, and of the same logits scaled, on n fresh samples."""
    logits = 1.5 * rng.normal(size=(n, 5))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return SampleScores.of_logits(2.5 * logits, labels), SampleScores.of_logits(2.5 * scale * logits, labels)


def ends(interval: Any) -> tuple[float, float]:
    return interval.low, interval.high


@pytest.mark.slow
@pytest.mark.parametrize("labels", [1, 4])
@pytest.mark.parametrize("kind", ["plain", "weights", "clusters", "folds"])
def test_a_difference_lies_in_its_own_interval(kind: str, labels: int) -> None:
    """Of random data of every kind, at levels from 50 %: in every interval that is reported."""
    for seed in range(4):
        rng = np.random.default_rng([21, seed])
        n = int(rng.choice([15, 40, 400]))
        logits = 1.5 * rng.normal(size=(n, 5 if labels == 1 else labels))
        marks: Array = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        if labels > 1:
            marks = (rng.random(logits.shape) < special.expit(logits)).astype(np.int64)
        slopes = rng.choice([-1.0, 0.3, 1.0, 3.0], 2)
        before, after, moved = (SampleScores.of_logits(slope * logits, marks) for slope in (*slopes, 1.05 * slopes[1]))
        if kind in ("weights", "clusters"):
            weights = rng.exponential(size=n) if kind == "weights" else None
            before, after, moved = (one.clustered(np.arange(n) // 3, weights) for one in (before, after, moved))
        fit = CrossFit(moved, np.arange(n) % 5) if kind == "folds" else None
        level = float(rng.choice([0.5, 0.95]))
        differences = paired_differences(before, after, level=level, cross_fit=fit)
        classes = Classes(tuple(map(str, range(logits.shape[1]))))
        marked = None if labels > 1 else marks
        recall = Recall.of(replace(before, labels=marked), after, classes.names, level)
        found = [
            *differences.items(),
            ("balanced", recall.balanced),
            *((one.name, one.difference) for one in recall.classes),
        ]
        sides = (PositiveSide.of(before, classes), PositiveSide.of(after, classes, cross_fit=fit))
        if labels > 1:
            found.append(("worst label", positive_difference(*sides, level=level)))
        one = estimates_of(after, classes, 15, level, fit)
        found += [(name, Interval(e.value, e.low, e.high, level)) for name, e in one.items() if e.low is not None]
        for name, interval in found:
            assert interval.low - SUMMED <= interval.difference <= interval.high + SUMMED, (name, seed, interval)
        plain = Metrics.of(before), Metrics.of(after)
        for name in ("nll", "brier", "accuracy"):
            expected = getattr(plain[1], name) - getattr(plain[0], name)
            assert differences[name].difference == pytest.approx(expected, abs=1e-7)


@given(
    samples=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.booleans()), min_size=15, max_size=40),
    bins=st.integers(1, 15),
)
def test_ties_do_not_change_the_difference(samples: list[tuple[int, int, bool]], bins: int) -> None:
    """Many samples have confidence 1.0: their order must not decide which bin their errors count in."""
    hit = [h for _, _, h in samples]
    before, after = (scores_of([s[k] / 6 for s in samples], hit) for k in (0, 1))
    result = paired_differences(before, after, bins)
    backwards = np.arange(len(samples))[::-1]
    other = paired_differences(before.take(backwards), after.take(backwards), bins)
    for name in METRICS:
        assert np.isfinite(ends(result[name])).all()
        # a bin whose votes cancel exactly has the sign of a rounding
        if name not in ("ece", "adaece"):
            assert ends(other[name]) == pytest.approx(ends(result[name]), abs=SUMMED)


def test_what_decides_an_nll_is_the_rarer_of_right_and_wrong() -> None:
    half = [0.5] * 12
    first = scores_of(half, [True] * 10 + [False] * 2)
    second = scores_of(half, [True] * 9 + [False] * 1 + [True] * 2)
    assert [decisive_count(first), decisive_count(second), decisive_count(first, second)] == [2, 1, 3]
    assert decisive_count(scores_of(half, [False] * 8 + [True] * 4)) == 4
    # the two errors of one group are one
    pairs = np.arange(12) // 2
    assert decisive_count(first.clustered(pairs)) == 1
    assert decisive_count(first.clustered(np.arange(12), np.array([1.0] * 11 + [0.0]))) == 1
    assert {d.errors for d in paired_differences(first, second, 5).values()} == {3}


# ---- laws ----


@pytest.mark.parametrize("n", [15, 300])
def test_a_width_of_zero_says_that_nothing_changed(n: int) -> None:
    before, after = simulated(np.random.default_rng(2), n, 0.99)
    assert np.array_equal(before.hit, after.hit)
    for name, interval in paired_differences(before, after).items():
        # hits are the same, but the predictions of other samples may not be
        assert interval.low < 0 < interval.high or name != "accuracy"
        assert interval.low < interval.high
    kept = paired_differences(before, after, same_predictions=True)["accuracy"]
    assert (kept.low, kept.high) == (0, 0)


@pytest.mark.parametrize("n", [15, 400, 25_000])
def test_the_order_of_samples_does_not_matter(n: int) -> None:
    rng = np.random.default_rng(3)
    before, after = simulated(rng, n, 0.6)
    order = rng.permutation(n)
    whole, shuffled = paired_differences(before, after), paired_differences(before.take(order), after.take(order))
    for name in METRICS:
        assert ends(shuffled[name]) == pytest.approx(ends(whole[name]), abs=1e-7)


def test_pairs_must_match() -> None:
    before, after = simulated(np.random.default_rng(6), 30, 0.6)
    with pytest.raises(ValueError, match="30 before and 29 after"):
        paired_differences(before, after.take(np.arange(29)))
    few = np.arange(10)
    with pytest.raises(ValueError, match="10 samples, 15 bins"):
        paired_differences(before.take(few), after.take(few))


# ---- means ----


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_interval_of_a_mean_is_that_of_the_normal_distribution(level: float) -> None:
    before, after = simulated(np.random.default_rng(12), 3000, 0.5)
    result = paired_differences(before, after, level=level)
    for name in ("nll", "brier"):
        gains = getattr(after, name).astype(np.float64) - getattr(before, name)
        error = stats.sem(gains)
        # skewness moves both ends to one side, by terms in 1 / sqrt(N)
        shift = stats.skew(gains) / math.sqrt(len(gains))
        expected = stats.norm.interval(level, np.mean(gains), error)
        assert ends(result[name]) == pytest.approx(expected, abs=2 * abs(shift) * error)
        assert result[name].high - result[name].low == pytest.approx(expected[1] - expected[0], rel=2 * abs(shift))


@pytest.mark.parametrize("skewness", [-0.9, -1e-3, 0, 1e-5, 0.4])
@pytest.mark.parametrize("t", [-2.0, -0.5, 0.0, 1.0, 2.5])
def test_quantiles_undo_the_transformation_of_skewed_means(t: float, skewness: float) -> None:
    """Hall's cubic of a studentised mean t is normal up to terms in 1 / N."""
    normal = t + skewness * t**2 / 3 + skewness**2 * t**3 / 27 + skewness / 6
    assert intervals_module._unskewed(normal, skewness) == pytest.approx(t, abs=1e-9)


def test_accuracy_is_the_normal_interval_after_a_gain_and_a_loss() -> None:
    before, after = simulated(np.random.default_rng(13), 50, 0.5)
    hit = after.hit.copy()
    hit[:7] = ~hit[:7]
    change = np.r_[hit.astype(float) - before.hit, 1, -1]
    expected = stats.norm.interval(0.95, np.mean(change), np.std(change) / math.sqrt(52))
    other = SampleScores(after.confidence, hit, after.nll, after.brier)
    assert ends(paired_differences(before, other)["accuracy"]) == pytest.approx(expected, abs=SUMMED)


def test_folds_widen_by_the_spread_of_their_fits() -> None:
    before, after = simulated(np.random.default_rng(14), 300, 0.5)
    plain = paired_differences(before, after)
    for spread in (0.0, 0.5):
        moved = (spread * np.random.default_rng(15).standard_normal(300)).astype(np.float32)
        fitted = replace(after, nll=after.nll - moved, brier=after.brier - moved)
        crossed = paired_differences(before, after, cross_fit=CrossFit(fitted, np.arange(300) % 5))
        assert crossed["accuracy"] == plain["accuracy"]
        for name in ("nll", "brier"):
            gains = getattr(after, name).astype(np.float64) - getattr(before, name)
            ratio = (crossed[name].high - crossed[name].low) / (plain[name].high - plain[name].low)
            # ends of skewed means are not in proportion to the error
            expected = math.sqrt(1 + 5.5 * np.var(moved) / np.var(gains))
            assert ratio == pytest.approx(expected, rel=0.05 if spread else SUMMED)
    for name in ("ece", "adaece"):
        assert crossed[name].difference == pytest.approx(plain[name].difference, abs=SUMMED)
        assert ends(crossed[name]) == pytest.approx(ends(plain[name]), abs=1e-7)


@pytest.mark.parametrize("optimum", [0.0, 2.0, 5.0])
def test_the_factor_of_that_spread_is_exact_for_quadratic_losses(optimum: float) -> None:
    """N losses t^2 / 2 - t x of one number t, whose best value is `optimum` standard errors of its fit from 0."""
    folds = optimum / 5 + np.random.default_rng(16).standard_normal((200_000, 5)) / math.sqrt(5)  # sums of x by fold
    best = folds.sum(axis=1)
    crossed = (best[:, None] - folds) * 5 / 4
    error = np.sum(crossed**2 / 10 - crossed * folds, axis=1) - (best**2 / 2 - best * optimum)
    of_samples, of_fits = (np.mean(np.sum(moves**2, axis=1)) / 5 for moves in (crossed, crossed - best[:, None]))
    assert np.var(error) == pytest.approx(of_samples + intervals_module._OF_FITS * of_fits, rel=0.02)


@pytest.mark.parametrize(
    ("gains", "grouped", "likelier"),
    [
        ([0.5] * 10, False, True),  # e^5 is above 100
        ([0.45] * 10, False, False),
        ([80.0] + [0.0] * 9, False, False),  # one sample alone
        ([80.0, 0.1] + [0.0] * 8, False, True),
        ([0.5] * 10, True, False),
    ],
)
def test_samples_that_are_100_times_as_likely(gains: list[float], grouped: bool, likelier: bool) -> None:
    nothing = np.zeros(10, np.float32)
    after = SampleScores(nothing, nothing == 1, nothing, nothing)
    before = replace(after, nll=np.float32(gains))
    if grouped:
        before = replace(before, clusters=np.arange(10) // 2)
    fit = CrossFit(after, np.arange(10) % 5)
    assert paired_differences(before, after, 5, cross_fit=fit)["nll"].likelier == likelier
    assert not paired_differences(before, after, 5)["nll"].likelier


# ---- calibration errors ----


def test_one_estimate_is_off_by_at_most_a_fifth_of_a_standard_error() -> None:
    """The bias that the module states, by quadrature over the normal distribution."""
    for mu in np.linspace(0, 6, 13):

        def integrand(x: float, mu: float = mu) -> float:
            # a change of one bin from nothing to x, its standard error 1
            _, single = sums_module.estimates(np.array([[0.0, x]]), np.array([0.0, 1.0]))
            return float(single[0]) * stats.norm.pdf(x - mu)

        mean, _ = integrate.quad(integrand, mu - 8, mu + 8, points=[0], limit=200)
        assert abs(mean - mu) < 0.2225


@pytest.mark.parametrize("mu", [0.0, 2.0])
def test_the_other_estimate_has_no_bias_where_neighbours_agree(mu: float) -> None:
    noise = np.random.default_rng(15).normal(size=(40_000, 15))
    values = np.hstack([np.zeros_like(noise), mu + noise])
    pooled, _ = sums_module.estimates(values, np.repeat([0.0, 1.0], 15))
    # At 0 a bin alone beyond two standard errors adds E|x| 1(|x| > 2) = 2 phi(2) = 0.108, none otherwise.
    expected = 15 * (mu + 0.108 * (mu == 0))
    assert np.mean(pooled) == pytest.approx(expected, abs=0.25)


def test_moments_are_those_of_the_residuals_by_bin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums_module, "_CHUNK", 64)
    rng = np.random.default_rng(16)
    n, bins = 300, 5
    p, q = (rng.integers(1, 60, n) / 60 for _ in range(2))  # ties
    hit = rng.random(n) < 0.5
    pair = (scores_of(p, hit), scores_of(q, hit))
    for name, shares in SHARES.items():
        columns = []
        for s in pair:
            c = s.confidence.astype(np.float64)
            if name == "ece":
                # of k / 60, not of its rounding to float32: 12 / 60 is on the border of the first bin
                share = np.array([np.ceil(round(60 * value) * bins / 60) - 1 == np.arange(bins) for value in c])
            else:
                # each sample of a tie has the mean of what the tie's ranks hold
                rank = np.argsort(np.argsort(c, kind="stable"))
                held = np.array([[lo <= r < hi for lo, hi in _runs(n, bins)] for r in range(n)])
                share = np.array([held[rank[c == value]].mean(axis=0) for value in c])
            columns.append(share * (hit - c)[:, None])
        spread = np.hstack(columns)
        mean, covariance = sums_module.moments(pair, [shares(side, bins) for side in pair])
        np.testing.assert_allclose(mean, spread.mean(axis=0), atol=SUMMED)
        found = np.cov(spread.T, ddof=0)
        scale = np.sqrt(np.diag(covariance) * n / np.diag(found))
        # never less than the confidences state, and correlations stay
        assert (scale >= 1 - 1e-9).all()
        np.testing.assert_allclose(covariance * n, found * scale * scale[:, None], atol=SUMMED)


def _runs(n: int, bins: int) -> list[tuple[int, int]]:
    return [(j * n // bins, (j + 1) * n // bins) for j in range(bins)]


def test_a_bin_of_hits_alone_has_the_spread_that_its_confidences_state() -> None:
    confidence = np.full(40, 0.95)
    pair = (scores_of([0.5] * 40, [True] * 40), scores_of(confidence, [True] * 40))
    _, covariance = sums_module.moments(pair, [shares_by_width(side, 15) for side in pair])
    assert covariance[29, 29] == pytest.approx(0.95 * 0.05 / 40, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "scale"), [(200, 0.25), (200, 0.7), (1000, 0.4)])
def test_intervals_cover_the_true_difference(n: int, scale: float) -> None:
    """Logits 2.5 times too large, and those scaled: 0.4 is calibrated; expectations over labels are the truth."""
    rng = np.random.default_rng(7)
    logits = 1.5 * rng.normal(size=(200_000, 5))
    p = special.softmax(logits, axis=1)
    rows, top = np.arange(len(p)), logits.argmax(axis=1)
    whole = []
    for factor in (2.5, 2.5 * scale):
        q = special.softmax(factor * logits, axis=1)
        nll = -np.sum(p * np.log(q), axis=1)
        whole.append(Metrics.of(SampleScores(q[rows, top], p[rows, top], nll, np.sum(q * q - 2 * p * q, axis=1) + 1)))
    truth = {name: getattr(whole[1], name) - getattr(whole[0], name) for name in METRICS}
    held = dict.fromkeys(METRICS, 0.0)
    runs = 150
    for seed in range(runs):
        for name, interval in paired_differences(*simulated(np.random.default_rng([8, seed]), n, scale)).items():
            held[name] += (interval.low <= truth[name] <= interval.high) / runs
    # binomial standard deviation 1.8 points: 0.95 - 3 * 0.018
    assert min(held.values()) >= 0.896, held


# --- Means, errors and intervals of samples that come in clusters


def repeated(each: SampleScores, times: int) -> SampleScores:
    """Each sample several times, in a cluster of its own, in no order."""
    order = np.random.default_rng(1).permutation(np.tile(np.arange(len(each)), times))
    return each.take(order).clustered(order)


def test_sums_of_clusters_in_any_order() -> None:
    rng = np.random.default_rng(0)
    clusters = rng.integers(-3, 9, 500)
    values = rng.normal(size=(500, 2))
    expected = [values[clusters == k].sum(axis=0) for k in np.unique(clusters)]
    np.testing.assert_allclose(
        cluster_sums(values, clusters), expected, rtol=0, atol=1e-12
    )  # sums of 50 normal numbers


def test_the_error_of_a_mean_is_that_of_a_bootstrap_of_clusters() -> None:
    """500 clusters of 1 to 9 values that share half of their variance, against 4,000 draws of whole clusters."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 10, 500)
    clusters = np.repeat(np.arange(500), sizes)
    values = rng.normal(size=500)[clusters] + rng.normal(size=len(clusters))
    sums = cluster_sums(values, clusters)
    drawn = rng.integers(0, 500, (4000, 500))
    means = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    mean, error = mean_and_error(values, clusters)
    assert mean == pytest.approx(values.mean())
    assert error == pytest.approx(means.std(), rel=0.05)  # 4,000 draws know it to 1.1 %; the ratio to second order
    assert error > 1.5 * mean_and_error(values)[1]


def test_a_cluster_alone_says_nothing_on_its_error() -> None:
    assert mean_and_error(np.array([1.0, 2.0]), np.array([4, 4])) == (1.5, math.inf)


@pytest.mark.parametrize("times", [1, 3])
def test_copies_in_one_cluster_add_nothing(times: int) -> None:
    """Three copies of each sample say as much as one: intervals of the samples alone, but for small-sample factors."""
    before, after = sharpened(1500, 2.0), sharpened(1500, 1.0)
    plain = paired_differences(before, after)
    clustered = paired_differences(repeated(before, times), repeated(after, times))
    for name, interval in plain.items():
        other = clustered[name]
        if name not in SHARES:  # their bias is that of the stated noise
            assert other.difference == pytest.approx(interval.difference, abs=1e-7)
        # K / (K - 1) and Student's t make a thousandth of the width. Calibration errors: the least noise that
        # confidences state is that of the copies. Accuracy: one sample is added that is won, and one that is lost
        width = interval.high - interval.low
        tolerance = {"ece": 0.02 * width, "adaece": 0.02 * width, "accuracy": 2e-3}.get(name, 2e-3 * width)
        assert other.low == pytest.approx(interval.low, abs=tolerance)
        assert other.high == pytest.approx(interval.high, abs=tolerance)


def test_copies_without_clusters_would_narrow_the_intervals() -> None:
    before, after = repeated(sharpened(500, 2.0), 4), repeated(sharpened(500, 1.0), 4)
    free = [SampleScores(s.confidence, s.hit, s.nll, s.brier) for s in (before, after)]
    for name in ("nll", "brier", "ece"):
        own = paired_differences(before, after)[name]
        narrow = paired_differences(*free)[name]
        assert own.high - own.low > 1.3 * (narrow.high - narrow.low)


def test_clusters_may_reach_over_chunks_of_samples() -> None:
    """30,000 samples are spread over the bins in two chunks; the order of the samples changes nothing."""
    before, after = sharpened(30_000, 2.0), sharpened(30_000, 1.0)
    clusters = np.random.default_rng(2).integers(0, 3000, 30_000)
    order = np.argsort(clusters, kind="stable")
    mixed = paired_differences(before.clustered(clusters), after.clustered(clusters))
    sorted_ = paired_differences(*(s.clustered(clusters).take(order) for s in (before, after)))
    for name in ("ece", "nll"):
        assert mixed[name].low == pytest.approx(sorted_[name].low, abs=1e-7)
        assert mixed[name].high == pytest.approx(sorted_[name].high, abs=1e-7)


def test_one_cluster_has_no_interval() -> None:
    one = sharpened(100, 1.0).clustered(np.zeros(100, np.int64))
    with pytest.raises(ValueError, match="two clusters"):
        paired_differences(one, one)


def test_scores_keep_their_clusters() -> None:
    each = sharpened(6, 1.0).clustered(np.arange(6) // 2)
    taken = each.take(np.array([5, 0]))
    assert taken.clusters is not None
    assert taken.clusters.tolist() == [2, 0]
    joined = taken + each
    assert joined.clusters is not None
    assert joined.clusters.tolist() == [2, 0, 0, 0, 1, 1, 2, 2]
    assert (sharpened(2, 1.0) + each).clusters is None


# --- Intervals of shares, against statsmodels, SciPy and each other


@given(st.integers(1, 3000), st.data())
def test_wilson_is_that_of_scipy(n: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, n))
    expected = binomtest(hits, n).proportion_ci(LEVEL, method="wilson")
    assert wilson_interval(hits / n, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


@given(st.floats(0, 1), st.integers(1, 500), st.data())
def test_both_are_one_test(p: float, n: int, data: st.DataObject) -> None:
    """A share is in the range of a probability if and only if the probability is in the interval of the share."""
    share = data.draw(st.integers(0, n)) / n
    low, high = wilson_interval(share, n)
    least, most = consistent_range(p, n)
    # at the very ends rounding decides
    assume(min(abs(p - low), abs(p - high), abs(share - least), abs(share - most)) > 1e-9)
    assert (low < p < high) == (least < share < most)


@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.9])
def test_a_calibrated_bin_is_in_its_range_as_often_as_the_level_says(p: float) -> None:
    n = 2000
    low, high = consistent_range(p, n)
    inside = binom.cdf(np.floor(n * high), n, p) - binom.cdf(np.ceil(n * low) - 1, n, p)
    # two lattice points may be in or out: each has a probability of at most 0.4 / sqrt(n p q)
    assert inside == pytest.approx(LEVEL, abs=0.01)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_a_probability_that_leaves_no_doubt(p: float) -> None:
    assert consistent_range(p, 7) == (p, p)
