"""Maps that are linear in the logits: a bias for each class, factors for classes; and biases above a noise floor.

    bias          s' = s / T + c
    svs, sms      s' = (I + diag v) x + c,    s' = (I + diag v + M) x + c,    x = (I - 11'/C) s / T
    bias-floor    p = (1 - e) softmax(s / T + c) + e / C

All minimise the mean NLL with a prior on what is beside the temperature; the classes say which.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.maps.base import CalibrationMap, FloatArray, Folding, Reduce, common, per_class
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.multinomial import Diagonal, Matrix, Scalar, Shape, fit_above_floor, fit_scores, shape_of
from tna_onnx.numerics.ops import ArrayOps, Blocked, Ops, class_counts, namespace, to_host, total_weight, weigh

# N times the ridge, 1 / (2 tau^2), of the first fit and the range of the second: tau = 0.32, 0.02 and 1.
# A bias of 1 makes a class nearly three times as frequent; one of 0.02 moves no probability by more than half a point.
_FIRST_RIDGE = 5.0
_MAX_RIDGE = 1000.0
_MIN_RIDGE = 0.5

# Logits so far apart are those of a masked class, if errors are by so much less: that is the rounding of float32.
_MASKED = 1e4
_DIGITS = 1e-6


class _Linear(CalibrationMap):
    """What maps that are linear in the logits, with a bias for each class, have in common."""

    platt_of_two: ClassVar[bool] = True
    positive: ClassVar[str] = "temperature"
    weighted: ClassVar[bool] = True
    soft: ClassVar[bool] = True
    starts_anywhere: ClassVar[bool] = True
    foldable: ClassVar[bool] = True


@dataclass(frozen=True, eq=False)
class Bias(_Linear):
    """Logits divided by a temperature, plus a bias for each class, which may have become more or less frequent.

    T and c minimise the mean NLL + |c|^2 / (2 N tau^2), with

        tau^2 = max(0, |g|^2 - sum h / N) / |h|^2 within 0.02 to 1,    g = mean (onehot(y) - q),  h = mean q (1 - q)

    and q = softmax(s / T) with T of a first fit at tau = 0.32. To first order g = h c, with a variance of h / N from
    the labels alone, so tau is small where no class has changed. A class without a sample keeps a finite bias, and
    sum c = 0.
    Source: Alexandari, Kundaje & Shrikumar (2020), "Maximum Likelihood with Bias-Corrected Calibration"; our prior.
    """

    temperature: float  # T
    bias: NDArray[np.float64]  # (C,) c

    name: ClassVar[str] = "bias"
    title: ClassVar[str] = "temperature and a bias for each class"
    rank: ClassVar[int] = 80
    few_parameters: ClassVar[bool] = True

    @property
    def brief(self) -> dict[str, Any]:
        """The temperature and the bias."""
        return {"temperature": self.temperature, **per_class("bias", self.bias)}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return s / T + c."""
        return op.add(op.mul(logits, op.const(1 / self.temperature)), op.const(self.bias))

    def folded(self) -> Folding:
        """Return the factor 1 / T and the shift c: (W z + b) / T + c = (W / T) z + (b / T + c)."""
        return Folding(1 / self.temperature, self.bias)

    @classmethod
    def fit(cls, reduce: Reduce, *, start: Bias | None = None) -> Bias:
        """Fit T and c."""
        size, first, ridge = common(reduce, first_fit, start)
        slope, bias = fit_scores(reduce, Scalar(), size, size.spread, (0.0, ridge), start=first)
        return cls(temperature_of(slope, bias, size), bias)


def require_digits(name: str, size: Shape) -> None:
    """Refuse logits of which one class is so far below that nothing is left of what the others differ by."""
    if size.spread > _MASKED and size.gap < _DIGITS * size.spread:
        raise DataError(
            f"{name}: a class has logits that are {size.spread:.0e} below the others, which leaves these too few "
            "digits; mask it with -10,000, or use --map ts or ets"
        )


def first_fit(
    reduce: Reduce, start: Bias | NoiseFloor | None = None
) -> tuple[Shape, tuple[FloatArray, FloatArray], float]:
    """Return the size of the samples, (d, c) of a fit with a usual ridge, and the ridge 1 / (2 N tau^2) of the samples.

    d is in a unit of the logits' own size, x = P s / spread and s' = (1 + d) x + c, and has no ridge.
    """
    size = common(reduce, shape_of)
    if not size.spread > 0:
        raise DataError("bias: the logits do not differ from one another; check the head and the preprocessing")
    if size.gap == 0:
        raise DataError(
            "bias: the NLL falls all the way to T = 0, because every calibration sample is classified right; "
            "expected data with some errors (were these samples trained on?), or use --map none"
        )
    require_digits("bias", size)
    begin = None
    if start:
        begin = (np.array([size.spread / start.temperature - 1]), start.bias)
    first = fit_scores(reduce, Scalar(), size, size.spread, (0.0, _FIRST_RIDGE / size.samples), start=begin)
    return size, first, _ridge(reduce, (1 + float(first[0][0])) / size.spread) / size.samples


def temperature_of(slope: FloatArray, bias: FloatArray, size: Shape) -> float:
    """Return T of a fitted d, (1,)."""
    beta = (1 + float(slope[0])) / size.spread
    if not (beta > 0 and np.all(np.isfinite(bias))):
        raise DataError(
            "bias: the class frequencies explain the labels better than the logits do; check the labels, the "
            "class order and the preprocessing"
        )
    return 1 / beta


def _ridge(reduce: Reduce, beta: float) -> float:
    """Return 1 / (2 tau^2), from the samples at 1 / T."""
    count, *sums = reduce(Blocked(functools.partial(_frequencies, beta))).tolist()
    g, h = np.split(np.array(sums) / count, 2)
    excess = float(g @ g) - float(h.sum()) / count
    if excess <= 0:
        return _MAX_RIDGE
    return float(np.clip(float(h @ h) / (2 * excess), _MIN_RIDGE, _MAX_RIDGE))


def _frequencies(beta: float, logits: Any, labels: NDArray[np.int64], *_: Any) -> NDArray[np.float64]:
    """Sums over samples of (1, onehot(y) - q, q (1 - q)) at q = softmax(beta s)."""
    xp = namespace(logits)
    q = ArrayOps(logits).softmax(logits * beta)
    hits = class_counts(labels, logits.shape[1])
    by_class, spread = (to_host(xp.sum(weigh(values, labels), axis=0, dtype=xp.float64)) for values in (q, q - q * q))
    return np.concatenate([[total_weight(labels)], hits - by_class, spread])


# Where e begins; T and c begin where they end without a floor.
_FIRST_SHARE = 0.03


@dataclass(frozen=True, eq=False)
class NoiseFloor(CalibrationMap):
    """Logits divided by a temperature, plus a bias for each class, as log-probabilities mixed with a uniform share.

    For labels of which some are wrong (Huber 1964, section 3). The prior of the bias is that of `Bias`, and one keeps e
    off 0 and 1.
    """

    temperature: float  # T
    bias: NDArray[np.float64]  # (C,) c
    share: float  # e, a fraction between 0 and 1

    name: ClassVar[str] = "bias-floor"
    title: ClassVar[str] = "temperature and biases above a noise floor"
    rank: ClassVar[int] = 100
    positive: ClassVar[str] = "temperature"
    weighted: ClassVar[bool] = True
    few_parameters: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse e outside of [0, 1]."""
        super().__post_init__()
        if not 0 <= self.share <= 1:
            raise DataError(f"{self.name}: expected a share from 0 to 1, got {self.share}")

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

    @classmethod
    def fit(cls, reduce: Reduce, *, start: Bias | NoiseFloor | None = None) -> NoiseFloor:
        """Fit T, c and e together, from T and c of a fit without e."""
        size, first, ridge = common(reduce, first_fit, start)
        slope, bias, share = fit_above_floor(
            reduce, Scalar(), size, size.spread, (0.0, ridge), _FIRST_SHARE, start=first
        )
        return cls(temperature_of(slope, bias, size), bias, share)


@dataclass(frozen=True, eq=False)
class RobustBias(Bias):
    """The temperature and biases of a `NoiseFloor`, without its floor.

    For calibration labels of which some are wrong, where the samples to come are judged by the truth. On labels with
    the same errors its NLL is above that of the floor, so it is for those who know which of the two they have.
    """

    name: ClassVar[str] = "bias-robust"
    title: ClassVar[str] = "temperature and biases, robust to wrong labels"
    rank: ClassVar[int] = 82
    # the floor's probabilities of a label cannot be computed without it
    soft: ClassVar[bool] = False
    # the fit with a share ends where it is flat, which depends on where it began
    starts_anywhere: ClassVar[bool] = False
    max_classes_of_auto: ClassVar[int | None] = 0

    @classmethod
    def fit(cls, reduce: Reduce, *, start: Bias | None = None) -> RobustBias:
        """Fit T and c with a share of noise, which is then left out.

        Raises:
            DataError: as `Bias.fit`.
        """
        fitted = NoiseFloor.fit(reduce, start=start)
        return cls(fitted.temperature, fitted.bias)


def _centred(op: Ops, logits: Any) -> Any:
    """Return logits less their mean: in float16 a large common part would leave no digits for the rest."""
    return op.add(logits, op.mul(op.mean(logits), op.const(-1.0)))


@dataclass(frozen=True, eq=False)
class VectorScaling(_Linear):
    """Centred logits divided by a temperature, times a factor and plus a bias for each class: structured scaling, SVS.

    T is the temperature of TS. v and c minimise the mean NLL + (C / N) (|v|^2 + |c|^2), so that few samples give TS.
    Centring keeps the map linear, so it folds; the source takes log softmax(s / T) for x, which does not.
    Source: Berta, Holzmueller, Jordan & Bach (2026), "Structured matrix scaling for multi-class calibration".
    """

    temperature: float  # T
    vector: NDArray[np.float64]  # (C,) v; the factors are 1 + v
    bias: NDArray[np.float64]  # (C,) c

    name: ClassVar[str] = "svs"
    title: ClassVar[str] = "a factor for each class"
    rank: ClassVar[int] = 90

    @property
    def brief(self) -> dict[str, Any]:
        """The temperature, v and the bias."""
        return {"temperature": self.temperature, **per_class("vector", self.vector), **per_class("bias", self.bias)}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return (I + diag v) x + c."""
        return op.add(op.mul(_centred(op, logits), op.const((1 + self.vector) / self.temperature)), op.const(self.bias))

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
class MatrixScaling(_Linear):
    """Centred logits divided by a temperature, times a matrix, plus a bias for each class: structured scaling, SMS.

    As `VectorScaling`, with a matrix M, of a diagonal of zeros, whose penalty is (C (C - 1) / N) |M|^2.
    """

    temperature: float  # T
    matrix: NDArray[np.float64]  # (C, C) diag v + M; logits are multiplied by the identity plus this
    bias: NDArray[np.float64]  # (C,) c

    name: ClassVar[str] = "sms"
    title: ClassVar[str] = "a matrix of factors"
    rank: ClassVar[int] = 140
    # the square of so many parameters; beyond, a fit takes minutes
    max_classes_of_auto: ClassVar[int | None] = 100

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
        return op.add(op.matmul(_centred(op, logits), op.const(self._factors.T)), op.const(self.bias))

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
