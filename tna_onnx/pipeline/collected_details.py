"""The numbers behind the figures of a report (`collect_details`), from logits in chunks: nothing of size N x C is kept.

"Reported samples" are the held-out ones, else the calibration samples, which were fitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.sources.image_files import ImageSource
from tna_onnx.engine.logits import Logits
from tna_onnx.graph.readout import CLASSES_FIRST, CLASSES_LAST, ONE
from tna_onnx.maps.base import CalibrationMap, apply_map
from tna_onnx.numerics.averages import Ensemble
from tna_onnx.numerics.metrics import metric_value
from tna_onnx.numerics.ops import plain_labels, softmax
from tna_onnx.numerics.reliability import Bins, ClassCounts, bin_of
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline.checking import require_intact
from tna_onnx.pipeline.comparing import Compared
from tna_onnx.pipeline.job import Collected, Task
from tna_onnx.pipeline.strategy import Outcome
from tna_onnx.progress import Progress
from tna_onnx.results import details
from tna_onnx.results.report import Report
from tna_onnx.search.candidates import candidate_weights

# Classes that a row names beside the one that they are taken for.
_MAX_CONFUSED = 3
# Samples of either kind.
_WORST_MAX_SAMPLES = 6

_AXES: dict[int, Literal["", "first", "last"]] = {ONE: "", CLASSES_FIRST: "first", CLASSES_LAST: "last"}

# Of one class: its samples, its diagram, and how it is predicted.
_ClassSide: TypeAlias = tuple[float, Bins, details.ClassResult]


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums over samples: the bins of each class, and how often each is predicted and confused."""

    bins: NDArray[Any]  # (3, C, B), see `class_sums`
    counts: ClassCounts

    def __add__(self, more: _Sums) -> _Sums:
        return _Sums(self.bins + more.bins, self.counts + more.counts)


def _of_classes(logits: Logits, fitted: CalibrationMap | None, names: Sequence[str], bins: int) -> Iterator[_ClassSide]:
    """Yield the side of each class after a map."""

    def of_chunk(logits: Any, labels: Any, features: Any) -> _Sums:
        mapped = apply_map(fitted, logits, features)
        weights = getattr(labels, "weights", None)
        indices = plain_labels(labels)
        counts = ClassCounts.of(np.argmax(mapped, axis=1), indices, mapped.shape[1], weights)
        return _Sums(class_sums(mapped, indices, bins, weights), counts)

    sums: _Sums = logits.reduce(features=fitted is not None and fitted.needs_features)(of_chunk)
    counts = sums.counts
    confused = counts.confused(_MAX_CONFUSED)
    for c in range(len(names)):
        pairs = tuple(details.Confusion(names[predicted], round(n)) for predicted, n in confused.get(c, []))
        result = details.ClassResult(round(counts.predicted[c]), round(counts.right[c]), pairs)
        yield float(sums.bins[2, c].sum()), Bins.of_sums(*sums.bins[:, c]), result


def _of_labels(scores: SampleScores, bins: int) -> Iterator[_ClassSide]:
    """Yield the side of each label of samples that have several; labels are not taken for one another."""
    assert scores.predicted is not None  # noqa: S101 - of several labels
    predicted = scores.weigh(scores.predicted).sum(axis=0).tolist()
    right = scores.weigh(scores.predicted & scores.hit).sum(axis=0).tolist()
    for c, label in enumerate(scores.by_label()):
        result = details.ClassResult(round(predicted[c]), round(right[c]), ())
        yield float(label.weigh(label.hit).sum()), Bins.of_scores(label, bins), result


def class_sums(
    logits: NDArray[Any], labels: NDArray[np.int64], bins: int, weights: NDArray[np.float64] | None = None
) -> NDArray[Any]:
    """Return for each class and bin (3, C, B) the probabilities that fell there, their sum, and labels of the class.

    `logits`: (N, C); `labels`: (N,); `weights`: (N,), which stand for numbers of samples.
    """
    p = softmax(logits.astype(np.float64))
    if weights is None:
        weights = np.ones(len(labels))
    size = p.shape[1] * bins
    # class and bin in one index: one count for all classes
    index = np.arange(p.shape[1]) * bins + bin_of(p, bins)
    sums = (
        np.bincount(index.ravel(), np.repeat(weights, p.shape[1]), size),
        np.bincount(index.ravel(), (p * weights[:, None]).ravel(), size),
        np.bincount(index[np.arange(len(labels)), labels], weights, size),
    )
    return np.stack(sums).reshape(3, -1, bins)


def _made_by(task: Task, started: datetime) -> details.RunInfo:
    """Describe when a run began, how long it took, and its data and inputs, at its end."""
    output = task.opened.output
    return details.RunInfo(
        # a page is read by people: fractions of a second say nothing
        date=started.isoformat(timespec="seconds"),
        seconds=max(0.0, (datetime.now(UTC) - started).total_seconds()),
        calibration_sha256=task.source.digest(),
        held_out_sha256="" if task.held_out is None else task.held_out.source.digest(),
        inputs=tuple(details.Port(spec.name, spec.shape, spec.dtype.name) for spec in task.opened.inputs),
        output=output.name,
        output_kind=output.kind,
        mapped=output.mapped,
        several=_AXES[output.class_axis],
    )


def worst_rows(scores: SampleScores) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of wrong predictions by falling confidence, and of right ones by rising; some of each."""
    # stable: samples of one confidence keep their order, so a run shows the same ones again
    rising = np.argsort(scores.confidence, kind="stable")
    falling = np.argsort(-scores.confidence, kind="stable")
    hit = scores.hit
    return falling[~hit[falling]][:_WORST_MAX_SAMPLES], rising[hit[rising]][:_WORST_MAX_SAMPLES]


def _sample(
    collected: Collected, names: Sequence[str], before: SampleScores, after: SampleScores, row: int, predicted: int
) -> details.Sample:
    """Describe one sample; its file by the last two parts of the path."""
    source = collected.source
    file = ""
    if isinstance(source, ImageSource):
        file = "/".join(PurePath(source.files.name(int(source.rows[row]))).parts[-2:])
    return details.Sample(
        row=row,
        file=file,
        label=names[int(collected.table.labels[row])],
        predicted=names[predicted],
        before=float(before.confidence[row]),
        after=float(after.confidence[row]),
    )


def collect_details(
    report: Report,
    task: Task,
    outcome: Outcome,
    compared: Compared,
    written: Path,
    started: datetime,
    progress: Progress,
) -> details.Details:
    """Compute the numbers behind all figures of a report. `written`: the new file; `started`: when the run began."""
    settings = task.settings
    reported = task.reported
    original = task.logits(task.weight, on=reported)
    logits = outcome.logits
    if task.held_out is not None:
        logits = task.logits(outcome.weight, on=reported)
    before = original.scores()
    after = logits.mapped_scores(outcome.fitted)
    names = task.opened.class_names(reported.source)
    worst: Sequence[Sequence[details.Sample]] = ((), ())
    if task.readout.multi_label:
        sides = [_of_labels(scores, settings.bins) for scores in (before, after)]
    else:
        predicted = logits.predictions(outcome.fitted)
        worst = [
            [_sample(reported, names, before, after, row, predicted[row]) for row in rows.tolist()]
            for rows in worst_rows(after)
        ]
        sides = [
            _of_classes(original.given, None, names, settings.bins),
            _of_classes(logits, outcome.fitted, names, settings.bins),
        ]
    return details.Details(
        data=reported.source.describe(),
        held_out=task.held_out is not None,
        preprocessing=reported.source.recipe(),
        device=f"cuda:{task.device.index}" if task.device.kind == "cuda" else task.device.kind,
        before=report.reliability.before,
        after=report.reliability.after,
        risk_before=details.RiskCoverage.of(compared.before.decisions()),
        risk_after=details.RiskCoverage.of(compared.after.decisions()),
        steps=_steps(report, task, outcome, progress),
        chosen=next(k for k, c in enumerate(outcome.candidates) if c is outcome.chosen),
        with_map=outcome.chosen.fitted is not None,
        classes=tuple(
            details.ClassBins(name, round(samples), old, new, old_result, new_result)
            for name, (samples, old, old_result), (_, new, new_result) in zip(names, *sides, strict=True)
        ),
        overconfident=tuple(worst[0]),
        underconfident=tuple(worst[1]),
        # of the file as it was written, not of what was meant
        changes=require_intact(task.model, written).differences,
        made=_made_by(task, started),
    )


def _steps(report: Report, task: Task, outcome: Outcome, progress: Progress) -> tuple[details.Step, ...]:
    """Return the candidates with their scores on both sets; of one number of members, weights come together."""
    candidates = outcome.candidates
    settings = task.settings
    held_out: dict[int, details.Scored] = {}
    weights: Iterable[tuple[int, NDArray[Any] | None]] = ()
    if task.held_out is not None:
        weights = ((k, None) for k in range(len(candidates)))
        if task.weight is not None:
            weights = candidate_weights(Ensemble(task.weight, settings.for_search.draws), candidates)
    for done, (k, weight) in enumerate(weights, start=1):
        logits = task.logits(weight, on=task.reported)
        fitted = candidates[k].fitted
        scores = logits.mapped_scores(fitted) if fitted else logits.scores()  # the second keeps no logits
        held_out[k] = details.Scored(metric_value(scores, settings.objective, settings.bins), scores.mean("hit"))
        progress("search curve", done, len(candidates))
    return tuple(
        details.Step(
            point.angle,
            point.reached,
            point.ensemble_size,
            details.Scored(point.objective, point.accuracy),
            held_out.get(k),
        )
        for k, point in enumerate(report.curve)
    )
