"""Means, errors and intervals of samples that come in clusters."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.residuals import cluster_sums, mean_and_error
from tna_onnx.numerics.scores import SampleScores


def scores(n: int, factor: float, seed: int = 0) -> SampleScores:
    """Scores of logits that are `factor` times too large."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.normal(size=(n, 4))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return SampleScores.of_logits(factor * logits, labels)


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
    before, after = scores(1500, 2.0), scores(1500, 1.0)
    plain = paired_differences(before, after)
    clustered = paired_differences(repeated(before, times), repeated(after, times))
    for name, interval in plain.items():
        other = clustered[name]
        assert other.difference == pytest.approx(interval.difference, abs=1e-7)
        # K / (K - 1) and Student's t make a thousandth of the width. Calibration errors: the least noise that
        # confidences state is that of the copies. Accuracy: one sample is added that is won, and one that is lost
        width = interval.high - interval.low
        tolerance = {"ece": 0.02 * width, "adaece": 0.02 * width, "accuracy": 2e-3}.get(name, 2e-3 * width)
        assert other.low == pytest.approx(interval.low, abs=tolerance)
        assert other.high == pytest.approx(interval.high, abs=tolerance)


def test_copies_without_clusters_would_narrow_the_intervals() -> None:
    before, after = repeated(scores(500, 2.0), 4), repeated(scores(500, 1.0), 4)
    free = [SampleScores(s.confidence, s.hit, s.nll, s.brier) for s in (before, after)]
    for name in ("nll", "brier", "ece"):
        own = paired_differences(before, after)[name]
        narrow = paired_differences(*free)[name]
        assert own.high - own.low > 1.3 * (narrow.high - narrow.low)


def test_clusters_may_reach_over_chunks_of_samples() -> None:
    """30,000 samples are spread over the bins in two chunks; the order of the samples changes nothing."""
    before, after = scores(30_000, 2.0), scores(30_000, 1.0)
    clusters = np.random.default_rng(2).integers(0, 3000, 30_000)
    order = np.argsort(clusters, kind="stable")
    mixed = paired_differences(before.clustered(clusters), after.clustered(clusters))
    sorted_ = paired_differences(*(s.clustered(clusters).take(order) for s in (before, after)))
    for name in ("ece", "nll"):
        assert mixed[name].low == pytest.approx(sorted_[name].low, abs=1e-7)
        assert mixed[name].high == pytest.approx(sorted_[name].high, abs=1e-7)


def test_one_cluster_has_no_interval() -> None:
    one = scores(100, 1.0).clustered(np.zeros(100, np.int64))
    with pytest.raises(ValueError, match="two clusters"):
        paired_differences(one, one)


def test_scores_keep_their_clusters() -> None:
    each = scores(6, 1.0).clustered(np.arange(6) // 2)
    taken = each.take(np.array([5, 0]))
    assert taken.clusters is not None
    assert taken.clusters.tolist() == [2, 0]
    joined = taken + each
    assert joined.clusters is not None
    assert joined.clusters.tolist() == [2, 0, 0, 0, 1, 1, 2, 2]
    assert (scores(2, 1.0) + each).clusters is None
