"""Platt scaling, for two classes: the log-odds d = s_1 - s_0 become a d + c.

a > 0 and c are those of a logistic regression, with the ridge of `numerics.fitting`. Data that a threshold separates
have no minimum without one; it is preferred to an error, because few samples of a good model often are separable, and
to Platt's changed labels, because it vanishes faster.
Source: Platt (1999), "Probabilistic Outputs for Support Vector Machines", section 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import array_api_compat
import numpy as np

from tna_onnx.errors import DataError
from tna_onnx.maps.base import CalibrationMap, Folding, Reduce
from tna_onnx.numerics.fitting import fit_logistic
from tna_onnx.numerics.multinomial import shape_of
from tna_onnx.numerics.ops import Ops

__all__ = ["Platt", "check_two_classes", "log_odds_column", "not_increasing"]


@dataclass(frozen=True)
class Platt(CalibrationMap):
    """Log-odds times `slope`, plus `intercept`."""

    slope: float
    intercept: float

    name: ClassVar[str] = "platt"
    title: ClassVar[str] = "slope and intercept of the log-odds"
    rank: ClassVar[int] = 30
    few_parameters: ClassVar[bool] = True
    # the threshold moves
    keeps_order: ClassVar[bool] = False
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
        """Fit a and c.

        Args:
            reduce: runs over chunks of (logits, labels).
            start: not used; there is nothing to gain.

        Raises:
            DataError: not two classes, or no a > 0 fits.
        """
        check_two_classes(cls.name, reduce)
        fit = fit_logistic(reduce, log_odds_column)
        slope = float(fit.weights[0])
        if not slope > 0:
            raise not_increasing(cls.name)
        return cls(slope, fit.intercept)


def check_two_classes(name: str, reduce: Reduce) -> None:
    """Refuse logits of more classes.

    Raises:
        DataError: there are not two.
    """
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
