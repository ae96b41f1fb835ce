"""Ensemble temperature scaling (ETS): a mixture of the scaled, the plain and the uniform distribution.

    p = w_1 softmax(s / T) + w_2 softmax(s) + w_3 / C,        w >= 0, sum w = 1

T is the temperature of TS. The weights minimise the squared error sum_i |p_i - onehot(y_i)|^2 = w'Gw - 2 t'w + N with

    G_kl = sum_i <P_k, P_l>_i        t_k = sum_i (P_k)_iy

over the three distributions P_k: one pass over the data, then a 3 x 3 problem on the simplex. Or they minimise the
NLL -sum_i log sum_k w_k q_ik with q_ik = (P_k)_iy, by w_k <- mean_i w_k q_ik / sum_l w_l q_il (expectation maximisation
of a mixture: the NLL never rises, the weights stay on the simplex, the problem is convex). The result is log p.
Source: Zhang, Kailkhura & Han (2020), "Mix-n-Match", section 3.3.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tna_onnx.maps.base import CalibrationMap, Reduce
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.fitting import mixture_weights, simplex_weights
from tna_onnx.numerics.ops import ArrayOps, Blocked, Ops, own_column, row_max, row_sum, to_host

__all__ = ["EnsembleTemperature"]

# A weight that no probability in float32 shows.
_NONE = 1e-8


@dataclass(frozen=True)
class EnsembleTemperature(CalibrationMap):
    """Mixture of softmax(s / temperature), softmax(s) and 1 / n_classes with `weights`, as log-probabilities."""

    temperature: float
    weights: tuple[float, float, float]
    n_classes: int

    name: ClassVar[str] = "ets"
    title: ClassVar[str] = "mixture of scaled, plain and uniform probabilities"
    rank: ClassVar[int] = 50
    on_tilted: ClassVar[bool] = True
    few_parameters: ClassVar[bool] = True
    # law 4: two of the distributions have the order of the logits, the third has none
    keeps_order: ClassVar[bool] = True
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {"ets_loss": ("squared", "nll")}

    @property
    def brief(self) -> dict[str, Any]:
        """Temperature and weights."""
        return {"temperature": self.temperature, "weights": list(self.weights)}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return log p, cut at the smallest normal number of the dtype."""
        scaled, plain, uniform = self.weights
        # p = w_1 softmax(s / T) + w_2 softmax(s) + w_3 / C
        p = op.mul(op.softmax(op.mul(logits, op.const(1 / self.temperature))), op.const(scaled))
        p = op.add(p, op.mul(op.softmax(logits), op.const(plain)))
        p = op.add(p, op.const(uniform / self.n_classes))
        return op.log(op.clip(p, op.tiny, 1.0))

    def folded(self) -> None:
        """Return None: a mixture of distributions is no linear function of the logits."""

    def simpler(self) -> Temperature | None:
        """Return the temperature that it is where only one of the first two distributions has a weight."""
        scaled, plain, uniform = self.weights
        if uniform > _NONE or min(scaled, plain) > _NONE:
            return None
        return Temperature(self.temperature if scaled > plain else 1.0)

    @classmethod
    def fit(
        cls, reduce: Reduce, *, start: EnsembleTemperature | None = None, ets_loss: str = "squared"
    ) -> EnsembleTemperature:
        """Fit T by NLL, then the weights by squared error, or by NLL too.

        Args:
            reduce: runs over chunks of (logits, labels).
            start: a map whose T is tried first.
            ets_loss: what the weights minimise, `squared` or `nll`.

        Raises:
            DataError: as `Temperature.fit`.
        """
        # T changes little with the weight: a fit from the neighbour's takes fewer passes
        temperature = Temperature.fit(reduce, start=start).temperature
        # G and t for the squared error; the number of classes for both losses
        sums = reduce(Blocked(functools.partial(_quadratic, temperature)))
        count = sums[12]
        n_classes = round(sums[13] / count)
        if ets_loss == "nll":
            likelihoods = reduce(Blocked(functools.partial(_Likelihoods.of, temperature)))
            weights = mixture_weights(likelihoods.values)
        else:
            weights = simplex_weights(sums[:9].reshape(3, 3) / count, sums[9:12] / count)
        return cls(temperature, (float(weights[0]), float(weights[1]), float(weights[2])), n_classes)


@dataclass(frozen=True, eq=False)
class _Likelihoods:
    """Probability of the label under each of the three distributions, (N, 3); `+` joins."""

    values: NDArray[np.float64]

    @classmethod
    def of(cls, temperature: float, logits: Any, labels: NDArray[np.int64], *_: Any) -> _Likelihoods:
        op = ArrayOps(logits)
        parts = [op.softmax(logits / temperature), op.softmax(logits)]
        columns = [to_host(own_column(p, labels)) for p in parts]
        # the third distribution is uniform
        columns.append(np.full((len(labels), 1), 1 / logits.shape[1]))
        return cls(np.concatenate(columns, axis=1).astype(np.float64))

    def __add__(self, other: _Likelihoods) -> _Likelihoods:
        return _Likelihoods(np.concatenate([self.values, other.values]))


def _quadratic(temperature: float, logits: Any, labels: NDArray[np.int64], *_: Any) -> NDArray[np.float64]:
    """Sums over samples: G (9), t (3), 1, C. Products of exponentials are summed first, and normalised row by row."""
    xp = array_api_compat.array_namespace(logits)
    n, classes = logits.shape
    shifted = logits - row_max(logits)
    # from the largest logit: no exponential overflows, for any T
    parts = [xp.exp(shifted * (1 / temperature)), xp.exp(shifted)]
    totals = [row_sum(a, double=True)[:, 0] for a in parts]

    def inner(k: int, m: int) -> float:
        return float(xp.sum(xp.astype(xp.vecdot(parts[k], parts[m]), xp.float64) / (totals[k] * totals[m])))

    hits = [float(xp.sum(own_column(a, labels)[:, 0] / b)) for a, b in zip(parts, totals, strict=True)]
    uniform = n / classes  # the probabilities of a sample sum to one
    mixed = inner(0, 1)
    gram = [inner(0, 0), mixed, uniform, mixed, inner(1, 1), uniform, uniform, uniform, uniform]
    return np.array([*gram, *hits, uniform, n, n * classes], np.float64)
