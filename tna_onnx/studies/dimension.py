"""The effect of the feature dimension n: random projections of the features, with a new head for each.

The paper trains networks with a narrower layer before the head. Here the features z are projected by a random (n', n)
matrix with orthonormal rows, and a head is fitted on the projected features of some of the samples, by softmax
regression with next to no ridge, so that it is overconfident like a trained one. The remaining samples are split in
two, for calibration and for scoring.
Source: the paper, Table "Expected Calibration Error ... change in the number of dimension" and the figure beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tna_onnx.errors import DataError
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.numerics.averages import Draws, averages
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.multinomial import principal_axes, ridge_path
from tna_onnx.results.study import Cell, Chart, Column, Line, Study
from tna_onnx.studies.methods import Recalibration, fit, plain, scored, sparse
from tna_onnx.studies.run import StudyData, rows_of, stratified
from tna_onnx.studies.settings import StudySettings
from tna_onnx.studies.table import deviation, mean

__all__ = ["narrowed", "study"]


# The last strength of the path is what the head has; those before it are where it starts from.
_STRENGTHS = (1e-2, 1e-3, 1e-4, 1e-5)


def narrowed(data: StudyData, dimension: int, rng: np.random.Generator) -> StudyData:
    """Project features to a lower dimension, and fit a head on half of all samples.

    Args:
        data: both sets of samples are joined and split anew.
        dimension: at most n; n keeps the features as they are.
        rng: of the projection and the splits.
    """
    features = np.concatenate([data.calibration.features, data.held_out.features]).astype(np.float32)
    labels = np.concatenate([data.calibration.labels, data.held_out.labels])
    n = features.shape[1]
    if dimension < n:
        basis, _ = np.linalg.qr(rng.standard_normal((n, dimension)))
        features = features @ basis.astype(np.float32)
    joined = FeatureTable(features, labels)
    fitted = stratified(labels, len(labels) // 2, rng)
    weight, bias = _head(rows_of(joined, fitted), len(data.weight))
    rest = rows_of(joined, np.setdiff1d(np.arange(len(labels)), fitted))
    first = stratified(rest.labels, len(rest) // 2, rng)
    remaining = np.setdiff1d(np.arange(len(rest)), first)
    return replace(data, weight=weight, bias=bias, calibration=rows_of(rest, first), held_out=rows_of(rest, remaining))


def _head(table: FeatureTable, classes: int) -> tuple[Any, Any]:
    """Fit a (C, n) weight and a (C,) bias."""
    features = np.asarray(table.features, np.float32)
    # one for all: scaled by its own, a feature that is hardly ever active would get a weight so large that a tilt,
    # which carries a part of it to all the others, would leave nothing but that
    scale = np.float32(np.sqrt(np.mean(np.square(features), dtype=np.float64))) or np.float32(1)
    axes = principal_axes(np.hstack([features / scale, np.ones((len(features), 1), np.float32)]))
    scores = np.zeros((len(features), classes), np.float32)
    solution = list(ridge_path(scores, table.labels, axes, _STRENGTHS))[-1] @ axes.axes.T
    return np.ascontiguousarray(solution[:, :-1] / scale), np.ascontiguousarray(solution[:, -1])


_SHARES = (16, 8, 4, 2, 1)
_METHODS = {"none": "None", "tna": "TNA", "ts": "TS", "tna_ts": "TS +TNA"}

_ANGLES = (15.0, 30.0, 45.0, 60.0)
_SIZES = (1, 10)

Repeat = dict[str, float]


def study(data: StudyData, settings: StudySettings, progress: Callable[[int, int], None]) -> Study:
    """Project, fit, calibrate and score."""
    n = data.weight.shape[1]
    dimensions = sorted({max(2, n // share) for share in _SHARES})
    values: dict[int, list[Repeat]] = {}
    for k, dimension in enumerate(dimensions):
        for repeat in range(settings.repeats):
            rng = np.random.default_rng([settings.seed, dimension, repeat])
            part = narrowed(data, dimension, rng)
            values.setdefault(dimension, []).append(_measured(part, settings, settings.seed + repeat))
            progress(k * settings.repeats + repeat + 1, len(dimensions) * settings.repeats)
    names = [*values[dimensions[0]][0]]
    rows = tuple(_row(dimension, values[dimension], names) for dimension in dimensions)
    return Study(
        "dimension",
        "Feature dimension",
        "table and figure on the dimension n",
        _sentence(dimensions, values),
        (Column("n", "n"), *_columns(names)),
        rows,
        tuple(_charts(dimensions, values)),
        (
            "Features are projected at random and the head is fitted anew on half of all samples; the networks "
            "themselves are not trained again, as they are in the paper.",
        ),
    )


def _measured(data: StudyData, settings: StudySettings, seed: int) -> Repeat:
    """Return the ECE of each method, the accuracy, and the accuracy lost by single and averaged tilted weights."""
    before = Metrics.of(data.scores(), settings.bins)
    tilted = sparse(data, settings, seed)
    methods: dict[str, Recalibration | None] = {
        "none": Recalibration(data.weight),
        "tna": tilted,
        "ts": None,
        "tna_ts": None,
    }
    try:
        methods["ts"] = plain(data, "ts", settings, seed)
        fitted = fit("ts", data.logits(data.calibration, tilted.weight), settings)
        methods["tna_ts"] = Recalibration(tilted.weight, fitted)
    except DataError:
        pass
    values: Repeat = {"accuracy": before.accuracy}
    for name, result in methods.items():
        values[f"ece_{name}"] = float("nan") if result is None else Metrics.of(scored(data, result), settings.bins).ece
    for size in _SIZES:
        drops = dict.fromkeys(_ANGLES, float("nan"))
        for average in averages(data.weight, _ANGLES, size, Draws(seed)):
            after = Metrics.of(data.scores(average.weight), settings.bins)
            drops[average.angle] = after.accuracy - before.accuracy
        values |= {f"change_{size}_{angle:g}": drop for angle, drop in drops.items()}
    return values


def _columns(names: list[str]) -> list[Column]:
    columns = []
    for name in names:
        title = "accuracy, %"
        if name.startswith("ece_"):
            title = f"ECE of {_METHODS[name.removeprefix('ece_')]}, %"
        elif name.startswith("change_"):
            _, size, angle = name.split("_")
            title = f"accuracy change at {angle} degrees, n_e = {size}, points"
        columns.append(Column(name, title, 100, 2, 0, (f"{name}_sd",), hidden=name.startswith("change_")))
        columns.append(Column(f"{name}_sd", f"SD of {title}", 100, 2, hidden=True))
    return columns


def _known(repeats: list[Repeat], name: str) -> list[float]:
    return [repeat[name] for repeat in repeats if not np.isnan(repeat[name])]


def _row(dimension: int, repeats: list[Repeat], names: list[str]) -> tuple[Cell, ...]:
    cells: list[Cell] = [dimension]
    for name in names:
        values = _known(repeats, name)
        cells += [mean(values), deviation(values)] if values else [None, None]
    return tuple(cells)


def _charts(dimensions: list[int], values: dict[int, list[Repeat]]) -> list[Chart]:
    lines = []
    for rank, (name, label) in enumerate(_METHODS.items()):
        by_dimension = {n: [100 * value for value in _known(values[n], f"ece_{name}")] for n in dimensions}
        by_dimension = {n: numbers for n, numbers in by_dimension.items() if numbers}
        y = tuple(map(mean, by_dimension.values()))
        spread = [deviation(numbers) or 0.0 for numbers in by_dimension.values()]
        low = tuple(a - b for a, b in zip(y, spread, strict=True))
        high = tuple(a + b for a, b in zip(y, spread, strict=True))
        lines.append(Line(label, tuple(map(float, by_dimension)), y, low, high, rank))
    charts = [Chart("ECE against the dimension", "dimension n", METRICS["ece"].title, tuple(lines), log_x=True)]
    for size, words in zip(_SIZES, ("one tilted weight", "10 members"), strict=True):
        charts.append(_cost(dimensions, values, size, f"Accuracy change, {words}"))
    return charts


def _cost(dimensions: list[int], values: dict[int, list[Repeat]], size: int, title: str) -> Chart:
    lines = []
    for rank, n in enumerate(dimensions):
        by_angle = {angle: _known(values[n], f"change_{size}_{angle:g}") for angle in _ANGLES}
        points = [(0.0, 0.0), *((angle, 100 * mean(numbers)) for angle, numbers in by_angle.items() if numbers)]
        lines.append(Line(f"n = {n}", tuple(x for x, _ in points), tuple(y for _, y in points), rank=rank))
    lowest = min(min(line.y) for line in lines)
    return Chart(title, "mRC, degrees", "accuracy change, points", tuple(lines), y_range=(1.06 * lowest - 0.5, 1.0))


def _sentence(dimensions: list[int], values: dict[int, list[Repeat]]) -> str:
    ends = []
    for n in (dimensions[0], dimensions[-1]):
        before = mean(_known(values[n], "ece_none"))
        after = mean(_known(values[n], "ece_tna"))
        ends.append(f"with n = {n:,} from {100 * before:.2f} to {100 * after:.2f} %")
    return f"TNA alone changes the mean ECE {'; '.join(ends)}."
