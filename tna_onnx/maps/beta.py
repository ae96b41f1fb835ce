"""Beta calibration, for two classes: each side of the distribution has a slope of its own.

    log-odds of p' = a ln p - b ln(1 - p) + c,        a, b >= 0

p is the model's probability of the second class. a, b and c are those of a logistic regression on ln p and -ln(1 - p),
with the ridge of `numerics.fitting`. Where one slope comes out negative, the minimum under the bounds has a = 0 or
b = 0, and the better of these two regressions is taken.
Source: Kull, Silva Filho & Flach (2017), "Beta calibration", section 3.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import array_api_compat
import numpy as np

from tna_onnx.maps.base import CalibrationMap, Reduce
from tna_onnx.maps.platt import check_two_classes, not_increasing
from tna_onnx.numerics.fitting import fit_logistic
from tna_onnx.numerics.ops import ArrayOps, Ops

__all__ = ["Beta"]


@dataclass(frozen=True)
class Beta(CalibrationMap):
    """Logits (b ln(1 - p), a ln p + c)."""

    a: float
    b: float
    c: float

    name: ClassVar[str] = "beta"
    title: ClassVar[str] = "beta calibration"
    rank: ClassVar[int] = 70
    # the threshold moves
    keeps_order: ClassVar[bool] = False
    binary: ClassVar[bool] = True

    @property
    def brief(self) -> dict[str, Any]:
        """Both slopes and the intercept."""
        return {"a": self.a, "b": self.b, "c": self.c}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return the two logits; logarithms are cut at the smallest normal number of the dtype."""
        log_p = _log_probabilities(op, logits)
        return op.add(op.mul(log_p, op.const(np.array([self.b, self.a]))), op.const(np.array([0.0, self.c])))

    def folded(self) -> None:
        """Return None: logarithms of probabilities are no linear function of the logits."""

    @classmethod
    def fit(cls, reduce: Reduce, *, start: Beta | None = None) -> Beta:  # noqa: ARG003
        """Fit a, b and c.

        Args:
            reduce: runs over chunks of (logits, labels).
            start: not used; there is nothing to gain.

        Raises:
            DataError: not two classes, or neither a > 0 nor b > 0 fits.
        """
        check_two_classes(cls.name, reduce)
        both = fit_logistic(reduce, functools.partial(_sides, (1.0, 1.0)))
        a, b = both.weights.tolist()
        if min(a, b) >= 0 and max(a, b) > 0:
            return cls(a, b, both.intercept)
        bounded = []
        for sides in ((1.0, 0.0), (0.0, 1.0)):
            # the column that is 0 has no variation and gets the weight 0
            fit = fit_logistic(reduce, functools.partial(_sides, sides))
            if fit.weights.max() > 0:
                bounded.append(fit)
        if not bounded:
            raise not_increasing(cls.name)
        best = min(bounded, key=lambda fit: fit.loss)
        a, b = best.weights.tolist()
        return cls(max(a, 0.0), max(b, 0.0), best.intercept)


def _log_probabilities(op: Ops, logits: Any) -> Any:
    return op.log(op.clip(op.softmax(logits), op.tiny, 1.0))


def _sides(factors: tuple[float, float], logits: Any) -> Any:
    """Return (ln p, -ln(1 - p)) times the factors, (N, 2), in float64."""
    xp = array_api_compat.array_namespace(logits)
    log_p = xp.astype(_log_probabilities(ArrayOps(logits), logits), xp.float64)
    return xp.stack([factors[0] * log_p[:, 1], -factors[1] * log_p[:, 0]], axis=1)
