"""The honest numbers: scores of the input and of the result on the same samples.

- With held-out data, both heads score the features that the network gave for them, once.
- Without, each calibration sample is scored by what was chosen and fitted without it (cross-fitting).
- Where nothing was chosen or fitted, every bit of the output is the input's, and any data will do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tna_onnx.calibration.crossfit import FOLDS
from tna_onnx.calibration.settings import Settings
from tna_onnx.calibration.strategy import Outcome, Strategy
from tna_onnx.calibration.task import Collected, Task
from tna_onnx.engine.logits import Logits
from tna_onnx.errors import DataError
from tna_onnx.numerics.ops import to_host
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.results.report import Comparison, How, compare_scores

__all__ = ["Compared", "compare_heads"]


@dataclass(frozen=True, eq=False)
class Compared:
    """Paired scores, and what they come to."""

    before: SampleScores
    after: SampleScores
    comparison: Comparison


def compare_heads(task: Task, strategy: Strategy, outcome: Outcome, settings: Settings, after: Logits) -> Compared:
    """Score the input and the result on held-out data, or cross-fitted.

    Args:
        task: what was opened.
        strategy: how the result was made.
        outcome: the result.
        settings: bins, seed and confidence level.
        after: logits of the held-out data, if there are any, under the weight that was written, before the map.

    Raises:
        DataError: held-out logits that are not finite, or a map cannot be fitted without one of the folds.
    """
    how, before, scores = _paired_scores(task, strategy, outcome, after)
    described = task.shown.source.describe()
    comparison = compare_scores(
        described,
        how,
        before,
        scores,
        settings.bins,
        settings.seed,
        settings.level,
        folds=FOLDS if how == "cross-fitted" else None,
        same_predictions=outcome.keeps_predictions,
    )
    return Compared(before, scores, comparison)


def _paired_scores(
    task: Task, strategy: Strategy, outcome: Outcome, after: Logits
) -> tuple[How, SampleScores, SampleScores]:
    if task.held_out is not None:
        before = task.logits(task.weight, on=task.held_out)
        for logits in (before, after):
            _require_finite(task, logits, task.held_out)
        return "held-out", before.scores(), after.mapped_scores(outcome.fitted)
    # no fold could differ from another: nothing to cross-fit
    if outcome.chosen.angle == 0 and outcome.fitted is None:
        return "unchanged", outcome.before, outcome.before
    return "cross-fitted", *strategy.cross_fitted(outcome)


def _require_finite(task: Task, logits: Logits, samples: Collected) -> None:
    """Refuse logits that the file cannot give as finite numbers: a NaN would miss no gate.

    Raises:
        DataError: such a sample.
    """
    # features are widened to float32 here; a float16 file overflows earlier
    largest = float(np.finfo(np.float16).max) if task.readout.logits_type == "float16" else np.inf
    done = 0
    for values, labels, _ in logits.chunks():
        bad = ~(np.abs(to_host(values)) <= largest).all(axis=1) | ~np.isfinite(to_host(values)).all(axis=1)
        if bad.any():
            raise DataError(
                f"{samples.source.describe()}: logits '{task.readout.logits}' of sample "
                f"{done + int(np.flatnonzero(bad)[0])} hold NaN or infinite values"
            )
        done += len(labels)
