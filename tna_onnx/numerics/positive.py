"""P(positive) of two classes, and of each of several labels, beside how often the class, or the label, occurs.

The residual is y - p. The top label's ECE adds positives that are too sure and negatives that are too unsure with
opposite signs; that of p does not. Its p-value is that of `ChanceEce`; Spiegelhalter (1986) is the source of the
means' distance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.fitting import logistic_terms
from tna_onnx.numerics.intervals import paired_differences, quantile
from tna_onnx.numerics.metrics import (
    MIN_EACH,
    ChanceEce,
    Estimate,
    Interval,
    Positive,
    decisive_count,
    metric_value,
)
from tna_onnx.numerics.reliability import Bins, normal_cdf
from tna_onnx.numerics.residuals import CrossFit, corrected_errors
from tna_onnx.numerics.scores import SampleScores, cluster_sums, mean_and_error

FloatArray = NDArray[np.float64]

# Points of the integral over the largest ECE of several labels.
_GRID = 400

# Less is no skewness but that of rounding.
_SKEWED = 1e-6


@dataclass(frozen=True)
class Classes:
    """Names of the classes, or of the labels; none where nothing is positive."""

    names: Sequence[str] = ()
    positive: int = 1  # which of two classes


NO_CLASSES = Classes()


def positive_scores(scores: SampleScores, classes: int, positive: int = 1) -> list[SampleScores]:
    """Return scores of each label, or of the positive class: its probability as the confidence, whether it came as hit.

    Of more than two classes there are none. `scores`: of two classes, with their labels; of several labels as they are.
    """
    if scores.predicted is not None:
        return list(scores.by_label())
    if classes != 2 or scores.labels is None:
        return []
    came = scores.labels == positive
    p = np.where(came == scores.hit, scores.confidence, 1 - scores.confidence).astype(np.float32)
    return [replace(scores, confidence=p, hit=came, labels=None)]


def _positive(scores: SampleScores, name: str, bins: int, chance: ChanceEce, cross_fit: CrossFit | None) -> Positive:
    """Return P(positive) of a label as if it were alone, or of the one class, without slopes.

    `cross_fit`: corrects the ECE of cross-fitted scores.
    """
    ece = metric_value(scores, "ece", bins)
    p = min(1.0, 2 * min(chance.p(ece), _mean_p(scores)))
    if cross_fit is not None:
        ece = corrected_errors(scores, cross_fit, bins)["ece"]
    return Positive(
        name=name,
        mean=scores.mean("confidence"),
        frequency=scores.mean("hit"),
        ece=ece,
        ece_expected=chance.mean,
        ece_mean=ece,
        p=p,
    )


def _mean_p(scores: SampleScores) -> float:
    """Return how often chance alone puts mean and frequency as far apart, a fraction, on both sides.

    A count of few is skewed: with the skewness g, z of a gamma variate is 6 / g ((1 + g z / 2)^(1/3) - 1) + g / 6.
    """
    confidence = np.clip(scores.confidence.astype(np.float64), 0, 1)
    variance = scores.weigh(scores.weigh(confidence * (1 - confidence)))
    stated = float(np.sum(variance)) / scores.total**2
    residual = scores.hit - confidence
    mean, error = mean_and_error(residual, scores.clusters, scores.weights)
    if scores.clusters is None:
        error = 0.0
    error = max(error, stated**0.5)
    if not error:
        return float(abs(mean) < np.finfo(np.float32).eps)
    z = mean / error
    third = float(np.sum(scores.weigh(variance * (1 - 2 * confidence)))) / scores.total**3
    skewness = third / error**3
    if abs(skewness) > _SKEWED:
        z = 6 / skewness * (float(np.cbrt(max(1 + skewness * z / 2, 0))) - 1) + skewness / 6
    return min(1.0, 2 * float(normal_cdf(np.asarray(-z if mean > 0 else z))))


def with_slope(positive: Positive, scores: SampleScores, level: float = 0.95) -> Positive:
    """Return the same with calibration slope and intercept, where enough samples are positive, and negative.

    `scores`: those of this label. `level`: of the intervals, a fraction.
    """
    if decisive_count(scores) < MIN_EACH:
        return positive
    z = quantile((1 + level) / 2, scores.clusters, scores.weights)
    lines = slope_and_intercept(scores.confidence, scores.hit, z, scores.clusters, scores.weights)
    estimates = {name: None if line is None else Estimate(*line, level) for name, line in lines.items()}
    return replace(positive, slope=estimates["slope"], intercept=estimates["intercept"])


# Of calibration slopes: the smallest doubt that float32 tells, steps of Newton's method, and where it ends.
_CERTAIN = 2.0**-24  # float32 tells no smaller doubt
_STEPS = 50
_CONVERGED = 1e-10
_SEPARATED = 50.0  # beyond, the likelihood has no maximum: all events are certain


def slope_and_intercept(
    p: NDArray[Any],
    event: NDArray[np.bool_],
    z: float,
    clusters: NDArray[np.int64] | None = None,
    weights: NDArray[np.float64] | None = None,
) -> dict[str, tuple[float, float, float] | None]:
    """Return `slope` and `intercept`, each with the ends of its interval; None where there is no maximum.

    slope      logit P(y = 1) = a + b logit p     b < 1: probabilities are too extreme; b > 1: too timid
    intercept  logit P(y = 1) = a + logit p       a < 0: probabilities are too high on average; a > 0: too low

    Standard errors are those of the sandwich estimator over clusters.
    Source: Cox, Biometrika 45 (1958); Van Calster et al., BMC Medicine 17 (2019).

    `p`: stated probabilities, (N,). `event`: whether it came, (N,). `clusters`: numbers of the groups that samples come
    in, (N,); None where they are independent. `weights`: of the samples, (N,); None where all count the same.

    >>> rng = np.random.default_rng(0)
    >>> p = rng.random(20000)
    >>> found = slope_and_intercept(p, rng.random(20000) < p, 1.96)
    >>> found["slope"][1] < 1 < found["slope"][2], found["intercept"][1] < 0 < found["intercept"][2]
    (True, True)
    """
    p = np.clip(np.asarray(p, np.float64), _CERTAIN, 1 - _CERTAIN)
    odds = np.log(p) - np.log1p(-p)
    ones = np.ones_like(odds)
    counted = ones if weights is None else weights
    line = _fit(np.stack([ones, odds], axis=1), 0 * odds, np.asarray(event), counted, z, clusters)
    level = _fit(ones[:, None], odds, np.asarray(event), counted, z, clusters)
    return {"slope": None if line is None else line[1], "intercept": None if level is None else level[0]}


def _fit(
    columns: FloatArray,
    offset: FloatArray,
    event: NDArray[np.bool_],
    weights: FloatArray,
    z: float,
    clusters: NDArray[np.int64] | None,
) -> list[tuple[float, float, float]] | None:
    """Fit log odds = columns w + offset by Newton's method; return (w, low, high) of each coefficient."""
    w = np.zeros(columns.shape[1])
    loss, gradients, hessian = logistic_terms(columns, offset, event, weights)
    for _ in range(_STEPS):
        if np.linalg.cond(hessian) > 1 / np.finfo(float).eps:
            return None
        step = -np.linalg.solve(hessian, gradients.sum(axis=0))
        if np.max(np.abs(step)) < _CONVERGED:
            break
        # far from the maximum a whole step may lead too far
        while True:
            new, gradients, hessian = logistic_terms(columns, columns @ (w + step) + offset, event, weights)
            if new <= loss or np.max(np.abs(step)) <= _CONVERGED:
                break
            step = step / 2
        w, loss = w + step, new
        if np.max(np.abs(w)) > _SEPARATED:
            return None
    else:
        return None
    sums = gradients if clusters is None else cluster_sums(gradients, clusters)
    if len(sums) < 2:
        return None
    inverse = np.linalg.inv(hessian)
    covariance = len(sums) / (len(sums) - 1) * inverse @ (sums.T @ sums) @ inverse
    reach = [z * math.sqrt(value) for value in np.diag(covariance)]
    return [(float(value), float(value - far), float(value + far)) for value, far in zip(w, reach, strict=True)]


def _largest(chances: Sequence[ChanceEce]) -> float:
    """Return the expectation of the largest ECE of independent labels: the integral of 1 - prod_l F_l."""
    from scipy.special import gammainc  # noqa: PLC0415 - heavy

    spread = [chance for chance in chances if chance.variance]
    if not spread:
        return max(chance.mean for chance in chances)
    top = max(chance.mean + 8 * chance.variance**0.5 for chance in spread)
    x = np.linspace(0, top, _GRID)
    below = np.ones_like(x)
    for chance in spread:
        below *= gammainc(chance.mean**2 / chance.variance, x * chance.mean / chance.variance)
    return float(np.mean(1 - below) * top)


@dataclass(frozen=True, eq=False)
class PositiveSide:
    """P(positive) of a model on some samples: for each label, or the one class, scores and what they come to."""

    alone: Sequence[SampleScores] = ()
    positives: Sequence[Positive] = ()
    chances: Sequence[ChanceEce] = ()
    cross_fits: Sequence[CrossFit | None] = ()  # correct cross-fitted scores; None for others

    @classmethod
    def of(
        cls, scores: SampleScores, classes: Classes, bins: int = 15, cross_fit: CrossFit | None = None
    ) -> PositiveSide:
        """Reduce scores, as in `positive_scores`."""
        names = classes.names
        alone = positive_scores(scores, len(names), classes.positive)
        if not (names and alone):
            return cls()
        named = names if scores.predicted is not None else [names[classes.positive]]
        chances = [ChanceEce.of(label, bins) for label in alone]
        fits: list[CrossFit | None] = [None] * len(alone)
        if cross_fit is not None:
            fitted = positive_scores(replace(cross_fit.fitted, labels=scores.labels), len(names), classes.positive)
            fits = [CrossFit(label, cross_fit.fold) for label in fitted]
        rows = zip(alone, named, chances, fits, strict=True)
        return cls(
            alone, [_positive(label, name, bins, chance, fit) for label, name, chance, fit in rows], chances, fits
        )

    @property
    def worst_number(self) -> int:
        """Number of the label with the largest ECE; there is one."""
        return max(range(len(self.positives)), key=lambda c: self.positives[c].ece)

    def worst(self, bins: int, level: float = 0.95) -> Positive | None:
        """Return the worst label with its slope, beside what chance gives the worst of as many.

        Of one class, that; None for more than two classes.
        """
        if not self.positives:
            return None
        scores = self.alone[self.worst_number]
        diagram = Bins.of_scores(scores, bins)
        worst = replace(with_slope(self.positives[self.worst_number], scores, level), reliability=diagram)
        if len(self.positives) == 1:
            return worst
        return replace(
            worst,
            ece_expected=_largest(self.chances),
            ece_mean=float(np.mean([label.ece for label in self.positives])),
            p=min(1.0, len(self.positives) * min(label.p for label in self.positives)),
            labels=len(self.positives),
        )


def positive_difference(
    before: PositiveSide,
    after: PositiveSide,
    bins: int = 15,
    level: float = 0.95,
    *,
    seed: int = 0,
) -> Interval:
    """Return the difference of the ECE of P(positive), or of the worst label's, with its interval.

    With a the worst label after and b the one before, E the ECE: E_b(after) - E_b(before) <= the difference <=
    E_a(after) - E_a(before). So the interval holds those of both, each at a level that is adjusted for the labels.
    The difference is E_a(after) - E_a(before) + E_a(before) - E_b(before), of the same estimator.
    """
    first = before.worst_number
    last = after.worst_number
    level_of_one = level if len(before.positives) == 1 else 1 - (1 - level) / len(before.positives)

    def of_label(c: int) -> Interval:
        fit = after.cross_fits[c]
        sides = (before.alone[c], after.alone[c])
        return paired_differences(*sides, bins, level=level_of_one, seed=seed, cross_fit=fit, names=["ece"])["ece"]

    interval = of_label(first)
    if last != first:
        of_last = of_label(last)
        sides = (before.alone[first], before.alone[last])
        distance = paired_differences(*sides, bins, seed=seed, names=["ece"])["ece"].difference
        interval = replace(interval.holding(of_last), difference=of_last.difference + distance)
        interval = interval.holding(replace(interval, low=interval.difference, high=interval.difference))
    return replace(interval, level=level)
