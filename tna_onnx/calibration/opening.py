"""Everything that `calibrate` opens and checks before any search: model, head, data, device, features."""

from __future__ import annotations

import logging
import math
import re
from pathlib import Path

from tna_onnx.calibration.crossfit import FOLDS
from tna_onnx.calibration.earlier import refuse_finished, shift_notes
from tna_onnx.calibration.job import Job
from tna_onnx.calibration.leaks import Told, check_leaks
from tna_onnx.calibration.network import Network, check_engine
from tna_onnx.calibration.settings import QuantizedHead
from tna_onnx.calibration.target import target_of
from tna_onnx.calibration.task import Task
from tna_onnx.data.images.notes import preprocessing_warnings
from tna_onnx.data.source import require_samples, source_notes
from tna_onnx.engine.placement import placement_of
from tna_onnx.errors import UnsupportedModel, UsageError
from tna_onnx.extraction.batch_size import batch_size_for, check_batch_size
from tna_onnx.extraction.given import Samples, open_samples
from tna_onnx.extraction.head_check import Probed, check_readout
from tna_onnx.extraction.isolated import open_source
from tna_onnx.extraction.opened_check import opened_notes, unchecked_notes
from tna_onnx.extraction.sessions import OpenModel
from tna_onnx.graph.head import choose_head
from tna_onnx.graph.integers import left_closed
from tna_onnx.graph.load import Model
from tna_onnx.graph.options import ModelOptions
from tna_onnx.graph.outputs import output_of
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.requantize import requantized
from tna_onnx.graph.scores import choose_readout, find_readout
from tna_onnx.maps import MAPS
from tna_onnx.progress import Progress
from tna_onnx.runtime import Session, parse_device

__all__ = ["open_task"]

_log = logging.getLogger("tna_onnx")


def open_task(job: Job, progress: Progress) -> Task:
    """Open and check, cheapest first; then run the network, once over each set of samples.

    Raises:
        UsageError, UnsupportedModel, DataError, DeviceError: see `tna_onnx.calibrate`.
    """
    # arguments first, then the graph, then labels: nothing has run when one of them is refused
    _check_arguments(job)
    device = parse_device(job.device)
    model, readout, target = _open_model(job)
    opened = OpenModel(model, readout, device)
    names = job.calib.class_names(model.metadata, readout.labels, readout.n_classes)
    samples = open_samples(opened, job.calib, names)
    held_out = _open_held_out(job, opened, names)
    training = None if job.training is None else open_samples(opened, job.training, names)
    # before the network runs over any of them
    _check_samples(job, samples, held_out, training)
    # after the counts, because it reads all data
    told = Told(samples.source, samples.form)
    judging = _told(held_out)
    leaks = check_leaks(model, told, judging, job.calib.limits, earlier=job.turn is None)

    session = opened.session_from(samples.given)
    probed, size, more = _probed(job, opened, samples, session)
    provider, fallback = _provider(session)
    network = Network(opened, probed, names, size, progress, job)
    calibration = network.collect(told, samples, "calibration data", job.calib, job.folder)
    held_out_features = network.collect_beside(judging, held_out, "held-out data", job.held_out)
    training_features = network.collect_beside(_told(training), training, "training data", job.training)
    # the network has run: what it holds, on the device too, is free for the search
    opened.close()
    return Task(
        opened=opened,
        probed=probed,
        class_output=output_of(readout),
        class_names=names,
        output=target,
        calibration=calibration,
        held_out=held_out_features,
        training=training_features,
        provider=provider,
        fallback=fallback,
        batch_size=size,
        placement=placement_of(provider, device),
        tilt_bias=job.settings.tilt_bias,
        data_notes=_data_notes(job, opened, samples, leaks) + more,
    )


def _open_model(job: Job) -> tuple[Model, Readout, Path | None]:
    """Return the model, its head and the path to write: a path that cannot be used costs no run."""
    model = open_source(job.model, job.options)
    # of several heads, the turn before this one wrote into the same file
    if job.turn is None:
        refuse_finished(model)
    target = target_of(job, model)
    return *_left_closed(job, model, _find_readout(job, model)), target


def _told(samples: Samples | None) -> Told | None:
    return None if samples is None else Told(samples.source, samples.form)


def _data_notes(job: Job, opened: OpenModel, samples: Samples, leaks: tuple[str, ...]) -> tuple[str, ...]:
    """Say what the data alone tell, before the network runs."""
    notes = (*leaks, *shift_notes(opened.model), *source_notes(samples.source))
    if samples.given:
        return notes
    return (*notes, *preprocessing_warnings(samples.source, opened.inputs, job.calib.preprocessing))


def _probed(
    job: Job, opened: OpenModel, samples: Samples, session: Session | None
) -> tuple[Probed, int, tuple[str, ...]]:
    """Check the head in a first run; return it, the samples per run, and what this tells of session and model."""
    size = _batch_size(job, opened, samples, session)
    probed = check_readout(opened, samples.readout, session, samples.source, size)
    notes: tuple[str, ...] = ()
    if session is not None and session.elsewhere:
        notes = (f"the session is on CUDA, but {session.elsewhere}",)
    notes += unchecked_notes(opened) if samples.given else opened_notes(opened, samples.source, size)
    if probed.tail is not None and session is not None and session.fixed_batch:
        # the tail runs the collected batches as they are, so they must be those of the model
        size = session.fixed_batch
    name, inputs = opened.model.name, ", ".join(opened.model.inputs)
    _log.info("open: %s, provider %s", name, _provider(session)[0])
    _log.debug("open: %s, samples per run: %d, inputs: %s", _described(opened.readout), size, inputs)
    return probed, size, notes


def _described(readout: Readout) -> str:
    """Name the head, or the tensor that takes its place, for the log."""
    if isinstance(readout, Head):
        return f"head {readout.node} ({readout.n_classes:,}, {readout.n_features:,})"
    return f"output {readout.output}, without a head"


def _check_arguments(job: Job) -> None:
    """Refuse what is wrong whatever the model and the data are.

    Raises:
        UsageError: such an argument.
    """
    check_batch_size(job.batch_size)
    check_engine(job)
    # a head's graph says what follows it; a second word on that could contradict it
    if job.needs_head and job.options.output_kind not in (None, "logit", "label-logits"):
        raise UsageError("--output-kind is for --search none; a search takes the kind from the graph")


def _provider(session: Session | None) -> tuple[str, str]:
    """Return the execution provider, and why `auto` did not get CUDA; the samples may need no session."""
    if session is None:
        return "none", ""
    return session.provider, session.fallback


def _batch_size(job: Job, opened: OpenModel, samples: Samples, session: Session | None) -> int:
    """Return the samples per run. There is nothing to probe where the network has run before."""
    to_probe = None if samples.given else session
    return batch_size_for(job.batch_size, opened.model, to_probe, [opened.main], samples.source, job.folder)


def _open_held_out(job: Job, opened: OpenModel, names: tuple[str, ...] | None) -> Samples | None:
    """Open the held-out data, if there are any.

    Raises:
        UsageError: their class names are not those of the calibration data.
    """
    data = job.held_out
    if data is None:
        return None
    if data.classes is not None:
        readout = opened.readout
        own = data.class_names(opened.model.metadata, readout.labels, readout.n_classes)
        if own != names:
            raise UsageError(
                "eval has other class names than calib; both must be the model's, in the order of its output"
            )
    return open_samples(opened, data, names)


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
        return _as_stored(model, readout, job.settings.quantized_head)
    return readout


def _left_closed(job: Job, model: Model, readout: Readout) -> tuple[Model, Readout]:
    """Return the model with its integer head as it is, where a map behind the logits is all that is added."""
    settings = job.settings
    reads_features = settings.map in MAPS and MAPS[settings.map].needs_features
    searched = settings.resolved_search != "none"
    if searched or reads_features:
        return model, readout
    return left_closed(model, readout)


def _head(model: Model, options: ModelOptions) -> Head:
    """Return the head.

    Raises:
        UnsupportedModel: there is none; the advice is what works for this model.
    """
    try:
        return choose_head(model, options.head, options.output_name, options.output_kind)
    except UnsupportedModel as error:
        if "--search none" not in str(error):
            raise
        try:
            choose_readout(model, options.output_name)
        except UnsupportedModel as other:
            # a map alone would be refused too: say why, and what it needs besides
            # one logit may be searched
            advice = re.sub("--output-kind (?=logits|probabilities)", "--search none --output-kind ", str(other))
            raise UnsupportedModel(advice) from error
        raise


def _as_stored(model: Model, head: Head, choice: QuantizedHead) -> Head:
    """Decide how a new weight of a quantised head will be stored."""
    if choice == "requantize":
        return requantized(model, head)
    if head.stored_weight.quantized:
        return head.kept_in_float()
    return head


def _check_samples(job: Job, samples: Samples, held_out: Samples | None, training: Samples | None) -> None:
    """Refuse samples that leave nothing to do, and too few of them.

    Raises:
        UsageError, DataError: one of these.
    """
    bins = job.settings.bins
    for each in (samples, held_out, training):
        if job.turn is not None and each is not None:
            job.turn.require_data(each)
    if job.engine != "local" and samples.readout.several:
        raise UsageError(f"several predictions a sample are collected in this process; leave --engine {job.engine} out")
    # a store does not say which rows are of one sample
    if job.cache is not None and samples.readout.several:
        raise UsageError("features of several predictions a sample are not kept on disk; leave --cache out")
    if job.engine != "local" and samples.readout.multi_label:
        raise UsageError(f"samples with several labels are computed in this process; leave --engine {job.engine} out")
    if training is not None and not isinstance(training.readout, Head):
        raise UsageError(f"{training.source.describe()}: holds logits; --train-features needs data or features")
    if job.engine != "local" and samples.given and samples.store is None:
        raise UsageError(
            f"{samples.source.describe()}: holds features or logits in a file that workers do not read; leave --engine "
            f"{job.engine} out, or collect them into a store with tna-onnx features"
        )
    if job.needs_head:
        _require_features(samples)
    if held_out is None:
        # what a fold leaves must fill the bins too: the choice is made on that
        require_samples(samples.source, bins, held_out=math.ceil(len(samples.source) / FOLDS))
        return
    require_samples(samples.source, bins)
    require_samples(held_out.source, bins)
    if isinstance(samples.readout, Head) and not isinstance(held_out.readout, Head):
        raise UsageError(
            f"{held_out.source.describe()}: holds logits, and {samples.source.describe()} does not; give both as "
            "logits, or both as data or features"
        )


def _require_features(samples: Samples) -> None:
    if not isinstance(samples.readout, Head):
        raise UsageError(f"{samples.source.describe()}: holds logits, which leave nothing to tilt; add --search none")
