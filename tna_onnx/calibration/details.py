"""The numbers behind the figures of a report, from scores and features.

Logits are read in chunks and nothing of size N x C is kept. "Shown samples" are the held-out ones if there are any,
else the calibration samples, which were fitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.calibration.angles import feature_angles
from tna_onnx.calibration.class_bins import MappedLogits, class_bins, label_bins
from tna_onnx.calibration.comparing import Compared
from tna_onnx.calibration.made import Started, made_by
from tna_onnx.calibration.outcome import Outcome
from tna_onnx.calibration.settings import Settings
from tna_onnx.calibration.task import Collected, Task
from tna_onnx.calibration.worst import class_names, worst_samples
from tna_onnx.engine.logits import Logits
from tna_onnx.graph.difference import differences
from tna_onnx.graph.integers import opened_like
from tna_onnx.graph.limits import NO_MODEL_LIMITS
from tna_onnx.graph.load import load_model
from tna_onnx.numerics.averages import Ensemble
from tna_onnx.numerics.metrics import objective_value
from tna_onnx.numerics.reliability import Bins
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.progress import Progress
from tna_onnx.results.details import Angles, Averaged, ClassBins, Details, Sample, Scored, Step
from tna_onnx.results.risk_coverage import RiskCoverage
from tna_onnx.search.candidates import Candidate, candidate_weights

__all__ = ["collect_details"]


def collect_details(
    task: Task,
    settings: Settings,
    outcome: Outcome,
    compared: Compared,
    written: Path,
    started: Started,
    progress: Progress,
) -> Details:
    """Compute what the report shows.

    Args:
        task: what was opened.
        settings: of the run.
        outcome: what was chosen.
        compared: scores before and after on the same samples, as reported.
        written: the new file.
        started: when the run began.
        progress: called with (stage, done, total).

    Raises:
        DataError: a sample cannot be read again for its thumbnail.
    """
    view = _View(task.around(outcome.anchor), settings, outcome)
    before = task.logits(task.weight, on=view.shown)
    after = outcome.logits
    if view.held_out:
        after = view.task.logits(outcome.weight, on=view.shown)
    after_scores = after.mapped_scores(outcome.fitted)
    names = class_names(task, view.shown)
    # these two are of one predicted class a sample
    over: tuple[Sample, ...] = ()
    under: tuple[Sample, ...] = ()
    angles: tuple[Angles, ...] = ()
    angle_samples = 0
    if not task.readout.multi_label:
        over, under = worst_samples(view.shown, names, before.scores(), after_scores, after, outcome.fitted)
        angles, angle_samples = feature_angles(task, view.shown, settings.for_search, outcome)
    averages = _averages(view, after)
    return Details(
        data=view.shown.source.describe(),
        held_out=view.held_out,
        preprocessing=view.shown.source.recipe(),
        device=_device(task),
        before=_diagram(compared.before, settings),
        after=_diagram(compared.after, settings),
        risk_before=RiskCoverage.of(compared.before.decisions()),
        risk_after=RiskCoverage.of(compared.after.decisions()),
        steps=_steps(view, progress),
        chosen=next(k for k, c in enumerate(outcome.candidates) if c is outcome.chosen),
        averages=averages,
        untilted=_accuracy(view.task.logits(view.task.weight, on=view.shown)) if averages else 0.0,
        with_map=outcome.chosen.fitted is not None,
        classes=_classes(names, (before, None), (after, outcome.fitted), settings.bins),
        angles=angles,
        angle_samples=angle_samples,
        overconfident=over,
        underconfident=under,
        # of the file as it was written, not of what was meant
        changes=differences(task.model, opened_like(task.model, load_model(written, NO_MODEL_LIMITS)), task.readout),
        made=made_by(task, started),
    )


@dataclass(frozen=True, eq=False)
class _View:
    """A result on the samples of which it is shown; `task` is around the anchor, if there is one."""

    task: Task
    settings: Settings
    outcome: Outcome

    @property
    def shown(self) -> Collected:
        """The samples."""
        return self.task.shown

    @property
    def held_out(self) -> bool:
        """Whether they are held out."""
        return self.task.held_out is not None

    def scored(self, scores: SampleScores) -> Scored:
        """Reduce scores to what a figure shows of a candidate."""
        value = objective_value(scores, self.settings.objective, self.settings.bins)
        return Scored(value, float(np.mean(scores.hit)), _diagram(scores, self.settings))


def _classes(names: tuple[str, ...], before: MappedLogits, after: MappedLogits, bins: int) -> tuple[ClassBins, ...]:
    """Return the diagram of each class, or of each label."""
    first, second = (logits.mapped_scores(fitted) for logits, fitted in (before, after))
    if first.predicted is None:
        return class_bins(names, before, after, bins)
    return label_bins(names, first, second, bins)


def _device(task: Task) -> str:
    device = task.device
    if device.kind == "cuda":
        return f"cuda:{device.index}"
    return device.kind


def _diagram(scores: SampleScores, settings: Settings) -> Bins:
    together = scores.pooled()
    return Bins.of(together.confidence, together.hit, settings.bins)


def _steps(view: _View, progress: Progress) -> tuple[Step, ...]:
    others: dict[int, Scored] = {}
    if view.held_out:
        others.update(_on_held_out(view, progress))
    return tuple(
        Step(c.angle, c.reached, c.ensemble_size, view.scored(c.scores), others.get(k))
        for k, c in enumerate(view.outcome.candidates)
    )


def _on_held_out(view: _View, progress: Progress) -> Iterator[tuple[int, Scored]]:
    """Yield (index, scores) of the candidates, those of one number of members together."""
    task = view.task
    candidates = view.outcome.candidates
    weights: Iterable[tuple[int, NDArray[Any] | None]] = ((k, None) for k in range(len(candidates)))
    if task.weight is not None:
        weights = candidate_weights(Ensemble(task.weight, view.settings.for_search.draws), candidates)
    for done, (k, weight) in enumerate(weights, start=1):
        logits = task.logits(weight, on=view.shown)
        fitted = candidates[k].fitted
        scores = logits.mapped_scores(fitted) if fitted else logits.scores()  # the second keeps no logits
        yield k, view.scored(scores)
        progress("search curve", done, len(candidates))


def _averages(view: _View, logits: Logits) -> tuple[Averaged, ...]:
    """Half of the chosen one's members, half of those, and so on; together about as much work as the chosen one."""
    chosen = view.outcome.chosen
    weight = view.task.weight
    if chosen.angle == 0 or chosen.ensemble_size < 2 or weight is None:
        return ()
    averages = [Averaged(chosen.ensemble_size, _accuracy(logits))]
    ensemble = Ensemble(weight, view.settings.for_search.draws)
    while averages[-1].members > 1:
        # members are children of the seed in order: half of them are the first half
        fewer = Candidate(chosen.angle, averages[-1].members // 2, 0.0, chosen.scores)
        ((_, average),) = candidate_weights(ensemble, [fewer])
        averages.append(Averaged(fewer.ensemble_size, _accuracy(view.task.logits(average, on=view.shown))))
    return tuple(reversed(averages))


def _accuracy(logits: Logits) -> float:
    return float(np.mean(logits.scores().hit))
