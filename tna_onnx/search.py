"""The search over tilted and averaged class vectors: candidates, their scores, and the choice. Pure.

A candidate is an angle (mRC) and a number of members; its weight is a function of these, the original weight and the
seed, so it can be made again at any time. The sparse search (paper, section "Experimental Details") goes

1. over a grid of angles in [0, 90) degrees, with the ensemble size asked for;
2. with four times the members around the target angle, and again up to a cap, while accuracy stands in the way: the
   level has no acceptable candidate near the target, or its best one costs so much accuracy that two standard errors
   of the paired difference reach beyond the constraint. At the cap, smaller angles are tried last;
3. at quarters of the grid step around the best candidate that keeps the constraint.

The target is the best angle of the limit of many members, W' -> cos(mRC) W. Averaging more members leaves this effect
on the confidences and shrinks the noise on the ranking, so the limit shows where the search is going when few members
(short features) drown it in noise. It costs no product: its logits are those of the input, scaled.

Angle 0 is the original weight and always a candidate, so the choice is never worse than the input on the objective.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.numerics.metrics import Objective, objective_value
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.numerics.tilt import TiltParameters, tilted_sums

__all__ = ["LIMIT", "Candidate", "SearchSettings", "candidate_weight", "choose", "search_complete", "search_sparse"]

LIMIT = 0
"""Ensemble size that stands for the limit of many members, W' = cos(mRC) W."""

Score = Callable[[NDArray[Any]], SampleScores]
"""Scores all samples with a (C, n) weight."""

ScoreFit = Callable[[NDArray[Any], Any], tuple[SampleScores, Any]]
"""(weight, map to start from) -> scores of all samples after a map fitted for this weight, and that map."""

# Paths walked side by side: above this many members, sums are kept per angle instead of vectors per member.
_GROUP = 16

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
        return [k * self.angle_step for k in range(1, math.ceil(90 / self.angle_step)) if k * self.angle_step < 90]


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
    """

    angle: float
    ensemble_size: int
    rotations: float
    scores: SampleScores
    fitted: Any = None
    reached: float = 0.0


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
        score: scores all calibration samples with a weight.
        settings: grid, objective and constraint.
        progress: called with (candidates scored, candidates expected).
        score_scaled: scores all calibration samples with the original weight times a factor; `score` does by default.

    Raises:
        ValueError: the weight cannot be tilted (n < 2, or all class vectors zero).
    """
    pool = [Candidate(0.0, 1, 0.0, score(weight))]
    expected = 1 + len(settings.grid) + 6

    def extend(angles: Sequence[float], members: int) -> list[Candidate]:
        new = []
        for angle, average, rotations, reached in _averages(weight, angles, members, settings):
            new.append(Candidate(angle, members, rotations, score(average), reached=reached))
            progress(len(pool) + len(new), max(expected, len(pool) + len(new)))
        pool.extend(new)
        return new

    target = _target(pool[0], score_scaled or (lambda scale: score((weight * scale).astype(weight.dtype))), settings)
    near = [angle for angle in settings.grid if abs(angle - target) <= 2 * settings.angle_step]
    members, level = settings.ensemble_size, extend(settings.grid, settings.ensemble_size)
    cap = _cap(level, target, weight.shape[0], settings)
    while target > 0 and LIMIT < members < cap and _falls_short(pool[0], level, near[0], settings):
        members = min(4 * members, cap)
        level = extend(near, members)
    if target > 0 and members > settings.ensemble_size and _best(pool[0], level, settings).angle < near[0]:
        extend([angle for angle in settings.grid if angle < near[0]], members)
    best = pool[choose(pool, settings)]
    extend(_between(best, settings), best.ensemble_size)
    progress(len(pool), len(pool))
    return tuple(pool)


def search_complete(
    weight: NDArray[Any], score: ScoreFit, settings: SearchSettings, progress: Callable[[int, int], None]
) -> tuple[Candidate, ...]:
    """Score pairs of a weight and the map fitted for it, over the grid and then around the best pair.

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
    pool = [Candidate(0.0, 1, 0.0, scores, fitted)]
    expected, members = 1 + len(settings.grid) + 6, settings.ensemble_size

    def extend(angles: Sequence[float], start: Any) -> None:
        for angle, average, rotations, reached in _averages(weight, angles, members, settings):
            try:
                scores, start = score(average, start)
            except DataError:  # no map for this weight: it is no candidate
                continue
            pool.append(Candidate(angle, members, rotations, scores, start, reached))
            progress(len(pool), max(expected, len(pool)))

    extend(settings.grid, fitted)
    best = pool[choose(pool, settings)]
    extend(_between(best, settings), best.fitted)
    progress(len(pool), len(pool))
    return tuple(pool)


def choose(candidates: Sequence[Candidate], settings: SearchSettings, rows: NDArray[Any] | None = None) -> int:
    """Return the index of the best candidate under the accuracy constraint; of equals, the first.

    Candidates of the largest ensembles go first: they are there because smaller ones cost accuracy. If none of them
    both keeps the constraint and beats the original weight, the choice is among all.

    Args:
        candidates: with the original weight first.
        settings: objective and constraint.
        rows: samples to choose by; all by default.
    """
    scores = [c.scores if rows is None else c.scores.take(rows) for c in candidates]
    largest = max(c.ensemble_size for c in candidates)
    values = np.array([_objective(s, settings) if _keeps(scores[0], s, settings) else math.inf for s in scores])
    first = [k for k, c in enumerate(candidates) if k == 0 or c.ensemble_size == largest]
    best = first[int(np.argmin(values[first]))]
    return best if best > 0 else int(np.argmin(values))


def _between(best: Candidate, settings: SearchSettings) -> list[float]:
    """Angles at quarters of the grid step around a candidate; none around the original weight."""
    if best.angle == 0:
        return []
    around = [best.angle + k / 4 * settings.angle_step for k in (-3, -2, -1, 1, 2, 3)]
    return [angle for angle in around if 0 < angle < 90]


def candidate_weight(weight: NDArray[Any], candidate: Candidate, settings: SearchSettings) -> NDArray[Any]:
    """Make the (C, n) weight of a candidate again, bit for bit."""
    if candidate.angle == 0:
        return weight
    return next(_averages(weight, [candidate.angle], candidate.ensemble_size, settings))[1]


def _target(original: Candidate, score_scaled: Callable[[float], SampleScores], settings: SearchSettings) -> float:
    """Best angle of the grid in the limit of many members, under the constraint; 0 if that is the original weight."""
    limit = [Candidate(a, 1, 0.0, score_scaled(math.cos(math.radians(a)))) for a in settings.grid]
    return _best(original, limit, settings).angle


def _cap(level: Sequence[Candidate], target: float, classes: int, settings: SearchSettings) -> int:
    """Members that the search may average: as set, and no more than 2^30 turned class vectors a candidate."""
    turned = max([1.0, *(c.rotations for c in level if c.angle <= target)]) * classes  # none in the limit
    return max(settings.ensemble_size, min(settings.max_ensemble_size, int(_MOST_TURNED / turned)))


def _falls_short(original: Candidate, level: Sequence[Candidate], near: float, settings: SearchSettings) -> bool:
    """Whether accuracy keeps a level from the target: its choice lies below `near`, or may cost too much."""
    best = _best(original, level, settings)
    return best.angle < near or not _keeps(original.scores, best.scores, settings, standard_errors=2.0)


def _best(original: Candidate, level: Sequence[Candidate], settings: SearchSettings) -> Candidate:
    pool = [original, *level]
    return pool[choose(pool, settings)]


def _keeps(before: SampleScores, after: SampleScores, settings: SearchSettings, standard_errors: float = 0.0) -> bool:
    """Whether the accuracy drop, plus some standard errors of the paired difference, is within the constraint."""
    drop = before.hit.astype(np.float64) - after.hit
    upper = np.mean(drop) + standard_errors * np.std(drop) / math.sqrt(len(drop))
    return bool(upper <= settings.max_accuracy_drop + 1e-12)


def _objective(scores: SampleScores, settings: SearchSettings) -> float:
    return objective_value(scores, settings.objective, settings.bins)


def _averages(
    weight: NDArray[Any], angles: Sequence[float], members: int, settings: SearchSettings
) -> Iterator[tuple[float, NDArray[Any], float, float]]:
    """Yield (target in degrees, averaged weight, mean rotations, mean mRC reached in degrees) for ascending angles.

    Member k is the path of the k-th child of the seed, whatever the number of members.
    """
    if members == LIMIT:
        for angle in angles:
            yield angle, (weight * math.cos(math.radians(angle))).astype(weight.dtype), 0.0, angle
        return
    radians = [math.radians(a) for a in angles]
    parts = list(_parts(members, radians, weight, settings))
    if len(parts) == 1:  # nothing to keep: one angle after the other
        for angle, (reached, total, rotations) in zip(angles, parts[0][1], strict=False):
            yield angle, (total / members).astype(weight.dtype), rotations, math.degrees(reached)
        return
    sums = [np.zeros(weight.shape, order="F") for _ in angles]
    means, steps = np.zeros((len(angles), 2)), len(angles)
    for size, walk in parts:
        k = -1
        for k, (reached, total, rotations) in enumerate(walk):
            sums[k] += total
            means[k] += np.array([rotations, reached]) * size / members
        steps = min(steps, k + 1)
    for angle, total, (rotations, reached) in zip(angles[:steps], sums, means.tolist(), strict=False):
        yield angle, (total / members).astype(weight.dtype), rotations, math.degrees(reached)


def _parts(
    members: int, radians: list[float], weight: NDArray[Any], settings: SearchSettings
) -> Iterator[tuple[int, Iterator[tuple[float, NDArray[np.float64], float]]]]:
    """Yield (members, walk of `tilted_sums`) whose sums together hold all members."""
    pairs = members // 2 if settings.antithetic else 0
    seeds = np.random.SeedSequence(settings.seed).spawn(members - pairs)
    for k in range(0, pairs, _GROUP):
        group = seeds[k : min(k + _GROUP, pairs)]
        yield 2 * len(group), tilted_sums(weight, radians, group, settings.tilt, antithetic=True)
    for k in range(pairs, len(seeds), _GROUP):
        group = seeds[k : k + _GROUP]
        yield len(group), tilted_sums(weight, radians, group, settings.tilt)
