"""Maps for two classes.

Platt scaling: the log-odds d = s_1 - s_0 become a d + c. a > 0 and c are those of a logistic regression, with the ridge
of `numerics.fitting`. Data that a threshold separates have no minimum without one; it is preferred to an error, because
few samples of a good model often are separable, and to Platt's changed labels, because it vanishes faster.

Beta calibration: each side of the distribution has a slope of its own,

    log-odds of p' = a ln p - b ln(1 - p) + c,        a, b >= 0

p is the model's probability of the second class. a, b and c are those of a logistic regression on ln p and -ln(1 - p),
with the same ridge. Where one slope comes out negative, the minimum under the bounds has a = 0 or b = 0, and the better
of these two regressions is taken.

Source: Platt (1999), "Probabilistic Outputs for Support Vector Machines", section 2.2; Kull, Silva Filho & Flach
(2017), "Beta calibration", section 3.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import array_api_compat
import numpy as np

from tna_onnx.errors import DataError
from tna_onnx.maps.base import CalibrationMap, Folding, Reduce
from tna_onnx.numerics.fitting import fit_logistic
from tna_onnx.numerics.multinomial import shape_of
from tna_onnx.numerics.ops import ArrayOps, Ops


@dataclass(frozen=True)
class Platt(CalibrationMap):
    """Log-odds times `slope`, plus `intercept`."""

    slope: float
    intercept: float

    name: ClassVar[str] = "platt"
    title: ClassVar[str] = "slope and intercept of the log-odds"
    rank: ClassVar[int] = 30
    weighted: ClassVar[bool] = True
    few_parameters: ClassVar[bool] = True
    # law 5: a (W z + b) + (0, c); the first logit stays 0 where it was
    foldable: ClassVar[bool] = True
    binary: ClassVar[bool] = True

    @property
    def brief(self) -> dict[str, Any]:
        """Slope and intercept."""
        return {"slope": self.slope, "intercept": self.intercept}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return a s + (0, c)."""
        return op.add(op.mul(logits, op.const(self.slope)), op.const(np.array([0.0, self.intercept])))

    def folded(self) -> Folding:
        """Return the factor a and the shift (0, c)."""
        return Folding(self.slope, np.array([0.0, self.intercept]))

    @classmethod
    def fit(cls, reduce: Reduce, *, start: Platt | None = None) -> Platt:  # noqa: ARG003
        """Fit a and c."""
        check_two_classes(cls.name, reduce)
        fit = fit_logistic(reduce, log_odds_column)
        slope = float(fit.weights[0])
        if not slope > 0:
            raise not_increasing(cls.name)
        return cls(slope, fit.intercept)


def check_two_classes(name: str, reduce: Reduce) -> None:
    """Refuse logits of more classes."""
    classes = shape_of(reduce).classes
    if classes != 2:
        raise DataError(
            f"{name}: this map is for two classes, and the logits have {classes}; "
            "use --map bias, svs or sms, which are for any number"
        )


def not_increasing(name: str) -> DataError:
    """Return the error for a probability that falls where the model's rises."""
    return DataError(
        f"{name}: the second class is not more frequent where the model says that it is more probable; check the "
        "labels, the class order and the preprocessing"
    )


def log_odds_column(logits: Any) -> Any:
    """Return d = s_1 - s_0, (N, 1), in float64."""
    xp = array_api_compat.array_namespace(logits)
    return xp.astype(logits[:, 1:] - logits[:, :1], xp.float64)


@dataclass(frozen=True)
class Beta(CalibrationMap):
    """Logits (b ln(1 - p), a ln p + c)."""

    a: float
    b: float
    c: float

    name: ClassVar[str] = "beta"
    title: ClassVar[str] = "beta calibration"
    rank: ClassVar[int] = 70
    weighted: ClassVar[bool] = True
    binary: ClassVar[bool] = True

    @property
    def brief(self) -> dict[str, Any]:
        """Both slopes and the intercept."""
        return {"a": self.a, "b": self.b, "c": self.c}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return the two logits; logarithms are cut at the smallest normal number of the dtype."""
        log_p = _log_probabilities(op, logits)
        return op.add(op.mul(log_p, op.const(np.array([self.b, self.a]))), op.const(np.array([0.0, self.c])))

    @classmethod
    def fit(cls, reduce: Reduce, *, start: Beta | None = None) -> Beta:  # noqa: ARG003
        """Fit a, b and c."""
        check_two_classes(cls.name, reduce)
        two_sided = fit_logistic(reduce, functools.partial(_sides, (1.0, 1.0)))
        a, b = two_sided.weights.tolist()
        if min(a, b) >= 0 and max(a, b) > 0:
            return cls(a, b, two_sided.intercept)
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
