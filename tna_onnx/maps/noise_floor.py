"""Bias above a noise floor: for labels of which some are wrong, and models that are sure and now and then wrong.

    p = (1 - e) softmax(s / T + c) + e / C

A linear map cannot say that one label in ten is wrong, and a mixture with the uniform distribution cannot move the
class that comes first; together, the share e takes up what is noise, and T and c follow the rest. All three minimise
the mean -log p_y + |c|^2 / (2 N tau^2), with tau as in `maps.bias`, which this is for e = 0, and a prior that keeps e
off 0 and 1 (`numerics.multinomial`): no sample, however wrong, costs more than about log C N.
Source of the mixture: Huber (1964), "Robust estimation of a location parameter", section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tna_onnx.maps.base import CalibrationMap, Reduce, per_class
from tna_onnx.maps.bias import Bias, first_fit, temperature_of
from tna_onnx.numerics.multinomial import Scalar, fit_above_floor
from tna_onnx.numerics.ops import Ops

__all__ = ["NoiseFloor"]

# Where e begins; T and c begin where they end without a floor.
_FIRST_SHARE = 0.03


@dataclass(frozen=True, eq=False)
class NoiseFloor(CalibrationMap):
    """Logits divided by a temperature, plus a bias for each class, as log-probabilities mixed with a uniform share.

    Attributes:
        temperature: T.
        bias: (C,) c.
        share: e, a fraction between 0 and 1.
    """

    temperature: float
    bias: NDArray[np.float64]
    share: float

    name: ClassVar[str] = "bias-floor"
    title: ClassVar[str] = "temperature and biases above a noise floor"
    rank: ClassVar[int] = 100
    few_parameters: ClassVar[bool] = True
    # each class has a bias of its own
    keeps_order: ClassVar[bool] = False
    # a logarithm of probabilities is not linear in the logits
    foldable: ClassVar[bool] = False

    @property
    def brief(self) -> dict[str, Any]:
        """The temperature, the bias and the share."""
        return {"temperature": self.temperature, **per_class("bias", self.bias), "share": self.share}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return log p, cut at the smallest normal number of the dtype."""
        scores = op.add(op.mul(logits, op.const(1 / self.temperature)), op.const(self.bias))
        p = op.add(op.mul(op.softmax(scores), op.const(1 - self.share)), op.const(self.share / len(self.bias)))
        # in float16 the share may vanish: a logarithm stays finite
        return op.log(op.clip(p, op.tiny, 1.0))

    def folded(self) -> None:
        """Return None: it needs nodes of its own."""

    @classmethod
    def fit(cls, reduce: Reduce, *, start: Bias | NoiseFloor | None = None) -> NoiseFloor:
        """Fit T, c and e together, from T and c of a fit without e.

        Args:
            reduce: runs over chunks of (logits, labels).
            start: a map whose T and c are tried first.

        Raises:
            DataError: as `Bias.fit`.
        """
        size, first, ridge = first_fit(reduce, start)
        slope, bias, share = fit_above_floor(
            reduce, Scalar(), size, size.spread, (0.0, ridge), _FIRST_SHARE, start=first
        )
        return cls(temperature_of(slope, bias, size), bias, share)
