"""The anchored refit: against L-BFGS in float64 on its definition, in the terms of weight and bias."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax, softmax

from tests.maps.samples import reduce_of
from tna_onnx.errors import DataError
from tna_onnx.maps import refit as module
from tna_onnx.maps.base import apply_map
from tna_onnx.maps.refit import Refit
from tna_onnx.numerics.metric import METRICS

Array = NDArray[Any]

# What a path may leave to gain, nats: a twentieth of the smallest effect on the NLL that counts. It stops where a step
# would gain 1e-5, and the steps after that would gain a few times as much where axes are far from independent.
EXCESS = METRICS["nll"].smallest_effect / 20


class Head:
    """A linear head, overconfident and with classes that have shifted, on float32 features of uneven size."""

    def __init__(self, n: int, samples: int, classes: int) -> None:
        rng = np.random.default_rng([n, samples, classes])
        self.z = (np.maximum(rng.normal(0.3, 1, (samples, n)), 0) * np.geomspace(20, 0.1, n)).astype(np.float32)
        honest = rng.normal(size=(classes, n)) / np.sqrt(np.mean(self.z**2, axis=0) * n)
        self.weight = (3 * honest + rng.normal(0, 0.3, honest.shape) * np.abs(honest).mean()).astype(np.float32)
        self.bias = rng.normal(0, 0.3, classes).astype(np.float32)
        s = 2 * self.z @ honest.T + rng.normal(0, 1, classes)
        self.y = np.argmax(s + rng.gumbel(size=s.shape), axis=1)

    @property
    def logits(self) -> Array:
        return self.z @ self.weight.T + self.bias

    def reduce(self, cuts: tuple[int, ...] = ()) -> Any:
        return reduce_of(self.logits, self.y, self.z, cuts)

    def temperature(self) -> float:
        s, rows = self.logits.astype(np.float64), np.arange(len(self.y))

        def nll(log_t: float) -> float:
            return -float(np.mean(log_softmax(s / math.exp(log_t), axis=1)[rows, self.y]))

        return math.exp(minimize_scalar(nll, bounds=(-5, 5), method="bounded", options={"xatol": 1e-9}).x)

    def value_and_slope(self, theta: Array, strength: float, temperature: float) -> tuple[float, Array]:
        """The objective of (W', b') in the module's first line, and its gradient."""
        z = np.hstack([self.z.astype(np.float64), np.ones((len(self.z), 1))])
        anchor = np.hstack([self.weight, self.bias[:, None]]).astype(np.float64) / temperature
        moments = np.append(np.mean(self.z.astype(np.float64) ** 2, axis=0), 1.0)
        new = theta.reshape(anchor.shape)
        s, rows = z @ new.T, np.arange(len(self.y))
        value = -np.mean(log_softmax(s, axis=1)[rows, self.y]) + strength * np.sum((new - anchor) ** 2 * moments)
        residual = softmax(s, axis=1)
        residual[rows, self.y] -= 1
        return float(value), (residual.T @ z / len(z) + 2 * strength * (new - anchor) * moments).ravel()

    def best(self, strength: float, temperature: float) -> float:
        """The minimum that L-BFGS finds, in the unit of each feature."""
        unit = np.append(1 / np.sqrt(np.mean(self.z.astype(np.float64) ** 2, axis=0).clip(1e-30)), 1.0)
        unit = np.broadcast_to(unit, (len(self.bias), len(unit))).ravel()
        start = np.hstack([self.weight, self.bias[:, None]]).astype(np.float64).ravel() / temperature / unit

        def scaled(x: Array) -> tuple[float, Array]:
            value, slope = self.value_and_slope(x * unit, strength, temperature)
            return value, slope * unit

        options = {"maxiter": 5000, "maxfun": 50_000, "ftol": 1e-14, "gtol": 1e-9}
        return float(minimize(scaled, start, method="L-BFGS-B", jac=True, options=options).fun)

    def value_of(self, fitted: Refit) -> float:
        """The objective of a fit, from its folded weight and bias."""
        folding = fitted.folded()
        weight = folding.weight(self.weight.astype(np.float64))
        bias = folding.bias(self.bias.astype(np.float64))
        value, _ = self.value_and_slope(np.hstack([weight, bias[:, None]]), fitted.strength, fitted.temperature)
        return value


@pytest.mark.parametrize(("n", "samples", "classes"), [(10, 400, 5), (60, 40, 4), (8, 300, 2), (20, 400, 30)])
def test_each_step_of_the_path_is_as_good_as_that_of_l_bfgs(n: int, samples: int, classes: int) -> None:
    head = Head(n, samples, classes)
    path = list(Refit.fit_path(head.reduce()))
    assert tuple(fit.strength for fit in path) == Refit.strengths
    temperature = head.temperature()
    for fit in path[::2]:
        assert fit.temperature == pytest.approx(temperature, rel=1e-4)  # the minimum is flat: root of rounding
        assert head.value_of(fit) - head.best(fit.strength, fit.temperature) <= EXCESS


def test_a_strong_anchor_is_temperature_scaling() -> None:
    head = Head(10, 400, 5)
    start = Refit(1.0, 1e6, np.zeros((5, 10), np.float32), np.zeros(5, np.float32))
    fitted = Refit.fit(head.reduce(), start=start)
    assert fitted.strength == 1e6
    # each part of a change is below the size of the gradient, 1, over 2 lambda, in the unit of its feature
    assert np.abs(fitted.delta * np.sqrt(np.mean(head.z**2, axis=0))).max() <= 5e-7
    assert np.abs(fitted.shift).max() <= 5e-7
    logits = head.logits
    np.testing.assert_allclose(
        apply_map(fitted, logits, head.z), logits / fitted.temperature, rtol=1e-6, atol=11 * 5e-7 * 20
    )


def test_fit_takes_the_strength_of_its_start_or_a_middle_one() -> None:
    head = Head(10, 400, 5)
    path = {fit.strength: fit for fit in Refit.fit_path(head.reduce())}
    alone = Refit.fit(head.reduce())
    assert alone.strength in path
    assert Refit.strengths[0] > alone.strength > Refit.strengths[-1]
    np.testing.assert_array_equal(alone.delta, path[alone.strength].delta)
    again = Refit.fit(head.reduce(), start=path[2e-3])
    np.testing.assert_array_equal(again.delta, path[2e-3].delta)


def test_a_feature_that_is_always_zero_has_no_say() -> None:
    head = Head(10, 400, 5)
    head.z[:, 3] = 0
    fitted = Refit.fit(head.reduce())
    assert np.all(np.isfinite(fitted.delta))
    assert np.abs(fitted.delta[:, 3]).max() <= 2**-24 * np.abs(fitted.delta).max()  # rounding of float32 axes
    assert head.value_of(fitted) - head.best(fitted.strength, fitted.temperature) <= EXCESS


def test_features_that_are_all_zero_are_refused() -> None:
    head = Head(10, 400, 5)
    logits = head.logits
    with pytest.raises(DataError, match="all features are zero"):
        Refit.fit(reduce_of(logits, head.y, np.zeros_like(head.z)))


def test_a_class_without_a_sample_keeps_a_finite_bias() -> None:
    head = Head(10, 400, 5)
    head.y[head.y == 4] = 0
    for fitted in Refit.fit_path(head.reduce()):
        assert np.all(np.isfinite(fitted.delta))
        assert np.all(np.isfinite(fitted.shift))
    assert fitted.shift[4] == min(fitted.shift)


def test_chunks_give_what_the_whole_gives() -> None:
    head = Head(10, 400, 5)
    whole, cut = Refit.fit(head.reduce()), Refit.fit(head.reduce((1, 130, 255)))
    # the temperature's sums are in another order; the samples are the same
    assert cut.temperature == pytest.approx(whole.temperature, rel=1e-9)
    np.testing.assert_allclose(cut.delta, whole.delta, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("cuts", [(), (3, 130, 255)])
def test_many_features_are_thinned_evenly_whatever_the_chunks(
    cuts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for 1,500 numbers: of 400 samples of 10 every third is fitted, and the temperature by all of them."""
    head = Head(10, 400, 5)
    monkeypatch.setattr(module, "_MAX_NUMBERS", 1500)
    seen = []

    def spy(scores: Any, labels: Any, axes: Any, strengths: Any) -> Any:
        seen.append(labels)
        return ridge_path(scores, labels, axes, strengths)

    ridge_path = module.ridge_path
    monkeypatch.setattr(module, "ridge_path", spy)
    fitted = Refit.fit(head.reduce(cuts))
    np.testing.assert_array_equal(seen[0], head.y[::3])
    assert fitted.temperature == pytest.approx(head.temperature(), rel=1e-4)  # as above
