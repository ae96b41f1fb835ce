"""Sections on a tilted weight: objective and accuracy against angle and members, and the distribution of angles.

The angles are those between features and class vectors, for the predicted class and for the others ("false").
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from tna_onnx.numerics.metric import METRICS
from tna_onnx.render.charts import (
    MAX_DROP,
    MAX_TIMES,
    WEIGHTS,
    angle_charts,
    looks,
    members_chart,
    members_text,
    search_charts,
    shares_last_look,
)
from tna_onnx.render.html.blocks import Key, Table, chart_figure, key_of, line_key, table
from tna_onnx.render.html.sections.result import data_text
from tna_onnx.render.html.svg import MARKERS
from tna_onnx.results.details import Details, Step
from tna_onnx.results.report import Report


def search(report: Report, details: Details) -> SimpleNamespace | None:
    """Return the values of the section; None where nothing was tilted."""
    if not report.angle:
        return None
    objective, accuracy = search_charts(report, details)
    members = members_chart(details)
    return SimpleNamespace(
        mapped="each with the map fitted for it" if details.with_map else "before any map",
        max_drop=f"{100 * MAX_DROP:.0f}",
        max_times=MAX_TIMES,
        shown_data=data_text(details),
        keys=tuple(_keys(details)),
        objective=chart_figure(objective),
        accuracy=chart_figure(accuracy),
        members=None if members is None else chart_figure(members),
        candidates=_candidates_table(report, details),
    )


def _keys(details: Details) -> list[Key]:
    ranks = looks(details)
    last = len(MARKERS) - 1
    shared = shares_last_look(ranks)
    named = {size: k for size, k in ranks.items() if not shared or k < last}
    keys = [line_key(f"m{k}", f"{members_text(size)} members", MARKERS[k]) for size, k in named.items()]
    if shared:
        keys.append(line_key(f"m{last}", "other numbers of members", MARKERS[last]))
    if details.held_out:
        # with one kind of data there is nothing to tell apart
        keys += [line_key("key", "held-out data"), line_key("key dashed", "calibration data")]
    return keys


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


def angles(report: Report, details: Details) -> SimpleNamespace | None:
    """Return the values of the section; None without a plain head, or where nothing was tilted."""
    if not details.angles or not report.angle:
        return None
    charts = angle_charts(details)
    rows = [
        (WEIGHTS[a.weight], f"{_mean_angle(a.predicted):.1f}", f"{_mean_angle(a.others):.1f}", f"{a.length:.2f}")
        for a in details.angles
    ]
    return SimpleNamespace(
        samples=f"{details.angle_samples:,}",
        tilted_by=report.angle,
        shown_data=data_text(details),
        keys=tuple(map(key_of, charts[0].lines)),
        figures=tuple(map(chart_figure, charts)),
        means=table(("", "predicted, °", "false, °", "length"), rows, "Mean angles, and mean length (original: 1)"),
    )


def _mean_angle(shares: Sequence[float]) -> float:
    width = 180 / len(shares)
    # from the middles of the bins, which is all that the details keep
    return sum((j + 0.5) * width * share for j, share in enumerate(shares)) / (sum(shares) or 1)
