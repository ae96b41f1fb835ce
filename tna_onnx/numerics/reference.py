"""What a calibrated model said of labelled samples, and what follows for N others without labels: `Reference`.

Where only class frequencies change, m = K' q: m is the mean of the new probabilities P, row y of K that of class y, q
are the new frequencies. A statistic u (whether a prediction is right, say) has class means c, and with v = K^-1 c its
residual e = u - v P has the mean 0 in each class. So v m is the expected accuracy, and mean e = 0 tests the rest, both
with the variance V = sum_y q_y var_y(e) / N + q_y^2 var_y(e) / N_y, and correlations of e within classes. The interval
of the accuracy is Wilson's for the labelled samples, so that few wrong ones among these do not make it too narrow.

Sources: Lipton, Wang & Smola (2018), section 4; Hansen (1982), section 4 (the test of overidentification).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.numerics.conformal import LEVEL, Z
from tna_onnx.numerics.metrics import Estimate
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


@dataclass(frozen=True, eq=False)
class Reference:
    """Class means of probabilities and statistics; the first statistic is whether a prediction is right."""

    counts: FloatArray  # (C,) labelled samples of each class
    probabilities: FloatArray  # (C, C) K, a row for each class
    means: FloatArray  # (C, 1 + d) of statistics
    variances: FloatArray  # (C, 1 + d) of their residuals
    correlations: FloatArray  # (d, d) of the residuals of all but the first, within classes
    edges: FloatArray  # confidences that part the labelled samples
    features: str = ""  # the tensor of the features whose projections are statistics; empty without

    def __post_init__(self) -> None:
        """Refuse numbers that no samples have."""
        c, d = len(self.counts), len(self.correlations)
        shapes = ((c,), (c, c), (c, 1 + d), (c, 1 + d), (d, d), (len(self.edges),))
        arrays = [getattr(self, field.name) for field in fields(self)[:-1]]
        if not (
            all(a.shape == shape and np.isfinite(a).all() for a, shape in zip(arrays, shapes, strict=True))
            and 2 <= c <= MOST_CLASSES
            and len(self.edges) < d <= _MOST_STATISTICS
            and isinstance(self.features, str)
            and np.all(self.counts >= LEAST)
            and np.all(self.probabilities >= 0)
            and np.allclose(self.probabilities.sum(axis=1), 1, atol=1e-3)
            and np.linalg.matrix_rank(self.probabilities) == c
            and np.all(np.abs(self.means[:, 0] - 0.5) <= 0.5 + 1e-6)
            and np.all(self.variances >= 0)
            and np.all(np.abs(self.correlations) <= 1 + 1e-3)
            and np.all(np.diff(self.edges) > 0)
        ):
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
        self, probabilities: NDArray[Any], projected: FloatArray | None = None
    ) -> tuple[Estimate, FloatArray, float]:
        """Return what follows for (N, C) probabilities, and `projections` of features, of samples without labels.

        The accuracy on these samples, if only class frequencies have changed; these, (C, 3), with the ends of their
        intervals; and the p-value of the test that nothing else has changed.
        """
        values = _statistics(probabilities, self.edges, projected)
        if values.shape[1] != len(self.correlations):
            raise DataError("the reference of its calibration is of other features")
        mean = probabilities.mean(axis=0, dtype=np.float64)
        q = black_box(self.probabilities.T, mean)
        weights = np.linalg.solve(self.probabilities, self.means)
        accuracy = float(np.clip(mean @ weights[:, 0], 0, 1))
        of_reference = q**2 / self.counts
        shares = q / len(values) + of_reference
        weight = Z**2 * of_reference.sum()
        middle = (accuracy + weight / 2) / (1 + weight)
        reach = np.sqrt(Z**2 * (shares @ self.variances[:, 0]) + weight**2 / 4) / (1 + weight)
        low, high = np.clip([middle - reach, middle + reach], 0, 1).tolist()
        residuals = np.mean(values - probabilities @ weights[:, 1:], axis=0)
        p = self._p(residuals, np.sqrt(shares @ self.variances[:, 1:]))
        return Estimate(accuracy, low, high, LEVEL), self._frequencies(probabilities, q), p

    def _frequencies(self, probabilities: NDArray[Any], q: FloatArray) -> FloatArray:
        """Return frequencies with their intervals.

        A probability vector with the mean c has at most the covariance of its labels, diag c - c c'.
        """
        solve = np.linalg.inv(self.probabilities)  # a column for each class
        new = (probabilities @ solve).var(axis=0) / len(probabilities)
        variances = self.probabilities @ solve**2 - (self.probabilities @ solve) ** 2
        error = Z * np.sqrt(new + (q**2 / self.counts) @ variances)
        return np.asarray(np.clip(np.stack([q, q - error, q + error], axis=1), 0, 1), np.float64)

    def _p(self, residuals: FloatArray, spread: FloatArray) -> float:
        """Return how often mean residuals (d,) of this spread are as far from 0 if only q has changed."""
        from scipy import stats  # noqa: PLC0415 - heavy

        varies = spread > 0
        if not varies.any():
            return 1.0
        values, axes = np.linalg.eigh(self.correlations[np.ix_(varies, varies)])
        varying = values > _RANK * len(values)
        distance = np.sum((residuals[varies] / spread[varies] @ axes[:, varying]) ** 2 / values[varying])
        return max(float(stats.chi2.sf(distance, np.count_nonzero(varying))), _SMALLEST)

    def text(self) -> str:
        """Return the reference as JSON of six digits, for the metadata of a file."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        short = np.vectorize(lambda number: float(f"{number:.6g}"), otypes=[float])
        arrays = {name: short(value).tolist() for name, value in values.items() if name != "features"}
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
