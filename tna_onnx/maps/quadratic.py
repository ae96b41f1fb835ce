"""Quadratic scaling, for two classes: the log-odds d = s_1 - s_0 become a quadratic of d that never falls.

    t = (clip(d, low, high) - mean) / unit        d' = w_0 + w_1 t + w_2 t^2

w is that of a logistic regression, with the ridge of `numerics.logistic`. An unbounded quadratic falls on one side of
its vertex: the surer the model, the less sure the result, there where the fit has hardly seen samples. So d is cut to
the range of the calibration samples, and the slope is at least 0 in it. Where the free minimum falls at an end, the one
under the bounds has its vertex at an end (the loss is convex, and the slope is linear in w), which leaves one factor.
Source: Berta, Holzmueller, Jordan & Bach (2026), "Structured matrix scaling for multi-class calibration"; the bound is
ours.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import array_api_compat
import numpy as np

from tna_onnx.errors import DataError
from tna_onnx.maps.base import Reduce
from tna_onnx.maps.binary import check_two_classes, log_odds, log_odds_column, not_increasing
from tna_onnx.numerics.logistic import fit_logistic
from tna_onnx.numerics.ops import Blocked, Ops

__all__ = ["Quadratic"]


@dataclass(frozen=True)
class Quadratic:
    """A quadratic of the log-odds.

    Attributes:
        coefficients: (w_0, w_1, w_2).
        mean: of the log-odds.
        unit: standard deviation of the log-odds.
        low: log-odds below are taken as this.
        high: log-odds above are taken as this.
    """

    coefficients: tuple[float, float, float]
    mean: float
    unit: float
    low: float
    high: float

    name: ClassVar[str] = "quadratic"
    # the threshold moves
    keeps_order: ClassVar[bool] = False
    foldable: ClassVar[bool] = False
    needs_features: ClassVar[bool] = False
    binary: ClassVar[bool] = True
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @property
    def brief(self) -> dict[str, Any]:
        """Everything."""
        return {
            "coefficients": list(self.coefficients),
            "mean": self.mean,
            "unit": self.unit,
            "low": self.low,
            "high": self.high,
        }

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return (0, d')."""
        w0, w1, w2 = (op.const(w) for w in self.coefficients)
        # standardised before it is squared: float16 ends at 65504
        d = op.clip(log_odds(op, logits), self.low, self.high)
        t = op.mul(op.add(d, op.const(-self.mean)), op.const(1 / self.unit))
        moved = op.add(op.mul(op.add(op.mul(t, w2), w1), t), w0)  # Horner
        return op.mul(moved, op.const(np.array([0.0, 1.0])))

    def folded(self) -> None:
        """Return None: a quadratic is no linear function."""

    @classmethod
    def fit(cls, reduce: Reduce, *, start: Quadratic | None = None) -> Quadratic:  # noqa: ARG003
        """Fit w.

        Args:
            reduce: runs over chunks of (logits, labels).
            start: not used; there is nothing to gain.

        Raises:
            DataError: not two classes, equal log-odds, or nothing that rises fits.
        """
        check_two_classes(cls.name, reduce)
        mean, unit, low, high = reduce(Blocked(_Range.of)).standard
        if not unit > 1e-7 * abs(mean):
            raise DataError("quadratic: the logits hardly differ between samples; check the head and the preprocessing")
        ends = ((low - mean) / unit, (high - mean) / unit)
        free = fit_logistic(reduce, functools.partial(_powers, mean, unit))
        w1, w2 = free.weights.tolist()
        if min(w1 + 2 * w2 * end for end in ends) >= 0 and max(abs(w1), abs(w2)) > 0:
            return cls((free.intercept, w1, w2), mean, unit, low, high)
        # the bounded minimum has its vertex at one of the ends
        fits = [(end, fit_logistic(reduce, functools.partial(_from_vertex, mean, unit, end))) for end in ends]
        rising = [(end, fit) for end, fit in fits if fit.weights[0] > 0]
        if not rising:
            raise not_increasing(cls.name)
        end, best = min(rising, key=lambda pair: pair[1].loss)
        # f = -sign(end) (t^2 - 2 end t)
        w2 = -math.copysign(float(best.weights[0]), end)
        return cls((best.intercept, -2 * end * w2, w2), mean, unit, low, high)


@dataclass(frozen=True)
class _Range:
    """Number, sum, sum of squares and ends of log-odds; `+` merges."""

    count: int
    total: float
    square: float
    low: float
    high: float

    @classmethod
    def of(cls, logits: Any, *_: Any) -> _Range:
        d = log_odds_column(logits)
        xp = array_api_compat.array_namespace(d)
        return cls(len(d), float(xp.sum(d)), float(xp.sum(d * d)), float(xp.min(d)), float(xp.max(d)))

    def __add__(self, other: _Range) -> _Range:
        low = min(self.low, other.low)
        high = max(self.high, other.high)
        count = self.count + other.count
        return _Range(count, self.total + other.total, self.square + other.square, low, high)

    @property
    def standard(self) -> tuple[float, float, float, float]:
        """Mean, standard deviation and both ends."""
        mean = self.total / self.count
        return mean, math.sqrt(max(self.square / self.count - mean * mean, 0.0)), self.low, self.high


def _powers(mean: float, unit: float, logits: Any) -> Any:
    """Return (t, t^2), (N, 2), in float64."""
    t = (log_odds_column(logits) - mean) / unit
    xp = array_api_compat.array_namespace(t)
    return xp.concat([t, t * t], axis=1)


def _from_vertex(mean: float, unit: float, end: float, logits: Any) -> Any:
    """Return -sign(end) (t^2 - 2 end t), (N, 1): its vertex is at an end of the range, and it rises in the range."""
    t = (log_odds_column(logits) - mean) / unit
    return (t * t - 2 * end * t) * -math.copysign(1.0, end)
