"""The effect of the feature dimension n: the same head on random projections of the features.

The paper trains networks with a narrower layer before the head. Here the features z are projected by a random (n', n)
matrix P with orthonormal rows, and so are the class vectors: logits are (W P') (P z) + b, which for n' = n are the
model's own. All samples are split in two, for calibration and for scoring.
Source: the paper, Table "Expected Calibration Error ... change in the number of dimension" and the figure beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tna_onnx.errors import DataError
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.numerics.averages import Draws, averages
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.results.study import Cell, Chart, Column, Line, Study
from tna_onnx.studies.methods import Recalibration, fit, plain, scored, sparse
from tna_onnx.studies.run import StudyData, rows_of, stratified
from tna_onnx.studies.settings import StudySettings
from tna_onnx.studies.table import deviation, mean

__all__ = ["narrowed", "study"]


def narrowed(data: StudyData, dimension: int, rng: np.random.Generator) -> StudyData:
    """Project features and class vectors to a lower dimension.

    Args:
        data: both sets of samples are joined and split anew.
        dimension: at most n; n keeps features and weight as they are.
        rng: of the projection and the split.
    """
    features = np.concatenate([data.calibration.features, data.held_out.features]).astype(np.float32)
    labels = np.concatenate([data.calibration.labels, data.held_out.labels])
    weight = data.weight
    n = features.shape[1]
    if dimension < n:
        basis = np.linalg.qr(rng.standard_normal((n, dimension)))[0].astype(np.float32)
        features = features @ basis
        weight = np.ascontiguousarray(weight @ basis)
    joined = FeatureTable(features, labels)
    first = stratified(labels, len(labels) // 2, rng)
    rest = np.setdiff1d(np.arange(len(labels)), first)
    return replace(data, weight=weight, calibration=rows_of(joined, first), held_out=rows_of(joined, rest))


_SHARES = (16, 8, 4, 2, 1)
_METHODS = {"none": "None", "tna": "TNA", "ts": "TS", "tna_ts": "TS +TNA"}

_ANGLES = (15.0, 30.0, 45.0, 60.0)
_SIZES = (1, 10)

Repeat = dict[str, float]


def study(data: StudyData, settings: StudySettings, progress: Callable[[int, int], None]) -> Study:
    """Project, calibrate and score."""
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
            "Features and class vectors are projected at random: with the largest n the head is the model's own. The "
            "networks are not trained again, as they are in the paper, and lose accuracy by the projection.",
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
    angle = f"{_ANGLES[1]:g}"
    costs = []
    for n in (dimensions[0], dimensions[-1]):
        change = 100 * mean(_known(values[n], f"change_1_{angle}"))
        costs.append(f"{change:+.2f} points with n = {n:,}")
    before, after = (100 * mean(_known(values[dimensions[-1]], f"ece_{name}")) for name in ("none", "tna"))
    return (
        f"One weight tilted by {angle} degrees changes the accuracy by {' and '.join(costs)}. TNA alone changes the "
        f"mean ECE of the whole head from {before:.2f} to {after:.2f} %."
    )
