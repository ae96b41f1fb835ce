"""Isotonic regression one-vs-all (IROvA): each class's probability through its own non-decreasing function.

    g_c(p) = f_c(p_c) + 1e-6 p_c        p' = g / sum_c g        result log p'

with p = softmax(s) and f_c the isotonic regression of [y = c] on p_c. The tiny multiple of p keeps a row from vanishing
where all f_c are zero (Zhang et al. 2020). f_c, linear between knots (x_k, y_k), is written as a chain of ramps:

    f_c(p) = y_0c + sum_k clip(a_kc p + b_kc, 0, 1) d_kc,    a = 1 / (x_{k+1} - x_k), b = -a x_k, d = y_{k+1} - y_k

with vectors of shape [C]; classes with fewer knots have ramps of height zero. Source: Zadrozny & Elkan (2001, 2002).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tna_onnx.maps.base import Reduce
from tna_onnx.numerics.isotonic import isotonic_knots
from tna_onnx.numerics.ops import ArrayOps, Ops, to_host

__all__ = ["IsotonicOneVsAll"]

# Multiple of p in g; the value of Zhang et al. (2020).
_MULTIPLE = 1e-6


@dataclass(frozen=True)
class IsotonicOneVsAll:
    """Knots per class: `knots[c]` is the pair (x, y) of that class's piecewise linear function."""

    knots: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...]

    name: ClassVar[str] = "irova"
    # each class has a function of its own, and may overtake another
    keeps_order: ClassVar[bool] = False
    foldable: ClassVar[bool] = False
    needs_features: ClassVar[bool] = False
    binary: ClassVar[bool] = False
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @property
    def brief(self) -> dict[str, Any]:
        """How many knots there are, and how many a class has at most."""
        sizes = [len(x) for x, _ in self.knots]
        return {"knots": sum(sizes), "most_knots_of_a_class": max(sizes)}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return log p'."""
        p = op.softmax(logits)
        multiple = max(_MULTIPLE, 16 * op.tiny)  # float16 holds nothing smaller to full precision
        total = op.add(op.mul(p, op.const(multiple)), op.const(np.array([y[0] for _, y in self.knots])))
        # f_c as the chain of ramps of the module docstring
        for slope, offset, height in self._ramps():
            ramp = op.clip(op.add(op.mul(p, op.const(slope)), op.const(offset)), 0.0, 1.0)
            total = op.add(total, op.mul(ramp, op.const(height)))
        # sum over classes = mean of C times the values; the mean first would underflow in float16
        share = op.div(total, op.mean(op.mul(total, op.const(float(len(self.knots))))))
        # law 1: logits again. A share that underflowed keeps a finite logarithm
        return op.log(op.clip(share, op.tiny, 1.0))

    def _ramps(self) -> list[tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]]:
        """Return (a, b, d), shape [C] each, for every position in the chain."""
        classes = len(self.knots)
        longest = max(len(x) for x, _ in self.knots)
        ramps = []
        for k in range(longest - 1):
            slope = np.zeros(classes)
            offset = np.zeros(classes)
            height = np.zeros(classes)
            # classes with fewer knots keep zeros: a ramp without height
            for c, (x, y) in enumerate(self.knots):
                if k + 1 < len(x):
                    slope[c] = 1 / (x[k + 1] - x[k])
                    offset[c] = -slope[c] * x[k]
                    height[c] = y[k + 1] - y[k]
            ramps.append((slope, offset, height))
        return ramps

    def folded(self) -> None:
        """Return None: the formula needs nodes of its own."""

    @classmethod
    def fit(cls, reduce: Reduce, *, start: IsotonicOneVsAll | None = None) -> IsotonicOneVsAll:  # noqa: ARG003
        """Fit each class by pooling adjacent violators; one sort per class."""
        # isotonic regression sorts: it needs the probabilities of all samples together
        pairs = reduce(_Probabilities.of)
        knots = []
        for c, column in enumerate(np.ascontiguousarray(pairs.probabilities.T)):
            x, y = isotonic_knots(column, pairs.labels == c)
            knots.append((tuple(x.tolist()), tuple(y.tolist())))
        return cls(tuple(knots))


@dataclass(frozen=True, eq=False)
class _Probabilities:
    """Probabilities (N, C) float32 and labels (N,) of some samples; `+` joins."""

    probabilities: NDArray[np.float32]
    labels: NDArray[np.int64]

    @classmethod
    def of(cls, logits: Any, labels: NDArray[np.int64], *_: Any) -> _Probabilities:
        p = ArrayOps(logits).softmax(logits)
        # float32: the probabilities of all samples are in memory together
        return cls(np.asarray(to_host(p), np.float32), labels)

    def __add__(self, other: _Probabilities) -> _Probabilities:
        return _Probabilities(
            np.concatenate([self.probabilities, other.probabilities]), np.concatenate([self.labels, other.labels])
        )
