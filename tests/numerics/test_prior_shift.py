"""Class frequencies without labels: the definition, independent libraries, and the ugly edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize

from tna_onnx.errors import DataError
from tna_onnx.numerics.prior_shift import black_box, conditional, fit_em, joint_counts, log_ratio, smoothed

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


@settings(max_examples=25, deadline=None)
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
