"""Structured vector scaling (SVS): each centred logit has a factor of its own, drawn towards one temperature.

    x = P s / T,  P = I - 11'/C        s' = (I + diag v) x + c

T is the temperature of TS on the same samples. v and c minimise the mean NLL + (C / N) (|v|^2 + |c|^2), so that few
samples give TS. Centring makes the map blind to a number added to all logits, as softmax is, and keeps it linear.
The source takes x = log softmax(s / T), which is P s / T less a number per sample, and does not fold.
Source: Berta, Holzmueller, Jordan & Bach (2026), "Structured matrix scaling for multi-class calibration".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tna_onnx.maps.base import CalibrationMap, Folding, Reduce, per_class
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.multinomial import Diagonal, fit_scores, shape_of
from tna_onnx.numerics.ops import Ops

__all__ = ["VectorScaling"]


@dataclass(frozen=True, eq=False)
class VectorScaling(CalibrationMap):
    """Centred logits divided by a temperature, times a factor and plus a bias for each class.

    Attributes:
        temperature: T.
        vector: (C,) v; the factors are 1 + v.
        bias: (C,) c.
    """

    temperature: float
    vector: NDArray[np.float64]
    bias: NDArray[np.float64]

    name: ClassVar[str] = "svs"
    title: ClassVar[str] = "a factor for each class"
    rank: ClassVar[int] = 90
    # each class has a factor and a bias of its own
    keeps_order: ClassVar[bool] = False
    # law 5: W' = (I + diag v) P W / T
    soft: ClassVar[bool] = True
    foldable: ClassVar[bool] = True

    @property
    def brief(self) -> dict[str, Any]:
        """The temperature, v and the bias."""
        return {"temperature": self.temperature, **per_class("vector", self.vector), **per_class("bias", self.bias)}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return (I + diag v) x + c."""
        # centred first: in float16 a large common part would leave no digits for the rest
        centred = op.add(logits, op.mul(op.mean(logits), op.const(-1.0)))
        return op.add(op.mul(centred, op.const((1 + self.vector) / self.temperature)), op.const(self.bias))

    def folded(self) -> Folding:
        """Return the matrix (I + diag v) P / T and the shift c."""
        factors = (1 + self.vector) / self.temperature
        # diag(a) (I - 11'/C): a on the diagonal, less a / C along each row
        return Folding(np.diag(factors) - factors[:, None] / len(factors), self.bias)

    @classmethod
    def fit(cls, reduce: Reduce, *, start: VectorScaling | None = None) -> VectorScaling:
        """Fit T, then v and c.

        Args:
            reduce: runs over chunks of (logits, labels).
            start: a map whose T, v and c are tried first.

        Raises:
            DataError: as `Temperature.fit`.
        """
        temperature = Temperature.fit(reduce, start=start).temperature
        size = shape_of(reduce)
        begin = (start.vector, start.bias) if start else None
        ridge = size.classes / size.samples
        vector, bias = fit_scores(reduce, Diagonal(), size, temperature, (ridge, ridge), start=begin)
        return cls(temperature, vector, bias)
