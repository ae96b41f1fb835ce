"""Rows of the main table: means with deviations, differences with intervals, and verdicts in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tna_onnx.numerics.metric import METRICS
from tna_onnx.results.study import Cell, Column
from tna_onnx.studies.methods import Found
from tna_onnx.studies.spread import deviation, mean, paired_interval

__all__ = ["LABELS", "Row", "Runs", "cells_of", "columns", "label", "sentence"]

LABELS = {"none": "None", "irova": "IROvA", "ts": "TS", "ets": "ETS", "aar": "AAR"}

# Besides `METRICS`: name -> title. Both are fractions, of which smaller ones are better.
_BIN_FREE = {"ece_debiased": "debiased ECE, %", "cumulative": "cumulative difference, %"}

Row = tuple[str, str]
"""(search, map)."""


@dataclass(frozen=True, eq=False)
class Runs:
    """Values of every repeat by row and metric, and where each search ended."""

    values: dict[Row, list[dict[str, float]]] = field(default_factory=dict)
    found: dict[Row, list[Found]] = field(default_factory=dict)
    failed: dict[Row, str] = field(default_factory=dict)

    def of(self, row: Row, name: str) -> list[float]:
        """Return a metric of every repeat."""
        return [values[name] for values in self.values[row]]


def label(row: Row) -> str:
    """Name a row as the paper does."""
    search, name = row
    if search == "auto":
        return "Default"
    own = LABELS.get(name, name)
    if row == ("sparse", "none"):
        return "None +TNA"
    return own + {"none": "", "sparse": " +TNA (sparse)", "complete": " +TNA (comp.)"}[search]


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
    own = Column(name, metric.title, metric.factor, metric.digits, metric.better, (spread,))
    return own, Column(spread, f"SD of {metric.title}", metric.factor, metric.digits, hidden=True)


def cells_of(row: Row, runs: Runs, sizes: tuple[int, int]) -> Iterator[Cell]:
    """Yield the cells of a row; `sizes` are numbers of samples to fit on and to score."""
    yield label(row)
    yield from _means(row, runs, _FIRST)
    base = _base_of(row)
    yield _verdict(runs, base, row, sizes)
    for name in ("ece", "nll"):
        yield from _change(runs, base, row, name, sizes)
    yield from _means(row, runs, _LAST)
    found = runs.found[row]
    tilted = [each for each in found if each.angle > 0]
    yield mean([each.angle for each in found]) if tilted else None
    yield _counted(tilted)


def _means(row: Row, runs: Runs, names: tuple[str, ...]) -> Iterator[Cell]:
    for name in names:
        values = runs.of(row, name)
        yield mean(values)
        yield deviation(values)


def _counted(tilted: list[Found]) -> str:
    """Say how many members were averaged, and how often."""
    names = Counter(str(each.members) if each.members else "limit" for each in tilted)
    return ", ".join(name if len(names) == 1 else f"{name} ({times})" for name, times in names.most_common())


def _base_of(row: Row) -> Row | None:
    """Return what a row is held against: the same map alone; the input for a map; nothing for the input."""
    search, name = row
    if search in ("sparse", "complete"):
        return ("none", name)
    if row == ("none", "none"):
        return None
    return ("none", "none")


def _change(runs: Runs, base: Row | None, row: Row, name: str, sizes: tuple[int, int]) -> tuple[Cell, Cell, Cell]:
    if base is None or base not in runs.values or len(runs.values[base]) != len(runs.values[row]):
        return None, None, None
    difference, interval = paired_interval(runs.of(base, name), runs.of(row, name), *sizes)
    low, high = interval or (None, None)
    return difference, low, high


def _verdict(runs: Runs, base: Row | None, row: Row, sizes: tuple[int, int]) -> str:
    """Say which of accuracy, ECE and NLL are significantly better or worse."""
    if base is None:
        return ""
    words: dict[int, list[str]] = {1: [], -1: []}
    for name in ("accuracy", "ece", "nll"):
        _, low, high = _change(runs, base, row, name, sizes)
        if isinstance(low, float) and isinstance(high, float) and (side := METRICS[name].standing(low, high)):
            words[side].append(METRICS[name].label)
    parts = [f"{word}: {', '.join(words[side])}" for side, word in ((1, "better"), (-1, "worse")) if words[side]]
    return "; ".join(parts) or "no significant difference"


def sentence(rows: list[Row], runs: Runs, sizes: tuple[int, int]) -> str:
    """Say what tilting does on top of the maps, and which row has the least ECE."""
    tilted = [row for row in rows if row[0] in ("sparse", "complete") and row[1] != "none"]
    lower = 0
    clear = 0
    for row in tilted:
        difference, _, high = _change(runs, _base_of(row), row, "ece", sizes)
        lower += isinstance(difference, float) and difference < 0
        clear += isinstance(high, float) and high < 0
    best = min(rows, key=lambda row: mean(runs.of(row, "ece")))
    value = METRICS["ece"].number(mean(runs.of(best, "ece")))
    # without a bound on the accuracy, the least ECE can be that of a model that knows nothing
    accuracy, input_accuracy = (
        METRICS["accuracy"].number(mean(runs.of(row, "accuracy"))) for row in (best, ("none", "none"))
    )
    return (
        f"Tilting lowers the mean ECE on top of a map in {lower} of {len(tilted)} cases, significantly in {clear}. "
        f"The lowest mean ECE is that of {label(best)}, {value} % at an accuracy of {accuracy} %; the input has "
        f"{input_accuracy} %."
    )
