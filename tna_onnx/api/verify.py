"""`verify`: what differs between a model and its recalibrated file, and how far the outputs moved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tna_onnx.data import Format, Recipe
from tna_onnx.data.options import DataOptions
from tna_onnx.engine.movement import run_both
from tna_onnx.errors import DataError, UnsupportedModel, UsageError
from tna_onnx.extraction.batch_size import BatchSize, batch_size_notes, check_batch_size, choose_batch_size
from tna_onnx.extraction.sessions import input_specs, open_model
from tna_onnx.graph.difference import differences
from tna_onnx.graph.head import choose_head, find_heads
from tna_onnx.graph.load import Model, ModelSource, load_model
from tna_onnx.graph.outputs import choose_readout, class_output, output_of
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.rewrite import provenance
from tna_onnx.progress import Progress, silent
from tna_onnx.results.difference import ModelDifference
from tna_onnx.runtime import parse_device

__all__ = ["verify"]


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
        names = options.class_names(old.metadata, output.labels, output.n_classes)
        source = options.open(data, input_specs(session), output.n_classes, names, labels)
        try:
            size = choose_batch_size(batch_size, session, [output.name], source)
            notes += batch_size_notes(batch_size, size)
            outputs = run_both(old, session, new, where, source, output, readout, size, progress or silent)
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
