"""Class frequencies without labels: the definition, independent libraries, and the ugly edges."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize

from tna_onnx.errors import DataError
from tna_onnx.numerics.prior_shift import (
    Observed,
    black_box,
    conditional,
    disagreement,
    fit_em,
    gains_by_noise,
    invertible,
    joint_counts,
    log_ratio,
    p_of_draws,
    p_of_normal,
    redraw,
    smoothed,
    surprise,
)

FloatArray = NDArray[np.float64]


def world(seed: int, classes: int, kinds: int = 40, sharp: float = 2.0) -> tuple[FloatArray, FloatArray]:
    """p(x | y) of a world with few kinds of samples, (kinds, C), and class frequencies p."""
    rng = np.random.default_rng(seed)
    logits = sharp * rng.standard_normal((kinds, classes))
    shares = np.exp(logits)
    return shares / shares.sum(axis=0), rng.dirichlet(np.full(classes, 3.0))


def posterior(likelihood: FloatArray, prior: FloatArray) -> FloatArray:
    joint = likelihood * prior
    found: FloatArray = joint / joint.sum(axis=1, keepdims=True)
    return found


def samples(seed: int, classes: int, n: int, sharp: float = 2.0) -> tuple[FloatArray, FloatArray]:
    likelihood, p = world(seed, classes, sharp=sharp)
    rng = np.random.default_rng(seed + 1)
    q = rng.dirichlet(np.ones(classes))
    x = rng.choice(len(likelihood), n, p=likelihood @ q)
    return posterior(likelihood, p)[x], p


@pytest.mark.parametrize("classes", [2, 5, 12])
def test_both_estimates_are_exact_where_the_data_are_infinite(classes: int) -> None:
    """Kinds of samples are weighted by their probability under q, in place of drawing them."""
    likelihood, p = world(3, classes)
    q = np.random.default_rng(7).dirichlet(np.ones(classes))
    probabilities = posterior(likelihood, p)
    weights = likelihood @ q
    fit = fit_em(probabilities, p, weights[None], tolerance=1e-13)
    # L is flat at its maximum: an error of 1e-13 in it is one of its square root in q, times a condition number
    np.testing.assert_allclose(fit.priors[0], q, atol=2e-5)
    predicted = probabilities.argmax(axis=1)
    table = np.zeros((classes, classes))
    np.add.at(table, predicted, likelihood)
    if np.linalg.matrix_rank(table) == classes:
        shares = np.bincount(predicted, weights, classes)
        np.testing.assert_allclose(black_box(conditional(table * p), shares), q, atol=1e-9)


@given(seed=st.integers(0, 10_000), classes=st.integers(2, 8))
def test_the_likelihood_is_the_largest(seed: int, classes: int) -> None:
    """Against its definition: no frequencies drawn at random, nor near the fit, are likelier."""
    probabilities, p = samples(seed, classes, 60)
    fit = fit_em(probabilities, p)
    assert fit.gap[0] <= 1e-9
    rng = np.random.default_rng(seed)
    far = rng.dirichlet(np.ones(classes), 50)
    near = np.maximum(fit.priors[0] + 1e-3 * rng.standard_normal((50, classes)), 0)
    for q in (*far, *(near / near.sum(axis=1, keepdims=True))):
        assert np.mean(np.log(probabilities @ (q / p))) <= fit.gain[0] + 1e-9


def test_em_is_what_an_optimiser_finds() -> None:
    probabilities, p = samples(5, 6, 400)

    def loss(theta: FloatArray) -> float:
        q = np.exp(theta - theta.max())
        return -float(np.mean(np.log(probabilities @ (q / q.sum() / p))))

    found = optimize.minimize(loss, np.zeros(6), method="BFGS", options={"gtol": 1e-9})
    q = np.exp(found.x - found.x.max())
    np.testing.assert_allclose(fit_em(probabilities, p).priors[0], q / q.sum(), atol=1e-3)


@pytest.mark.parametrize("classes", [2, 7])
def test_em_agrees_with_two_libraries(classes: int) -> None:
    aggregative = pytest.importorskip("quapy.method.aggregative")
    label_shift = pytest.importorskip("abstention.label_shift")
    probabilities, p = samples(11, classes, 500)
    own = fit_em(probabilities, p).priors[0]
    theirs, _ = aggregative.EMQ.EM(p, probabilities, epsilon=1e-9)
    # they stop by the size of a step, and not by what is missing
    np.testing.assert_allclose(own, theirs, atol=1e-3)
    # its frequencies before are means of probabilities that were labelled, so these are such that have p as their mean
    adapter = label_shift.EMImbalanceAdapter(tolerance=1e-10, max_iterations=20_000)
    adapted = adapter(
        tofit_initial_posterior_probs=probabilities, valid_posterior_probs=np.tile(p, (10, 1)), valid_labels=None
    )
    np.testing.assert_allclose(adapted.multipliers * p, own, atol=1e-3)


def test_the_black_box_agrees_with_a_library() -> None:
    label_shift = pytest.importorskip("abstention.label_shift")
    old, _ = samples(21, 5, 800, sharp=3.0)
    new, _ = samples(22, 5, 300, sharp=3.0)
    rng = np.random.default_rng(0)
    labels = np.array([rng.choice(5, p=row) for row in old])
    adapted = label_shift.BBSEImbalanceAdapter()(
        valid_labels=np.eye(5)[labels], tofit_initial_posterior_probs=new, valid_posterior_probs=old
    )
    weights = adapted.multipliers * np.bincount(labels, minlength=5) / 800
    joint = joint_counts(labels, old.argmax(axis=1), 5)
    own = black_box(conditional(joint), np.bincount(new.argmax(axis=1), minlength=5) / 300)
    np.testing.assert_allclose(own, weights / weights.sum(), rtol=1e-9, atol=1e-12)


def test_weights_are_repeated_samples() -> None:
    probabilities, p = samples(2, 4, 50)
    counts = np.random.default_rng(0).integers(0, 4, (3, 50))
    found = fit_em(probabilities, p, counts).priors
    for row, own in zip(counts, found, strict=True):
        np.testing.assert_allclose(own, fit_em(np.repeat(probabilities, row, axis=0), p).priors[0], atol=1e-4)


def test_a_class_that_is_absent_goes_to_zero() -> None:
    likelihood, p = world(4, 5, sharp=4.0)
    q = np.array([0.5, 0.3, 0.2, 0.0, 0.0])
    probabilities = posterior(likelihood, p)
    fit = fit_em(probabilities, p, (likelihood @ q)[None])
    np.testing.assert_allclose(fit.priors[0], q, atol=1e-3)
    assert np.all(fit.priors > 0) or np.all(smoothed(fit.priors, 100) > 0)


def test_saturated_probabilities() -> None:
    """Rounded to 0 and 1 they are votes, and their shares the frequencies; a class without a vote keeps none."""
    votes = np.array([0, 0, 0, 1])
    fit = fit_em(np.eye(3, dtype=np.float32)[votes], np.full(3, 1 / 3))
    np.testing.assert_allclose(fit.priors[0], [0.75, 0.25, 0], atol=1e-6)
    assert np.all(np.isfinite(log_ratio(np.full(3, 1 / 3), smoothed(fit.priors[0], 4))))


def test_a_confusion_matrix_that_tells_nothing() -> None:
    with pytest.raises(DataError, match="singular"):
        black_box(np.full((2, 2), 0.5), np.array([0.5, 0.5]))
    with pytest.raises(DataError, match="class 2 has no sample"):
        conditional(joint_counts(np.array([0, 1]), np.array([0, 1]), 3))


def test_the_new_probabilities_are_those_of_bayes() -> None:
    likelihood, p = world(6, 4)
    q = np.array([0.1, 0.2, 0.3, 0.4])
    logits = np.log(posterior(likelihood, p)) + log_ratio(p, q)
    shifted = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(shifted, posterior(likelihood, q), rtol=1e-12)


# --- Intervals and tests of class frequencies: coverage, false alarms, and what they are there to see


CLASSES = 4


def observed(seed: int, q: FloatArray, *, old: int = 400, new: int = 400, changed: float = 0.0) -> Observed:
    """Samples under p and q of a world whose probabilities are right; `changed` mixes in samples of no class."""
    likelihood, p = world(1, CLASSES, sharp=2.5)
    rng = np.random.default_rng(seed)
    labels = rng.choice(CLASSES, old, p=p)
    kinds = np.array([rng.choice(len(likelihood), p=likelihood[:, y]) for y in labels])
    mixed = (1 - changed) * likelihood @ q + changed / len(likelihood)
    seen = posterior(likelihood, p)
    old_seen = seen[kinds]
    new_seen = seen[rng.choice(len(likelihood), new, p=mixed)]
    return Observed(labels, old_seen, new_seen, p, counted=False)


def p_value(found: Observed, draws: int = 50) -> float:
    em = fit_em(found.probabilities, found.source).priors[0]
    drawn = redraw(found, em, draws, 0, with_black_box=False)
    return p_of_normal(surprise(found, em), drawn.surprise)


Q = np.array([0.55, 0.25, 0.15, 0.05])


def test_false_alarms_are_as_rare_as_they_say() -> None:
    """Of 40 runs at a level of 10 %, at most 10: more have a probability of 0.4 % where the level holds."""
    found = np.array([p_value(observed(seed, Q)) for seed in range(40)])
    assert np.count_nonzero(found < 0.1) <= 10


def p_of_change(found: Observed, draws: int = 60) -> float:
    gain = float(fit_em(found.probabilities, found.source).gain[0])
    return p_of_draws(gain, gains_by_noise(found, draws, 0))


def counting(found: Observed) -> Observed:
    """The same where the frequencies before were counted on the labels."""
    shares = np.bincount(found.labels, minlength=found.n_classes) / len(found.labels)
    return replace(found, source=smoothed(shares, len(found.labels)), counted=True)


@pytest.mark.slow
@pytest.mark.parametrize("counted", [False, True])
def test_a_change_that_is_none_is_as_rare_as_its_p_value_says(counted: bool) -> None:
    """Of 100 runs at a level of 5 %, at most 13, and at least 1: each has a probability below 0.7 % where it holds."""
    _, p = world(1, CLASSES, sharp=2.5)
    values = []
    for seed in range(100):
        each = observed(seed, p, old=300)
        values.append(p_of_change(counting(each) if counted else each))
    assert 1 <= np.count_nonzero(np.array(values) < 0.05) <= 13
    assert p_of_change(counting(observed(0, Q[::-1]))) == 1 / 61


def test_with_ten_samples_of_a_class_no_change_is_rare_too() -> None:
    """Of 20 runs at a level of 5 %, at most 3: more have a probability of 2 %. By chi-squared it would be 7."""
    classes, m, n = 100, 1000, 5000
    values = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        logits = rng.normal(0, 8, (m + n, classes))
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        labels = (p.cumsum(axis=1) > rng.random((m + n, 1))).argmax(axis=1)
        found = Observed(labels[:m], p[:m], p[m:], np.full(classes, 1 / classes), counted=True)
        values.append(p_of_change(counting(found), draws=40))
    assert np.count_nonzero(np.array(values) < 0.05) <= 3


def test_sums_that_are_off_by_rounding_are_no_change() -> None:
    exact = counting(observed(3, world(1, CLASSES, sharp=2.5)[1]))
    sums = 1 + 1e-5 * (1 + 1e-2 * np.random.default_rng(0).standard_normal((len(exact.probabilities), 1)))
    rounded = replace(exact, probabilities=exact.probabilities * sums, old=exact.old * sums)
    assert p_of_change(rounded) == pytest.approx(p_of_change(exact), abs=0.05)


def test_constant_probabilities_change_by_what_counting_explains() -> None:
    constant = counting(observed(0, Q))
    constant = replace(constant, old=np.tile(constant.source, (len(constant.labels), 1)))
    for shift, changed in ((1e-3, False), (1.0, True)):
        p = constant.source * (1 + shift * np.array([1, *[0] * (CLASSES - 1)]))
        found = replace(constant, probabilities=np.tile(p / p.sum(), (500, 1)))
        assert (p_of_change(found) < 0.05) == changed


def test_frequencies_at_the_edge_are_no_other_kind_of_shift() -> None:
    """One class for nearly all: of 40 runs at 1 %, at most 3."""
    found = [p_value(observed(seed, np.array([0.97, 0.01, 0.01, 0.01])), draws=150) for seed in range(40)]
    assert np.count_nonzero(np.array(found) < 0.01) <= 3


def test_intervals_hold_the_frequencies() -> None:
    held = []
    for seed in range(40):
        each = observed(seed, Q)
        em = fit_em(each.probabilities, each.source).priors[0]
        drawn = redraw(each, em, 60, 0, with_black_box=False)
        low, high = np.quantile(drawn.em, [0.05, 0.95], axis=0)
        held.append((low <= Q) & (high >= Q))
    # 90 % intervals, 40 runs: below 75 % has a probability of 0.3 % for a class
    assert np.all(np.mean(held, axis=0) >= 0.75)


def test_samples_of_no_class_are_seen() -> None:
    assert p_value(observed(0, Q, changed=0.5, new=2000)) < 0.01


def test_counted_frequencies_have_noise_of_their_own() -> None:
    each = observed(0, Q, old=200)
    em = fit_em(each.probabilities, each.source).priors[0]
    known = redraw(each, em, 100, 0, with_black_box=False)
    counted = replace(each, counted=True)
    assert redraw(counted, em, 100, 0, with_black_box=False).em.std() > known.em.std()


@pytest.mark.parametrize(
    ("labels", "predicted", "reason"),
    [
        (np.repeat([0, 1], 50), np.repeat([0, 1], 50), ""),
        (np.repeat([0, 1], 50), np.tile([0, 1], 50), "singular"),
        (np.zeros(9, np.int64), np.zeros(9, np.int64), "class 1 has no sample"),
    ],
)
def test_whether_the_confusion_matrix_can_be_inverted(
    labels: NDArray[np.int64], predicted: NDArray[np.int64], reason: str
) -> None:
    found = Observed(labels, np.eye(2)[predicted], np.full((5, 2), 0.5), np.full(2, 0.5), counted=False)
    assert (reason in invertible(found, 0)) if reason else not invertible(found, 0)


def test_a_class_that_a_draw_loses_keeps_its_column() -> None:
    labels = np.array([0] * 30 + [1])
    found = Observed(labels, np.eye(2)[labels], np.eye(2)[[0] * 20 + [1] * 5], np.full(2, 0.5), counted=True)
    drawn = redraw(found, np.array([0.8, 0.2]), 50, 0, with_black_box=True)
    assert drawn.black_box is not None
    assert np.all(np.isfinite(drawn.black_box))
    assert np.all(np.isfinite(drawn.surprise))


def test_the_p_values_by_their_definitions() -> None:
    assert p_of_draws(2.0, np.zeros(9)) == pytest.approx(0.1)
    assert p_of_draws(0.0, np.zeros(9)) == 1
    assert p_of_normal(1.959964, np.array([-1.0, 1.0])) == pytest.approx(0.05, abs=1e-6)
    assert p_of_normal(0.0, np.zeros(3)) == 1
    assert p_of_normal(0.1, np.zeros(3)) == 0
    assert disagreement(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 1
