"""The numbers behind the figures of a report, from scores and features; plain tuples, so that they go into JSON too.

With `bins` B, bin j holds j/B < p <= (j+1)/B, as in `numerics.metrics`; bin 0 holds 0 as well. "Shown data" are the
held-out samples if there are any, else the calibration samples, which were fitted. Logits are read in chunks and
nothing of size N x C is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Source
from tna_onnx.data.images import ImageSource
from tna_onnx.engine.logits import Logits
from tna_onnx.extraction import Progress, collect_features
from tna_onnx.graph.difference import Difference, differences
from tna_onnx.graph.load import load_model
from tna_onnx.graph.readout import Head
from tna_onnx.maps import CalibrationMap, apply_map
from tna_onnx.numerics.metrics import objective_value
from tna_onnx.numerics.ops import softmax
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.report.thumbnail import thumbnails
from tna_onnx.search import Candidate, SearchSettings, candidate_weight
from tna_onnx.strategy import Outcome
from tna_onnx.task import Task

__all__ = [
    "Angles",
    "Bins",
    "ClassBins",
    "ClassSums",
    "Details",
    "RiskCoverage",
    "Sample",
    "Scored",
    "Step",
    "angle_counts",
    "class_sums",
    "collect_details",
    "worst_rows",
]

# Angles between features and class vectors: bins of 2 degrees, and the most samples that are looked at.
_DEGREES = 2
_ANGLE_SAMPLES = 5000
# Points of a risk-coverage curve, worst samples of either kind.
_POINTS = 200
_WORST = 6


@dataclass(frozen=True)
class Bins:
    """A reliability diagram: per bin the samples, their mean confidence and the share that came true (0 if empty)."""

    count: tuple[int, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]

    @classmethod
    def of(cls, confidence: NDArray[Any], hit: NDArray[np.bool_], bins: int) -> Bins:
        """Bin (N,) confidences and whether each came true."""
        index = _bin_of(confidence, bins)
        sums = [np.bincount(index, values, bins) for values in (confidence.astype(np.float64), hit)]
        return cls.of_sums(np.bincount(index, minlength=bins), *sums)

    @classmethod
    def of_sums(cls, count: NDArray[Any], confidence: NDArray[Any], hits: NDArray[Any]) -> Bins:
        """Divide (B,) sums by their counts."""
        size = np.maximum(count, 1)
        return cls(
            tuple(count.astype(int).tolist()), tuple((confidence / size).tolist()), tuple((hits / size).tolist())
        )

    @property
    def ece(self) -> float:
        """Sum over bins of count / N * |accuracy - confidence|."""
        gap = sum(n * abs(a - c) for n, a, c in zip(self.count, self.accuracy, self.confidence, strict=True))
        return gap / max(1, sum(self.count))


@dataclass(frozen=True)
class Scored:
    """A candidate on some data: the objective, accuracy as a fraction, its diagram."""

    objective: float
    accuracy: float
    bins: Bins


@dataclass(frozen=True)
class Step:
    """A candidate of the search: angles in degrees, members, and how it did; `held_out` is None without such data."""

    angle: float
    reached: float
    members: int
    calibration: Scored
    held_out: Scored | None

    @property
    def shown(self) -> Scored:
        """On the shown data."""
        return self.held_out or self.calibration


@dataclass(frozen=True)
class ClassBins:
    """One class: its samples, and the probabilities that all samples give it against how often it is their label."""

    name: str
    samples: int
    before: Bins
    after: Bins


@dataclass(frozen=True)
class Angles:
    """Angles between features and class vectors of one weight, as shares of bins of 2 degrees from 0 to 180.

    Attributes:
        weight: `original`, `tilted` (one member) or `averaged`.
        predicted: with the vector of the predicted class.
        others: with those of all other classes.
        length: mean length of the class vectors, in lengths of the original's.
    """

    weight: str
    predicted: tuple[float, ...]
    others: tuple[float, ...]
    length: float


@dataclass(frozen=True)
class RiskCoverage:
    """Error rate among the share `coverage` of samples with the highest confidence; `area` under the curve."""

    coverage: tuple[float, ...]
    risk: tuple[float, ...]
    area: float

    @classmethod
    def of(cls, scores: SampleScores) -> RiskCoverage:
        """Take every distinct confidence as a threshold; up to 200 points of the curve are kept."""
        order = np.argsort(-scores.confidence, kind="stable")
        confidence, wrong = scores.confidence[order], ~scores.hit[order]
        ends = np.flatnonzero(np.r_[confidence[1:] != confidence[:-1], True]) + 1
        coverage, risk = ends / len(scores), np.cumsum(wrong)[ends - 1] / ends
        area = float(np.sum(np.diff(coverage, prepend=0.0) * risk))
        kept = np.unique(np.linspace(0, len(ends) - 1, min(_POINTS, len(ends))).astype(int))
        return cls(tuple(coverage[kept].tolist()), tuple(risk[kept].tolist()), area)


@dataclass(frozen=True)
class Sample:
    """One sample: its row and file, class names, confidence before and after, a PNG as a data URI or nothing."""

    row: int
    file: str
    label: str
    predicted: str
    before: float
    after: float
    thumbnail: str


@dataclass(frozen=True)
class Details:
    """What the figures show.

    Attributes:
        data: the shown data, in one line.
        held_out: whether they are held out.
        preprocessing: resolved recipe of their images, None for arrays.
        device: device that was asked for.
        before: top-label diagram of the input, on the samples of `Report.comparison`.
        after: the same of the result.
        risk_before: risk-coverage curve on these.
        risk_after: the same of the result.
        steps: candidates in the order of the search.
        chosen: index of the chosen one.
        with_map: whether candidates were scored after a map of their own (complete search).
        classes: diagrams per class, on the shown data.
        angles: of features and class vectors on the shown data; empty where there is no plain head.
        angle_samples: samples that they come from.
        overconfident: wrong predictions with the highest confidence after, on the shown data.
        underconfident: right predictions with the lowest.
        changes: what differs between the two files.
    """

    data: str
    held_out: bool
    preprocessing: dict[str, object] | None
    device: str
    before: Bins
    after: Bins
    risk_before: RiskCoverage
    risk_after: RiskCoverage
    steps: tuple[Step, ...]
    chosen: int
    with_map: bool
    classes: tuple[ClassBins, ...]
    angles: tuple[Angles, ...]
    angle_samples: int
    overconfident: tuple[Sample, ...]
    underconfident: tuple[Sample, ...]
    changes: tuple[Difference, ...]


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
        DataError, UsageError: see `tna_onnx.extraction.collect_features`.
    """
    held_out = _held_out(task, show)
    shown = held_out or task
    original = task.head.weight if task.head else None
    logits_before = shown.logits(original)
    logits_after = shown.logits(found.weight) if held_out else found.logits
    after = logits_after.mapped_scores(found.fitted)
    over, under = _worst(shown, logits_before.scores(), after, logits_after, found.fitted)
    angles, angle_samples = _angles(shown, settings, found)
    names = shown.class_names or tuple(map(str, range(shown.readout.n_classes)))
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
        steps=_steps(task, held_out, settings, found, show),
        chosen=next(k for k, c in enumerate(found.candidates) if c is found.chosen),
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


def _steps(
    task: Task, held_out: Task | None, settings: SearchSettings, found: Outcome, show: Progress
) -> tuple[Step, ...]:
    steps = []
    for k, candidate in enumerate(found.candidates):
        other = None
        if held_out is not None:
            weight = None if task.head is None else candidate_weight(task.head.weight, candidate, settings)
            logits = held_out.logits(weight)
            scores = logits.mapped_scores(candidate.fitted) if candidate.fitted else logits.scores()  # keeps no logits
            other = _scored(scores, settings)
        mine = _scored(candidate.scores, settings)
        steps.append(Step(candidate.angle, candidate.reached, candidate.ensemble_size, mine, other))
        show("search curve", k + 1, len(found.candidates))
    return tuple(steps)


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
    index = np.arange(shape[0]) * bins + _bin_of(p, bins)
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
        if found.chosen.ensemble_size != 1:
            weights["averaged"] = candidate_weight(head.weight, found.chosen, settings)
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
    task: Task, before: SampleScores, after: SampleScores, logits: Logits, fitted: CalibrationMap | None
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
    name = _namer(task.class_names)

    def sample(row: int) -> Sample:
        label = name(int(task.source.labels[row]))
        confidences = float(before.confidence[row]), float(after.confidence[row])
        return Sample(row, _file(task.source, row), label, name(predicted[row]), *confidences, images.get(row, ""))

    return tuple(map(sample, over.tolist())), tuple(map(sample, under.tolist()))


def worst_rows(scores: SampleScores, most: int = _WORST) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of wrong predictions by falling confidence, and of right ones by rising; at most so many of each."""
    wrong, right = np.flatnonzero(~scores.hit), np.flatnonzero(scores.hit)
    over = wrong[np.argsort(-scores.confidence[wrong], kind="stable")][:most]
    under = right[np.argsort(scores.confidence[right], kind="stable")][:most]
    return over, under


def _namer(names: tuple[str, ...] | None) -> Callable[[int], str]:
    return lambda k: names[k] if names else str(k)


def _file(source: Source, row: int) -> str:
    """Last two parts of the path of a sample's file; empty if it has none."""
    if not isinstance(source, ImageSource):
        return ""
    return "/".join(PurePath(source.files.name(int(source.rows[row]))).parts[-2:])


def _reads_features(fitted: CalibrationMap | None) -> bool:
    return fitted is not None and fitted.needs_features


def _bin_of(values: NDArray[Any], bins: int) -> NDArray[np.intp]:
    return np.searchsorted(np.arange(1, bins) / bins, values.astype(np.float64), side="left")
