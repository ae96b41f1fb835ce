"""Isotonic regression one-vs-all as published (IROvA): a non-decreasing function f_c of each class's own probability.

    p = softmax(s)        p'_c = (f_c(p_c) + 1e-9 p_c) / sum of these        result log(f_c(p_c) + 1e-9 p_c)

f_c is the isotonic regression of [y = c] on p_c: constant on blocks of pooled samples, linear between them, constant
outside. The small term keeps a class that f_c gives nothing from an infinite loss, and is that of Zhang et al. Between
two blocks f_c is a ramp. It is at least 2^-16 of its place wide (6e-5 in float16), so that rounding moves it by little.

`isotonic` (`maps.isotonic`) is what to take for a model in use: a temperature first, cells, and a prior. This one is
the method of the tables that compare with it, and `auto` does not look at it.
Source: B. Zadrozny, C. Elkan (2002), "Transforming classifier scores into accurate multiclass probability estimates",
section 4; J. Zhang, B. Kailkhura, T. Han (2020), "Mix-n-Match", section 4.1 and its code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tna_onnx.maps.base import CalibrationMap, Reduce
from tna_onnx.maps.isotonic import Probabilities
from tna_onnx.numerics.ops import Ops

__all__ = ["IsotonicOneVsAll", "Steps"]

Steps = tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]
"""(last, first, value): block k has the value `value[k]`, ends at the probability `last[k]`, and the next one begins at
`first[k]`. K values for K blocks, K - 1 of the others."""

_KEPT = 1e-9

# A probability is rounded by 2^-24 of itself in float32, its logits by as much or some more: 1 % of a ramp.
_NARROWEST = 2.0**-16

# The slope of a ramp is at most the inverse of the product, which float32 can hold.
_LEAST = 1e-30


@dataclass(frozen=True)
class IsotonicOneVsAll(CalibrationMap):
    """Log of each class's function of its probability.

    Attributes:
        steps: of each class.
    """

    steps: tuple[Steps, ...]

    name: ClassVar[str] = "irova"
    title: ClassVar[str] = "isotonic regression, one against all"
    rank: ClassVar[int] = 115
    # each class has a function of its own, and may overtake another
    keeps_order: ClassVar[bool] = False
    max_classes_of_auto: ClassVar[int | None] = 0

    @property
    def brief(self) -> dict[str, Any]:
        """How many blocks there are, and how many a class has at most."""
        sizes = [len(value) for _, _, value in self.steps]
        return {"blocks": sum(sizes), "most_blocks_of_a_class": max(sizes)}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return log p' up to a constant of each row."""
        p = op.softmax(logits)
        least = max(_LEAST, op.tiny)
        total = op.add(op.mul(p, op.const(_KEPT)), op.const(np.array([value[0] for _, _, value in self.steps])))
        for k in range(max(len(value) for _, _, value in self.steps) - 1):
            slope = np.zeros(len(self.steps))
            offset = np.zeros(len(self.steps))
            height = np.zeros(len(self.steps))
            for c, (last, first, value) in enumerate(self.steps):
                if k < len(last):
                    middle = (first[k] + last[k]) / 2
                    slope[c] = 1 / max(first[k] - last[k], _NARROWEST * middle, least)
                    offset[c] = 0.5 - slope[c] * middle
                    height[c] = value[k + 1] - value[k]
            ramp = op.clip(op.add(op.mul(p, op.const(slope)), op.const(offset)), 0.0, 1.0)
            total = op.add(total, op.mul(ramp, op.const(height)))
        # rounding may make the sum a little more than 1
        return op.log(op.clip(total, op.tiny, 2.0))

    def folded(self) -> None:
        """Return None: the formula needs nodes of its own."""

    @classmethod
    def fit(cls, reduce: Reduce, *, start: IsotonicOneVsAll | None = None) -> IsotonicOneVsAll:  # noqa: ARG003
        """Fit each class by pooling adjacent violators."""
        # isotonic regression sorts: it needs the probabilities of all samples together
        pairs = reduce(Probabilities.of_logits)
        columns = enumerate(pairs.probabilities.T)
        return cls(tuple(_steps(column, pairs.labels == c) for c, column in columns))


def _steps(probability: NDArray[np.float32], outcome: NDArray[np.bool_]) -> Steps:
    """Return the blocks of the isotonic regression of `outcome` (N,) on `probability` (N,)."""
    from scipy.optimize import isotonic_regression  # noqa: PLC0415 - heavy

    # samples of one probability are one, with their mean
    x, group, count = np.unique(probability, return_inverse=True, return_counts=True)
    mean = np.bincount(group, outcome, len(x)) / count
    fitted = isotonic_regression(mean, weights=count)
    starts = fitted.blocks[:-1]
    ends = fitted.blocks[1:] - 1
    floats = x.astype(np.float64)
    return tuple(floats[ends[:-1]].tolist()), tuple(floats[starts[1:]].tolist()), tuple(fitted.x[starts].tolist())
