"""The story of `guard`: scores as outputs, thresholds on samples, decisions as outputs, checks, figures."""

from __future__ import annotations

import dataclasses
import json
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tna_onnx.calibration.leaks import Told, check_leaks
from tna_onnx.data import Source
from tna_onnx.data.digest import sample_form
from tna_onnx.data.suspicion import warnings_of
from tna_onnx.errors import CheckFailed, DataError, UnsupportedModel, UsageError
from tna_onnx.extraction.batch_size import batch_size_notes, check_batch_size, choose_batch_size
from tna_onnx.extraction.isolated import open_source
from tna_onnx.extraction.sessions import input_specs, open_model, open_part
from tna_onnx.graph.checker import checker_complaint
from tna_onnx.graph.decisions import Guarded, SetScore, add_decisions, add_scores
from tna_onnx.graph.load import Model
from tna_onnx.graph.outputs import ClassOutput, class_output, tensor_outputs
from tna_onnx.graph.rewrite import provenance
from tna_onnx.graph.save import check_output, pending
from tna_onnx.guarding.decide import check_decisions, decide, largest_change, measure
from tna_onnx.guarding.job import GuardJob
from tna_onnx.guarding.outliers import outlier_of, reads_features
from tna_onnx.guarding.promises import new_outputs
from tna_onnx.guarding.scores import SampleValues, collect_values
from tna_onnx.guarding.settings import GuardSettings
from tna_onnx.guarding.thresholds import choose_thresholds
from tna_onnx.progress import Progress
from tna_onnx.results.guarding import Guard
from tna_onnx.runtime import Device, Session, open_session, parse_device

__all__ = ["guard"]

_log = logging.getLogger("tna_onnx.guard")

# Samples run through both files.
_CHECKED = 512

# Of `raps`: a penalty of this for each class behind the first five (Angelopoulos et al., ICLR 2021, section 3.3).
_RAPS = SetScore("raps", free=5, weight=0.01)


@dataclass(frozen=True, eq=False)
class _Opened:
    """The model and its data.

    Attributes:
        model: the source.
        output: the output that classifies.
        source: samples that thresholds come from, and an outlier score.
        held_out: samples for the report; None without.
        device: where to run.
        batch_size: samples per run.
        provider: that ONNX Runtime obtained.
        notes: on the data.
    """

    model: Model
    output: ClassOutput
    source: Source
    held_out: Source | None
    device: Device
    batch_size: int
    provider: str
    notes: tuple[str, ...]


def guard(job: GuardJob, progress: Progress) -> Guard:
    """Add decisions to a model and write it.

    Raises:
        UsageError, UnsupportedModel, DataError, DeviceError, CheckFailed: see `tna_onnx.guard`.
    """
    settings = job.settings
    opened = _open(job)
    target = _target(job, opened.model)
    fitted = _to_fit(opened.source, settings)
    guarded = _guarded(job, opened, fitted, progress)
    scored, tensors = add_scores(opened.model, guarded)
    session = open_part(opened.model, scored, opened.device)
    where = opened.source.describe()
    values = collect_values(session, opened.output, tensors, opened.source, fitted, opened.batch_size, progress)
    classes = opened.output.n_classes
    thresholds = choose_thresholds(values, settings, classes, where)
    _log.info("thresholds: %s samples", f"{len(values):,}")
    proto = add_decisions(opened.model, guarded, thresholds.values, settings.outputs, _metadata(job, opened))
    with pending(opened.model, proto, None if job.dry_run else target) as path:
        _check_file(opened.model, path)
        written = open_session(path, path.name, opened.device)
        # whole batches, the same as the scores were computed in
        first = np.arange(len(values))[: max(opened.batch_size, _CHECKED // opened.batch_size * opened.batch_size)]
        decided = decide(written, opened.output, settings.outputs, opened.source, first, opened.batch_size, progress)
        check_decisions(decided, _first(values, len(first)), thresholds, where)
        source_session = open_model(opened.model, opened.device)
        old = tensor_outputs(opened.model)
        change = largest_change(source_session, written, old, opened.source, first, opened.batch_size)
        shown = opened.held_out or opened.source
        every = np.arange(len(shown))
        decided = decide(written, opened.output, settings.outputs, shown, every, opened.batch_size, progress)
        size = path.stat().st_size
    figures = measure(decided, classes, settings.confidence_level, shown.describe(), fresh=opened.held_out is not None)
    return Guard(
        model=opened.model.name,
        model_sha256=opened.model.sha256,
        output="" if job.dry_run or target is None else str(target),
        class_output=opened.output.name,
        outputs=new_outputs(settings, thresholds, len(values), classes),
        data=where,
        samples=len(values),
        fitted_on=len(fitted),
        decisions=figures,
        nodes=len(proto.graph.node) - len(opened.model.proto.graph.node),
        bytes=size - opened.model.proto.ByteSize(),
        max_change=change,
        notes=(*opened.notes, *thresholds.notes),
        provider=opened.provider,
    )


def _open(job: GuardJob) -> _Opened:
    """Open model and data, and refuse samples that decided on something before."""
    check_batch_size(job.batch_size)
    options = job.options
    model = open_source(job.model, options)
    output = class_output(model, options.head, options.output_name, options.output_kind)
    if output.several:
        raise UnsupportedModel(
            f"{model.name}: output '{output.name}' gives several predictions a sample; thresholds are promises on new "
            "samples of one prediction each"
        )
    device = parse_device(job.device)
    session = open_model(model, device)
    names = job.calib.class_names(model.metadata, output.labels, output.n_classes)
    inputs = input_specs(session)
    source = job.calib.open(inputs, output.n_classes, names)
    held_out = None if job.held_out is None else job.held_out.open(inputs, output.n_classes, names)
    judging = None if held_out is None else Told(held_out, sample_form(held_out))
    notes = check_leaks(model, Told(source, sample_form(source)), judging, job.calib.limits)
    size = choose_batch_size(job.batch_size, session, [output.name], source)
    notes += batch_size_notes(job.batch_size, size)
    # wrong labels would make thresholds and figures meaningless
    for data, samples in ((job.calib, source), (job.held_out, held_out)):
        if data is None or samples is None:
            continue
        predicted = _predicted(session, output, samples, size)
        suspicion = data.check(predicted, samples.labels, names, output.n_classes)
        if suspicion is not None and suspicion.tells:
            raise DataError(f"{samples.describe()}: {suspicion.text(names)}")
        notes += warnings_of(suspicion, names)
    return _Opened(model, output, source, held_out, device, size, session.provider, notes)


def _predicted(session: Session, output: ClassOutput, source: Source, size: int) -> NDArray[np.int64]:
    batches = source.batches(size)
    return np.concatenate([output.probabilities(session.run([output.name], b)[0]).argmax(axis=1) for b in batches])


def _target(job: GuardJob, model: Model) -> Path | None:
    """Return the path to write.

    Raises:
        UsageError: no such path, or one that would harm a file of the run.
    """
    if job.output is not None:
        target = Path(job.output)
    elif model.path is not None:
        target = model.path.with_suffix(".guard.onnx")
    elif job.dry_run:
        return None
    else:
        raise UsageError("a model that is no file needs an output: the path of the file to write")
    if job.output is not None or not job.dry_run:
        check_output(model, target, overwrite=job.overwrite)
    return target


def _to_fit(source: Source, settings: GuardSettings) -> NDArray[np.int64]:
    """Return the samples that an outlier score is fitted to: half of them, as the others give its threshold.

    A threshold on samples that the score was fitted to would be too low: they look nearer than new ones.
    """
    if "ood" not in settings.add or not reads_features(settings.ood_score):
        return np.zeros(0, np.int64)
    shuffled = np.random.default_rng(settings.seed).permutation(len(source))
    return np.sort(shuffled[: len(source) // 2])


def _guarded(job: GuardJob, opened: _Opened, rows: NDArray[np.int64], progress: Progress) -> Guarded:
    settings = job.settings
    score = None
    if "set" in settings.add:
        score = _RAPS if settings.set_score == "raps" else SetScore(settings.set_score)
    outlier = None
    if "ood" in settings.add:
        outlier = outlier_of(
            settings.ood_score,
            opened.model,
            job.options,
            opened.source,
            rows,
            opened.batch_size,
            opened.device,
            progress,
        )
    return Guarded(opened.output, score, outlier)


def _metadata(job: GuardJob, opened: _Opened) -> dict[str, str]:
    """Return how the decisions were made; no time, no path: the same run writes the same bytes."""
    # which output classifies is not asked again: a reader need not tell it from the new ones
    known = provenance(opened.model)
    output = {key: value for key, value in opened.output.provenance.items() if key not in known}
    return {
        **output,
        "guard": json.dumps(dataclasses.asdict(job.settings)),
        "guard_data_sha256": opened.source.digest(),
        "guard_samples": str(len(opened.source)),
    }


def _check_file(model: Model, path: Path) -> None:
    """Run the ONNX checker.

    Raises:
        CheckFailed: it refuses the file, and not the source.
    """
    complaint = checker_complaint(path)
    if complaint and not checker_complaint(model.path or model.proto):
        raise CheckFailed(f"verification: the ONNX checker refuses the written file: {complaint}")


def _first(values: SampleValues, count: int) -> SampleValues:
    return dataclasses.replace(
        values, **{field.name: getattr(values, field.name)[:count] for field in dataclasses.fields(values)}
    )
