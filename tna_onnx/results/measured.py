"""Results of `evaluate` and `compare`: models measured on the same samples, and on parts of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.images.known_recipes import RecipeSearch
from tna_onnx.data.labels import class_called
from tna_onnx.errors import UsageError
from tna_onnx.fields import MAX_LEVEL
from tna_onnx.numerics.conformal import Z, wilson_interval
from tna_onnx.numerics.intervals import paired_differences, quantile
from tna_onnx.numerics.metric import JUDGED, METRICS, POSITIVE_ECE
from tna_onnx.numerics.metrics import MIN_EACH, Estimate, Interval, Metrics, decisive_count
from tna_onnx.numerics.positive import Classes, PositiveSide, positive_difference, positive_scores, slope_and_intercept
from tna_onnx.numerics.reliability import Bins
from tna_onnx.numerics.residuals import CrossFit
from tna_onnx.numerics.scores import SampleScores, mean_and_error, weighted_mean
from tna_onnx.results.as_json import Displayed, Record, difference_record, metric_record, values_text
from tna_onnx.results.details import BinFree, LabelMetrics
from tna_onnx.results.outcomes import ClassFrequency, Decisions
from tna_onnx.results.verdict import Standing, Word, apart_text, both_held, calibration_of, changed

MIN_SAMPLES = 50
"""Fewer samples of a part tell nothing of its calibration."""

LABELLED = 300
"""Labelled samples that the advice after an alarm is about."""

_ERRORS = ("ece", "adaece", "nll", "brier")


@dataclass(frozen=True)
class Subgroup:
    """A part of the samples.

    Attributes:
        name: value of the column.
        metrics: of these samples.
        estimates: accuracy, ECE, AdaECE, NLL, Brier, slope and intercept of calibration with their intervals, and
            `positive.ece` of two classes and of labels; those of calibration errors are for the error without what
            noise adds. Slope and intercept are left out where few samples are right, or wrong.
        differences: to the baseline, or to the input model, on the same samples for each metric; empty where one model
            is measured.
    """

    name: str
    metrics: Metrics
    estimates: dict[str, Estimate]
    differences: dict[str, Interval] = field(default_factory=dict)

    def holding(self, second: Subgroup) -> Subgroup:
        """Return the same values with intervals that hold those of another comparison of these samples, too."""
        return replace(self, differences=both_held(self.differences, second.differences))


def check_positive(word: str, classes: int, *, labels: bool) -> None:
    """Refuse to name the positive class, `--positive`, where there are not two. `labels`: several a sample."""
    if word and (labels or classes != 2):
        noun = "classes"
        if labels:
            noun = "labels, of which each has tables of its own"
        raise UsageError(
            f"--positive {word}: names one of two classes, and the model has {classes} {noun}; leave it out"
        )


def named_classes(word: str, names: Sequence[str], *, labels: bool) -> Classes:
    """Return the classes with the positive one: the second of two, or the one that a word names."""
    check_positive(word, len(names), labels=labels)
    if word:
        return Classes(names, class_called(word, names))
    return Classes(names, 1)


def estimates_of(
    scores: SampleScores, classes: Classes, bins: int = 15, level: float = 0.95, cross_fit: CrossFit | None = None
) -> dict[str, Estimate]:
    """Return metrics, slope and intercept of scores with their intervals.

    `scores`: of N >= 2 samples; with their labels where there are two classes. `level`: of the intervals, a fraction.
    """
    differences = _errors(scores, bins, level, cross_fit)
    estimates = {"accuracy": _share(scores, level), **{name: differences[name] for name in _ERRORS}}
    side = PositiveSide.of(scores, classes, bins, cross_fit)
    if side.positives:
        worst = side.worst_number
        fit = side.cross_fits[worst]
        # as many chances to be the worst as there are labels
        stricter = 1 - (1 - level) / len(side.positives)
        estimates[POSITIVE_ECE] = replace(_errors(side.alone[worst], bins, stricter, fit)["ece"], level=level)
    if decisive_count(scores) < MIN_EACH:
        return estimates | {name: Estimate(estimates[name].value, None, None, level) for name in ("nll", "brier")}
    z = quantile((1 + level) / 2, scores.clusters, scores.weights)
    together = scores.pooled()
    if scores.predicted is None:
        together = next(iter(positive_scores(scores, len(classes.names), classes.positive)), scores)
    lines = slope_and_intercept(together.confidence, together.hit, z, together.clusters, together.weights)
    for name, line in lines.items():
        if line is not None:
            estimates[name] = Estimate(*line, level)
    return estimates


def _errors(scores: SampleScores, bins: int, level: float, cross_fit: CrossFit | None) -> dict[str, Estimate]:
    """Return calibration errors and losses with their intervals."""
    nothing = np.zeros_like(scores.nll)
    # a model that states what came true: its errors are zero, and differences to it the errors themselves
    perfect = replace(scores, confidence=scores.hit.astype(np.float32), nll=nothing, brier=nothing)
    differences = paired_differences(perfect, scores, bins, level=level, cross_fit=cross_fit)
    estimates = {}
    for name, d in differences.items():
        value, low, high = (max(0.0, number) for number in (d.difference, d.low, d.high))
        estimates[name] = Estimate(value, low, high, level)
    return estimates


def _share(scores: SampleScores, level: float) -> Estimate:
    """Return the accuracy with Wilson's interval, of as many samples as they are worth in clusters."""
    hits = scores.right.reshape(len(scores), -1).mean(axis=1)
    share = weighted_mean(hits, scores.weights)
    n = float(len(hits))
    z = NormalDist().inv_cdf((1 + level) / 2)
    if scores.clusters is not None or scores.predicted is not None:
        _, error = mean_and_error(hits, scores.clusters, scores.weights)
        z = quantile((1 + level) / 2, scores.clusters, scores.weights)
        if error > 0:
            n = min(n, share * (1 - share) / error**2)
        elif scores.clusters is not None:
            n = float(len(np.unique(scores.clusters)))
    return Estimate(share, *wilson_interval(share, n, z), level)


def subgroups_of(
    scores: SampleScores,
    parts: NDArray[Any],
    classes: Classes,
    bins: int = 15,
    level: float = 0.95,
    baseline: SampleScores | None = None,
    cross_fit: CrossFit | None = None,
    *,
    same_predictions: bool = False,
) -> tuple[Subgroup, ...]:
    """Return each part with enough samples, the worst first.

    `parts`: value of the column for each sample, texts (N,); `level`: of the intervals, a fraction; `baseline`: scores
    of another model on the same samples, if there is one.
    """
    subgroups = []
    for name in np.unique(parts).tolist():
        rows = np.flatnonzero(parts == name)
        part_scores = scores.take(rows)
        fit = None if cross_fit is None else CrossFit(cross_fit.fitted.take(rows), cross_fit.fold[rows])
        if (
            len(rows) < max(MIN_SAMPLES, bins)
            or not part_scores.total
            or (part_scores.clusters is not None and len(np.unique(part_scores.clusters)) < 2)
            or (fit is not None and fit.folds < 2)
        ):
            continue
        differences = {}
        side = PositiveSide.of(part_scores, classes, bins, fit)
        metrics = replace(Metrics.of(part_scores, bins), positive=side.worst(bins, level))
        if baseline is not None:
            first = baseline.take(rows)
            differences = paired_differences(
                first, part_scores, bins, level=level, cross_fit=fit, same_predictions=same_predictions
            )
            if side.positives:
                differences[POSITIVE_ECE] = positive_difference(
                    PositiveSide.of(first, classes, bins), side, bins, level
                )
        estimates = estimates_of(part_scores, classes, bins, level, fit)
        subgroups.append(Subgroup(name, metrics, estimates, differences))
    return tuple(sorted(subgroups, key=_worst_first))


def _worst_first(part: Subgroup) -> tuple[float, float, str]:
    error = part.estimates.get(POSITIVE_ECE, part.estimates["ece"])
    return -(error.low or 0.0), -error.value, part.name


def subgroup_notes(parts: NDArray[Any], subgroups: Sequence[Subgroup], level: float = 95.0) -> tuple[str, ...]:
    """Say how many parts are too small, and that intervals (level in per cent) are not corrected for their number."""
    names = np.unique(parts)
    small = len(names) - len(subgroups)
    notes = []
    if small:
        notes.append(
            f"{small:,} of {len(names):,} subgroups have fewer than {MIN_SAMPLES} samples, or too few that count for "
            "intervals, and are left out"
        )
    if len(subgroups) > 1:
        notes.append(
            f"the {level:g} % intervals are not corrected for {len(subgroups):,} subgroups: by chance, the worst looks "
            "worse than it is"
        )
    return tuple(notes)


@dataclass(frozen=True)
class WithoutLabels:
    """What follows for samples without labels from what a file records of its calibration (`numerics.reference`).

    Attributes:
        accuracy: expected share of right predictions if only class frequencies have changed since the calibration, a
            fraction with the ends of its interval; null after an alarm.
        confidence: mean largest probability, a fraction.
        other_p: p-value of the test that only class frequencies have changed, in one look; at least 1e-16.
        alarm: whether that is below 0.05.
        frequencies: of the classes, at the calibration and as they are estimated now; empty after an alarm.
    """

    accuracy: Estimate | None
    confidence: float
    other_p: float
    alarm: bool
    frequencies: tuple[ClassFrequency, ...]

    @property
    def sentence(self) -> str:
        """Say what is known of the accuracy."""
        expected = self.accuracy
        if expected is None or expected.low is None or expected.high is None:
            # of an accuracy of a half, the widest: after an alarm, confidences say nothing of it
            margin = 100 * Z * math.sqrt(0.25 / LABELLED)
            return (
                "The accuracy cannot be known without labels, because more than class frequencies seems to have "
                f"changed; {LABELLED} labelled samples would give it to within {margin:.1f} points"
            )
        return (
            f"The expected accuracy is {100 * expected.value:.2f} % ({100 * expected.level:g} % interval "
            f"{100 * expected.low:.2f} to {100 * expected.high:.2f}), if only class frequencies have changed"
        )


@dataclass(frozen=True, kw_only=True)
class MeasuredModel:
    """A model on samples: what an evaluation and each compared model have.

    Attributes:
        model: path of the model.
        model_sha256: SHA-256 of its file.
        output: graph output that classifies.
        output_kind: what that output holds.
        metrics: metrics on the samples; without labels only their number is known, the rest is null.
        reliability: top-label reliability diagram, with the bins of the ECE; without labels it has none.
        bin_free: calibration of the top label without bins; null without labels.
        preprocessing: what was done to the images; None where values are used as they are.
        provider: execution provider of ONNX Runtime that was obtained.
        decisions: what a guarded model decides; None where it decides nothing.
        subgroups: parts of the samples with enough of them, the worst first; empty where none are asked for.
    """

    model: str
    model_sha256: str
    output: str
    output_kind: str
    metrics: Metrics
    reliability: Bins
    bin_free: BinFree
    preprocessing: dict[str, object] | None
    provider: str
    decisions: Decisions | None = None
    subgroups: tuple[Subgroup, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Evaluation(MeasuredModel, Displayed):
    """The result of `evaluate`: metrics of one model on samples.

    Attributes:
        data: what the samples are, in one line.
        notes: what the user should know, in sentences.
        missed: gates that the model missed, a line each.
        labels: each label of a model with several a sample; empty for others.
        recipe_search: how the preprocessing of images was found by their labels; None where something says what it is.
        estimates: metrics, and slope and intercept of calibration, with their intervals.
        resolution: d of (p + d) / (1 + C d), of which the NLL is taken, for probabilities that come in steps; else 0.
        without_labels: what is known of data without labels; null where they have some.
    """

    data: str
    notes: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    labels: tuple[LabelMetrics, ...] = ()
    recipe_search: RecipeSearch | None = None
    estimates: dict[str, Estimate] = field(default_factory=dict)
    resolution: float = 0.0
    without_labels: WithoutLabels | None = None

    def __repr__(self) -> str:
        """Say in one line what was measured."""
        values = values_text(self.metrics)
        if self.without_labels is not None:
            values = self.summary
        return f"<Evaluation of {PurePath(self.model).name}: {values}; {self.metrics.n:,} samples>"

    @property
    def off(self) -> bool:
        """Whether the probabilities are off by more than chance explains; without labels, whether the test alarms."""
        if self.without_labels is not None:
            return self.without_labels.alarm
        positive = self.metrics.positive
        return (positive or self.bin_free).off

    @property
    def summary(self) -> str:
        """Say in one sentence how far the probabilities are off; without labels, what is known of the accuracy."""
        if self.without_labels is not None:
            return f"No labels: {self.without_labels.sentence[0].lower()}{self.without_labels.sentence[1:]}"
        opening = "Chance could explain how far the probabilities are off"
        if self.off:
            opening = "The probabilities are off by more than chance explains"
        return f"{opening}: {apart_text(self.metrics, self.bin_free.ece_expected)}"

    def records(self) -> list[Record]:
        """Return a row for each metric, with its unit."""
        return [metric_record(name, value=getattr(self.metrics, name)) for name in METRICS]


@dataclass(frozen=True, kw_only=True)
class ComparedModel(MeasuredModel):
    """One of the compared models.

    Attributes:
        name: what reports call it: the file's name, with folders where two would be the same.
        agreement: share of samples for which it predicts the class that the baseline predicts, or each of the labels, a
            fraction.
        differences: this model minus the baseline for each metric, paired, with an interval; empty for the baseline.
        verdict: the differences in words; empty for the baseline.
    """

    name: str
    agreement: float
    differences: dict[str, Interval]
    verdict: str

    @property
    def word(self) -> Word:
        """What accuracy, NLL and ECE come to against the baseline."""
        return Standing.of(self.differences).word


@dataclass(frozen=True)
class ModelComparison(Displayed):
    """What `compare` measured: several models on the same samples.

    Attributes:
        data: what the samples are, in one line.
        baseline: name of the model that the others are compared with.
        confidence_level: level of each interval on its own, per cent.
        models: the models, in the order given.
        versions: versions of what computed the numbers, by package.
        notes: what the user should know, in sentences.
        resolution: d of (p + d) / (1 + C d), of which each NLL is taken: the largest of the models whose probabilities
            come in steps; else 0.
    """

    data: str
    baseline: str
    confidence_level: float
    models: tuple[ComparedModel, ...]
    versions: dict[str, str]
    notes: tuple[str, ...] = ()
    resolution: float = 0.0

    def __repr__(self) -> str:
        """Say in one line what was compared."""
        words = "; ".join(f"{model.name}: {model.word}" for model in self.others)
        return f"<ModelComparison with {self.baseline}: {words}; {self.models[0].metrics.n:,} samples>"

    def records(self) -> list[Record]:
        """Return a row for each model and metric, with its unit; the baseline has no differences."""
        return [
            {
                "model": model.name,
                **metric_record(name, value=getattr(model.metrics, name)),
                **difference_record(name, model.differences),
            }
            for model in self.models
            for name in METRICS
        ]

    @property
    def others(self) -> tuple[ComparedModel, ...]:
        """All models but the baseline."""
        return tuple(model for model in self.models if model.name != self.baseline)


def verdict_text(baseline: str, differences: Mapping[str, Interval], agreement: float, same: str = "class") -> str:
    """Say in words how a model differs from the baseline: by what counts, what it comes to first.

    `same` is what samples have to have the same of, to agree.

    >>> worse = {name: Interval(0.1, 0.05, 0.2, 0.95) for name in ("ece", "nll")}
    >>> verdict_text("a.onnx", worse | {"accuracy": Interval(0.0, -0.1, 0.1, 0.95)}, 0.987)
    'worse than a.onnx in ECE, NLL; no significant difference in accuracy; the same class for 98.70 % of samples'
    """
    names: dict[int, list[str]] = {1: [], -1: [], 0: []}
    calibration = calibration_of(differences)
    for name, metric in JUDGED.items():
        # of two classes and of labels, one calibration error is that of P(positive)
        if name in differences and (calibration == "ece" or name not in ("ece", "adaece")):
            label = metric.label
            if name == POSITIVE_ECE and same == "labels":
                label = "ECE of the worst label"
            names[changed(name, differences[name])].append(label)
    agreed = f"the same {same} for {100 * agreement:.2f} % of samples"
    standing = Standing.of(differences)
    # nothing is significant: a list of every metric would say no more
    if not names[1] and not names[-1]:
        if standing.few_errors is not None:
            return f"too few errors to tell from {baseline} ({standing.few_errors}); {agreed}"
        return f"no significant difference from {baseline}; {agreed}"
    sides = [(1, "better"), (-1, "worse")]
    if standing.word == "worse":
        sides.reverse()
    parts = [f"{word} than {baseline} in {', '.join(names[side])}" for side, word in sides if names[side]]
    if names[0]:
        parts.append(f"no significant difference in {', '.join(names[0])}")
    return "; ".join([*parts, agreed])


# Below this d is the rounding of 1 - p, of which nobody sees anything.
_SEEN = 1e-6


def resolution_notes(d: float, n_classes: int) -> tuple[str, ...]:
    """Say of which probabilities the NLL of a model is, where these come in steps."""
    if d < _SEEN:
        return ()
    return (
        "the model's probabilities come in steps, so 0 does not mean impossible: the NLL is that of (p + d) / (1 + "
        f"{n_classes} d) with d = {d:.3g}",
    )


def multiplicity_note(n_comparisons: int, level: float) -> str:
    """Say that intervals are not corrected, and which level corrects them (Bonferroni).

    `level`: of the intervals, in per cent.
    """
    text = f"the {level:g} % intervals are not corrected for {n_comparisons} comparisons"
    together = 100 - (100 - level) / n_comparisons
    # no advice that is refused
    if together > MAX_LEVEL:
        return text
    return (
        f"{text}: with --confidence-level {together:.4g} those of one metric hold together at {level:g} % (Bonferroni)"
    )
