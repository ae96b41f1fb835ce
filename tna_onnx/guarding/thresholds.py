"""Scores that are fitted to samples, and thresholds on scores, each with the guarantee that it has.

Guarantees are of confidences, sets, selective risk and outlier alarms; a level that cannot be reached is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError, UnsupportedModel, listed
from tna_onnx.extraction.sessions import open_part
from tna_onnx.graph.cut import before_map, cut_at
from tna_onnx.graph.decisions import Guarded, OutlierInput, SetScore
from tna_onnx.graph.options import ModelOptions
from tna_onnx.graph.readout import Head
from tna_onnx.graph.scores import choose_head, find_readout
from tna_onnx.guarding.deciding import operate
from tna_onnx.guarding.guard_job import GuardSamples
from tna_onnx.guarding.guard_settings import GuardSettings, OodScore
from tna_onnx.guarding.measure import Values
from tna_onnx.numerics import conformal
from tna_onnx.numerics.outliers import Energy, Mahalanobis, Residual
from tna_onnx.progress import Progress
from tna_onnx.results.outcomes import OperatingPoint
from tna_onnx.runtime import Session

_TIED = 0.02  # this much more than the level asks for is told
_ROUNDING = 1e-5


@dataclass(frozen=True, eq=False)
class GuardPlan:
    """What is to be written: scores and what they are compared with, without what the samples cannot promise."""

    settings: GuardSettings  # without what is left out
    guarded: Guarded  # formulas of the scores
    scores: Values  # of all samples
    # `accept` of the confidence, `set` of the set score, [] or [C], `ood` of the outlier score, `decision` of the
    # probabilities, [] or [C]; float32
    limits: dict[str, NDArray[np.float32]]
    samples: int  # how many samples they come from: one of each group where samples come in groups
    fresh: int  # how many of these no score was fitted to
    covered: int  # how many of the samples that the one threshold of sets comes from are in it
    point: OperatingPoint | None  # of the decision; None without one
    omitted: dict[str, str]  # role of each output that is left out -> why, in a sentence
    lowest_risk: float | None  # at which `accept` would not be left out, a fraction; None up to one half
    notes: tuple[str, ...]  # what the user should know, in sentences


class NotReached(DataError):
    """No threshold keeps the risk, and there is nothing else to add."""


def choose_thresholds(opened: GuardSamples, guarded: Guarded, scores: Values, settings: GuardSettings) -> GuardPlan:
    """Choose all thresholds that are asked for and can be promised. `scores`: of all samples."""
    deciding = opened.deciding(settings.seed)
    values = scores.take(deciding)
    fresh = opened.fresh[deciding]
    where = opened.source.describe()
    limits: dict[str, NDArray[np.float32]] = {}
    omitted: dict[str, str] = {}
    lowest: float | None = None
    covered = 0
    notes: list[str] = []
    if "accept" in settings.add:
        risk = settings.risk / 100
        delta = settings.delta / 100
        accepted = conformal.accept_above(values.values["confidence"], values.hit, risk, delta)
        if accepted is not None:
            limits["accept"] = np.asarray(accepted, np.float32)
        else:
            lowest = conformal.lowest_risk(values.values["confidence"], values.hit, delta)
            omitted["accept"] = _why_none_accepted(values, settings, lowest)
            remaining = tuple(name for name in settings.add if name != "accept")
            settings = _left_out(settings, f"{where}: {omitted['accept']}", add=remaining)
    operated = None
    if guarded.decision is not None:
        operated = operate(guarded.decision, values.values["decision"], values.labels, settings, opened.names)
    if operated is not None and operated.thresholds is None:
        (omitted["decision"],) = operated.notes
        why = f"{where}: {omitted['decision']}; give more samples, or another goal"
        settings = _left_out(settings, why, decide="", positive="")
        guarded = replace(guarded, decision=None)
    if "set" in settings.add:
        # a score that was fitted to samples says nothing of sets of others
        rows = fresh if settings.fits_sets else np.ones_like(fresh)
        set_scores, labels = values.values["set"][rows], values.labels[rows]
        limits["set"], covered, notes = _of_sets(set_scores, labels, settings, opened.output.n_classes, where)
    if "ood" in settings.add:
        outliers = _varied(values.values["ood"][fresh], settings, where)
        limits["ood"] = np.asarray(conformal.conformal_quantile(outliers, 1 - settings.false_alarm / 100), np.float32)
    point = None
    if operated is not None and operated.thresholds is not None:
        limits["decision"] = operated.thresholds
        point = operated.point
        notes += [f"decision: {note}" for note in operated.notes]
    n_fresh = int(fresh.sum())
    return GuardPlan(
        settings, guarded, scores, limits, len(values), n_fresh, covered, point, omitted, lowest, tuple(notes)
    )


def _left_out(settings: GuardSettings, why: str, **changes: Any) -> GuardSettings:
    """Return settings without an output that the samples cannot promise; refuse that where nothing else is added."""
    remaining = {"add": settings.add, "decide": settings.decide, **changes}
    if settings.if_unreachable == "fail" or not (remaining["add"] or remaining["decide"]):
        raise NotReached(why)
    return replace(settings, **changes)


def _why_none_accepted(values: Values, settings: GuardSettings, lowest: float | None) -> str:
    needed = conformal.errorless_needed(settings.risk / 100, settings.delta / 100)
    surest = np.argsort(-values.values["confidence"], kind="stable")[:needed]
    wrong = int(np.count_nonzero(~values.hit[surest]))
    passing = "none passes below a risk of 50 %"
    if lowest is not None:
        passing = f"the lowest risk that passes is {100 * lowest:g} %"
    return (
        f"no threshold on the confidence keeps the error among accepted samples below {settings.risk:g} % with "
        f"{100 - settings.delta:g} % certainty: it takes {needed:,} accepted samples without an error, or more with "
        f"few, and of the {len(surest):,} surest of these {len(values):,} samples {wrong:,} are wrong; {passing}; "
        "give more samples, or a higher --risk"
    )


def _tie_notes(scores: NDArray[np.float32], threshold: NDArray[np.float32], settings: GuardSettings) -> list[str]:
    """Say that many scores are equal to the threshold, so that sets hold more than they need to, and why."""
    share = float(np.mean(scores <= threshold))
    if share < settings.coverage / 100 + _TIED:
        return []
    if threshold == 0 and not settings.allow_empty:
        return [
            f"the likeliest class is the true one of {100 * share:.1f} % of the samples, so sets hold it alone; "
            "--allow-empty leaves it out of some, down to the coverage"
        ]
    why = "the model gives few different probabilities"
    advice = "leave it, or use a model that gives more"
    if min(abs(float(threshold)), abs(1 - float(threshold))) <= _ROUNDING:
        why = "probabilities round to 0 and 1"
        advice = "recalibrate the model first"
    return [
        f"{100 * share:.1f} % of the samples are within the threshold, because many share one score ({why}); sets are "
        f"larger than they need to be: {advice}"
    ]


def _varied(scores: NDArray[np.float32], settings: GuardSettings, where: str) -> NDArray[np.float32]:
    """Return outlier scores that differ by more than rounding."""
    spread = 1.0
    if len(scores):
        spread = float(np.ptp(scores))
    if spread <= _ROUNDING * max(1.0, float(np.max(np.abs(scores), initial=0.0))):
        raise DataError(
            f"{where}: the {settings.ood_score} score is the same for all samples, up to rounding ({spread:.1g}), so "
            "it cannot tell samples apart; log-probabilities have no energy; use another --ood-score"
        )
    return scores


def _of_sets(
    scores: NDArray[np.float32], labels: NDArray[np.int64], settings: GuardSettings, n_classes: int, where: str
) -> tuple[NDArray[np.float32], int, list[str]]:
    """Return the threshold, [] or [C], how many samples one for all classes covers, and notes."""
    level = settings.coverage / 100
    if not settings.per_class:
        threshold = np.asarray(conformal.conformal_quantile(scores, level), np.float32)
        return threshold, int(np.count_nonzero(scores <= threshold)), _tie_notes(scores, threshold, settings)
    limits = [conformal.conformal_quantile(scores[labels == c], level) for c in range(n_classes)]
    vacuous = [str(c) for c, threshold in enumerate(limits) if math.isinf(threshold)]
    needed = conformal.samples_needed(level)
    if len(vacuous) == n_classes:
        raise DataError(
            f"{where}: sets with a coverage of {settings.coverage:g} % in each class need {needed:,} "
            "samples of a class, and no class has so many; give more, or leave --per-class out"
        )
    notes = []
    if vacuous:
        notes.append(
            f"every set holds the classes {listed(vacuous)}: they have fewer than the {needed:,} samples that the "
            "coverage needs"
        )
    return np.array(limits, np.float32), 0, notes


_FITTED: dict[str, type[Mahalanobis | Residual]] = {"mahalanobis": Mahalanobis, "residual": Residual}


def outlier_of(score: OodScore, opened: GuardSamples, options: ModelOptions, progress: Progress) -> OutlierInput:
    """Return the score, fitted to the features of some samples if it is one of features."""
    model, options = before_map(opened.model, opened.output.name, options)
    if score not in _FITTED:
        readout = find_readout(model, options.head, options.output_name, options.output_kind)
        holds = "one number a sample"
        if not readout.binary:
            holds = readout.holds
        if holds != "logits":
            raise UnsupportedModel(
                f"{model.name}: the energy needs a tensor of logits of all classes, and '{readout.logits}' holds "
                f"{holds}; use --ood-score mahalanobis"
            )
        return OutlierInput(Energy(), readout.logits, "", 0)
    head = choose_head(model, options.head, options.output_name)
    if head.parts:
        raise UnsupportedModel(
            f"{model.name}: the features of head '{head.node}' are several tensors, and --ood-score {score} reads one; "
            "use --ood-score energy"
        )
    fitted = _FITTED[score].fit(*_features(opened, head, progress))
    return OutlierInput(fitted, "", head.features, head.n_features)


def _features(opened: GuardSamples, head: Head, progress: Progress) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the features (N, n) of the samples that the score is fitted to, and their labels."""
    source = opened.fit
    rows = opened.fit_rows
    session = open_part(opened.model, cut_at(opened.model, [head.features]), opened.device)
    parts = []
    for size, values in _runs(opened, session, head.features, rows, "fit outlier score", progress):
        if values.size != size * head.n_features:
            raise DataError(
                f"{source.describe()}: features '{head.features}' have shape {values.shape} for {size} samples; "
                f"expected ({size}, {head.n_features}); use --ood-score energy"
            )
        parts.append(np.asarray(values, np.float32).reshape(size, -1))
    return np.concatenate(parts), source.labels[rows]


def _runs(
    opened: GuardSamples, session: Session, tensor: str, rows: NDArray[np.int64], stage: str, progress: Progress
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the size of each batch of samples that scores are fitted to, and what a session gives for it."""
    done = 0
    for batch in opened.fit.batches(opened.batch_size, rows):
        size = len(next(iter(batch.values())))
        (values,) = session.run([tensor], batch)
        yield size, values
        done += size
        progress(stage, done, len(rows))


# Samples that a penalty is chosen on: one number, and N C probabilities in memory.
_SAMPLES = 5000


def set_score_of(settings: GuardSettings, opened: GuardSamples, progress: Progress) -> SetScore | None:
    """Return the set score; None without sets."""
    if "set" not in settings.add:
        return None
    score = SetScore(settings.set_score, allow_empty=settings.allow_empty)
    if not settings.fits_sets:
        return score
    rows = opened.fit_rows
    if len(rows) > _SAMPLES:
        rows = np.sort(np.random.default_rng(settings.seed).choice(rows, _SAMPLES, replace=False))
    output = opened.output
    runs = _runs(opened, opened.session, output.name, rows, "choose set score", progress)
    p = np.concatenate([output.probabilities(values) for _, values in runs])
    level = settings.coverage / 100
    free, weight = conformal.small_set_penalty(p, opened.fit.labels[rows], level, allow_empty=score.allow_empty)
    return replace(score, free=free, weight=weight)
