"""Scores, metrics and intervals of several labels a sample, against scikit-learn, netcal and the definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import special

from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.metric import OBJECTIVES
from tna_onnx.numerics.metrics import Metrics, sample_losses
from tna_onnx.numerics.residuals import CrossFit, corrected_errors
from tna_onnx.numerics.scores import SampleScores, as_two_classes

Array = NDArray[np.float64]

# per-sample terms are float32
ROUNDED = 1e-6


def drawn(n: int = 600, labels: int = 4, sharp: float = 1.0, seed: int = 0) -> tuple[Array, NDArray[np.int64]]:
    """Return logits `sharp` times those that labels were drawn from."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, labels)) * 2 - 0.5
    marks = (rng.random((n, labels)) < special.expit(logits)).astype(np.int64)
    return sharp * logits, marks


def test_metrics_are_the_means_over_labels_of_scikit_learns() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    logits, marks = drawn(sharp=2.0)
    p = special.expit(logits)
    for scores in (SampleScores.of_logits(logits, marks), SampleScores.of_probabilities(p, marks)):
        found = Metrics.of(scores)
        columns = range(marks.shape[1])
        assert found.nll == pytest.approx(
            np.mean([metrics.log_loss(marks[:, c], p[:, c]) for c in columns]), abs=ROUNDED
        )
        assert found.brier == pytest.approx(
            np.mean([metrics.brier_score_loss(marks[:, c], p[:, c]) for c in columns]), abs=ROUNDED
        )
        assert found.accuracy == pytest.approx(1 - metrics.hamming_loss(marks, p > 0.5))


def test_class_wise_ece_is_the_mean_of_netcals_binary_ones() -> None:
    netcal = pytest.importorskip("netcal.metrics")
    logits, marks = drawn(sharp=2.0)
    p = special.expit(logits)
    found = Metrics.of(SampleScores.of_logits(logits, marks), bins=10)
    each = [netcal.ECE(10).measure(p[:, c], marks[:, c]) for c in range(marks.shape[1])]
    assert found.ece == pytest.approx(np.mean(each), abs=ROUNDED)


def test_errors_are_those_of_the_definition() -> None:
    logits, marks = drawn(n=90, labels=3, sharp=3.0)
    p = special.expit(logits)
    by_width = []
    by_mass = []
    for c in range(3):
        bins = np.ceil(p[:, c] * 15).astype(int)
        residual = marks[:, c] - p[:, c]
        by_width.append(sum(abs(residual[bins == b].sum()) for b in range(16)) / 90)
        runs = residual[np.argsort(p[:, c])].reshape(15, 6)
        by_mass.append(np.abs(runs.sum(axis=1)).sum() / 90)
    found = Metrics.of(SampleScores.of_logits(logits, marks))
    assert found.ece == pytest.approx(np.mean(by_width), abs=ROUNDED)
    assert found.adaece == pytest.approx(np.mean(by_mass), abs=ROUNDED)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.sampled_from([1e-3, 1.0, 30.0, 1e4]))
def test_a_label_is_a_model_of_two_classes(seed: int, labels: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(40, labels)) * scale).astype(np.float32)
    marks = rng.integers(0, 2, (40, labels))
    scores = SampleScores.of_logits(logits, marks)
    two = SampleScores.of_logits(*as_two_classes(logits, marks))
    np.testing.assert_allclose(scores.nll.reshape(-1), two.nll, rtol=1e-5, atol=ROUNDED)
    np.testing.assert_allclose(scores.confidence.reshape(-1), two.confidence, rtol=ROUNDED)
    np.testing.assert_array_equal(scores.hit.reshape(-1), two.hit)
    # the score of two classes adds up both
    np.testing.assert_allclose(2 * scores.brier.reshape(-1), two.brier, atol=ROUNDED)


def test_scores_of_chunks_add_up_to_those_of_the_whole() -> None:
    logits, marks = drawn()
    whole = SampleScores.of_logits(logits, marks)
    parts = [SampleScores.of_logits(logits[rows], marks[rows]) for rows in (slice(0, 7), slice(7, 600))]
    joined = parts[0] + parts[1]
    assert len(whole) == 600
    for name in ("confidence", "hit", "nll", "brier", "predicted"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))
    assert len(whole.pooled()) == len(whole.decisions()) == 2400
    assert whole.pooled().clusters is not None
    np.testing.assert_array_equal(np.unique(whole.pooled().clusters, return_counts=True)[1], 4)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_losses_of_samples_have_the_metric_as_their_mean(objective: str) -> None:
    logits, marks = drawn(sharp=2.0)
    scores = SampleScores.of_logits(logits, marks)
    losses = sample_losses(scores, objective)  # type: ignore[arg-type]
    assert losses.shape == (600,)
    assert losses.mean() == pytest.approx(getattr(Metrics.of(scores), objective), abs=ROUNDED)


@pytest.mark.parametrize(("p", "mark", "nll"), [(1.0, 0, 17.3287), (0.0, 1, 17.3287), (1.0, 1, 0.0)])
def test_probabilities_that_were_rounded_to_an_end_have_a_finite_loss(p: float, mark: int, nll: float) -> None:
    scores = SampleScores.of_probabilities(np.float32([[p]]), np.array([[mark]]))
    # log 2^25: half of float32's step below 1
    assert scores.nll[0, 0] == pytest.approx(nll, abs=1e-3)


# ---- intervals


def test_differences_are_of_samples_and_not_of_labels() -> None:
    """Copies of one label say no more than the label: an interval over entries would be narrower by a factor of 3."""
    logits, marks = drawn(n=500, labels=1)
    copies = [np.repeat(each, 9, axis=1) for each in (2 * logits, logits, marks)]
    one = paired_differences(SampleScores.of_logits(2 * logits, marks), SampleScores.of_logits(logits, marks))
    nine = paired_differences(
        SampleScores.of_logits(copies[0], copies[2]), SampleScores.of_logits(copies[1], copies[2])
    )
    for name in ("nll", "brier", "ece", "adaece"):
        assert nine[name].difference == pytest.approx(one[name].difference, abs=ROUNDED)
        assert nine[name].low == pytest.approx(one[name].low, abs=1e-5)
        assert nine[name].high == pytest.approx(one[name].high, abs=1e-5)


def test_independent_labels_give_narrower_intervals() -> None:
    widths = []
    for labels in (1, 16):
        logits, marks = drawn(n=400, labels=labels)
        d = paired_differences(SampleScores.of_logits(1.5 * logits, marks), SampleScores.of_logits(logits, marks))
        widths.append({name: d[name].high - d[name].low for name in ("nll", "brier")})
    for name in ("nll", "brier"):
        assert widths[1][name] < 0.45 * widths[0][name]


@pytest.mark.slow
@pytest.mark.parametrize("labels", [2, 6])
def test_intervals_hold_the_true_difference(labels: int) -> None:
    """A sharpened model against the true one, whose errors of calibration are 0: 95 % intervals, 120 data sets."""
    big, _ = drawn(n=200_000, labels=1, seed=99)
    sharp = special.expit(1.6 * big[:, 0])
    edges = np.ceil(sharp * 15).astype(int)
    residual = special.expit(big[:, 0]) - sharp
    true_ece = np.abs(np.bincount(edges, residual)).sum() / len(big)
    held = 0
    for seed in range(120):
        logits, marks = drawn(n=400, labels=labels, seed=seed)
        d = paired_differences(SampleScores.of_logits(1.6 * logits, marks), SampleScores.of_logits(logits, marks))
        held += d["ece"].low <= -true_ece <= d["ece"].high
    # 95 % of 120 are 114; four standard errors below are 104
    assert held >= 104


def test_corrected_errors_of_cross_fitted_labels_are_means_over_labels() -> None:
    logits, marks = drawn(n=300, labels=3, sharp=1.3)
    crossed = SampleScores.of_logits(logits, marks)
    fitted = SampleScores.of_logits(1.01 * logits, marks)
    fold = np.arange(300) % 5
    each = [
        corrected_errors(one, CrossFit(two, fold))
        for one, two in zip(crossed.by_label(), fitted.by_label(), strict=True)
    ]
    found = corrected_errors(crossed, CrossFit(fitted, fold))
    for name, value in found.items():
        assert value == pytest.approx(np.mean([one[name] for one in each]))
