"""Distribution of the angles between features and class vectors: the predicted class, and the others ("false")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tna_onnx.render.html.blocks import Figure, Key, Table, line_key, table
from tna_onnx.render.html.charts import Series, line_chart
from tna_onnx.render.html.sections.phrases import data_text
from tna_onnx.results.details import Details
from tna_onnx.results.report import Report

__all__ = ["Angles", "angles"]

_WEIGHTS = {"original": "original weight", "tilted": "one tilted weight", "averaged": "average of the tilted weights"}
# Share of a bin below which it is left out at the ends.
_MIN_SHARE = 0.002


@dataclass(frozen=True)
class Angles:
    """What the section shows; `tilted_by` is the chosen angle in degrees, 0 for the original weight."""

    samples: str
    tilted_by: float
    shown_data: str
    keys: tuple[Key, ...]
    figures: tuple[Figure, Figure]
    means: Table


def angles(report: Report, details: Details) -> Angles | None:
    """Return the values of the section; None without a plain head."""
    if not details.angles:
        return None
    predicted = {a.weight: a.predicted for a in details.angles}
    others = {a.weight: a.others for a in details.angles}
    # Both charts show the same angles.
    sides = _filled([*predicted.values(), *others.values()])
    rows = [
        (_WEIGHTS[a.weight], f"{_mean_angle(a.predicted):.1f}", f"{_mean_angle(a.others):.1f}", f"{a.length:.2f}")
        for a in details.angles
    ]
    return Angles(
        f"{details.angle_samples:,}",
        report.angle,
        data_text(details),
        tuple(line_key(weight, _WEIGHTS[weight]) for weight in predicted),
        (
            _figure("Predicted class", predicted, sides),
            _figure("False classes: all the others", others, sides),
        ),
        table(("", "predicted, °", "false, °", "length"), rows, "Mean angles, and mean length (original: 1)"),
    )


def _filled(distributions: Sequence[Sequence[float]]) -> tuple[int, int]:
    """Return the bins that hold something in any distribution, and one more on each side, as a half-open range."""
    bins = len(distributions[0])
    filled = [j for shares in distributions for j, share in enumerate(shares) if share > _MIN_SHARE]
    low = max(0, min(filled, default=0) - 1)
    high = min(bins, max(filled, default=bins) + 2)
    return low, high


def _figure(title: str, distributions: dict[str, tuple[float, ...]], sides: tuple[int, int]) -> Figure:
    bins = len(next(iter(distributions.values())))
    width = 180 / bins
    series = []
    for weight, shares in distributions.items():
        points = tuple(((j + 0.5) * width, 100 * shares[j]) for j in range(*sides))
        series.append(Series(_WEIGHTS[weight], points, weight))
    x_range = (sides[0] * width, sides[1] * width)
    return Figure(line_chart(series, title, "angle, degrees", f"share per {width:g}°, %", x_range=x_range), title)


def _mean_angle(shares: Sequence[float]) -> float:
    width = 180 / len(shares)
    # from the middles of the bins, which is all that the details keep
    return sum((j + 0.5) * width * share for j, share in enumerate(shares)) / (sum(shares) or 1)
