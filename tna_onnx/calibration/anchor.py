"""Tilting around a refitted layer: the anchor is fitted, then everything is searched as if the model had it.

    W' = W / T + D, b' = b / T + c (maps.refit)      W' is tilted and averaged, b' scaled, the map fitted behind both

The strength of the refit is chosen by cross-validation, as it is where the refit is the map. Anchor, angle and map see
the same samples. So the honest scores come from doing all of it again without each fold, that choice included: no label
of a fold has a part in what scores it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tna_onnx.calibration.crossfit import Fit, cross_scores
from tna_onnx.calibration.methods import Method
from tna_onnx.calibration.outcome import Outcome
from tna_onnx.calibration.strategy import Strategy
from tna_onnx.calibration.task import Task
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.maps.refit import Refit
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.search.settings import SearchSettings

__all__ = ["AnchoredStrategy"]


@dataclass(frozen=True, eq=False)
class AnchoredStrategy:
    """A refit of the last layer, and a strategy around it.

    Attributes:
        task: with a linear head.
        strategy: one search and one map, on that task.
    """

    task: Task
    strategy: Strategy

    @property
    def settings(self) -> SearchSettings:
        """Of the search."""
        return self.strategy.settings

    def run(self, progress: Callable[[int, int], None]) -> Outcome:
        """Refit, search and fit on all calibration data.

        Raises:
            ValueError: the refitted weight cannot be tilted.
            DataError: refit or map cannot be fitted; or every sample is classified right.
        """
        refitted = self._refitting(self.task).run(progress)
        return self._around(self.task, refitted, progress)

    def cross_fitted(self, outcome: Outcome) -> SampleScores:
        """Scores after, each sample scored with what was refitted, searched and fitted without it.

        Raises:
            DataError: refit or map cannot be fitted without one of the folds.
        """

        def fits(_: int, train: NDArray[np.bool_]) -> Iterator[tuple[Method, Iterator[Fit]]]:
            yield outcome.method, self._without_fold(outcome.method, train)

        return cross_scores(len(outcome.before), self.settings.seed, fits)[outcome.method]

    def _without_fold(self, method: Method, train: NDArray[np.bool_]) -> Iterator[Fit]:
        """Do all of it on some samples; logits are of all."""
        part = _part(self.task, train)
        before = part.logits(part.weight).scores()
        found = self._around(part, self._refitting(part).found(before, _silent), _silent)
        yield method, self.task.around(found.anchor).logits(found.weight), found.fitted

    def _refitting(self, task: Task) -> Strategy:
        """The choice of a strength, and the refit with it."""
        return replace(self.strategy, logits_of=task.logits, weight=task.weight, search="none", map=Refit.name)

    def _around(self, task: Task, refitted: Outcome, progress: Callable[[int, int], None]) -> Outcome:
        """Search and fit around a refit."""
        anchor = refitted.fitted
        assert isinstance(anchor, Refit)  # noqa: S101 - `_refitting`
        anchored = task.around(anchor)
        inner = replace(self.strategy, logits_of=anchored.logits, weight=anchored.weight)
        # a refit that gets its own samples right says nothing of them: only the input's scores are refused for that
        outcome = inner.found(anchored.logits(anchored.weight).scores(), progress)
        return replace(outcome, before=refitted.before, anchor=anchor)


def _part(task: Task, rows: NDArray[np.bool_]) -> Task:
    """Return the same task with some of its calibration samples: features and labels are all that a linear head needs."""
    whole = task.calibration.table
    table = FeatureTable(np.asarray(whole.features[rows]), whole.labels[rows], whole.batch_size)
    return replace(task, calibration=replace(task.calibration, table=table))


def _silent(done: int, total: int) -> None:
    """Show nothing: folds have no bar of their own."""
