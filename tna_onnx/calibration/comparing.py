"""The honest numbers: scores of the input and of the result on the same samples.

- With held-out data, both heads score the features that the network gave for them, once.
- Without, each calibration sample is scored by what was chosen and fitted without it (cross-fitting).
- Where nothing was chosen or fitted, every bit of the output is the input's, and any data will do.
"""

from __future__ import annotations

from dataclasses import dataclass

from tna_onnx.calibration.settings import Settings
from tna_onnx.calibration.strategy import Outcome, Strategy
from tna_onnx.calibration.task import Task
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.results.report import Comparison, How, compare_scores

__all__ = ["Compared", "compare_heads"]


@dataclass(frozen=True, eq=False)
class Compared:
    """Paired scores, and what they come to."""

    before: SampleScores
    after: SampleScores
    comparison: Comparison


def compare_heads(
    task: Task, strategy: Strategy, outcome: Outcome, settings: Settings, factor: float | None
) -> Compared:
    """Score the input and the result on held-out data, or cross-fitted.

    Args:
        task: what was opened.
        strategy: how the result was made.
        outcome: the result.
        settings: bins, seed and confidence level.
        factor: what weight and bias are multiplied by in the file, if the map was folded.

    Raises:
        DataError: a map cannot be fitted without one of the folds.
    """
    how, before, after = _paired_scores(task, strategy, outcome, factor)
    described = task.shown.source.describe()
    comparison = compare_scores(described, how, before, after, settings.bins, settings.seed, settings.level)
    return Compared(before, after, comparison)


def _paired_scores(
    task: Task, strategy: Strategy, outcome: Outcome, factor: float | None
) -> tuple[How, SampleScores, SampleScores]:
    held_out = task.held_out
    if held_out is not None:
        before = task.logits(task.weight, on=held_out).scores()
        after = task.logits(outcome.weight, factor, on=held_out).mapped_scores(outcome.fitted)
        return "held-out", before, after
    if outcome.chosen.angle == 0 and outcome.fitted is None:
        return "unchanged", outcome.before, outcome.before
    return "cross-fitted", *strategy.cross_fitted(outcome)
