"""`verify`: whether a file is its source and a change that this tool writes, and on data, whether it is as good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tna_onnx.api import arguments
from tna_onnx.data.images.known_recipes import preprocessing_notes
from tna_onnx.data.options import Data
from tna_onnx.engine.scoring import FilePair, NotFinite, run_both
from tna_onnx.errors import DataError, UnsupportedModel, UsageError
from tna_onnx.extraction.classifier import Classifier
from tna_onnx.extraction.opened_samples import read_inputs
from tna_onnx.extraction.preparation import Preparation
from tna_onnx.graph.load import Model, checker_complaint, load_model
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.graph.readout import KIND_WORDS, STATED_KINDS, Head, Readout
from tna_onnx.graph.scores import choose_head, class_output, find_heads, find_readout
from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.pipeline.record import Proof, prove
from tna_onnx.progress import Progress
from tna_onnx.results.gates import LIMITS, Gates
from tna_onnx.results.inspection import ModelDifference, OutputDifference
from tna_onnx.runtime import Device, parse_device

# Of the calibration errors that gates look at.
_BINS = 15


@arguments.checked
def verify(
    original: ModelSource,
    recalibrated: ModelSource,
    *,
    data: Any = None,
    labels: Any = None,
    preset: arguments.PresetWord = None,
    classes: arguments.ClassNames = None,
    gates: Gates | None = None,
    model_options: ModelOptions | None = None,
    device: str = "auto",
    batch_size: int = 64,
    json: str | Path | None = None,
    progress: arguments.ProgressWord = None,
) -> ModelDifference:
    """Make a recalibrated ONNX file again of its original and compare all of it; on data, compare what both give.

    Args:
        original: an ONNX model as for `calibrate`.
        recalibrated: what was made of it.
        data: labelled samples on which both are run, as for `calibrate`, or a `tna_onnx.Data`; without them, nothing is
            run.
        gates: the limits `max_ece`, `max_nll` and `min_accuracy`.
        model_options: head or output of the original, where the recalibrated file does not tell them.
        labels, preset, classes, device, batch_size, json, progress: as for `calibrate`.

    Returns:
        Two verdicts: whether the file is intact, and as good on the data. A file that is not is no error here: see
        `ModelDifference.passed`.

    Raises:
        UsageError: a path or setting that cannot be used.
        UnsupportedModel: no ONNX file, several heads and no word on which, or no classifier to run.
        DataError: the data do not fit the model.
        CheckFailed: the original's accuracy is more than two standard errors below the expected one.
        DeviceError: ONNX Runtime or the device is missing.
    """
    # arguments first, then the graphs, then data: cheapest first
    reading = arguments.reading_of(None, labels=labels, preprocessing=preset, classes=classes)
    gates = arguments.limits_of(gates, "verify", *LIMITS)
    samples = _samples(data, reading, gates)
    where = parse_device(device)
    options = model_options or ModelOptions()
    arguments.check_targets(json, in_use=[original, recalibrated, samples])
    old = load_model(original, options.model_limits)
    new = load_model(recalibrated, options.model_limits)
    if old.provenance.get("source_sha256") == new.sha256:
        raise UsageError(f"{old.name} was made of {new.name}; give the original first: {new.name} {old.name}")
    proof = prove(old, new)
    files = _Files.of(old, new, options)
    # what is in the wrong place may well not run
    reason = proof.reason
    if proof.intact:
        reason = reason or _complaint(old, new)
    notes: tuple[str, ...] = ()
    if not files.entries:
        notes = (f"{new.name} does not say that tna-onnx wrote it",)
    outputs: OutputDifference | None = None
    missed: tuple[str, ...] = ()
    if samples is not None:
        with arguments.progress_callback(progress) as advance:
            outputs, missed, more = _compared(files, samples, where, batch_size, advance, gates, proof)
        notes += more
    difference = ModelDifference(
        original=files.old.name,
        original_sha256=files.old.sha256,
        recalibrated=files.new.name,
        recalibrated_sha256=files.new.sha256,
        source_sha256=files.entries.get("source_sha256", ""),
        head=files.readout.node if files.readout else "",
        nodes=len(files.old.proto.graph.node),
        tensors=len(files.old.proto.graph.initializer),
        differences=proof.differences,
        intact=proof.intact and not reason,
        reason=reason,
        missed=missed,
        outputs=outputs,
        notes=notes,
    )
    return arguments.save_json(json, difference)


def _samples(data: Any, reading: Mapping[str, Any], gates: Gates) -> Data | None:
    """Return the samples to run both files on; None if there are none, and nothing is said of them."""
    stated = dict(reading)
    if isinstance(data, Data):
        stated = {**arguments.stated_in(data), **reading}
    for word in ("by", "group_column", "groups", "weight_column", "weights", "class_prior"):
        if word in stated:
            raise UsageError(f"{word} is not used by verify, which compares two files sample by sample; leave it out")
    if data is not None and not (isinstance(data, Data) and data.samples is None):
        return arguments.samples_of(data, reading)
    stated |= arguments.stated_in(gates)
    for word in ("preprocessing", "labels", "expect_accuracy", *LIMITS):
        if word in stated:
            flag = word if word == "preprocessing" else f"--{word.replace('_', '-')}"
            raise UsageError(f"{flag} is about samples, and there are none to run the files on; add --data")
    return None


def _complaint(old: Model, new: Model) -> str:
    """Say what the ONNX checker has against a file, and not against its source; empty if nothing."""
    complaint = checker_complaint(new.path or new.proto)
    if not complaint or checker_complaint(old.path or old.proto):
        return ""
    return f"the ONNX checker refuses it: {complaint}"


def _compared(
    files: _Files, data: Data, device: Device, batch_size: int, progress: Progress, gates: Gates, proof: Proof
) -> tuple[OutputDifference | None, tuple[str, ...], tuple[str, ...]]:
    """Run both files over the samples; return how far outputs moved, gates that are missed, and notes."""
    options = files.options
    old = files.old
    kind = options.output_kind or _missing_kind(files.readout, files.entries)
    output = class_output(old, options.head, options.output_name, kind)
    classifier = Classifier(old, output, device, data)
    # the recalibrated file says how the images were prepared that it was fitted to
    preparation = Preparation(files.new, output, classifier.session)
    data, source = preparation.settle(data, read_inputs(classifier, data))
    pair = FilePair(old, classifier.session, files.new, files.readouts, output)
    notes: tuple[str, ...] = ()
    try:
        notes += tuple(preprocessing_notes(source, classifier.inputs, data.preprocessing))
        moved = run_both(pair, device, source, batch_size, progress)
        data.check_accuracy(moved.outputs.accuracy_before, moved.outputs.samples)
    except NotFinite as error:
        return None, (str(error),), notes
    except (DataError, UnsupportedModel) as error:
        # nothing else is wrong: this is what the user has to see
        if proof.intact:
            raise
        return None, (), (*notes, f"outputs not compared: {error}")  # say first in what the file is wrong
    after = Metrics.of(moved.after, _BINS)
    differences = paired_differences(moved.before, moved.after, _BINS)
    missed = (*gates.limits_missed(after, ""), *gates.changes_missed(differences, "nll", after, ""))
    return moved.outputs, missed, (*notes, *moved.notes)


@dataclass(frozen=True, eq=False)
class _Files:
    """Both files, and what is known of them."""

    old: Model  # the original
    new: Model  # the recalibrated file
    options: ModelOptions  # on the original, completed by what the new file says about itself
    readout: Readout | None  # the original's head, or its tensor of scores; None where there is neither
    entries: dict[str, str]  # provenance of the new file; empty if tna-onnx did not write it
    heads: tuple[str, ...]  # graph outputs of several heads that were recalibrated in it

    @classmethod
    def of(cls, old: Model, new: Model, options: ModelOptions) -> _Files:
        """Find the original's head with what the new file says about it."""
        heads = new.calibrated_heads
        output = options.output_name
        if options.head in old.outputs and options.head in heads:
            output = options.head
        if heads and output is None and options.head is None:
            output = heads[0]
        entries = new.provenance_of(output)
        # the user's words go before those of the file
        if output is None and options.head is None and entries.get("output") in old.outputs:
            output = entries["output"]
        options = replace(options, output_name=output)
        readout = _readout(old, options.head, output, options.output_kind or _plain_kind(entries))
        return cls(old, new, options, readout, entries, heads)

    @property
    def readouts(self) -> tuple[Readout, ...]:
        """All heads that were recalibrated, or the tensor of scores."""
        readouts: tuple[Readout | None, ...] = (self.readout,)
        if self.heads:
            readouts = tuple(_readout(self.old, None, name, self.options.output_kind) for name in self.heads)
        return tuple(readout for readout in readouts if readout is not None)


def _readout(model: Model, head: str | None, output: str | None, kind: str | None) -> Readout | None:
    """Find the original's head, or its tensor of scores, if need be taken for probabilities; None without either."""
    # refusals are not shown here: a model without a head can be compared all the same
    heads, _ = find_heads(model, kind)
    if output is not None and output not in model.outputs:
        raise UnsupportedModel(f"{model.name}: no output '{output}'; the model has {', '.join(model.outputs)}")
    if head is not None or any(output in (None, candidate.output) for candidate in heads):
        return choose_head(model, head, output, kind)
    try:
        return find_readout(model, None, output, kind)
    # the files can be compared without scores
    except UnsupportedModel:
        return None


def _plain_kind(entries: dict[str, str]) -> str | None:
    """Return what the provenance says that the output holds, in the words of `--output-kind`."""
    kind = entries.get("output_kind")
    if kind is None:
        return None
    return KIND_WORDS.get(kind, "logits")


def _missing_kind(readout: Readout | None, entries: dict[str, str]) -> str | None:
    """Return the same where the original's graph does not tell, or tells otherwise."""
    if not isinstance(readout, Head):
        return _plain_kind(entries)
    kind = readout.class_output.kind
    # of logits without their Sigmoid only the provenance tells
    if kind not in STATED_KINDS and kind == entries.get("output_kind", kind):
        return None
    return _plain_kind(entries)
