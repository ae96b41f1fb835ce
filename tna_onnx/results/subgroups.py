"""Calibration of parts of the samples: of each site, device or age group, by a column of the data.

A part needs enough samples for its bins and its intervals. The worst comes first: the one whose ECE is surely largest,
by the lower end of its interval. Every interval stands for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.corp import MIN_EACH
from tna_onnx.numerics.intervals import paired_differences, quantile
from tna_onnx.numerics.metrics import Interval, Metrics, effective_size
from tna_onnx.numerics.residuals import cluster_sums, mean_and_error
from tna_onnx.numerics.scores import SampleScores, weighted_mean
from tna_onnx.numerics.slope import event_of, slope_and_intercept

MIN_SAMPLES = 50
"""Fewer samples of a part tell nothing of its calibration."""

_ERRORS = ("ece", "adaece", "nll", "brier")


@dataclass(frozen=True)
class Estimate:
    """A number and its interval.

    Attributes:
        value: as measured, in the unit of the metric; slope and intercept have no unit.
        low: lower end of the interval, in the unit of the metric; null where too few samples are right, or wrong.
        high: upper end of the interval, in the unit of the metric; null likewise.
        level: level of the interval, a fraction.
    """

    value: float
    low: float | None
    high: float | None
    level: float


@dataclass(frozen=True)
class Subgroup:
    """A part of the samples.

    Attributes:
        name: value of the column.
        metrics: of these samples.
        estimates: accuracy, ECE, AdaECE, NLL, Brier, slope and intercept of calibration with their intervals; those of
            calibration errors are for the error without what noise adds. Slope and intercept are left out where few
            samples are right, or wrong.
        differences: to the baseline on the same samples for each metric; empty where one model is measured.
    """

    name: str
    metrics: Metrics
    estimates: dict[str, Estimate]
    differences: dict[str, Interval] = field(default_factory=dict)


def estimates_of(scores: SampleScores, classes: int, bins: int = 15, level: float = 0.95) -> dict[str, Estimate]:
    """Return metrics, slope and intercept of scores with their intervals.

    Args:
        scores: of N >= 2 samples; with their labels where there are two classes.
        classes: number of classes C.
        bins: of ECE and AdaECE.
        level: of the intervals, a fraction.
    """
    nothing = np.zeros_like(scores.nll)
    # a model that states what came true: its errors are zero, and differences to it the errors themselves
    perfect = replace(scores, confidence=scores.hit.astype(np.float32), nll=nothing, brier=nothing)
    found = paired_differences(perfect, scores, bins, level=level)
    estimates = {"accuracy": _share(scores, level)}
    for name in _ERRORS:
        d = found[name]
        estimates[name] = Estimate(d.difference, max(0.0, d.low), max(0.0, d.high), level)
    if not _enough(scores):
        return estimates | {name: Estimate(estimates[name].value, None, None, level) for name in ("nll", "brier")}
    p, event = event_of(scores, classes)
    z = quantile((1 + level) / 2, scores.clusters, scores.weights)
    together = scores.pooled()
    for name, line in slope_and_intercept(p, event, z, together.clusters, together.weights).items():
        if line is not None:
            estimates[name] = Estimate(*line, level)
    return estimates


def _enough(scores: SampleScores) -> bool:
    """Whether ten samples are right and ten wrong, or as many groups have one: else too few decide a log loss."""
    together = scores.pooled()
    if together.weights is not None:
        return all(effective_size(weights) >= MIN_EACH for weights in _weights_by_side(together))
    owners = np.arange(len(together)) if together.clusters is None else together.clusters
    return all(len(np.unique(owners[side])) >= MIN_EACH for side in (together.hit, ~together.hit))


def _weights_by_side(scores: SampleScores) -> Iterator[NDArray[np.float64]]:
    """Yield the weights, of clusters, of what is right and of what is wrong."""
    for side in (scores.hit, ~scores.hit):
        own = scores.take(side)
        if own.clusters is None or own.weights is None or not own.total:
            yield np.ones(1)
        else:
            yield cluster_sums(own.weights, own.clusters)


def _share(scores: SampleScores, level: float) -> Estimate:
    """Return the accuracy with Wilson's interval, of as many samples as they are worth in clusters."""
    hits = scores.hit.reshape(len(scores), -1).mean(axis=1)
    share = weighted_mean(hits, scores.weights)
    n = float(len(hits))
    z = NormalDist().inv_cdf((1 + level) / 2)
    if scores.clusters is not None or scores.predicted is not None:
        _, error = mean_and_error(hits, scores.clusters, scores.weights)
        z = quantile((1 + level) / 2, scores.clusters, scores.weights)
        groups = n if scores.clusters is None else float(len(np.unique(scores.clusters)))
        n = min(n, share * (1 - share) / error**2) if error > 0 else groups
    weight = z * z / n
    middle = (share + weight / 2) / (1 + weight)
    reach = np.sqrt(weight * share * (1 - share) + weight * weight / 4) / (1 + weight)
    return Estimate(share, max(0.0, float(middle - reach)), min(1.0, float(middle + reach)), level)


def subgroups_of(
    scores: SampleScores,
    parts: NDArray[Any],
    classes: int,
    bins: int = 15,
    level: float = 0.95,
    baseline: SampleScores | None = None,
) -> tuple[Subgroup, ...]:
    """Return each part with enough samples, the worst first.

    Args:
        scores: of N samples; with their labels where there are two classes.
        parts: value of the column for each sample, texts (N,).
        classes: number of classes C.
        bins: of ECE and AdaECE.
        level: of the intervals, a fraction.
        baseline: scores of another model on the same samples, if there is one.
    """
    subgroups = []
    for name in np.unique(parts).tolist():
        rows = np.flatnonzero(parts == name)
        own = scores.take(rows)
        if (
            len(rows) < max(MIN_SAMPLES, bins)
            or not own.total
            or (own.clusters is not None and len(np.unique(own.clusters)) < 2)
        ):
            continue
        differences: Mapping[str, Interval] = {}
        if baseline is not None:
            differences = paired_differences(baseline.take(rows), own, bins, level=level)
        estimates = estimates_of(own, classes, bins, level)
        subgroups.append(Subgroup(name, Metrics.of(own, bins), estimates, dict(differences)))
    return tuple(
        sorted(subgroups, key=lambda part: (-(part.estimates["ece"].low or 0.0), -part.metrics.ece, part.name))
    )


def subgroup_notes(parts: NDArray[Any], subgroups: Sequence[Subgroup], level: float = 95.0) -> tuple[str, ...]:
    """Say how many parts are too small, and that intervals (level in per cent) are not corrected for their number."""
    names = np.unique(parts)
    small = len(names) - len(subgroups)
    notes = []
    if small:
        notes.append(f"{small:,} of {len(names):,} subgroups have fewer than {MIN_SAMPLES} samples and are left out")
    if len(subgroups) > 1:
        notes.append(
            f"each {level:g}% interval of a subgroup stands for itself; they are not corrected for "
            f"{len(subgroups):,} subgroups, of which the worst looks worse than it is by chance"
        )
    return tuple(notes)
