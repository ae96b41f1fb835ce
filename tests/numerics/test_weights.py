"""Weights of samples: a weight k counts as the sample k times, and standard errors as if these were one group."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.numerics.bernoulli import sharpened
from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.isotonic import Corp
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import ChanceEce, Metrics, debiased_ece, sample_losses
from tna_onnx.numerics.operating_points import Recalls
from tna_onnx.numerics.positive import positive_scores, slope_and_intercept
from tna_onnx.numerics.reliability import Bins, CumulativeTest
from tna_onnx.numerics.scores import SampleScores, mean_and_error, weighted_mean

N = 600
BINS = 15


def counts() -> NDArray[np.int64]:
    """How often each of N samples comes: from 1 to 4 times, in sum a multiple of the bins."""
    times = np.random.default_rng(5).integers(1, 5, N)
    times[0] += -times.sum() % BINS
    return times


def weighted(each: SampleScores, weights: NDArray[Any]) -> SampleScores:
    return each.clustered(np.arange(N), weights / weights.mean())


def repeated(each: SampleScores, times: NDArray[np.int64]) -> SampleScores:
    rows = np.repeat(np.arange(N), times)
    return each.take(rows).clustered(rows)


def test_a_weight_counts_as_so_many_samples_in_every_metric() -> None:
    times = counts()
    one, two = weighted(sharpened(N, 2.0), times), repeated(sharpened(N, 2.0), times)
    first, second = Metrics.of(one, BINS), Metrics.of(two, BINS)
    for name in METRICS:
        assert getattr(first, name) == pytest.approx(getattr(second, name), abs=1e-9), name
    assert first.n == N
    assert first.effective_n == pytest.approx(times.sum() ** 2 / (times**2).sum())
    assert first.groups is None
    assert debiased_ece(one, BINS) == pytest.approx(debiased_ece(two, BINS), abs=0.01)  # stated, not seen, noise
    c, w = one.confidence.astype(float), times / times.sum()
    inside = np.ceil(c * BINS)
    noise = [(w**2 * c * (1 - c))[inside == j].sum() for j in range(1, BINS + 1)]
    assert ChanceEce.of(one, BINS).mean == pytest.approx(np.sqrt(2 / np.pi * np.array(noise)).sum(), rel=1e-9)
    for objective in ("nll", "brier", "ece", "adaece"):
        losses = weighted_mean(sample_losses(one, objective, BINS), one.weights)
        assert losses == pytest.approx(getattr(first, objective), abs=1e-9), objective


def test_curves_count_the_same() -> None:
    times = counts()
    one, two = weighted(sharpened(N, 2.0), times), repeated(sharpened(N, 2.0), times)
    first, second = (Bins.of(each.confidence, each.hit, BINS, each.weights) for each in (one, two))
    np.testing.assert_allclose(first.accuracy, second.accuracy, rtol=0, atol=1e-9)
    np.testing.assert_allclose(first.confidence, second.confidence, rtol=0, atol=1e-9)
    curves = [Corp.of(each) for each in (one, two)]
    np.testing.assert_allclose(curves[0].curve.accuracy, curves[1].curve.accuracy, rtol=0, atol=1e-9)
    for name in ("miscalibration", "discrimination", "uncertainty"):
        values = [getattr(curve.nll, name) for curve in curves]
        assert values[0] == pytest.approx(values[1], abs=1e-7), name  # means of float32 losses
    tests = [CumulativeTest.of(each) for each in (one, two)]
    assert tests[0].kuiper == pytest.approx(tests[1].kuiper, abs=1e-9)


def test_intervals_are_those_of_samples_repeated_in_a_group() -> None:
    """The quantile apart, which knows how many samples of equal weight there would be.

    Bins of a calibration error have the noise that confidences state at least: repeats would seem to know it better.
    """
    weights = counts()
    pairs = [(weighted(sharpened(N, 2.0), weights), weighted(sharpened(N, 1.0), weights))]
    pairs.append((repeated(sharpened(N, 2.0), weights), repeated(sharpened(N, 1.0), weights)))
    one, two = (paired_differences(*pair, BINS) for pair in pairs)
    for name in ("nll", "brier"):
        assert one[name].difference == pytest.approx(two[name].difference, abs=1e-9), name
        assert one[name].low == pytest.approx(two[name].low, rel=0.02, abs=1e-4), name
        assert one[name].high == pytest.approx(two[name].high, rel=0.02, abs=1e-4), name
    for name in ("ece", "adaece"):
        width = (one[name].high - one[name].low) / (two[name].high - two[name].low)
        assert 0.9 < width < 1.5, name
    mean, error = mean_and_error(pairs[0][0].nll.astype(float), np.arange(N), weights)
    rows = np.repeat(np.arange(N), weights)
    assert (mean, error) == pytest.approx(mean_and_error(pairs[0][0].nll.astype(float)[rows], rows), rel=1e-9)


def test_slope_and_recall_count_the_same() -> None:
    times = counts()
    each = sharpened(N, 2.0, classes=2)
    fits = []
    for side in (weighted(each, times), repeated(each, times)):
        (second,) = positive_scores(side, 2)
        fits.append(slope_and_intercept(second.confidence, second.hit, 1.96, side.clusters, side.weights))
    assert fits[0]["slope"] == pytest.approx(fits[1]["slope"], rel=1e-6)
    assert fits[0]["intercept"] == pytest.approx(fits[1]["intercept"], rel=1e-6)
    hit = ~each.hit
    changed = dataclasses.replace(each, hit=np.where(np.arange(N) % 7 == 0, hit, each.hit))
    one = Recalls.of(weighted(each, times), weighted(changed, times))
    two = Recalls.of(repeated(each, times), repeated(changed, times))
    np.testing.assert_allclose(one.before, two.before, rtol=0, atol=1e-12)
    np.testing.assert_allclose(one.change, two.change, rtol=0, atol=1e-12)
    np.testing.assert_allclose(one.error, two.error, rtol=1e-9)
    for weight in (0.1, 0.3, 0.7, 1e-4):
        alike = Recalls.of(*[weighted(each, np.full(N, weight))] * 2)
        assert alike.samples.tolist() == np.bincount(each.labels).tolist()  # not a little less, by rounding
    assert one.balanced_error == pytest.approx(two.balanced_error, rel=1e-9)


def test_neither_the_unit_nor_the_order_of_weights_matters() -> None:
    times = counts()
    order = np.random.default_rng(3).permutation(N)
    one = Metrics.of(sharpened(N, 2.0).clustered(np.arange(N), times * 1000.0), BINS)
    two = Metrics.of(weighted(sharpened(N, 2.0), times).take(order), BINS)
    for name in (*METRICS, "effective_n"):
        assert getattr(one, name) == pytest.approx(getattr(two, name), rel=1e-9), name


def test_weighted_metrics_are_those_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(1)
    weights = rng.lognormal(size=N)
    p = rng.beta(2, 2, N)
    y = (rng.random(N) < p).astype(np.int64)
    metrics = Metrics.of(weighted(SampleScores.of_probabilities(np.stack([1 - p, p], 1), y), weights), BINS)
    assert metrics.nll == pytest.approx(sklearn.log_loss(y, p, sample_weight=weights), abs=1e-6)
    assert metrics.brier == pytest.approx(2 * sklearn.brier_score_loss(y, p, sample_weight=weights), abs=1e-6)
    accuracy = sklearn.accuracy_score(y, p > 0.5, sample_weight=weights)
    assert metrics.accuracy == pytest.approx(accuracy, abs=1e-12)
    confidence = np.maximum(p, 1 - p).astype(np.float32).astype(float)
    residual = weights * (((p > 0.5) == y) - confidence)
    inside = np.ceil(confidence * BINS).astype(int)
    expected = sum(abs(residual[inside == j].sum()) for j in range(BINS + 1)) / weights.sum()
    assert metrics.ece == pytest.approx(expected, abs=1e-12)


def test_several_labels_have_the_weight_of_their_sample() -> None:
    rng = np.random.default_rng(2)
    logits, labels = rng.normal(size=(N, 4)), rng.integers(0, 2, (N, 4))
    times = counts()
    each = SampleScores.of_logits(logits, labels)
    one, two = (Metrics.of(side, BINS) for side in (weighted(each, times), repeated(each, times)))
    for name in METRICS:
        assert getattr(one, name) == pytest.approx(getattr(two, name), abs=1e-9), name
