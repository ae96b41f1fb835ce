"""Structured vector and matrix scaling (SVS, SMS): factors of the centred logits, drawn towards one temperature.

    x = P s / T,  P = I - 11'/C        s' = (I + diag v) x + c,        s' = (I + diag v + M) x + c

T is the temperature of TS; M has a diagonal of zeros. v, M and c minimise the mean NLL + (C / N) (|v|^2 + |c|^2)
+ (C (C - 1) / N) |M|^2, so that few samples give TS. Centring keeps the maps linear, so they fold; the source takes
log softmax(s / T) for x, which does not.
Source: Berta, Holzmueller, Jordan & Bach (2026), "Structured matrix scaling for multi-class calibration".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.maps.base import CalibrationMap, Folding, Reduce, common, per_class
from tna_onnx.maps.bias import require_digits
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.multinomial import Diagonal, Matrix, fit_scores, shape_of
from tna_onnx.numerics.ops import Ops


@dataclass(frozen=True, eq=False)
class VectorScaling(CalibrationMap):
    """Centred logits divided by a temperature, times a factor and plus a bias for each class."""

    temperature: float  # T
    vector: NDArray[np.float64]  # (C,) v; the factors are 1 + v
    bias: NDArray[np.float64]  # (C,) c

    name: ClassVar[str] = "svs"
    title: ClassVar[str] = "a factor for each class"
    rank: ClassVar[int] = 90
    platt_of_two: ClassVar[bool] = True
    positive: ClassVar[str] = "temperature"
    weighted: ClassVar[bool] = True
    starts_anywhere: ClassVar[bool] = True
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
        """Fit T, then v and c."""
        temperature = Temperature.fit(reduce, start=start).temperature
        size = common(reduce, shape_of)
        require_digits(cls.name, size)
        begin = (start.vector, start.bias) if start else None
        ridge = size.classes / size.samples
        vector, bias = fit_scores(reduce, Diagonal(), size, temperature, (ridge, ridge), start=begin)
        return cls(temperature, vector, bias)


MAX_CLASSES = 2000
"""Most classes: four million parameters. The search for them holds about ten arrays of that size in float64."""


@dataclass(frozen=True, eq=False)
class MatrixScaling(CalibrationMap):
    """Centred logits divided by a temperature, times a matrix, plus a bias for each class."""

    temperature: float  # T
    matrix: NDArray[np.float64]  # (C, C) diag v + M; logits are multiplied by the identity plus this
    bias: NDArray[np.float64]  # (C,) c

    name: ClassVar[str] = "sms"
    title: ClassVar[str] = "a matrix of factors"
    rank: ClassVar[int] = 140
    platt_of_two: ClassVar[bool] = True
    positive: ClassVar[str] = "temperature"
    weighted: ClassVar[bool] = True
    starts_anywhere: ClassVar[bool] = True
    # the square of so many parameters; beyond, a fit takes minutes
    max_classes_of_auto: ClassVar[int | None] = 100
    # law 5: W' = (I + diag v + M) P W / T
    soft: ClassVar[bool] = True
    foldable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a matrix that is not (C, C)."""
        super().__post_init__()
        if self.matrix.shape != 2 * self.bias.shape:
            raise DataError(f"{self.name}: expected a matrix of {len(self.bias)} classes, got {self.matrix.shape}")

    @property
    def brief(self) -> dict[str, Any]:
        """The temperature, v, the norm and the largest entry of M, and the bias."""
        diagonal = np.diag(self.matrix)
        off_diagonal = self.matrix - np.diag(diagonal)
        row, column = np.unravel_index(np.abs(off_diagonal).argmax(), off_diagonal.shape)
        return {
            "temperature": self.temperature,
            **per_class("vector", diagonal),
            "matrix_norm": float(np.linalg.norm(off_diagonal)),
            "matrix_largest": float(off_diagonal[row, column]),
            "matrix_largest_classes": [int(row), int(column)],
            **per_class("bias", self.bias),
        }

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return (I + diag v + M) x + c."""
        # centred first: in float16 a large common part would leave no digits for the rest
        centred = op.add(logits, op.mul(op.mean(logits), op.const(-1.0)))
        return op.add(op.matmul(centred, op.const(self._factors.T)), op.const(self.bias))

    def folded(self) -> Folding:
        """Return the matrix (I + diag v + M) P / T and the shift c."""
        # A P = A - (A 1) 1' / C: each row less its mean
        return Folding(self._factors - self._factors.mean(axis=1, keepdims=True), self.bias)

    @classmethod
    def fit(cls, reduce: Reduce, *, start: MatrixScaling | None = None) -> MatrixScaling:
        """Fit T, then v, M and c."""
        size = common(reduce, shape_of)
        if size.classes > MAX_CLASSES:
            raise DataError(
                f"sms: a matrix for {size.classes} classes is too large to fit; expected at most {MAX_CLASSES}; "
                "use --map svs, which has one factor per class"
            )
        temperature = Temperature.fit(reduce, start=start).temperature
        require_digits(cls.name, size)
        begin = (start.matrix, start.bias) if start else None
        ridge = size.classes / size.samples
        strength = np.full((size.classes, size.classes), ridge * (size.classes - 1))
        np.fill_diagonal(strength, ridge)
        matrix, bias = fit_scores(reduce, Matrix(), size, temperature, (strength, ridge), start=begin)
        return cls(temperature, matrix, bias)

    @property
    def _factors(self) -> NDArray[np.float64]:
        """(C, C) (I + diag v + M) / T."""
        factors: NDArray[np.float64] = (np.eye(len(self.bias)) + self.matrix) / self.temperature
        return factors
