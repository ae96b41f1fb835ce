"""Corrected calibration errors of cross-fitted scores: the definition in loops, its laws, and simulated truths."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize, stats

from tests.numerics.bernoulli import scores
from tests.support import ada_ece, ece
from tna_onnx.numerics import residuals as crossfitted_module
from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.metrics import SHARES
from tna_onnx.numerics.residuals import CrossFit, corrected_errors, fit_error
from tna_onnx.numerics.scores import SampleScores

Array = NDArray[Any]

SUMMED = 1e-12  # sums of a few hundred terms of size 1, in two orders


def made(n: int, seed: int, folds: int = 5) -> tuple[SampleScores, CrossFit]:
    """Scores of two fits that differ, with ties, and folds of several sizes."""
    rng = np.random.default_rng(seed)
    confidence = rng.integers(20, 60, n) / 60
    hit = rng.random(n) < confidence
    moved = np.clip(confidence + 0.05 * rng.standard_normal(n), 0.01, 1)
    fold = rng.permutation(np.arange(n) % folds)
    return scores(confidence, hit), CrossFit(scores(moved, hit), fold)


def defined(crossed: SampleScores, cross_fit: CrossFit, groups: list[list[int]]) -> float:
    """The formulas of the module docstring, a bin after the other, each sample in one bin."""
    n = len(crossed)
    folds = np.unique(cross_fit.fold)
    total = 0.0
    for group in groups:
        x = sum(float(crossed.hit[i]) - float(cross_fit.fitted.confidence[i]) for i in group) / n
        e = {i: float(cross_fit.fitted.confidence[i]) - float(crossed.confidence[i]) for i in group}
        squares = []
        for k in folds:
            inside = [i for i in group if cross_fit.fold[i] == k]
            pairs = [e[i] * e[j] for i, j in itertools.permutations(inside, 2)]
            squares.append((len(folds) / n * len(inside)) ** 2 * float(np.mean(pairs)) if pairs else 0.0)
        mean = sum(e.values()) / n
        v = max(0.0, (len(folds) - 1) * (float(np.mean(squares)) - mean**2))
        total += float(stats.foldnorm(abs(x) / math.sqrt(2 * v), scale=math.sqrt(2 * v)).mean()) if v else abs(x)
    return total


# ---- the definition ----


@pytest.mark.parametrize("folds", [2, 5])
@pytest.mark.parametrize("n", [20, 300])
def test_the_ece_is_what_the_formulas_say(n: int, folds: int) -> None:
    crossed, cross_fit = made(n, seed=n, folds=folds)
    groups = [[i for i in range(n) if j / 7 < crossed.confidence[i] <= (j + 1) / 7] for j in range(7)]
    corrected = corrected_errors(crossed, cross_fit, 7)["ece"]
    assert corrected == pytest.approx(defined(crossed, cross_fit, groups), abs=1e-9)


@pytest.mark.parametrize("n", [20, 300])
def test_the_adaece_is_what_the_formulas_say(n: int) -> None:
    crossed, cross_fit = made(n, seed=n)
    # without ties each sample lies in one bin
    distinct = scores(crossed.confidence + np.linspace(0, 1e-3, n), crossed.hit)
    order = np.argsort(distinct.confidence)
    groups = [order[j * n // 7 : (j + 1) * n // 7].tolist() for j in range(7)]
    corrected = corrected_errors(distinct, cross_fit, 7)["adaece"]
    assert corrected == pytest.approx(defined(distinct, cross_fit, groups), abs=1e-9)


# ---- laws ----


@given(samples=st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=15, max_size=40), bins=st.integers(1, 15))
@settings(max_examples=40, deadline=None)
def test_fits_that_agree_need_no_correction(samples: list[tuple[int, bool]], bins: int) -> None:
    crossed = scores(np.array([p / 6 for p, _ in samples]), np.array([hit for _, hit in samples]))
    corrected = corrected_errors(crossed, CrossFit(crossed, np.arange(len(samples)) % 5), bins)
    assert corrected["ece"] == pytest.approx(ece(crossed, bins), abs=SUMMED)
    assert corrected["adaece"] == pytest.approx(ada_ece(crossed, bins), abs=SUMMED)


@pytest.mark.parametrize("n", [15, 400, 25_000])
def test_the_order_of_samples_does_not_matter(n: int) -> None:
    crossed, cross_fit = made(n, seed=1)
    order = np.random.default_rng(2).permutation(n)
    shuffled = CrossFit(cross_fit.fitted.take(order), cross_fit.fold[order])
    expected = corrected_errors(crossed, cross_fit)
    # roots of variances that differ by rounding
    assert corrected_errors(crossed.take(order), shuffled) == pytest.approx(expected, abs=1e-9)


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    crossed, cross_fit = made(333, seed=4)
    whole = corrected_errors(crossed, cross_fit)
    monkeypatch.setattr(crossfitted_module, "_CHUNK", 50)
    assert corrected_errors(crossed, cross_fit) == pytest.approx(whole, abs=1e-9)


def test_scatter_within_a_fold_is_no_error_of_the_fit() -> None:
    """Confidences that move both ways in each fold move no bin."""
    n = 4000
    rng = np.random.default_rng(5)
    confidence = rng.uniform(0.5, 0.95, n)
    crossed = scores(confidence, rng.random(n) < confidence)
    moved = scores(confidence + 0.04 * rng.choice([-1, 1], n), crossed.hit)
    _, spread = fit_error(crossed, CrossFit(moved, np.arange(n) % 5), SHARES["ece"](crossed, 1))
    # the variance of a mean of n such steps would be 0.04^2 / n, and the plain jackknife gives 5 times that
    assert np.sum(spread**2) < 2.5 * 0.04**2 / n


def test_bins_with_one_sample_a_fold_and_saturated_confidences() -> None:
    crossed = scores(np.array([1.0] * 10 + [0.55] * 5), np.arange(15) % 2 == 0)
    moved = scores(np.array([1.0] * 10 + [0.5] * 5), crossed.hit)
    corrected = corrected_errors(crossed, CrossFit(moved, np.arange(15) % 5))
    assert corrected["ece"] == pytest.approx((5 + abs(3 - 5 * 0.5)) / 15)
    assert np.isfinite(corrected["adaece"])


# ---- differences ----


def test_differences_follow_the_corrected_values_and_intervals_move_along() -> None:
    crossed, cross_fit = made(300, seed=7)
    before, _ = made(300, seed=7)
    before = scores(np.minimum(before.confidence + 0.1, 1), before.hit)
    plain = paired_differences(before, crossed)
    corrected = paired_differences(before, crossed, cross_fit=cross_fit)
    for name, value in corrected_errors(crossed, cross_fit).items():
        of_before = {"ece": ece, "adaece": ada_ece}[name](before)
        assert corrected[name].difference == pytest.approx(value - of_before, abs=SUMMED)
        assert corrected[name].low + corrected[name].high != plain[name].low + plain[name].high


# ---- truths ----


def _temperature(logits: Array, labels: Array) -> float:
    """Temperature of least NLL."""

    def loss(slope: float) -> float:
        return float(np.mean(SampleScores.of_logits(slope * logits, labels).nll, dtype=np.float64))

    return float(optimize.minimize_scalar(loss, bounds=(0.2, 5), method="bounded").x)


def _drawn(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    logits = 1.5 * rng.standard_normal((n, 10))
    return logits, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


@pytest.mark.slow
def test_the_mean_over_data_sets_is_that_of_new_samples() -> None:
    """One temperature on 400 samples that need none: the plain value is too small by a third of a point."""
    errors: dict[str, list[float]] = {"plain": [], "ece": [], "adaece": []}
    for seed in range(300):
        rng = np.random.default_rng([11, seed])
        logits, labels = _drawn(rng, 400)
        fold = rng.permutation(400) % 5
        crossed = np.empty_like(logits)
        for k in range(5):
            crossed[fold == k] = _temperature(logits[fold != k], labels[fold != k]) * logits[fold == k]
        slope = _temperature(logits, labels)
        cross_fit = CrossFit(SampleScores.of_logits(slope * logits, labels), fold)
        held_out = SampleScores.of_logits(crossed, labels)
        corrected = corrected_errors(held_out, cross_fit)
        new = [(slope * fresh, y) for fresh, y in (_drawn(rng, 400) for _ in range(5))]
        truth = [[metric(SampleScores.of_logits(*each)) for each in new] for metric in (ece, ada_ece)]
        errors["plain"].append(ece(held_out) - float(np.mean(truth[0])))
        errors["ece"].append(corrected["ece"] - float(np.mean(truth[0])))
        errors["adaece"].append(corrected["adaece"] - float(np.mean(truth[1])))
    mean = {name: np.mean(values) for name, values in errors.items()}
    error = {name: np.std(values) / math.sqrt(300) for name, values in errors.items()}
    assert mean["plain"] < -2 * error["plain"]
    assert abs(mean["ece"]) < 3 * error["ece"]
    assert abs(mean["adaece"]) < 3 * error["adaece"]
