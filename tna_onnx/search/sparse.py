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

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

from tna_onnx.numerics.averages import LIMIT, Average, GrowingAverages, averages, more_members
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.search.candidates import Candidate, candidate_of
from tna_onnx.search.settings import QUARTERS, SearchSettings
from tna_onnx.search.walk import Walk

__all__ = ["Score", "search_sparse"]


Score = Callable[[Sequence[NDArray[Any]]], Sequence[SampleScores]]
"""Scores all samples with each of some (C, n) weights; together, so that the features are read once for all."""


# Weights scored together take so many bytes, or are one.
_STACK = 2**25


# Looked at around the target with more members, in about half degrees or quarters of a larger grid step: in one walk,
# for walks are dear then.
_NEAR = (-8, -4, -2, -1, 0, 1, 2, 4, 8)


# Rotations times classes of all members of one candidate: about 15 seconds on one core. Large heads (n = 2048,
# C = 1000) stop at some hundred members, where their noise, over so many dimensions, is small already.
_MOST_TURNED = 2**30


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
    walk = Walk(Candidate(0.0, 1, 0.0, score([weight])[0]), settings, progress)

    def add(made: Iterator[Average], members: int) -> None:
        for stack in _stacks(made, weight.nbytes):
            scores = score([average.weight for average in stack])
            walk.found([candidate_of(average, members, s) for average, s in zip(stack, scores, strict=True)])

    def extend(quarters: Sequence[int], members: int) -> None:
        new = [q for q in quarters if not walk.has(q, members)]
        add(averages(weight, settings.angles(new), members, settings.draws), members)

    # where the limit of many members has its best angle
    limit = Walk(walk.original, settings)
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
        unit = max(1, settings.coarse // (4 * QUARTERS))
        near = walk.around(target, (-8 * unit, 0, 8 * unit))
        extend(near, members)
        cap = _cap(walk.pool, settings.angles([target])[0], weight.shape[0], settings)
        if members < cap and walk.falls_short(near[0], members):
            near, stride, centres = walk.around(target, [unit * k for k in _NEAR]), QUARTERS * unit, 1
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
                stride, centres = max(settings.coarse // 2, QUARTERS), 2
                extend([q for q in settings.steps(stride) if q < near[0]], members)
    walk.refine(stride, 1, lambda quarters: extend(quarters, members), members, centres)
    walk.end()
    return tuple(walk.pool)


def _stacks(made: Iterator[Average], size: int) -> Iterator[list[Average]]:
    """Cut into lists of weights, of `size` bytes each, that fit into memory together."""
    while stack := list(itertools.islice(made, max(1, _STACK // size))):
        yield stack


def _cap(level: Sequence[Candidate], target: float, classes: int, settings: SearchSettings) -> int:
    """Members that the search may average: as set, and no more than 2^30 turned class vectors a candidate."""
    turned = max([1.0, *(c.rotations for c in level if c.angle <= target)]) * classes  # none in the limit
    return max(settings.ensemble_size, min(settings.max_ensemble_size, int(_MOST_TURNED / turned)))
