"""Softmax regression with a ridge, along a path: against L-BFGS in float64 on its definition."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.multinomial import Axes, principal_axes, ridge_path

Array = NDArray[Any]

# What a path may leave to gain, nats: a twentieth of the smallest effect on the NLL that counts. It stops where a step
# would gain 1e-5, and the steps after that would gain a few times as much where axes are far from independent.
EXCESS = METRICS["nll"].smallest_effect / 20
STRENGTHS = (1.0, 0.05, 2e-3, 1e-4)


def problem(n: int, samples: int, classes: int, seed: int = 0) -> tuple[Array, Array, Axes]:
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
    scores, labels, axes = problem(n, samples, classes)
    for strength, solution in zip(STRENGTHS, ridge_path(scores, labels, axes, STRENGTHS), strict=True):
        arguments = (scores, labels, axes, strength)
        start = np.zeros(solution.size)
        options = {"maxiter": 5000, "maxfun": 50_000, "ftol": 1e-14, "gtol": 1e-9}
        best = minimize(value_and_slope, start, arguments, "L-BFGS-B", jac=True, options=options)
        found, _ = value_and_slope(solution.astype(np.float64), *arguments)
        assert found - best.fun <= EXCESS
        assert best.fun - found <= 1e-9  # nothing is better than the oracle
        assert (solution.dtype, solution.shape) == (np.float32, (classes, axes.coordinates.shape[1]))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.integers(8, 60), st.integers(2, 6))
def test_a_weaker_ridge_goes_further_and_fits_closer(seed: int, n: int, samples: int, classes: int) -> None:
    scores, labels, axes = problem(n, samples, classes, seed)
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
    scores, labels, axes = problem(6, 300, 5)
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
