"""The story of `shift`: probabilities on both sets of samples, class frequencies, a new bias, checks, the effect."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tna_onnx.calibration.decided import told_in_file
from tna_onnx.data.suspicion import checked_warnings
from tna_onnx.engine.outputs import score_model
from tna_onnx.errors import CheckFailed
from tna_onnx.graph.own_names import provenance
from tna_onnx.graph.save import file_beside, pending
from tna_onnx.numerics.checks import check_level
from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.prior_shift import log_ratio
from tna_onnx.numerics.shift_evidence import Observed, disagreement
from tna_onnx.progress import Progress
from tna_onnx.results.shifting import ClassFrequency, Shift, ShiftEffect
from tna_onnx.runtime import Session, open_session
from tna_onnx.shifting.estimate import Estimated, estimate, source_counts
from tna_onnx.shifting.job import ShiftJob
from tna_onnx.shifting.opening import Opened, open_shift
from tna_onnx.shifting.priors import read_prior
from tna_onnx.shifting.seen import off_centre, probabilities_of
from tna_onnx.shifting.writing import check_result, shifted, write

__all__ = ["shift"]

FloatArray = NDArray[np.float64]

_log = logging.getLogger("tna_onnx.shift")

# Samples run through the written file.
_CHECKED = 512

# Of the ECE in the report.
_BINS = 15


@dataclass(frozen=True, eq=False)
class _Found:
    """Class frequencies, and what they come from.

    Attributes:
        source: (C,) before.
        target: (C,) after.
        old: (M, C) probabilities of the labelled samples.
        estimated: the estimate; None where the frequencies are given.
        notes: what the user should know, in sentences.
    """

    source: FloatArray
    target: FloatArray
    old: NDArray[np.float32]
    estimated: Estimated | None
    notes: tuple[str, ...]


def shift(job: ShiftJob, progress: Progress) -> Shift:
    """Give a model new class frequencies and write it.

    Raises:
        UsageError, UnsupportedModel, DataError, DeviceError, CheckFailed: see `tna_onnx.shift`.
    """
    opened = open_shift(job)
    model = opened.model
    target = file_beside(model, job.output, ".shift.onnx", overwrite=job.overwrite, dry_run=job.dry_run)
    if job.dry_run:
        target = None
    found = _frequencies(job, opened, progress)
    change = log_ratio(found.source, found.target)
    rewritten, placed = write(model, opened.probed, change, _metadata(job, opened, found))
    with pending(model, rewritten.proto, target, apart=rewritten.apart) as path:
        session = open_session(path, path.name, opened.device)
        # whole batches: a model may quantise each in its own way
        rows = max(opened.batch_size, _CHECKED // opened.batch_size * opened.batch_size)
        expected = shifted(found.old[:rows], change)
        size = opened.batch_size
        largest = check_result(model, rewritten, path, session, opened.output, opened.source, size, expected)
        effect = _effect(job, opened, session, found.target, progress)
    evidence = None
    if found.estimated is not None:
        evidence = found.estimated.evidence
    return Shift(
        model=model.name,
        model_sha256=model.sha256,
        output=str(target or ""),
        class_output=opened.output.name,
        method=_method(job),
        classes=_classes(opened, found),
        data=opened.source.describe(),
        samples=len(opened.source),
        target_data="" if opened.unlabelled is None else opened.unlabelled.describe(),
        target_samples=0 if opened.unlabelled is None else len(opened.unlabelled),
        evidence=evidence,
        effect=effect,
        placed=placed,
        nodes=len(rewritten.proto.graph.node) - len(model.proto.graph.node),
        max_difference=largest,
        notes=(*opened.notes, *found.notes),
        provider=opened.session.provider,
    )


def _method(job: ShiftJob) -> str:
    if job.target is None:
        return "given"
    return job.settings.estimator


def _frequencies(job: ShiftJob, opened: Opened, progress: Progress) -> _Found:
    settings = job.settings
    limits = job.calib.limits
    classes = opened.output.n_classes
    given = {
        name: read_prior(value, opened.known_names, classes, f"--{name}-prior", limits)
        for name, value in (("source", settings.source_prior), ("target", settings.target_prior))
        if value is not None
    }
    where = opened.source.describe()
    labels = opened.source.labels
    source = given.get("source")
    if source is None:
        source = source_counts(labels, opened.names, where)
    old = probabilities_of(opened.session, opened.output, opened.source, opened.batch_size, "source", progress)
    suspicion = job.calib.check(old.argmax(axis=1), labels, opened.known_names, classes)
    # wrong labels would make a wrong confusion matrix, and wrong frequencies
    warnings = checked_warnings(suspicion, opened.known_names, where)
    note = off_centre(old, labels, source, opened.names)
    notes = tuple(filter(None, (*warnings, note)))
    if opened.unlabelled is None:
        return _Found(source, given["target"], old, None, notes)
    new = probabilities_of(opened.session, opened.output, opened.unlabelled, opened.batch_size, "target", progress)
    sure = old.max(axis=1).astype(np.float64)
    observed = Observed(labels, old.argmax(axis=1), sure, new, source, counted="source" not in given)
    estimated = estimate(observed, settings, opened.unlabelled.describe(), note)
    _log.info("target: %s samples", f"{len(new):,}")
    return _Found(source, estimated.prior, old, estimated, (*notes, *estimated.notes))


def _classes(opened: Opened, found: _Found) -> tuple[ClassFrequency, ...]:
    ends: list[tuple[float, float] | None] = [None] * len(opened.names)
    if found.estimated is not None:
        ends = [(low, high) for low, high in found.estimated.interval.tolist()]
    rows = zip(opened.names, found.source.tolist(), found.target.tolist(), ends, strict=True)
    return tuple(ClassFrequency(name, before, after, interval) for name, before, after, interval in rows)


def _effect(
    job: ShiftJob, opened: Opened, session: Session, target: FloatArray, progress: Progress
) -> ShiftEffect | None:
    """Compare the written file with its source on labelled samples of the target.

    Raises:
        CheckFailed: the NLL is worse, by more than noise.
    """
    data = opened.held_out
    if data is None:
        return None
    before, _ = score_model(opened.session, opened.output, data, opened.batch_size, progress)
    after, _ = score_model(session, opened.output, data, opened.batch_size, progress)
    level = check_level(job.settings.confidence_level)
    differences = paired_differences(before, after, _BINS, level=level, seed=job.settings.seed)
    counts = np.bincount(data.labels, minlength=len(target)) / len(data)
    apart = disagreement(counts, target)
    if differences["nll"].low > 0:
        raise CheckFailed(
            f"{data.describe()}: the NLL rises by {differences['nll'].difference:.4f}, which is more than noise; these "
            f"labels have other class frequencies by {100 * apart:.1f} points in all; give --eval samples of the "
            "target, or other frequencies"
        )
    return ShiftEffect(
        data.describe(),
        Metrics.of(before, _BINS),
        Metrics.of(after, _BINS),
        differences["accuracy"],
        differences["nll"],
        apart,
    )


def _metadata(job: ShiftJob, opened: Opened, found: _Found) -> dict[str, str]:
    """Return all of this tool's entries; no time, no path: the same run writes the same bytes."""
    told = {
        "method": _method(job),
        "source": found.source.tolist(),
        "target": found.target.tolist(),
        "samples": len(opened.source),
        "calib_sha256": opened.source.digest(),
        **told_in_file(opened.source, "calib"),
        "source_sha256": opened.model.sha256,
    }
    if found.estimated is not None and opened.unlabelled is not None:
        told["interval"] = found.estimated.interval.tolist()
        told["target_samples"] = len(opened.unlabelled)
        told["target_sha256"] = opened.unlabelled.digest()
        told |= told_in_file(opened.unlabelled, "target")
    output = {**opened.output.provenance, "output_kind": opened.output.kind}
    return {**provenance(opened.model), **output, "shift": json.dumps(told)}
