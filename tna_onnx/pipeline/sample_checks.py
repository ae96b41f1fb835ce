"""Checks of samples before a search: too few (`check_counts`), wrong labels (`check_task_labels`), samples that were
calibrated on before or are in both data sets (`check_leaks`), and copies (`grouped`), which share a fold.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.choices import Limits
from tna_onnx.data.digest import Overlap, overlap_of, read_sketch, repeats_of, sketch_of, sketch_overlap
from tna_onnx.data.images.known_recipes import preprocessing_warnings
from tna_onnx.data.labels import Coverage, label_coverage_text
from tna_onnx.data.options import Data
from tna_onnx.data.several import PositionSource, order_warning
from tna_onnx.data.source import Source, group_notes, require_groups, require_samples, sample_labels
from tna_onnx.data.suspicion import checked_labels, checked_warnings
from tna_onnx.errors import DataError, UsageError
from tna_onnx.extraction.classifier import OpenModel
from tna_onnx.extraction.opened_samples import Samples
from tna_onnx.graph.load import Model
from tna_onnx.graph.readout import Head
from tna_onnx.maps import CLAMPED, MAPS
from tna_onnx.numerics.copies import connected, equal_pairs, near_copies
from tna_onnx.pipeline.crossfit import SEEN
from tna_onnx.pipeline.job import Collected, Job, Task
from tna_onnx.pipeline.methods import FOLDS


@dataclass(frozen=True)
class LabelCheck:
    """What was seen on labels."""

    coverage: Coverage  # classes of the calibration labels
    warnings: tuple[str, ...] = ()  # sentences on what looks wrong or is missing
    trusted: bool = False  # whether the user says that the labels are right
    names: Sequence[str] | None = None  # of the classes

    def covers(self, name: str) -> bool:
        """Whether labels say enough for a map: one that can change predictions moves classes against each other."""
        name = name.removeprefix(CLAMPED)
        keeps_order = name == "none" or MAPS[name].keeps_order
        return keeps_order or self.trusted or not self.coverage.left_out

    def require(self, name: str) -> None:
        """Refuse a map by name for which classes are missing."""
        if name != "auto" and not self.covers(name):
            raise DataError(
                f"--map {name}: {self.coverage.text('the calibration data', self.names)}; it would learn that these "
                "classes never occur; add samples of them, use --map ts or ets, or --trust-labels if they cannot occur"
            )


def check_task_labels(task: Task) -> LabelCheck:
    """Compare the labels of both data sets with the model's predictions."""
    job = task.job
    trusted = job.settings.trust_labels
    names = task.opened.names
    of_held_out: list[str] = []
    if job.held_out is not None and task.held_out is not None:
        of_held_out = _label_warnings(task, job.held_out, task.held_out, "--eval", "the held-out data")
        task.logits(task.weight, on=task.held_out).forget()  # the search comes first
    of_calibration = _label_warnings(task, job.calib, task.calibration, "--calib", "the calibration data")
    if task.readout.multi_label:
        marks = task.source.labels
        rarer = np.minimum(marks.sum(axis=0), len(marks) - marks.sum(axis=0))
        coverage = replace(Coverage.of_counts(rarer), left_out=False)
    else:
        # the labels are of a teacher, or of the source
        coverage = Coverage.of(np.asarray(task.calibration.table.labels), task.readout.n_classes)
    if coverage.left_out and not trusted and job.settings.resolved_map == "auto":
        of_calibration[0] += ": maps with parameters for each class were left out; --trust-labels allows them"
    return LabelCheck(coverage, tuple(filter(None, (*of_calibration, *of_held_out))), trusted, names)


def _label_warnings(task: Task, data: Data, collected: Collected, flag: str, subject: str) -> list[str]:
    """Return which classes of a data set lack samples, then what looks wrong about its labels; texts may be empty."""
    trusted = task.settings.trust_labels
    names = task.opened.names
    logits = task.logits(task.weight, on=collected)
    predicted = logits.predictions()
    if task.readout.multi_label:
        marks = collected.source.labels
        data.check_accuracy(float(np.mean(predicted == marks)), len(marks))
        warning = order_warning(predicted, marks, names)
        if warning and not trusted:
            raise DataError(f"{collected.source.describe()}: {warning}; --trust-labels calibrates regardless")
        return [label_coverage_text(marks, subject, names), warning]
    labels = np.asarray(collected.table.labels)
    classes = task.readout.n_classes
    suspicion = checked_labels(data, predicted, labels, names, classes, lambda: logits.scores().confidence)
    coverage = Coverage.of(labels, classes)
    return [coverage.text(subject, names), *checked_warnings(suspicion, names, flag, trusted=trusted)]


def check_counts(job: Job, samples: Samples, held_out: Samples | None) -> None:
    """Refuse samples that leave nothing to do, and too few of them."""
    bins = job.settings.bins
    where = samples.source.describe()
    # a store does not say which rows are of one sample
    if job.cache is not None and samples.readout.several:
        raise UsageError("features of several predictions a sample are not kept on disk; leave --cache out")
    if job.needs_head and not isinstance(samples.readout, Head):
        raise UsageError(f"{where}: holds logits, which leave nothing to tilt; add --search none")
    require_groups(samples.source, FOLDS)
    if len(samples.source) < FOLDS:
        raise DataError(
            f"{where}: {len(samples.source)} samples, fewer than the {FOLDS} folds of cross-validation; give more "
            "samples"
        )
    if held_out is None:
        # what a fold leaves must fill the bins too: the choice is made on that
        require_samples(samples.source, bins, FOLDS)
        return
    require_samples(samples.source, bins)
    require_samples(held_out.source, bins)
    if isinstance(samples.readout, Head) and not isinstance(held_out.readout, Head):
        raise UsageError(
            f"{held_out.source.describe()}: holds logits, and {where} does not; give both as logits, or both as data "
            "or features"
        )


def check_gated_classes(job: Job, opened: OpenModel, source: Source) -> None:
    """Refuse a limit on the recall of a class that none of the samples of the report is of, before a model has run."""
    if not job.gates.min_recall:
        return
    names = opened.class_names(source)
    if job.teacher is None or job.held_out is not None:  # else labels are drawn later, of any class
        labels = source.labels
        occurs = labels.any(axis=0) if opened.readout.multi_label else np.isin(np.arange(len(names)), labels)
        names = tuple(names[c] for c in np.flatnonzero(occurs))
    job.gates.require_classes(names)


def sample_notes(job: Job, opened: OpenModel, samples: Samples, held_out: Samples | None) -> tuple[str, ...]:
    """Return notes that the samples give rise to: on their groups, their source, and how images are prepared."""
    notes = (*group_notes((held_out or samples).source), *samples.source.notes)
    if samples.given:
        return notes
    stated = (samples.data or job.calib).preprocessing
    return (*notes, *preprocessing_warnings(samples.source, opened.inputs, stated))


# A sketch tells a small share only roughly: an estimate may be above it by this much by chance, or by fewer samples.
_SKETCH_MARGIN = 0.05
_MIN_SHARED_DIGESTS = 3

# One equal sample is no leak, however few there are.
_MIN_SHARED = 2

# Fewer clusters than two a fold show nothing of new ones.
_MIN_CLUSTERS = 2 * FOLDS

FEW_COPIES = 0.01
"""A share of copies that decides nothing: features that are all zero may be equal by chance."""

# Samples among which near copies are looked for: the search is quadratic. Of more, only equal ones are found.
_MOST_SEARCHED = SEEN

# Per cent of held-out samples that must be near copies of calibration samples to be refused: features may be alike for
# other reasons, and a note says of fewer what they are.
_MOST_NEAR = 50.0


@dataclass(frozen=True, eq=False)
class DigestedSamples:
    """A data set as far as leaks are concerned."""

    source: Source  # the samples
    form: str  # what their digests are of

    @classmethod
    def of(cls, source: Source, form: str = "") -> DigestedSamples:
        """Return a data set; `form` says what digests of features or logits are of."""
        return cls(source, form or source.sample_form)

    @functools.cached_property
    def digests(self) -> NDArray[np.uint64]:
        """Digests of the samples, (N,); read once, as a source may be slow."""
        return self.source.sample_digests()

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.source.describe()

    def overlap(self, other: DigestedSamples) -> Overlap | None:
        """Return how many of these samples are among others; None where their digests are of something else."""
        if self.form != other.form:
            return None
        return overlap_of(self.digests, other.digests)

    def in_sketch(self, entries: Mapping[str, Any], prefix: str) -> Overlap | None:
        """Return how many of these samples are in a sketch of a file (`digests_in_file`); None where nothing tells."""
        text = entries.get(f"{prefix}_sketch")
        if not isinstance(text, str) or entries.get(f"{prefix}_form") != self.form:
            return None
        return sketch_overlap(self.digests, read_sketch(text))


def check_leaks(
    model: Model, sets: Sequence[DigestedSamples], limits: Limits, *, cross_fits: bool = True, logits: str | None = None
) -> tuple[str, ...]:
    """Refuse held-out samples that were calibrated on; return what else there is to say about equal samples.

    `sets`: the calibration samples, and held-out ones if there are any. `cross_fits`: whether the
    command cross-fits without held-out samples; else it measures on the calibration samples. `logits`: the scores that
    are calibrated now: earlier runs for other heads do not count; None for all runs.
    """
    calib, *held_out = sets
    runs = [run for name, run in model.calibrations.items() if not (logits and name) or model.reads(name, logits)]
    notes = [note for samples in sets for run in runs for note in _refuse_earlier(model, run, samples, limits)]
    for judging in held_out:
        notes += _refuse_shared_groups(calib.source, judging.source, limits)
        notes += _refuse_shared(calib, judging, limits, cross_fits=cross_fits)
    for samples in sets:
        notes += _repeats(samples)
    return tuple(notes)


_ALLOWED = "If equal samples are normal here (a table of few distinct rows, say), --limit overlap=PERCENT allows them"


def _refuse_overlap(name: str, overlap: Overlap, limit: float, relation: str, refusal: str) -> list[str]:
    """Refuse more than so many per cent of a data set; of fewer, say how many, if there are any.

    `relation`: what these samples are. `refusal`: what follows, and what to do.
    """
    if not overlap.shared:
        return []
    sentence = f"{name}: {overlap.shared:,} of {overlap.n:,} samples ({100 * overlap.share:.2f} %) {relation}"
    if overlap.shared >= _MIN_SHARED and 100 * overlap.share > limit:
        raise DataError(f"{sentence}{refusal}")
    return [sentence]


def _refuse_shared_groups(calib: Source, held_out: Source, limits: Limits) -> list[str]:
    """Refuse held-out samples of groups that calibration samples are of; note a few."""
    groups, judging = (source.sample_info.get("group") for source in (calib, held_out))
    if groups is None or judging is None:
        return []
    shared = np.isin(judging, groups)
    if not shared.any():
        return []
    overlap = Overlap(int(np.count_nonzero(shared)), len(shared))
    relation = f"belong to groups of calibration samples, such as {str(judging[shared][0])!r}"
    refusal = (
        ", so they cannot judge the result; expected each group on one side only. Move them, or allow them with "
        "--limit overlap=PERCENT"
    )
    return _refuse_overlap(held_out.describe(), overlap, limits.overlap, relation, refusal)


def _refuse_shared(calib: DigestedSamples, held_out: DigestedSamples, limits: Limits, *, cross_fits: bool) -> list[str]:
    """Refuse held-out data that are calibration data; note a small share that is."""
    overlap = held_out.overlap(calib)
    if overlap is None:
        return [
            f"{held_out.name}: some may be calibration samples: these are recognised by {held_out.form}, calibration "
            f"samples by {calib.form}"
        ]
    advice = "remove them"
    if cross_fits:
        advice += ", or leave out --eval to have the result cross-fitted"
    refusal = f", so they cannot judge the result; {advice}. {_ALLOWED}"
    return _refuse_overlap(held_out.name, overlap, limits.overlap, "are calibration samples too", refusal)


def _refuse_earlier(model: Model, entries: Mapping[str, str], samples: DigestedSamples, limits: Limits) -> list[str]:
    """Refuse data that the model was recalibrated on before: it looks better on them than it is."""
    if "calibration_sketch" not in entries:
        return []
    overlap = samples.in_sketch(entries, "calibration")
    if overlap is None:
        return [
            f"{samples.name}: whether {model.name} was recalibrated on some of these samples is not known: it tells "
            f"them apart by {entries.get('calibration_form')}, and these by {samples.form}"
        ]
    if _is_certain(overlap, limits):
        raise DataError(
            f"{samples.name}: {model.name} was recalibrated on these data, so it looks better on them than "
            "it is; give other samples, or let calibrate --add (or --decide) do both on the original model"
        )
    if overlap.shared:
        share = f"about {100 * overlap.share:.0f} %"
        return [f"{samples.name}: {model.name} was recalibrated on some of these samples, {share}"]
    return []


def _is_certain(overlap: Overlap, limits: Limits) -> bool:
    """Whether samples are in a sketch by more than the limit and what a sketch tells by chance."""
    share = 100 * overlap.share
    return overlap.shared >= _MIN_SHARED_DIGESTS and share > limits.overlap + 100 * _SKETCH_MARGIN


def _repeats(samples: DigestedSamples) -> list[str]:
    """Say how many samples are copies of others, and how many of those have another label."""
    repeats = repeats_of(samples.digests, sample_labels(samples.source))
    notes = []
    if repeats.copies:
        notes.append(
            f"{samples.name}: {repeats.copies:,} samples ({100 * repeats.copies / repeats.n:.2f} %) are copies of "
            "others"
        )
    if repeats.contradicting:
        notes.append(
            f"{samples.name}: {repeats.contradicting:,} samples have an equal one with another label; correct them"
        )
    return notes


def digests_in_file(source: Source, prefix: str) -> dict[str, str]:
    """Return what a file says of samples that decided on something in it: a few digests, and what they are of."""
    return {f"{prefix}_sketch": sketch_of(source.sample_digests()), f"{prefix}_form": source.sample_form}


def decided_thresholds(model: Model, samples: DigestedSamples, limits: Limits) -> bool | None:
    """Return whether samples gave the thresholds of a guarded model; None where nothing tells."""
    return _among(model.provenance, "guard", samples, limits)


def decided_on(model: Model, samples: DigestedSamples, limits: Limits) -> tuple[str, ...]:
    """Say which decisions of a file came from some of these samples, so that they are no test of them."""
    notes = []
    if decided_thresholds(model, samples, limits):
        notes.append(
            f"{samples.name}: the thresholds of {model.name} come from some or all of these samples, which therefore "
            "cannot test its promises; give other samples"
        )
    shifted: Any = {}
    with contextlib.suppress(ValueError, RecursionError):  # not written by this tool
        shifted = json.loads(model.provenance.get("shift", "{}"))
    for prefix, flag in (("calib", "--calib"), ("target", "--target-data")):
        if isinstance(shifted, dict) and _among(shifted, prefix, samples, limits):
            notes.append(
                f"{samples.name}: {model.name} was shifted with some or all of these samples ({flag}), which therefore "
                "cannot test its class frequencies; give other samples"
            )
    return tuple(notes)


def _among(entries: Mapping[str, Any], prefix: str, samples: DigestedSamples, limits: Limits) -> bool | None:
    overlap = samples.in_sketch(entries, prefix)
    if overlap is None or overlap.n < _MIN_SHARED_DIGESTS:  # a full sketch tells only of digests below its largest
        return None
    return _is_certain(overlap, limits)


def check_target(
    model: Model,
    calib: DigestedSamples,
    target: DigestedSamples | None,
    held_out: DigestedSamples | None,
    limits: Limits,
) -> tuple[str, ...]:
    """Refuse samples that serve two purposes of `shift` that exclude each other; return what to say of small overlaps.

    `calib`: labelled samples, whose confusion matrix and frequencies are compared with the target. `target`: samples
    without labels whose class frequencies are estimated; None where these are given.
    """
    notes = []
    if target is not None:
        notes += _confusion_notes(model, calib, limits)
    for samples, relation, reason in (
        (target, "are labelled samples of --calib", ", so they say nothing about a target"),
        (held_out, "are samples of --calib too", "; --eval must come from the target"),
    ):
        overlap = None if samples is None else samples.overlap(calib)
        if samples is not None and overlap is not None:
            refusal = f"{reason}; remove them. {_ALLOWED}"
            _refuse_overlap(samples.name, overlap, limits.overlap, relation, refusal)
    if target is not None and _was_fitted_on(model, target, limits):
        raise DataError(f"{target.name}: {model.name} was recalibrated on these samples; give samples of the target")
    if target is not None and held_out is not None and overlap_of(held_out.digests, target.digests).shared:
        notes.append(f"{held_out.name}: some of these samples gave the class frequencies too, without their labels")
    return tuple(notes)


def _confusion_notes(model: Model, calib: DigestedSamples, limits: Limits) -> list[str]:
    """Look for samples that the model was recalibrated on: their confusion matrix looks better than it is."""
    if not _was_fitted_on(model, calib, limits):
        return []
    entries = model.provenance
    name = entries.get("map", "")
    is_simple = name == "none" or (name in MAPS and MAPS[name].few_parameters)
    if is_simple and entries.get("angle_degrees") in ("0", "0.0"):
        return [
            f"{calib.name}: {model.name} was recalibrated on these samples, by one number a class at most; other ones "
            "would be better"
        ]
    raise DataError(
        f"{calib.name}: {model.name} was recalibrated on these samples ({entries.get('method', '')}), and looks better "
        "on them than it is, so their confusion matrix is not that of new samples; give others, or calibrate with "
        "--map bias"
    )


def _was_fitted_on(model: Model, samples: DigestedSamples, limits: Limits) -> bool:
    return limits.overlap < 100 and bool(_among(model.provenance, "calibration", samples, limits))


def grouped(
    calib: Collected, held_out: Collected | None, digested: Sequence[DigestedSamples], limits: Limits
) -> tuple[Collected, Collected | None, tuple[str, ...]]:
    """Put equal samples and near copies into clusters, and say how many near copies there are.

    Gives both with the clusters of their samples, where some are copies; and notes.
    """
    sets = [*filter(None, (calib, held_out))]
    # predictions for parts of one sample are a cluster already
    if any(isinstance(collected.source, PositionSource) for collected in sets):
        return calib, held_out, ()
    near, across = _near_pairs(sets)
    notes = []
    if held_out is not None and len(across):
        notes += _near_leak(held_out, digested[-1], digested[0], across, limits)
    clustered = []
    for collected, digests, pairs in zip(sets, (samples.digests for samples in digested), near, strict=True):
        n = len(collected.table)
        equal = equal_pairs(digests)
        if "group" in collected.source.sample_info:
            notes += _across_groups(collected, pairs)
            clustered.append(collected)
            continue
        clusters = connected(n, np.concatenate([equal, pairs]))
        count = len(np.unique(clusters))
        name = collected.source.describe()
        similar = len(np.unique(connected(n, equal))) - count
        if similar:
            notes.append(
                f"{name}: {similar:,} samples ({100 * similar / n:.2f} %) are near copies of others by their features"
            )
        # nothing can be said of new samples by so few, and there may be few distinct rows by design
        if count < min(n, _MIN_CLUSTERS):
            notes.append(
                f"{name}: {count} distinct samples are too few to split into folds; each copy counts as a sample"
            )
        elif n - count > FEW_COPIES * n:
            notes.append(
                f"{name}: copies share a fold, and count as one in intervals; --group-column says which samples belong "
                "together"
            )
            collected = replace(collected, table=replace(collected.table, clusters=clusters))  # noqa: PLW2901
        clustered.append(collected)
    judging = None if held_out is None else clustered[1]
    return clustered[0], judging, tuple(notes)


def _across_groups(collected: Collected, pairs: NDArray[np.int64]) -> list[str]:
    """Say how many samples are near copies of samples of other groups: these are not independent then."""
    groups = collected.source.sample_info["group"]
    across = pairs[groups[pairs[:, 0]] != groups[pairs[:, 1]]]
    if not len(across):
        return []
    return [
        f"{collected.source.describe()}: {len(np.unique(across)):,} samples are near copies of samples of another "
        "group by their features; check the groups"
    ]


def _near_pairs(sets: Sequence[Collected]) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """Return pairs (P, 2) of near copies in each of one or two sets, and the rows of the second near the first."""
    features = [_searched(collected) for collected in sets]
    n = len(features[0])
    # digests are of files: the same pixels may be in two of them
    images = all(collected.source.recipe() is not None for collected in sets)
    if len(sets) == 2 and sum(map(len, features)) <= _MOST_SEARCHED and features[0].shape[1] == features[1].shape[1]:
        pairs = near_copies(np.concatenate(features), equal=images)
        groups = connected(n + len(features[1]), pairs)
        return [pairs[pairs[:, 1] < n], pairs[pairs[:, 0] >= n] - n], np.flatnonzero(groups[n:] < n)
    none = np.zeros((0, 2), np.int64)
    each_alone = [near_copies(values, equal=images) if len(values) <= _MOST_SEARCHED else none for values in features]
    return each_alone, none[:, 0]


def _searched(collected: Collected) -> NDArray[Any]:
    """Return the features in which near copies are looked for, (N, n): none where there is no linear head, n = 0."""
    features = collected.table.features
    width = None if isinstance(collected.samples.readout, Head) else 0
    return features.reshape(len(features), -1)[:, :width]


def _near_leak(
    held_out: Collected, judging: DigestedSamples, calib: DigestedSamples, rows: NDArray[np.int64], limits: Limits
) -> list[str]:
    """Refuse held-out samples of which many are near copies of calibration samples; note a few."""
    shared = len(rows)
    if judging.form == calib.form:  # equal ones have been counted
        shared = int(np.count_nonzero(~np.isin(judging.digests[rows], calib.digests)))
    overlap = Overlap(shared, len(held_out.table))
    relation = "are near copies of calibration samples by their features"
    refusal = (
        ", so they cannot judge the result; expected other videos, patients or scenes than those of the calibration "
        "samples. Leave out --eval to have the result cross-fitted, or allow them with --limit overlap=PERCENT"
    )
    notes = _refuse_overlap(judging.name, overlap, max(limits.overlap, _MOST_NEAR), relation, refusal)
    return [f"{note}, and may flatter the result" for note in notes]
