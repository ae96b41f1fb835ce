"""Isotonic regression in cells of log-odds: scikit-learn and SciPy on the definition, and what holds on any data."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression
from scipy.special import expit, logit, ndtr
from scipy.stats import beta
from sklearn.isotonic import IsotonicRegression

from tests.numerics.bernoulli import confidences, scores
from tna_onnx.numerics import isotonic as isotonic_module
from tna_onnx.numerics.isotonic import CENTRES, TOLERANCE, Corp, Decomposition, cells, isotonic_log_odds, pool, thinned
from tna_onnx.numerics.reliability import normal_cdf
from tna_onnx.numerics.scores import SampleScores

Array = np.ndarray
P = expit(CENTRES)


seeds = st.integers(0, 2**32 - 1)
# all probabilities near 0 and 1, all equally often, all near 0.5
shapes = st.sampled_from([0.02, 0.5, 1.0, 20.0])


def drawn(seed: int, size: int, shape: float) -> tuple[Array, Array]:
    """Probabilities and outcomes, at other odds than these."""
    rng = np.random.default_rng(seed)
    p = rng.beta(shape, shape, size)
    return p, rng.random(size) < expit(rng.normal() + rng.uniform(0.3, 2) * logit(np.clip(p, 1e-12, 1 - 1e-12)))


def by_definition(p: Array, outcome: Array) -> Array:
    """Cells by comparing with their borders, scikit-learn's pooling, and the mean of a beta posterior."""
    borders = expit(np.arange(-8.75, 9, 0.25))
    cell = (p[:, None] >= borders).sum(axis=1)
    filled = np.unique(cell)
    count = np.array([(cell == c).sum() for c in filled])
    hits = np.array([outcome[cell == c].sum() for c in filled])
    frequency = IsotonicRegression().fit(filled, hits / count, sample_weight=count).predict(filled)
    f, strength = [], []
    for c, y in zip(filled, frequency, strict=True):
        block = count[np.isclose(frequency, y, rtol=0, atol=1e-12)].sum()
        m = 4 / (P[c] * (1 - P[c]))
        f.append(beta(m * P[c] + block * y, m * (1 - P[c]) + block * (1 - y)).mean())
        strength.append(m)
    weight = count + np.array(strength)
    pooled = IsotonicRegression().fit(filled, f, sample_weight=weight).predict(filled)
    return CENTRES + np.interp(CENTRES, CENTRES[filled], logit(pooled) - CENTRES[filled])


@settings(max_examples=20)
@given(seeds, st.integers(1, 1500), shapes)
def test_it_is_the_definition(seed: int, size: int, shape: float) -> None:
    p, outcome = drawn(seed, size, shape)
    # the means of blocks are sums in another order, and their log-odds magnify that by up to 1 / (f (1 - f))
    np.testing.assert_allclose(isotonic_log_odds(p, outcome), by_definition(p, outcome), rtol=0, atol=1e-7)


@given(seeds, st.integers(1, 3000), shapes)
def test_pooling_is_scikit_learns(seed: int, size: int, shape: float) -> None:
    count, hits = cells(*drawn(seed, size, shape))
    filled = np.flatnonzero(count)
    y, weight = hits[filled] / count[filled], count[filled]
    found, sizes = pool(y, weight)
    expected = IsotonicRegression().fit(filled, y, sample_weight=weight).predict(filled)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)  # means of up to 3,000 terms
    assert sizes.max() <= size
    np.testing.assert_allclose(np.sum(weight / sizes), len(np.unique(sizes * 7919 + found)), atol=1e-9)


@given(seeds, st.integers(1, 2000), shapes, st.sampled_from(["drawn", "never", "always"]))
def test_any_data_give_a_finite_non_decreasing_function(seed: int, size: int, shape: float, outcomes: str) -> None:
    p, outcome = drawn(seed, size, shape)
    p[: size // 4] = 0.0
    p[size // 2 : 3 * size // 4] = 1.0
    if outcomes != "drawn":
        outcome[:] = outcomes == "always"
    f = isotonic_log_odds(p, outcome)
    assert np.all(np.isfinite(f))
    assert np.all(np.diff(f) >= -1e-9)  # log-odds of equal values


@given(seeds, st.integers(1, 500), shapes)
def test_no_outcome_becomes_impossible(seed: int, size: int, shape: float) -> None:
    """N samples without one outcome lower the odds of p by 1 + N p / 4, and so on the other side."""
    f = isotonic_log_odds(*drawn(seed, size, shape))
    assert np.all(np.abs(f - CENTRES) <= np.log1p(size / 4) + 1e-9)


def test_with_many_samples_it_is_scikit_learns_isotonic_regression() -> None:
    rng = np.random.default_rng(0)
    inner = np.abs(CENTRES) < 4
    p = np.repeat(P[inner], 100_000)
    outcome = rng.random(len(p)) < 0.2 + 0.6 * p**2
    expected = IsotonicRegression().fit(p, outcome).predict(P[inner])
    # the prior counts as at most 4 / (p (1 - p)) = 226 samples
    np.testing.assert_allclose(expit(isotonic_log_odds(p, outcome))[inner], expected, atol=226 / 100_226)


@given(seeds, st.integers(1, 2000), shapes)
def test_thinning_keeps_the_function_within_its_tolerance(seed: int, size: int, shape: float) -> None:
    f = isotonic_log_odds(*drawn(seed, size, shape))
    x, y = thinned(expit(CENTRES), f, f - CENTRES)
    error = np.abs(np.interp(P, x, y) - (f - CENTRES))
    assert np.all(error <= 0.05 + 1e-12)
    assert np.all(error * expit(f) * expit(-f) <= TOLERANCE + 1e-12)
    # a ramp's constants, 1 / (x_{k+1} - x_k), in float16, which ends at 65,504
    assert np.max(1 / np.diff(x)) < 2**15


@pytest.mark.parametrize("kind", ["outcomes", "ties", "many rounds", "one", "falling"])
def test_pooling_is_that_of_scipy(kind: str) -> None:
    """By rounds of runs, or from some round on by SciPy itself."""
    rng = np.random.default_rng(0)
    y = {
        "outcomes": (rng.random(5000) < np.sort(rng.random(5000))).astype(float),
        "ties": np.repeat([1.0, 1.0, 0.5, 2.0, 2.0], 40),
        "many rounds": np.r_[np.arange(500.0), -10 * np.arange(500.0)],
        "one": np.ones(1),
        "falling": -np.arange(100.0),
    }[kind]
    weight = rng.uniform(0.5, 2, len(y))
    fitted = isotonic_regression(y, weights=weight)
    found, sizes = pool(y, weight)
    np.testing.assert_allclose(found, fitted.x, rtol=0, atol=1e-12 * np.abs(y).max())
    np.testing.assert_allclose(sizes, np.repeat(fitted.weights, np.diff(fitted.blocks)), rtol=1e-12)


def test_the_normal_distribution_is_that_of_scipy() -> None:
    x = np.linspace(-30, 10, 401)
    np.testing.assert_allclose(normal_cdf(x), ndtr(x), rtol=1e-12)


# --- CORP: the fit and its parts against scikit-learn, the chain rule of the NLL, and resamples under calibration


def total(parts: Decomposition) -> float:
    return parts.miscalibration - parts.discrimination + parts.uncertainty


def test_the_parts_are_those_of_an_isotonic_regression() -> None:
    isotonic = pytest.importorskip("sklearn.isotonic")
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    confidence, hit = confidences(700, seed=1)
    # ties, and not calibrated
    confidence = np.float32(np.round(confidence**1.5, 2).clip(0.01, 0.99)).astype(np.float64)
    found = Corp.of(scores(confidence, hit))
    fit = isotonic.IsotonicRegression(y_min=0, y_max=1).fit(confidence, hit)
    refined = fit.predict(confidence)
    constant = np.full(700, hit.mean())
    for parts, score in (
        (found.nll, lambda p: sklearn_metrics.log_loss(hit, p)),
        (found.brier, lambda p: sklearn_metrics.brier_score_loss(hit, p)),
    ):
        # float32 scores
        assert parts.miscalibration == pytest.approx(score(confidence) - score(refined), abs=1e-6)
        assert parts.discrimination == pytest.approx(score(constant) - score(refined), abs=1e-6)
        assert parts.uncertainty == pytest.approx(score(constant), abs=1e-9)
    curve = found.curve
    assert curve.accuracy == pytest.approx(fit.predict(curve.confidence), abs=1e-6)
    assert (curve.confidence[0], curve.confidence[-1]) == (confidence.min(), confidence.max())


@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("sharp", [0.5, 1.0, 30.0])
def test_the_parts_and_the_other_classes_add_up_to_the_nll(classes: int, sharp: float) -> None:
    """At 30 most confidences are 1 in float32, and some of them are wrong."""
    rng = np.random.default_rng(classes)
    logits = rng.standard_normal((400, classes))
    made = SampleScores.of_logits(sharp * logits, np.argmax(logits + rng.gumbel(size=logits.shape), axis=1))
    found = Corp.of(made)
    assert total(found.nll) + found.others == pytest.approx(float(np.mean(made.nll, dtype=np.float64)), rel=1e-6)
    squared = np.mean((made.hit - made.confidence.astype(np.float64)) ** 2)
    assert total(found.brier) == pytest.approx(squared, abs=1e-9)
    if classes == 2:
        # there are no others; at 30 the confidence of a miss has few digits of 1 - c, and its NLL is 5 nats
        assert found.others == pytest.approx(0, abs=1e-6 if sharp <= 1 else 0.01)
    else:
        assert found.others > 0
    for value in dataclasses.astuple(found.nll) + dataclasses.astuple(found.brier):
        assert 0 <= value < np.inf


@given(st.lists(st.tuples(st.floats(0.0625, 1, width=16), st.booleans()), min_size=1, max_size=12), st.integers(0, 99))
def test_laws(samples: list[tuple[float, bool]], seed: int) -> None:
    confidence = np.array([c for c, _ in samples])
    hit = np.array([h for _, h in samples])
    found = Corp.of(scores(confidence, hit))
    curve = found.curve
    for ends in (curve.accuracy, curve.low, curve.high):
        assert np.all(np.diff(ends) >= -1e-12)
        assert len(ends) == len(curve.confidence)
    assert np.all(np.array(curve.low) <= np.array(curve.high))
    # whatever order the samples come in
    order = np.random.default_rng(seed).permutation(len(hit))
    again = Corp.of(scores(confidence[order], hit[order]))
    assert again.curve == curve
    assert dataclasses.astuple(again.nll) == pytest.approx(dataclasses.astuple(found.nll), abs=1e-12)


def test_one_confidence_for_all() -> None:
    found = Corp.of(scores(np.full(8, 0.75), np.array([1, 1, 1, 1, 1, 1, 0, 0], bool)))
    assert found.curve.confidence == (0.75,)
    assert found.curve.accuracy == (0.75,)
    assert found.nll.miscalibration == pytest.approx(0, abs=1e-7)
    assert found.nll.discrimination == 0
    certain = Corp.of(scores(np.ones(8), np.ones(8, bool)))
    assert certain.nll == Decomposition(0, 0, 0, 0)
    assert certain.curve.low == certain.curve.high == (1.0,)


def test_the_expected_miscalibration_is_that_of_calibrated_models() -> None:
    drawn, expected = [], []
    for seed in range(20):
        found = Corp.of(scores(*confidences(400, seed)))
        drawn.append(found.nll.miscalibration)
        expected.append(found.nll.expected)
    # three standard errors of the mean of what was drawn
    assert np.mean(drawn) == pytest.approx(np.mean(expected), abs=3 * np.std(drawn) / np.sqrt(20))


@pytest.mark.slow
def test_the_band_holds_the_curves_of_calibrated_models_at_its_level() -> None:
    inside = []
    for seed in range(200):
        curve = Corp.of(scores(*confidences(300, seed))).curve
        at = np.searchsorted(curve.confidence, [0.6, 0.75, 0.9])
        low, fit, high = (np.array(values)[at] for values in (curve.low, curve.accuracy, curve.high))
        inside.append((low <= fit) & (fit <= high))
    # four standard errors of a share of 200; three confidences of one curve are not independent
    assert np.all(np.abs(np.mean(inside, axis=0) - isotonic_module.BAND_LEVEL) < 4 * np.sqrt(0.95 * 0.05 / 200))


def test_groups_of_neighbours_change_little(monkeypatch: pytest.MonkeyPatch) -> None:
    made = scores(*confidences(6000, seed=2))
    grouped = Corp.of(made)
    monkeypatch.setattr(isotonic_module, "_MAX_GROUPS", 6000)
    single = Corp.of(made)
    # what is fitted is not grouped, only what is drawn
    assert grouped.nll.miscalibration == single.nll.miscalibration
    assert grouped.curve.accuracy == single.curve.accuracy
    assert grouped.nll.expected == pytest.approx(single.nll.expected, rel=0.1)
    # 200 draws of quantiles: their standard deviation is about a tenth of the band
    width = np.subtract(single.curve.high, single.curve.low).mean()
    assert np.subtract(grouped.curve.high, grouped.curve.low).mean() == pytest.approx(width, rel=0.1)
