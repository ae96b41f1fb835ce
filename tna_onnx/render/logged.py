"""What trackers of experiments are told of a report: flat parameters, metrics with a step, and tags."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tna_onnx.errors import TnaError
from tna_onnx.numerics.metric import METRICS

if TYPE_CHECKING:
    from tna_onnx.results.report import Comparison, Report

__all__ = ["TrackingError", "metrics_of", "parameters_of", "tags_of"]

# Fields of a report that are logged as parameters under their own names.
_FIELDS = (
    "model", "model_sha256", "output", "head", "classes", "features", "search", "map", "folded", "angle", "reached",
    "ensemble_size", "rotations", "objective", "provider",
)  # fmt: skip


class TrackingError(TnaError):
    """The run could not be logged; the files it wrote are kept."""

    exit_code = 6


def tags_of(report: Report) -> dict[str, str]:
    """Return the verdict, missed gates and versions."""
    tags = {"tna_onnx.verdict": report.verdict}
    if report.missed:
        tags["tna_onnx.missed"] = "\n".join(report.missed)
    for package, version in report.versions.items():
        tags[f"tna_onnx.version.{package}"] = version
    return tags


def parameters_of(report: Report) -> Iterator[tuple[str, str]]:
    """Give name and value as text; what is not a string as JSON."""
    values = {
        **{name: getattr(report, name) for name in _FIELDS},
        "data": report.comparison.data,
        "how": report.comparison.how,
        "calibration_data": report.calibration.data,
        **_flat("fitted", report.parameters),
        **_flat("settings", report.settings),
        **_flat("preprocessing", report.preprocessing or {}),
    }
    for name, value in values.items():
        text = value
        if not isinstance(value, str):
            text = json.dumps(value)
        yield name, text


def _flat(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Join nested names with dots.

    >>> _flat("settings", {"seed": 3, "tilt": {"theta_s": 0.9}})
    {'settings.seed': 3, 'settings.tilt.theta_s': 0.9}
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(f"{prefix}.{name}", value)
        else:
            flat[f"{prefix}.{name}"] = value
    return flat


def metrics_of(report: Report) -> Iterator[tuple[str, float, int]]:
    """Give name, value, step."""
    for prefix, comparison in (("", report.comparison), ("calibration.", report.calibration)):
        for name, value in _comparison_metrics(comparison):
            yield prefix + name, value, 0
    for name, value in _bin_free_metrics(report):
        yield name, value, 0
    for step, point in enumerate(report.curve):
        yield "curve.angle", point.angle, step
        yield "curve.reached", point.reached, step
        # metrics of MLflow are floats
        yield "curve.members", float(point.ensemble_size), step
        yield "curve.objective", point.objective, step
        yield "curve.accuracy", point.accuracy, step


def _bin_free_metrics(report: Report) -> Iterator[tuple[str, float]]:
    """Calibration without bins, where it is known: some scores have no p-value (`BinFree.of`)."""
    for stage, found in (("before", report.bin_free_before), ("after", report.bin_free_after)):
        values = {
            "ece_debiased": found.ece_debiased,
            "ece_expected": found.ece_expected,
            "kuiper": found.cumulative.kuiper,
            "kuiper_p": found.cumulative.kuiper_p,
            "nll_miscalibration": found.corp.nll.miscalibration,
        }
        for name, value in values.items():
            if value is not None:
                yield f"{stage}.{name}", value


def _comparison_metrics(c: Comparison) -> Iterator[tuple[str, float]]:
    yield "samples", float(c.before.n)
    for name in METRICS:
        d = c.differences[name]
        yield f"before.{name}", getattr(c.before, name)
        yield f"after.{name}", getattr(c.after, name)
        yield f"difference.{name}", d.difference
        yield f"difference.{name}.low", d.low
        yield f"difference.{name}.high", d.high
