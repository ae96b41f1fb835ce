"""Roots, minima and simplex weights against scipy's solvers."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize, special
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from tna_onnx.numerics.fitting import (
    Curvature,
    DiagonalCurvature,
    convex_minimum,
    increasing_root,
    mixture_weights,
    simplex_weights,
)
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.multinomial import Axes, principal_axes, ridge_path
from tna_onnx.numerics.ops import Blocked, blocks

Array = NDArray[Any]
Curve = Callable[[float], tuple[float, float, float]]

# ---- roots ----

LOW, HIGH = 1e-6, 1e6


def power(root: float, k: float) -> Curve:
    return lambda x: ((x / root) ** k - 1, k * (x / root) ** k / x, k * (k - 1) * (x / root) ** k / x**2)


def logarithm(root: float, k: float) -> Curve:
    return lambda x: (k * math.log(x / root), k / x, -k / x**2)


def saturating(root: float, k: float) -> Curve:
    """Flat on both sides, like the slope of a negative log-likelihood: Newton steps jump out of every bracket."""

    def curve(x: float) -> tuple[float, float, float]:
        t = math.tanh(k * math.log(x / root))
        return t, k * (1 - t * t) / x, -k * (1 - t * t) * (1 + 2 * k * t) / x**2

    return curve


def flat(root: float, k: float) -> Curve:
    """Underflown slope: the bracket alone must do."""
    return lambda x: (k * (x - root), 0.0, 0.0)


CURVES = [power, logarithm, saturating, flat]


@pytest.mark.parametrize("curve", CURVES)
@given(
    root=st.floats(math.log(1e-5), math.log(1e5)).map(math.exp),
    k=st.floats(0.1, 20),
    start=st.floats(math.log(1e-7), math.log(1e7)).map(math.exp),
)
@settings(max_examples=40)
def test_root_is_that_of_brentq(curve: Callable[[float, float], Curve], root: float, k: float, start: float) -> None:
    calls: list[float] = []

    def function(x: float) -> tuple[float, float, float]:
        calls.append(x)
        return curve(root, k)(x)

    found = increasing_root(function, LOW, HIGH, start=start)
    # each step leaves the bracket halved, or is half as long as the last but one: 2 log2(log(1e12) / 1e-10) = 76
    assert len(calls) <= 80
    expected = optimize.brentq(lambda u: function(math.exp(u))[0], math.log(LOW), math.log(HIGH), xtol=1e-12)
    assert found.status == "converged"
    # what the last step leaves is at most 1e-10, by estimate or by halving; brentq has its own 1e-12
    assert math.log(found.value) == pytest.approx(expected, abs=1.1e-10)


@pytest.mark.parametrize("slope", [0.0, 1.0])
@pytest.mark.parametrize(("value", "status", "end"), [(1.0, "lower", LOW), (-1.0, "upper", HIGH)])
def test_no_change_of_sign_ends_at_an_end(value: float, status: str, end: float, slope: float) -> None:
    for start in (1e-9, LOW, 1.0, HIGH, 1e9):
        found = increasing_root(lambda x: (value, slope / x, -slope / x**2), LOW, HIGH, start=start)
        assert found.status == status
        assert found.value == pytest.approx(end, rel=2e-6)  # "at the end" means within 1e-6 in log scale


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_values_that_are_not_finite(bad: float, place: int) -> None:
    first, second, third = (bad if k == place else 1.0 for k in range(3))
    with pytest.raises(ValueError, match=r"not finite at 1\.0"):
        increasing_root(lambda _: (first, second, third), LOW, HIGH)


# ---- minima of convex functions ----


def quadratic(k: int, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(2 * k, k)) * np.exp(rng.uniform(-3, 3, k))
    return factor.T @ factor, rng.normal(size=k)


@given(k=st.integers(1, 12), seed=st.integers(0, 2**32))
def test_minimum_of_a_quadratic_is_the_solution_of_its_system(k: int, seed: int) -> None:
    matrix, target = quadratic(k, seed)

    curvature = DiagonalCurvature(lambda d: matrix @ d, np.diag(matrix))

    def function(x: Array) -> tuple[float, Array, Curvature]:
        return float(x @ matrix @ x / 2 - target @ x), matrix @ x - target, curvature

    found = convex_minimum(function, np.zeros(k), tolerance=1e-10)
    residual = matrix @ found - target
    # the tolerance, or where it lies below it the rounding of f: a relative 2^-52, of which the gradient is the root
    assert math.sqrt(residual @ (residual / np.diag(matrix))) <= 1e-7


def softplus_sum(x: Array, matrix: Array) -> tuple[float, Array, Array]:
    """f = sum log(1 + exp(m_i . x)) + |x|^2 / 20: steps of full length from far away overshoot."""
    z = matrix @ x
    p = special.expit(z)
    bend = p * (1 - p)
    value = float(np.logaddexp(0, z).sum() + x @ x / 20)
    return value, matrix.T @ p + x / 10, bend @ matrix**2 + 0.1


@given(
    k=st.integers(1, 6),
    seed=st.integers(0, 2**32),
    far=st.floats(0, 30),
    rounding=st.sampled_from([0.0, 1e-9]),
    safe=st.booleans(),
)
def test_minimum_is_that_of_bfgs_also_where_values_are_rough(
    k: int, seed: int, far: float, rounding: float, safe: bool
) -> None:
    rng = np.random.default_rng(seed)
    matrix = 3 * rng.normal(size=(20, k))

    def function(x: Array) -> tuple[float, Array, Curvature]:
        value, gradient, diagonal = softplus_sum(x, matrix)
        p = special.expit(matrix @ x)
        curvature = DiagonalCurvature(lambda d: matrix.T @ (p * (1 - p) * (matrix @ d)) + d / 10, diagonal)
        return value * (1 + rounding * rng.uniform(-1, 1)), gradient, curvature

    refuge = np.zeros(k) if safe else None
    found = convex_minimum(function, far * rng.normal(size=k), refuge=refuge)
    best = optimize.minimize(
        lambda x: softplus_sum(x, matrix)[0], found, jac=lambda x: softplus_sum(x, matrix)[1], method="BFGS", tol=1e-9
    )
    # a gradient of length 1e-7 against a curvature of at least 0.1: values within its square over that
    assert softplus_sum(found, matrix)[0] <= best.fun + 1e-10
    np.testing.assert_allclose(found, best.x, rtol=0, atol=1e-4)


# ---- weights on the simplex ----


def objective(w: Array, gram: Array, target: Array) -> float:
    return float(w @ gram @ w - 2 * target @ w)


def slsqp(gram: Array, target: Array) -> Array:
    """Best of SLSQP from the middle and from every corner, put on the simplex, which it misses by 1e-10 or so."""
    k, best = len(target), None
    for start in [np.full(k, 1 / k), *np.eye(k)]:
        found = optimize.minimize(
            objective,
            start,
            args=(gram, target),
            jac=lambda w, g, t: 2 * (g @ w - t),
            method="SLSQP",
            bounds=[(0, 1)] * k,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
            options={"ftol": 1e-14, "maxiter": 500},
        )
        if best is None or found.fun < best.fun:
            best = found
    assert best is not None
    on_simplex = np.maximum(best.x, 0)
    return np.asarray(on_simplex / on_simplex.sum())


def problem(k: int, rank: int, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(k, rank))
    return factor @ factor.T, rng.normal(size=k)


@given(k=st.integers(1, 4), rank=st.integers(0, 4), seed=st.integers(0, 2**32))
@settings(max_examples=50)
def test_weights_are_at_least_as_good_as_those_of_slsqp(k: int, rank: int, seed: int) -> None:
    """Also with singular matrices: `rank` below k."""
    gram, target = problem(k, rank, seed)
    weights, other = simplex_weights(gram, target), slsqp(gram, target)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1, abs=1e-15)  # normalised: k roundings of 2^-53
    size = 1 + float(np.abs(gram).max()) + float(np.abs(target).max())
    # ours is the minimum up to the rounding of sums of 20 terms; SLSQP stops 1e-8 above it at the latest
    assert objective(weights, gram, target) <= objective(other, gram, target) + 1e-12 * size
    assert objective(weights, gram, target) == pytest.approx(objective(other, gram, target), abs=1e-8 * size)
    if rank >= k and np.linalg.eigvalsh(gram)[0] > 1e-2:
        # value differences of 1e-8 * size: |dw|^2 <= 1e-8 * size / eigenvalue, here 1e-6 * size
        np.testing.assert_allclose(weights, other, rtol=0, atol=3e-3 * math.sqrt(size))


@given(k=st.integers(1, 4), rank=st.integers(0, 4), seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_weights_satisfy_the_conditions_of_a_minimum(k: int, rank: int, seed: int) -> None:
    """The gradient is the same where a weight is positive, and nowhere lower: enough for a convex problem."""
    gram, target = problem(k, rank, seed)
    weights = simplex_weights(gram, target)
    gradient = 2 * (gram @ weights - target)
    scale = 1 + float(np.abs(gram).max()) + float(np.abs(target).max())
    # a linear system of size 5 in float64, of a condition up to about 1e6 in 200 draws
    level = float(weights @ gradient)
    assert gradient.min() >= level - 1e-6 * scale


# ---- mixture weights ----


def em(likelihoods: Array, steps: int = 20_000) -> Array:
    """The weights by expectation and maximisation: slow, and right."""
    weights = np.full(likelihoods.shape[1], 1 / likelihoods.shape[1])
    for _ in range(steps):
        parts = likelihoods * weights
        weights = (parts / parts.sum(axis=1, keepdims=True)).mean(axis=0)
    return weights


def log_likelihood(likelihoods: Array, weights: Array) -> float:
    return float(np.mean(np.log(likelihoods @ weights)))


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 80), st.sampled_from([0.1, 1.0, 20.0]))
def test_mixture_weights_meet_the_conditions_of_a_maximum(seed: int, k: int, n: int, spread: float) -> None:
    """Concave on the simplex: each slope is at most 1, and 1 where the weight is positive."""
    rng = np.random.default_rng(seed)
    likelihoods = np.exp(-spread * rng.random((n, k)))
    weights = mixture_weights(likelihoods)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    slopes = (likelihoods / (likelihoods @ weights)[:, None]).mean(axis=0)
    # what is left to gain is at most the largest slope - 1; the last step gained less than 1e-14
    assert slopes.max() <= 1 + 1e-6
    assert np.sum(weights * slopes) == pytest.approx(1, abs=1e-12)


def test_mixture_weights_are_those_of_em() -> None:
    rng = np.random.default_rng(0)
    truth = rng.dirichlet(np.ones(3))
    densities = rng.dirichlet(np.full(6, 0.5), 3)
    seen = rng.choice(6, 400, p=truth @ densities)
    likelihoods = densities[:, seen].T
    found, expected = mixture_weights(likelihoods), em(likelihoods)
    assert log_likelihood(likelihoods, found) >= log_likelihood(likelihoods, expected) - 1e-12
    np.testing.assert_allclose(found, expected, atol=1e-3)  # EM creeps where a weight goes to zero


def test_a_refuge_that_leads_nowhere_is_left_for_the_start() -> None:
    def function(x: Array) -> tuple[float, Array, Curvature]:
        # far beyond 3 nothing is seen of the minimum: a slope without curvature that no step goes down
        if x[0] > 3:
            return 10.0, np.array([5.0]), DiagonalCurvature(lambda d: 0 * d, np.ones(1))
        return float(x[0] ** 2), 2 * x, DiagonalCurvature(lambda d: 2 * d, np.full(1, 2.0))

    found = convex_minimum(function, np.array([2.0]), refuge=np.array([1e9]))
    np.testing.assert_allclose(found, 0, atol=1e-7)


def test_where_there_are_no_numbers_there_is_no_minimum() -> None:
    def function(x: Array) -> tuple[float, Array, Curvature]:
        return math.nan, x * math.nan, DiagonalCurvature(lambda d: d, np.ones(2))

    assert np.isnan(convex_minimum(function, np.zeros(2))).all()


# --- Row blocks: the same statistic however a chunk is cut


@pytest.mark.parametrize("shape", [(1, 3), (131_072, 1), (131_073, 1), (1000, 1000), (3, 200_000), (0, 4)])
def test_blocks_cover_every_row_once_in_order(shape: tuple[int, int]) -> None:
    logits = np.zeros(shape, np.float32)
    rows = np.arange(shape[0])
    assert np.concatenate([rows[k] for k in blocks(logits)]).tolist() == rows.tolist()
    assert all(logits[k].size <= max(2**17, shape[1]) for k in blocks(logits))


def test_aligned_arrays_are_cut_alike() -> None:
    logits, labels = np.ones((1000, 1000)), np.arange(1000)
    seen = Blocked(lambda s, y, z: [(len(s), y.tolist(), z)])(logits, labels, None)
    assert len(seen) > 1
    assert [z for _, _, z in seen] == [None] * len(seen)
    assert [n for n, _, _ in seen] == [len(y) for _, y, _ in seen]
    assert [label for _, y, _ in seen for label in y] == labels.tolist()


# --- Softmax regression with a ridge, along a path: against L-BFGS in float64 on its definition


# What a path may leave to gain, nats: a twentieth of the smallest effect on the NLL that counts. It stops where a step
# would gain 1e-5, and the steps after that would gain a few times as much where axes are far from independent.
EXCESS = METRICS["nll"].smallest_effect / 20
STRENGTHS = (1.0, 0.05, 2e-3, 1e-4)


def features_and_scores(n: int, samples: int, classes: int, seed: int = 0) -> tuple[Array, Array, Axes]:
    """Scores that know a part of what the features know of the labels; the last feature is a one."""
    rng = np.random.default_rng([seed, n, samples, classes])
    features = rng.normal(size=(samples, n)) * np.geomspace(1, 0.05, n)
    features[:, -1] = 1
    own = features @ rng.normal(size=(n, classes))
    labels = np.argmax(own + rng.gumbel(size=own.shape), axis=1)
    scores = own * rng.uniform(0.2, 1.5, classes)
    return scores.astype(np.float32), labels, principal_axes(features.astype(np.float32))


def value_and_slope(at: Array, scores: Array, labels: Array, axes: Axes, strength: float) -> tuple[float, Array]:
    """f and its gradient, from the definition, in float64."""
    u = axes.coordinates.astype(np.float64)
    p = at.reshape(scores.shape[1], u.shape[1])
    s = scores.astype(np.float64) + u @ p.T
    rows = np.arange(len(labels))
    value = -float(np.mean(log_softmax(s, axis=1)[rows, labels])) + strength * float(np.sum(p * p))
    residual = softmax(s, axis=1)
    residual[rows, labels] -= 1
    return value, (residual.T @ u / len(labels) + 2 * strength * p).ravel()


@pytest.mark.parametrize(
    ("n", "samples", "classes"), [(6, 300, 2), (6, 300, 5), (40, 25, 4), (12, 300, 30), (30, 31, 3), (1, 100, 3)]
)
def test_each_solution_is_as_good_as_that_of_l_bfgs(n: int, samples: int, classes: int) -> None:
    scores, labels, axes = features_and_scores(n, samples, classes)
    for strength, solution in zip(STRENGTHS, ridge_path(scores, labels, axes, STRENGTHS), strict=True):
        arguments = (scores, labels, axes, strength)
        start = np.zeros(solution.size)
        options = {"maxiter": 5000, "maxfun": 50_000, "ftol": 1e-14, "gtol": 1e-9}
        best = minimize(value_and_slope, start, arguments, "L-BFGS-B", jac=True, options=options)
        found, _ = value_and_slope(solution.astype(np.float64), *arguments)
        assert found - best.fun <= EXCESS
        assert best.fun - found <= 1e-9  # nothing is better than the oracle
        assert (solution.dtype, solution.shape) == (np.float32, (classes, axes.coordinates.shape[1]))


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.integers(8, 60), st.integers(2, 6))
def test_a_weaker_ridge_goes_further_and_fits_closer(seed: int, n: int, samples: int, classes: int) -> None:
    scores, labels, axes = features_and_scores(n, samples, classes, seed)
    path = list(ridge_path(scores, labels, axes, STRENGTHS))
    sizes = [float(np.sum(np.square(each, dtype=np.float64))) for each in path]
    fits = [value_and_slope(each.astype(np.float64), scores, labels, axes, 0.0)[0] for each in path]
    for (strong, weak), (near, far), (loose, close) in zip(
        *(itertools.pairwise(x) for x in (STRENGTHS, sizes, fits)), strict=True
    ):
        # of two minima each is the better one by its own measure, up to what is left to gain
        assert loose + strong * near <= close + strong * far + EXCESS
        assert close + weak * far <= loose + weak * near + EXCESS


@pytest.mark.parametrize("scale", [1e3, 1e5])
def test_saturated_scores_give_numbers(scale: float) -> None:
    scores, labels, axes = features_and_scores(6, 300, 5)
    scores = scores * np.float32(scale)
    for strength, solution in zip(STRENGTHS, ridge_path(scores, labels, axes, STRENGTHS), strict=True):
        start, _ = value_and_slope(np.zeros(solution.size), scores, labels, axes, strength)
        found, _ = value_and_slope(solution.astype(np.float64), scores, labels, axes, strength)
        # losses of 1e5 in float32 are rounded by 2^-24 of themselves
        assert found <= start * (1 + 2**-20)


# --- axes


@pytest.mark.parametrize(("samples", "n"), [(200, 7), (7, 200), (50, 50), (1, 5)])
def test_axes_span_the_features(samples: int, n: int) -> None:
    features = np.random.default_rng(1).normal(size=(samples, n)).astype(np.float32)
    found = principal_axes(features)
    r = min(samples, n)
    assert (found.axes.shape, found.coordinates.shape, found.spread.shape) == ((n, r), (samples, r), (r,))
    # singular vectors of the narrowest axis are off by eps times the condition number, squared through the Gram matrix
    values = np.linalg.svd(features.astype(np.float64), compute_uv=False)
    tolerance = 8 * 2**-24 * (values[0] / values[-1]) ** 2
    np.testing.assert_allclose(found.axes.T @ found.axes, np.eye(r), atol=tolerance)
    size = float(np.abs(features).max())
    np.testing.assert_allclose(features @ found.axes, found.coordinates, atol=size * n * tolerance)
    np.testing.assert_allclose(found.coordinates @ found.axes.T, features, atol=size * n * tolerance)
    np.testing.assert_allclose(found.spread, values**2 / samples, rtol=tolerance)
    assert np.all(np.diff(found.spread) <= 0)


@pytest.mark.parametrize("samples", [100, 6])
def test_axes_without_spread_are_left_out(samples: int) -> None:
    """Twelve features of rank 3."""
    rng = np.random.default_rng(2)
    features = (rng.normal(size=(samples, 3)) @ rng.normal(size=(3, 12))).astype(np.float32)
    assert principal_axes(features).axes.shape == (12, 3)
