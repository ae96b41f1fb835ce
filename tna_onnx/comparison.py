"""`verify`: what differs between a model and its recalibrated file, and how far the outputs moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tna_onnx.batching import BatchSize, batch_size_notes, check_batch_size, choose_batch_size
from tna_onnx.data import Format, Recipe, Source
from tna_onnx.errors import DataError, UnsupportedModel, UsageError
from tna_onnx.extraction import Progress, input_specs, open_model, silent
from tna_onnx.graph.difference import Difference, differences
from tna_onnx.graph.head import ancestors, choose_head, find_heads
from tna_onnx.graph.load import Model, ModelSource, load_model
from tna_onnx.graph.outputs import ClassOutput, choose_readout, class_output, output_of
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.rewrite import provenance
from tna_onnx.runtime import Device, Session, parse_device
from tna_onnx.samples import DataOptions

__all__ = ["Difference", "ModelDifference", "OtherOutput", "OutputDifference", "verify"]


@dataclass(frozen=True)
class OtherOutput:
    """An output that does not classify, in both files.

    Attributes:
        name: of the graph output.
        depends_on_head: it is computed from the head's scores. Without that, nothing of it may move (on CUDA two runs
            may differ in the last digits; the CPU settles it).
        values: numbers (or strings) compared.
        differing: how many are not the same.
        largest: largest |new - old|; None if some are strings, not finite, or in another shape.
    """

    name: str
    depends_on_head: bool
    values: int
    differing: int
    largest: float | None


@dataclass(frozen=True)
class OutputDifference:
    """How far the outputs moved on N samples, and how often the predicted class is the same.

    Attributes:
        data: what the samples are.
        samples: N.
        output: the graph output that classifies.
        output_kind: what it holds.
        largest: largest |p - p'| over samples and classes.
        mean: mean of |p - p'| over samples and classes.
        same_class: samples for which both files predict the same class.
        confidence_before: mean probability of the predicted class, in the original.
        confidence_after: the same in the recalibrated file.
        accuracy_before: fraction of samples that the original classifies right.
        accuracy_after: the same for the recalibrated file.
        others: the other outputs.
        preprocessing: of images.
        provider: the execution provider obtained.
    """

    data: str
    samples: int
    output: str
    output_kind: str
    largest: float
    mean: float
    same_class: int
    confidence_before: float
    confidence_after: float
    accuracy_before: float
    accuracy_after: float
    others: tuple[OtherOutput, ...]
    preprocessing: dict[str, object] | None
    provider: str

    @property
    def agreement(self) -> float:
        """Fraction of samples with the same predicted class."""
        return self.same_class / self.samples


@dataclass(frozen=True)
class ModelDifference:
    """What differs between two ONNX files.

    Attributes:
        original: path of the file before.
        original_sha256: its digest.
        recalibrated: path of the file after.
        recalibrated_sha256: its digest.
        source_sha256: digest of the source that the recalibrated file names; empty if it names none.
        head: node of the original's head; empty if it has none.
        nodes: number of nodes of the original.
        tensors: number of its initializers.
        differences: everything that differs.
        only_head_and_block: every difference is explained: the head's weight and bias, the appended block, provenance.
        outputs: how far the outputs moved; None without data, or where they cannot be compared.
        notes: what else the reader should know.
    """

    original: str
    original_sha256: str
    recalibrated: str
    recalibrated_sha256: str
    source_sha256: str
    head: str
    nodes: int
    tensors: int
    differences: tuple[Difference, ...]
    only_head_and_block: bool
    outputs: OutputDifference | None
    notes: tuple[str, ...]

    @property
    def unexplained(self) -> tuple[Difference, ...]:
        """Return the differences that a recalibration does not explain."""
        return tuple(d for d in self.differences if not d.explained)

    @property
    def moved_outputs(self) -> tuple[OtherOutput, ...]:
        """Return the outputs that moved although they do not depend on the head."""
        others = self.outputs.others if self.outputs else ()
        return tuple(other for other in others if other.differing and not other.depends_on_head)

    @property
    def passed(self) -> bool:
        """Whether nothing changed but what a recalibration may change."""
        return self.only_head_and_block and not self.moved_outputs

    @property
    def verdict(self) -> str:
        """Say it in one sentence."""
        if not self.only_head_and_block:
            count = len(self.unexplained)
            return f"changed: {count} {'difference is' if count == 1 else 'differences are'} not of the head or its map"
        if moved := self.moved_outputs:
            names = ", ".join(f"'{other.name}'" for other in moved)
            return f"changed: the output {names} does not depend on the head, but moved"
        if not self.differences:
            return "identical: nothing differs"
        kept = [d for d in self.differences if d.part != "metadata"]
        return "sound: only the head and the appended block differ" if kept else "identical but for the provenance"


def verify(
    original: ModelSource,
    recalibrated: ModelSource,
    *,
    data: Any = None,
    head: str | None = None,
    output_name: str | None = None,
    output_kind: Literal["logits", "probabilities"] | None = None,
    preprocessing: Recipe | str | Path | None = None,
    format: Format | None = None,  # noqa: A002 - the word of the command line
    labels: Any = None,
    classes: Sequence[str] | str | Path | None = None,
    label_column: str | None = None,
    skip_bad: bool = False,
    expect_accuracy: float | None = None,
    device: str = "auto",
    batch_size: BatchSize = 64,
    progress: Progress | None = None,
) -> ModelDifference:
    """Compare a recalibrated ONNX file with its original: every node, tensor and field, and the outputs on data.

    Args:
        original: an ONNX model as for `calibrate`.
        recalibrated: what was made of it.
        data: labelled samples on which both are run; without them, nothing is run.
        head: node of the original's head, where it has several and the recalibrated file does not say which.
        output_name: graph output, likewise.
        output_kind: what it holds, where neither the graph nor the recalibrated file tells.
        preprocessing: recipe for images, or the path of a `preprocessor_config.json` or timm `config.json`.
        format: what the path of the data is; found out by default.
        labels: labels that stand apart from the samples: values, or the path of a file.
        classes: the model's class names in the order of its output, or the path of a file with them.
        label_column: column of a manifest or table that holds the labels.
        skip_bad: leave out images that cannot be read, and count them.
        expect_accuracy: accuracy in per cent that the original is known to have.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run; `auto` finds them by a short probe.
        progress: called with (stage, done, total).

    Returns:
        The differences. A difference that is no recalibration is no error here: see `ModelDifference.passed`.

    Raises:
        UsageError: a path or setting that cannot be used.
        UnsupportedModel: no ONNX file, several heads and no word on which, or no classifier to run.
        DataError: the data do not fit the model.
        CheckFailed: the original's accuracy is more than two standard errors below the expected one.
        DeviceError: ONNX Runtime or the device is missing.
    """
    where = parse_device(device)
    check_batch_size(batch_size)
    if data is None and preprocessing is not None:
        raise UsageError("preprocessing was given, but no data to preprocess; add --data, or leave it away")
    old, new = load_model(original), load_model(recalibrated)
    known = provenance(new)
    if output_name is None and head is None and known.get("output") in old.outputs:
        output_name = known["output"]
    readout = _readout(old, head, output_name, output_kind or _plain_kind(known))
    found = differences(old, new, readout)
    sound = all(d.explained for d in found)
    outputs, notes = None, _notes(old, new)
    if data is not None:
        output = class_output(old, head, output_name, output_kind or _missing_kind(readout, known))
        session = open_model(old, where)
        options = DataOptions(preprocessing, format, classes, label_column, skip_bad, expect_accuracy)
        names = options.class_names(old, output.labels, output.n_classes)
        source = options.open(data, input_specs(session), output.n_classes, names, labels)
        try:
            size = choose_batch_size(batch_size, session, [output.name], source)
            notes += batch_size_notes(batch_size, size)
            outputs = _run(old, session, new, where, source, output, readout, size, progress or silent)
            options.check_accuracy(outputs.accuracy_before, outputs.samples)
        except (DataError, UnsupportedModel) as error:
            if sound:
                raise
            notes += (f"outputs not compared: {error}",)  # the file is not sound: say first in what
    return ModelDifference(
        original=old.name,
        original_sha256=old.sha256,
        recalibrated=new.name,
        recalibrated_sha256=new.sha256,
        source_sha256=known.get("source_sha256", ""),
        head=readout.node if isinstance(readout, Head) else "",
        nodes=len(old.proto.graph.node),
        tensors=len(old.proto.graph.initializer),
        differences=found,
        only_head_and_block=sound,
        outputs=outputs,
        notes=notes,
    )


def _readout(model: Model, head: str | None, output: str | None, kind: str | None) -> Readout | None:
    """Find the original's head, or its tensor of scores; None where there is neither.

    Raises:
        UnsupportedModel: several heads and no word on which, or the word names none.
    """
    heads, _ = find_heads(model)
    if output is not None and output not in model.outputs:
        raise UnsupportedModel(f"{model.name}: no output '{output}'; the model has {', '.join(model.outputs)}")
    if head is not None or any(output in (None, found.output) for found in heads):
        return choose_head(model, head, output)
    try:
        return choose_readout(model, output, kind)
    except UnsupportedModel:
        return None


def _plain_kind(known: dict[str, str]) -> str | None:
    """Return what the provenance says that the output holds, in the words of `--output-kind`."""
    kind = known.get("output_kind")
    return None if kind is None else "probabilities" if kind in ("probabilities", "positive_probability") else "logits"


def _missing_kind(readout: Readout | None, known: dict[str, str]) -> str | None:
    """Return the same where the original's graph does not tell, or tells otherwise."""
    if isinstance(readout, Head) and output_of(readout).kind == known.get("output_kind", output_of(readout).kind):
        return None
    return _plain_kind(known)


def _notes(old: Model, new: Model) -> tuple[str, ...]:
    named = provenance(new).get("source_sha256", "")
    if not provenance(new):
        return (f"{new.name} does not say that tna-onnx wrote it",)
    if named and named != old.sha256:
        return (f"{new.name} names another source: sha256 {named}, but {old.name} has {old.sha256}",)
    return ()


# --- outputs


def _run(
    old: Model,
    session: Session,
    new: Model,
    device: Device,
    source: Source,
    output: ClassOutput,
    readout: Readout | None,
    batch_size: int,
    progress: Progress,
) -> OutputDifference:
    """Run both files on all samples.

    Raises:
        UnsupportedModel: the new file cannot be loaded, or has not the inputs and outputs of the old one.
        DataError: an output of the wrong shape, or NaN or infinite values in it.
    """
    other = open_model(new, device)
    if input_specs(session) != input_specs(other) or not {*old.outputs} <= {*new.outputs}:
        raise UnsupportedModel(f"{new.name}: other inputs or outputs than {old.name}")
    sums, tallies = _Sums(), {name: _Tally() for name in old.outputs if name != output.name}
    names, done = [output.name, *tallies], 0
    for batch in source.batches(batch_size):
        labels = source.labels[done : done + len(next(iter(batch.values())))]
        before, after = session.run(names, batch), other.run(names, batch)
        p = _probabilities(before[0], output, len(labels), f"{old.name}: sample {done} and following")
        q = _probabilities(after[0], output, len(labels), f"{new.name}: sample {done} and following")
        sums.add(p, q, labels)
        for tally, x, y in zip(tallies.values(), before[1:], after[1:], strict=True):
            tally.add(x, y)
        done += len(labels)
        progress("compare", done, len(source))
    downstream = _downstream(old, readout)
    return OutputDifference(
        data=source.describe(),
        samples=done,
        output=output.name,
        output_kind=output.kind,
        largest=sums.largest,
        mean=sums.difference / (done * output.n_classes),
        same_class=sums.same,
        confidence_before=sums.confidence[0] / done,
        confidence_after=sums.confidence[1] / done,
        accuracy_before=sums.hits[0] / done,
        accuracy_after=sums.hits[1] / done,
        others=tuple(
            OtherOutput(name, name in downstream, t.values, t.differing, t.largest) for name, t in tallies.items()
        ),
        preprocessing=source.recipe(),
        provider=other.provider,
    )


class _Sums:
    """Sums in float64 over the samples seen."""

    def __init__(self) -> None:
        self.largest = self.difference = 0.0
        self.same = 0
        self.confidence, self.hits = [0.0, 0.0], [0, 0]

    def add(self, p: NDArray[np.float64], q: NDArray[np.float64], labels: NDArray[np.int64]) -> None:
        """Take in the (B, C) probabilities of both files."""
        moved = np.abs(p - q)
        self.largest = max(self.largest, float(np.max(moved, initial=0)))
        self.difference += float(np.sum(moved))
        self.same += int(np.sum(p.argmax(axis=1) == q.argmax(axis=1)))
        for k, values in enumerate((p, q)):
            self.confidence[k] += float(np.sum(values.max(axis=1)))
            self.hits[k] += int(np.sum(values.argmax(axis=1) == labels))


class _Tally:
    """How far an output moved over the samples seen; equal NaNs are the same."""

    def __init__(self) -> None:
        self.values = self.differing = 0
        self.largest: float | None = 0.0

    def add(self, x: NDArray[Any], y: NDArray[Any]) -> None:
        """Take in the output of both files for one batch."""
        self.values += x.size
        if x.shape != y.shape:
            self.differing, self.largest = self.differing + x.size, None
            return
        numbers = x.dtype.kind in "biuf" and y.dtype.kind in "biuf"
        same = (x == y) | (np.isnan(x) & np.isnan(y)) if numbers and x.dtype.kind == "f" else x == y
        self.differing += int(np.sum(~same))
        if not numbers:
            self.largest = self.largest if same.all() else None
        elif self.largest is not None:
            with np.errstate(invalid="ignore"):
                moved = np.abs(np.where(same, 0, y.astype(np.float64) - x.astype(np.float64)))
            largest = float(np.max(moved, initial=self.largest))
            self.largest = largest if np.isfinite(largest) else None


def _probabilities(values: NDArray[Any], output: ClassOutput, count: int, where: str) -> NDArray[np.float64]:
    if values.size != count * output.width:
        raise DataError(f"{where}: output '{output.name}' has shape {values.shape}; expected ({count}, {output.width})")
    if not np.all(np.isfinite(values)):
        raise DataError(f"{where}: output '{output.name}' holds NaN or infinite values")
    return output.probabilities(values)


def _downstream(model: Model, readout: Readout | None) -> set[str]:
    """Return the outputs that are computed from the head's scores, or from the tensor of scores."""
    if readout is None:
        return {*model.outputs}
    first = readout.stored_weight.reader if isinstance(readout, Head) else model.producers.get(readout.logits, -1)
    return {name for name in model.outputs if first in ancestors(model, name)}
