"""Vector scaling of smoothed log-probabilities: for models that are very sure, and now and then very wrong.

    p = softmax(s / T)      x = log((1 - e) p + e / C)      s' = (I + diag v) x + c

e = 1 / (N + 1) is Laplace's rule of succession: after N samples, the next one may still be what none of them was. So
no sample, however wrong, costs more than log C (N + 1) before the factors. T, v and c are as in `maps.vector_scaling`,
with x in place of the centred logits: v and c minimise the mean NLL + (C / N) (|v|^2 + |c|^2).
Source: Berta, Holzmueller, Jordan & Bach (2026), "Structured matrix scaling for multi-class calibration".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tna_onnx.maps.base import CalibrationMap, Reduce, per_class
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.multinomial import Diagonal, fit_scores, shape_of
from tna_onnx.numerics.ops import ArrayOps, Ops

__all__ = ["SmoothedScaling"]


@dataclass(frozen=True, eq=False)
class SmoothedScaling(CalibrationMap):
    """Smoothed log-probabilities, times a factor and plus a bias for each class.

    Attributes:
        temperature: T.
        share: e, of the uniform distribution, a fraction.
        vector: (C,) v; the factors are 1 + v.
        bias: (C,) c.
    """

    temperature: float
    share: float
    vector: NDArray[np.float64]
    bias: NDArray[np.float64]

    name: ClassVar[str] = "svs-mix"
    rank: ClassVar[int] = 100
    # each class has a factor and a bias of its own
    keeps_order: ClassVar[bool] = False
    # a logarithm of probabilities is not linear in the logits
    foldable: ClassVar[bool] = False

    @property
    def brief(self) -> dict[str, Any]:
        """The temperature, the share, v and the bias."""
        numbers = {"temperature": self.temperature, "share": self.share}
        return {**numbers, **per_class("vector", self.vector), **per_class("bias", self.bias)}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return (I + diag v) x + c."""
        x = _smoothed(op, self.temperature, self.share, len(self.bias), logits)
        return op.add(op.mul(x, op.const(1 + self.vector)), op.const(self.bias))

    def folded(self) -> None:
        """Return None: it needs nodes of its own."""

    @classmethod
    def fit(cls, reduce: Reduce, *, start: SmoothedScaling | None = None) -> SmoothedScaling:
        """Fit T, then v and c.

        Args:
            reduce: runs over chunks of (logits, labels).
            start: a map whose T, v and c are tried first.

        Raises:
            DataError: as `Temperature.fit`.
        """
        temperature = Temperature.fit(reduce, start=start).temperature
        size = shape_of(reduce)
        share = 1 / (size.samples + 1)
        ridge = size.classes / size.samples
        begin = (start.vector, start.bias) if start else None

        def smoothed(of: Callable[..., Any], *aligned: Any) -> Any:
            return reduce(_OfSmoothed(of, temperature, share, size.classes), *aligned)

        vector, bias = fit_scores(smoothed, Diagonal(), size, None, (ridge, ridge), start=begin)
        return cls(temperature, share, vector, bias)


@dataclass(frozen=True, eq=False)
class _OfSmoothed:
    """A function of chunks that is given x in place of the logits."""

    of: Callable[..., Any]
    temperature: float
    share: float
    classes: int

    def __call__(self, logits: Any, *others: Any) -> Any:
        return self.of(_smoothed(ArrayOps(logits), self.temperature, self.share, self.classes, logits), *others)


def _smoothed(op: Ops, temperature: float, share: float, classes: int, logits: Any) -> Any:
    p = op.softmax(op.mul(logits, op.const(1 / temperature)))
    mixed = op.add(op.mul(p, op.const(1 - share)), op.const(share / classes))
    # in float16 the share may vanish: a logarithm stays finite
    return op.log(op.clip(mixed, op.tiny, 1.0))
