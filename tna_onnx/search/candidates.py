"""Candidates of the search: their weights, their scores, and the choice among them.

`Scorer` makes and scores each candidate once, on all samples, for the searches of all folds. `SearchSettings` has the
grid of angles.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import UsageError
from tna_onnx.numerics.averages import LIMIT, Average, Draws, Ensemble
from tna_onnx.numerics.metric import Objective
from tna_onnx.numerics.metrics import metric_value
from tna_onnx.numerics.rotations import TiltParameters
from tna_onnx.numerics.scores import SampleScores, mean_and_error

# A drop of exactly the constraint is allowed, however the difference of two fractions is rounded.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Candidate:
    """A weight that was scored."""

    angle: float  # target of mRC in degrees; 0 is the original weight
    ensemble_size: int  # members averaged
    rotations: float  # mean number of rotations n_r of a member
    scores: SampleScores  # of all samples that the search sees; in a complete search after the map
    fitted: Any = None  # the map fitted for this weight, in a complete search
    reached: float = 0.0  # mean mRC of the members in degrees, past the target by a part of n_t rotations
    # (C, n), while no other candidate is better; else None, and `candidate_weight` makes it again
    weight: NDArray[Any] | None = field(default=None, repr=False)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the map fitted for this weight, for reports; empty without a map."""
        return self.fitted.brief if self.fitted else {}


def choose(candidates: Sequence[Candidate], settings: SearchSettings, rows: NDArray[Any] | None = None) -> int:
    """Return the index of the best candidate under the accuracy constraint; of equals, the first.

    Candidates of the largest ensembles, and the limit of many, go first: they are there because smaller ones cost
    accuracy. If none of them both keeps the constraint and beats the original weight, the choice is among all.

    `rows`: samples to choose by; all by default.
    """

    def scores_of(candidate: Candidate) -> SampleScores:
        return candidate.scores if rows is None else candidate.scores.take(rows)

    original = scores_of(candidates[0])
    return pick(candidates, [value_of(original, scores_of(c), settings) for c in candidates])


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
    return Candidate(average.angle, members, average.rotations, scores, fitted, average.reached, average.weight)


def accuracy_drop(before: SampleScores, after: SampleScores) -> tuple[float, float]:
    """Accuracy lost, and the standard error of this paired difference."""
    # paired: samples that both get right or wrong do not count
    # int8: NumPy does not subtract truth values
    drop = before.hit.astype(np.int8) - after.hit
    if before.weights is not None:
        return mean_and_error(drop.reshape(len(drop), -1).mean(axis=1), before.clusters, before.weights)
    return float(np.mean(drop)), float(np.std(drop)) / math.sqrt(len(drop))


def value_of(original: SampleScores, scores: SampleScores, settings: SearchSettings) -> float:
    """Objective, or infinity if the accuracy drop is not within the constraint."""
    drop, _ = accuracy_drop(original, scores)
    if drop > settings.max_accuracy_drop + ROUNDING:
        return math.inf
    return metric_value(scores, settings.objective, settings.bins)


Score = Callable[[Sequence[Any]], Sequence[SampleScores]]
"""Scores all samples with each of some (C, n) weights; together, so that the features are read once for all."""

# Bytes of the weights that are scored together; a larger weight is scored alone.
_STACK_BYTES = 2**25

# Bytes of the scores that are kept for another search: 13 a sample and candidate.
_KEPT_BYTES = 2**28
_SAMPLE_BYTES = 13


class Scorer:
    """Makes the candidates that a search asks for, and scores each once.

    Args:
        ensemble: members of the weight that is searched around.
        score: scores all samples with weights.
        score_scaled: scores all samples with the original weight times a factor; `score` does by default.
        original: scores of the original weight, if they are known; else they are asked for.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        score: Score,
        score_scaled: Callable[[float], SampleScores] | None = None,
        *,
        original: SampleScores | None = None,
    ) -> None:
        self.ensemble = ensemble
        self._score = score
        self._score_scaled = score_scaled or self._scaled
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
            averages = self.ensemble.averages(needed, members)
            # as many weights as fit into memory together
            while stack := list(itertools.islice(averages, max(1, _STACK_BYTES // self.ensemble.weight.nbytes))):
                yield self._scored(stack, members)
                n_scored += len(stack)
            # paths end before
            if n_scored < len(needed):
                return

    def _scored(self, stack: Sequence[Average], members: int) -> list[Candidate]:
        scored = []
        for average, scores in zip(stack, self._score([average.weight for average in stack]), strict=True):
            candidate = candidate_of(average, members, scores)
            scored.append(candidate)
            if self._has_room(scores):
                # weights are large, and can be made again
                self._kept[average.angle, members] = replace(candidate, weight=None)
        return scored

    def _has_room(self, scores: SampleScores) -> bool:
        count = len(self._kept) + len(self._limits)
        return (count + 1) * scores.hit.size * _SAMPLE_BYTES <= _KEPT_BYTES

    def _scaled(self, factor: float) -> SampleScores:
        return self._score([self.ensemble.weight * self.ensemble.weight.dtype.type(factor)])[0]


# Largest distance in degrees of the angles that an adaptive search looks at first: the curves are smooth at that scale.
_MAX_COARSE = 8.0

# Angles are whole numbers of a quarter of the grid step.
QUARTERS = 4


@dataclass(frozen=True)
class SearchSettings:
    """Settings of the search; defaults are the paper's where it has one.

    Attributes:
        ensemble_size: members n_e averaged for each candidate at first; 0 (`LIMIT`) for the limit of many.
        max_ensemble_size: cap on the members when accuracy asks for more, 0 in the limit of many; large heads stop
            earlier, at 2^30 turned class vectors (rotations x classes x members) a candidate.
        grows: whether accuracy may ask for more members, and beyond the cap for the limit of many.
        angle_step: step of the grid of angles, degrees.
        adaptive: whether the grid is searched from coarse to fine.
        objective: metric that the choice minimises.
        bins: bins of ECE and AdaECE, at least 1.
        max_accuracy_drop: accuracy that a candidate may lose on the calibration data, a fraction (0.003 = 0.3 points).
        seed: seed of all random draws.
        antithetic: whether members come in pairs of a rotation and its transpose, whose antisymmetric noise cancels.
        tilt: how rotations are drawn.
        tilt_bias: whether whoever scores a weight scales the bias by what is left of the weight (`kept_part`).
    """

    ensemble_size: int = 10
    max_ensemble_size: int = 32
    grows: bool = True
    angle_step: float = 2.0
    adaptive: bool = True
    objective: Objective = "ece"
    bins: int = 15
    max_accuracy_drop: float = 0.003
    seed: int = 0
    antithetic: bool = False
    tilt: TiltParameters = field(default_factory=TiltParameters)
    tilt_bias: bool = False

    def __post_init__(self) -> None:
        """Refuse what the fields of the user's settings let through."""
        if self.ensemble_size < 0:
            raise UsageError(f"ensemble_size is out of its range: {self.ensemble_size}")
        if not 0 < self.angle_step < 90:
            raise UsageError(f"angle_step is out of its range: {self.angle_step}")

    @property
    def grid(self) -> list[float]:
        """Angles in degrees, 0 left out."""
        return self.angles(self.steps(QUARTERS))

    @property
    def coarse(self) -> int:
        """Distance of the angles looked at first, in quarters of the grid step: a power of two."""
        stride = QUARTERS
        # powers of two, so that halving ends at a quarter of the step
        while self.adaptive and 2 * stride * self.angle_step / QUARTERS <= _MAX_COARSE:
            stride *= 2
        return stride

    @property
    def draws(self) -> Draws:
        """Where rotations come from."""
        return Draws(self.seed, self.antithetic, self.tilt)

    def ensemble(self, weight: NDArray[Any]) -> Ensemble:
        """Return the members of a (C, n) weight, for all angles of the search."""
        return Ensemble(weight, self.draws, self.angles(self.steps(1)))

    def steps(self, stride: int) -> list[int]:
        """Multiples of `stride` that give angles between 0 and 90 degrees, in quarters of the grid step."""
        end = math.ceil(90 * QUARTERS / self.angle_step)
        return [q for q in range(stride, end, stride) if q * self.angle_step / QUARTERS < 90]

    def angles(self, quarters: Sequence[int]) -> list[float]:
        """Return the angles in degrees of whole numbers of quarters of the grid step."""
        return [q * self.angle_step / QUARTERS for q in quarters]
