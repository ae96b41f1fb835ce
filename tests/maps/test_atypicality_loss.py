"""The loss of the atypicality-aware map against its definition: value, gradient, Hessian, preconditioner."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax

from tests.maps.samples import reduce_of, sample
from tna_onnx.errors import DataError
from tna_onnx.maps.atypicality import AtypicalityAware, AtypicalityLoss

Array = np.ndarray


def problem(scale: float = 3.0, classes: int = 4) -> tuple[Array, Array, Array]:
    """Return logits, labels and atypicalities of more samples than are added up in the dtype of the logits."""
    logits, labels, _ = sample(size=700, classes=classes, scale=scale)
    return logits, labels, np.random.default_rng(1).standard_normal(700)


def design(logits: Array, atypicality: Array) -> Array:
    """Return what the scores are multiplied from: s'_ic = sum_j design_icj theta_j, (N, C, 3 + C)."""
    classes = logits.shape[1]
    by_power = logits[:, :, None] * (atypicality[:, None] ** np.arange(3))[:, None, :]
    return np.concatenate([by_power, np.broadcast_to(np.eye(classes), (len(logits), classes, classes))], axis=2)


def definition(theta: Array, logits: Array, labels: Array, atypicality: Array) -> tuple[float, Array]:
    """Value and gradient in theta = (p, v), written down in full."""
    x = design(logits, atypicality)
    logs = log_softmax(x @ theta, axis=1)
    ridge = ridge_of(logits)
    rows = np.arange(len(labels))
    mean = np.einsum("nc,ncj->nj", np.exp(logs), x)
    value = -logs[rows, labels].mean() + theta @ (ridge * theta) / 2
    return float(value), (mean - x[rows, labels]).mean(axis=0) + ridge * theta


def hessian_of(theta: Array, logits: Array, atypicality: Array) -> Array:
    """The Hessian in theta = (p, v)."""
    x = design(logits, atypicality)
    q = np.exp(log_softmax(x @ theta, axis=1))
    centred = x - np.einsum("nc,ncj->nj", q, x)[:, None, :]
    return np.einsum("nc,ncj,nck->jk", q, centred, centred) / len(logits) + np.diag(ridge_of(logits))


def ridge_of(logits: Array) -> Array:
    return np.r_[np.zeros(3), np.full(logits.shape[1], 2e-3 / logits.shape[1])]


def torch_array(values: Array) -> Any:
    """The same for torch."""
    return pytest.importorskip("torch", reason="torch is in the extra 'gpu'").from_numpy(values)


@pytest.mark.parametrize("most", [0, 128])  # numbers up to which the Hessian is a matrix
@pytest.mark.parametrize(
    ("scale", "offset", "face", "bound"),
    [
        (0.1, 0.0, np.float64, 1e-12),
        (3.0, 200.0, np.float64, 1e-12),
        (3.0, 200.0, np.float32, 3e-5),  # 2^-24 of logits of 200, and of sums of as many samples
        (0.1, 0.0, np.float32, 3e-5),
        (3.0, 0.0, torch_array, 1e-12),
    ],
)
def test_value_gradient_and_hessian_are_the_definition(
    monkeypatch: pytest.MonkeyPatch, most: int, scale: float, offset: float, face: Callable[[Array], Any], bound: float
) -> None:
    monkeypatch.setattr("tna_onnx.maps.atypicality.DENSE", most)
    logits, labels, atypicality = problem(scale)
    logits = logits + offset
    theta = np.r_[0.8, 0.1, -0.05, np.linspace(-1, 1, 4)]
    value, gradient = definition(theta, logits, labels, atypicality)
    given = logits.astype(face) if isinstance(face, type) else face(logits)
    loss = AtypicalityLoss.of(reduce_of(given, labels, cuts=(5, 350)), atypicality)
    found, slope, curvature = loss.at(theta / loss.unit)
    assert found == pytest.approx(value, rel=bound)
    size = 1 + np.abs(logits).max()
    np.testing.assert_allclose(slope / loss.unit, gradient, atol=bound * size)
    turned = np.stack([curvature.times(d / loss.unit) / loss.unit for d in np.eye(7)])
    hessian = hessian_of(theta, logits, atypicality)
    np.testing.assert_allclose(turned, hessian, atol=bound * np.abs(np.diag(hessian)).max())


def test_of_many_numbers_the_preconditioner_divides_by_a_block_and_a_diagonal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tna_onnx.maps.atypicality.DENSE", 0)
    logits, labels, atypicality = problem(classes=12)
    theta = np.r_[0.4, 0.02, -0.01, np.linspace(-1, 1, 12)]
    loss = AtypicalityLoss.of(reduce_of(logits, labels), atypicality)
    hessian = hessian_of(theta, logits, atypicality)
    rough = np.diag(np.diag(hessian))
    rough[:3, :3] = hessian[:3, :3]
    curvature = loss.at(theta / loss.unit)[2]
    inverse = np.stack([curvature.divide(r * loss.unit) * loss.unit for r in np.eye(15)])
    np.testing.assert_allclose(inverse @ rough, np.eye(15), atol=1e-9)


@pytest.mark.parametrize("far", [-50.0, 0.0, 1e3])
def test_a_start_that_is_far_off_ends_in_the_same_place(far: float) -> None:
    data = sample()
    cold = AtypicalityAware.fit(reduce_of(*data))
    other = AtypicalityAware(cold.polynomial * far, cold.bias + 3, cold.space)
    warm = AtypicalityAware.fit(reduce_of(*data), start=other)
    np.testing.assert_allclose(warm.polynomial, cold.polynomial, atol=1e-5)
    # steps end where the gradient is 1e-7 of the root of the curvature, of which a ridge of 4e-4 is the least
    np.testing.assert_allclose(warm.bias, cold.bias, atol=1e-4)


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_the_scale_of_the_logits_does_not_matter(scale: float) -> None:
    """Nor that rows are saturated where the fit would start."""
    plain = sample()
    scaled = sample(scale=3 * scale)
    expected = AtypicalityAware.fit(reduce_of(*plain))
    found = AtypicalityAware.fit(reduce_of(*scaled))
    np.testing.assert_allclose(found.polynomial * scale, expected.polynomial, atol=1e-5)
    np.testing.assert_allclose(found.bias, expected.bias, atol=1e-4)


def slope_of(fitted: AtypicalityAware, logits: Array, labels: Array) -> float:
    """Largest element of the gradient at a fit, by the definition in float64."""
    assert fitted.space.measured is not None
    theta = np.r_[fitted.polynomial, fitted.bias]
    _, gradient = definition(theta, logits.astype(np.float64), labels, fitted.space.measured)
    return float(np.max(np.abs(gradient)))


@pytest.mark.parametrize(("classes", "scale", "offset"), [(2, 0.3, 30), (10, 0.3, 30), (10, 0.3, 100), (10, 1000, 0)])
def test_where_probabilities_are_saturated_it_is_fitted_as_well_as_by_l_bfgs(
    classes: int, scale: float, offset: float
) -> None:
    rng = np.random.default_rng(1)
    labels, means = rng.integers(0, classes, 2000), rng.normal(size=(classes, 30))
    features = (means[labels] + 2 * rng.normal(size=(2000, 30))).astype(np.float32)
    logits = ((features @ means.T - 0.5 * np.sum(means**2, axis=1)) * scale / 5).astype(np.float32)
    logits[:, 0] += np.float32(offset)
    fitted = AtypicalityAware.fit(reduce_of(logits, labels, features))
    assert fitted.space.measured is not None
    s = logits.astype(np.float64)
    unit = np.r_[np.full(3, 1 / np.abs(s).max()), np.ones(classes)]

    def loss(x: Array) -> tuple[float, Array]:
        value, gradient = definition(x * unit, s, labels, fitted.space.measured)
        return value, gradient * unit

    start = np.r_[1.0, np.zeros(2 + classes)] / unit
    best = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000, "maxfun": 10_000})
    found = loss(np.r_[fitted.polynomial, fitted.bias] / unit)[0]
    assert found < best.fun + 1e-4 * (1 + best.fun)
    assert best.fun < 0.2 * loss(start)[0]  # there was much to be fitted


@pytest.mark.parametrize(("dtype", "seed"), [(np.float32, 0), (np.float64, 1), (np.float32, 2)])
def test_a_class_that_nearly_all_samples_have(dtype: type, seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((1500, 10)).astype(dtype)
    logits = features @ rng.standard_normal((10, 40)).astype(dtype)
    labels = np.zeros(1500, np.int64)
    labels[:80] = np.arange(80) % 40
    fitted = AtypicalityAware.fit(reduce_of(logits, labels, features))
    assert slope_of(fitted, logits, labels) < 1e-5


@pytest.mark.parametrize(
    ("dtype", "mask"), [(np.float32, -1e3), (np.float64, -1e6), (np.float64, -1e9), (np.float32, -1e15)]
)
def test_a_masked_class_is_as_if_it_were_not_there(dtype: type, mask: float) -> None:
    logits, labels, features = sample(size=900, classes=5, scale=3.0)
    without = AtypicalityAware.fit(reduce_of(logits, labels, features))
    masked = np.concatenate([logits, np.full((len(labels), 1), mask)], axis=1).astype(dtype)
    fitted = AtypicalityAware.fit(reduce_of(masked, labels, features))
    # the ridge on v is |v|^2 / C
    np.testing.assert_allclose(fitted.polynomial, without.polynomial, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(fitted.bias[:5], without.bias, atol=2e-2)


@pytest.mark.filterwarnings("error")
def test_logits_whose_squares_overflow_are_refused() -> None:
    logits, labels, features = sample(size=300)
    logits = logits.astype(np.float32)
    logits[:, 0] = -1e30
    with pytest.raises(DataError, match="too large for a fit"):
        AtypicalityAware.fit(reduce_of(logits, labels, features))


def test_the_constant_is_the_frequencies_of_the_labels() -> None:
    logits, labels, atypicality = problem()
    loss = AtypicalityLoss.of(reduce_of(logits, labels), atypicality)
    value, gradient, _ = loss.at(loss.constant / loss.unit)
    share = np.bincount(labels) / len(labels)
    ridge = 1e-3 * float(np.sum(loss.constant[3:] ** 2)) / len(share)
    assert value == pytest.approx(-np.sum(share * np.log(share)) + ridge)
    np.testing.assert_allclose(gradient[3:], 2e-3 / len(share) * loss.constant[3:], atol=1e-12)
