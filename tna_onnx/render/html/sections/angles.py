"""Distribution of the angles between features and class vectors: the predicted class, and the others ("false")."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tna_onnx.render.html.blocks import dash, figure, legend, table
from tna_onnx.render.html.sections.words import data_of
from tna_onnx.render.html.svg import Series, line_chart
from tna_onnx.results.details import Angles, Details
from tna_onnx.results.report import Report

__all__ = ["angles"]

_WEIGHTS = {"original": "original weight", "tilted": "one tilted weight", "averaged": "average of the tilted weights"}
# Share of a bin below which it is left out at the ends.
_SHOWN = 0.002


def angles(report: Report, details: Details) -> str:
    """Write the section; nothing without a plain head."""
    if not details.angles:
        return ""
    charts = (
        ("Predicted class", lambda a: a.predicted),
        ("False classes: all the others", lambda a: a.others),
    )
    rows = [
        [_WEIGHTS[a.weight], f"{_mean_angle(a.predicted):.1f}", f"{_mean_angle(a.others):.1f}", f"{a.length:.2f}"]
        for a in details.angles
    ]
    tilt = (
        f" Tilting, here by {report.angle:g}°, tends to move the angles towards 90°, where classes cannot be told "
        "apart: confidence falls. Averaging brings the directions back and leaves shorter vectors."
        if report.angle
        else ""
    )
    keys = [dash(a.weight, _WEIGHTS[a.weight]) for a in details.angles]
    drawings = "".join(figure(_chart(details.angles, title, of), title) for title, of in charts)
    return (
        f"<p>Angles between the features of {details.angle_samples:,} samples and the class vectors.{tilt} "
        f'{data_of(details)}</p>{legend(*keys)}<div class="pair">{drawings}</div>'
        + table(["", "predicted, °", "false, °", "length"], rows, "Mean angles; mean length, the original's is 1")
    )


def _chart(found: Sequence[Angles], title: str, of: Callable[[Angles], Sequence[float]]) -> str:
    bins = len(found[0].predicted)
    width = 180 / bins
    filled = [j for a in found for part in (a.predicted, a.others) for j, share in enumerate(part) if share > _SHOWN]
    low, high = max(0, min(filled, default=0) - 1), min(bins, max(filled, default=bins) + 2)
    series = [
        Series(_WEIGHTS[a.weight], tuple(((j + 0.5) * width, 100 * of(a)[j]) for j in range(low, high)), a.weight)
        for a in found
    ]
    return line_chart(series, title, "angle, degrees", f"share per {width:g}°, %", x_range=(low * width, high * width))


def _mean_angle(shares: Sequence[float]) -> float:
    width = 180 / len(shares)
    return sum((j + 0.5) * width * share for j, share in enumerate(shares)) / (sum(shares) or 1)
