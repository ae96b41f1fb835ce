"""What a calibrated model said of labelled samples, and what follows for N others without labels: `Reference`.

Where only class frequencies change, m = K' q: m is the mean of the new probabilities P, row y of K that of class y, q
are the new frequencies. A statistic u (whether a prediction is right, say) has class means c, and with v = K^-1 c its
residual e = u - v P has the mean 0 in each class. So v m is the expected accuracy, and mean e = 0 tests the rest, both
with the variance sum_y q_y var_y(e) / N + q_y^2 var_y(e) / N_y, and correlations of e within classes.

Sources: Lipton, Wang & Smola (2018), section 4; Hansen (1982), section 4 (the test of overidentification).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.numerics.prior_shift import black_box

FloatArray = NDArray[np.float64]

LEAST = 10
"""Labelled samples of a class at least: every number of the reference is of so many."""

MOST_CLASSES = 32
"""More classes would take more than some kB, and more labelled samples than most have."""

_QUANTILES = (0.1, 0.25, 0.5, 0.75)
_PROJECTIONS = 8
_MOST_STATISTICS = len(_QUANTILES) + 1 + _PROJECTIONS + 1
_RANK = 1e-7  # of a correlation matrix: smaller eigenvalues are rounding
_ROUNDING = 1e-3  # of a residual, in deviations of the statistic: six digits are stored
_SMALLEST = 1e-16  # of a p-value, likewise


@dataclass(frozen=True)
class Expected:
    """What follows for samples without labels."""

    accuracy: float  # expected share of right predictions, if only class frequencies have changed
    low: float  # of an interval that holds the accuracy on these samples
    high: float
    frequencies: FloatArray  # (C, 3) estimates of q with the ends of their intervals
    other_p: float  # p-value of the test that nothing else has changed


@dataclass(frozen=True, eq=False)
class Reference:
    """Class means of probabilities and statistics; the first statistic is whether a prediction is right.

    Raises:
        DataError: numbers that no samples have.
    """

    counts: FloatArray  # (C,) labelled samples of each class
    probabilities: FloatArray  # (C, C) K, a row for each class
    means: FloatArray  # (C, 1 + d) of statistics
    variances: FloatArray  # (C, 1 + d) of their residuals
    correlations: FloatArray  # (d, d) of the residuals of all but the first, within classes
    edges: FloatArray  # confidences that part the labelled samples
    features: str = ""  # the tensor of the features whose projections are statistics; empty without

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        c, d = len(self.counts), len(self.correlations)
        shapes = ((c,), (c, c), (c, 1 + d), (c, 1 + d), (d, d), (len(self.edges),))
        arrays = [getattr(self, field.name) for field in fields(self)[:-1]]
        holds = [a.shape == shape and np.isfinite(a).all() for a, shape in zip(arrays, shapes, strict=True)]
        holds += [2 <= c <= MOST_CLASSES, 1 <= d <= _MOST_STATISTICS, isinstance(self.features, str)]
        if not all(holds):
            raise DataError("the reference of its calibration is not made of finite numbers for each class")
        holds = [
            np.all(self.counts >= LEAST),
            np.all(self.probabilities >= 0) and np.allclose(self.probabilities.sum(axis=1), 1, atol=1e-3),
            np.linalg.matrix_rank(self.probabilities) == c,
            np.all(np.abs(self.means[:, 0] - 0.5) <= 0.5 + 1e-6),
            np.all(self.variances >= 0),
            np.all(np.abs(self.correlations) <= 1 + 1e-3),
            np.all(np.diff(self.edges) > 0) and len(self.edges) <= len(_QUANTILES),
        ]
        if not all(holds):
            raise DataError("the reference of its calibration holds numbers that no samples have")

    @classmethod
    def fit(
        cls,
        probabilities: NDArray[Any],
        labels: NDArray[np.int64],
        projected: FloatArray | None = None,
        *,
        name: str = "",
    ) -> Reference:
        """Reduce (M, C) probabilities of labelled samples, and `projections` of their features, which `name` names.

        Every class has at least `LEAST` samples.
        """
        confidence = probabilities.max(axis=1)
        # between values that samples have, which a runtime may round either way
        edges = np.unique(np.round(np.quantile(confidence, _QUANTILES, method="lower"), 4)) + 5e-5
        below = np.count_nonzero(confidence[:, None] <= edges, axis=0)
        edges = edges[(below >= LEAST) & (below <= len(labels) - LEAST)]
        right = probabilities.argmax(axis=1) == labels
        values = np.column_stack([right, _statistics(probabilities, edges, projected)])
        counts = np.bincount(labels, minlength=probabilities.shape[1]).astype(np.float64)
        of_class = np.zeros((len(counts), len(labels)))
        of_class[labels, np.arange(len(labels))] = 1 / counts[labels]
        rows, means = of_class @ probabilities, of_class @ values
        residuals = values - probabilities @ np.linalg.solve(rows, means)
        variances = (of_class @ residuals**2) * (counts / (counts - 1))[:, None]
        # what the probabilities determine has residuals of rounding alone
        variances[:, residuals.std(axis=0) <= _ROUNDING * values.std(axis=0)] = 0
        scale = np.sqrt(variances[labels, 1:])
        within = np.divide(residuals[:, 1:], scale, out=np.zeros_like(scale), where=scale > 0)
        return cls(counts, rows, means, variances, within.T @ within / len(labels), edges, name)

    def expected(
        self, probabilities: NDArray[Any], projected: FloatArray | None = None, *, level: float = 0.95
    ) -> Expected:
        """Return what follows for (N, C) probabilities, and `projections` of features. `level`: of intervals."""
        n = len(probabilities)
        z = NormalDist().inv_cdf((1 + level) / 2)
        mean = probabilities.mean(axis=0, dtype=np.float64)
        q = black_box(self.probabilities.T, mean)
        weights = np.linalg.solve(self.probabilities, self.means)
        spread = self.variances[:, 0]
        error = z * np.sqrt(q @ spread / n + q**2 @ (spread / self.counts))
        accuracy = float(mean @ weights[:, 0])
        accuracy, low, high = np.clip([accuracy, accuracy - error, accuracy + error], 0, 1).tolist()
        values = _statistics(probabilities, self.edges, projected)
        if values.shape != (n, len(self.correlations)):
            raise DataError("the reference of its calibration is of other features")
        residuals = values - probabilities @ weights[:, 1:]
        return Expected(accuracy, low, high, self._frequencies(probabilities, q, z), self._p(residuals, q))

    def _frequencies(self, probabilities: NDArray[Any], q: FloatArray, z: float) -> FloatArray:
        """Return frequencies with their intervals.

        A probability vector with the mean c has at most the covariance of its labels, diag c - c c'.
        """
        solve = np.linalg.inv(self.probabilities)  # a column for each class
        new = (probabilities @ solve).var(axis=0) / len(probabilities)
        most = self.probabilities @ solve**2 - (self.probabilities @ solve) ** 2
        error = z * np.sqrt(new + (q**2 / self.counts) @ most)
        return np.asarray(np.clip(np.stack([q, q - error, q + error], axis=1), 0, 1), np.float64)

    def _p(self, residuals: FloatArray, q: FloatArray) -> float:
        """Return how often residuals of new samples, (N, d), have means as far from 0 if only q has changed."""
        from scipy import stats  # noqa: PLC0415 - heavy

        variances = self.variances[:, 1:]
        spread = np.sqrt(q @ variances / len(residuals) + q**2 @ (variances / self.counts[:, None]))
        varies = spread > 0
        if not varies.any():
            return 1.0
        values, axes = np.linalg.eigh(self.correlations[np.ix_(varies, varies)])
        kept = values > _RANK * len(values)
        scaled = residuals.mean(axis=0)[varies] / spread[varies]
        distance = np.sum((scaled @ axes[:, kept]) ** 2 / values[kept])
        return max(float(stats.chi2.sf(distance, np.count_nonzero(kept))), _SMALLEST)

    def text(self) -> str:
        """Return the reference as JSON of six digits, for the metadata of a file."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        arrays = {name: _short(value.tolist()) for name, value in values.items() if name != "features"}
        return json.dumps({**arrays, "features": self.features}, separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> Reference:
        """Return the reference that `text` wrote."""
        try:
            values = json.loads(text)
            features = values.pop("features")
            return cls(**{name: np.array(value, np.float64) for name, value in values.items()}, features=features)
        except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
            raise DataError(f"the reference of its calibration is not what calibrate writes ({error})") from error


def projections(features: NDArray[Any]) -> FloatArray:
    """Return (N, m) statistics of features (N, ...): their mean square, and their projections on fixed directions.

    These are the first rows of the discrete cosine transform, which need no storage.
    """
    if features.dtype.kind != "f" or features.ndim < 2:
        raise DataError("the reference of its calibration is not of features")
    z = np.asarray(features, np.float64).reshape(len(features), -1)
    n = z.shape[1]
    rows = np.outer(np.arange(min(_PROJECTIONS, n)), np.arange(n) + 0.5)
    return np.column_stack([np.mean(z**2, axis=1), z @ np.cos(np.pi / n * rows).T / n])


def _statistics(probabilities: NDArray[Any], edges: FloatArray, projected: FloatArray | None) -> FloatArray:
    """Return (N, d) statistics of probabilities, and the projections."""
    columns = [probabilities.max(axis=1)[:, None] <= edges, np.sum(np.square(probabilities, dtype=np.float64), axis=1)]
    if projected is not None:
        columns.append(projected)
    return np.column_stack(columns).astype(np.float64)


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(item) for item in value]
    return float(f"{value:.6g}")
