"""The outputs beside the one that classifies: what held between them in the source must hold in the written file.

A label output is the first class of the probabilities; a second output may be their logits. Where the graph computes
them around the layer that was changed (a layer that is called twice, a bias moved into a threshold), they would stay as
they were and contradict the new probabilities. Both files are run, and every such relation is looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Batch
from tna_onnx.engine.scoring import Runs
from tna_onnx.errors import CheckFailed
from tna_onnx.extraction.sessions import Runner, in_rows, open_model
from tna_onnx.graph.cut import ancestors
from tna_onnx.graph.outputs import tensor_outputs
from tna_onnx.numerics.ops import sigmoid, softmax
from tna_onnx.pipeline.job import Collected, Task
from tna_onnx.results.report import MovedOutput

# |difference| of probabilities up to which two outputs say the same.
_SAME = 1e-3
# Labels may differ from the first class where the first two are this close.
_TIE = 1e-2
# Share of samples on which labels must be the first class to be taken for it: ties may go either way.
_MIN_AGREEMENT = 0.99


def check_other_outputs(
    task: Task, checked: Collected, rows: NDArray[np.int64], runner: Runner, path: Path, tolerance: float
) -> tuple[MovedOutput, ...]:
    """Run both files with all outputs on some samples and compare what their outputs say of one another.

    Gives the outputs whose values change.
    """
    outputs = outputs_beside(task, checked)
    if not outputs:
        return tuple(_computed_from(task, ()))
    names = [task.opened.output.name, *outputs]
    new = _outputs(runner, names, checked.source.batches(task.batch_size, rows))
    # one session at a time: two may not fit on a device
    runner.close()
    # one of its own: the session that collected leaves these outputs out
    source = in_rows(open_model(task.model, task.device), task.readout, task.model.name)
    old = _outputs(source, names, checked.source.batches(task.batch_size, rows))
    p = task.opened.output.probabilities(old[names[0]])
    q = task.opened.output.probabilities(new[names[0]])
    for name in outputs:
        if name not in old or name not in new:
            continue
        # only what held in the source must hold: other outputs are free
        allowed = max(5 * _SAME, 2 * tolerance)
        if task.opened.output.multi_label:
            kind = label_relation(old[name], p, _SAME)
            holds = label_relation(new[name], q, allowed) == kind
        else:
            kind = relation(old[name], p, _SAME)
            holds = not kind or _holds(kind, old[name], p, new[name], q, allowed)
        if kind and not holds:
            raise CheckFailed(
                f"verification: output '{name}' gives the {kind} of '{names[0]}' in {task.model.name}, and would not "
                f"in {path.name}: it is computed around the head; use --search none with a map that keeps the order of "
                "the classes (--map ts or --map ets)"
            )
    compared = [name for name in outputs if name in old and name in new]
    moved = [_moved(name, old[name], new[name]) for name in compared]
    return (*(output for output in moved if output.moved), *_computed_from(task, compared))


# Of |old|, or of 1: less is rounding in a graph that is optimised in another way.
_ROUNDING = 1e-5


def _moved(name: str, old: NDArray[Any], new: NDArray[Any]) -> MovedOutput:
    n = len(old)
    if old.shape != new.shape or old.dtype.kind not in "biuf":
        differing = np.any((old != new).reshape(n, -1), axis=1) if old.shape == new.shape else np.ones(n, np.bool_)
        return MovedOutput(name, n, int(differing.sum()))
    with np.errstate(invalid="ignore"):
        before, after = (values.reshape(n, -1).astype(np.float64) for values in (old, new))
        change = np.where((before == after) | (np.isnan(before) & np.isnan(after)), 0.0, np.abs(after - before))
        differing = np.any(~(change <= _ROUNDING * np.maximum(1.0, np.abs(before))), axis=1)
    largest = float(np.max(change, initial=0))
    return MovedOutput(name, n, int(differing.sum()), largest if np.isfinite(largest) else None)


def _computed_from(task: Task, compared: Collection[str]) -> Iterator[MovedOutput]:
    """Yield the outputs that were not compared and are computed from the logits, or from the head's own node."""
    model = task.model
    changed = {model.producers.get(task.readout.logits)} - {None}
    if task.head is not None:
        changed.update(task.head.readers)
    for name in model.outputs:
        if name not in (task.opened.output.name, *compared) and changed & set(ancestors(model, name)):
            yield MovedOutput(name)


def outputs_beside(task: Task, checked: Collected) -> list[str]:
    """Return the further outputs that can be run on samples; none for samples that are features or logits."""
    if checked.samples.given:
        return []
    return [name for name in tensor_outputs(task.model) if name != task.opened.output.name]


def relation(values: NDArray[Any], p: NDArray[np.float64], tolerance: float) -> str:
    """Say what an output is of the probabilities: `labels`, `probabilities`, `logits`, or nothing. `p`: (N, C)."""
    n, classes = p.shape
    # integers and texts can be labels only
    if values.dtype.kind not in "fc":
        return "labels" if values.size == n and _labels_of(values, p) is not None else ""
    # a binary model may give one number a sample: a probability or a logit
    if values.size == n and classes == 2:
        column = values.reshape(n).astype(np.float64)
        values = np.stack([1 - column, column], axis=1)
        if np.max(np.abs(values - p)) <= tolerance:
            return "probabilities"
        values = np.stack([np.zeros(n), column], axis=1)
    if values.size != n * classes or not np.all(np.isfinite(values)):
        return ""
    values = values.reshape(n, classes)
    if np.max(np.abs(values - p)) <= tolerance:
        return "probabilities"
    if np.max(np.abs(softmax(values) - p)) <= tolerance:
        return "logits"
    return ""


def label_relation(values: NDArray[Any], p: NDArray[np.float64], tolerance: float) -> str:
    """Say what an output is of the probabilities of several labels; `labels` are 1 where p is above 1/2.

    `p`: (N, C).
    """
    if values.size != p.size or values.dtype.kind not in "biuf" or not np.all(np.isfinite(values)):
        return ""
    values = values.reshape(p.shape)
    if values.dtype.kind in "biu":
        clear = np.abs(p - 0.5) > _TIE / 2
        agreeing = (values == (p > 0.5)) | ~clear
        return "labels" if np.mean(agreeing) >= _MIN_AGREEMENT else ""
    if np.max(np.abs(values - p)) <= tolerance:
        return "probabilities"
    if np.max(np.abs(sigmoid(values) - p)) <= tolerance:
        return "logits"
    return ""


def _holds(
    kind: str,
    old: NDArray[Any],
    p: NDArray[np.float64],
    new: NDArray[Any],
    q: NDArray[np.float64],
    tolerance: float,
) -> bool:
    if kind != "labels":
        return relation(new, q, tolerance) == kind
    names = _labels_of(old, p) or {}
    top = np.sort(q, axis=1)
    # near a tie rounding decides which class comes first
    clear = top[:, -1] - top[:, -2] > _TIE
    first = q.argmax(axis=1)
    labels = new.reshape(len(q))
    labelled = np.array([c in names for c in first.tolist()])
    rows = np.flatnonzero(clear & labelled)
    return all(names[int(first[row])] == labels[row] for row in rows)


def _labels_of(values: NDArray[Any], p: NDArray[np.float64]) -> dict[int, Any] | None:
    """Return class -> label, if the labels are the first class of almost all samples, one label a class."""
    labels = values.reshape(len(p))
    first = p.argmax(axis=1)
    names: dict[int, Any] = {}
    agreeing = 0
    for c in np.unique(first).tolist():
        values_of_class, counts = np.unique(labels[first == c], return_counts=True)
        names[c] = values_of_class[counts.argmax()]
        agreeing += int(counts.max())
    different = len({str(name) for name in names.values()}) == len(names) > 1
    if not different or agreeing < _MIN_AGREEMENT * len(p):
        return None
    return names


def _outputs(runner: Runs, names: list[str], batches: Iterable[Batch]) -> dict[str, NDArray[Any]]:
    """Run all batches; an output without one row a sample is left out."""
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    for batch in batches:
        count = len(next(iter(batch.values())))
        remaining = list(parts)
        for name, values in zip(remaining, runner.run(remaining, batch), strict=True):
            if values.ndim and len(values) == count:
                parts[name].append(values)
            else:
                del parts[name]
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}
