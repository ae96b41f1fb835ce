"""Ablations of theta_s, the Beta distribution, n_t and the bins: one is varied, the others have the paper's values.

For theta_s, Beta and bins the search runs with 10 members, and its choice is scored on the held-out samples, always
over the same bins. n_t is the number of rotations between two measurements of mRC: Algorithm 1 stops past 30 degrees,
and the overshoot is measured.
Source: the paper, sections "Hyperparameters" and "Assumptions".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.rotations import TiltParameters
from tna_onnx.results.study import Cell, Chart, Column, Line, Study
from tna_onnx.studies.ablation import NAMES, TARGET, Repeat, Searches, stopped
from tna_onnx.studies.methods import MEMBERS
from tna_onnx.studies.run import StudyData
from tna_onnx.studies.settings import StudySettings
from tna_onnx.studies.table import deviation, mean

__all__ = ["study"]

# Smaller angles take many more rotations, and with those the walks most of the time.
_THETAS = (0.5, 0.9, 1.0, 1.5)
_BETAS = ((5.0, 1.0), (2.0, 2.0), (1.0, 1.0))
_CHECKS = (1, 10, 50, 200)
_BINS = (5, 10, 15, 20, 30, 50)


def study(data: StudyData, settings: StudySettings, progress: Callable[[int, int], None]) -> Study:
    """Vary one parameter at a time."""
    cases = list(_cases(settings))
    rows: list[tuple[Cell, ...]] = []
    for k, (parameter, value, make) in enumerate(cases):
        repeats = []
        for repeat in range(settings.repeats):
            repeats.append(make(data, settings.seed + repeat))
            progress(k * settings.repeats + repeat + 1, len(cases) * settings.repeats)
        rows.append((parameter, value, *_cells(repeats)))
    metrics = [column for name in NAMES for column in _columns(name)]
    columns = (
        Column("parameter", "Parameter"),
        Column("value", "Value"),
        Column("angle", "mRC, degrees", 1, 1, beside=("angle_sd",)),
        Column("angle_sd", "SD of mRC, degrees", 1, 1, hidden=True),
        Column("rotations", "Rotations n_r", 1, 0),
        *metrics,
    )
    charts = (*(_chart(parameter, rows) for parameter in ("theta_s", "Beta", "bins")), _past(rows))
    notes = (
        f"For n_t, Algorithm 1 stops past {TARGET:g} degrees; elsewhere the angle is searched, with {MEMBERS} members.",
        f"`bins` are those that choose the angle; every ECE shown has {settings.bins} bins.",
    )
    return Study("parameters", "Parameters", "hyperparameters", _sentence(rows), columns, tuple(rows), charts, notes)


def _cases(settings: StudySettings) -> Iterator[tuple[str, str, Callable[[StudyData, int], Repeat]]]:
    """Yield (parameter, value, function that measures it with a seed)."""
    searches = Searches(settings.search(settings.seed), sorted({settings.bins, *_BINS}))
    for theta_s in _THETAS:
        tilt = TiltParameters(theta_s=theta_s)
        yield "theta_s", f"{theta_s:g}", searches.case(tilt, settings.bins)
    for alpha, beta in _BETAS:
        tilt = TiltParameters(alpha, beta)
        yield "Beta", f"({alpha:g}, {beta:g})", searches.case(tilt, settings.bins)
    for n_t in _CHECKS:
        yield "n_t", str(n_t), stopped(n_t, settings.bins)
    for bins in _BINS:
        yield "bins", str(bins), searches.case(TiltParameters(), bins)


def _columns(name: str) -> tuple[Column, Column]:
    metric = METRICS[name]
    spread = Column(f"{name}_sd", f"SD of {metric.title}", metric.factor, metric.digits, hidden=True)
    return Column(name, metric.title, metric.factor, metric.digits, beside=(spread.name,)), spread


def _cells(repeats: list[Repeat]) -> list[Cell]:
    reached = [repeat for repeat in repeats if not math.isnan(repeat["angle"])]
    if not reached:
        return [None] * (3 + 2 * len(NAMES))
    angles = [repeat["angle"] for repeat in reached]
    cells: list[Cell] = [mean(angles), deviation(angles), mean([repeat["rotations"] for repeat in reached])]
    for name in NAMES:
        numbers = [repeat[name] for repeat in reached]
        cells += [mean(numbers), deviation(numbers)]
    return cells


def _chart(parameter: str, rows: list[tuple[Cell, ...]]) -> Chart:
    """Return the chart of ECE against a parameter; the shapes of Beta are categories without a scale."""
    parameter_rows = [row for row in rows if row[0] == parameter]
    names = tuple(str(row[1]) for row in parameter_rows) if parameter == "Beta" else ()
    x = tuple(float(k + 1) if names else float(str(row[1])) for k, row in enumerate(parameter_rows))
    metric = METRICS["ece"]
    y = tuple(metric.factor * float(row[7] or 0) for row in parameter_rows)
    spread = [metric.factor * float(row[8] or 0) for row in parameter_rows]
    low = tuple(a - b for a, b in zip(y, spread, strict=True))
    high = tuple(a + b for a, b in zip(y, spread, strict=True))
    label = {"theta_s": "theta_s, radians", "Beta": "alpha and beta", "bins": "bins that choose"}[parameter]
    line = Line("held-out", x, y, low, high, 2)
    return Chart(f"ECE against {parameter}", label, metric.title, (line,), x_names=names)


def _past(rows: list[tuple[Cell, ...]]) -> Chart:
    """Return the chart of the angle at which Algorithm 1 stops, against n_t."""
    step_rows = [row for row in rows if row[0] == "n_t" and row[2] is not None]
    x = tuple(float(str(row[1])) for row in step_rows)
    y = tuple(float(row[2] or 0) for row in step_rows)
    spread = [float(row[3] or 0) for row in step_rows]
    low = tuple(a - b for a, b in zip(y, spread, strict=True))
    high = tuple(a + b for a, b in zip(y, spread, strict=True))
    target = Line("asked for", (x[0], x[-1]), (TARGET, TARGET), rank=5, dashed=True, marked=False)
    lines = (Line("reached", x, y, low, high, 2), target)
    return Chart("mRC where Algorithm 1 stops", "rotations n_t between two looks", "mRC, degrees", lines, log_x=True)


def _sentence(rows: list[tuple[Cell, ...]]) -> str:
    parts = []
    for parameter in ("theta_s", "Beta", "bins"):
        errors = [100 * float(row[7] or 0) for row in rows if row[0] == parameter]
        parts.append(f"{parameter} {min(errors):.2f} to {max(errors):.2f} %")
    over = {str(row[1]): float(row[2]) - TARGET for row in rows if row[0] == "n_t" and row[2] is not None}
    past = ", ".join(f"{angle:.1f} with {value}" for value, angle in over.items())
    return f"Mean ECE by parameter: {'; '.join(parts)}. Past 30 degrees by n_t, in degrees: {past}."
