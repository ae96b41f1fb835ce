"""The paper's main table: every map alone, and the paper's maps after a sparse and in a complete search.

Splits overlap, so the mean of R differences has the variance (1/R + n_2/n_1) s^2, n_1 samples fitted and n_2 scored.
Source: Nadeau & Bengio (2003), "Inference for the generalization error", section 3, the corrected resampled t-test.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tna_onnx.errors import DataError
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.results.study import Cell, Column, Footnote, Found
from tna_onnx.studies import recalibrations
from tna_onnx.studies.settings import StudySettings

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


Repeat = dict[str, float]
"""What one repeat measured, by name; NaN for what could not be."""


def numbers(repeats: Sequence[Repeat], name: str) -> list[float]:
    """Return what the repeats measured under a name."""
    return [repeat[name] for repeat in repeats if not math.isnan(repeat[name])]


def mean_cells(repeats: Sequence[Repeat], names: Sequence[str]) -> Iterator[Cell]:
    """Yield mean and deviation of each value; None where no repeat has it."""
    for name in names:
        values = numbers(repeats, name)
        centre: Cell = None
        if values:
            centre = mean(values)
        yield from (centre, deviation(values))


LABELS = {"none": "None", "tna": "TNA", "irova": "IROvA", "ts": "TS", "ets": "ETS", "aar": "AAR"}

Row = tuple[str, str]
"""(search, map)."""


@dataclass(frozen=True, eq=False)
class Runs:
    """The metrics of every repeat by row, and the result of each search."""

    sizes: tuple[int, int]  # samples to fit on, and to score
    values: dict[Row, list[Repeat]] = field(default_factory=dict)
    results: dict[Row, list[recalibrations.Recalibration]] = field(default_factory=dict)
    failed: dict[Row, str] = field(default_factory=dict)  # rows that some split gave no result for, and why

    def of(self, row: Row, name: str) -> list[float]:
        """Return a metric of a row for every repeat."""
        return [values[name] for values in self.values[row]]

    def change(self, base: Row | None, row: Row, name: str) -> tuple[float, float, float] | None:
        """Return the mean change of a metric from one row to another, and its interval; None without that row."""
        if base is None or base in self.failed:
            return None
        fitted, scored_samples = self.sizes
        differences = [after - before for before, after in zip(self.of(base, name), self.of(row, name), strict=True)]
        interval = mean_interval(differences, scored_samples / fitted)
        return interval and (mean(differences), *interval)


_ENDINGS = {"none": "", "sparse": " +TNA (sparse)", "complete": " +TNA (comp.)"}


def label(row: Row) -> str:
    """Return the paper's name of a row."""
    search, name = row
    if search == "auto":
        return "Default"
    if row == ("sparse", "none"):
        return "None +TNA"
    return LABELS.get(name, name) + _ENDINGS[search]


# Metrics before the verdict, and after it.
_FIRST = ("accuracy", "ece", "adaece", "nll")
_LAST = tuple(name for name in METRICS if name not in _FIRST)


def columns() -> tuple[Column, ...]:
    """Return the columns of the table."""
    changes = [
        Column(f"{metric.name}_change", f"{metric.label} change, {metric.change_unit}", metric.factor, metric.digits)
        for metric in (METRICS["ece"], METRICS["nll"])
    ]
    return (
        Column("method", "Method"),
        *metric_columns(_FIRST, "sd", judged=True),
        Column("verdict", "Verdict"),
        *(column for change in changes for column in with_hidden(change, "low", "high")),
        *metric_columns(_LAST, "sd", judged=True),
        Column("angle", "Angle, degrees", 1, 1),
        Column("members", "Members"),
    )


def metric_columns(names: Sequence[str], *ends: str, judged: bool = False) -> Iterator[Column]:
    """Yield the columns of metrics with their hidden ones; the best rows stand out where they are judged."""
    for name in names:
        metric = METRICS[name]
        column = Column(name, metric.title, metric.factor, metric.digits, metric.better if judged else 0)
        yield from with_hidden(column, *ends)


def with_hidden(column: Column, *ends: str) -> Iterator[Column]:
    """Yield a column, and hidden ones of what is shown beside its values: `sd`, or `low` and `high`."""
    yield replace(column, beside=tuple(f"{column.name}_{end}" for end in ends))
    for end in ends:
        name = f"{column.name}_{end}"
        title = {"sd": f"SD of {column.title}"}.get(end, name)
        yield Column(name, title, column.factor, column.digits, hidden=True)


def cells_of(row: Row, runs: Runs) -> Iterator[Cell]:
    """Yield the cells of a row."""
    yield label(row)
    yield from mean_cells(runs.values[row], _FIRST)
    base = _base_of(row)
    changes = {name: runs.change(base, row, name) for name in ("accuracy", "ece", "nll")}
    yield "" if base is None else _verdict(changes)
    for name in ("ece", "nll"):
        yield from changes[name] or (None, None, None)
    yield from mean_cells(runs.values[row], _LAST)
    results = runs.results[row]
    # how often each number of members was averaged
    names = Counter(str(result.members or "limit") for result in results if result.angle > 0)
    yield mean([result.angle for result in results]) if names else None
    yield ", ".join(name if len(names) == 1 else f"{name} ({times})" for name, times in names.most_common())


_INPUT: Row = ("none", "none")


def _base_of(row: Row) -> Row | None:
    """Return the row to compare with: the same map alone; the input for a map; None for the input."""
    search, name = row
    if search in ("sparse", "complete"):
        return ("none", name)
    return None if row == _INPUT else _INPUT


def _verdict(changes: Mapping[str, tuple[float, float, float] | None]) -> str:
    """State which metrics are significantly better or worse."""
    words: dict[int, list[str]] = {1: [], -1: [], 0: []}
    for name, change in changes.items():
        side = 0
        if change:
            side = METRICS[name].standing(*change[1:])
        words[side].append(METRICS[name].label)
    parts = [f"{word}: {', '.join(words[side])}" for side, word in ((1, "better"), (-1, "worse")) if words[side]]
    return "; ".join(parts) or "no significant difference"


def less_accurate(rows: Sequence[Row], runs: Runs) -> list[Row]:
    """Return the rows whose accuracy is significantly below that of the input."""
    changes = {row: runs.change(_INPUT, row, "accuracy") for row in rows}
    return [row for row, change in changes.items() if change and change[2] < 0]


def footnotes_of(rows: list[Row], runs: Runs) -> tuple[Footnote, ...]:
    """Return what is to be known of some rows."""
    losing = less_accurate(rows, runs)
    if not losing:
        return ()
    text = "loses accuracy against the input, significantly; never the best of a column, and not counted."
    return (Footnote("†", tuple(map(rows.index, losing)), text, barred=True),)


def sentence(rows: list[Row], runs: Runs) -> str:
    """State the effect of tilting on top of the maps, and the row with the smallest ECE, without loss of accuracy."""
    losing = less_accurate(rows, runs)
    tilted = [row for row in rows if row[0] in ("sparse", "complete") and row[1] != "none"]
    counted = [row for row in tilted if row not in losing]
    changes = [change for row in counted if (change := runs.change(_base_of(row), row, "ece"))]
    lower = sum(change < 0 for change, _, _ in changes)
    clear = sum(high < 0 for _, _, high in changes)
    best = min((row for row in rows if row not in losing), key=lambda row: mean(runs.of(row, "ece")))
    value = METRICS["ece"].number(mean(runs.of(best, "ece")))
    accuracy, input_accuracy = (METRICS["accuracy"].number(mean(runs.of(row, "accuracy"))) for row in (best, _INPUT))
    remark = ""
    if len(counted) < len(tilted):
        remark = f"; {len(tilted) - len(counted)} more lose accuracy significantly and are not counted"
    return (
        f"Tilting lowers the mean ECE on top of a map in {lower} of {len(counted)} cases, significantly in "
        f"{clear}{remark}. The lowest mean ECE without such a loss is that of {label(best)}, {value} % at an accuracy "
        f"of {accuracy} %; the input has {input_accuracy} %."
    )


def metrics_of(scores: SampleScores, bins: int, names: Sequence[str]) -> Repeat:
    """Return some metrics of the scores by name."""
    metrics = Metrics.of(scores, bins)
    return {name: float(getattr(metrics, name)) for name in names}


def table(data: recalibrations.StudyData, settings: StudySettings, progress: Callable[[int, int], None]) -> Found:
    """Make the table."""
    runs = Runs((len(data.calibration), len(data.held_out)))
    rows = list(_rows(recalibrations.maps_for(len(data.weight))))
    steps = settings.repeats * (2 + len(rows))
    done = itertools.count(1)
    for repeat in range(settings.repeats):
        split = data.split(repeat, settings.seed)
        seed = settings.seed + repeat
        tilted = recalibrations.sparse(split, settings, seed)
        progress(next(done), steps)
        pairs = recalibrations.complete(split, recalibrations.PAPER_MAPS, settings, seed)
        progress(next(done), steps)
        for row in rows:
            if row not in runs.failed:
                try:
                    result, scores = run_row(row, split, settings, seed, tilted, pairs)
                except DataError as error:
                    runs.failed[row] = str(error)
                else:
                    runs.results.setdefault(row, []).append(result)
                    runs.values.setdefault(row, []).append(metrics_of(scores, settings.bins, tuple(METRICS)))
            progress(next(done), steps)
    complete_rows = [row for row in rows if row not in runs.failed]
    notes = (
        *(f"{label(row)} is left out: {reason}" for row, reason in runs.failed.items()),
        "Both sets of samples are split anew for each repeat. Intervals are 95 %, corrected for the overlap of splits.",
        "Changes and verdicts of rows with TNA are against the same map alone, those of maps against None.",
    )
    cells = tuple(tuple(cells_of(row, runs)) for row in complete_rows)
    footnotes = footnotes_of(complete_rows, runs)
    return Found(sentence(complete_rows, runs), columns(), cells, notes=notes, footnotes=footnotes)


def _rows(names: tuple[str, ...]) -> Iterator[Row]:
    yield _INPUT
    yield ("sparse", "none")
    for name in names:
        yield ("none", name)
        if name in recalibrations.PAPER_MAPS:
            yield ("sparse", name)
            yield ("complete", name)
    yield ("auto", "auto")


def run_row(
    row: Row,
    data: recalibrations.StudyData,
    settings: StudySettings,
    seed: int,
    tilted: recalibrations.Recalibration,
    pairs: Mapping[str, recalibrations.Recalibration],
) -> tuple[recalibrations.Recalibration, SampleScores]:
    """Fit one row on one split, and score it. `tilted`: the result of the sparse search; `pairs`: of the complete one.

    Raises:
        DataError: it cannot be fitted.
    """
    search, name = row
    if search == "auto":
        # what `calibrate` does, whatever the protocol of the other rows
        data = replace(data, tilt_bias=True)
        result = recalibrations.chosen(data, settings.by_default, seed)
    elif search == "complete":
        if name not in pairs:
            raise DataError("it cannot be fitted on the original weight")
        result = pairs[name]
    elif search == "sparse":
        logits = data.logits(data.calibration, tilted.weight)
        result = replace(tilted, fitted=recalibrations.fit(name, logits, settings))
    else:
        result = recalibrations.plain(data, name, settings, seed)
    return result, recalibrations.scored(data, result)
