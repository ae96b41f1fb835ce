"""Everything that `shift` opens and checks before it estimates: model, scores, data, device."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tna_onnx.calibration.leaks import Told
from tna_onnx.data import Source
from tna_onnx.data.digest import sample_form
from tna_onnx.data.leaks import overlap_of, read_sketch, sketch_overlap
from tna_onnx.data.limits import Limits
from tna_onnx.data.options import Data
from tna_onnx.data.source import source_notes
from tna_onnx.data.unlabelled import NO_LABELS
from tna_onnx.errors import DataError, UnsupportedModel
from tna_onnx.extraction.batch_size import batch_size_notes, check_batch_size, choose_batch_size
from tna_onnx.extraction.head_check import Probed, check_readout
from tna_onnx.extraction.isolated import open_source
from tna_onnx.extraction.opened_check import opened_notes
from tna_onnx.extraction.sessions import OpenModel
from tna_onnx.graph.integers import left_closed
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import PREFIX
from tna_onnx.graph.options import ModelOptions
from tna_onnx.graph.outputs import ClassOutput, class_output, require_one_prediction
from tna_onnx.graph.own_names import provenance
from tna_onnx.graph.readout import Readout
from tna_onnx.graph.scores import find_readout
from tna_onnx.runtime import Device, Session, parse_device
from tna_onnx.shifting.job import ShiftJob

__all__ = ["Opened", "open_shift"]

# These fit one number a class at most, so the samples that they were fitted to look hardly better than others.
_FEW_PARAMETERS = ("none", "ts", "ets", "bias", "platt")

# What the graph does not show behind an appended map; provenance tells.
_KINDS = {"logits": "logits", "positive_logit": "logit"}

_MIN_SHARED = 2  # one equal sample is chance


@dataclass(frozen=True, eq=False)
class Opened:
    """The model and its data.

    Attributes:
        model: the source.
        output: the output that classifies.
        probed: where its scores are.
        names: of the classes; indices where they are not known.
        known_names: of the classes, if known.
        source: labelled samples of the data that the model was made for.
        unlabelled: samples of the target without labels; None where its frequencies are given.
        held_out: labelled samples of the target; None without.
        session: on the model.
        device: where to run.
        batch_size: samples per run.
        notes: on the data.
    """

    model: Model
    output: ClassOutput
    probed: Probed
    names: tuple[str, ...]
    known_names: tuple[str, ...] | None
    source: Source
    unlabelled: Source | None
    held_out: Source | None
    session: Session
    device: Device
    batch_size: int
    notes: tuple[str, ...]


def open_shift(job: ShiftJob) -> Opened:
    """Open model and data, cheapest first.

    Raises:
        UsageError, UnsupportedModel, DataError, DeviceError: see `tna_onnx.shift`.
    """
    check_batch_size(job.batch_size)
    model = open_source(job.model, job.options)
    _refuse_earlier_work(model)
    output = class_output(model, job.options.head, job.options.output_name, job.options.output_kind)
    require_one_prediction(model, output, "class frequencies are estimated on samples of one prediction each")
    model, readout = left_closed(model, _readout(model, job.options, output))
    device = parse_device(job.device)
    opened = OpenModel(model, readout, device)
    names = job.calib.class_names(model.metadata, output.labels, output.n_classes)
    source = job.calib.open(opened.inputs, output.n_classes, names)
    unlabelled = None
    if job.target is not None:
        # labels that the samples bring are not read: an estimate must not know them
        without = dataclasses.replace(job.target, labels=NO_LABELS)
        unlabelled = without.open(opened.inputs, output.n_classes, names)
    held_out = None
    if job.held_out is not None:
        held_out = job.held_out.open(opened.inputs, output.n_classes, names)
    notes = _leak_notes(model, source, unlabelled, held_out, job.calib)
    notes += source_notes(source)
    if unlabelled is not None:
        notes += source_notes(unlabelled)
    size = choose_batch_size(job.batch_size, opened.session, [output.name], source)
    notes += batch_size_notes(job.batch_size, size)
    notes += opened_notes(opened, source, size)
    probed = check_readout(opened, readout, opened.session, source, size)
    shown = names or tuple(str(k) for k in range(output.n_classes))
    return Opened(
        model, output, probed, shown, names, source, unlabelled, held_out, opened.session, device, size, notes
    )


def _refuse_earlier_work(model: Model) -> None:
    entries = provenance(model)
    if "guard" in entries:
        raise UnsupportedModel(
            f"{model.name}: has been guarded already, with thresholds for its probabilities as they are; shift the "
            "model without these outputs, and guard the result with samples of the target"
        )
    if "shift" in entries:
        raise UnsupportedModel(f"{model.name}: has been shifted already; start from the model before that shift")


def _readout(model: Model, options: ModelOptions, output: ClassOutput) -> Readout:
    """Return where the scores are, behind a map of ours too."""
    kind = options.output_kind
    name = options.output_name
    if any(tensor.startswith(f"{PREFIX}/") for tensor in model.producers):
        kind = kind or _KINDS.get(output.kind)  # type: ignore[assignment]  # words of the same choice
        name = name or output.name
    # the word names a head by its output, which leads to the scores behind a map too
    head = None if options.head == output.name else options.head
    return find_readout(model, head, name, kind)


def _leak_notes(
    model: Model, source: Source, unlabelled: Source | None, held_out: Source | None, data: Data
) -> tuple[str, ...]:
    """Refuse samples that serve two purposes which exclude each other; note what does no harm."""
    calib = Told(source, sample_form(source))
    notes = []
    if unlabelled is not None:
        target = Told(unlabelled, sample_form(unlabelled))
        notes += _earlier_notes(model, calib, data.limits)
        _refuse_shared(target, calib, data.limits, "labelled samples of --calib, so they tell nothing of a target")
        if _seen_before(model, target, data.limits):
            raise DataError(f"{target.name}: {model.name} was recalibrated on these samples; give those of the target")
    if held_out is not None:
        judging = Told(held_out, sample_form(held_out))
        what = "samples of --calib too; --eval must come from the target, as its samples will"
        _refuse_shared(judging, calib, data.limits, what)
        if unlabelled is not None and overlap_of(judging.digests, target.digests).shared:
            notes.append(f"{judging.name}: some of these samples gave the class frequencies too, without their labels")
    return tuple(notes)


def _earlier_notes(model: Model, calib: Told, limits: Limits) -> list[str]:
    """Look for samples that the model was recalibrated on: a confusion matrix of those looks better than it is.

    Raises:
        DataError: the recalibration fitted more than a number for each class.
    """
    if not _seen_before(model, calib, limits):
        return []
    entries = provenance(model)
    few = entries.get("map") in _FEW_PARAMETERS and entries.get("anchor", "original") == "original"
    if few and entries.get("angle_degrees") in ("0", "0.0"):
        return [
            f"{calib.name}: {model.name} was recalibrated on these samples, by one number a class at most; other ones "
            "would be better"
        ]
    raise DataError(
        f"{calib.name}: {model.name} was recalibrated on these samples ({entries.get('method', '')}), and looks better "
        "on them than it is, so their confusion matrix is not that of new samples; give others, or calibrate with "
        "--map bias"
    )


def _seen_before(model: Model, each: Told, limits: Limits) -> bool:
    entries = provenance(model)
    if entries.get("calibration_form", each.form) != each.form or limits.overlap >= 100:
        return False
    overlap = sketch_overlap(each.digests, read_sketch(entries.get("calibration_sketch", "")))
    return overlap.shared >= _MIN_SHARED and 100 * overlap.share > limits.overlap


def _refuse_shared(each: Told, calib: Told, limits: Limits, what: str) -> None:
    if each.form != calib.form:
        return
    overlap = overlap_of(each.digests, calib.digests)
    if overlap.shared >= _MIN_SHARED and 100 * overlap.share > limits.overlap:
        raise DataError(
            f"{each.name}: {overlap.shared:,} of {overlap.n:,} samples ({overlap.share:.2%}) are {what}; remove them. "
            "Where equal samples are to be expected, --data-limit overlap=PERCENT allows them"
        )
