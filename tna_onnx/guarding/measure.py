"""What a guarded model says of samples (`Values`), and the figures of that.

One pass over the samples collects scores and decisions; `check_decisions` compares those of a file with what was meant.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.images.known_recipes import preprocessing_notes
from tna_onnx.data.options import Data
from tna_onnx.data.source import Batch, Source, rows_by_weight
from tna_onnx.data.suspicion import warnings_of
from tna_onnx.engine.scoring import BatchRunner, score_model, with_quantum
from tna_onnx.errors import DataError
from tna_onnx.extraction.classifier import Classifier
from tna_onnx.graph.decisions import decision_outputs
from tna_onnx.graph.load import Model
from tna_onnx.graph.readers import answer_of
from tna_onnx.graph.readout import STATED_KINDS, ClassOutput, require_rows
from tna_onnx.guarding.guard_settings import ADDITIONS
from tna_onnx.numerics.conformal import share_interval
from tna_onnx.numerics.intervals import top_label_errors
from tna_onnx.numerics.operating_points import confusion, goal_value
from tna_onnx.numerics.ops import rows_of
from tna_onnx.numerics.outliers import area_under
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline.opening import Opened, batch_notes
from tna_onnx.pipeline.sample_checks import decided_on, decided_thresholds
from tna_onnx.progress import Progress
from tna_onnx.results import outcomes

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

    def values(self, scores: SampleScores) -> Values:
        """Return what the outputs say, with the scores of the output that classifies."""
        sizes = np.concatenate(self._sizes)
        return Values(self._labels, scores.hit, scores.confidence, self.columns, sizes, scores.clusters)


def collect_values(
    session: BatchRunner, opened: Opened, names: Mapping[str, str], source: Source, progress: Progress, stage: str
) -> Values:
    """Run a model, with what `names` says beside the output that classifies, over samples."""
    where = source.describe()
    recorder = RecordingRunner(session, names, source.labels, where)
    scores, _ = score_model(
        recorder, opened.output, source, opened.batch_size, lambda _, done, total: progress(stage, done, total)
    )
    values = recorder.values(scores)
    for role, column in values.values.items():
        if not np.all(np.isfinite(column)):
            row = int(np.flatnonzero(~np.isfinite(column))[0])
            raise DataError(f"{where}: the {role} score of sample {row} is not a finite number")
    return values


_GROUPS = 5  # of samples by confidence, equally large: enough to see where sets are large


def measure(
    decided: Values,
    names: Sequence[str],
    confidence_level: float,
    data: str,
    *,
    fresh: bool | None,
    detection: outcomes.Detection | None = None,
    cost: NDArray[np.float32] | None = None,
) -> outcomes.Decisions:
    """Reduce decisions to the figures of the report.

    `confidence_level`: of intervals, in per cent. `fresh`: whether no threshold was chosen on them; None where nobody
    knows.
    """
    level = confidence_level / 100
    figures: dict[str, Any] = {}
    if "confidence" in decided.values:
        errors = top_label_errors(decided.values["confidence"], decided.hit, level, decided.clusters)
        figures["calibration"] = outcomes.ConfidenceCalibration(
            errors.ece, errors.ece_interval, errors.nll, errors.nll_interval, level
        )
    if "accept" in decided.values:
        accepted = decided.values["accept"]
        risk, interval = _share(~decided.hit[accepted], level, rows_of(decided.clusters, accepted))
        figures |= {"accepted": float(accepted.mean()), "risk": risk, "risk_interval": interval}
    if "set" in decided.values:
        figures |= _covered(decided, len(names), level)
    if "ood_alarm" in decided.values:
        figures["alarms"] = float(decided.values["ood_alarm"].mean())
    if "decision" in decided.values:
        figures["decision"] = score_decision(decided, names, level, cost)
    accuracy = float(decided.hit.mean())
    return outcomes.Decisions(data=data, fresh=fresh, n=len(decided), accuracy=accuracy, detection=detection, **figures)


def _covered(decided: Values, n_classes: int, level: float) -> dict[str, Any]:
    sets = decided.values["set"]
    return {
        "coverage": float(sets.mean()),
        "coverage_interval": share_interval(sets, level, decided.clusters),
        "class_coverage": _by_class(sets, decided.labels, n_classes),
        "class_set_size": _by_class(decided.sizes, decided.labels, n_classes),
        "by_confidence": tuple(_groups(decided)),
        "mean_set_size": float(decided.sizes.mean()),
        "empty_sets": float(np.mean(decided.sizes == 0)),
        "single_sets": float(np.mean(decided.sizes == 1)),
        "full_sets": float(np.mean(decided.sizes == n_classes)),
    }


def _groups(decided: Values) -> list[outcomes.ConfidenceGroup]:
    """Split samples by confidence into groups of the same size, the least sure first."""
    order = np.argsort(decided.confidence, kind="stable")
    groups = []
    for rows in np.array_split(order, min(_GROUPS, len(order))):
        low, high = (min(float(decided.confidence[row]), 1.0) for row in rows[[0, -1]])
        coverage = float(decided.values["set"][rows].mean())
        groups.append(outcomes.ConfidenceGroup(low, high, len(rows), coverage, float(decided.sizes[rows].mean())))
    return groups


def _by_class(values: NDArray[Any], labels: NDArray[np.int64], n_classes: int) -> tuple[float | None, ...]:
    """Return the mean over the samples of each class; None for classes without samples."""
    counts = np.bincount(labels, minlength=n_classes).tolist()
    sums = np.bincount(labels, values, minlength=n_classes).tolist()
    return tuple(total / n if n else None for total, n in zip(sums, counts, strict=True))


def measure_detection(expected: Values, unknown: Values, confidence_level: float, data: str) -> outcomes.Detection:
    """Say how well outlier scores tell samples that the model should know from others. The level is in per cent."""
    alarms = unknown.values["ood_alarm"]
    return outcomes.Detection(
        data=data,
        n=len(unknown),
        auroc=area_under(expected.values["ood"], unknown.values["ood"]),
        detected=float(alarms.mean()),
        detected_interval=share_interval(alarms, confidence_level / 100),
    )


_MAX_CLASSES = 100  # of a confusion matrix in a result


def cost_in_file(entries: Mapping[str, str]) -> Floats | None:
    """Return the costs that a file was made for; None where it says none."""
    try:
        cost = np.array(json.loads(entries["guard_decision"])["cost"], np.float32)
    except (LookupError, TypeError, ValueError, RecursionError):
        return None
    if not (cost.ndim == 2 and np.all(np.isfinite(cost))):
        return None
    return cost


def score_decision(
    values: Values, names: Sequence[str], level: float, cost: Floats | None = None
) -> outcomes.DecisionScores:
    """Hold decisions against labels.

    `values`: with the `decision` of each sample: a class, -1 for none; of several labels (C,) bool. `level`: of
    intervals, a fraction. `cost`: (C, A) costs, if the file was made for some.
    """
    decided = values.values["decision"]
    labels = values.labels
    clusters = values.clusters
    classes = len(names)
    counts = confusion(decided, labels, classes)
    multi_label = counts.ndim == 3

    def column(values: NDArray[Any], c: int) -> NDArray[np.bool_]:
        if multi_label:
            return np.asarray(values[:, c] == 1)
        return np.asarray(values == c)

    pairs = [(column(labels, c), column(decided, c)) for c in range(classes)]
    scores = outcomes.DecisionScores(
        classes=tuple(_of_class(name, *pair, level, clusters) for name, pair in zip(names, pairs, strict=True)),
        confusion=None,
        undecided=0.0,
        # of several labels, F1 by label
        macro_f1=float(np.mean(goal_value(counts, "f1" if multi_label else "macro-f1"))),
        balanced_accuracy=float(np.mean(goal_value(counts, "balanced-accuracy"))),
        mcc=float(np.mean(goal_value(counts, "mcc"))),
    )
    if multi_label:
        return scores
    scores = replace(scores, undecided=float(np.mean(decided < 0)))
    if classes <= _MAX_CLASSES:
        scores = replace(scores, confusion=tuple(map(tuple, counts.tolist())))
    if cost is not None:
        scores = replace(scores, cost=-float(goal_value(counts, "cost", cost)))
    return scores


def _share(
    hits: NDArray[np.bool_], level: float, clusters: NDArray[np.int64] | None
) -> tuple[float | None, tuple[float, float] | None]:
    """Return the share of hits and its interval; None for both without samples."""
    if not len(hits):
        return None, None
    return float(hits.mean()), share_interval(hits, level, clusters)


def _of_class(
    name: str, holds: NDArray[np.bool_], decided: NDArray[np.bool_], level: float, clusters: NDArray[np.int64] | None
) -> outcomes.ClassDecision:
    """Count one class: samples that hold it, and those that are decided to."""
    recall, recall_interval = _share(decided[holds], level, rows_of(clusters, holds))
    precision, precision_interval = _share(holds[decided], level, rows_of(clusters, decided))
    false_positives, _ = _share(decided[~holds], level, rows_of(clusters, ~holds))
    return outcomes.ClassDecision(
        name=name,
        samples=int(holds.sum()),
        decided=int(decided.sum()),
        recall=recall,
        recall_interval=recall_interval,
        precision=precision,
        precision_interval=precision_interval,
        false_positives=false_positives,
    )


_ROLES = (*ADDITIONS, "ood_alarm", "decision")


def guards_about(model: Model, output: ClassOutput) -> dict[str, str]:
    """Return role -> graph output of the decisions about the classes of an output.

    What the file says of itself counts only where it has such outputs; those of another head are about other labels.
    """
    entries = model.provenance
    try:
        prefix = json.loads(entries.get("guard", "")).get("prefix", "")
    except (ValueError, AttributeError, RecursionError):  # not written by this tool
        return {}
    if entries.get("output") not in (None, output.name):
        return {}
    return decision_outputs(model, {role: f"{prefix}{role}" for role in _ROLES})


@dataclass(frozen=True, eq=False)
class Scored:
    """What a model says of labelled samples."""

    scores: SampleScores
    predicted: NDArray[np.int64]  # classes (N,)
    decisions: outcomes.Decisions | None  # of a guarded model; None where it decides nothing
    notes: tuple[str, ...]  # on the samples, the model, and what it says of them


def opened_to_score(classifier: Classifier, data: Data, source: Source, batch_size: int, form: str = "") -> Opened:
    """Return a classifier with its samples, whose scores do not depend on the batch. `form`: as of `Opened`."""
    model = classifier.model
    outliers = [name for role, name in guards_about(model, classifier.output).items() if role == "ood"]
    notes = batch_notes(classifier, source, batch_size, outliers)
    classifier.output = with_quantum(classifier.session, classifier.output, source, batch_size)
    notes += (*preprocessing_notes(source, classifier.inputs, data.preprocessing),)
    return Opened(classifier, data, source, None, batch_size, notes, form=form)


def score_opened(opened: Opened, progress: Progress, level: float = 95.0) -> Scored:
    """Score a model, and measure what it decides in the same run. `level`: of intervals, in per cent."""
    model = opened.model
    output = opened.output
    source = opened.source
    guards = guards_about(model, output)
    recorder = decisions = None
    if guards:
        recorder = RecordingRunner(opened.session, guards, source.labels, source.describe())
    # behind features and logits, nodes that give labels do not run
    label = None if opened.form else answer_of(model, output)
    scores, predicted = score_model(recorder or opened.session, output, source, opened.batch_size, progress, label)
    notes = (
        *opened.notes,
        *warnings_of(opened.suspicion(predicted, lambda: scores.confidence), opened.classifier.names),
        *_doubtful_logits(output, scores, predicted),
        *decided_on(model, opened.digested, opened.data.limits),
    )
    if recorder is not None:
        decisions = _decisions(opened, recorder, scores, level)
    return Scored(scores, predicted, decisions, notes)


def _decisions(opened: Opened, recorder: RecordingRunner, scores: SampleScores, level: float) -> outcomes.Decisions:
    """Measure what a model decided while it was scored."""
    source = opened.source
    decided = recorder.values(scores)
    described = source.describe()
    rows = rows_by_weight(source)
    if rows is not None:
        decided = decided.take(rows)
        described += f", of which {len(rows):,} drawn by their weights"
    gave_thresholds = decided_thresholds(opened.model, opened.digested, opened.data.limits)
    fresh = None if gave_thresholds is None else not gave_thresholds
    cost = cost_in_file(opened.model.provenance)
    return measure(decided, opened.names, level, described, fresh=fresh, cost=cost)


# Probability of a logit of 1, up to rounding.
_LARGEST = 1 / (1 + math.exp(-1)) + 1e-6


def _doubtful_logits(output: ClassOutput, scores: SampleScores, predicted: NDArray[np.int64]) -> tuple[str, ...]:
    """Say that an output which was said to hold single logits has values from 0 to 1 alone, as probabilities do.

    Such a logit gives the second class a probability from a half to `_LARGEST`.
    """
    inside = (scores.confidence <= 0.5) | ((predicted == 1) & (scores.confidence <= _LARGEST))
    if output.kind not in STATED_KINDS or not np.all(inside):
        return ()
    word = STATED_KINDS[output.kind].replace("logits", "probabilities").replace("logit", "probability")
    return (
        f"output '{output.name}' should hold logits, and all its values lie between 0 and 1: if they are "
        f"probabilities, the numbers are wrong; say --output-kind {word}",
    )
