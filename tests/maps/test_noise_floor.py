"""Bias above a noise floor: against its definition and SciPy, and on labels of which some are wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import check_grad, minimize
from scipy.special import expit, log_expit, log_softmax, softmax

from tests.maps.samples import reduce_of, sample
from tna_onnx.maps import MAPS
from tna_onnx.maps.base import apply_map
from tna_onnx.maps.bias import Bias, NoiseFloor, first_fit
from tna_onnx.numerics.multinomial import Diagonal, Scalar, _Objective, shape_of

Array = NDArray[Any]


def probabilities(logits: Array, temperature: float, bias: Array, share: float) -> Array:
    """p, from its definition."""
    return np.asarray((1 - share) * softmax(logits / temperature + bias, axis=1) + share / logits.shape[1])


def noisy(classes: int, size: int, noise: float, seed: int = 0) -> tuple[Array, Array, Array]:
    """Logits of sure predictions, their right labels, and labels of which a share is replaced at random."""
    logits, _, _ = sample(classes=classes, size=size)
    rng = np.random.default_rng(seed)
    logits = 3 * logits
    right = (logits / 3 + 0.5 * rng.gumbel(size=logits.shape)).argmax(axis=1)
    return logits, right, np.where(rng.random(size) < noise, rng.integers(0, classes, size), right)


@pytest.mark.parametrize(("classes", "size"), [(2, 300), (5, 400), (10, 900)])
def test_the_fit_is_a_minimum_of_the_penalised_loss(classes: int, size: int) -> None:
    logits, _, labels = noisy(classes, size, 0.15)
    reduce = reduce_of(logits, labels, None, (size // 3,))
    found = NoiseFloor.fit(reduce)
    expected = probabilities(logits, found.temperature, found.bias, found.share)
    np.testing.assert_allclose(np.exp(apply_map(found, logits)), expected, rtol=1e-9)
    _, _, ridge = first_fit(reduce)

    def loss(theta: Array) -> float:
        p = probabilities(logits, np.exp(theta[0]), theta[1:-1], expit(theta[-1]))
        prior = (log_expit(theta[-1]) + log_expit(-theta[-1])) / size
        return float(-np.log(p[np.arange(size), labels]).mean() + ridge * theta[1:-1] @ theta[1:-1] - prior)

    ours = np.r_[np.log(found.temperature), found.bias, np.log(found.share / (1 - found.share))]
    best = minimize(loss, ours, method="BFGS", options={"gtol": 1e-9})
    # two parameters may nearly stand for each other: the loss tells
    np.testing.assert_allclose(ours, best.x, atol=1e-2)
    assert loss(ours) <= best.fun + 1e-6


@pytest.mark.parametrize("form", [Scalar(), Diagonal()])
def test_gradient_and_curvature_are_those_of_the_bound(form: Scalar | Diagonal) -> None:
    logits, _, labels = noisy(4, 200, 0.2)
    reduce = reduce_of(logits.astype(np.float64), labels)
    objective = _Objective.of(reduce, form, shape_of(reduce), 2.0, (0.1, 0.2))
    theta = np.random.default_rng(1).normal(0, 0.3, len(objective.ridge) + 1)
    error = check_grad(
        lambda at: objective.loss_above_floor(at)[0], lambda at: objective.loss_above_floor(at)[1], theta
    )
    assert error < 1e-6
    _, _, curvature = objective.loss_above_floor(theta)
    columns = np.stack([curvature.product(each) for each in np.eye(len(theta))])
    np.testing.assert_allclose(columns, columns.T, atol=1e-10)
    assert np.linalg.eigvalsh(columns).min() > 0


def test_wrong_labels_are_taken_up_by_the_floor() -> None:
    logits, right, labels = noisy(10, 6000, 0.1)
    train, test = slice(0, 3000), slice(3000, None)
    reduce = reduce_of(logits[train], labels[train])
    floor, plain = NoiseFloor.fit(reduce), Bias.fit(reduce)
    assert floor.share == pytest.approx(0.1, abs=0.03)

    def nll(fitted: Any) -> float:
        p = softmax(apply_map(fitted, logits[test]), axis=1)
        return float(-np.log(p[np.arange(3000), labels[test]]).mean())

    assert nll(floor) < nll(plain) - 0.02
    # of labels that are right, next to nothing is noise
    assert NoiseFloor.fit(reduce_of(logits[train], right[train])).share < 0.01


def test_one_sample_that_is_sure_and_wrong_costs_little() -> None:
    """A new sample as none before: its loss has a bound, and that of a temperature has none."""
    logits, labels, _ = sample(classes=4, size=400)
    fitted = NoiseFloor.fit(reduce_of(logits, labels))
    assert fitted.share > 1 / 500
    wrong = np.array([[1e4, 0.0, 0.0, 0.0]])
    assert -float(apply_map(fitted, wrong)[0, 1]) < np.log(4 * 500)


def test_without_its_floor_the_fit_is_nearest_to_one_on_right_labels() -> None:
    logits, right, labels = noisy(10, 6000, 0.1)
    train, test = slice(0, 3000), slice(3000, None)

    def loss(name: str, observed: Array) -> float:
        fitted = MAPS[name].fit(reduce_of(logits[train], observed[train]))
        return float(-log_softmax(apply_map(fitted, logits[test]), axis=1)[np.arange(3000), right[test]].mean())

    best = loss("bias", right)
    robust, floor, plain = (loss(name, labels) - best for name in ("bias-robust", "bias-floor", "bias"))
    assert abs(robust) < floor / 2 < plain / 2
