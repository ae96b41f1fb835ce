"""Anchored refit of the last layer: as near to the trained one as the data allow.

    min over W', b' of  mean NLL(W' z + b') + lambda ( |(W' - W/T) S^(1/2)|^2 + |b' - b/T|^2 )
    s' = s / T + D z + c          folded: W' = W / T + D, b' = b / T + c

T is the temperature of these samples, and S the diagonal of the second moments of the features. lambda = infinity is
temperature scaling. The fit goes along a path of lambdas, the largest first; cross-validation chooses among them. Above
2^28 numbers of features, an evenly spaced part of the samples is fitted.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.maps.base import CalibrationMap, Folding, Reduce, SampleColumns, without_features
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.multinomial import principal_axes, ridge_path
from tna_onnx.numerics.ops import Ops, to_host, total_weight, weigh

FloatArray = NDArray[np.float32]

# Numbers of features that are fitted at most: 1 GB.
_MAX_NUMBERS = 2**28

# The strength of `fit` alone, without cross-validation: the middle of the path.
_MIDDLE = 1e-2


@dataclass(frozen=True, eq=False)
class Refit(CalibrationMap):
    """A temperature, and what is added to weight and bias."""

    temperature: float  # T
    strength: float  # lambda
    delta: FloatArray  # (C, n) D
    shift: FloatArray  # (C,) c

    name: ClassVar[str] = "refit"
    title: ClassVar[str] = "last layer fitted again"
    rank: ClassVar[int] = 150
    positive: ClassVar[str] = "temperature"
    weighted: ClassVar[bool] = True
    soft: ClassVar[bool] = True
    foldable: ClassVar[bool] = True
    needs_features: ClassVar[bool] = True

    strengths: ClassVar[tuple[float, ...]] = (1.0, 0.2, 0.05, 0.01, 2e-3, 5e-4, 1e-4)
    """The path: from all but a temperature to all but free."""

    @property
    def brief(self) -> dict[str, Any]:
        """The temperature, the strength, and the size of what is added."""
        return {
            "temperature": self.temperature,
            "strength": self.strength,
            "weight_change": float(np.linalg.norm(self.delta)),
            "bias_change": float(np.linalg.norm(self.shift)),
        }

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:
        """Return s / T + D z + c."""
        moved = op.add(op.matmul(features, op.const(self.delta.T)), op.const(self.shift))
        return op.add(op.mul(logits, op.const(1 / self.temperature)), moved)

    def folded(self) -> Folding:
        """Return 1 / T, c and D."""
        return Folding(1 / self.temperature, self.shift.astype(np.float64), self.delta.astype(np.float64))

    @classmethod
    def fit(cls, reduce: Reduce, *, start: Refit | None = None) -> Refit:
        """Fit with the strength of `start`, or a middle one."""
        strength = start.strength if start else _MIDDLE
        stronger = tuple(value for value in cls.strengths if value > strength)
        return list(cls._along(reduce, (*stronger, strength)))[-1]

    @classmethod
    def fit_path(cls, reduce: Reduce) -> Iterator[Refit]:
        """Yield the fit of each of `strengths`, while the caller asks for more."""
        yield from cls._along(reduce, cls.strengths)

    @classmethod
    def _along(cls, reduce: Reduce, strengths: tuple[float, ...]) -> Iterator[Refit]:
        temperature = Temperature.fit(without_features(reduce)).temperature
        logits, labels, features = _samples(reduce)
        x, scale = _scaled(features, labels)
        if not x[:, :-1].any():
            raise DataError("refit: all features are zero; use another map")
        axes = principal_axes(x)
        scores = logits / np.float32(temperature)
        for strength, solution in zip(strengths, ridge_path(scores, labels, axes, strengths), strict=True):
            change = solution @ axes.axes.T
            yield cls(temperature, strength, change[:, :-1] / scale, change[:, -1])


def _samples(reduce: Reduce) -> tuple[FloatArray, Any, FloatArray]:
    """Return logits (N, C), labels (N,) and features (N, n) of evenly spaced samples, as many as fit into memory.

    They are the same ones, however all samples are cut in chunks.
    """
    size = reduce(_size)
    step = max(1, -(-int(size[1]) // _MAX_NUMBERS))
    logits, labels, features = reduce(functools.partial(_every, step), np.arange(int(size[0]))).columns
    return logits, labels, features


def _size(_: Any, labels: NDArray[np.int64], features: Any) -> NDArray[np.int64]:
    """Return the samples, and the numbers in their features."""
    return np.array([len(labels), len(labels) * features.shape[1]])


def _every(step: int, logits: Any, labels: NDArray[np.int64], features: Any, index: NDArray[np.intp]) -> SampleColumns:
    """Take every step-th sample."""
    rows = np.flatnonzero(index % step == 0)
    # chosen where they are: few of many are brought to the host
    s, z = (np.asarray(to_host(values[rows]), np.float32) for values in (logits, features))
    return SampleColumns.of(s, labels[rows], z)


def _scaled(features: FloatArray, labels: Any) -> tuple[FloatArray, FloatArray]:
    """Return features of unit second moment with a column of ones, (N, n + 1), and the scale (n,)."""
    square = np.sum(weigh(np.square(features), labels), axis=0, dtype=np.float64) / total_weight(labels)
    scale = np.sqrt(square).astype(np.float32)
    # a feature that is always zero has no say
    scale[scale == 0] = 1
    return np.hstack([features / scale, np.ones((len(features), 1), np.float32)]), scale
