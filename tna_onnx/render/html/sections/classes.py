"""The table of the classes: how each is predicted, how far its probability is off, and what it is taken for."""

from __future__ import annotations

from collections.abc import Sequence

from tna_onnx.numerics.reliability import Bins
from tna_onnx.render.html.blocks import Column, Table, table
from tna_onnx.results.details import ClassBins, ClassResult

__all__ = ["classes_table"]

_HEADS = ("class", "N", "accuracy, %", "precision, %", "recall, %")
_BEFORE = ("precision before, %", "recall before, %")
_CALIBRATION = (
    "probability before, %",
    "probability after, %",
    "gap before, %",
    "gap after, %",
    Column("most often taken for", wraps=True),
)


def classes_table(classes: Sequence[ClassBins]) -> Table:
    """Return a row for each class; accuracy, precision and recall are those after recalibration."""
    total = sum(classes[0].before.count)
    # what keeps every prediction has one precision and one recall
    moved = any(c.result_before != c.result_after for c in classes)
    heads = (*_HEADS, *(_BEFORE if moved else ()), *_CALIBRATION)
    rows = [_row(c, total, moved) for c in classes]
    caption = f"Each class, {total:,} samples; click a column head to sort"
    return table(heads, rows, caption, "sortable numbers")


def _row(c: ClassBins, total: int, moved: bool) -> tuple[str, ...]:
    before: tuple[str, ...] = ()
    if moved:
        before = (_precision(c.result_before), _recall(c.result_before, c.samples))
    after = c.result_after
    # "this class or not": neither missed nor predicted in vain
    wrong = c.samples + after.predicted - 2 * after.right
    return (
        c.name,
        f"{c.samples:,}",
        _per_cent(total - wrong, total),
        _precision(after),
        _recall(after, c.samples),
        *before,
        _mean(c.before),
        _mean(c.after),
        f"{100 * c.before.ece:.2f}",
        f"{100 * c.after.ece:.2f}",
        ", ".join(f"{each.predicted} ({each.samples:,})" for each in after.confused),
    )


def _precision(result: ClassResult) -> str:
    return _per_cent(result.right, result.predicted)


def _recall(result: ClassResult, samples: int) -> str:
    return _per_cent(result.right, samples)


def _per_cent(part: int, whole: int) -> str:
    """Write a share; a dash where there is nothing to take one of."""
    return f"{100 * part / whole:.1f}" if whole else "–"


def _mean(bins: Bins) -> str:
    """Mean probability in per cent."""
    total = sum(n * p for n, p in zip(bins.count, bins.confidence, strict=True))
    return f"{100 * total / max(1, sum(bins.count)):.2f}"
