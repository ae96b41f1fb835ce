"""The search: objective and accuracy against angle and members, and the diagram at every angle behind a slider."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape

from tna_onnx.render.candidates import MOST_TIMES, SHOWN_DROP, drawn_kinds, highest, looks, near
from tna_onnx.render.html.blocks import dash, figure, legend, more, table
from tna_onnx.render.html.sections.words import LABELS, data_of, members
from tna_onnx.render.html.svg import MARKERS, Series, chart_x, line_chart, reliability_diagram
from tna_onnx.results.details import Details, Scored, Step
from tna_onnx.results.report import Report

__all__ = ["search"]

# Room beside the first and the last number of members, in doublings; labels are centred there.
_ROOM = 0.5
# Numbers of members that fit below an axis.
_MOST_LABELS = 9


def search(report: Report, details: Details) -> str:
    """Write the section; nothing without a search."""
    if len(details.steps) < 2:
        return ""
    mapped = "each with the map fitted for it" if details.with_map else "before any map"
    return (
        f"<p>Weights that were tried, {mapped}. The angle is the mean rotation of the class vectors (mRC); angle 0 is "
        "the original weight. Members are the tilted weights averaged. The choice (ring) was made on the calibration "
        f"data alone. What costs more than {100 * SHOWN_DROP:.0f} points of accuracy or is more than {MOST_TIMES} "
        f"times as bad as the original lies outside of the figures; the table has it. {data_of(details)}</p>"
        f"{legend(*_keys(details))}"
        f'<div class="pair explorer">{_objective_chart(report, details)}{_slider(details)}</div>'
        f'<h3>Accuracy against angle and members</h3><div class="pair">{_accuracy_chart(report, details)}'
        f"{_members_chart(report, details)}</div>"
        f"{more('Numbers of all candidates', _steps_table(report, details))}"
    )


def _scale(report: Report) -> float:
    return 1 if report.objective == "nll" else 100


def _x_range(details: Details) -> tuple[float, float]:
    return 0.0, max(s.angle for s in near(details)) + 2


def _objective_chart(report: Report, details: Details) -> str:
    label, scale = LABELS[report.objective], _scale(report)

    def value(scored: Scored) -> float:
        return scale * scored.objective

    chart = line_chart(
        _lines(details, value),
        f"{label} over the angle",
        "angle, degrees",
        label,
        x_range=_x_range(details),
        y_range=(0, highest(details, value)),
        vertical=_chosen_line(details),
        text_on_top=True,
        rings=_rings(details, value),
        cursor=True,
    )
    return figure(chart, f"{label.split(',')[0]} against angle")


def _accuracy_chart(report: Report, details: Details) -> str:
    def value(scored: Scored) -> float:
        return 100 * scored.accuracy

    seen = [value(of(s)) for s in near(details) for _, of in drawn_kinds(details)]
    floor = 100 * (details.steps[0].calibration.accuracy - float(str(report.settings["max_accuracy_drop"])))
    chart = line_chart(
        _lines(details, value),
        "Accuracy over the angle",
        "angle, degrees",
        "accuracy, %",
        x_range=_x_range(details),
        y_range=(min(seen) - 1, min(max(seen) + 1, 100.5)),
        vertical=_chosen_line(details),
        horizontal=[(floor, "allowed on calibration data")],
        rings=_rings(details, value),
        cursor=True,
    )
    return figure(chart, "Against the angle")


def _members_chart(report: Report, details: Details) -> str:
    """Accuracy against the members averaged at the chosen angle; nothing where there were none to count."""
    if len(details.averages) < 2:
        return ""
    points = tuple((math.log2(a.members), 100 * a.accuracy) for a in details.averages)
    labelled = details.averages[:: -(1 + len(details.averages) // _MOST_LABELS)]
    original = 100 * details.steps[0].shown.accuracy
    seen = [y for _, y in points] + [original]
    room = 0.1 * (max(seen) - min(seen)) + 0.5
    chart = line_chart(
        [Series("average", points, "after", marker="circle")],
        f"Accuracy over the members at {report.angle:g} degrees",
        "members averaged",
        "accuracy, %",
        x_range=(-_ROOM, points[-1][0] + _ROOM),
        y_range=(min(seen) - room, min(max(seen) + room, 100.5)),
        horizontal=[(original, "original weight")],
        x_ticks=[(math.log2(a.members), members(a.members)) for a in labelled],
    )
    return figure(chart, f"Against the members, at {report.angle:g}°")


def _chosen_line(details: Details) -> tuple[float, str]:
    angle = details.steps[details.chosen].angle
    return angle, f"chosen: {angle:g}°"


def _rings(details: Details, value: Callable[[Scored], float]) -> list[tuple[float, float]]:
    chosen = details.steps[details.chosen]
    return [(chosen.angle, value(of(chosen))) for _, of in drawn_kinds(details)]


def _lines(details: Details, value: Callable[[Scored], float]) -> list[Series]:
    """One line for each number of members and each kind of data; angle 0 belongs to all."""
    lines, ranks = [], looks(details, len(MARKERS))
    for kind, of in drawn_kinds(details):
        for size, k in ranks.items():
            steps = sorted((s for s in details.steps[1:] if s.members == size), key=lambda s: s.angle)
            if size == next(iter(ranks)):
                steps = [details.steps[0], *steps]
            points = tuple((s.angle, value(of(s))) for s in steps)
            look = f"m{k}" + (" dashed" if details.held_out and kind == "calibration" else "")
            lines.append(Series(f"{kind} data, {members(size)} members", points, look, MARKERS[k]))
    return lines


def _keys(details: Details) -> list[str]:
    ranks, last = looks(details, len(MARKERS)), len(MARKERS) - 1
    shared = list(ranks.values()).count(last) > 1
    keys = [
        dash(f"m{k}", f"{members(size)} members", MARKERS[k]) for size, k in ranks.items() if not shared or k < last
    ]
    if shared:
        keys.append(dash(f"m{last}", "other numbers of members", MARKERS[last]))
    if details.held_out:
        keys += [dash("key", "held-out data"), dash("key dashed", "calibration data")]
    return keys


def _steps_table(report: Report, details: Details) -> str:
    label, scale = LABELS[report.objective], _scale(report)
    extra = ["held-out " + label, "held-out accuracy, %"] if details.held_out else []
    rows, digits = [], 2 if scale == 100 else 4
    for k, s in enumerate(details.steps):
        scored = [s.calibration, *([s.held_out] if s.held_out else [])]
        values = [text for v in scored for text in (f"{scale * v.objective:.{digits}f}", f"{100 * v.accuracy:.2f}")]
        rows.append([f"{s.angle:g}", f"{s.reached:.2f}", members(s.members) if s.angle else "", *values])
        if k == details.chosen:
            rows[-1][0] += " (chosen)"
    heads = ["angle, °", "reached, °", "members", f"calibration {label}", "calibration accuracy, %", *extra]
    return table(heads, rows, f"Objective: {report.objective.upper()}", chosen=details.chosen)


def _slider(details: Details) -> str:
    """One diagram for each angle; of several at an angle, the chosen one, else that of the most members."""
    by_angle: dict[float, Step] = {}
    chosen = details.steps[details.chosen]
    for step in sorted(details.steps, key=lambda s: (s.angle, s.members or 10**9, s is chosen)):
        if by_angle.get(step.angle) is not chosen:
            by_angle[step.angle] = step
    steps = list(by_angle.values())
    start = next(k for k, step in enumerate(steps) if step is chosen)
    figures = "".join(_at_angle(step, step is chosen, _x_range(details)) for step in steps)
    return (
        '<div><div class="slider"><label for="angle">Reliability at</label> <output for="angle"></output>'
        f'<input type="range" id="angle" min="0" max="{len(steps) - 1}" value="{start}"></div>'
        '<div class="steps" tabindex="0" role="group" aria-label="Reliability diagrams by angle">'
        f"{figures}</div></div>"
    )


def _at_angle(step: Step, is_chosen: bool, x_range: tuple[float, float]) -> str:
    """The diagram at an angle; `data-x` is where the charts over the angle have it."""
    text = "0°: the original weight" if not step.angle else f"{step.angle:g}°, {members(step.members)} members"
    text += f", ECE {100 * step.shown.bins.ece:.2f} %, accuracy {100 * step.shown.accuracy:.2f} %"
    text += " (chosen)" if is_chosen else ""
    look = ' class="chosen active"' if is_chosen else ""
    drawing = reliability_diagram(step.shown.bins, f"Reliability at {step.angle:g} degrees")
    return (
        f'<figure{look} data-text="{escape(text)}" data-x="{chart_x(step.angle, x_range)}">'
        f"<figcaption>{escape(text)}</figcaption>{drawing}</figure>"
    )
