"""The search over tilted and averaged class vectors: candidates, their scores, and the choice. Pure.

A candidate is an angle (mRC) and a number of members; its weight is a function of these, the original weight and the
seed, so it can be made again at any time. Angles are looked at from coarse to fine: every 8 degrees first, then half
as far on both sides of the two best (four in a complete search), again and again down to a quarter of the grid step.
(`adaptive=False` starts with the whole grid.) The sparse search (paper, section "Experimental Details") goes

1. over the angles with the ensemble size asked for;
2. with more members around the target angle, up to a cap, while accuracy stands in the way: the level has no
   acceptable candidate near the target, or its best one costs so much accuracy that two standard errors of the paired
   difference reach beyond the constraint. At the cap, smaller angles are tried last;
3. finer and finer around the best two of the largest ensembles.

The target is the best angle of the limit of many members, W' -> cos(mRC) W. Averaging more members leaves this effect
on the confidences and shrinks the noise on the ranking, so the limit shows where the search is going when few members
(short features) drown it in noise. It costs no product: its logits are those of the input, scaled.

Angle 0 is the original weight and always a candidate, so the choice is never worse than the input on the objective.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.numerics.averages import LIMIT, Average, Draws, GrowingAverages, averages, more_members
from tna_onnx.numerics.metrics import Objective, objective_value
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.numerics.tilt import TiltParameters

__all__ = [
    "LIMIT",
    "Candidate",
    "SearchSettings",
    "candidate_weight",
    "candidate_weights",
    "choose",
    "search_complete",
    "search_sparse",
]

Score = Callable[[Sequence[NDArray[Any]]], Sequence[SampleScores]]
"""Scores all samples with each of some (C, n) weights; together, so that the features are read once for all."""

ScoreFit = Callable[[NDArray[Any], Any], tuple[SampleScores, Any]]
"""(weight, map to start from) -> scores of all samples after a map fitted for this weight, and that map."""

# Weights scored together take so many bytes, or are one.
_STACK = 2**25

# Degrees between the angles that an adaptive search looks at first; the curves are smooth at that scale.
_COARSE = 8.0

# Angles are whole numbers of a quarter of the grid step.
_QUARTERS = 4

# Looked at around the target with more members, in about half degrees or quarters of a larger grid step: in one walk,
# for walks are dear then.
_NEAR = (-8, -4, -2, -1, 0, 1, 2, 4, 8)

# Rotations times classes of all members of one candidate: about 15 seconds on one core. Large heads (n = 2048,
# C = 1000) stop at some hundred members, where their noise, over so many dimensions, is small already.
_MOST_TURNED = 2**30


@dataclass(frozen=True)
class SearchSettings:
    """Settings of the search; defaults are the paper's where it has one.

    Attributes:
        ensemble_size: members n_e averaged per candidate; 0 (`LIMIT`) for the limit of many.
        max_ensemble_size: cap on the members when the accuracy constraint asks for more; large heads stop earlier,
            at 2^30 turned class vectors (rotations x classes x members) a candidate.
        angle_step: grid step in degrees.
        adaptive: look at the grid from coarse to fine instead of at all of it.
        objective: metric that the choice minimises.
        bins: bins of ECE and AdaECE.
        max_accuracy_drop: accuracy that a candidate may lose, as a fraction (0.003 = 0.3 points).
        seed: of all random draws.
        antithetic: members come in pairs R, R^T, whose antisymmetric noise cancels.
        tilt: distribution of the rotations.
    """

    ensemble_size: int = 10
    max_ensemble_size: int = 2560
    angle_step: float = 2.0
    adaptive: bool = True
    objective: Objective = "ece"
    bins: int = 15
    max_accuracy_drop: float = 0.003
    seed: int = 0
    antithetic: bool = False
    tilt: TiltParameters = field(default_factory=TiltParameters)

    def __post_init__(self) -> None:
        for name, good in (
            ("ensemble_size", self.ensemble_size >= 0),
            ("max_ensemble_size", self.max_ensemble_size >= self.ensemble_size),
            ("angle_step", 0 < self.angle_step < 90),
            ("objective", self.objective in ("ece", "adaece", "nll")),
            ("bins", self.bins >= 1),
            ("max_accuracy_drop", 0 <= self.max_accuracy_drop <= 1),
            ("seed", self.seed >= 0),
        ):
            if not good:
                raise ValueError(f"{name} is out of its range: {getattr(self, name)}")

    @property
    def grid(self) -> list[float]:
        """Angles in degrees, 0 left out."""
        return self.angles(self.steps(_QUARTERS))

    @property
    def coarse(self) -> int:
        """Distance of the angles looked at first, in quarters of the grid step: a power of two."""
        stride = _QUARTERS
        while self.adaptive and 2 * stride * self.angle_step / _QUARTERS <= _COARSE:
            stride *= 2
        return stride

    @property
    def draws(self) -> Draws:
        """Where rotations come from."""
        return Draws(self.seed, self.antithetic, self.tilt)

    def steps(self, stride: int) -> list[int]:
        """Multiples of `stride` that give angles between 0 and 90 degrees, in quarters of the grid step."""
        end = math.ceil(90 * _QUARTERS / self.angle_step)
        return [q for q in range(stride, end, stride) if q * self.angle_step / _QUARTERS < 90]

    def angles(self, quarters: Sequence[int]) -> list[float]:
        """Return the angles in degrees of whole numbers of quarters of the grid step."""
        return [q * self.angle_step / _QUARTERS for q in quarters]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A weight that was scored.

    Attributes:
        angle: target of mRC in degrees; 0 is the original weight.
        reached: mean mRC of the members in degrees, past the target by a part of one rotation.
        ensemble_size: members averaged.
        rotations: mean number of rotations n_r of a member.
        scores: of all calibration samples; in a complete search after the map.
        fitted: the map fitted for this weight, in a complete search.
        weight: (C, n), while it is the best one found; else None, and `candidate_weight` makes it again.
    """

    angle: float
    ensemble_size: int
    rotations: float
    scores: SampleScores
    fitted: Any = None
    reached: float = 0.0
    weight: NDArray[Any] | None = field(default=None, repr=False)


def search_sparse(
    weight: NDArray[Any],
    score: Score,
    settings: SearchSettings,
    progress: Callable[[int, int], None],
    score_scaled: Callable[[float], SampleScores] | None = None,
) -> tuple[Candidate, ...]:
    """Score candidates around the best one; the first is the original weight.

    Args:
        weight: (C, n) class vectors.
        score: scores all calibration samples with weights.
        settings: grid, objective and constraint.
        progress: called with (candidates scored, candidates expected).
        score_scaled: scores all calibration samples with the original weight times a factor; `score` does by default.

    Raises:
        ValueError: the weight cannot be tilted (n < 2, or all class vectors zero).
    """
    walk = _Walk(Candidate(0.0, 1, 0.0, score([weight])[0]), settings, progress)

    def add(made: Iterator[Average], members: int) -> None:
        for stack in _stacks(made, weight.nbytes):
            scores = score([average.weight for average in stack])
            walk.found([_candidate(average, members, s) for average, s in zip(stack, scores, strict=True)])

    def extend(quarters: Sequence[int], members: int) -> None:
        new = [q for q in quarters if not walk.has(q, members)]
        add(averages(weight, settings.angles(new), members, settings.draws), members)

    # where the limit of many members has its best angle
    limit = _Walk(walk.original, settings)
    by = score_scaled or (lambda factor: score([(weight * factor).astype(weight.dtype)])[0])

    def scale(quarters: Sequence[int]) -> None:
        angles = settings.angles(quarters)
        limit.found([Candidate(a, LIMIT, 0.0, by(math.cos(math.radians(a)))) for a in angles])

    scale(settings.steps(settings.coarse))
    limit.refine(settings.coarse, 1, scale, LIMIT)
    target = limit.quarters(limit.best(LIMIT))

    members, coarse, stride, centres = settings.ensemble_size, settings.steps(settings.coarse), settings.coarse, 2
    beyond = target + 2 * settings.coarse if settings.adaptive else coarse[-1]
    extend([q for q in coarse if q <= beyond], members)
    for q in coarse:
        if q > beyond and walk.last(members) == walk.quarters(walk.best(members)):
            extend([q], members)
            if not walk.has(q, members):  # paths end before
                break
    if target > 0 and members > LIMIT:
        unit = max(1, settings.coarse // (4 * _QUARTERS))
        near = walk.around(target, (-8 * unit, 0, 8 * unit))
        extend(near, members)
        cap = _cap(walk.pool, settings.angles([target])[0], weight.shape[0], settings)
        if members < cap and walk.falls_short(near[0], members):
            near, stride, centres = walk.around(target, [unit * k for k in _NEAR]), _QUARTERS * unit, 1
            growing, middle = GrowingAverages(weight, settings.angles(near), settings.draws), near.index(target)
            while members < cap and walk.falls_short(near[0], members):
                members = min(more_members(members), cap)
                growing.grow(members)
                ahead = [middle] if middle < len(growing) else []
                add((growing.at(k) for k in ahead), members)
                if members == cap or not walk.falls_short(near[0], members):
                    add((growing.at(k) for k in range(len(growing)) if k not in ahead), members)
            if walk.quarters(walk.best(members)) < near[0]:
                # what is acceptable may be a comb here, noise around the constraint: half as far apart
                stride, centres = max(settings.coarse // 2, _QUARTERS), 2
                extend([q for q in settings.steps(stride) if q < near[0]], members)
    walk.refine(stride, 1, lambda quarters: extend(quarters, members), members, centres)
    walk.end()
    return tuple(walk.pool)


def search_complete(
    weight: NDArray[Any], score: ScoreFit, settings: SearchSettings, progress: Callable[[int, int], None]
) -> tuple[Candidate, ...]:
    """Score pairs of a weight and the map fitted for it, from coarse to fine around the best four.

    The first is the original weight with its map; accuracy is held against that one. Fits start from the neighbour's.

    Args:
        weight: (C, n) class vectors.
        score: fits the map for a weight and scores all calibration samples.
        settings: grid, objective and constraint; the ensemble size stays as it is.
        progress: called with (candidates scored, candidates expected).

    Raises:
        ValueError: the weight cannot be tilted (n < 2, or all class vectors zero).

    Source: the paper's TNA (comp.), section "Experimental Details".
    """
    scores, fitted = score(weight, None)
    walk, members = _Walk(Candidate(0.0, 1, 0.0, scores, fitted), settings, progress), settings.ensemble_size

    def extend(quarters: Sequence[int]) -> None:
        for average in averages(weight, settings.angles(quarters), members, settings.draws):
            neighbour = min(walk.pool, key=lambda other: abs(other.angle - average.angle))
            try:
                scores, fitted = score(average.weight, neighbour.fitted)
            except DataError:  # no map for this weight: it is no candidate
                continue
            walk.found([_candidate(average, members, scores, fitted)])

    extend(settings.steps(settings.coarse))
    walk.refine(settings.coarse, 1, extend, members, centres=4)  # fitted maps leave a flat curve with several dips
    walk.end()
    return tuple(walk.pool)


class _Walk:
    """Candidates found so far, the original weight first, and where to look next.

    Angles are whole numbers of quarters of the grid step.
    """

    def __init__(
        self, original: Candidate, settings: SearchSettings, progress: Callable[[int, int], None] | None = None
    ) -> None:
        self.pool, self._values = [original], [_value(original, original, settings)]
        self._settings, self._progress, self._best_kept = settings, progress, 0
        # halving reaches quarters of the step in log2(coarse) turns, of about three candidates
        self._expected = 1 + len(settings.steps(settings.coarse)) + 3 * int(math.log2(settings.coarse))

    @property
    def original(self) -> Candidate:
        """The candidate at angle 0."""
        return self.pool[0]

    def found(self, candidates: Sequence[Candidate]) -> None:
        """Add candidates; only the best of all keeps its weight."""
        self.pool += candidates
        self._values += [_value(self.original, c, self._settings) for c in candidates]
        best = _pick(self.pool, self._values)
        for k in {*range(len(self.pool) - len(candidates), len(self.pool)), self._best_kept} - {best}:
            self.pool[k] = dataclasses.replace(self.pool[k], weight=None)
        self._best_kept = best
        if self._progress:
            self._progress(len(self.pool), max(self._expected, len(self.pool)))

    def end(self) -> None:
        """Tell that nothing will follow."""
        if self._progress:
            self._progress(len(self.pool), len(self.pool))

    def quarters(self, candidate: Candidate) -> int:
        """Angle of a candidate in quarters of the grid step."""
        return round(candidate.angle * _QUARTERS / self._settings.angle_step)

    def has(self, quarters: int, members: int) -> bool:
        """Whether this angle was looked at with so many members."""
        return any(self.quarters(c) == quarters and c.ensemble_size == members for c in self.pool)

    def level(self, members: int) -> list[Candidate]:
        """Acceptable candidates with so many members, and the original weight, the best first."""
        ranked = sorted((value, k) for k, value in enumerate(self._values) if value < math.inf)
        return [self.pool[k] for _, k in ranked if k == 0 or self.pool[k].ensemble_size == members]

    def best(self, members: int) -> Candidate:
        """Return the best acceptable candidate of a level."""
        return self.level(members)[0]

    def last(self, members: int) -> int:
        """Largest angle of a level."""
        return max(self.quarters(c) for k, c in enumerate(self.pool) if k == 0 or c.ensemble_size == members)

    def falls_short(self, near: int, members: int) -> bool:
        """Whether accuracy keeps a level from the target: its choice lies below `near`, or may cost too much."""
        best = self.best(members)
        drop, error = _drop(self.original.scores, best.scores)
        return self.quarters(best) < near or drop + 2 * error > self._settings.max_accuracy_drop + 1e-12

    def around(self, quarters: int, offsets: Sequence[int]) -> list[int]:
        """Angles at these distances that lie between 0 and 90 degrees."""
        inside = set(self._settings.steps(1))
        return [quarters + k for k in offsets if quarters + k in inside]

    def refine(
        self, stride: int, last: int, extend: Callable[[list[int]], object], members: int, centres: int = 2
    ) -> None:
        """Look half as far on both sides of the best `centres`, again and again down to a distance of `last`."""
        tried: set[int] = set()  # those that cannot be had are not asked for again
        while stride > last:
            stride //= 2
            near = {q for c in self.level(members)[:centres] for q in self.around(self.quarters(c), (-stride, stride))}
            new = sorted(q for q in near - tried if not self.has(q, members))
            tried.update(new)
            if new:
                extend(new)


def choose(candidates: Sequence[Candidate], settings: SearchSettings, rows: NDArray[Any] | None = None) -> int:
    """Return the index of the best candidate under the accuracy constraint; of equals, the first.

    Candidates of the largest ensembles go first: they are there because smaller ones cost accuracy. If none of them
    both keeps the constraint and beats the original weight, the choice is among all.

    Args:
        candidates: with the original weight first.
        settings: objective and constraint.
        rows: samples to choose by; all by default.
    """

    def taken(candidate: Candidate) -> Candidate:
        return candidate if rows is None else dataclasses.replace(candidate, scores=candidate.scores.take(rows))

    original = taken(candidates[0])
    return _pick(candidates, [_value(original, taken(c), settings) for c in candidates])


def _pick(candidates: Sequence[Candidate], values: Sequence[float]) -> int:
    """Index of the choice, from the value of each candidate: infinite if it costs too much accuracy."""
    largest = max(c.ensemble_size for c in candidates)
    first = [k for k, c in enumerate(candidates) if k == 0 or c.ensemble_size == largest]
    best = min(first, key=lambda k: values[k])
    return best if best > 0 else min(range(len(values)), key=lambda k: values[k])


def candidate_weight(weight: NDArray[Any], candidate: Candidate, settings: SearchSettings) -> NDArray[Any]:
    """Make the (C, n) weight of a candidate again, bit for bit."""
    if candidate.weight is not None:
        return candidate.weight
    return next(candidate_weights(weight, [candidate], settings))[1]


def candidate_weights(
    weight: NDArray[Any], candidates: Sequence[Candidate], settings: SearchSettings
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield (index, (C, n) weight) of candidates, in any order: those of one ensemble size are made in one walk."""
    yield from ((k, weight) for k, c in enumerate(candidates) if c.angle == 0)
    for size in sorted({c.ensemble_size for c in candidates if c.angle > 0}):
        level = [(c.angle, k) for k, c in enumerate(candidates) if c.angle > 0 and c.ensemble_size == size]
        for average in averages(weight, sorted({angle for angle, _ in level}), size, settings.draws):
            yield from ((k, average.weight) for angle, k in level if angle == average.angle)


def _candidate(average: Average, members: int, scores: SampleScores, fitted: Any = None) -> Candidate:
    return Candidate(average.angle, members, average.rotations, scores, fitted, average.reached, average.weight)


def _stacks(made: Iterator[Average], size: int) -> Iterator[list[Average]]:
    """Cut into lists of weights, of `size` bytes each, that fit into memory together."""
    while stack := list(itertools.islice(made, max(1, _STACK // size))):
        yield stack


def _cap(level: Sequence[Candidate], target: float, classes: int, settings: SearchSettings) -> int:
    """Members that the search may average: as set, and no more than 2^30 turned class vectors a candidate."""
    turned = max([1.0, *(c.rotations for c in level if c.angle <= target)]) * classes  # none in the limit
    return max(settings.ensemble_size, min(settings.max_ensemble_size, int(_MOST_TURNED / turned)))


def _drop(before: SampleScores, after: SampleScores) -> tuple[float, float]:
    """Accuracy lost, and the standard error of this paired difference."""
    drop = before.hit.astype(np.int8) - after.hit
    return float(np.mean(drop)), float(np.std(drop)) / math.sqrt(len(drop))


def _value(original: Candidate, candidate: Candidate, settings: SearchSettings) -> float:
    """Objective, or infinity if the accuracy drop is not within the constraint."""
    if _drop(original.scores, candidate.scores)[0] > settings.max_accuracy_drop + 1e-12:
        return math.inf
    return objective_value(candidate.scores, settings.objective, settings.bins)
