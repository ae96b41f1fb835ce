"""Candidates of the search: their weights, their scores, and the choice among them.

`Scored` makes and scores each candidate once, on all samples. Searches on different folds look at nearly the same
candidates, and the score of a sample does not depend on the other samples, so the walks and products of the first
search serve the others.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.averages import LIMIT, Average, Ensemble, TurnedWeight
from tna_onnx.numerics.metrics import objective_value
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.search.settings import SearchSettings

__all__ = [
    "ROUNDING",
    "Candidate",
    "Score",
    "Scored",
    "accuracy_drop",
    "candidate_of",
    "candidate_weight",
    "candidate_weights",
    "choose",
    "pick",
    "value_of",
]


# A drop of exactly the constraint is allowed, however the difference of two fractions is rounded.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Candidate:
    """A weight that was scored.

    Attributes:
        angle: target of mRC in degrees; 0 is the original weight.
        reached: mean mRC of the members in degrees, past the target by a part of n_t rotations.
        ensemble_size: members averaged.
        rotations: mean number of rotations n_r of a member.
        scores: of all samples that the search sees; in a complete search after the map.
        fitted: the map fitted for this weight, in a complete search.
        weight: (C, n), while no other candidate is better; else None, and `candidate_weight` makes it again.
    """

    angle: float
    ensemble_size: int
    rotations: float
    scores: SampleScores
    fitted: Any = None
    reached: float = 0.0
    weight: NDArray[Any] | None = field(default=None, repr=False)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the map fitted for this weight, for reports; empty without a map."""
        return self.fitted.brief if self.fitted else {}


def choose(candidates: Sequence[Candidate], settings: SearchSettings, rows: NDArray[Any] | None = None) -> int:
    """Return the index of the best candidate under the accuracy constraint; of equals, the first.

    Candidates of the largest ensembles, and the limit of many, go first: they are there because smaller ones cost
    accuracy. If none of them both keeps the constraint and beats the original weight, the choice is among all.

    Args:
        candidates: with the original weight first.
        settings: objective and constraint.
        rows: samples to choose by; all by default.
    """

    def taken(candidate: Candidate) -> Candidate:
        if rows is None:
            return candidate
        return dataclasses.replace(candidate, scores=candidate.scores.take(rows))

    original = taken(candidates[0])
    return pick(candidates, [value_of(original, taken(c), settings) for c in candidates])


def pick(candidates: Sequence[Candidate], values: Sequence[float]) -> int:
    """Return the index of the choice, given the value of each candidate (infinite if it costs too much accuracy)."""
    # larger ensembles are there because smaller ones cost accuracy
    largest = max(c.ensemble_size for c in candidates)
    first = [k for k, c in enumerate(candidates) if k == 0 or c.ensemble_size in (largest, LIMIT)]
    best = min(first, key=lambda k: values[k])
    if best > 0:
        return best
    # none of them beats the original weight within the constraint
    return min(range(len(values)), key=lambda k: values[k])


def candidate_weight(weight: NDArray[Any], candidate: Candidate, settings: SearchSettings) -> NDArray[Any]:
    """Recompute the (C, n) weight of a candidate, bit for bit."""
    return next(candidate_weights(Ensemble(weight, settings.draws), [candidate]))[1]


def not_multiplied(ensemble: Ensemble, candidate: Candidate) -> NDArray[Any] | TurnedWeight:
    """Recompute the weight of a candidate as its search scored it: with many classes, not yet multiplied."""
    if candidate.angle == 0:
        return ensemble.weight
    if candidate.weight is not None:
        return candidate.weight
    if candidate.ensemble_size == LIMIT:
        return ensemble.limit(candidate.angle)
    (average,) = ensemble.averages([candidate.angle], candidate.ensemble_size)
    return average.made


def candidate_weights(ensemble: Ensemble, candidates: Sequence[Candidate]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield (index, (C, n) weight) of candidates, in any order; weights that were dropped are recomputed."""
    # angle 0 needs no walk
    yield from ((k, ensemble.weight) for k, c in enumerate(candidates) if c.angle == 0)
    yield from ((k, c.weight) for k, c in enumerate(candidates) if c.angle > 0 and c.weight is not None)
    lost = [(c.ensemble_size, c.angle, k) for k, c in enumerate(candidates) if c.angle > 0 and c.weight is None]
    for size in sorted({size for size, _, _ in lost}):
        level = [(angle, k) for members, angle, k in lost if members == size]
        for average in ensemble.averages(sorted({angle for angle, _ in level}), size):
            # `averages` gives back the angle that was asked for: floats can be compared
            yield from ((k, average.weight) for angle, k in level if angle == average.angle)


def candidate_of(average: Average, members: int, scores: SampleScores, fitted: Any = None) -> Candidate:
    # a weight that is not multiplied yet can be made again
    weight = None if isinstance(average.made, TurnedWeight) else average.made
    return Candidate(average.angle, members, average.rotations, scores, fitted, average.reached, weight)


def accuracy_drop(before: SampleScores, after: SampleScores) -> tuple[float, float]:
    """Accuracy lost, and the standard error of this paired difference."""
    # paired: samples that both get right or wrong do not count
    # int8: NumPy does not subtract truth values
    drop = before.hit.astype(np.int8) - after.hit
    return float(np.mean(drop)), float(np.std(drop)) / math.sqrt(len(drop))


def value_of(original: Candidate, candidate: Candidate, settings: SearchSettings) -> float:
    """Objective, or infinity if the accuracy drop is not within the constraint."""
    drop, _ = accuracy_drop(original.scores, candidate.scores)
    if drop > settings.max_accuracy_drop + ROUNDING:
        return math.inf
    return objective_value(candidate.scores, settings.objective, settings.bins)


Score = Callable[[Sequence[Any]], Sequence[SampleScores]]
"""Scores all samples with each of some (C, n) weights; together, so that the features are read once for all."""


# Bytes of the weights that are scored together; a larger weight is scored alone.
_STACK_BYTES = 2**25

# Bytes of the scores that are kept for another search: 13 a sample and candidate.
_KEPT_BYTES = 2**28
_SAMPLE_BYTES = 13


class Scored:
    """Makes the candidates that a search asks for, and scores each once.

    Args:
        ensemble: members of the weight that is searched around.
        score: scores all samples with weights.
        score_scaled: scores all samples with the original weight times a factor; `score` does by default.
        turned: whether `score` takes a `TurnedWeight` too, where there are many classes.
        original: scores of the original weight, if they are known; else they are asked for.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        score: Score,
        score_scaled: Callable[[float], SampleScores] | None = None,
        *,
        turned: bool = False,
        original: SampleScores | None = None,
    ) -> None:
        self.ensemble = ensemble
        self._score = score
        self._score_scaled = score_scaled or self._scaled
        self._turned = turned
        self._kept: dict[tuple[float, int], Candidate] = {}
        self._limits: dict[float, SampleScores] = {}
        self._original = original

    @property
    def original(self) -> SampleScores:
        """Scores of the original weight."""
        if self._original is None:
            self._original = self._score([self.ensemble.weight])[0]
        return self._original

    def limit(self, angle: float) -> SampleScores:
        """Scores of the limit of many members at an angle in degrees, without a product."""
        scores = self._limits.get(angle)
        if scores is None:
            scores = self._score_scaled(math.cos(math.radians(angle)))
            if self._has_room(scores):
                self._limits[angle] = scores
        return scores

    def candidates(self, angles: Sequence[float], members: int) -> Iterator[list[Candidate]]:
        """Yield the candidates at the given angles in degrees, ascending, as far as paths reach; a few at a time.

        Those that are new have their weight, but for those of the limit of many, which take no product.
        """
        if members == LIMIT:
            yield [Candidate(angle, LIMIT, 0.0, self.limit(angle), reached=angle) for angle in angles]
            return
        for is_stored, group in itertools.groupby(angles, key=lambda angle: (angle, members) in self._kept):
            if is_stored:
                yield [self._kept[angle, members] for angle in group]
                continue
            needed = [*group]
            n_scored = 0
            for stack in self._stacks(self.ensemble.averages(needed, members)):
                yield self._scored(stack, members)
                n_scored += len(stack)
            # paths end before
            if n_scored < len(needed):
                return

    def _scored(self, stack: Sequence[Average], members: int) -> list[Candidate]:
        scored = []
        for average, scores in zip(stack, self._score([self._given(average) for average in stack]), strict=True):
            candidate = candidate_of(average, members, scores)
            scored.append(candidate)
            if self._has_room(scores):
                # weights are large, and can be made again
                self._kept[average.angle, members] = replace(candidate, weight=None)
        return scored

    def _given(self, average: Average) -> NDArray[Any] | TurnedWeight:
        return average.made if self._turned else average.weight

    def _stacks(self, produced: Iterator[Average]) -> Iterator[list[Average]]:
        """Cut into lists of weights that fit into memory together."""
        while stack := list(itertools.islice(produced, max(1, _STACK_BYTES // self._bytes))):
            yield stack

    @property
    def _bytes(self) -> int:
        """Bytes of a weight, as it is scored."""
        return self.ensemble.average_bytes if self._turned else int(self.ensemble.weight.nbytes)

    def _has_room(self, scores: SampleScores) -> bool:
        count = len(self._kept) + len(self._limits)
        return (count + 1) * scores.hit.size * _SAMPLE_BYTES <= _KEPT_BYTES

    def _scaled(self, factor: float) -> SampleScores:
        return self._score([self.ensemble.weight * self.ensemble.weight.dtype.type(factor)])[0]
