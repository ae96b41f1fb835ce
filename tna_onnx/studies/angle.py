"""The optimisation curve: metrics of the averaged weight on both sets of samples, against the angle."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tna_onnx.extraction.table import FeatureTable
from tna_onnx.numerics.averages import LIMIT, Draws, averages
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.results.study import Cell, Chart, Column, Line, Study
from tna_onnx.studies.ablation import shown_range
from tna_onnx.studies.run import StudyData
from tna_onnx.studies.settings import StudySettings

__all__ = ["study"]

# The paper's members, and the limit of many.
_MEMBERS = {10: "10 members", LIMIT: "limit of many"}
_STEP = 2.0
_SHOWN = ("ece", "accuracy", "nll")


def study(data: StudyData, settings: StudySettings, progress: Callable[[int, int], None]) -> Study:
    """Score averages along the grid of angles."""
    parts = {"calibration": data.calibration, "held-out": data.held_out}
    angles = np.arange(_STEP, 90, _STEP).tolist()
    rows: list[tuple[Cell, ...]] = []
    for size, name in _MEMBERS.items():
        rows += [_row(name, part, 0.0, 0.0, data.logits(table).scores(), settings) for part, table in parts.items()]
        for k, average in enumerate(averages(data.weight, angles, size, Draws(settings.seed))):
            scores = _scores(data, parts, average.weight)
            rows += [
                _row(name, part, average.angle, average.reached, part_scores, settings)
                for part, part_scores in scores.items()
            ]
            progress(k + 1, len(angles))
    columns = (
        Column("members", "Members"),
        Column("data", "Data"),
        Column("angle", "Angle, degrees", 1, 1),
        Column("reached", "mRC reached, degrees", 1, 2),
        *(Column(name, metric.title, metric.factor, metric.digits) for name, metric in METRICS.items()),
    )
    charts = tuple(_chart(name, rows, columns) for name in _SHOWN)
    return Study(
        "angle", "Metrics against the angle", "optimisation curve", _sentence(charts[0]), columns, tuple(rows), charts
    )


def _scores(data: StudyData, parts: dict[str, FeatureTable], weight: object) -> dict[str, SampleScores]:
    return {part: data.logits(table, weight).scores() for part, table in parts.items()}  # type: ignore[arg-type]


def _row(
    members: str, part: str, angle: float, reached: float, scores: SampleScores, settings: StudySettings
) -> tuple[Cell, ...]:
    metrics = Metrics.of(scores, settings.bins)
    return (members, part, angle, reached, *(float(getattr(metrics, name)) for name in METRICS))


def _chart(name: str, rows: list[tuple[Cell, ...]], columns: tuple[Column, ...]) -> Chart:
    metric = METRICS[name]
    k = [column.name for column in columns].index(name)
    lines = []
    for rank, size in enumerate(_MEMBERS.values(), start=1):
        for part in ("calibration", "held-out"):
            curve = [row for row in rows if row[:2] == (size, part)]
            x = tuple(float(row[2] or 0) for row in curve)
            y = tuple(metric.factor * float(row[k] or 0) for row in curve)
            lines.append(Line(f"{part}, {size}", x, y, rank=rank, dashed=part == "calibration", marked=False))
    reach = shown_range(name, lines[0].y[0], lines)
    return Chart(f"{metric.label} against the angle", "angle, degrees", metric.title, tuple(lines), y_range=reach)


def _sentence(chart: Chart) -> str:
    """State the angle with the smallest ECE, on both sets of samples."""
    ends = {line.name: line.x[int(np.argmin(line.y))] for line in chart.lines}
    calibration, held_out = (ends[f"{part}, {_MEMBERS[10]}"] for part in ("calibration", "held-out"))
    return (
        f"With 10 members the ECE is least at {calibration:g} degrees on the calibration samples and at {held_out:g} "
        f"on the held-out ones."
    )
