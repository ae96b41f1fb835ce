"""What a command opens and checks, from the cheapest check to the dearest: graph, samples and labels, preprocessing,
batches.

`open_task`, for recalibration, also runs the network up to its head. `Opened` runs the whole model.
"""

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.options import Data
from tna_onnx.data.source import Source, clusters_of, source_weights
from tna_onnx.data.suspicion import Suspicion, checked_labels
from tna_onnx.engine.placement import placement_of
from tna_onnx.engine.scoring import readout_with_quantum
from tna_onnx.errors import UnsupportedModel, UsageError
from tna_onnx.extraction.classifier import Classifier, OpenModel, names_of
from tna_onnx.extraction.collect import collect_features
from tna_onnx.extraction.head_check import CheckedHead, HeadDiffers, check_readout
from tna_onnx.extraction.independence import VERIFIED, require_independence
from tna_onnx.extraction.opened_samples import Samples, computed_kind, open_samples
from tna_onnx.extraction.sessions import open_part
from tna_onnx.graph.cut import before_map, cut_between, mapped_logits
from tna_onnx.graph.linear import integer_layer
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.nodes import RAW_LOGITS
from tna_onnx.graph.options import ModelOptions
from tna_onnx.graph.readout import STATED_KINDS, ClassOutput, Head, Readout, requantized
from tna_onnx.graph.scores import SeveralHeads, choose_head, find_readout
from tna_onnx.graph.walk.loop import walk_back
from tna_onnx.pipeline.job import Collected, Job, Task, target_of
from tna_onnx.pipeline.sample_checks import (
    DigestedSamples,
    check_counts,
    check_gated_classes,
    check_leaks,
    grouped,
    sample_notes,
)
from tna_onnx.pipeline.teaching import open_teacher, open_unlabelled, taught
from tna_onnx.progress import Progress
from tna_onnx.runtime import Device, Session, parse_device

_log = logging.getLogger("tna_onnx")

# Samples of files of features or logits that are used, a random part of more: at least so many, and so many a class.
# The interval of a log loss is then some thousandths of a nat wide, and memory does not grow with the files.
_MOST = 1_000_000
_MOST_OF_CLASS = 100


@dataclass(frozen=True, eq=False)
class Opened:
    """A classifier with the samples that a command runs it over."""

    classifier: Classifier  # ready to run
    data: Data  # the description of `source`, with the preprocessing that was found for it
    source: Source  # labelled samples that something is chosen, fitted or measured on
    held_out: Source | None  # labelled samples for the report; None without
    batch_size: int  # samples per run
    notes: tuple[str, ...]  # on the data, and on what the model makes of a batch
    # what digests of samples are of, where these are features or logits; empty for samples of its inputs
    form: str = field(default="", kw_only=True)

    @property
    def model(self) -> Model:
        """The model as it was read."""
        return self.classifier.model

    @property
    def output(self) -> ClassOutput:
        """The output that classifies."""
        return self.classifier.output

    @property
    def session(self) -> Session:
        """The session on the model."""
        return self.classifier.session

    @property
    def device(self) -> Device:
        """The device that runs it."""
        return self.classifier.device

    @functools.cached_property
    def digested(self) -> DigestedSamples:
        """Digests of the samples of `source`, by which equal ones are found in other data."""
        return DigestedSamples.of(self.source, self.form)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes; their numbers where they have none."""
        return self.classifier.names_or_numbers

    def suspicion(self, predicted: NDArray[np.int64], confidence: Callable[[], NDArray[Any]]) -> Suspicion | None:
        """Compare the labels of `source` with the model's predictions, and return what looks wrong about them."""
        return checked_labels(
            self.data, predicted, self.source.labels, self.classifier.names, self.output.n_classes, confidence
        )


def open_computed(
    model: Model, output: ClassOutput, device: Device, data: Data, options: ModelOptions, further: Iterable[str]
) -> tuple[Classifier, Samples] | None:
    """Open the part of a model behind features or logits that were computed before, and these.

    Gives None where the samples are for the model's inputs. `further`: outputs to run beside the one that classifies.
    """
    # labels of features in tables are a column of these, of one class each
    in_tables = data.labels is None and not output.multi_label
    if output.several or not computed_kind(data, model.inputs, in_tables=in_tables):
        return None
    kind: Any = options.output_kind or STATED_KINDS.get(output.kind)
    options = replace(options, output_name=output.name, output_kind=kind)
    before, options = before_map(model, output.name, options)
    readout = find_readout(before, options.head, options.output_name, options.output_kind)
    if before is not model:  # a part, which still has to say what it was made of
        before.proto.metadata_props.extend(model.proto.metadata_props)
    opened = OpenModel(before, readout, device, data)
    samples = open_samples(opened, data)
    opened.close()
    if samples.form == "logits" and (model.calibrations or "shift" in model.provenance):
        raise UsageError(
            f"{model.name} is a recalibrated file, and logits may be those before or after recalibration; give "
            f"features, or samples for its inputs: {', '.join(model.inputs)}"
        )
    cut = cut_between(model.proto, samples.given, [output.name, *further], readout.joined)
    session = open_part(model, cut, device)
    _log.info("open: %s behind %s, provider %s", model.name, samples.form, session.provider)
    return Classifier(model, output, device, data, session), samples


def batch_notes(classifier: Classifier, source: Source, size: int, outputs: Sequence[str] = ()) -> tuple[str, ...]:
    """Refuse scores that depend on the batch, and return notes on what the model makes of one.

    `size`: samples per run; `outputs`: those that must not depend on the batch either.
    """
    model = classifier.model
    output = classifier.output
    session = classifier.session
    _log.debug("open: output %s (%s), samples per run: %d", output.name, output.kind, size)
    _log.info("data: %s", source.describe())
    notes = require_independence(model, session, output, source, size, outputs)
    return (*notes, *model.class_notes(classifier.names))


def open_task(job: Job, progress: Progress, *, verified: bool = False) -> Task:
    """Open and check, cheapest first; then run the network, once over each set of samples.

    `verified`: whether a file is written and checked later, which runs samples in other batches once more.
    """
    # arguments first, then the graph, then labels: nothing has run when one of them is refused
    opened, target = _open_model(job)
    teacher_model = None if job.teacher is None else open_teacher(job.teacher, opened, job.calib, target)
    samples, held_out = _open_both(job, opened)
    check_counts(job, samples, held_out)
    check_gated_classes(job, opened, (held_out or samples).source)
    # after the counts, because it reads all data
    digested = [DigestedSamples.of(part.source, part.form) for part in (samples, held_out) if part is not None]
    leaks = check_leaks(opened.model, digested, job.calib.limits, logits=opened.readout.logits)
    # the check runs held-out samples where there are enough
    enough = held_out is not None and not held_out.given and len(held_out.source) >= VERIFIED
    verified = verified and not samples.given and not enough
    session = opened.session_from(samples.given)
    opened, probed, size, more = _probed(job, opened, samples, session, verified=verified)
    provider, fallback = _provider(session)
    _log.info("open: %s, provider %s", opened.model.name, provider)
    del session  # `opened` may replace it by one that runs several batches at a time
    run = functools.partial(_collected, opened, probed, size, progress)
    calibration = run(samples, "calibration data", job.cache)
    probed = replace(probed, readout=readout_with_quantum(probed.readout, calibration.table.features))
    # only this run needs these: no store keeps their features
    judging = None if held_out is None else run(held_out, "held-out data", None)
    # the network has run: what it holds, on the device too, is free for the search
    opened.close()
    teacher = None
    if teacher_model is not None and judging is not None:
        teacher, calibration, judging = taught(teacher_model, job, opened, calibration, judging, size, progress)
    calibration, judging, copies = grouped(calibration, judging, digested, job.calib.limits)
    multiplications = calibration.table.features.size * probed.readout.n_classes
    about_model = (*_shift_notes(opened.model), *_integer_notes(opened.model, opened.readout), *more)
    return Task(
        job=job,
        opened=opened,
        probed=probed,
        output=target,
        calibration=calibration,
        held_out=judging,
        provider=provider,
        fallback=fallback,
        batch_size=size,
        placement=placement_of(provider, opened.device, multiplications),
        data_notes=(
            *leaks,
            *copies,
            *sample_notes(job, opened, samples, held_out),
            *about_model,
            *opened.model.class_notes(opened.names),
        ),
        teacher=teacher,
    )


def _probed(
    job: Job, opened: OpenModel, samples: Samples, session: Session | None, *, verified: bool
) -> tuple[OpenModel, CheckedHead, int, tuple[str, ...]]:
    """Run a first batch; without the head where the features and its weight alone do not give the logits.

    Gives the model, the checked head, the number of samples per run, and notes on session and model.
    """
    size = job.batch_size
    notes: tuple[str, ...] = ()
    try:
        probed = check_readout(opened, samples.readout, session, samples.source, size, verified=verified)
    except HeadDiffers as error:
        if job.needs_head or samples.given:
            raise
        notes = (f"the last layer stays as it is: {str(error).partition('; use ')[0]}",)
    if notes:
        opened = opened.without_head()
        probed = check_readout(opened, opened.readout, session, samples.source, size, verified=verified)
    if probed.tail is not None and session is not None and session.fixed_batch:
        # the tail runs the collected batches as they are, so they must be those of the model
        size = session.fixed_batch
    return opened, probed, size, (*probed.notes, *notes)


def _collected(
    opened: OpenModel,
    probed: CheckedHead,
    size: int,
    progress: Progress,
    samples: Samples,
    stage: str,
    cache: str | Path | None,
) -> Collected:
    """Run samples, once, up to the head; those that hold logits are taken as they are.

    `stage`: what progress calls them: two data sets under one name would look like one that is read twice. `cache`:
    folder of the store in which features stay; None to keep them for this run only.
    """
    _log.info("collect: %s", samples.source.describe())
    readout = samples.readout
    if isinstance(readout, Head):
        readout = probed.readout

    def advance(_: str, *count: int) -> None:
        progress(stage, *count)

    folder = None if cache is None else Path(cache)
    table = collect_features(opened, readout, samples.source, size, advance, folder, samples.given)
    if samples.store is not None:
        table = replace(table, folder=samples.store)
    table = replace(table, clusters=clusters_of(samples.source), weights=source_weights(samples.source))
    return Collected(replace(samples, readout=readout), table)


def _open_model(job: Job) -> tuple[OpenModel, Path | None]:
    """Return the model with its head, and the path to write: a path that cannot be used costs no run."""
    # a head's graph says what follows it; a second word on that could contradict it
    if job.needs_head and job.options.output_kind not in (None, "logit", "label-logits"):
        raise UsageError("--output-kind is for --search none; a search takes the kind from the graph")
    device = parse_device(job.device)
    model = load_model(job.model, job.options.model_limits)
    refuse_finished(model, job.options)
    target = target_of(job, model, ".tna.onnx", in_memory=True)
    readout = _find_readout(job, model)
    _refuse_readers(model, readout)
    return OpenModel(model, readout, device, job.calib), target


def refuse_finished(model: Model, options: ModelOptions) -> None:
    """Refuse a model that holds decisions, or nodes of this tool behind its logits.

    A map behind the logits of one head is none of another one, where the options name that by its output.
    """
    entries = model.provenance
    # thresholds are for the probabilities as they are
    if "guard" in entries:
        raise UnsupportedModel(
            f"{model.name}: has been guarded already, with thresholds for its probabilities as they are; calibrate the "
            "model without these outputs, and guard the result"
        )
    if RAW_LOGITS not in model.producers:
        return
    if "shift" in entries and "map" not in entries:
        raise UnsupportedModel(
            f"{model.name}: has been shifted already, by nodes behind its logits; calibrate the model before, and "
            "shift the result"
        )
    output = options.output_name or options.head
    if output in model.outputs and mapped_logits(model, output) is None:
        return
    raise UnsupportedModel(
        f"{model.name}: already holds a map that tna-onnx wrote ('{RAW_LOGITS}'); start from the original model, or "
        "name the output of another head with --head"
    )


def _refuse_readers(model: Model, readout: Readout) -> None:
    """Refuse a head whose scores a head reads that was calibrated, or shifted, before: that would be undone."""
    for output in model.calibrations:
        if output not in ("", readout.output) and model.reads(output, readout.logits):
            raise UnsupportedModel(
                f"{model.name}: output '{output}' was recalibrated before, and is computed from the scores of "
                f"'{readout.output}', so recalibrating these would change both; start from the original model"
            )
    shifted = model.provenance
    if "shift" in shifted and shifted.get("output", readout.output) != readout.output:
        raise UnsupportedModel(
            f"{model.name}: output '{shifted['output']}' was shifted to other class frequencies; calibrate all heads "
            "before, and shift the result"
        )


def _shift_notes(model: Model) -> tuple[str, ...]:
    """Say that a model was given other class frequencies, which a calibration fits anew."""
    if "shift" not in model.provenance:
        return ()
    return (
        f"{model.name} was shifted to other class frequencies: a calibration on samples with others would undo that, "
        "so these must come from the target; better calibrate first, and shift the result",
    )


def _integer_notes(model: Model, readout: Readout) -> tuple[str, ...]:
    """Say that the last layer computes with integers, so that its weight stays."""
    layer = None if isinstance(readout, Head) else integer_layer(model, walk_back(model, readout.output).node)
    if layer is None:
        return ()
    return (
        f"the last layer, '{layer.name or layer.output[0]}', computes with integers ({layer.op_type}): its weight "
        "stays, and a map goes behind the scores. A weight can be searched in the float model, which is then quantised",
    )


def _provider(session: Session | None) -> tuple[str, str]:
    """Return the execution provider, and why `auto` did not get CUDA; the samples may need no session."""
    if session is None:
        return "none", ""
    return session.provider, session.fallback


def _open_both(job: Job, opened: OpenModel) -> tuple[Samples, Samples | None]:
    """Open the samples to fit on, and those for the report: without labels, a part of the former."""
    if job.teacher is None:
        limit = max(_MOST, _MOST_OF_CLASS * opened.readout.n_classes)
        return open_samples(opened, job.calib, limit), _open_held_out(job, opened)
    return open_unlabelled(opened, job.calib, _open_held_out(job, opened), job.settings.seed)


def _open_held_out(job: Job, opened: OpenModel) -> Samples | None:
    data = job.held_out
    if data is None:
        return None
    if data.classes is not None and names_of(opened.model, opened.readout, data) != opened.names:
        raise UsageError("eval has other class names than calib; both must be the model's, in the order of its output")
    return open_samples(opened, data)


def _find_readout(job: Job, model: Model) -> Readout:
    """Return the head that is to be tilted, or whatever logits a map can go behind."""
    options = job.options
    if job.needs_head:
        readout: Readout = _head(model, options)
    else:
        readout = find_readout(model, options.head, options.output_name, options.output_kind)
    if isinstance(readout, Head) and readout.several and not (readout.linear or job.needs_head):
        return readout.without_head()  # only the graph computes its logits: maps go behind them
    if isinstance(readout, Head):
        # how a new weight of a quantised head will be stored
        if job.settings.quantized_head == "requantize":
            return requantized(model, readout)
        if readout.stored_weight.integers:
            return readout.kept_in_float()
    return readout


def _head(model: Model, options: ModelOptions) -> Head:
    try:
        return choose_head(model, options.head, options.output_name, options.output_kind)
    except SeveralHeads:
        raise
    except UnsupportedModel:
        # if a map alone would be refused too, this says why
        find_readout(model, None, options.output_name, options.output_kind)
        raise
