"""The paper's main table: every map alone, and the paper's maps after a sparse and in a complete search.

All samples are split anew for each repeat, stratified by class. All rows share the splits, so differences are paired.
Rows hold means with deviations, differences with intervals, and verdicts in words.

Repeated splits of one set of samples overlap, so that the mean of R paired differences varies more than the mean of R
independent ones: its variance is (1/R + n_2/n_1) s^2 with n_1 samples fitted and n_2 scored.

Source: Nadeau & Bengio (2003), "Inference for the generalization error", section 3, the corrected resampled t-test.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from tna_onnx.errors import DataError
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Metrics, debiased_ece
from tna_onnx.numerics.reliability import CumulativeTest
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.results.study import Cell, Column, Footnote, Study
from tna_onnx.studies.recalibrations import (
    PAPER_MAPS,
    Recalibration,
    Tick,
    chosen,
    complete,
    fit,
    maps_for,
    plain,
    scored,
    sparse,
)
from tna_onnx.studies.settings import StudySettings
from tna_onnx.studies.study_data import StudyData

_LEVEL = 0.95


def mean(values: Sequence[float]) -> float:
    """Return the mean."""
    return float(np.mean(values, dtype=np.float64))


def deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation; None of a single value."""
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1, dtype=np.float64))


def mean_interval(values: Sequence[float], overlap: float = 0.0) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of R values; None of a single value.

    `overlap`: n_2 / n_1 for repeated splits of one set of samples, 0 for independent repeats.

    >>> mean_interval([1.0, 1.0, 1.0])
    (1.0, 1.0)
    """
    spread = deviation(values)
    if spread is None:
        return None
    from scipy.special import stdtrit  # noqa: PLC0415 - heavy

    count = len(values)
    width = float(stdtrit(count - 1, (1 + _LEVEL) / 2)) * spread * math.sqrt(1 / count + overlap)
    centre = mean(values)
    return centre - width, centre + width


def paired_interval(
    before: Sequence[float], after: Sequence[float], fitted: int, scored: int
) -> tuple[float, tuple[float, float] | None]:
    """Return the mean difference `after - before` over repeated splits, and its 95 % interval."""
    differences = [b - a for a, b in zip(before, after, strict=True)]
    return mean(differences), mean_interval(differences, scored / fitted)


LABELS = {"none": "None", "irova": "IROvA", "ts": "TS", "ets": "ETS", "aar": "AAR"}

# Besides `METRICS`: name -> title. Both are fractions, of which smaller ones are better.
_BIN_FREE = {"ece_debiased": "debiased ECE, %", "cumulative": "cumulative difference, %"}

Row = tuple[str, str]
"""(search, map)."""


@dataclass(frozen=True, eq=False)
class Runs:
    """The metrics of every repeat by row, and the result of each search."""

    values: dict[Row, list[dict[str, float]]] = field(default_factory=dict)
    results: dict[Row, list[Recalibration]] = field(default_factory=dict)
    failed: dict[Row, str] = field(default_factory=dict)

    def of(self, row: Row, name: str) -> list[float]:
        """Return a metric of a row for every repeat."""
        return [values[name] for values in self.values[row]]


def label(row: Row) -> str:
    """Return the paper's name of a row."""
    search, name = row
    if search == "auto":
        return "Default"
    text = LABELS.get(name, name)
    if row == ("sparse", "none"):
        return "None +TNA"
    return text + {"none": "", "sparse": " +TNA (sparse)", "complete": " +TNA (comp.)"}[search]


# Metrics before the verdict, and after it.
_FIRST = ("accuracy", "ece", "adaece", "nll")
_LAST = tuple(name for name in (*METRICS, *_BIN_FREE) if name not in _FIRST)


def columns() -> tuple[Column, ...]:
    """Return the columns of the table."""
    listed = [Column("method", "Method")]
    for name in _FIRST:
        listed += _with_deviation(name)
    listed.append(Column("verdict", "Verdict"))
    for name in ("ece", "nll"):
        metric = METRICS[name]
        ends = (f"{name}_change_low", f"{name}_change_high")
        title = f"{metric.label} change, {metric.change_unit}"
        listed.append(Column(f"{name}_change", title, metric.factor, metric.digits, beside=ends))
        listed += [Column(end, end, metric.factor, metric.digits, hidden=True) for end in ends]
    for name in _LAST:
        listed += _with_deviation(name)
    return (*listed, Column("angle", "Angle, degrees", 1, 1), Column("members", "Members"))


def _with_deviation(name: str) -> tuple[Column, Column]:
    spread = f"{name}_sd"
    if name in _BIN_FREE:
        title = _BIN_FREE[name]
        return Column(name, title, 100, 2, -1, (spread,)), Column(spread, f"SD of {title}", 100, 2, hidden=True)
    metric = METRICS[name]
    spread_column = Column(name, metric.title, metric.factor, metric.digits, metric.better, (spread,))
    return spread_column, Column(spread, f"SD of {metric.title}", metric.factor, metric.digits, hidden=True)


def cells_of(row: Row, runs: Runs, sizes: tuple[int, int]) -> Iterator[Cell]:
    """Yield the cells of a row; `sizes` are numbers of samples to fit on and to score."""
    yield label(row)
    yield from _means(row, runs, _FIRST)
    base = _base_of(row)
    yield _verdict(runs, base, row, sizes)
    for name in ("ece", "nll"):
        yield from _change(runs, base, row, name, sizes)
    yield from _means(row, runs, _LAST)
    results = runs.results[row]
    tilted = [result for result in results if result.angle > 0]
    yield mean([result.angle for result in results]) if tilted else None
    yield _counted(tilted)


def _means(row: Row, runs: Runs, names: tuple[str, ...]) -> Iterator[Cell]:
    for name in names:
        values = runs.of(row, name)
        yield mean(values)
        yield deviation(values)


def _counted(tilted: list[Recalibration]) -> str:
    """Describe how often each number of members was averaged."""
    names = Counter(str(result.members) if result.members else "limit" for result in tilted)
    return ", ".join(name if len(names) == 1 else f"{name} ({times})" for name, times in names.most_common())


def _base_of(row: Row) -> Row | None:
    """Return the row to compare with: the same map alone; the input for a map; None for the input."""
    search, name = row
    if search in ("sparse", "complete"):
        return ("none", name)
    if row == _INPUT:
        return None
    return _INPUT


def _change(runs: Runs, base: Row | None, row: Row, name: str, sizes: tuple[int, int]) -> tuple[Cell, Cell, Cell]:
    if base is None or base not in runs.values or len(runs.values[base]) != len(runs.values[row]):
        return None, None, None
    difference, interval = paired_interval(runs.of(base, name), runs.of(row, name), *sizes)
    low, high = interval or (None, None)
    return difference, low, high


def _verdict(runs: Runs, base: Row | None, row: Row, sizes: tuple[int, int]) -> str:
    """State which of accuracy, ECE and NLL are significantly better or worse."""
    if base is None:
        return ""
    words: dict[int, list[str]] = {1: [], -1: []}
    for name in ("accuracy", "ece", "nll"):
        _, low, high = _change(runs, base, row, name, sizes)
        if isinstance(low, float) and isinstance(high, float) and (side := METRICS[name].standing(low, high)):
            words[side].append(METRICS[name].label)
    parts = [f"{word}: {', '.join(words[side])}" for side, word in ((1, "better"), (-1, "worse")) if words[side]]
    return "; ".join(parts) or "no significant difference"


_INPUT: Row = ("none", "none")


def less_accurate(rows: Sequence[Row], runs: Runs, sizes: tuple[int, int]) -> list[Row]:
    """Return the rows whose accuracy is significantly below that of the input."""
    changes = ((row, _change(runs, _INPUT, row, "accuracy", sizes)[2]) for row in rows if row != _INPUT)
    return [row for row, high in changes if isinstance(high, float) and high < 0]


def as_temperature(rows: Sequence[Row], runs: Runs) -> list[Row]:
    """Return the rows with a search that came to the numbers of one temperature, as only the limit was left."""
    return [
        row
        for row in rows
        if row[0] in ("sparse", "complete")
        and all(result.angle == 0 or result.members == 0 for result in runs.results[row])
        and all(np.allclose(runs.of(row, name), runs.of(("none", "ts"), name), rtol=1e-3) for name in _FIRST)
    ]


def footnotes_of(rows: list[Row], runs: Runs, sizes: tuple[int, int]) -> tuple[Footnote, ...]:
    """Return what is to be known of some rows."""
    texts = {
        "†": "loses accuracy against the input, significantly; never the best of a column, and not counted.",
        "‡": "as TS: where the accuracy must not fall, the search leaves the limit of many members, which is one "
        "temperature.",
    }
    marked = {"†": less_accurate(rows, runs, sizes), "‡": as_temperature(rows, runs) if ("none", "ts") in rows else []}
    return tuple(
        Footnote(mark, tuple(rows.index(row) for row in marked[mark]), text, barred=mark == "†")
        for mark, text in texts.items()
        if marked[mark]
    )


def sentence(rows: list[Row], runs: Runs, sizes: tuple[int, int]) -> str:
    """State the effect of tilting on top of the maps, and the row with the smallest ECE, without loss of accuracy."""
    losing = less_accurate(rows, runs, sizes)
    tilted = [row for row in rows if row[0] in ("sparse", "complete") and row[1] != "none"]
    counted = [row for row in tilted if row not in losing]
    lower = 0
    clear = 0
    for row in counted:
        difference, _, high = _change(runs, _base_of(row), row, "ece", sizes)
        lower += isinstance(difference, float) and difference < 0
        clear += isinstance(high, float) and high < 0
    best = min((row for row in rows if row not in losing), key=lambda row: mean(runs.of(row, "ece")))
    value = METRICS["ece"].number(mean(runs.of(best, "ece")))
    accuracy, input_accuracy = (METRICS["accuracy"].number(mean(runs.of(row, "accuracy"))) for row in (best, _INPUT))
    excluded = len(tilted) - len(counted)
    remark = f"; {excluded} more lose accuracy significantly and are not counted" if excluded else ""
    return (
        f"Tilting lowers the mean ECE on top of a map in {lower} of {len(counted)} cases, significantly in "
        f"{clear}{remark}. The lowest mean ECE without such a loss is that of {label(best)}, {value} % at an accuracy "
        f"of {accuracy} %; the input has {input_accuracy} %."
    )


def measured(scores: SampleScores, bins: int) -> dict[str, float]:
    """Return all metrics of the scores by name."""
    metrics = Metrics.of(scores, bins)
    values = {name: float(getattr(metrics, name)) for name in METRICS}
    cumulative = CumulativeTest.of(scores).kolmogorov_smirnov
    return values | {"ece_debiased": debiased_ece(scores, bins), "cumulative": cumulative}


def table(data: StudyData, settings: StudySettings, progress: Callable[[int, int], None]) -> Study:
    """Make the table."""
    runs = Runs()
    names = maps_for(len(data.weight))
    rows = list(_rows(names))
    for repeat in range(settings.repeats):
        split = data.split(repeat, settings.seed)
        seed = settings.seed + repeat
        report = _RepeatProgress(progress, repeat, settings.repeats)
        report(0.0)
        tilted = sparse(split, settings, seed, report.part(*_SPARSE))
        pairs = complete(split, PAPER_MAPS, settings, seed, report.part(*_COMPLETE))
        for k, row in enumerate(rows):
            _run(row, split, settings, seed, tilted, pairs, runs)
            report(_COMPLETE[1] + (1 - _COMPLETE[1]) * (k + 1) / len(rows))
    complete_rows = [row for row in rows if row not in runs.failed]
    sizes = (len(data.calibration), len(data.held_out))
    cells = tuple(tuple(cells_of(row, runs, sizes)) for row in complete_rows)
    notes = [f"{label(row)} is left out: {reason}" for row, reason in runs.failed.items()]
    notes += [
        "Both sets of samples are split anew for each repeat. Intervals are 95 %, corrected for the overlap of splits.",
        "Changes and verdicts of rows with TNA are against the same map alone, those of maps against None.",
    ]
    return Study(
        "table",
        "Main results",
        "main table",
        sentence(complete_rows, runs, sizes),
        columns(),
        cells,
        notes=tuple(notes),
        footnotes=footnotes_of(complete_rows, runs, sizes),
    )


# Shares of a repeat, roughly as long as they take: both searches, and behind them the rows.
_SPARSE = (0.0, 0.2)
_COMPLETE = (0.2, 0.7)
_UNITS = 1000


@dataclass(frozen=True)
class _RepeatProgress:
    """Progress of one repeat, as a share of it."""

    progress: Callable[[int, int], None]
    repeat: int
    repeats: int

    def __call__(self, share: float) -> None:
        self.progress(self.repeat * _UNITS + round(_UNITS * share), self.repeats * _UNITS)

    def part(self, start: float, end: float) -> Tick:
        """Return what a search calls with its own share."""
        return lambda share: self(start + (end - start) * share)


def _rows(names: tuple[str, ...]) -> Iterator[Row]:
    yield ("none", "none")
    yield ("sparse", "none")
    for name in names:
        yield ("none", name)
        if name in PAPER_MAPS:
            yield ("sparse", name)
            yield ("complete", name)
    yield ("auto", "auto")


def _run(
    row: Row,
    data: StudyData,
    settings: StudySettings,
    seed: int,
    tilted: Recalibration,
    pairs: Mapping[str, Recalibration],
    runs: Runs,
) -> None:
    """Fit one row on one split, and score it."""
    if row in runs.failed:
        return
    search, name = row
    try:
        if search == "auto":
            # what `calibrate` does, whatever the protocol of the other rows
            data = replace(data, tilt_bias=True)
            result = chosen(data, settings.by_default, seed)
        elif search == "complete":
            if name not in pairs:
                raise DataError("it cannot be fitted on the original weight")
            result = pairs[name]
        elif search == "sparse":
            fitted = fit(name, data.logits(data.calibration, tilted.weight), settings)
            result = Recalibration(tilted.weight, fitted, tilted.angle, tilted.members)
        else:
            result = plain(data, name, settings, seed)
    except DataError as error:
        runs.failed[row] = str(error)
        return
    runs.values.setdefault(row, []).append(measured(scored(data, result), settings.bins))
    runs.results.setdefault(row, []).append(result)


# The cost

# Products are short: enough of them to measure.
_PRODUCTS = 5
# Runs of which the shortest counts; a search is long enough to be measured once.
_RUNS = 2


def time(data: StudyData, settings: StudySettings, progress: Callable[[int, int], None]) -> Study:
    """Time every search and fit: seconds, and the equivalent number of products of all features with a weight.

    Seconds differ from run to run; the number of candidates does not. Each time is the shortest of a few runs.
    Source: the paper, section "Experimental Details", on computation.
    """
    product = min(_seconds(lambda: _product(data))[0] for _ in range(_PRODUCTS))
    rows: list[tuple[Cell, ...]] = [("one product with all features, and scores", product, 1.0, 1)]
    steps = list(_timed_steps(data, settings))
    for k, (name, make, runs) in enumerate(steps):
        try:
            seconds, result = min((_seconds(make) for _ in range(runs)), key=lambda timed: timed[0])
            rows.append((name, seconds, seconds / product, result.candidates))
        except DataError:
            rows.append((name, None, None, None))
        progress(k + 1, len(steps))
    columns = (
        Column("step", "Step"),
        Column("seconds", "Seconds", 1, 3),
        Column("products", "In products", 1, 1),
        Column("candidates", "Weights scored"),
    )
    return Study("time", "Cost", "time of the searches", _time_sentence(rows), columns, tuple(rows))


def _timed_steps(data: StudyData, settings: StudySettings) -> Iterator[tuple[str, Callable[[], Recalibration], int]]:
    seed = settings.seed
    yield "sparse search", lambda: sparse(data, settings, seed), _RUNS
    for name in PAPER_MAPS:
        yield f"fit of {name}", lambda name=name: plain(data, name, settings, seed), _RUNS  # type: ignore[misc]
    for name in PAPER_MAPS:
        yield f"complete search with {name}", lambda name=name: _complete_with(data, name, settings), 1  # type: ignore[misc]


def _complete_with(data: StudyData, name: str, settings: StudySettings) -> Recalibration:
    """Search pairs with one map."""
    result = complete(data, [name], settings, settings.seed)
    if name not in result:
        raise DataError(f"{name}: it cannot be fitted on the original weight")
    return result[name]


def _product(data: StudyData) -> Recalibration:
    data.logits(data.calibration).scores()
    return Recalibration(data.weight)


def _seconds(make: Callable[[], Recalibration]) -> tuple[float, Recalibration]:
    start = perf_counter()
    result = make()
    return perf_counter() - start, result


def _time_sentence(rows: list[tuple[Cell, ...]]) -> str:
    durations = {str(row[0]): float(row[1] or 0) for row in rows if row[1]}
    longest = max([(seconds, name) for name, seconds in durations.items() if name.startswith("complete")], default=None)
    text = f"The sparse search takes {durations['sparse search']:.2f} seconds"
    if longest is None:
        return f"{text}; no map could be fitted."
    return f"{text}; of the complete ones the longest takes {longest[0]:.1f} ({longest[1].rpartition(' ')[2]})."
