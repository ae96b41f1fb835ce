"""Data efficiency: ECE and NLL on the held-out samples against the number of calibration samples, for every map.

Each repeat draws its own calibration samples, stratified by class. Intervals are of the mean over repeats, which share
the held-out samples.
Source: the paper, Figure "The data efficiency plot".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tna_onnx.errors import DataError
from tna_onnx.numerics.metric import METRICS
from tna_onnx.results.study import Cell, Chart, Column, Line, Study
from tna_onnx.studies.ablation import shown_range
from tna_onnx.studies.methods import PAPER_MAPS, Recalibration, maps_for, plain, scored, sparse
from tna_onnx.studies.run import StudyData
from tna_onnx.studies.settings import StudySettings
from tna_onnx.studies.table import LABELS, mean, mean_interval, measured

__all__ = ["sizes_of", "study"]

_SMALLEST = 50
_NAMES = ("accuracy", "ece", "nll")

# Lines of one chart.
_LINES = 5

Values = dict[tuple[str, int], list[dict[str, float]]]
"""(method, N) -> metrics of each repeat that could be fitted."""


def study(data: StudyData, settings: StudySettings, progress: Callable[[int, int], None]) -> Study:
    """Fit every map on increasing numbers of samples."""
    sizes = sizes_of(len(data.calibration), settings.bins)
    methods = ("tna", *maps_for(len(data.weight)))
    values: Values = {}
    done = 0
    for size in sizes:
        for repeat in range(settings.repeats):
            rng = np.random.default_rng([settings.seed, size, repeat])
            part = data.fewer(size, rng)
            for method in methods:
                done += 1
                progress(done, len(sizes) * settings.repeats * len(methods))
                try:
                    result = _fitted(method, part, settings, settings.seed + repeat)
                except DataError:
                    continue
                values.setdefault((method, size), []).append(measured(scored(data, result), settings.bins))
    level = measured(data.scores(), settings.bins)
    rows = tuple(
        _row(method, size, values[method, size], all_samples=size == sizes[-1])
        for method in methods
        for size in sizes
        if (method, size) in values
    )
    return Study(
        "samples",
        "Data efficiency",
        "data efficiency plot",
        _sentence(methods, sizes, values, level),
        (Column("method", "Method"), Column("samples", "Calibration samples"), Column("fits", "Repeats"), *_columns()),
        rows,
        tuple(_charts(methods, sizes, values, level)),
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


def _fitted(method: str, data: StudyData, settings: StudySettings, seed: int) -> Recalibration:
    if method == "tna":
        return sparse(data, settings, seed)
    return plain(data, method, settings, seed)


def _columns() -> Iterator[Column]:
    for name in _NAMES:
        metric = METRICS[name]
        ends = (f"{name}_low", f"{name}_high")
        yield Column(name, metric.title, metric.factor, metric.digits, beside=ends)
        yield from (Column(end, end, metric.factor, metric.digits, hidden=True) for end in ends)


def _row(method: str, size: int, repeats: list[dict[str, float]], *, all_samples: bool) -> tuple[Cell, ...]:
    cells: list[Cell] = [method, size, len(repeats)]
    for name in _NAMES:
        numbers = [repeat[name] for repeat in repeats]
        # repeats on all samples have the same samples: they say nothing of others
        low, high = (None, None) if all_samples else mean_interval(numbers) or (None, None)
        cells += [mean(numbers), low, high]
    return tuple(cells)


def _charts(methods: tuple[str, ...], sizes: list[int], values: Values, level: dict[str, float]) -> Iterator[Chart]:
    first = ("tna", *PAPER_MAPS)
    groups: list[tuple[str, ...]] = [first]
    extra_methods = [method for method in methods if method not in first]
    groups += [tuple(extra_methods[k : k + _LINES]) for k in range(0, len(extra_methods), _LINES)]
    for group in groups:
        word = "the paper's maps" if group is first else "other maps"
        for name in ("ece", "nll"):
            metric = METRICS[name]
            lines = [_line(method, rank, name, sizes, values) for rank, method in enumerate(group)]
            drawn = tuple(line for line in lines if line.x)
            plain_level = metric.factor * level[name]
            ends = (float(sizes[0]), float(sizes[-1]))
            drawn += (Line("None", ends, (plain_level, plain_level), rank=5, dashed=True, marked=False),)
            title = f"{metric.label}, {word}"
            reach = shown_range(name, plain_level, drawn)
            yield Chart(title, "calibration samples", metric.title, drawn, log_x=True, y_range=reach)


def _line(method: str, rank: int, name: str, sizes: list[int], values: Values) -> Line:
    factor = METRICS[name].factor
    by_size = {
        size: [factor * repeat[name] for repeat in values[method, size]] for size in sizes if (method, size) in values
    }
    drawn = [None if size == sizes[-1] else mean_interval(numbers) for size, numbers in by_size.items()]
    ends = [
        low_high or (mean(numbers), mean(numbers)) for low_high, numbers in zip(drawn, by_size.values(), strict=True)
    ]
    return Line(
        _label(method),
        tuple(map(float, by_size)),
        tuple(map(mean, by_size.values())),
        tuple(low for low, _ in ends),
        tuple(high for _, high in ends),
        rank,
    )


def _label(method: str) -> str:
    return "TNA" if method == "tna" else LABELS.get(method, method)


def _sentence(methods: tuple[str, ...], sizes: list[int], values: Values, level: dict[str, float]) -> str:
    """Say which method has the least ECE on the fewest samples and on all."""
    parts = []
    for size in (sizes[0], sizes[-1]):
        by_method = {m: mean([repeat["ece"] for repeat in values[m, size]]) for m in methods if (m, size) in values}
        if by_method:
            best = min(by_method, key=lambda m: by_method[m])
            parts.append(f"with {size:,} samples {_label(best)} ({METRICS['ece'].number(by_method[best])} %)")
    return f"Lowest mean ECE: {'; '.join(parts)}; the input has {METRICS['ece'].number(level['ece'])} %."
