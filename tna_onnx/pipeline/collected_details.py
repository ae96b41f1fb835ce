"""The numbers behind the figures of a report (`collect_details`), from logits in chunks: nothing of size N x C is kept.

"Reported samples" are the held-out ones, else the calibration samples, which were fitted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.source import Source
from tna_onnx.data.sources.image_files import ImageSource
from tna_onnx.engine.logits import Logits
from tna_onnx.graph.load import load_model
from tna_onnx.graph.options import NO_MODEL_LIMITS
from tna_onnx.graph.readout import CLASSES_FIRST, CLASSES_LAST, ONE
from tna_onnx.maps.base import CalibrationMap, apply_map
from tna_onnx.numerics.averages import Ensemble
from tna_onnx.numerics.metrics import metric_value
from tna_onnx.numerics.ops import plain_labels, softmax
from tna_onnx.numerics.reliability import Bins, ClassCounts, bin_of
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline.comparing import Compared
from tna_onnx.pipeline.job import Collected, Task, class_names
from tna_onnx.pipeline.record import prove
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.strategy import Outcome
from tna_onnx.progress import Progress
from tna_onnx.results.details import (
    ClassBins,
    ClassResult,
    Confusion,
    Details,
    Port,
    RiskCoverage,
    RunInfo,
    Sample,
    Scored,
    Step,
)
from tna_onnx.search.candidates import Candidate, candidate_weights

# Classes that a row names beside the one that they are taken for.
_MAX_CONFUSED = 3

MappedLogits = tuple[Logits, CalibrationMap | None]
"""Logits, and the map behind them."""


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums over samples: the bins of each class, and how often each is predicted and confused."""

    bins: NDArray[Any]  # (3, C, B), see `class_sums`
    counts: ClassCounts

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(self.bins + other.bins, self.counts + other.counts)

    @classmethod
    def of(cls, logits: Logits, fitted: CalibrationMap | None, bins: int) -> _Sums:
        """Sum up all samples after a map."""

        def of_chunk(logits: Any, labels: Any, features: Any) -> _Sums:
            mapped = apply_map(fitted, logits, features)
            weights = getattr(labels, "weights", None)
            indices = plain_labels(labels)
            counts = ClassCounts.of(np.argmax(mapped, axis=1), indices, mapped.shape[1], weights)
            return cls(class_sums(mapped, indices, bins, weights), counts)

        sums: _Sums = logits.reduce(features=fitted is not None and fitted.needs_features)(of_chunk)
        return sums

    def result(self, c: int, names: tuple[str, ...], confused: list[tuple[int, int]]) -> ClassResult:
        """Return the predictions of class c; `confused` is what it is taken for."""
        named = tuple(Confusion(names[predicted], round(n)) for predicted, n in confused)
        return ClassResult(round(self.counts.predicted[c]), round(self.counts.right[c]), named)


def class_sums(
    logits: NDArray[Any], labels: NDArray[np.int64], bins: int, weights: NDArray[np.float64] | None = None
) -> NDArray[Any]:
    """Return for each class and bin (3, C, B) the probabilities that fell there, their sum, and labels of the class.

    `logits`: (N, C); `labels`: (N,); `weights`: (N,), which stand for numbers of samples.
    """
    p = softmax(logits.astype(np.float64))
    shape = (logits.shape[1], bins)
    # class and bin in one index: one count for all classes
    index = np.arange(shape[0]) * bins + bin_of(p, bins)
    of_label = index[np.arange(len(labels)), labels]
    if weights is None:
        sums = (np.bincount(index.ravel()), np.bincount(index.ravel(), p.ravel()), np.bincount(of_label))
    else:
        each = np.repeat(weights, shape[0])
        sums = (
            np.bincount(index.ravel(), each),
            np.bincount(index.ravel(), p.ravel() * each),
            np.bincount(of_label, weights),
        )
    # bincount ends at the last bin that holds something
    return np.stack([np.pad(values, (0, shape[0] * bins - len(values))).reshape(shape) for values in sums])


def class_bins(names: tuple[str, ...], before: MappedLogits, after: MappedLogits, bins: int) -> tuple[ClassBins, ...]:
    """Return the diagrams of all classes before and after."""
    old = _Sums.of(*before, bins)
    new = _Sums.of(*after, bins)
    confused_old = old.counts.confused(_MAX_CONFUSED)
    confused_new = new.counts.confused(_MAX_CONFUSED)
    samples = old.bins[2].sum(axis=1)
    return tuple(
        ClassBins(
            name,
            round(float(samples[c])),
            Bins.of_sums(*old.bins[:, c]),
            Bins.of_sums(*new.bins[:, c]),
            old.result(c, names, confused_old.get(c, [])),
            new.result(c, names, confused_new.get(c, [])),
        )
        for c, name in enumerate(names)
    )


def label_bins(names: tuple[str, ...], before: SampleScores, after: SampleScores, bins: int) -> tuple[ClassBins, ...]:
    """Return the diagrams of all labels of samples that have several."""
    sides = zip(before.by_label(), after.by_label(), _results(before), _results(after), strict=True)
    return tuple(
        ClassBins(
            name,
            round(float(one.weigh(one.hit).sum())),
            Bins.of(one.confidence, one.hit, bins, one.weights),
            Bins.of(two.confidence, two.hit, bins, two.weights),
            first,
            second,
        )
        for name, (one, two, first, second) in zip(names, sides, strict=True)
    )


def _results(scores: SampleScores) -> list[ClassResult]:
    """Return how often each label is predicted, and holds where it is; labels are not taken for one another."""
    assert scores.predicted is not None  # noqa: S101 - of several labels
    predicted = scores.weigh(scores.predicted).sum(axis=0).tolist()
    right = scores.weigh(scores.predicted & scores.hit).sum(axis=0).tolist()
    return [ClassResult(round(p), round(r), ()) for p, r in zip(predicted, right, strict=True)]


@dataclass(frozen=True)
class Started:
    """The moment in which a run began; `monotonic` for durations, in seconds."""

    date: datetime = field(default_factory=lambda: datetime.now(UTC))
    monotonic: float = field(default_factory=time.monotonic)


_AXES: dict[int, Literal["", "first", "last"]] = {ONE: "", CLASSES_FIRST: "first", CLASSES_LAST: "last"}


def made_by(task: Task, started: Started) -> RunInfo:
    """Describe when a run began, how long it took, and its data and inputs, at its end."""
    return RunInfo(
        # a page is read by people: fractions of a second say nothing
        date=started.date.isoformat(timespec="seconds"),
        seconds=time.monotonic() - started.monotonic,
        calibration_sha256=task.source.digest(),
        held_out_sha256="" if task.held_out is None else task.held_out.source.digest(),
        inputs=tuple(Port(spec.name, spec.shape, spec.dtype.name) for spec in task.opened.inputs),
        output=task.opened.output.name,
        output_kind=task.opened.output.kind,
        mapped=task.opened.output.mapped,
        several=_AXES[task.opened.output.class_axis],
    )


# Samples of either kind.
_WORST_MAX_SAMPLES = 6


def worst_samples(
    collected: Collected,
    names: tuple[str, ...],
    before: SampleScores,
    after: SampleScores,
    logits: Logits,
    fitted: CalibrationMap | None,
) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    """Return wrong predictions with the highest confidence, and right ones with the lowest."""
    over, under = worst_rows(after)
    rows = np.unique(np.r_[over, under])
    predicted = _predicted(logits, fitted, rows)

    def sample(row: int) -> Sample:
        return Sample(
            row=row,
            file=_file(collected.source, row),
            label=names[int(collected.table.labels[row])],
            predicted=names[predicted[row]],
            before=float(before.confidence[row]),
            after=float(after.confidence[row]),
        )

    return tuple(map(sample, over.tolist())), tuple(map(sample, under.tolist()))


def worst_rows(scores: SampleScores) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of wrong predictions by falling confidence, and of right ones by rising; some of each."""
    wrong = np.flatnonzero(~scores.hit)
    right = np.flatnonzero(scores.hit)
    # stable: samples of one confidence keep their order, so a run shows the same ones again
    over = wrong[np.argsort(-scores.confidence[wrong], kind="stable")][:_WORST_MAX_SAMPLES]
    under = right[np.argsort(scores.confidence[right], kind="stable")][:_WORST_MAX_SAMPLES]
    return over, under


def _predicted(logits: Logits, fitted: CalibrationMap | None, rows: NDArray[Any]) -> dict[int, int]:
    """Row -> class that the result predicts."""
    mask = np.zeros(len(logits), bool)
    mask[rows] = True
    chunks = logits.chunks(mask, features=fitted is not None and fitted.needs_features)
    classes = [np.argmax(apply_map(fitted, values, features), axis=1) for values, _, features in chunks]
    # rows ascend, as the chunks do
    return dict(zip(rows.tolist(), np.concatenate(classes).tolist(), strict=True))


def _file(source: Source, row: int) -> str:
    """Last two parts of the path of a sample's file; empty if it has none."""
    if not isinstance(source, ImageSource):
        return ""
    return "/".join(PurePath(source.files.name(int(source.rows[row]))).parts[-2:])


def collect_details(
    task: Task, outcome: Outcome, compared: Compared, written: Path, started: Started, progress: Progress
) -> Details:
    """Compute the numbers behind all figures of a report."""
    settings = task.settings
    reported = task.reported
    original = task.logits(task.weight, on=reported)
    logits = outcome.logits
    if task.held_out is not None:
        logits = task.logits(outcome.weight, on=reported)
    before = original.scores()
    after = logits.mapped_scores(outcome.fitted)
    names = class_names(task, reported)
    # these two are of one predicted class a sample
    over: tuple[Sample, ...] = ()
    under: tuple[Sample, ...] = ()
    if task.readout.multi_label:
        classes = label_bins(names, before, after, settings.bins)
    else:
        over, under = worst_samples(reported, names, before, after, logits, outcome.fitted)
        classes = class_bins(names, (original.given, None), (logits, outcome.fitted), settings.bins)
    return Details(
        data=reported.source.describe(),
        held_out=task.held_out is not None,
        preprocessing=reported.source.recipe(),
        device=f"cuda:{task.device.index}" if task.device.kind == "cuda" else task.device.kind,
        before=_diagram(compared.before, settings),
        after=_diagram(compared.after, settings),
        risk_before=RiskCoverage.of(compared.before.decisions()),
        risk_after=RiskCoverage.of(compared.after.decisions()),
        steps=_steps(task, outcome, progress),
        chosen=next(k for k, c in enumerate(outcome.candidates) if c is outcome.chosen),
        with_map=outcome.chosen.fitted is not None,
        classes=classes,
        overconfident=over,
        underconfident=under,
        # of the file as it was written, not of what was meant
        changes=prove(task.model, load_model(written, NO_MODEL_LIMITS)).differences,
        made=made_by(task, started),
    )


def _diagram(scores: SampleScores, settings: Settings) -> Bins:
    together = scores.pooled()
    return Bins.of(together.confidence, together.hit, settings.bins, together.weights)


def _scored(scores: SampleScores, settings: Settings) -> Scored:
    return Scored(metric_value(scores, settings.objective, settings.bins), scores.mean("hit"))


def _steps(task: Task, outcome: Outcome, progress: Progress) -> tuple[Step, ...]:
    held_out: dict[int, Scored] = {}
    if task.held_out is not None:
        held_out.update(_on_held_out(task, outcome.candidates, progress))
    return tuple(
        Step(c.angle, c.reached, c.ensemble_size, _scored(c.scores, task.settings), held_out.get(k))
        for k, c in enumerate(outcome.candidates)
    )


def _on_held_out(task: Task, candidates: Sequence[Candidate], progress: Progress) -> Iterator[tuple[int, Scored]]:
    """Yield (index, scores) of the candidates, those of one number of members together."""
    weights: Iterable[tuple[int, NDArray[Any] | None]] = ((k, None) for k in range(len(candidates)))
    if task.weight is not None:
        weights = candidate_weights(Ensemble(task.weight, task.settings.for_search.draws), candidates)
    for done, (k, weight) in enumerate(weights, start=1):
        logits = task.logits(weight, on=task.reported)
        fitted = candidates[k].fitted
        scores = logits.mapped_scores(fitted) if fitted else logits.scores()  # the second keeps no logits
        yield k, _scored(scores, task.settings)
        progress("search curve", done, len(candidates))
