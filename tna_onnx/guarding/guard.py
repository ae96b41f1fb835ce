"""The story of `guard`: scores as outputs, thresholds on samples, decisions as outputs, checks, figures."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tna_onnx.data import Source
from tna_onnx.extraction.sessions import open_model, open_part
from tna_onnx.graph.decisions import Guarded, add_scores
from tna_onnx.graph.large_values import total_size
from tna_onnx.graph.nodes import provenance
from tna_onnx.graph.outputs import tensor_outputs
from tna_onnx.graph.save import file_beside, pending
from tna_onnx.guarding.measure import check_decisions, check_posterior, largest_change, measure, measure_detection
from tna_onnx.guarding.opening import GuardJob, Opened, open_guard, outlier_of, set_score_of
from tna_onnx.guarding.settings import GuardSettings
from tna_onnx.guarding.thresholds import (
    Thresholds,
    Unreached,
    Values,
    choose_thresholds,
    collect_values,
    dial_inputs,
    new_outputs,
    reachable,
)
from tna_onnx.pipeline.change import write_decisions
from tna_onnx.pipeline.checking import check_file
from tna_onnx.pipeline.notes import told_in_file
from tna_onnx.progress import Progress
from tna_onnx.results.guarding import Decisions, Guard
from tna_onnx.runtime import Session, open_session

__all__ = ["guard"]

_log = logging.getLogger("tna_onnx.guard")

# Samples run through both files.
_CHECKED = 512


@dataclass(frozen=True, eq=False)
class _Chosen:
    """What is to be written: formulas, thresholds, and the scores that they come from.

    Attributes:
        settings: without what the samples cannot promise.
        unreached: what that is, if anything.
        guarded: formulas of the scores.
        thresholds: what they are compared with.
        scores: of the samples that decide.
        fresh: those of them that no score was fitted to, (N,).
    """

    settings: GuardSettings
    unreached: Unreached | None
    guarded: Guarded
    thresholds: Thresholds
    scores: Values
    fresh: npt.NDArray[np.bool_]


def guard(job: GuardJob, progress: Progress, check: Callable[[Path], object] | None = None) -> Guard:
    """Add decisions to a model and write it.

    Args:
        job: what was asked for.
        progress: called with (stage, done, total).
        check: called with the path of the new file before it gets its name, to refuse it.

    Raises:
        UsageError, UnsupportedModel, DataError, DeviceError, CheckFailed: see `tna_onnx.guard`.
    """
    opened = open_guard(job)
    model = opened.model
    target = file_beside(model, job.output, ".guard.onnx", overwrite=job.overwrite, dry_run=job.dry_run)
    if job.dry_run:
        target = None
    chosen = _choose(job, opened, progress)
    settings = chosen.settings
    job = replace(job, settings=settings)
    metadata = _metadata(job, opened, chosen)
    thresholds = chosen.thresholds
    proto = write_decisions(model, chosen.guarded, thresholds.values, settings.outputs, metadata, thresholds.dials)
    with pending(model, proto, target) as path:
        check_file(model, path)
        written = open_session(path, path.name, opened.device)
        change = _checked(opened, chosen, written, settings.outputs, progress)
        if check is not None:
            check(path)
        decisions = _measured(job, opened, written, progress)
        size = path.stat().st_size
    score = chosen.guarded.set_score
    of_sets = int(chosen.fresh.sum()) if settings.fits_sets else len(chosen.scores)
    return Guard(
        model=model.name,
        model_sha256=model.sha256,
        output=str(target or ""),
        class_output=opened.output.name,
        outputs=new_outputs(settings, thresholds, of_sets, opened.output.n_classes, score),
        inputs=dial_inputs(thresholds.dials),
        set_temperature=1.0 if score is None else score.temperature,
        set_penalty=0.0 if score is None else score.weight,
        set_free_classes=0 if score is None else score.free,
        data=opened.source.describe(),
        samples=len(chosen.scores),
        fitted_on=len(opened.fit_rows),
        decisions=decisions,
        nodes=len(proto.graph.node) - len(model.proto.graph.node),
        bytes=size - total_size(model.proto, model.apart),
        max_change=change,
        omitted=() if chosen.unreached is None else (chosen.unreached.role,),
        lowest_risk=None if chosen.unreached is None else chosen.unreached.lowest_risk,
        notes=(*opened.notes, *(() if chosen.unreached is None else (chosen.unreached.note,)), *thresholds.notes),
        provider=opened.provider,
    )


def _choose(job: GuardJob, opened: Opened, progress: Progress) -> _Chosen:
    """Fit what is fitted, run the scores over the samples, and choose thresholds."""
    settings = job.settings
    session = open_model(opened.model, opened.device)
    score = set_score_of(settings, opened, session, progress)
    outlier = None
    if "ood" in settings.add:
        outlier = outlier_of(settings.ood_score, opened, job.options, progress)
    guarded = Guarded(opened.output, score, outlier)
    scored, tensors = add_scores(opened.model, guarded)
    runner = open_part(opened.model, scored, opened.device)
    scores = collect_values(runner, opened.output, tensors, opened.source, opened.batch_size, progress)
    fresh = opened.fresh
    where = opened.source.describe()
    settings, unreached = reachable(scores, settings, where)
    thresholds = choose_thresholds(scores, fresh, settings, opened.output.n_classes, where)
    _log.info("thresholds: %s samples", f"{len(scores):,}")
    return _Chosen(settings, unreached, guarded, thresholds, scores, fresh)


def _checked(opened: Opened, chosen: _Chosen, written: Session, names: dict[str, str], progress: Progress) -> float:
    """Compare the written file with the scores and with its source; return the largest change of an old output.

    Raises:
        CheckFailed: a decision is another one than its score says, or an old output changed.
    """
    size = opened.batch_size
    # whole batches, the same as the scores were computed in
    first = np.arange(len(opened.source))[: max(size, _CHECKED // size * size)]
    kept = _columns(names)
    decided = collect_values(written, opened.output, kept, opened.source, size, progress, rows=first, stage="check")
    check_decisions(decided, chosen.scores.first(len(first)), chosen.thresholds, opened.source.describe())
    if "posterior" in names:
        check_posterior(written, opened.output, names["posterior"], next(iter(opened.source.batches(size, first))))
    source_session = open_model(opened.model, opened.device)
    return largest_change(source_session, written, tensor_outputs(opened.model), opened.source, first, size)


def _measured(job: GuardJob, opened: Opened, written: Session, progress: Progress) -> Decisions:
    """Measure what the written file decides."""
    names = _columns(job.settings.outputs)
    level = job.settings.confidence_level
    shown = opened.shown

    def decided(source: Source) -> Values:
        return collect_values(written, opened.output, names, source, opened.batch_size, progress, stage="decide")

    known = decided(shown)
    detection = None
    if opened.unknown is not None:
        unknown = decided(opened.unknown).values
        detection = measure_detection(
            known.values["ood"], unknown["ood"], unknown["ood_alarm"], level, opened.unknown.describe()
        )
    fresh = opened.held_out is not None
    return measure(known, opened.output.n_classes, level, shown.describe(), fresh=fresh, detection=detection)


def _columns(names: dict[str, str]) -> dict[str, str]:
    """Return the outputs that say one thing of a sample and its class."""
    return {role: name for role, name in names.items() if role != "posterior"}


def _metadata(job: GuardJob, opened: Opened, chosen: _Chosen) -> dict[str, str]:
    """Return all of this tool's entries; no time, no path: the same run writes the same bytes."""
    # which output classifies is not asked again: a reader need not tell it from the new ones
    known = provenance(opened.model)
    output = {key: value for key, value in opened.output.provenance.items() if key not in known}
    found = {}
    score = chosen.guarded.set_score
    if score is not None and job.settings.set_temperature == "auto":
        found["guard_set_temperature"] = f"{score.temperature!r}"
    if score is not None and score.name == "raps":
        found["guard_set_penalty"] = f"{score.weight!r}"
        found["guard_set_free_classes"] = str(score.free)
    return {
        **known,
        **output,
        "guard": json.dumps(dataclasses.asdict(job.settings)),
        "guard_data_sha256": opened.source.digest(),
        "guard_samples": str(len(opened.source)),
        "guard_source_sha256": opened.model.sha256,
        **told_in_file(opened.source, "guard"),
        **found,
    }
