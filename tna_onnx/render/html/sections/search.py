"""Sections on a tilted weight: objective and accuracy against angle and members, and the distribution of angles.

The angles are those between features and class vectors, for the predicted class and for the others ("false").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tna_onnx.numerics.metric import METRICS
from tna_onnx.render.candidates import (
    MAX_DROP,
    MAX_TIMES,
    allowed_accuracy,
    drawn_kinds,
    looks,
    near,
    objective_range,
    shares_last_look,
    steps_of,
)
from tna_onnx.render.html.blocks import Figure, Key, Table, line_key, table
from tna_onnx.render.html.sections.result import data_text, members_text
from tna_onnx.render.html.svg import MARKERS, Series, line_chart
from tna_onnx.results.details import Details, Scored, Step
from tna_onnx.results.report import Report

__all__ = ["Angles", "Search", "angles", "search"]


# Room beside the first and the last number of members, in doublings; labels are centred there.
_ROOM = 0.5
# Numbers of members that fit below an axis.
_MAX_LABELS = 9


@dataclass(frozen=True)
class Search:
    """What the section shows; `members` is None where it would show nothing."""

    mapped: str
    max_drop: str
    max_times: int
    shown_data: str
    keys: tuple[Key, ...]
    objective: Figure
    accuracy: Figure
    members: Figure | None
    candidates: Table


def search(report: Report, details: Details) -> Search | None:
    """Return the values of the section; None where nothing was tilted."""
    if not report.angle:
        return None
    return Search(
        "each with the map fitted for it" if details.with_map else "before any map",
        f"{100 * MAX_DROP:.0f}",
        MAX_TIMES,
        data_text(details),
        tuple(_keys(details)),
        _objective_chart(report, details),
        _accuracy_chart(report, details),
        _members_chart(report, details),
        _candidates_table(report, details),
    )


def _keys(details: Details) -> list[Key]:
    ranks = looks(details, len(MARKERS))
    last = len(MARKERS) - 1
    shared = shares_last_look(ranks, len(MARKERS))
    named = {size: k for size, k in ranks.items() if not shared or k < last}
    keys = [line_key(f"m{k}", f"{members_text(size)} members", MARKERS[k]) for size, k in named.items()]
    if shared:
        keys.append(line_key(f"m{last}", "other numbers of members", MARKERS[last]))
    if details.held_out:
        # with one kind of data there is nothing to tell apart
        keys += [line_key("key", "held-out data"), line_key("key dashed", "calibration data")]
    return keys


def _objective_chart(report: Report, details: Details) -> Figure:
    metric = METRICS[report.objective]

    def value(scored: Scored) -> float:
        return metric.factor * scored.objective

    chart = line_chart(
        _lines(details, value),
        f"{metric.title} over the angle",
        "angle, degrees",
        metric.title,
        x_range=_x_range(details),
        y_range=objective_range(details, value),
        vertical=_chosen_line(details),
        text_on_top=True,
        rings=_rings(details, value),
    )
    return Figure(chart, f"{metric.label} against angle")


def _accuracy_chart(report: Report, details: Details) -> Figure:
    def value(scored: Scored) -> float:
        return 100 * scored.accuracy

    values = [value(scored_of(step)) for step in near(details) for _, scored_of in drawn_kinds(details)]
    chart = line_chart(
        _lines(details, value),
        "Accuracy over the angle",
        "angle, degrees",
        "accuracy, %",
        x_range=_x_range(details),
        # Up to half a point above 100 %, so that a marker there is whole.
        y_range=(min(values) - 1, min(max(values) + 1, 100.5)),
        vertical=_chosen_line(details),
        horizontal=[(allowed_accuracy(details, report.settings), "allowed on calibration data")],
        rings=_rings(details, value),
    )
    return Figure(chart, "Against the angle")


def _members_chart(report: Report, details: Details) -> Figure | None:
    """Accuracy against the members averaged at the chosen angle."""
    if len(details.averages) < 2:
        return None
    # members double from point to point: even distances in log scale
    points = tuple((math.log2(average.members), 100 * average.accuracy) for average in details.averages)
    # From the last, which was chosen, every second or third one if there are too many.
    labelled = details.averages[:: -(1 + len(details.averages) // _MAX_LABELS)]
    original = 100 * details.untilted
    values = [y for _, y in points] + [original]
    room = 0.1 * (max(values) - min(values)) + 0.5
    chart = line_chart(
        [Series("average", points, "after", marker="circle")],
        f"Accuracy over the members at {report.angle:g} degrees",
        "members averaged",
        "accuracy, %",
        x_range=(-_ROOM, points[-1][0] + _ROOM),
        y_range=(min(values) - room, min(max(values) + room, 100.5)),
        horizontal=[(original, "not tilted")],
        x_ticks=[(math.log2(average.members), members_text(average.members)) for average in labelled],
    )
    return Figure(chart, f"Against the members, at {report.angle:g}°")


def _x_range(details: Details) -> tuple[float, float]:
    # 2 degrees of room for the last marker
    return 0.0, max(step.angle for step in near(details)) + 2


def _chosen_line(details: Details) -> tuple[float, str]:
    angle = details.steps[details.chosen].angle
    return angle, f"chosen: {angle:g}°"


def _rings(details: Details, value: Callable[[Scored], float]) -> list[tuple[float, float]]:
    choice = details.steps[details.chosen]
    return [(choice.angle, value(scored_of(choice))) for _, scored_of in drawn_kinds(details)]


def _lines(details: Details, value: Callable[[Scored], float]) -> list[Series]:
    """One line for each number of members and each kind of data."""
    lines = []
    ranks = looks(details, len(MARKERS))
    first = next(iter(ranks))
    for kind, scored_of in drawn_kinds(details):
        for size, k in ranks.items():
            steps = steps_of(details, details.steps, size, first=size == first)
            points = tuple((step.angle, value(scored_of(step))) for step in steps)
            look = f"m{k}"
            # Solid lines are the data to judge by: held-out ones where there are any.
            if details.held_out and kind == "calibration":
                look += " dashed"
            lines.append(Series(f"{kind} data, {members_text(size)} members", points, look, MARKERS[k]))
    return lines


def _candidates_table(report: Report, details: Details) -> Table:
    title = METRICS[report.objective].title
    heads = ["angle, °", "reached, °", "members", f"calibration {title}", "calibration accuracy, %"]
    if details.held_out:
        heads += [f"held-out {title}", "held-out accuracy, %"]
    choice = details.steps[details.chosen]
    rows = [_candidate_row(step, report.objective, step is choice) for step in details.steps]
    return table(heads, rows, f"Objective: {report.objective.upper()}", chosen=details.chosen)


def _candidate_row(step: Step, objective: str, is_choice: bool) -> tuple[str, ...]:
    row = [f"{step.angle:g}", f"{step.reached:.2f}", ""]
    if is_choice:
        row[0] += " (chosen)"
    if step.angle:
        row[2] = members_text(step.members)
    for scored in (step.calibration, step.held_out):
        if scored is not None:
            row += [METRICS[objective].number(scored.objective), METRICS["accuracy"].number(scored.accuracy)]
    return tuple(row)


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
    """Return the values of the section; None without a plain head, or where nothing was tilted."""
    if not details.angles or not report.angle:
        return None
    predicted = {a.weight: a.predicted for a in details.angles}
    other_classes = {a.weight: a.others for a in details.angles}
    # Both charts show the same angles.
    sides = _filled([*predicted.values(), *other_classes.values()])
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
            _figure("False classes: all the others", other_classes, sides),
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
