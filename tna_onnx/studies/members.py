"""Accuracy and ECE against the number of averaged members n_e, at several angles.

Member k of a repeat is one random path, and the first n_e members are averaged, so that every path is walked once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.averages import LIMIT, Draws, averages
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.results.study import Cell, Chart, Column, Line, Study
from tna_onnx.studies.ablation import shown_range
from tna_onnx.studies.run import StudyData
from tna_onnx.studies.settings import StudySettings
from tna_onnx.studies.table import deviation, mean

__all__ = ["study"]

# The paper's 30 degrees, and those around it.
_ANGLES = (15.0, 30.0, 45.0, 60.0, 75.0)
_SIZES = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100)
_NAMES = ("accuracy", "ece", "nll")

# Products with all features: more members are left out where these would take longer.
_MAX_MEMBERS = {True: 100, False: 20}
_LARGE = 2**21

Values = dict[tuple[float, int], list[dict[str, float]]]
"""(angle, members) -> metrics of each repeat."""


def study(data: StudyData, settings: StudySettings, progress: Callable[[int, int], None]) -> Study:
    """Score averages of more and more members."""
    max_members = _MAX_MEMBERS[data.weight.size <= _LARGE]
    sizes = [size for size in _SIZES if size <= max_members]
    values: Values = {}
    for repeat in range(settings.repeats):
        for angle, size, weight in _averages(data.weight, sizes, settings.seed, repeat):
            values.setdefault((angle, size), []).append(_metrics(data, weight, settings))
            progress(repeat * max_members + size, settings.repeats * max_members)
    for average in averages(data.weight, _ANGLES, LIMIT, Draws(settings.seed)):
        values[average.angle, LIMIT] = [_metrics(data, average.weight, settings)]
    plain = _metrics(data, data.weight, settings)
    columns = (Column("angle", "Angle, degrees", 1, 0), Column("members", "Members"), *_metric_columns())
    rows = [(0.0, "not tilted", *_pairs([plain])), *(_row(key, values[key]) for key in sorted(values, key=_order))]
    charts = tuple(_chart(name, values, plain, max_members) for name in _NAMES)
    return Study(
        "members", "Members averaged", "accuracy against n_e", _sentence(values, plain), columns, tuple(rows), charts
    )


def _averages(weight: NDArray[Any], sizes: list[int], seed: int, repeat: int) -> Any:
    """Yield (angle, members, (C, n) average) for the first members of a repeat."""
    sums: dict[float, NDArray[np.float64]] = {}
    for member in range(max(sizes)):
        reached = set()
        # one entropy for each member of each repeat
        member_seed = int(np.random.SeedSequence([seed, repeat, member]).generate_state(1)[0])
        for average in averages(weight, _ANGLES, 1, Draws(member_seed)):
            reached.add(average.angle)
            # an angle that a member did not reach is left for all that follow
            if member and average.angle not in sums:
                continue
            sums[average.angle] = sums.get(average.angle, 0.0) + average.weight.astype(np.float64)
            if member + 1 in sizes:
                yield average.angle, member + 1, (sums[average.angle] / (member + 1)).astype(weight.dtype)
        sums = {angle: total for angle, total in sums.items() if angle in reached}


def _metrics(data: StudyData, weight: NDArray[Any], settings: StudySettings) -> dict[str, float]:
    metrics = Metrics.of(data.scores(weight), settings.bins)
    return {name: float(getattr(metrics, name)) for name in _NAMES}


def _order(key: tuple[float, int]) -> tuple[float, float]:
    angle, size = key
    return angle, size or float("inf")


def _metric_columns() -> list[Column]:
    columns = []
    for name in _NAMES:
        metric = METRICS[name]
        columns.append(Column(name, metric.title, metric.factor, metric.digits, beside=(f"{name}_sd",)))
        columns.append(Column(f"{name}_sd", f"SD of {metric.title}", metric.factor, metric.digits, hidden=True))
    return columns


def _pairs(repeats: list[dict[str, float]]) -> list[Cell]:
    cells: list[Cell] = []
    for name in _NAMES:
        numbers = [repeat[name] for repeat in repeats]
        cells += [mean(numbers), deviation(numbers)]
    return cells


def _row(key: tuple[float, int], repeats: list[dict[str, float]]) -> tuple[Cell, ...]:
    angle, size = key
    return (angle, str(size) if size else "limit of many", *_pairs(repeats))


def _chart(name: str, values: Values, plain: dict[str, float], max_members: int) -> Chart:
    metric = METRICS[name]
    lines = []
    for rank, angle in enumerate(_ANGLES):
        by_size = {
            size: [repeat[name] for repeat in values[a, size]] for a, size in sorted(values) if a == angle and size
        }
        if not by_size:
            continue
        y = tuple(metric.factor * mean(numbers) for numbers in by_size.values())
        spread = [metric.factor * (deviation(numbers) or 0.0) for numbers in by_size.values()]
        low = tuple(a - b for a, b in zip(y, spread, strict=True))
        high = tuple(a + b for a, b in zip(y, spread, strict=True))
        lines.append(Line(f"{angle:g} degrees", tuple(map(float, by_size)), y, low, high, rank))
    for rank, angle in enumerate(_ANGLES):
        limit = metric.factor * values[angle, LIMIT][0][name]
        lines.append(
            Line(
                f"{angle:g} degrees, limit",
                (1.0, float(max_members)),
                (limit, limit),
                rank=rank,
                dashed=True,
                marked=False,
            )
        )
    level = metric.factor * plain[name]
    lines.append(Line("not tilted", (1.0, float(max_members)), (level, level), rank=5, marked=False))
    # where the bias is scaled the limit keeps every prediction: one line shows them all
    lines = [line for line in lines if not (line.name.endswith("limit") and line.y[0] == level)]
    title = f"{metric.label} against members"
    return Chart(
        title, "members averaged", metric.title, tuple(lines), log_x=True, y_range=shown_range(name, level, lines)
    )


def _sentence(values: Values, plain: dict[str, float]) -> str:
    ends = []
    for size in (1, 10, max(size for _, size in values)):
        at_size = values.get((30.0, size))
        if at_size:
            change = METRICS["accuracy"].change(mean([repeat["accuracy"] for repeat in at_size]) - plain["accuracy"])
            ends.append(f"{change} points with {size}")
    return f"At 30 degrees the accuracy changes by {', '.join(ends)} members averaged."
