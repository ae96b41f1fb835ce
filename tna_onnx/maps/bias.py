"""Bias: a temperature, and one bias for each class, for classes that have become more or less frequent.

    s' = s / T + c        T and c minimise the mean NLL + (5 / N) |c|^2

The ridge vanishes as samples come in, and a class without a sample keeps a finite bias. Adding a number to all of c
changes nothing, so the minimum has sum c = 0.
Source: Alexandari, Kundaje & Shrikumar (2020), "Maximum Likelihood with Bias-Corrected Calibration"; the ridge is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.maps.base import Folding, Reduce
from tna_onnx.maps.brief import per_class
from tna_onnx.numerics.multinomial import Scalar, fit_scores, shape_of
from tna_onnx.numerics.ops import Ops

__all__ = ["Bias"]

# N times the ridge: what a normal prior with a standard deviation of 0.32 gives. Twenty samples a class follow a shift
# of the class frequencies by a factor of two for the most part; where nothing shifted, five cost less than 0.01 of NLL.
# Unlike the C of structured scaling it does not grow with the classes, under which 1,000 of them never move.
_RIDGE = 5.0


@dataclass(frozen=True, eq=False)
class Bias:
    """Logits divided by a temperature, plus a bias for each class.

    Attributes:
        temperature: T.
        bias: (C,) c.
    """

    temperature: float
    bias: NDArray[np.float64]

    name: ClassVar[str] = "bias"
    # each class has a bias of its own
    keeps_order: ClassVar[bool] = False
    # law 5: (W z + b) / T + c = (W / T) z + (b / T + c)
    foldable: ClassVar[bool] = True
    needs_features: ClassVar[bool] = False
    binary: ClassVar[bool] = False
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @property
    def brief(self) -> dict[str, Any]:
        """The temperature and the bias."""
        return {"temperature": self.temperature, **per_class("bias", self.bias)}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return s / T + c."""
        return op.add(op.mul(logits, op.const(1 / self.temperature)), op.const(self.bias))

    def folded(self) -> Folding:
        """Return the factor 1 / T and the shift c."""
        return Folding(1 / self.temperature, self.bias)

    @classmethod
    def fit(cls, reduce: Reduce, *, start: Bias | None = None) -> Bias:
        """Fit T and c.

        Args:
            reduce: runs over chunks of (logits, labels).
            start: a map whose T and c are tried first.

        Raises:
            DataError: every sample is right (T -> 0), the logits do not differ, or no T > 0 fits.
        """
        size = shape_of(reduce)
        if not size.spread > 0:
            raise DataError("bias: the logits do not differ from one another; check the head and the preprocessing")
        if size.gap == 0:
            raise DataError(
                "bias: the NLL falls all the way to T = 0, because every calibration sample is classified right; "
                "expected data with some errors (were these samples trained on?), or use --map none"
            )
        # in a unit of the logits' own size: x = s / spread, s' = (1 + d) x + c, and d has no ridge
        begin = (np.array([size.spread / start.temperature - 1]), start.bias) if start else None
        slope, bias = fit_scores(reduce, Scalar(), size.spread, (0.0, _RIDGE / size.samples), start=begin)
        beta = (1 + float(slope[0])) / size.spread
        if not (beta > 0 and np.all(np.isfinite(bias))):
            raise DataError(
                "bias: the class frequencies explain the labels better than the logits do; check the labels, the "
                "class order and the preprocessing"
            )
        return cls(1 / beta, bias)
