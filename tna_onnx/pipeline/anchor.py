"""Tilting around a refitted layer: the anchor is fitted, then everything is searched as if the model had it.

    W' = W / T + D, b' = b / T + c (maps.refit)      W' is tilted and averaged, b' scaled, the map fitted behind both

1. The strength of the refit is chosen by cross-validation, as it is where the refit is the map.
2. A refit is too sure of the samples that it was fitted on: on those, no tilt would be of use, and a temperature would
   sharpen. So search and map see each sample under a refit without its fold, all of them tilted by the same rotations.
   Angle, members and map are then those of the refit on all samples.
3. The honest scores come from doing all of this again without each fold: no label has a part in what scores its fold.

Source of rule 2: Wolpert (1992), "Stacked generalization".
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.engine.logits import JoinedLogits, Logits
from tna_onnx.errors import DataError
from tna_onnx.maps.refit import Refit
from tna_onnx.numerics.averages import TurnedWeight, averages
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline.crossfit import FOLDS, Fit, cross_scores, folds
from tna_onnx.pipeline.methods import Method
from tna_onnx.pipeline.strategy import Outcome, Strategy
from tna_onnx.pipeline.task import Task
from tna_onnx.progress import Progress, silent
from tna_onnx.search.candidates import Candidate
from tna_onnx.search.settings import SearchSettings

__all__ = ["AnchoredStrategy"]

Mask = NDArray[np.bool_]


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

    def run(self, progress: Progress) -> Outcome:
        """Refit, search and fit on all calibration data.

        Raises:
            UnsupportedModel: the weight cannot be tilted.
            DataError: refit or map cannot be fitted; or every sample is classified right.
        """
        refitted = self._refitting(self.task).run(progress)
        return self._around(self.task, refitted, progress)

    def cross_fitted(self, outcome: Outcome, progress: Progress = silent) -> SampleScores:
        """Scores after, each sample scored with what was refitted, searched and fitted without it.

        Raises:
            DataError: refit or map cannot be fitted without one of the folds.
        """

        def fits(k: int, train: Mask) -> Iterator[tuple[Method, Iterator[Fit]]]:
            yield outcome.method, self._without_fold(outcome.method, train)
            progress("cross-validate", k + 1, FOLDS)

        clusters = outcome.before.clusters
        return cross_scores(len(outcome.before), self.settings.seed, fits, clusters=clusters)[outcome.method]

    def _without_fold(self, method: Method, train: Mask) -> Iterator[Fit]:
        """Rule 3: all of it on some samples; logits are of all."""
        part = self.task.part(np.flatnonzero(train))
        before = part.logits(part.weight).scores()
        found = self._around(part, self._refitting(part).found(before, silent), silent)
        yield method, self.task.around(found.anchor).logits(found.weight), found.fitted

    def _refitting(self, task: Task) -> Strategy:
        """Rule 1."""
        return replace(self.strategy, logits_of=task.logits, weight=task.weight, search="none", map=Refit.name)

    def _around(self, task: Task, refitted: Outcome, progress: Progress) -> Outcome:
        """Search and fit around a refit."""
        anchor = refitted.fitted
        assert isinstance(anchor, Refit)  # noqa: S101 - `_refitting`
        # rule 2
        pieces = _pieces(task, refitted.method.step, self.settings.seed)
        stack = np.concatenate([piece.weight for piece in pieces if piece.weight is not None])
        inner = replace(self.strategy, logits_of=functools.partial(_joined, pieces), weight=stack)
        found = inner.found(inner.logits_of(stack).scores(), progress)
        anchored = task.around(anchor)
        chosen = self._tilted(found.chosen, anchored.weight)
        # weights that other candidates still hold are those of the pieces
        candidates = (chosen if each is found.chosen else replace(each, weight=None) for each in found.candidates)
        return replace(
            found,
            candidates=tuple(candidates),
            chosen=chosen,
            weight=chosen.weight,
            before=refitted.before,
            logits=anchored.logits(chosen.weight),
            anchor=anchor,
        )

    def _tilted(self, candidate: Candidate, weight: NDArray[Any] | None) -> Candidate:
        """Return a candidate of the pieces with the refit on all samples in their place.

        Raises:
            DataError: the angle is out of its reach.
        """
        assert weight is not None  # noqa: S101 - there is a head
        if candidate.angle == 0:
            return replace(candidate, weight=weight)
        made = averages(weight, [candidate.angle], candidate.ensemble_size, self.settings.draws)
        average = next(made, None)
        if average is None:
            raise DataError(
                f"the refitted class vectors cannot be tilted by {candidate.angle:g} degrees; add --ensemble-size inf"
            )
        return replace(candidate, weight=average.weight, reached=average.reached, rotations=average.rotations)


def _pieces(task: Task, step: int, seed: int) -> list[Task]:
    """Return the samples of each fold, each around a refit without them, of the strength chosen."""
    logits = task.logits(task.weight)
    fold = folds(len(logits), seed, logits.clusters)
    pieces = []
    for k in range(FOLDS):
        path = Refit.fit_path(logits.reduce(fold != k, features=True))
        pieces.append(task.part(np.flatnonzero(fold == k)).around(next(itertools.islice(path, step, None))))
    return pieces


def _joined(pieces: Sequence[Task], weights: NDArray[Any] | TurnedWeight) -> Logits:
    """Return the logits of all pieces; their (C, n) weights are stacked in one of (pieces C, n)."""
    if isinstance(weights, TurnedWeight):
        weights = weights.product()
    return JoinedLogits([piece.logits(own) for piece, own in zip(pieces, np.split(weights, len(pieces)), strict=True)])
