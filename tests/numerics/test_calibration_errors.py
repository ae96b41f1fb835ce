"""Calibration errors: cross-fitted, debiased, without bins, of a stated confidence; laws and simulated truths."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize, stats

from tests.numerics.bernoulli import confidences, scores
from tests.support import ada_ece, ece
from tna_onnx.numerics import residuals as crossfitted_module
from tna_onnx.numerics.intervals import paired_differences, top_label_errors
from tna_onnx.numerics.metrics import SHARES, ChanceEce, debiased_ece
from tna_onnx.numerics.reliability import CumulativeTest, bin_of, kolmogorov_smirnov_p, kuiper_p
from tna_onnx.numerics.residuals import CrossFit, corrected_errors, fit_error
from tna_onnx.numerics.scores import SampleScores

# --- Corrected calibration errors of cross-fitted scores: the definition in loops, its laws, and simulated truths


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


def test_differences_and_their_intervals_are_corrected() -> None:
    crossed, cross_fit = made(300, seed=7)
    before, _ = made(300, seed=7)
    before = scores(np.minimum(before.confidence + 0.1, 1), before.hit)
    plain = paired_differences(before, crossed)
    corrected = paired_differences(before, crossed, cross_fit=cross_fit)
    for name in ("ece", "adaece"):
        assert corrected[name].difference != plain[name].difference
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


# --- The debiased ECE: against the package of its authors, against simulation, and that it is nearer to the truth


def test_the_estimator_of_its_authors() -> None:
    """Theirs draws the mean that is a closed form here."""
    calibration = pytest.importorskip("calibration.utils")
    np.random.seed(0)  # noqa: NPY002 - that package draws from the global generator
    confidence, hit = confidences(600, seed=1)
    confidence = np.float32(0.3 + 0.7 * confidence)
    index = bin_of(confidence, 10)
    binned = [list(zip(confidence[index == j].tolist(), hit[index == j].tolist(), strict=True)) for j in range(10)]
    drawn = calibration.normal_debiased_ce([b for b in binned if len(b) > 1], resamples=20_000)
    kept = np.isin(index, [j for j in range(10) if len(binned[j]) > 1])
    # 20,000 draws of a mean with a standard deviation of about 0.015
    assert debiased_ece(scores(confidence[kept], hit[kept]), 10) == pytest.approx(
        drawn, abs=5 * 0.015 / np.sqrt(20_000)
    )


@pytest.mark.parametrize("shift", [0.0, 0.02, 0.05])
@pytest.mark.parametrize("n", [400, 2000])
def test_it_is_nearer_to_the_truth_than_the_ece_and_not_below_it(n: int, shift: float) -> None:
    plain, debiased = [], []
    for seed in range(200):
        confidence, hit = confidences(n, seed)
        given_ = scores(confidence + shift, hit)
        plain.append(ece(given_))
        debiased.append(debiased_ece(given_))
    assert shift < np.mean(plain)
    error = np.std(debiased) / np.sqrt(200)
    assert shift - 3 * error < np.mean(debiased) < np.mean(plain)


def test_the_expected_ece_is_that_of_labels_drawn_from_the_confidences() -> None:
    confidence, _ = confidences(3000, seed=5)
    rng = np.random.default_rng(0)
    drawn = [ece(scores(confidence, rng.random(3000) < confidence)) for _ in range(1000)]
    expected = ChanceEce.of(scores(confidence, np.ones(3000, bool))).mean
    assert np.mean(drawn) == pytest.approx(expected, abs=4 * np.std(drawn) / np.sqrt(1000))


@given(st.lists(st.tuples(st.floats(0.0625, 1, width=16), st.booleans()), min_size=15, max_size=40))
def test_it_lies_between_zero_and_the_ece(samples: list[tuple[float, bool]]) -> None:
    made = scores(np.array([c for c, _ in samples]), np.array([h for _, h in samples]))
    assert 0 <= debiased_ece(made) <= ece(made) + 1e-12
    assert 0 <= ChanceEce.of(made).mean <= 1


# --- The cumulative-difference test: its statistics against their definition, its p-values against simulated laws


@given(st.lists(st.tuples(st.floats(0.0625, 1, width=16), st.booleans()), min_size=1, max_size=30))
def test_the_statistics_are_the_largest_sums_over_intervals_of_confidence(samples: list[tuple[float, bool]]) -> None:
    """Kuiper: any interval of confidence; Kolmogorov-Smirnov: those that begin at the lowest."""
    confidence = np.array([c for c, _ in samples])
    hit = np.array([h for _, h in samples])
    found = CumulativeTest.of(scores(confidence, hit))
    values = np.unique(confidence)
    residual = hit - confidence
    inside = {
        (low, high): abs(residual[(confidence >= low) & (confidence <= high)].sum()) / len(hit)
        for low in values
        for high in values
        if low <= high
    }
    assert found.kuiper == pytest.approx(max(inside.values()), abs=1e-12)
    from_lowest = [inside[values[0], high] for high in values]
    assert found.kolmogorov_smirnov == pytest.approx(max(from_lowest), abs=1e-12)
    assert 0 <= found.kolmogorov_smirnov <= found.kuiper <= 1
    assert 0 <= found.kuiper_p <= 1
    assert 0 <= found.kolmogorov_smirnov_p <= 1


@given(st.permutations(range(8)))
def test_the_order_of_samples_of_one_confidence_does_not_matter(order: list[int]) -> None:
    confidence = np.repeat([0.5, 1.0], 4)
    hit = np.array([1, 0, 0, 0, 1, 1, 0, 1], bool)
    assert CumulativeTest.of(scores(confidence[order], hit[order])) == CumulativeTest.of(scores(confidence, hit))


def test_the_laws_are_those_of_a_brownian_motion() -> None:
    """Simulated with 2,000 steps, which reach about 0.58 steps less far at each border (Siegmund 1985, chapter 10)."""
    steps, paths = 2000, 3000
    walk = np.cumsum(np.random.default_rng(0).standard_normal((paths, steps)) / np.sqrt(steps), axis=1)
    walk = np.hstack([np.zeros((paths, 1)), walk])
    short = 0.5826 / np.sqrt(steps)
    four_errors = 4 * 0.5 / np.sqrt(paths)
    farthest, spread = np.abs(walk).max(axis=1) + short, np.ptp(walk, axis=1) + 2 * short
    for x in (0.7, 0.95, 1.05, 1.5, 2.0, 2.5, 3.0):
        assert np.mean(farthest > x) == pytest.approx(kolmogorov_smirnov_p(x), abs=four_errors)
        assert np.mean(spread > x) == pytest.approx(kuiper_p(x), abs=four_errors)


@pytest.mark.parametrize("law", [kolmogorov_smirnov_p, kuiper_p])
def test_the_two_series_of_a_law_meet(law: object) -> None:
    assert callable(law)
    assert law(1 - 1e-12) == pytest.approx(law(1.0), abs=1e-10)
    values = [law(x) for x in np.linspace(0, 12, 200)]
    assert values[0] == 1
    assert np.all(np.diff(values) <= 1e-15)
    assert 0 < values[-1] < 1e-30  # tiny p-values keep their digits
    assert law(np.inf) == 0


def test_the_test_keeps_its_level_and_has_power() -> None:
    """200 draws under calibration, and of a confidence that is three points too high."""
    fair, high = [], []
    for seed in range(200):
        confidence, hit = confidences(1000, seed)
        fair.append(CumulativeTest.of(scores(confidence, hit)).kuiper_p)
        high.append(CumulativeTest.of(scores(np.minimum(confidence + 0.04, 1), hit)).kuiper_p)
    # four standard errors of a share of 200 at 0.05
    assert abs(np.mean(np.array(fair) < 0.05) - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 200)
    assert np.mean(np.array(high) < 0.05) > 0.9


def test_certain_predictions_leave_nothing_to_chance() -> None:
    ones = np.ones(5)
    assert CumulativeTest.of(scores(ones, np.ones(5, bool))) == CumulativeTest(0.0, 0.0, 1.0, 1.0)
    wrong = CumulativeTest.of(scores(ones, np.array([1, 1, 0, 1, 1], bool)))
    assert (wrong.kuiper_p, wrong.kolmogorov_smirnov_p) == (0, 0)
    assert wrong.kuiper == pytest.approx(0.2)


# --- ECE and NLL of a stated confidence: the definition, the edges, and how often the intervals hold them


def test_values_are_those_of_the_definition() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.4, 1, 500).astype(np.float32)
    hit = rng.random(500) < confidence**2
    found = top_label_errors(confidence, hit, 0.9)
    loss = -np.where(hit, np.log(confidence), np.log1p(-confidence))
    assert found.nll == pytest.approx(loss.mean(), rel=1e-5)
    nothing = np.zeros_like(confidence)
    assert found.ece == pytest.approx(ece(SampleScores(confidence, hit, nothing, nothing)), abs=0.005)
    wider = top_label_errors(confidence, hit, 0.99)
    for name in ("ece_interval", "nll_interval"):
        (low, high), (lowest, highest) = getattr(found, name), getattr(wider, name)
        assert lowest <= low < high <= highest
    assert found.nll_interval is not None
    assert found.nll_interval[0] <= found.nll


@pytest.mark.parametrize("scale", [1.0, pytest.param(0.6, marks=pytest.mark.slow)])
def test_intervals_hold_the_errors(scale: float) -> None:
    """Of 100 runs 88 or more: below 95 % by 3 standard errors at most."""
    rng = np.random.default_rng(1)

    def drawn(n: int) -> tuple[np.ndarray, np.ndarray]:
        logit = np.abs(rng.normal(1.8, 1.5, n))
        return 1 / (1 + np.exp(-scale * logit)), 1 / (1 + np.exp(-logit))

    stated, true = drawn(400_000)
    place = np.ceil(15 * stated).astype(int)
    error = np.abs(np.bincount(place, true - stated)).sum() / len(stated)
    loss = np.mean(-true * np.log(stated) - (1 - true) * np.log1p(-stated))
    held = np.zeros(2, int)
    for _ in range(100):
        stated, true = drawn(500)
        found = top_label_errors(stated, rng.random(500) < true, 0.95)
        assert found.ece_interval is not None
        assert found.nll_interval is not None
        held += [
            low <= value <= high for (low, high), value in ((found.ece_interval, error), (found.nll_interval, loss))
        ]
    assert (held >= 88).all()


@pytest.mark.parametrize("wrong", [0, 9, 10, 30, 31, 40])
def test_few_that_are_right_or_wrong_give_no_interval_of_the_nll(wrong: int) -> None:
    found = top_label_errors(np.full(40, 0.8), np.arange(40) >= wrong, 0.95)
    assert (found.nll_interval is not None) == (10 <= wrong <= 30)
    assert found.ece_interval is not None
    assert np.isfinite(found.nll)


@pytest.mark.parametrize("n", [2, 3, 5, 12])
def test_an_interval_of_the_ece_is_one_of_shares(n: int) -> None:
    """Few samples that are all wrong or all right: a quantile of t is large."""
    rng = np.random.default_rng(n)
    for hit in (np.zeros(n, bool), np.ones(n, bool), np.arange(n) % 2 == 0):
        interval = top_label_errors(rng.uniform(0.2, 1, n), hit, 0.99).ece_interval
        assert interval is not None
        assert 0 <= interval[0] <= interval[1] <= 1
