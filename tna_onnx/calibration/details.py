"""Compute the details of a report from scores and features.

Logits are read in chunks and nothing of size N x C is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.calibration.strategy import Outcome
from tna_onnx.calibration.task import Task
from tna_onnx.calibration.thumbnail import thumbnails
from tna_onnx.data import Source
from tna_onnx.data.sources.folder import FolderImages
from tna_onnx.data.sources.images import ImageSource
from tna_onnx.engine.logits import Logits
from tna_onnx.extraction.collect import collect_features
from tna_onnx.graph.difference import differences
from tna_onnx.graph.load import load_model
from tna_onnx.graph.readout import Head
from tna_onnx.maps.base import CalibrationMap, apply_map
from tna_onnx.numerics.metrics import objective_value
from tna_onnx.numerics.ops import softmax
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.progress import Progress
from tna_onnx.results.details import (
    Angles,
    Averaged,
    Bins,
    ClassBins,
    Details,
    RiskCoverage,
    Sample,
    Scored,
    Step,
    bin_of,
)
from tna_onnx.search.candidates import Candidate, candidate_weight, candidate_weights
from tna_onnx.search.settings import SearchSettings

__all__ = ["ClassSums", "angle_counts", "class_sums", "collect_details", "worst_rows"]

# Angles between features and class vectors: bins of 2 degrees, and the most samples that are looked at.
_DEGREES = 2
_ANGLE_SAMPLES = 5000
# Worst samples of either kind.
_WORST = 6


def collect_details(
    task: Task,
    settings: SearchSettings,
    found: Outcome,
    compared: tuple[SampleScores, SampleScores],
    written: Path,
    show: Progress,
) -> Details:
    """Compute what the report shows; held-out data are run through the network once more, for their features.

    Args:
        task: what was opened.
        settings: of the search.
        found: what was chosen.
        compared: scores before and after on the same samples, as reported.
        written: the new file.
        show: called with (stage, done, total).

    Raises:
        DataError, UsageError: see `tna_onnx.extraction.collect.collect_features`.
    """
    held_out = _held_out(task, show)
    shown = held_out or task
    original = task.head.weight if task.head else None
    logits_before = shown.logits(original)
    logits_after = shown.logits(found.weight) if held_out else found.logits
    after = logits_after.mapped_scores(found.fitted)
    names = _class_names(shown)
    over, under = _worst(shown, names, logits_before.scores(), after, logits_after, found.fitted)
    angles, angle_samples = _angles(shown, settings, found)
    changes = differences(task.model, load_model(written), task.readout)
    return Details(
        data=shown.source.describe(),
        held_out=held_out is not None,
        preprocessing=shown.source.recipe(),
        device=task.device.kind + (f":{task.device.index}" if task.device.kind == "cuda" else ""),
        before=Bins.of(compared[0].confidence, compared[0].hit, settings.bins),
        after=Bins.of(compared[1].confidence, compared[1].hit, settings.bins),
        risk_before=RiskCoverage.of(compared[0]),
        risk_after=RiskCoverage.of(compared[1]),
        steps=_steps(held_out, settings, found, show),
        chosen=next(k for k, c in enumerate(found.candidates) if c is found.chosen),
        averages=_averages(shown, settings, found, logits_after),
        with_map=found.chosen.fitted is not None,
        classes=_classes(names, (logits_before, None), (logits_after, found.fitted), settings.bins),
        angles=angles,
        angle_samples=angle_samples,
        overconfident=over,
        underconfident=under,
        changes=changes,
    )


def _held_out(task: Task, show: Progress) -> Task | None:
    """Return the task with the held-out samples in place of the others; None if they do not reach the head."""
    entered = task.held_out
    if entered is None or isinstance(entered.readout, Head) != (task.head is not None):
        return None

    def progress(_: str, done: int, total: int) -> None:
        show("report", done, total)

    store = collect_features(
        task.model, task.readout, entered.source, task.device, task.batch_size, progress, None, frozenset(entered.given)
    )
    return replace(task, samples=entered, held_out=None, store=store)


def _steps(held_out: Task | None, settings: SearchSettings, found: Outcome, show: Progress) -> tuple[Step, ...]:
    others = {} if held_out is None else dict(_on_held_out(held_out, settings, found, show))
    return tuple(
        Step(c.angle, c.reached, c.ensemble_size, _scored(c.scores, settings), others.get(k))
        for k, c in enumerate(found.candidates)
    )


def _on_held_out(
    held_out: Task, settings: SearchSettings, found: Outcome, show: Progress
) -> Iterator[tuple[int, Scored]]:
    """Yield (index, scores) of the candidates, those of one number of members together."""
    weights: Iterable[tuple[int, NDArray[Any] | None]] = ((k, None) for k in range(len(found.candidates)))
    if held_out.head is not None:
        weights = candidate_weights(held_out.head.weight, found.candidates, settings)
    for done, (k, weight) in enumerate(weights, start=1):
        logits, fitted = held_out.logits(weight), found.candidates[k].fitted
        scores = logits.mapped_scores(fitted) if fitted else logits.scores()  # keeps no logits
        yield k, _scored(scores, settings)
        show("search curve", done, len(found.candidates))


def _averages(shown: Task, settings: SearchSettings, found: Outcome, logits: Logits) -> tuple[Averaged, ...]:
    """Half of the chosen one's members, half of those, and so on; together about as much work as the chosen one."""
    chosen = found.chosen
    if chosen.angle == 0 or chosen.ensemble_size < 2 or shown.head is None:
        return ()
    averages = [Averaged(chosen.ensemble_size, _accuracy(logits))]
    while averages[-1].members > 1:
        fewer = Candidate(chosen.angle, averages[-1].members // 2, 0.0, chosen.scores)
        weight = candidate_weight(shown.head.weight, fewer, settings)
        averages.append(Averaged(fewer.ensemble_size, _accuracy(shown.logits(weight))))
    return tuple(reversed(averages))


def _accuracy(logits: Logits) -> float:
    return float(np.mean(logits.scores().hit))


def _scored(scores: SampleScores, settings: SearchSettings) -> Scored:
    return Scored(
        objective_value(scores, settings.objective, settings.bins),
        float(np.mean(scores.hit)),
        Bins.of(scores.confidence, scores.hit, settings.bins),
    )


@dataclass(frozen=True, eq=False)
class ClassSums:
    """Per class and bin, (C, B): probabilities that fell there, their sum, and how often the class was the label."""

    count: NDArray[Any]
    probability: NDArray[Any]
    label: NDArray[Any]

    def __add__(self, other: ClassSums) -> ClassSums:
        return ClassSums(self.count + other.count, self.probability + other.probability, self.label + other.label)

    def bins(self, c: int) -> Bins:
        return Bins.of_sums(self.count[c], self.probability[c], self.label[c])


def class_sums(logits: NDArray[Any], labels: NDArray[np.int64], bins: int) -> ClassSums:
    """Sum up (N, C) logits and (N,) labels per class and bin of its probability."""
    p = softmax(logits.astype(np.float64))
    shape = (logits.shape[1], bins)
    index = np.arange(shape[0]) * bins + bin_of(p, bins)
    own = index[np.arange(len(labels)), labels]
    found = (np.bincount(index.ravel()), np.bincount(index.ravel(), p.ravel()), np.bincount(own))
    return ClassSums(*(np.pad(sums, (0, shape[0] * bins - len(sums))).reshape(shape) for sums in found))


def _classes(
    names: tuple[str, ...],
    before: tuple[Logits, CalibrationMap | None],
    after: tuple[Logits, CalibrationMap | None],
    bins: int,
) -> tuple[ClassBins, ...]:
    sums = []
    for logits, fitted in (before, after):

        def of(values: Any, labels: Any, features: Any, fitted: CalibrationMap | None = fitted) -> ClassSums:
            return class_sums(apply_map(fitted, values, features), labels, bins)

        sums.append(logits.reduce(features=_reads_features(fitted))(of))
    samples = sums[0].label.sum(axis=1)
    return tuple(ClassBins(name, int(samples[c]), *(s.bins(c) for s in sums)) for c, name in enumerate(names))


def _angles(task: Task, settings: SearchSettings, found: Outcome) -> tuple[tuple[Angles, ...], int]:
    """Angles under the original weight, one tilted one and the average; (nothing, 0) without a plain linear head."""
    head = task.head
    if head is None or task.probed.tail is not None:
        return (), 0
    weights = {"original": head.weight}
    if found.chosen.angle:
        one = Candidate(found.chosen.angle, 1, 0.0, found.chosen.scores)
        weights["tilted"] = candidate_weight(head.weight, one, settings)
        if found.chosen.ensemble_size != 1 and found.weight is not None:
            weights["averaged"] = found.weight
    rows = np.zeros(len(task.store), bool)
    rows[:: -(-len(rows) // _ANGLE_SAMPLES)] = True
    shown = []
    for name, weight in weights.items():
        totals = np.zeros((2, 180 // _DEGREES))
        for _, _, features in task.logits(head.weight).chunks(rows, features=True):
            assert features is not None  # noqa: S101 - asked for
            totals += angle_counts(features, weight, head.bias)
        predicted, others = totals / np.maximum(totals.sum(axis=1, keepdims=True), 1)
        length = float(np.mean(np.linalg.norm(weight, axis=1)) / np.mean(np.linalg.norm(head.weight, axis=1)))
        shown.append(Angles(name, tuple(predicted.tolist()), tuple(others.tolist()), length))
    return tuple(shown), int(rows.sum())


def angle_counts(features: NDArray[Any], weight: NDArray[Any], bias: NDArray[Any]) -> NDArray[np.float64]:
    """Count angles between features (B, n) and class vectors (C, n) in 90 bins of 2 degrees.

    Returns:
        (2, 90): with the class that features @ weight.T + bias predicts, and with all others. Zero vectors have no
        direction and are left out.
    """
    z, w = np.asarray(features, np.float64), np.asarray(weight, np.float64)
    products = z @ w.T
    lengths = np.linalg.norm(z, axis=1)[:, None] * np.linalg.norm(w, axis=1)
    own = np.zeros(products.shape, bool)
    own[np.arange(len(z)), np.argmax(products + bias, axis=1)] = True
    cosine = np.clip(np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0), -1, 1)
    index = np.minimum(np.degrees(np.arccos(cosine)) // _DEGREES, 180 // _DEGREES - 1).astype(int)
    counts = [np.bincount(index[mask & (lengths > 0)], minlength=180 // _DEGREES) for mask in (own, ~own)]
    return np.array(counts, np.float64)


def _worst(
    task: Task,
    names: tuple[str, ...],
    before: SampleScores,
    after: SampleScores,
    logits: Logits,
    fitted: CalibrationMap | None,
) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    """Wrong predictions with the highest confidence, right ones with the lowest."""
    over, under = worst_rows(after)
    rows = np.unique(np.r_[over, under])
    mask = np.zeros(len(after), bool)
    mask[rows] = True
    chunks = logits.chunks(mask, features=_reads_features(fitted))
    classes = np.concatenate([np.argmax(apply_map(fitted, values, features), axis=1) for values, _, features in chunks])
    predicted = dict(zip(rows.tolist(), classes.tolist(), strict=True))
    images = {} if task.samples.given else thumbnails(task.source, rows)

    def sample(row: int) -> Sample:
        label = names[int(task.source.labels[row])]
        confidences = float(before.confidence[row]), float(after.confidence[row])
        return Sample(row, _file(task.source, row), label, names[predicted[row]], *confidences, images.get(row, ""))

    return tuple(map(sample, over.tolist())), tuple(map(sample, under.tolist()))


def worst_rows(scores: SampleScores, most: int = _WORST) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of wrong predictions by falling confidence, and of right ones by rising; at most so many of each."""
    wrong, right = np.flatnonzero(~scores.hit), np.flatnonzero(scores.hit)
    over = wrong[np.argsort(-scores.confidence[wrong], kind="stable")][:most]
    under = right[np.argsort(scores.confidence[right], kind="stable")][:most]
    return over, under


def _class_names(task: Task) -> tuple[str, ...]:
    """Names of the classes as given; else of the folders, where each holds the images of one class; else numbers."""
    source, names = task.source, list(map(str, range(task.readout.n_classes)))
    if task.class_names is not None:
        return task.class_names
    if isinstance(source, ImageSource) and isinstance(source.files, FolderImages):
        paths = (source.files.names[row].partition("/") for row in source.rows.tolist())
        pairs = {(label, path[0] if path[1] else "") for label, path in zip(source.labels.tolist(), paths, strict=True)}
        folder_of = dict(pairs)
        if len(pairs) == len(folder_of) == len(set(folder_of.values())) and "" not in folder_of.values():
            names = [folder_of.get(k, name) for k, name in enumerate(names)]
    return tuple(names)


def _file(source: Source, row: int) -> str:
    """Last two parts of the path of a sample's file; empty if it has none."""
    if not isinstance(source, ImageSource):
        return ""
    return "/".join(PurePath(source.files.name(int(source.rows[row]))).parts[-2:])


def _reads_features(fitted: CalibrationMap | None) -> bool:
    return fitted is not None and fitted.needs_features
