"""Experiments that vary one thing, measure the held-out samples in several repeats, and draw a curve of it.

    angle         metrics of the averaged weight on both sets of samples: the optimisation curve
    members       accuracy and ECE against the number n_e of averaged members, at several angles
    samples       ECE and NLL of every map against the number of calibration samples: data efficiency
    dimension     ECE and lost accuracy of the same head on random projections of the features

Source: the paper, figures "The data efficiency plot", of the optimisation curve, and on n_e and the dimension n.
"""

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.numerics.averages import LIMIT, Average, Draws, averages
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.results.study import Cell, Chart, Column, Line, Study
from tna_onnx.studies.main_table import (
    LABELS,
    Repeat,
    deviation,
    mean,
    mean_cells,
    mean_interval,
    measured,
    numbers,
    with_hidden,
)
from tna_onnx.studies.recalibrations import (
    PAPER_MAPS,
    Recalibration,
    StudyData,
    fit,
    maps_for,
    plain,
    scored,
    sparse,
    stratified,
    table_rows,
)
from tna_onnx.studies.settings import StudySettings

NAMES = ("accuracy", "ece", "nll")
"""Metrics of each repeat."""

Tell = Callable[[int, int], None]

Case = TypeVar("Case", bound=Hashable)


def repeated(
    cases: Sequence[Case], repeats: int, measure: Callable[[Case, int], Repeat | None], progress: Tell
) -> dict[Case, list[Repeat]]:
    """Measure each case in each repeat; what could not be measured, None, is left out."""
    values: dict[Case, list[Repeat]] = {}
    runs = list(itertools.product(cases, range(repeats)))
    for done, (case, repeat) in enumerate(runs, start=1):
        result = measure(case, repeat)
        if result is not None:
            values.setdefault(case, []).append(result)
        progress(done, len(runs))
    return values


def _metrics(data: StudyData, weight: NDArray[Any], settings: StudySettings) -> Repeat:
    metrics = Metrics.of(data.scores(weight), settings.bins)
    return {name: float(getattr(metrics, name)) for name in NAMES}


def _columns(names: Sequence[str], *ends: str) -> Iterator[Column]:
    """Yield the columns of metrics, and hidden ones of what is shown beside: `sd`, or `low` and `high`."""
    for name in names:
        metric = METRICS[name]
        yield from with_hidden(Column(name, metric.title, metric.factor, metric.digits), *ends)


def _line(
    name: str, points: Mapping[Any, Sequence[float]], factor: float, rank: int, *, interval: bool = False
) -> Line:
    """Return the line of means with a band: one standard deviation both ways, or the interval of the mean.

    `interval`: whether the band is the 95 % interval, which all samples (the last point) do not have.
    """
    points = {x: [factor * value for value in values] for x, values in points.items() if values}
    y = tuple(map(mean, points.values()))
    ends = []
    for x, values, middle in zip(points, points.values(), y, strict=True):
        spread = deviation(values) or 0.0
        band: tuple[float, float] | None = (middle - spread, middle + spread)
        if interval:
            band = None if x == max(points) else mean_interval(values)
        ends.append(band or (middle, middle))
    return Line(
        name, tuple(map(float, points)), y, tuple(low for low, _ in ends), tuple(high for _, high in ends), rank
    )


def _level(name: str, ends: tuple[float, float], value: float, rank: int = 5, *, dashed: bool = False) -> Line:
    return Line(name, ends, (value, value), rank=rank, dashed=dashed, marked=False)


# Errors and losses are shown up to so many times those of the input, accuracies down to so many points below.
_TIMES = 2.5
_POINTS = 12.0
_ROOM = 0.06


def _metric_chart(
    name: str, title: str, x_label: str, lines: Sequence[Line], level: float, *, log_x: bool = False
) -> Chart:
    """Return a chart of a metric; values that matter fit into its axis, outliers are cut off.

    `level`: value of the input, in the shown unit; it is always in the range.
    """
    metric = METRICS[name]
    title = f"{metric.label}{title}"
    return Chart(title, x_label, metric.title, tuple(lines), log_x=log_x, y_range=_axis_range(name, level, lines))


def _axis_range(name: str, level: float, lines: Sequence[Line]) -> tuple[float, float]:
    values = [value for line in lines for value in (*line.y, *line.low, *line.high)]
    if METRICS[name].better > 0:
        low = max(min([level, *values]), level - _POINTS)
        high = max([level, *values])
        # one value would make a scale without length
        room = _ROOM * (high - low) or 0.5
        return low - room, high + room
    # a calibrated model has next to no error: then all is shown
    highest = max([level, *values])
    return 0.0, (1 + _ROOM) * (min(highest, _TIMES * level) if level > 0.05 * highest else highest) or 1.0


# The angle

_STEP = 2.0
_AVERAGED = {10: "10 members", LIMIT: "limit of many"}


def angle(data: StudyData, settings: StudySettings, progress: Tell) -> Study:
    """Score averages along the grid of angles."""
    parts = {"calibration": data.calibration, "held-out": data.held_out}
    grid = np.arange(_STEP, 90, _STEP).tolist()
    rows: list[tuple[Cell, ...]] = []

    def score(size: int, average: Average) -> None:
        weight = average.weight if average.angle else None
        for part, table in parts.items():
            metrics = Metrics.of(data.logits(table, weight).scores(), settings.bins)
            values = (float(getattr(metrics, name)) for name in METRICS)
            rows.append((_AVERAGED[size], part, average.angle, average.reached, *values))

    for size in _AVERAGED:
        score(size, Average(0.0, data.weight, 0.0, 0.0))
        for k, average in enumerate(averages(data.weight, grid, size, Draws(settings.seed))):
            score(size, average)
            progress(k + 1, len(grid))
    columns = (
        Column("members", "Members"),
        Column("data", "Data"),
        Column("angle", "Angle, degrees", 1, 1),
        Column("reached", "mRC reached, degrees", 1, 2),
        *_columns(tuple(METRICS)),
    )
    charts = tuple(_angle_chart(name, rows, columns) for name in ("ece", "accuracy", "nll"))
    ends = {line.name: line.x[int(np.argmin(line.y))] for line in charts[0].lines}
    calibration, held_out = (ends[f"{part}, {_AVERAGED[10]}"] for part in parts)
    sentence = (
        f"With 10 members the ECE is least at {calibration:g} degrees on the calibration samples and at {held_out:g} "
        f"on the held-out ones."
    )
    return Study("angle", "Metrics against the angle", "optimisation curve", sentence, columns, tuple(rows), charts)


def _angle_chart(name: str, rows: list[tuple[Cell, ...]], columns: tuple[Column, ...]) -> Chart:
    metric = METRICS[name]
    k = [column.name for column in columns].index(name)
    lines = []
    for rank, size in enumerate(_AVERAGED.values(), start=1):
        for part in ("calibration", "held-out"):
            curve = [row for row in rows if row[:2] == (size, part)]
            x = tuple(float(row[2] or 0) for row in curve)
            y = tuple(metric.factor * float(row[k] or 0) for row in curve)
            lines.append(Line(f"{part}, {size}", x, y, rank=rank, dashed=part == "calibration", marked=False))
    return _metric_chart(name, " against the angle", "angle, degrees", lines, lines[0].y[0])


# The members

# The paper's 30 degrees, and those around it.
_ANGLES = (15.0, 30.0, 45.0, 60.0, 75.0)
_SIZES = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100)
# Products with all features: more members are left out where these would take longer.
_MAX_MEMBERS = {True: 100, False: 20}
_LARGE = 2**21

_Members = dict[tuple[float, int], list[Repeat]]


def members(data: StudyData, settings: StudySettings, progress: Tell) -> Study:
    """Score averages of more and more members: member k of a repeat is one random path, which is walked once."""
    most = _MAX_MEMBERS[data.weight.size <= _LARGE]
    sizes = [size for size in _SIZES if size <= most]
    values: _Members = {}
    for repeat in range(settings.repeats):
        for degrees, size, weight in _growing(data.weight, sizes, settings.seed, repeat):
            values.setdefault((degrees, size), []).append(_metrics(data, weight, settings))
            progress(repeat * most + size, settings.repeats * most)
    for average in averages(data.weight, _ANGLES, LIMIT, Draws(settings.seed)):
        values[average.angle, LIMIT] = [_metrics(data, average.weight, settings)]
    untilted = _metrics(data, data.weight, settings)
    rows: list[tuple[Cell, ...]] = [(0.0, "not tilted", *mean_cells([untilted], NAMES))]
    for degrees, size in sorted(values, key=lambda key: (key[0], key[1] or math.inf)):
        words = str(size) if size else "limit of many"
        rows.append((degrees, words, *mean_cells(values[degrees, size], NAMES)))
    columns = (Column("angle", "Angle, degrees", 1, 0), Column("members", "Members"), *_columns(NAMES, "sd"))
    charts = tuple(_members_chart(name, values, untilted, most) for name in NAMES)
    ends = []
    for size in (1, 10, max(size for _, size in values)):
        at_size = values.get((30.0, size))
        if at_size:
            change = METRICS["accuracy"].change(mean(numbers(at_size, "accuracy")) - untilted["accuracy"])
            ends.append(f"{change} points with {size}")
    sentence = f"At 30 degrees the accuracy changes by {', '.join(ends)} members averaged."
    return Study("members", "Members averaged", "accuracy against n_e", sentence, columns, tuple(rows), charts)


def _growing(weight: NDArray[Any], sizes: list[int], seed: int, repeat: int) -> Iterator[tuple[float, int, Any]]:
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


def _members_chart(name: str, values: _Members, untilted: Repeat, most: int) -> Chart:
    metric = METRICS[name]
    ends = (1.0, float(most))
    lines = []
    for rank, degrees in enumerate(_ANGLES):
        points = {size: numbers(values[a, size], name) for a, size in sorted(values) if a == degrees and size}
        if points:
            lines.append(_line(f"{degrees:g} degrees", points, metric.factor, rank))
    level = metric.factor * untilted[name]
    for rank, degrees in enumerate(_ANGLES):
        limit = metric.factor * values[degrees, LIMIT][0][name]
        # where the bias is scaled the limit keeps every prediction: one line shows them all
        if limit != level:
            lines.append(_level(f"{degrees:g} degrees, limit", ends, limit, rank, dashed=True))
    lines.append(_level("not tilted", ends, level))
    return _metric_chart(name, " against members", "members averaged", lines, level, log_x=True)


# The calibration samples

_SMALLEST = 50

_Samples = dict[tuple[str, int], list[Repeat]]


def samples(data: StudyData, settings: StudySettings, progress: Tell) -> Study:
    """Fit every map on more and more samples; each repeat draws its own, stratified by class."""
    sizes = sizes_of(len(data.calibration), settings.bins)
    methods = ("tna", *maps_for(len(data.weight)))

    def measure(case: tuple[str, int], repeat: int) -> Repeat | None:
        method, size = case
        part = data.fewer(size, np.random.default_rng([settings.seed, size, repeat]))
        seed = settings.seed + repeat
        try:
            result = sparse(part, settings, seed) if method == "tna" else plain(part, method, settings, seed)
        except DataError:
            return None
        return measured(scored(data, result), settings.bins)

    values = repeated(list(itertools.product(methods, sizes)), settings.repeats, measure, progress)
    level = measured(data.scores(), settings.bins)
    rows = [
        (method, size, len(repeats), *_interval_cells(repeats, size == sizes[-1]))
        for (method, size), repeats in values.items()
    ]
    return Study(
        "samples",
        "Data efficiency",
        "data efficiency plot",
        _samples_sentence(methods, sizes, values, level),
        (
            Column("method", "Method"),
            Column("samples", "Calibration samples"),
            Column("fits", "Repeats"),
            *_columns(NAMES, "low", "high"),
        ),
        tuple(rows),
        tuple(_samples_charts(sizes, values, level)),
        (
            "Where a map cannot be fitted on so few samples, there is no point.",
            "Repeats draw from one set of samples and are scored on one: intervals leave out what other sets would "
            "change, and are too narrow where the repeats share many samples. On all samples there is none.",
        ),
    )


def sizes_of(samples: int, bins: int) -> list[int]:
    """Return sample sizes, each about three times the one before, up to all samples.

    >>> sizes_of(2000, 15)
    [50, 150, 500, 2000]
    """
    steps = (mantissa * 10**power for power in range(1, 7) for mantissa in (5, 15))
    # one just below all of them would say nothing new
    return [*(size for size in steps if max(_SMALLEST, bins) <= size <= samples / 2), samples]


def _interval_cells(repeats: Sequence[Repeat], all_samples: bool) -> Iterator[Cell]:
    for name in NAMES:
        values = numbers(repeats, name)
        # repeats on all samples have the same samples: they say nothing of others
        ends = None if all_samples else mean_interval(values)
        yield from (mean(values), *(ends or (None, None)))


def _samples_charts(sizes: list[int], values: _Samples, level: dict[str, float]) -> Iterator[Chart]:
    for name in ("ece", "nll"):
        metric = METRICS[name]
        lines = []
        for rank, method in enumerate(("tna", *PAPER_MAPS)):
            points = {size: numbers(values[method, size], name) for size in sizes if (method, size) in values}
            if points:
                lines.append(_line(LABELS.get(method, method), points, metric.factor, rank, interval=True))
        input_level = metric.factor * level[name]
        lines.append(_level("None", (float(sizes[0]), float(sizes[-1])), input_level, dashed=True))
        yield _metric_chart(name, ", the paper's maps", "calibration samples", lines, input_level, log_x=True)


def _samples_sentence(methods: tuple[str, ...], sizes: list[int], values: _Samples, level: dict[str, float]) -> str:
    """Say which method has the least ECE on the fewest samples and on all."""
    parts = []
    for size in (sizes[0], sizes[-1]):
        errors = {method: mean(numbers(values[method, size], "ece")) for method in methods if (method, size) in values}
        if errors:
            best = min(errors, key=lambda method: errors[method])
            parts.append(f"with {size:,} samples {LABELS.get(best, best)} ({METRICS['ece'].number(errors[best])} %)")
    return f"Lowest mean ECE: {'; '.join(parts)}; the input has {METRICS['ece'].number(level['ece'])} %."


# The dimension of the features

_SHARES = (16, 8, 4, 2, 1)
_METHODS = {"none": "None", "tna": "TNA", "ts": "TS", "tna_ts": "TS +TNA"}
_TILTS = (15.0, 30.0, 45.0, 60.0)
_TILTED = {1: "one tilted weight", 10: "10 members"}


def narrowed(data: StudyData, dimension: int, rng: np.random.Generator) -> StudyData:
    """Project features and class vectors to a lower dimension.

    The paper trains networks with a narrower layer before the head. Here the features z are projected by a random
    (n', n) matrix P with orthonormal rows, and so are the class vectors: logits are (W P') (P z) + b, which for n' = n
    are the model's own.
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
    return replace(data, weight=weight, calibration=table_rows(joined, first), held_out=table_rows(joined, rest))


def dimension(data: StudyData, settings: StudySettings, progress: Tell) -> Study:
    """Project, calibrate and score."""
    n = data.weight.shape[1]
    dimensions = sorted({max(2, n // share) for share in _SHARES})

    def measure(size: int, repeat: int) -> Repeat:
        part = narrowed(data, size, np.random.default_rng([settings.seed, size, repeat]))
        return _narrow(part, settings, settings.seed + repeat)

    values = repeated(dimensions, settings.repeats, measure, progress)
    names = [*values[dimensions[0]][0]]
    return Study(
        "dimension",
        "Feature dimension",
        "table and figure on the dimension n",
        _dimension_sentence(dimensions, values),
        (Column("n", "n"), *_dimension_columns(names)),
        tuple((size, *mean_cells(values[size], names)) for size in dimensions),
        tuple(_dimension_charts(dimensions, values)),
        (
            "Features and class vectors are projected at random: with the largest n the head is the model's own. The "
            "networks are not trained again, as they are in the paper, and lose accuracy by the projection.",
        ),
    )


def _narrow(data: StudyData, settings: StudySettings, seed: int) -> Repeat:
    """Return the ECE of each method, the accuracy, and the accuracy lost by single and averaged tilted weights."""
    before = Metrics.of(data.scores(), settings.bins)
    tilted = sparse(data, settings, seed)
    methods = {"none": Recalibration(data.weight), "tna": tilted}
    try:
        methods["ts"] = plain(data, "ts", settings, seed)
        fitted = fit("ts", data.logits(data.calibration, tilted.weight), settings)
        methods["tna_ts"] = Recalibration(tilted.weight, fitted)
    except DataError:
        pass
    values: Repeat = {"accuracy": before.accuracy} | {f"ece_{name}": math.nan for name in _METHODS}
    for name, result in methods.items():
        values[f"ece_{name}"] = Metrics.of(scored(data, result), settings.bins).ece
    for size in _TILTED:
        drops = dict.fromkeys(_TILTS, math.nan)
        for average in averages(data.weight, _TILTS, size, Draws(seed)):
            after = Metrics.of(data.scores(average.weight), settings.bins)
            drops[average.angle] = after.accuracy - before.accuracy
        values |= {f"change_{size}_{degrees:g}": drop for degrees, drop in drops.items()}
    return values


def _dimension_columns(names: list[str]) -> Iterator[Column]:
    for name in names:
        title = "accuracy, %"
        if name.startswith("ece_"):
            title = f"ECE of {_METHODS[name.removeprefix('ece_')]}, %"
        elif name.startswith("change_"):
            _, size, degrees = name.split("_")
            title = f"accuracy change at {degrees} degrees, n_e = {size}, points"
        yield from with_hidden(Column(name, title, 100, 2, hidden=name.startswith("change_")), "sd")


def _dimension_charts(dimensions: list[int], values: dict[int, list[Repeat]]) -> Iterator[Chart]:
    lines = []
    for rank, (name, label) in enumerate(_METHODS.items()):
        lines.append(_line(label, {n: numbers(values[n], f"ece_{name}") for n in dimensions}, 100, rank))
    yield Chart("ECE against the dimension", "dimension n", METRICS["ece"].title, tuple(lines), log_x=True)
    for size, words in _TILTED.items():
        lines = []
        for rank, n in enumerate(dimensions):
            drops = {degrees: numbers(values[n], f"change_{size}_{degrees:g}") for degrees in _TILTS}
            points = {0.0: 0.0, **{degrees: 100 * mean(drop) for degrees, drop in drops.items() if drop}}
            lines.append(Line(f"n = {n}", tuple(points), tuple(points.values()), rank=rank))
        reach = (1.06 * min(min(line.y) for line in lines) - 0.5, 1.0)
        title = f"Accuracy change, {words}"
        yield Chart(title, "mRC, degrees", "accuracy change, points", tuple(lines), y_range=reach)


def _dimension_sentence(dimensions: list[int], values: dict[int, list[Repeat]]) -> str:
    degrees = f"{_TILTS[1]:g}"
    costs = []
    for n in (dimensions[0], dimensions[-1]):
        change = 100 * mean(numbers(values[n], f"change_1_{degrees}"))
        costs.append(f"{change:+.2f} points with n = {n:,}")
    before, after = (100 * mean(numbers(values[dimensions[-1]], f"ece_{name}")) for name in ("none", "tna"))
    return (
        f"One weight tilted by {degrees} degrees changes the accuracy by {' and '.join(costs)}. TNA alone changes the "
        f"mean ECE of the whole head from {before:.2f} to {after:.2f} %."
    )
