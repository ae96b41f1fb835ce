"""Each label of samples with several, as rows of a table: N with it, and its metrics before and after."""

from __future__ import annotations

from collections.abc import Sequence

from tna_onnx.numerics.metric import METRICS
from tna_onnx.results.label_metrics import LabelMetrics

__all__ = ["MAX_ROWS", "label_heads", "label_rows", "label_title"]

MAX_ROWS = 20
"""Rows of a table in a terminal; a page and `--json` have all of them."""

_SHOWN = ("accuracy", "ece", "nll", "brier")


def label_heads(labels: Sequence[LabelMetrics]) -> tuple[str, ...]:
    """Return the heads of the columns."""
    if labels[0].after is None:
        return ("label", "N with it", *(METRICS[name].title for name in _SHOWN))
    pairs = (f"{METRICS[name].title}: {when}" for name in _SHOWN[1:3] for when in ("before", "after"))
    return ("label", "N with it", *pairs, *(("fit",) if _some_shared(labels) else ()))


def label_rows(labels: Sequence[LabelMetrics], most: int | None = None) -> list[tuple[str, ...]]:
    """Return a row for each label; of more than `most` those with the largest ECE before, in the model's order."""
    rows = list(range(len(labels)))
    if most is not None and len(labels) > most:
        rows = sorted(sorted(rows, key=lambda c: -labels[c].before.ece)[:most])
    shared = _some_shared(labels)
    return [_row(labels[c], shared=shared) for c in rows]


def label_title(labels: Sequence[LabelMetrics], most: int | None = None) -> str:
    """Return what stands over the table."""
    title = f"each label, {labels[0].before.bins} bins"
    if most is not None and len(labels) > most:
        title += f"; the {most} of {len(labels):,} with the largest ECE before"
    return title


def _some_shared(labels: Sequence[LabelMetrics]) -> bool:
    return any(label.shared for label in labels)


def _row(label: LabelMetrics, *, shared: bool) -> tuple[str, ...]:
    cells = [label.label, f"{label.positives:,} of {label.before.n:,}"]
    if label.after is None:
        return (*cells, *(METRICS[name].number(getattr(label.before, name)) for name in _SHOWN))
    for name in _SHOWN[1:3]:
        cells += [METRICS[name].number(getattr(side, name)) for side in (label.before, label.after)]
    return (*cells, *(("shared" if label.shared else "own",) if shared else ()))
