"""Experiments that vary one thing, measure the held-out samples in several repeats, and draw a curve of it.

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
from tna_onnx.results.study import Cell, Chart, Column, Found, Line
from tna_onnx.studies import recalibrations
from tna_onnx.studies.main_table import (
    LABELS,
    Repeat,
    deviation,
    mean,
    mean_cells,
    mean_interval,
    metric_columns,
    metrics_of,
    numbers,
    with_hidden,
)
from tna_onnx.studies.settings import StudySettings

NAMES = ("accuracy", "ece", "nll")
"""Metrics of each repeat."""

Tell = Callable[[int, int], None]

Case = TypeVar("Case", bound=Hashable)
Measured = dict[Case, list[Repeat]]
"""What the repeats of each case measured."""


def repeated(
    cases: Sequence[Case], repeats: int, measure: Callable[[Case, int], Repeat | None], progress: Tell
) -> Measured[Case]:
    """Measure each case in each repeat; what could not be measured, None, is left out."""
    values: Measured[Case] = {}
    runs = list(itertools.product(cases, range(repeats)))
    for done, (case, repeat) in enumerate(runs, start=1):
        result = measure(case, repeat)
        if result is not None:
            values.setdefault(case, []).append(result)
        progress(done, len(runs))
    return values


def _line(
    name: str, points: Mapping[Any, Sequence[float]], factor: float, rank: int, *, interval: bool = False
) -> Iterator[Line]:
    """Yield the line of means with a band, if there are points: one standard deviation, or the interval of the mean.

    `interval`: whether the band is the 95 % interval, which all samples (the last point) do not have.
    """
    scaled = {float(x): [factor * value for value in values] for x, values in points.items() if values}
    if not scaled:
        return
    y = tuple(map(mean, scaled.values()))
    ends: list[tuple[float, float]] = []
    for (x, values), middle in zip(scaled.items(), y, strict=True):
        spread = deviation(values) or 0.0
        if not interval:
            ends.append((middle - spread, middle + spread))
        else:
            ends.append((x < max(scaled) and mean_interval(values)) or (middle, middle))
    low, high = zip(*ends, strict=True)
    yield Line(name, tuple(scaled), y, low, high, rank)


def _level(name: str, ends: Sequence[float], value: float, rank: int = 5, *, dashed: bool = False) -> Line:
    return Line(name, (float(ends[0]), float(ends[-1])), (value, value), rank=rank, dashed=dashed, marked=False)


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
    values = [level, *(value for line in lines for value in (*line.y, *line.low, *line.high))]
    highest = max(values)
    if metric.better > 0:
        low = max(min(values), level - _POINTS)
        # one value would make a scale without length
        room = _ROOM * (highest - low) or 0.5
        reach = (low - room, highest + room)
    else:
        # a calibrated model has next to no error: then all is shown
        if level > 0.05 * highest:
            highest = min(highest, _TIMES * level)
        reach = (0.0, (1 + _ROOM) * highest or 1.0)
    return Chart(f"{metric.label}{title}", x_label, metric.title, tuple(lines), log_x=log_x, y_range=reach)


# The angle

_STEP = 2.0
_AVERAGED = {10: "10 members", LIMIT: "limit of many"}


def angle(data: recalibrations.StudyData, settings: StudySettings, progress: Tell) -> Found:
    """Score averages along the grid of angles."""
    parts = {"calibration": data.calibration, "held-out": data.held_out}
    grid = np.arange(_STEP, 90, _STEP).tolist()
    original = Average(0.0, data.weight, 0.0, 0.0)
    rows: list[tuple[Cell, ...]] = []
    curves: dict[tuple[str, str], list[tuple[float, Repeat]]] = {}
    for size, words in _AVERAGED.items():
        walked = averages(data.weight, grid, size, Draws(settings.seed))
        for k, average in enumerate(itertools.chain([original], walked)):
            for part, table in parts.items():
                values = metrics_of(data.logits(table, average.weight).scores(), settings.bins, tuple(METRICS))
                rows.append((words, part, average.angle, average.reached, *values.values()))
                curves.setdefault((part, words), []).append((average.angle, values))
            progress(k, len(grid))
    charts = [_angle_chart(name, curves) for name in ("ece", "accuracy", "nll")]
    calibration, held_out = (line.x[int(np.argmin(line.y))] for line in charts[0].lines[:2])
    return Found(
        f"With 10 members the ECE is least at {calibration:g} degrees on the calibration samples and at {held_out:g} "
        f"on the held-out ones.",
        (
            Column("members", "Members"),
            Column("data", "Data"),
            Column("angle", "Angle, degrees", 1, 1),
            Column("reached", "mRC reached, degrees", 1, 2),
            *metric_columns(tuple(METRICS)),
        ),
        rows,
        charts,
    )


def _angle_chart(name: str, curves: Mapping[tuple[str, str], Sequence[tuple[float, Repeat]]]) -> Chart:
    lines = []
    for k, ((part, words), curve) in enumerate(curves.items()):
        x, values = zip(*curve, strict=True)
        y = tuple(METRICS[name].factor * repeat[name] for repeat in values)
        # a colour for each number of members
        rank = 1 + k // 2
        lines.append(Line(f"{part}, {words}", x, y, rank=rank, dashed=part == "calibration", marked=False))
    return _metric_chart(name, " against the angle", "angle, degrees", lines, lines[0].y[0])


# The members

# The paper's 30 degrees, and those around it.
_ANGLES = (15.0, 30.0, 45.0, 60.0, 75.0)
_SIZES = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100)
# Products with all features: more members are left out where these would take longer.
_MAX_MEMBERS = {True: 100, False: 20}
_LARGE = 2**21


def members(data: recalibrations.StudyData, settings: StudySettings, progress: Tell) -> Found:
    """Score averages of more and more members: member k of a repeat is one random path, which is walked once."""
    limit = _MAX_MEMBERS[data.weight.size <= _LARGE]
    sizes = [size for size in _SIZES if size <= limit]
    values: Measured[tuple[float, int]] = {}

    def measure(weight: NDArray[Any]) -> Repeat:
        return metrics_of(data.scores(weight), settings.bins, NAMES)

    for repeat in range(settings.repeats):
        for degrees, size, weight in _growing(data.weight, sizes, settings.seed, repeat):
            values.setdefault((degrees, size), []).append(measure(weight))
            progress(repeat * limit + size, settings.repeats * limit)
    for average in averages(data.weight, _ANGLES, LIMIT, Draws(settings.seed)):
        values[average.angle, LIMIT] = [measure(average.weight)]
    untilted = measure(data.weight)
    rows: list[tuple[Cell, ...]] = [(0.0, "not tilted", *mean_cells([untilted], NAMES))]
    for degrees, size in sorted(values, key=lambda key: (key[0], key[1] or math.inf)):
        rows.append((degrees, str(size or "limit of many"), *mean_cells(values[degrees, size], NAMES)))
    ends = []
    for size in (1, 10, max(size for _, size in values)):
        if (30.0, size) in values:
            change = mean(numbers(values[30.0, size], "accuracy")) - untilted["accuracy"]
            ends.append(f"{METRICS['accuracy'].change(change)} points with {size}")
    return Found(
        f"At 30 degrees the accuracy changes by {', '.join(ends)} members averaged.",
        (Column("angle", "Angle, degrees", 1, 0), Column("members", "Members"), *metric_columns(NAMES, "sd")),
        rows,
        [_members_chart(name, values, untilted, (1, limit)) for name in NAMES],
    )


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


def _members_chart(name: str, values: Measured[tuple[float, int]], untilted: Repeat, ends: Sequence[int]) -> Chart:
    factor = METRICS[name].factor
    level = factor * untilted[name]
    lines: list[Line] = []
    for rank, degrees in enumerate(_ANGLES):
        points = {size: numbers(values[a, size], name) for a, size in sorted(values) if a == degrees and size}
        lines += _line(f"{degrees:g} degrees", points, factor, rank)
    limits = [factor * values[degrees, LIMIT][0][name] for degrees in _ANGLES]
    lines += [
        _level(f"{degrees:g} degrees, limit", ends, limit, rank, dashed=True)
        for rank, (degrees, limit) in enumerate(zip(_ANGLES, limits, strict=True))
        # where the bias is scaled the limit keeps every prediction: one line shows them all
        if limit != level
    ]
    lines.append(_level("not tilted", ends, level))
    return _metric_chart(name, " against members", "members averaged", lines, level, log_x=True)


# The calibration samples

_SMALLEST = 50


def samples(data: recalibrations.StudyData, settings: StudySettings, progress: Tell) -> Found:
    """Fit every map on more and more samples; each repeat draws its own, stratified by class."""
    sizes = sizes_of(len(data.calibration), settings.bins)

    def measure(case: tuple[int, str], repeat: int) -> Repeat | None:
        size, method = case
        fewer = data.fewer(size, np.random.default_rng([settings.seed, size, repeat]))
        seed = settings.seed + repeat
        try:
            if method == "tna":
                result = recalibrations.sparse(fewer, settings, seed)
            else:
                result = recalibrations.plain(fewer, method, settings, seed)
            return metrics_of(recalibrations.scored(data, result), settings.bins, NAMES)
        except DataError:
            return None

    cases = [(size, method) for method in ("tna", *recalibrations.maps_for(len(data.weight))) for size in sizes]
    values = repeated(cases, settings.repeats, measure, progress)
    level = metrics_of(data.scores(), settings.bins, NAMES)
    lowest = []
    for size in (sizes[0], sizes[-1]):
        errors = {method: mean(numbers(repeats, "ece")) for (n, method), repeats in values.items() if n == size}
        if errors:
            best = min(errors, key=lambda method: errors[method])
            error = METRICS["ece"].number(errors[best])
            lowest.append(f"with {size:,} samples {LABELS.get(best, best)} ({error} %)")
    return Found(
        f"Lowest mean ECE: {'; '.join(lowest)}; the input has {METRICS['ece'].number(level['ece'])} %.",
        (
            Column("method", "Method"),
            Column("samples", "Calibration samples"),
            Column("fits", "Repeats"),
            *metric_columns(NAMES, "low", "high"),
        ),
        [
            # repeats on all samples have the same samples: they say nothing of others
            (method, size, len(repeats), *_cells(repeats, with_interval=size < sizes[-1]))
            for (size, method), repeats in values.items()
        ],
        [_samples_chart(name, sizes, values, METRICS[name].factor * level[name]) for name in ("ece", "nll")],
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


def _cells(repeats: Sequence[Repeat], *, with_interval: bool) -> Iterator[Cell]:
    for name in NAMES:
        values = numbers(repeats, name)
        ends = mean_interval(values) if with_interval else None
        yield from (mean(values), *(ends or (None, None)))


def _samples_chart(name: str, sizes: list[int], values: Measured[tuple[int, str]], level: float) -> Chart:
    lines: list[Line] = []
    for rank, method in enumerate(("tna", *recalibrations.PAPER_MAPS)):
        points = {size: numbers(values[size, method], name) for size in sizes if (size, method) in values}
        lines += _line(LABELS.get(method, method), points, METRICS[name].factor, rank, interval=True)
    lines.append(_level("None", sizes, level, dashed=True))
    return _metric_chart(name, ", the paper's maps", "calibration samples", lines, level, log_x=True)


# The dimension of the features

_SHARES = (16, 8, 4, 2, 1)
_METHODS = {"none": "None", "tna": "TNA", "ts": "TS", "tna_ts": "TS +TNA"}
_TILTS = (15.0, 30.0, 45.0, 60.0)
_TILTED = {1: "one tilted weight", 10: "10 members"}


def narrowed(data: recalibrations.StudyData, dimension: int, rng: np.random.Generator) -> recalibrations.StudyData:
    """Project features and class vectors to a lower dimension.

    The paper trains networks with a narrower layer before the head. Here the features z are projected by a random
    (n', n) matrix P with orthonormal rows, and so are the class vectors: logits are (W P') (P z) + b, which for n' = n
    are the model's own.
    """
    joined = data.joined()
    features = joined.features.astype(np.float32)
    weight = data.weight
    n = features.shape[1]
    if dimension < n:
        basis = np.linalg.qr(rng.standard_normal((n, dimension)))[0].astype(np.float32)
        features = features @ basis
        weight = np.ascontiguousarray(weight @ basis)
    table = FeatureTable(features, joined.labels)
    return replace(data, weight=weight).divided(table, len(table) // 2, rng)


def dimension(data: recalibrations.StudyData, settings: StudySettings, progress: Tell) -> Found:
    """Project, calibrate and score."""
    n = data.weight.shape[1]
    dimensions = sorted({max(2, n // share) for share in _SHARES})

    def measure(size: int, repeat: int) -> Repeat:
        part = narrowed(data, size, np.random.default_rng([settings.seed, size, repeat]))
        return _narrow(part, settings, settings.seed + repeat)

    values = repeated(dimensions, settings.repeats, measure, progress)
    titles = {"accuracy": "accuracy, %"} | {f"ece_{name}": f"ECE of {label}, %" for name, label in _METHODS.items()}
    titles |= {
        f"change_{size}_{degrees:g}": f"accuracy change at {degrees:g} degrees, n_e = {size}, points"
        for size in _TILTED
        for degrees in _TILTS
    }
    columns = [Column(name, title, 100, 2, hidden=name.startswith("change_")) for name, title in titles.items()]
    costs = []
    for size in (dimensions[0], dimensions[-1]):
        change = 100 * mean(numbers(values[size], f"change_1_{_TILTS[1]:g}"))
        costs.append(f"{change:+.2f} points with n = {size:,}")
    before, after = (100 * mean(numbers(values[dimensions[-1]], f"ece_{name}")) for name in ("none", "tna"))
    return Found(
        f"One weight tilted by {_TILTS[1]:g} degrees changes the accuracy by {' and '.join(costs)}. TNA alone changes "
        f"the mean ECE of the whole head from {before:.2f} to {after:.2f} %.",
        (Column("n", "n"), *itertools.chain.from_iterable(with_hidden(column, "sd") for column in columns)),
        [(size, *mean_cells(values[size], tuple(titles))) for size in dimensions],
        list(_dimension_charts(dimensions, values)),
        (
            "Features and class vectors are projected at random: with the largest n the head is the model's own. The "
            "paper trains networks again; here they keep their weights, and lose accuracy by the projection.",
        ),
    )


def _narrow(data: recalibrations.StudyData, settings: StudySettings, seed: int) -> Repeat:
    """Return the ECE of each method, the accuracy, and the accuracy lost by single and averaged tilted weights."""
    before = Metrics.of(data.scores(), settings.bins)
    tilted = recalibrations.sparse(data, settings, seed)
    methods = {"none": recalibrations.Recalibration(data.weight), "tna": tilted}
    try:
        methods["ts"] = recalibrations.plain(data, "ts", settings, seed)
        fitted = recalibrations.fit("ts", data.logits(data.calibration, tilted.weight), settings)
        methods["tna_ts"] = recalibrations.Recalibration(tilted.weight, fitted)
    except DataError:
        pass
    values: Repeat = {"accuracy": before.accuracy} | {f"ece_{name}": math.nan for name in _METHODS}
    for name, result in methods.items():
        values[f"ece_{name}"] = Metrics.of(recalibrations.scored(data, result), settings.bins).ece
    for size in _TILTED:
        values |= {f"change_{size}_{degrees:g}": math.nan for degrees in _TILTS}
        for average in averages(data.weight, _TILTS, size, Draws(seed)):
            after = Metrics.of(data.scores(average.weight), settings.bins)
            values[f"change_{size}_{average.angle:g}"] = after.accuracy - before.accuracy
    return values


def _dimension_charts(dimensions: list[int], values: Measured[int]) -> Iterator[Chart]:
    lines: list[Line] = []
    for rank, (name, label) in enumerate(_METHODS.items()):
        lines += _line(label, {n: numbers(values[n], f"ece_{name}") for n in dimensions}, 100, rank)
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
