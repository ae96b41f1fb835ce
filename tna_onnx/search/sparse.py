"""The sparse search: the weight alone, over tilted and averaged class vectors. Pure.

A candidate is an angle (mRC) and a number of members; its weight is a function of these, the original weight and the
seed, so it can be made again at any time. Angles are looked at from coarse to fine: every 8 degrees first, then half
as far on both sides of the two best, again and again down to a quarter of the grid step.
(`adaptive=False` starts with the whole grid.) The search (paper, section "Experimental Details") goes

1. over the angles with the ensemble size asked for;
2. with more members around the target angle, up to a cap, while accuracy stands in the way: the level has no
   acceptable candidate near the target, or its best one costs so much accuracy that two standard errors of the paired
   difference reach beyond the constraint. If the cap is too low for that, the limit of many stands beside it: more
   members only come closer to that;
3. finer and finer around the best two of the largest ensembles (the best one, where step 2 has looked closely).

The target is the best angle of the limit of many members, W' -> cos(mRC) W. Averaging more members leaves this effect
on the confidences and shrinks the noise on the ranking, so the limit shows where the search is going when few members
(short features) drown it in noise. It costs no product: its logits are those of the input, scaled.

Angle 0 is the original weight and always a candidate, so the choice is never worse than the input on the objective.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.averages import LIMIT, more_members
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.search.candidates import Candidate
from tna_onnx.search.scored import Scored
from tna_onnx.search.settings import QUARTERS, SearchSettings
from tna_onnx.search.walk import Walk

__all__ = ["search_sparse"]


# Offsets from the target that are looked at with more members, in about half degrees or quarters of a larger grid step:
# all in one walk, which adds little for each.
_NEAR = (-8, -4, -2, -1, 0, 1, 2, 4, 8)


# Rotations times classes of all members of one candidate: about 15 seconds on one core. Large heads (n = 2048,
# C = 1000) stop at some hundred members, where their noise, over so many dimensions, is small already.
_MAX_TURNED = 2**30


def search_sparse(
    scored: Scored,
    settings: SearchSettings,
    progress: Callable[[int, int], None],
    rows: NDArray[np.bool_] | None = None,
) -> tuple[Candidate, ...]:
    """Score candidates around the best one; the first is the original weight.

    Args:
        scored: makes and scores candidates on all calibration samples.
        settings: grid, objective and constraint.
        progress: called with (candidates scored, candidates expected).
        rows: (N,) samples to search on; all by default.

    Raises:
        ValueError: the weight cannot be tilted (n < 2, or all class vectors zero).
    """
    take = functools.partial(_some, rows)
    walk = Walk(Candidate(0.0, 1, 0.0, take(scored.original)), settings, progress)
    target = _target(walk.original, settings, lambda angle: take(scored.limit(angle)))
    search = _Search(scored, settings, walk, take)
    # step 1
    search.look_along(target)
    # step 2
    level = search.add_members(target)
    extend = functools.partial(search.extend, members=level.members)
    walk.refine(level.stride, 1, extend, level.members, level.centres)  # step 3
    walk.end()
    return tuple(walk.pool)


def _some(rows: NDArray[np.bool_] | None, scores: SampleScores) -> SampleScores:
    if rows is None:
        return scores
    return scores.take(rows)


def _target(original: Candidate, settings: SearchSettings, scores_at: Callable[[float], SampleScores]) -> int:
    """Return the best angle of the limit of many members, in quarters of the grid step."""
    limit = Walk(original, settings)

    def extend(quarters: Sequence[int]) -> None:
        limit.add([Candidate(angle, LIMIT, 0.0, scores_at(angle)) for angle in settings.angles(quarters)])

    extend(settings.steps(settings.coarse))
    # as finely as the search itself: the target lies on its grid
    limit.refine(settings.coarse, 1, extend, LIMIT)
    return limit.quarters(limit.best(LIMIT))


@dataclass(frozen=True)
class _Level:
    """Where step 3 begins: with so many members, `stride` quarters of the grid step around the best `centres`."""

    members: int
    stride: int
    centres: int


@dataclass(frozen=True, eq=False)
class _Search:
    """Steps 1 and 2; `walk` is where the candidates are kept.

    Angles are whole numbers of quarters of the grid step.
    """

    scored: Scored
    settings: SearchSettings
    walk: Walk
    take: Callable[[SampleScores], SampleScores]

    def extend(self, quarters: Sequence[int], members: int) -> None:
        """Look at those of some angles that are new."""
        new = [q for q in quarters if not self.walk.has(q, members)]
        for found in self.scored.candidates(self.settings.angles(new), members):
            self.walk.add([replace(candidate, scores=self.take(candidate.scores)) for candidate in found])

    def look_along(self, target: int) -> None:
        """Step 1: up to two coarse steps past the target, and on while the best angle is the last one."""
        walk = self.walk
        members = self.settings.ensemble_size
        coarse = self.settings.steps(self.settings.coarse)
        # few members carry noise: their best angle may lie past that of the limit
        end = target + 2 * self.settings.coarse if self.settings.adaptive else coarse[-1]
        self.extend([q for q in coarse if q <= end], members)
        for q in coarse:
            if q <= end:
                continue
            if walk.last(members) != walk.quarters(walk.best(members)):
                return
            self.extend([q], members)
            if not walk.has(q, members):  # paths end before
                return

    def add_members(self, target: int) -> _Level:
        """Step 2, where it is needed."""
        members = self.settings.ensemble_size
        level = _Level(members, self.settings.coarse, centres=2)
        # the target is the original weight, or there is no noise that members could shrink
        if target == 0 or members == LIMIT or not self.settings.grows:
            return level
        # half degrees, or quarters of a larger grid step (see `_NEAR`)
        unit = max(1, self.settings.coarse // (4 * QUARTERS))
        near = self.walk.around(target, (-8 * unit, 0, 8 * unit))
        self.extend(near, members)
        cap = _cap(self.walk.pool, self.settings.angles([target])[0], len(self.scored.ensemble.weight), self.settings)
        # accuracy does not stand in the way
        if not self.walk.falls_short(near[0], members):
            return level
        return self._grow(target, unit, cap)

    def _grow(self, target: int, unit: int, cap: int) -> _Level:
        """Add members around the target until accuracy allows it, or there are `cap` of them."""
        walk = self.walk
        members = self.settings.ensemble_size
        near = walk.around(target, [unit * k for k in _NEAR])
        while members < cap and walk.falls_short(near[0], members):
            members = min(more_members(members), cap)
            # The target tells whether more members are needed; only the last level needs its neighbours.
            self.extend([target], members)
            if members == cap or not walk.falls_short(near[0], members):
                self.extend(near, members)
        if walk.falls_short(near[0], members):
            self.extend(near, LIMIT)
            # of two that keep the constraint, the better one
            members = min((members, LIMIT), key=walk.least)
        return _Level(members, QUARTERS * unit, centres=1)


def _cap(level: Sequence[Candidate], target: float, classes: int, settings: SearchSettings) -> int:
    """Members that the search may average: as set, and no more than 2^30 turned class vectors a candidate."""
    turned = max([1.0, *(c.rotations for c in level if c.angle <= target)]) * classes  # none in the limit
    # the bound is for sizes that the search chooses: the one asked for stands
    return max(settings.ensemble_size, min(settings.max_ensemble_size, int(_MAX_TURNED / turned)))
