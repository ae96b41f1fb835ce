"""The outputs beside the one that classifies: which of them follow it, and which stay (`find_others`).

A label output is the first class of the probabilities, and a second output may be their logits: both follow. Others
stay. Where the graph computes logits or labels around the changed layer, both files are run and their relations
compared.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.source import Batch, Source
from tna_onnx.engine.scoring import BatchRunner
from tna_onnx.errors import CheckFailed
from tna_onnx.extraction.sessions import Runner, in_rows, open_model
from tna_onnx.graph.load import Model
from tna_onnx.graph.readers import (
    UNCHANGED,
    LabelOutput,
    OutputChange,
    label_candidates,
    label_outputs,
    outputs_of_scores,
    tensor_outputs,
)
from tna_onnx.graph.readout import ClassOutput, Readout
from tna_onnx.graph.walk.loop import walk_back
from tna_onnx.graph.walk.steps import PASSED
from tna_onnx.numerics.ops import sigmoid, softmax
from tna_onnx.pipeline.job import Collected, Task
from tna_onnx.results.report import MovedOutput
from tna_onnx.runtime import Device

FloatArray = NDArray[np.float64]

# |difference| of probabilities up to which two outputs say the same.
_SAME = 1e-3
# Samples on which an output is compared with the labels, before anything is fitted.
_SAMPLES = 512
# Labels may differ from the first class where rounding makes the first two tie; bounds of this distance.
_TIE = 1e-2
_LEAST_TIE = 1e-4
# Share of samples on which labels must be the first class to be taken for it: ties may go either way.
_MIN_AGREEMENT = 0.99
# Of |old|, or of 1: less is rounding in a graph that is optimised in another way.
_ROUNDING = 1e-5


def check_other_outputs(
    task: Task,
    checked: Collected,
    rows: NDArray[np.int64],
    runner: Runner,
    path: Path,
    tolerance: float,
    other_outputs: OutputChange = UNCHANGED,
) -> tuple[MovedOutput, ...]:
    """Run both files with all outputs on some samples and compare what their outputs say of one another.

    `other_outputs`: what was done about other outputs. Gives the outputs whose values change.
    """
    outputs = outputs_beside(task, checked)
    if not outputs:
        return tuple(_computed_from(task, other_outputs.kept))
    names = [task.opened.output.name, *outputs]
    new = _outputs(runner, names, checked.source.batches(task.batch_size, rows))
    # one session at a time: two may not fit on a device
    runner.close()
    # one of its own: the session that collected leaves these outputs out
    source = in_rows(open_model(task.model, task.device), task.readout, task.model.name)
    old = _outputs(source, names, checked.source.batches(task.batch_size, rows))
    p = task.opened.output.probabilities(old[names[0]])
    q = task.opened.output.probabilities(new[names[0]])
    compared = [name for name in outputs if name in old and name in new]
    for name in compared:
        if name in other_outputs.kept:
            _require_kept(name, old[name], new[name], path, max(_ROUNDING, tolerance))
        elif name in other_outputs.likeliest:
            _require_likeliest(name, other_outputs.classes, new[name], q, path)
        elif kind := _lost_relation(old[name], new[name], p, q, tolerance, labels=task.opened.output.multi_label):
            raise CheckFailed(
                f"verification: output '{name}' gives the {kind} of '{names[0]}' in {task.model.name}, and would not "
                f"in {path.name}: it is computed around the head; use --search none with a map that keeps the order of "
                "the classes (--map ts or --map ets)"
            )
    moved = [_moved(name, old[name], new[name]) for name in compared]
    return (*(output for output in moved if output.moved), *_computed_from(task, {*compared, *other_outputs.kept}))


def _lost_relation(
    old: NDArray[Any], new: NDArray[Any], p: FloatArray, q: FloatArray, tolerance: float, *, labels: bool
) -> str:
    """Return what an output said of the probabilities p and no longer says of q; else nothing.

    Only what held in the source must hold: other outputs are free. `labels`: several a sample.
    """
    kind = relation(old, p, _SAME, labels=labels)
    if kind == "labels" and not labels:
        holds = _labels_hold(old, p, new, q, tie=min(_TIE, max(_LEAST_TIE, 2 * tolerance)))
    else:
        holds = relation(new, q, max(5 * _SAME, 2 * tolerance), labels=labels) == kind
    return "" if holds else kind


def _require_kept(name: str, old: NDArray[Any], new: NDArray[Any], path: Path, rounding: float) -> None:
    """Refuse a file with another output than the source's: other texts or whole numbers, or beyond rounding."""
    _require_none(name, "the source's", _moved(name, old, new, rounding).moved, len(old), path)


def _require_likeliest(name: str, classes: Sequence[int | str], new: NDArray[Any], q: FloatArray, path: Path) -> None:
    """Refuse a file whose labels are not the likeliest of q (N, C)."""
    places = LabelOutput(name, tuple(classes), first=True).places(new)
    # two that tie are as likely
    wrong = (places < 0) | (q[np.arange(len(q)), places] < q.max(axis=1) - _LEAST_TIE)
    _require_none(name, "the likeliest class", int(np.count_nonzero(wrong)), len(q), path)


def _require_none(name: str, meant: str, wrong: int, samples: int, path: Path) -> None:
    if wrong:
        raise CheckFailed(
            f"verification: output '{name}' of {path.name} differs from {meant} in {wrong:,} of {samples:,} samples"
        )


def _moved(name: str, old: NDArray[Any], new: NDArray[Any], rounding: float = _ROUNDING) -> MovedOutput:
    n = len(old)
    if old.shape != new.shape or old.dtype.kind not in "biuf":
        differing = np.ones(n, np.bool_)
        if old.shape == new.shape:
            differing = np.any((old != new).reshape(n, -1), axis=1)
        return MovedOutput(name, n, int(differing.sum()))
    with np.errstate(invalid="ignore"):
        before, after = (values.reshape(n, -1).astype(np.float64) for values in (old, new))
        change = np.where((before == after) | (np.isnan(before) & np.isnan(after)), 0.0, np.abs(after - before))
        differing = np.any(~(change <= rounding * np.maximum(1.0, np.abs(before))), axis=1)
    largest = float(np.max(change, initial=0))
    return MovedOutput(name, n, int(differing.sum()), largest if np.isfinite(largest) else None)


def _computed_from(task: Task, compared: Collection[str]) -> Iterator[MovedOutput]:
    """Yield the outputs that were not compared and are computed from the scores."""
    for name in outputs_of_scores(task.model, task.readout):
        if name not in (task.opened.output.name, *compared):
            yield MovedOutput(name)


@dataclass(frozen=True)
class OtherOutputs:
    """The outputs beside the one that classifies that a map must not just move."""

    labels: tuple[LabelOutput, ...] = ()  # those with the class of each sample
    rest: tuple[str, ...] = ()  # what else is computed from the scores, and is neither logits nor probabilities


def find_others(
    model: Model, readout: Readout, output: ClassOutput, device: Device, source: Source | None, batch_size: int
) -> OtherOutputs:
    """Return outputs with the class of each sample, and what else is computed from the scores.

    `source`: samples to run; None where there are none for the inputs, and the graph has to show it.
    """
    in_graph = {}
    candidates: list[str] = []
    if not (output.multi_label or output.several):
        in_graph = {label.name: label for label in label_outputs(model, output.name, output.n_classes)}
        candidates = label_candidates(model, output.name)
    computed = outputs_of_scores(model, readout)
    further = [name for name in computed if name != output.name and not _says_the_same(model, readout, name)]
    tensors = set(tensor_outputs(model))
    names = [name for name in dict.fromkeys((*candidates, *further)) if name in tensors]
    if source is None or not names:
        return OtherOutputs(tuple(in_graph.values()), tuple(name for name in further if name not in in_graph))
    rows = np.unique(np.linspace(0, len(source) - 1, min(_SAMPLES, len(source))).astype(np.int64))
    runner = in_rows(open_model(model, device), readout, model.name)
    values = _outputs(runner, [output.name, *names], source.batches(batch_size, rows))
    p = output.probabilities(values.pop(output.name))
    labels = [_run_label(in_graph.get(name), name, values[name], p) for name in candidates if name in values]
    labelled = tuple(label for label in labels if label is not None)
    following = {label.name for label in labelled}
    following |= {name for name in values if relation(values[name], p, _SAME, labels=output.multi_label)}
    return OtherOutputs(labelled, tuple(name for name in further if name not in following))


def _says_the_same(model: Model, readout: Readout, name: str) -> bool:
    """Whether the graph shows that an output holds the scores, what an activation makes of them, or a list of such."""
    node = model.producer(name)
    if node is not None and node.op_type == "SequenceConstruct":
        return any(_says_the_same(model, readout, element) for element in node.input)
    logits = walk_back(model, name).logits
    if logits == readout.logits:
        return True
    producer = model.maker(logits, PASSED)
    return producer is not None and producer is model.maker(readout.logits, PASSED)


def _run_label(in_graph: LabelOutput | None, name: str, column: NDArray[Any], p: FloatArray) -> LabelOutput | None:
    """Return a label output where samples bear out what the graph shows, or show it by themselves; else None.

    `in_graph`: what the graph shows. `column`: (N,) what the output gives. `p`: (N, C).
    """
    if column.size != len(p):
        return None
    if in_graph is not None:
        # an ArgMax of something else gives other numbers
        if in_graph.first and np.mean(in_graph.places(column) == p.argmax(axis=1)) < _MIN_AGREEMENT:
            return None
        return in_graph
    if relation(column, p, _SAME) != "labels":
        return None
    named = _labels_of(column, p) or {}
    classes = [named[c] for c in sorted(named)]
    # a bool has no names to gather
    if len(named) != p.shape[1] or not all(isinstance(one, (str, int, np.integer)) for one in classes):
        classes = []
    return LabelOutput(name, tuple(one if isinstance(one, str) else int(one) for one in classes), first=True)


def labels_of_samples(
    task: Task, label: LabelOutput, collected: Collected, first: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the places (N,) of the classes that a label output gives samples.

    `first`: (N,) the model's likeliest classes, which most labels are.
    """
    if label.first or collected.samples.given:
        return first
    places = collected.table.decided
    if places is None or label != task.opened.decided:  # an earlier run collected without them
        runner = in_rows(open_model(task.model, task.device), task.readout, task.model.name)
        source = collected.source
        values = _outputs(runner, [label.name], source.batches(task.batch_size)).get(label.name)
        if values is None or values.size != len(first):
            return first
        places = label.places(values)
    return np.where(places < 0, first, places)


def outputs_beside(task: Task, checked: Collected) -> list[str]:
    """Return the further outputs that can be run on samples; none for samples that are features or logits."""
    if checked.samples.given:
        return []
    return [name for name in tensor_outputs(task.model) if name != task.opened.output.name]


def relation(values: NDArray[Any], p: FloatArray, tolerance: float, *, labels: bool = False) -> str:
    """Say what an output is of the probabilities: `labels`, `probabilities`, `logits`, or nothing. `p`: (N, C).

    `labels`: whether a sample has several, which are 1 where p is above 1/2.
    """
    n, classes = p.shape
    # integers and texts can be labels only
    if values.dtype.kind not in "fc":
        if labels:
            are_labels = values.dtype.kind in "biu" and values.size == p.size and _are_marks(values.reshape(p.shape), p)
        else:
            are_labels = values.size == n and _labels_of(values, p) is not None
        return "labels" if are_labels else ""
    if labels:
        return _scores_of(values, p, tolerance, sigmoid)
    # a binary model may give one number a sample: a probability or a logit
    if values.size == n and classes == 2:
        column = values.reshape(n).astype(np.float64)
        values = np.stack([1 - column, column], axis=1)
        if np.max(np.abs(values - p)) <= tolerance:
            return "probabilities"
        values = np.stack([np.zeros(n), column], axis=1)
    return _scores_of(values, p, tolerance, softmax)


def _are_marks(values: NDArray[Any], p: FloatArray) -> bool:
    """Whether an output (N, C) is 1 where p is above 1/2, but for what is nearly there."""
    agreeing = (values == (p > 0.5)) | (np.abs(p - 0.5) <= _TIE / 2)
    return bool(np.mean(agreeing) >= _MIN_AGREEMENT)


def _scores_of(values: NDArray[Any], p: FloatArray, tolerance: float, activation: Callable[..., Any]) -> str:
    """Say whether an output holds the probabilities, or what an activation makes them of."""
    if values.size != p.size or not np.all(np.isfinite(values)):
        return ""
    values = values.reshape(p.shape)
    if np.max(np.abs(values - p)) <= tolerance:
        return "probabilities"
    if np.max(np.abs(activation(values) - p)) <= tolerance:
        return "logits"
    return ""


def _labels_hold(old: NDArray[Any], p: FloatArray, new: NDArray[Any], q: FloatArray, tie: float) -> bool:
    """Whether labels are the first class of q wherever the old ones were that of p.

    `tie`: distance of the first two classes of q up to which either may be the label.
    """
    names = _labels_of(old, p) or {}
    top = np.sort(q, axis=1)
    first = p.argmax(axis=1).tolist()
    second = q.argmax(axis=1).tolist()
    before = old.reshape(len(p))
    after = new.reshape(len(q))
    rows = [k for k in np.flatnonzero(top[:, -1] - top[:, -2] > tie).tolist() if before[k] == names.get(first[k])]
    if any(second[k] != first[k] and after[k] == before[k] for k in rows):
        return False
    return all(names.get(second[k], after[k]) == after[k] for k in rows)


def _labels_of(values: NDArray[Any], p: FloatArray) -> dict[int, Any] | None:
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


def _outputs(runner: BatchRunner, names: list[str], batches: Iterable[Batch]) -> dict[str, NDArray[Any]]:
    """Run all batches; an output without one row a sample, of one shape, is left out."""
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    for batch in batches:
        count = len(next(iter(batch.values())))
        remaining = list(parts)
        for name, values in zip(remaining, runner.run(remaining, batch), strict=True):
            if values.ndim and len(values) == count and values.shape[1:] == (parts[name] or [values])[0].shape[1:]:
                parts[name].append(values)
            else:
                del parts[name]
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}
