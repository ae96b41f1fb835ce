"""The story of `guard`: scores as outputs, thresholds on samples, decisions as outputs, checks, figures.

`recalibrate_and_guard` is `calibrate --add`: one half of the samples fits weight, map, outlier score and penalty of
sets; all thresholds come from the other.
"""

import dataclasses
import functools
import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tna_onnx.errors import CheckFailed, TnaError, UsageError
from tna_onnx.extraction.independence import require_independence
from tna_onnx.extraction.sessions import open_part
from tna_onnx.graph.constants import quantization_step
from tna_onnx.graph.decisions import Guarded, SetScore, add_scores
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.readers import tensor_outputs
from tna_onnx.graph.save import pending, written_files
from tna_onnx.graph.tensors import total_size
from tna_onnx.guarding.deciding import decision_entry, promise_of, rule_of
from tna_onnx.guarding.guard_job import GuardJob, GuardSamples, halves_to_guard, open_guard
from tna_onnx.guarding.guard_settings import GuardSettings
from tna_onnx.guarding.measure import RecordingRunner, collect_values, measure, measure_detection
from tna_onnx.guarding.thresholds import GuardPlan, NotReached, choose_thresholds, outlier_of, set_score_of
from tna_onnx.numerics import conformal
from tna_onnx.pipeline.checking import FileCheck, checked_file, first_rows
from tna_onnx.pipeline.job import Job, ModelJob, target_of
from tna_onnx.pipeline.recalibrate import recalibrate
from tna_onnx.pipeline.record import DecisionStep, write_decisions
from tna_onnx.pipeline.sample_checks import digests_in_file
from tna_onnx.progress import Progress
from tna_onnx.results.gates import GateMissed, Gates
from tna_onnx.results.outcomes import Decisions, Guard, GuardOutput
from tna_onnx.results.report import Report
from tna_onnx.runtime import Session

_log = logging.getLogger("tna_onnx.guard")

# Further readers of a tensor may keep ONNX Runtime from fusing nodes, which rounds in another way.
_MAX_CHANGE = 1e-5


def guard(job: GuardJob, progress: Progress, check: Callable[[Path, Decisions], object] | None = None) -> Guard:
    """Add decisions to a model and write it.

    `check`: called with the new file and what it decides before it gets its name, to refuse it.
    """
    opened = open_guard(job)
    model = opened.model
    target = target_of(job, model, ".guard.onnx")
    if job.dry_run:
        target = None
    plan = _choose(job, opened, progress)
    step = DecisionStep(model.sha256, model, plan.guarded, plan.limits, plan.settings.outputs)
    proto = write_decisions(step, _metadata(opened, plan))
    with checked_file(model, proto, target, opened.device) as (path, written):
        change = _checked(opened, plan, written, progress)
        decisions = _measured(opened, plan, written, progress)
        if check is not None:
            check(path, decisions)
        size = path.stat().st_size
        files = written_files(path, target)
    set_score = plan.guarded.set_score or SetScore()
    return Guard(
        model=model.name,
        model_sha256=model.sha256,
        output=str(target or ""),
        files=files,
        class_output=opened.output.name,
        outputs=_outputs(opened, plan),
        set_penalty=set_score.weight,
        set_free_classes=set_score.free,
        data=opened.source.describe(),
        samples=plan.samples,
        fitted_on=len(opened.fit_rows),
        decisions=decisions,
        nodes=len(proto.graph.node) - len(model.proto.graph.node),
        bytes=size - total_size(model.proto, model.large_values),
        max_change=change,
        omitted=tuple(plan.omitted),
        lowest_risk=plan.lowest_risk,
        notes=(*opened.notes, *(f"{role} is left out: {why}" for role, why in plan.omitted.items()), *plan.notes),
        provider=opened.session.provider,
        operating_point=plan.point,
    )


def _outputs(opened: GuardSamples, plan: GuardPlan) -> tuple[GuardOutput, ...]:
    """Say of each new output what it promises, and to whom."""
    settings = plan.settings
    rule = plan.guarded.decision
    whom = "for samples from the same source"
    if plan.scores.clusters is not None:
        whom = "for one sample of a new group from the same source"
    promises = {
        "confidence": f"largest of the {opened.output.n_classes} probabilities; how far it is off is measured below",
        "accept": f"with a certainty of {100 - settings.delta:g} %, at most {settings.risk:g} % of accepted samples "
        f"are classified wrong, {whom}",
        "set": _set_promise(plan, whom),
        "ood": f"{settings.ood_score}: the larger, the less a sample is like these",
        "ood_alarm": f"raised by at most {settings.false_alarm:g} % of samples on average over calibration sets, "
        f"{whom}",
    }
    if rule is not None and plan.point is not None:
        promises["decision"] = promise_of(settings, rule, plan.point, opened.names, whom)
    compared = {**plan.limits, "ood_alarm": plan.limits.get("ood"), "ood": None}
    return tuple(
        GuardOutput(name, role, promises[role], _reported(compared.get(role)))
        for role, name in settings.outputs.items()
    )


def _reported(levels: npt.NDArray[np.float32] | None) -> tuple[float | None, ...]:
    """Return thresholds as they are reported; an infinite one lets every score pass."""
    if levels is None:
        return ()
    return tuple(level if math.isfinite(level) else None for level in np.ravel(levels).tolist())


def _set_promise(plan: GuardPlan, whom: str) -> str:
    settings = plan.settings
    promise = f"holds the true class of at least {settings.coverage:g} % of "
    if settings.per_class:
        promise += f"the samples of each class on average over calibration sets, {whom}"
    else:
        n = plan.fresh if settings.fits_sets else plan.samples
        level = settings.coverage / 100
        low, _ = conformal.coverage_band(n, level, None, 0.95)
        # where many share the score of the threshold, sets hold the true class of as many
        _, high = conformal.coverage_band(n, max(level, plan.covered / (n + 1)), None, 0.95)
        promise += (
            f"samples on average over calibration sets, {whom}; with this one {100 * low:.1f} to {100 * high:.1f} % "
            "in 95 of 100 cases"
        )
    score = plan.guarded.set_score
    if score is not None and score.weight:
        free = ""
        if score.free > 1:
            free = f" {score.free:,}"
        promise += f"; penalty {score.weight:g} for each class behind the first{free}"
    return promise


def _choose(job: GuardJob, opened: GuardSamples, progress: Progress) -> GuardPlan:
    """Fit what is fitted, run the scores over the samples, and choose thresholds."""
    settings = job.settings
    score = set_score_of(settings, opened, progress)
    outlier = None
    if "ood" in settings.add:
        outlier = outlier_of(settings.ood_score, opened, job.options, progress)
    rule = None
    if settings.decide:
        rule = rule_of(settings, opened.output, opened.names)
    guarded = Guarded(opened.output, score, outlier, rule)
    scored, tensors = add_scores(opened.model, guarded)
    runner = open_part(opened.model, scored, opened.device)
    if "ood" in tensors:  # it may read what the probabilities do not show
        require_independence(
            opened.model, runner, opened.output, opened.source, opened.batch_size, extra_outputs=[tensors["ood"]]
        )
    scores = collect_values(runner, opened, tensors, opened.source, progress, "score")
    plan = choose_thresholds(opened, guarded, scores, settings)
    _log.info("thresholds: %s samples", f"{plan.samples:,}")
    return plan


def _checked(opened: GuardSamples, plan: GuardPlan, written: Session, progress: Progress) -> float:
    """Compare the written file with the scores and with its source; return the largest change of an old output."""
    source = opened.source
    # in the batches that the scores were computed in
    rows = first_rows(source, opened.batch_size)
    recorder = RecordingRunner(written, plan.settings.outputs, source.labels[rows], source.describe())
    old_outputs = tensor_outputs(opened.model)
    outputs = [*dict.fromkeys([opened.output.name, *old_outputs])]
    largest = 0.0
    done = 0
    for batch in source.batches(opened.batch_size, rows):
        pairs = zip(outputs, opened.session.run(outputs, batch), recorder.run(outputs, batch), strict=True)
        changes = [_change(opened.model, name, old, new) for name, old, new in pairs if name in old_outputs]
        largest = max([largest, *changes])
        done += len(next(iter(batch.values())))
        progress("check", done, len(rows))
    _check_decisions(plan, recorder.columns, source.describe())
    return largest


def _check_decisions(plan: GuardPlan, decided: Mapping[str, npt.NDArray[Any]], where: str) -> None:
    """Compare what the file decides on the first samples, role -> (n,), with the scores that gave the thresholds."""
    n = len(next(iter(decided.values())))
    scores = plan.scores.take(slice(n))
    limits = plan.limits
    expected = {**scores.values}
    if "accept" in limits:
        expected["accept"] = scores.values["confidence"] >= limits["accept"]
    if "set" in limits:
        # one threshold for all classes, or one a class
        limit = np.atleast_1d(limits["set"])
        of_class = scores.labels if limit.size > 1 else np.zeros_like(scores.labels)
        expected["set"] = scores.values["set"] <= limit[of_class]
    if "ood" in limits:
        expected["ood_alarm"] = scores.values["ood"] > limits["ood"]
    rule = plan.guarded.decision
    if rule is not None:
        expected["decision"] = rule.decide(scores.values["decision"], limits["decision"])
    for role, actual in decided.items():
        different = np.flatnonzero((actual != expected[role]).reshape(n, -1).any(axis=1))
        if role == "decision" and rule is not None and rule.cost.size:
            # sums of products are rounded in another order
            two = np.sort(rule.scores(scores.values["decision"], limits["decision"])[different], axis=1)[:, -2:]
            different = different[two[:, 1] - two[:, 0] > _MAX_CHANGE * np.abs(rule.cost).max()]
        if len(different):
            raise CheckFailed(
                f"verification: output {role} of the written file disagrees with its scores for {len(different):,} "
                f"of {n:,} samples of {where}"
            )


def _change(model: Model, name: str, old: npt.NDArray[Any], new: npt.NDArray[Any]) -> float:
    """Return the largest change of a value of an output of the source; refuse one that rounding does not explain."""
    if np.array_equal(old, new):
        return 0.0
    change = math.inf
    if old.dtype.kind == "f" and old.shape == new.shape:
        change = float(np.max(np.abs(old.astype(np.float64) - new.astype(np.float64))))
    bound = _MAX_CHANGE * max(1.0, float(np.max(np.abs(old)))) + 1.01 * quantization_step(model, name)
    if not change <= bound:
        raise CheckFailed(f"verification: output '{name}' changed by {change:.3g}; expected no change")
    return change


def _measured(opened: GuardSamples, plan: GuardPlan, written: Session, progress: Progress) -> Decisions:
    level = plan.settings.confidence_level
    reported = opened.held_out or opened.source
    rule = plan.guarded.decision
    cost = rule.cost if rule is not None and rule.cost.size else None
    values = collect_values(written, opened, plan.settings.outputs, reported, progress, "decide")
    detection = None
    if opened.unknown is not None:
        unknown = collect_values(written, opened, plan.settings.outputs, opened.unknown, progress, "decide")
        detection = measure_detection(values, unknown, level, opened.unknown.describe())
    fresh = opened.held_out is not None
    return measure(values, opened.names, level, reported.describe(), fresh=fresh, detection=detection, cost=cost)


def _metadata(opened: GuardSamples, plan: GuardPlan) -> dict[str, str]:
    """Return all of this tool's entries; no time, no path: the same run writes the same bytes."""
    settings = plan.settings
    entries = opened.model.provenance
    # which output classifies is not asked again: a reader need not tell it from the new ones
    for key, value in opened.output.provenance.items():
        entries.setdefault(key, value)
    # without the path of a file, which is of the user's disk
    if settings.reads_file:
        settings = replace(settings, decide=f"{settings.goal[0]}=FILE")
    entries["guard"] = json.dumps(dataclasses.asdict(settings))
    rule = plan.guarded.decision
    if rule is not None:
        entries["guard_decision"] = decision_entry(settings, rule, plan.limits["decision"], opened.names)
    score = plan.guarded.set_score
    if score is not None and score.name == "raps":
        entries["guard_set_penalty"] = f"{score.weight!r}"
        entries["guard_set_free_classes"] = str(score.free)
    return {
        **entries,
        "guard_data_sha256": opened.source.digest(),
        "guard_samples": str(len(opened.source)),
        "guard_source_sha256": opened.model.sha256,
        **digests_in_file(opened.source, "guard"),
    }


def recalibrate_and_guard(job: Job, settings: GuardSettings, progress: Progress) -> Report:
    """Recalibrate a model, add decisions, and write one file."""
    gates = job.gates
    if gates.min_recall and settings.decide:
        if job.held_out is None:
            raise UsageError("--min-recall beside --decide needs --eval: the thresholds are chosen on the samples")
        gates = replace(gates, min_recall=None)  # of the decision, which the recalibration does not make
    target, fit, decide = halves_to_guard(job, settings)
    # labels of samples that are open already are settled
    calib = replace(job.calib, samples=fit, labels=None)
    shared = {entry.name: getattr(job, entry.name) for entry in dataclasses.fields(ModelJob)}
    shared |= {"calib": replace(calib, samples=decide, expect_accuracy=None), "output": target, "overwrite": True}
    note = (
        f"decisions: {len(fit):,} of the {len(fit.source):,} samples fit weight and map, the other {len(decide):,} "
        "give the thresholds"
    )
    guard_job = GuardJob(**shared, fit=calib, settings=settings)
    finish = functools.partial(_with_decisions, guard_job, job.gates, note, progress)
    return recalibrate(replace(job, calib=calib, gates=gates), progress, finish)


def _with_decisions(
    job: GuardJob, gates: Gates, note: str, progress: Progress, path: Path, report: Report, final: FileCheck
) -> Report:
    """Add decisions to the recalibrated file at `path`, and write the result to the output of the job."""
    report = replace(report, settings={**report.settings, "gates": dataclasses.asdict(gates)})
    gated = bool(job.settings.decide and gates.min_recall)
    reports: list[Report] = []

    def check(written: Path, decisions: Decisions) -> None:
        if gated:
            _require_recall(gates, report, decisions)
        reports.append(final.report(report, written))

    try:
        guarded = guard(replace(job, model=path), progress, check)
    except NotReached as error:
        if job.settings.if_unreachable == "fail" or gated:
            raise
        # the recalibrated file alone
        model = load_model(path)
        target = None if job.dry_run or job.output is None else Path(job.output)
        with pending(model, model.proto, target, verbatim=True) as written:
            report = final.report(report, written)
        return replace(report, notes=(*report.notes, f"no decision is added: {error}"))
    except GateMissed:
        raise
    except TnaError as error:
        raise type(error)(str(error).replace(str(path), str(job.output))) from error
    # what is said of the recalibrated file, which is gone, holds of the new one
    notes = tuple(entry.replace(str(path), str(job.output)) for entry in guarded.notes)
    guarded = replace(guarded, model=report.model, model_sha256=report.model_sha256, notes=notes)
    (report,) = reports
    return replace(report, guard=guarded, notes=tuple(dict.fromkeys((*report.notes, note, *notes))))


def _require_recall(gates: Gates, report: Report, decisions: Decisions) -> None:
    """Refuse a decision that finds too few of a class."""
    missed: tuple[str, ...] = ("--min-recall missed: no threshold keeps the bound, so there is no decision",)
    if decisions.decision is not None:
        recall = {class_result.name: class_result.recall for class_result in decisions.decision.classes}
        missed = gates.classes_missed(recall, f"{decisions.n:,} held-out samples")
    if missed:
        raise GateMissed(replace(report, missed=missed, output="", files=()), "; no file was written")
