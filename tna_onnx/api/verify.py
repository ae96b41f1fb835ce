"""`verify`: what differs between a model and its recalibrated file, and how far the outputs moved."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tna_onnx.api.arguments import data_of, model_options_of, refuse_unknown
from tna_onnx.api.shown import ProgressWord, check_targets, kept, shown
from tna_onnx.api.words import DataModelWords, Unpack
from tna_onnx.calibration.decided import sources_between
from tna_onnx.data import Source
from tna_onnx.data.images.notes import preprocessing_notes
from tna_onnx.data.options import Data
from tna_onnx.engine.movement import Both, run_both
from tna_onnx.errors import DataError, UnsupportedModel, UsageError
from tna_onnx.extraction.batch_size import batch_size_notes, check_batch_size, choose_batch_size
from tna_onnx.extraction.isolated import open_source
from tna_onnx.extraction.sessions import in_rows, input_specs, open_model
from tna_onnx.extraction.words import BatchSize
from tna_onnx.graph.difference import Difference, differences, head_differences
from tna_onnx.graph.head import choose_head, find_heads
from tna_onnx.graph.integers import opened_like
from tna_onnx.graph.load import Model
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.graph.outputs import OUTPUT_KINDS, class_output, output_of
from tna_onnx.graph.own_names import calibrated_heads, head_provenance
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.scores import choose_readout
from tna_onnx.progress import Progress
from tna_onnx.results.difference import ModelDifference, OutputDifference
from tna_onnx.runtime import Device, parse_device

__all__ = ["verify"]


def verify(
    original: ModelSource,
    recalibrated: ModelSource,
    *,
    data: Any = None,
    device: str = "auto",
    batch_size: BatchSize = 64,
    json: str | Path | None = None,
    progress: ProgressWord = None,
    **words: Unpack[DataModelWords],
) -> ModelDifference:
    """Compare a recalibrated ONNX file with its original: every node, tensor and field, and the outputs on data.

    Args:
        original: an ONNX model as for `calibrate`.
        recalibrated: what was made of it.
        data: labelled samples on which both are run; without them, nothing is run.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run; `auto` finds them by a short probe.
        json: JSON file to write.
        progress: True for bars on standard error, or a function that is called with (stage, done, total).
        **words: single fields by name, of `tna_onnx.Data`, and of `tna_onnx.ModelOptions` for the original, where the
            recalibrated file does not tell them.

    Returns:
        The differences. A difference that is no recalibration is no error here: see `ModelDifference.passed`.

    Raises:
        TypeError: a keyword that none of these has.
        UsageError: a path or setting that cannot be used.
        UnsupportedModel: no ONNX file, several heads and no word on which, or no classifier to run.
        DataError: the data do not fit the model.
        CheckFailed: the original's accuracy is more than two standard errors below the expected one.
        DeviceError: ONNX Runtime or the device is missing.
    """
    # arguments first, then the graphs, then data: cheapest first
    refuse_unknown("verify", words, DataModelWords)
    where = parse_device(device)
    options = model_options_of(words)
    check_batch_size(batch_size)
    check_targets(json)
    if data is None and words.get("preprocessing") is not None:
        raise UsageError("preprocessing was given, but no data to preprocess; add --data, or leave it out")
    old = open_source(original, options)
    files = _Files.of(old, opened_like(old, open_source(recalibrated, options)), options)
    found = files.differences()
    sound = all(d.explained for d in found)
    notes = _notes(files)
    outputs: OutputDifference | None = None
    if data is not None:
        with shown(progress) as advance:
            outputs, more = _moved(files, data_of(data, words), where, batch_size, advance, sound=sound)
        notes += more
    result = ModelDifference(
        original=files.old.name,
        original_sha256=files.old.sha256,
        recalibrated=files.new.name,
        recalibrated_sha256=files.new.sha256,
        source_sha256=files.known.get("source_sha256", ""),
        head=files.readout.node if isinstance(files.readout, Head) else "",
        nodes=len(files.old.proto.graph.node),
        tensors=len(files.old.proto.graph.initializer),
        differences=found,
        only_head_and_block=sound,
        outputs=outputs,
        notes=notes,
    )
    return kept(json, result)


def _moved(
    files: _Files, data: Data, device: Device, batch_size: BatchSize, progress: Progress, *, sound: bool
) -> tuple[OutputDifference | None, tuple[str, ...]]:
    """Run both files over the samples; return how far outputs moved, and notes.

    Raises:
        DataError, UnsupportedModel, CheckFailed: see `verify`; the first two only if nothing else is wrong.
    """
    both, source = _open(files, data, device)
    notes: tuple[str, ...] = ()
    try:
        size = choose_batch_size(batch_size, both.session, [both.output.name], source)
        notes += batch_size_notes(batch_size, size)
        notes += tuple(preprocessing_notes(source, input_specs(both.session), data.preprocessing))
        outputs = run_both(both, device, source, size, progress)
        data.check_accuracy(outputs.accuracy_before, outputs.samples)
    except (DataError, UnsupportedModel) as error:
        # nothing else is wrong: this is what the user has to see
        if sound:
            raise
        return None, (*notes, f"outputs not compared: {error}")  # the file is not sound: say first in what
    return outputs, notes


@dataclass(frozen=True, eq=False)
class _Files:
    """Both files, and what is known of them.

    Attributes:
        old: the original.
        new: the recalibrated file.
        options: on the original, completed by what the new file says about itself.
        readout: the original's head, or its tensor of scores; None where there is neither.
        known: provenance of the new file; empty if tna-onnx did not write it.
        heads: graph outputs of several heads that were recalibrated in it.
    """

    old: Model
    new: Model
    options: ModelOptions
    readout: Readout | None
    known: dict[str, str]
    heads: tuple[str, ...]

    @classmethod
    def of(cls, old: Model, new: Model, options: ModelOptions) -> _Files:
        """Find the original's head with what the new file says about it.

        Raises:
            UnsupportedModel: several heads and no word on which, or the word names none.
        """
        heads = calibrated_heads(new)
        output = options.output_name
        if options.head in old.outputs and options.head in heads:
            output = options.head
        if heads and output is None and options.head is None:
            output = heads[0]
        known = head_provenance(new, output)
        # the user's words go before those of the file
        if output is None and options.head is None and known.get("output") in old.outputs:
            output = known["output"]
        options = replace(options, output_name=output)
        readout = _readout(old, options.head, output, options.output_kind or _plain_kind(known))
        return cls(old, new, options, readout, known, heads)

    def differences(self) -> tuple[Difference, ...]:
        """Compare both files; of several heads, each explains its own differences."""
        readouts = self.readouts
        # heads that the original has behind maps already are none that the new file explains
        if not self.heads or not readouts:
            return differences(self.old, self.new, self.readout)
        return head_differences(self.old, self.new, readouts)

    @property
    def readouts(self) -> tuple[Readout, ...]:
        """All heads that were recalibrated, or the tensor of scores."""
        found: tuple[Readout | None, ...] = (self.readout,)
        if self.heads:
            found = tuple(_readout(self.old, None, name, self.options.output_kind) for name in self.heads)
        return tuple(each for each in found if each is not None)


def _open(files: _Files, data: Data, device: Device) -> tuple[Both, Source]:
    """Open the original and the samples for its inputs."""
    options = files.options
    kind = options.output_kind or _missing_kind(files.readout, files.known)
    output = class_output(files.old, options.head, options.output_name, kind)
    session = in_rows(open_model(files.old, device), output, files.old.name)
    names = data.class_names(files.old.metadata, output.labels, output.n_classes)
    source = data.open(
        input_specs(session), output.n_classes, names, several=output.several, multi_label=output.multi_label
    )
    return Both(files.old, session, files.new, files.readouts, output), source


def _readout(model: Model, head: str | None, output: str | None, kind: str | None) -> Readout | None:
    """Find the original's head, or its tensor of scores; None where there is neither.

    Raises:
        UnsupportedModel: several heads and no word on which, or the word names none.
    """
    # refusals are not shown here: a model without a head can be compared all the same
    heads, _ = find_heads(model, kind)
    if output is not None and output not in model.outputs:
        raise UnsupportedModel(f"{model.name}: no output '{output}'; the model has {', '.join(model.outputs)}")
    if head is not None or any(output in (None, each.output) for each in heads):
        return choose_head(model, head, output, kind)
    try:
        return choose_readout(model, output, kind)
    # the files can be compared without scores
    except UnsupportedModel:
        return None


def _plain_kind(known: dict[str, str]) -> str | None:
    """Return what the provenance says that the output holds, in the words of `--output-kind`."""
    kind = known.get("output_kind")
    if kind is None:
        return None
    return OUTPUT_KINDS.get(kind, "logits")


def _missing_kind(readout: Readout | None, known: dict[str, str]) -> str | None:
    """Return the same where the original's graph does not tell, or tells otherwise."""
    if not isinstance(readout, Head):
        return _plain_kind(known)
    kind = output_of(readout).kind
    # of logits without their Sigmoid only the provenance tells
    if kind not in ("positive_logit", "label_logits") and kind == known.get("output_kind", kind):
        return None
    return _plain_kind(known)


def _notes(files: _Files) -> tuple[str, ...]:
    named = files.known.get("source_sha256", "")
    if not files.known:
        return (f"{files.new.name} does not say that tna-onnx wrote it",)
    if named and files.old.sha256 not in (named, *sources_between(files.new)):
        return (f"{files.new.name} names another source: sha256 {named}, but {files.old.name} has {files.old.sha256}",)
    return ()
