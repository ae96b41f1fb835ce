"""Candidates of the search, their weights, and the choice among them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.averages import LIMIT, Average, Ensemble, TurnedWeight
from tna_onnx.numerics.metrics import objective_value
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.search.settings import SearchSettings

__all__ = [
    "ROUNDING",
    "Candidate",
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
        """What a reader wants to know of the map fitted for this weight; empty for none."""
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
    """Index of the choice, from the value of each candidate: infinite if it costs too much accuracy."""
    # larger ensembles are there because smaller ones cost accuracy
    largest = max(c.ensemble_size for c in candidates)
    first = [k for k, c in enumerate(candidates) if k == 0 or c.ensemble_size in (largest, LIMIT)]
    best = min(first, key=lambda k: values[k])
    if best > 0:
        return best
    # none of them beats the original weight within the constraint
    return min(range(len(values)), key=lambda k: values[k])


def candidate_weight(weight: NDArray[Any], candidate: Candidate, settings: SearchSettings) -> NDArray[Any]:
    """Make the (C, n) weight of a candidate again, bit for bit."""
    return next(candidate_weights(Ensemble(weight, settings.draws), [candidate]))[1]


def not_multiplied(ensemble: Ensemble, candidate: Candidate) -> NDArray[Any] | TurnedWeight:
    """Make the weight of a candidate again as its search scored it: with many classes, not multiplied yet."""
    if candidate.angle == 0:
        return ensemble.weight
    if candidate.weight is not None:
        return candidate.weight
    if candidate.ensemble_size == LIMIT:
        return ensemble.limit(candidate.angle)
    (average,) = ensemble.averages([candidate.angle], candidate.ensemble_size)
    return average.made


def candidate_weights(ensemble: Ensemble, candidates: Sequence[Candidate]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield (index, (C, n) weight) of candidates, in any order; those that have lost theirs are made again."""
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
