"""From decisions on samples to the figures of a report: coverage, set sizes, risk, alarms."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.guarding.samples import Values
from tna_onnx.numerics.checks import check_level
from tna_onnx.numerics.detection import area_under, roc_points
from tna_onnx.numerics.top_label import top_label_errors
from tna_onnx.results.guarding import ConfidenceCalibration, ConfidenceGroup, Decisions, Detection
from tna_onnx.results.risk_coverage import RiskCoverage

__all__ = ["exact_interval", "measure", "measure_detection"]

_GROUPS = 5  # of samples by confidence, equally large: enough to see where sets are large


def measure(
    decided: Values,
    n_classes: int,
    confidence_level: float,
    data: str,
    *,
    fresh: bool | None,
    detection: Detection | None = None,
) -> Decisions:
    """Reduce decisions to the figures of the report.

    Args:
        decided: what the file says.
        n_classes: number of classes C.
        confidence_level: of intervals, in per cent.
        data: what the samples are.
        fresh: whether no threshold was chosen on them; None where nobody knows.
        detection: of unknown samples, if they were given.
    """
    level = check_level(confidence_level)
    figures: dict[str, Any] = {}
    if "confidence" in decided.values:
        figures["calibration"] = _calibrated(decided, level)
    if "accept" in decided.values:
        figures |= _accepted(decided, level)
    if "set" in decided.values:
        figures |= _covered(decided, n_classes, level)
    if "ood_alarm" in decided.values:
        figures["alarms"] = float(decided.values["ood_alarm"].mean())
    n = len(decided)
    accuracy = float(decided.hit.mean())
    return Decisions(data=data, fresh=fresh, n=n, accuracy=accuracy, detection=detection, **figures)


def _calibrated(decided: Values, level: float) -> ConfidenceCalibration:
    found = top_label_errors(decided.values["confidence"], decided.hit, level)
    return ConfidenceCalibration(found.ece, found.ece_interval, found.nll, found.nll_interval, level)


def _accepted(decided: Values, level: float) -> dict[str, Any]:
    accepted = decided.values["accept"]
    count = int(accepted.sum())
    curve = RiskCoverage.of_values(decided.confidence, decided.hit)
    figures: dict[str, Any] = {"accepted": count / len(decided), "risk_coverage": curve}
    if count:
        wrong = int(np.count_nonzero(accepted & ~decided.hit))
        figures["risk"] = wrong / count
        figures["risk_interval"] = exact_interval(wrong, count, level)
    return figures


def _covered(decided: Values, n_classes: int, level: float) -> dict[str, Any]:
    held = decided.values["set"]
    return {
        "coverage": float(held.mean()),
        "coverage_interval": exact_interval(int(held.sum()), len(held), level),
        "class_coverage": _by_class(held, decided.labels, n_classes),
        "class_set_size": _by_class(decided.sizes, decided.labels, n_classes),
        "by_confidence": tuple(_groups(decided)),
        "mean_set_size": float(decided.sizes.mean()),
        "empty_sets": float(np.mean(decided.sizes == 0)),
        "single_sets": float(np.mean(decided.sizes == 1)),
        "full_sets": float(np.mean(decided.sizes == n_classes)),
    }


def _groups(decided: Values) -> list[ConfidenceGroup]:
    """Split samples by confidence into groups of the same size, the least sure first."""
    order = np.argsort(decided.confidence, kind="stable")
    found = []
    for rows in np.array_split(order, min(_GROUPS, len(order))):
        confidence = decided.confidence[rows]
        held = decided.values["set"][rows]
        size = float(decided.sizes[rows].mean())
        low, high = float(confidence[0]), float(confidence[-1])
        found.append(ConfidenceGroup(min(low, 1.0), min(high, 1.0), len(rows), float(held.mean()), size))
    return found


def _by_class(values: NDArray[Any], labels: NDArray[np.int64], n_classes: int) -> tuple[float | None, ...]:
    """Return the mean over the samples of each class; None for classes without samples."""
    counts = np.bincount(labels, minlength=n_classes).tolist()
    sums = np.bincount(labels, values, minlength=n_classes).tolist()
    return tuple(total / n if n else None for total, n in zip(sums, counts, strict=True))


def measure_detection(
    known: NDArray[np.floating[Any]],
    unknown: NDArray[np.floating[Any]],
    alarms: NDArray[np.bool_],
    confidence_level: float,
    data: str,
) -> Detection:
    """Reduce outlier scores of known and unknown samples to a ROC curve.

    Args:
        known: outlier scores of samples that the model should know, (N,).
        unknown: of samples that it should not, (M,).
        alarms: what the file says of the unknown ones, (M,).
        confidence_level: of the interval, in per cent.
        data: what the unknown samples are.
    """
    interval = exact_interval(int(alarms.sum()), len(alarms), check_level(confidence_level))
    false_alarms, detected = roc_points(known, unknown)
    return Detection(
        data=data,
        n=len(unknown),
        auroc=area_under(known, unknown),
        detected=float(alarms.mean()),
        detected_interval=interval,
        roc_false_alarms=false_alarms,
        roc_detected=detected,
    )


def exact_interval(count: int, n: int, level: float) -> tuple[float, float]:
    """Return the Clopper-Pearson interval of a share.

    >>> exact_interval(0, 100, 0.95)[1].__round__(4)
    0.0362
    """
    from scipy import stats  # noqa: PLC0415 - heavy

    interval = stats.binomtest(count, n).proportion_ci(level, "exact")
    return float(interval.low), float(interval.high)
