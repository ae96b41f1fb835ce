"""Thresholds from scores, each with the guarantee that it has: of confidences, sets, selective risk and outlier alarms.
One pass over the samples collects scores, and decisions (`collect_values`); a level that cannot be reached is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.labels import listed
from tna_onnx.data.source import Batch, Source, clusters_of
from tna_onnx.engine.scoring import BatchRunner
from tna_onnx.errors import DataError
from tna_onnx.graph.decisions import SetScore
from tna_onnx.graph.readout import ClassOutput, require_rows
from tna_onnx.guarding.deciding import operate
from tna_onnx.guarding.guard_settings import GuardSettings
from tna_onnx.numerics.conformal import (
    accept_above,
    conformal_quantile,
    coverage_band,
    errorless_needed,
    lowest_risk,
    samples_needed,
)
from tna_onnx.numerics.operating_points import DecisionRule
from tna_onnx.numerics.ops import rows_of
from tna_onnx.progress import Progress
from tna_onnx.results.outcomes import GuardOutput, OperatingPoint

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Values:
    """What outputs say of N samples."""

    labels: NDArray[np.int64]  # class indices (N,); of several labels a sample (N, C) of 0 and 1
    hit: NDArray[np.bool_]  # whether the sample is classified right, (N,); of labels (N, C)
    confidence: NDArray[np.floating[Any]]  # largest probability of the output that classifies, (N,)
    # role -> (N,) of a score or a decision; of `set` that of the sample's class. The score of `decision` are all
    # probabilities, (N, C), as its decision on several labels is.
    values: dict[str, NDArray[Any]]
    sizes: NDArray[np.int64]  # classes in the set of each sample, (N,); empty without sets
    # numbers of the groups that samples come in, (N,); None where they are independent
    clusters: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: slice | NDArray[np.int64]) -> Values:
        """Return those of some samples."""
        sizes = self.sizes[rows] if len(self.sizes) else self.sizes
        clusters = rows_of(self.clusters, rows)
        columns = {role: column[rows] for role, column in self.values.items()}
        return Values(self.labels[rows], self.hit[rows], self.confidence[rows], columns, sizes, clusters)


class RecordingRunner:
    """A session that also runs further outputs, and keeps what they say; batches come in the order of the labels.

    One column a role is filled batch by batch: the scores of all classes are never in memory together.
    """

    def __init__(self, session: BatchRunner, names: Mapping[str, str], labels: NDArray[np.int64], where: str) -> None:
        self._session = session
        self._names = [*names.values()]
        self._labels = labels
        self._where = where
        self._done = 0
        self._parts: dict[str, list[NDArray[Any]]] = {role: [] for role in names}
        self._sizes: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]

    def run(self, outputs: list[str], batch: Batch, /) -> list[NDArray[Any]]:
        """Run one batch, and return what was asked for."""
        values = self._session.run([*outputs, *self._names], batch)
        count = len(next(iter(batch.values())))
        require_rows(values[0], count, f"{self._where}: output '{outputs[0]}'")
        labels = self._labels[self._done : self._done + count]
        self._done += count
        for (role, parts), output in zip(self._parts.items(), values[len(outputs) :], strict=True):
            least: tuple[int, ...] = (count,)
            if role == "set":
                least = (count, int(labels.max(initial=0)) + 1)
            # of a decision, all probabilities or labels of a sample
            fits = output.ndim == len(least) and output.shape[-1] >= least[-1]
            if not (fits or (role == "decision" and output.ndim == 2)) or len(output) != count:
                raise DataError(f"{self._where}: output {role} has shape {output.shape} for {count} samples")
            if role == "set" and output.dtype == np.bool_:
                self._sizes.append(output.sum(axis=1, dtype=np.int64))
            parts.append(output[np.arange(count), labels] if role == "set" else output)
        return values[: len(outputs)]

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """Role -> (N,)."""
        return {role: np.concatenate(parts) for role, parts in self._parts.items()}

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Classes in each set, (N,); empty without sets."""
        return np.concatenate(self._sizes)


def collect_values(
    session: BatchRunner,
    output: ClassOutput,
    names: Mapping[str, str],
    source: Source,
    batch_size: int,
    progress: Progress,
    *,
    rows: NDArray[np.int64] | None = None,
    stage: str = "score",
) -> Values:
    """Run a model over samples."""
    if rows is None:
        rows = np.arange(len(source))
    labels = source.labels[rows]
    listening = RecordingRunner(session, names, labels, source.describe())
    hits: list[NDArray[np.bool_]] = []
    confidences: list[NDArray[np.floating[Any]]] = []
    done = 0
    for batch in source.batches(batch_size, rows):
        values = listening.run([output.name], batch)[0]
        p = output.probabilities(values)
        hits.append(output.predicted(values) == labels[done : done + len(p)])
        confidences.append(p.max(axis=1))
        done += len(p)
        progress(stage, done, len(rows))
    columns = listening.columns
    for role, column in columns.items():
        if not np.all(np.isfinite(column)):
            row = rows[int(np.flatnonzero(~np.isfinite(column))[0])]
            raise DataError(f"{source.describe()}: the {role} score of sample {row} is not a finite number")
    clusters = clusters_of(source)
    if clusters is not None:
        clusters = clusters[rows]
    return Values(
        labels,
        np.concatenate(hits),
        np.concatenate(confidences),
        columns,
        listening.sizes,
        clusters,
    )


_TIED = 0.02  # this much more than the level asks for is told
_ROUNDING = 1e-5


@dataclass(frozen=True, eq=False)
class Thresholds:
    """What scores are compared with, and what is left out because the samples cannot promise it."""

    settings: GuardSettings  # without what is left out
    # `accept` of the confidence, `set` of the set score, [] or [C], `ood` of the outlier score, `decision` of the
    # probabilities, [] or [C]; float32
    values: dict[str, NDArray[np.float32]]
    covered: int  # how many of the samples that the one threshold of sets comes from are in it
    point: OperatingPoint | None  # of the decision; None without one
    omitted: dict[str, str]  # role of each output that is left out -> why, in a sentence
    lowest_risk: float | None  # at which `accept` would not be left out, a fraction; None up to one half
    notes: tuple[str, ...]  # what the user should know, in sentences


class NotReached(DataError):
    """No threshold keeps the risk, and there is nothing else to add."""


def choose_thresholds(
    values: Values,
    fresh: NDArray[np.bool_],
    settings: GuardSettings,
    rule: DecisionRule | None,
    names: Sequence[str],
    where: str,
) -> Thresholds:
    """Choose all thresholds that are asked for and can be promised.

    `fresh`: those of the samples that no score was fitted to, (N,). `rule`: of the decision; None without one.
    """
    levels: dict[str, NDArray[np.float32]] = {}
    omitted: dict[str, str] = {}
    lowest: float | None = None
    covered = 0
    notes: list[str] = []
    if "accept" in settings.add:
        risk = settings.risk / 100
        delta = settings.delta / 100
        accepted = accept_above(values.values["confidence"], values.hit, risk, delta)
        if accepted is not None:
            levels["accept"] = np.asarray(accepted, np.float32)
        else:
            lowest = lowest_risk(values.values["confidence"], values.hit, delta)
            omitted["accept"] = _why_none_accepted(values, settings, lowest)
            others = tuple(name for name in settings.add if name != "accept")
            settings = _left_out(settings, f"{where}: {omitted['accept']}", add=others)
    operated = None
    if rule is not None:
        operated = operate(rule, values.values["decision"], values.labels, settings, names)
    if operated is not None and operated.thresholds is None:
        (omitted["decision"],) = operated.notes
        why = f"{where}: {omitted['decision']}; give more samples, or another goal"
        settings = _left_out(settings, why, decide="", positive="")
    if "set" in settings.add:
        # a score that was fitted to samples says nothing of sets of others
        rows = fresh if settings.fits_sets else np.ones_like(fresh)
        own = values.values["set"][rows]
        levels["set"], covered, notes = _of_sets(own, values.labels[rows], settings, len(names), where)
    if "ood" in settings.add:
        known = _varied(values.values["ood"][fresh], settings, where)
        levels["ood"] = np.asarray(conformal_quantile(known, 1 - settings.false_alarm / 100), np.float32)
    point = None
    if operated is not None and operated.thresholds is not None:
        levels["decision"] = operated.thresholds
        point = operated.point
        notes += [f"decision: {note}" for note in operated.notes]
    return Thresholds(settings, levels, covered, point, omitted, lowest, tuple(notes))


def _left_out(settings: GuardSettings, why: str, **changes: Any) -> GuardSettings:
    """Return settings without an output that the samples cannot promise; refuse that where nothing else is added."""
    remaining = {"add": settings.add, "decide": settings.decide, **changes}
    if settings.if_unreachable == "fail" or not (remaining["add"] or remaining["decide"]):
        raise NotReached(why)
    return replace(settings, **changes)


def _why_none_accepted(values: Values, settings: GuardSettings, lowest: float | None) -> str:
    needed = errorless_needed(settings.risk / 100, settings.delta / 100)
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


def require_enough(settings: GuardSettings, n: int, fresh: int, where: str) -> None:
    """Refuse too few samples for a level, before a model has run."""
    if settings.fits_sets:
        n = fresh
    kinds = [
        ("set", f"sets with a coverage of {settings.coverage:g} %", settings.coverage / 100, n),
        ("ood", f"false alarms below {settings.false_alarm:g} %", 1 - settings.false_alarm / 100, fresh),
    ]
    for role, what, level, count in kinds:
        # of a class with too few, every set holds it
        if role in settings.add and not (role == "set" and settings.per_class) and count < samples_needed(level):
            raise DataError(
                f"{where}: {what} need {samples_needed(level):,} samples, and there are {count:,}; give more"
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
    spread = float(np.ptp(scores)) if len(scores) else 1.0
    if spread <= _ROUNDING * max(1.0, float(np.max(np.abs(scores), initial=0.0))):
        raise DataError(
            f"{where}: the {settings.ood_score} score is the same for all samples, up to rounding ({spread:.1g}), so "
            "it cannot tell samples apart; log-probabilities have no energy; use another --ood-score"
        )
    return scores


def _of_sets(
    own: NDArray[np.float32], labels: NDArray[np.int64], settings: GuardSettings, n_classes: int, where: str
) -> tuple[NDArray[np.float32], int, list[str]]:
    """Return the threshold, [] or [C], how many samples one for all classes covers, and notes."""
    level = settings.coverage / 100
    if not settings.per_class:
        threshold = np.asarray(conformal_quantile(own, level), np.float32)
        return threshold, int(np.count_nonzero(own <= threshold)), _tie_notes(own, threshold, settings)
    limits = [conformal_quantile(own[labels == c], level) for c in range(n_classes)]
    vacuous = [str(c) for c, threshold in enumerate(limits) if math.isinf(threshold)]
    needed = samples_needed(level)
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


def new_outputs(
    settings: GuardSettings,
    thresholds: Thresholds,
    n: int,
    classes: int,
    score: SetScore | None,
    decision: str,
    whom: str,
) -> tuple[GuardOutput, ...]:
    """Describe the new outputs. `score`: of which sets are made; None without sets. `whom`: the promises are for."""
    words = {
        "decision": decision,
        "confidence": f"largest of the {classes} probabilities; how far it is off is measured below",
        "accept": f"with a certainty of {100 - settings.delta:g} %, at most {settings.risk:g} % of accepted samples "
        f"are classified wrong, {whom}",
        "set": _set_promise(settings, n, thresholds.covered, whom) + _made_of(score),
        "ood": f"{settings.ood_score}: the larger, the less a sample is like these",
        "ood_alarm": f"raised by at most {settings.false_alarm:g} % of samples on average over calibration sets, "
        f"{whom}",
    }
    scores = {"accept": "accept", "set": "set", "ood_alarm": "ood", "decision": "decision"}
    return tuple(
        GuardOutput(name, role, words[role], _numbers(thresholds.values.get(scores.get(role, ""))))
        for role, name in settings.outputs.items()
    )


def _numbers(levels: NDArray[np.float32] | None) -> tuple[float | None, ...]:
    """Return thresholds as they are reported; an infinite one lets every score pass."""
    if levels is None:
        return ()
    return tuple(level if math.isfinite(level) else None for level in np.ravel(levels).tolist())


def _set_promise(settings: GuardSettings, n: int, covered: int, whom: str) -> str:
    level = settings.coverage / 100
    if settings.per_class:
        return (
            f"holds the true class of at least {settings.coverage:g} % of the samples of each class on "
            f"average over calibration sets, {whom}"
        )
    low, _ = coverage_band(n, level, None, 0.95)
    # where many share the score of the threshold, sets hold the true class of as many
    _, high = coverage_band(n, max(level, covered / (n + 1)), None, 0.95)
    return (
        f"holds the true class of at least {settings.coverage:g} % of samples on average over calibration sets, "
        f"{whom}; with this one {100 * low:.1f} to {100 * high:.1f} % in 95 of 100 cases"
    )


def _made_of(score: SetScore | None) -> str:
    if score is None or not score.weight:
        return ""
    text = f"; penalty {score.weight:g} for each class behind the first"
    if score.free > 1:
        text += f" {score.free:,}"
    return text
