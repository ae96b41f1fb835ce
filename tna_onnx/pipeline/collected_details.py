"""The numbers behind the figures of a report (`collect_details`), from logits in chunks: nothing of size N x C is kept.

"Reported samples" are the held-out ones, else the calibration samples, which were fitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.source import Source
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


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums over samples: the bins of each class, and how often each is predicted and confused."""

    bins: NDArray[Any]  # (3, C, B), see `class_sums`
    counts: ClassCounts

    def __add__(self, more: _Sums) -> _Sums:
        return _Sums(self.bins + more.bins, self.counts + more.counts)

    def results(self, names: tuple[str, ...]) -> list[details.ClassResult]:
        """Return how each class is predicted, and what it is taken for."""
        confused = self.counts.confused(_MAX_CONFUSED)
        results = []
        for c in range(len(names)):
            pairs = tuple(details.Confusion(names[predicted], round(n)) for predicted, n in confused.get(c, []))
            results.append(details.ClassResult(round(self.counts.predicted[c]), round(self.counts.right[c]), pairs))
        return results


def _summed(logits: Logits, fitted: CalibrationMap | None, bins: int) -> _Sums:
    """Sum up all samples after a map."""

    def of_chunk(logits: Any, labels: Any, features: Any) -> _Sums:
        mapped = apply_map(fitted, logits, features)
        weights = getattr(labels, "weights", None)
        indices = plain_labels(labels)
        counts = ClassCounts.of(np.argmax(mapped, axis=1), indices, mapped.shape[1], weights)
        return _Sums(class_sums(mapped, indices, bins, weights), counts)

    sums: _Sums = logits.reduce(features=fitted is not None and fitted.needs_features)(of_chunk)
    return sums


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


def class_bins(
    names: tuple[str, ...],
    before: tuple[Logits, CalibrationMap | None],
    after: tuple[Logits, CalibrationMap | None],
    bins: int,
) -> tuple[details.ClassBins, ...]:
    """Return the diagrams of all classes before and after, from logits and the map behind them."""
    old, new = (_summed(*side, bins) for side in (before, after))
    samples = old.bins[2].sum(axis=1)
    results = zip(old.results(names), new.results(names), strict=True)
    return tuple(
        details.ClassBins(
            names[c], round(float(samples[c])), Bins.of_sums(*old.bins[:, c]), Bins.of_sums(*new.bins[:, c]), *pair
        )
        for c, pair in enumerate(results)
    )


def label_bins(
    names: tuple[str, ...], before: SampleScores, after: SampleScores, bins: int
) -> tuple[details.ClassBins, ...]:
    """Return the diagrams of all labels of samples that have several."""
    labels = zip(names, before.by_label(), after.by_label(), strict=True)
    results = zip(_results(before), _results(after), strict=True)
    return tuple(
        details.ClassBins(
            name, round(float(old.weigh(old.hit).sum())), Bins.of_scores(old, bins), Bins.of_scores(new, bins), *pair
        )
        for (name, old, new), pair in zip(labels, results, strict=True)
    )


def _results(scores: SampleScores) -> list[details.ClassResult]:
    """Return how often each label is predicted, and holds where it is; labels are not taken for one another."""
    assert scores.predicted is not None  # noqa: S101 - of several labels
    predicted = scores.weigh(scores.predicted).sum(axis=0).tolist()
    right = scores.weigh(scores.predicted & scores.hit).sum(axis=0).tolist()
    return [details.ClassResult(round(p), round(r), ()) for p, r in zip(predicted, right, strict=True)]


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


def _worst_samples(
    collected: Collected,
    names: tuple[str, ...],
    before: SampleScores,
    after: SampleScores,
    logits: Logits,
    fitted: CalibrationMap | None,
) -> list[tuple[details.Sample, ...]]:
    """Return wrong predictions with the highest confidence, and right ones with the lowest."""
    kinds = worst_rows(after)
    rows = np.unique(np.concatenate(kinds))
    mask = np.zeros(len(logits), bool)
    mask[rows] = True
    chunks = logits.chunks(mask, features=fitted is not None and fitted.needs_features)
    classes = [np.argmax(apply_map(fitted, values, features), axis=1) for values, _, features in chunks]
    # rows ascend, as the chunks do
    predicted = dict(zip(rows.tolist(), np.concatenate(classes).tolist(), strict=True))
    return [
        tuple(
            details.Sample(
                row=row,
                file=_file(collected.source, row),
                label=names[int(collected.table.labels[row])],
                predicted=names[predicted[row]],
                before=float(before.confidence[row]),
                after=float(after.confidence[row]),
            )
            for row in kind.tolist()
        )
        for kind in kinds
    ]


def worst_rows(scores: SampleScores) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of wrong predictions by falling confidence, and of right ones by rising; some of each."""
    # stable: samples of one confidence keep their order, so a run shows the same ones again
    rising = np.argsort(scores.confidence, kind="stable")
    falling = np.argsort(-scores.confidence, kind="stable")
    hit = scores.hit
    return falling[~hit[falling]][:_WORST_MAX_SAMPLES], rising[hit[rising]][:_WORST_MAX_SAMPLES]


def _file(source: Source, row: int) -> str:
    """Last two parts of the path of a sample's file; empty if it has none."""
    if not isinstance(source, ImageSource):
        return ""
    return "/".join(PurePath(source.files.name(int(source.rows[row]))).parts[-2:])


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
    worst: Sequence[tuple[details.Sample, ...]] = ((), ())
    if task.readout.multi_label:
        classes = label_bins(names, before, after, settings.bins)
    else:
        worst = _worst_samples(reported, names, before, after, logits, outcome.fitted)
        classes = class_bins(names, (original.given, None), (logits, outcome.fitted), settings.bins)
    return details.Details(
        data=reported.source.describe(),
        held_out=task.held_out is not None,
        preprocessing=reported.source.recipe(),
        device=f"cuda:{task.device.index}" if task.device.kind == "cuda" else task.device.kind,
        before=report.reliability.before,
        after=report.reliability.after,
        risk_before=details.RiskCoverage.of(compared.before.decisions()),
        risk_after=details.RiskCoverage.of(compared.after.decisions()),
        steps=_steps(task, outcome, progress),
        chosen=next(k for k, c in enumerate(outcome.candidates) if c is outcome.chosen),
        with_map=outcome.chosen.fitted is not None,
        classes=classes,
        overconfident=worst[0],
        underconfident=worst[1],
        # of the file as it was written, not of what was meant
        changes=require_intact(task.model, written).differences,
        made=_made_by(task, started),
    )


def _steps(task: Task, outcome: Outcome, progress: Progress) -> tuple[details.Step, ...]:
    """Return the candidates with their scores on both sets; of one number of members, weights come together."""
    candidates = outcome.candidates
    settings = task.settings

    def scored(scores: SampleScores) -> details.Scored:
        return details.Scored(metric_value(scores, settings.objective, settings.bins), scores.mean("hit"))

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
        held_out[k] = scored(scores)
        progress("search curve", done, len(candidates))
    return tuple(
        details.Step(c.angle, c.reached, c.ensemble_size, scored(c.scores), held_out.get(k))
        for k, c in enumerate(candidates)
    )
