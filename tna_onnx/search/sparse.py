"""The search for the best angle and number of members: sparse (the weight alone) and complete (weight and map).

Angles go from coarse to fine: every 8 degrees, then half as far around the two best, down to a quarter of the grid
step. The sparse search (paper, section "Experimental Details") goes
1. over the angles with the requested ensemble size;
2. with more members near the target angle, up to a cap, while their noise costs accuracy; the last candidate is the
   limit of many members, W' -> cos(mRC) W, whose best angle is the target;
3. finer around the best two of the largest ensembles (the best one, where step 2 has looked closely).

Angle 0, the original weight, is always a candidate.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.numerics.averages import LIMIT, Ensemble, more_members
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.search.candidates import (
    QUARTERS,
    ROUNDING,
    Candidate,
    Scorer,
    SearchSettings,
    accuracy_drop,
    candidate_of,
    pick,
    value_of,
)


class Walk:
    """The candidates so far, the original weight first, and the angles to score next.

    Angles are whole numbers of quarters of the grid step.
    """

    def __init__(
        self, original: Candidate, settings: SearchSettings, progress: Callable[[int, int], None] | None = None
    ) -> None:
        self.pool = [original]
        self._values = [value_of(original, original, settings)]
        self._settings = settings
        self._progress = progress
        self._best = 0
        # halving reaches quarters of the step in log2(coarse) turns, of about three candidates
        self._expected = 1 + len(settings.steps(settings.coarse)) + 3 * int(math.log2(settings.coarse))

    @property
    def original(self) -> Candidate:
        """The candidate at angle 0."""
        return self.pool[0]

    def add(self, candidates: Sequence[Candidate]) -> None:
        """Add candidates; only the best of all keeps its weight."""
        self.pool += candidates
        self._values += [value_of(self.original, c, self._settings) for c in candidates]
        best = pick(self.pool, self._values)
        new = range(len(self.pool) - len(candidates), len(self.pool))
        for k in {*new, self._best} - {best}:  # weights are large, and can be made again
            self.pool[k] = dataclasses.replace(self.pool[k], weight=None)
        self._best = best
        if self._progress:
            # how many members accuracy will ask for is not known: the total may grow
            self._progress(len(self.pool), max(self._expected, len(self.pool)))

    def end(self) -> None:
        """Report to the progress callback that no candidate will follow."""
        if self._progress:
            self._progress(len(self.pool), len(self.pool))

    def quarters(self, candidate: Candidate) -> int:
        """Angle of a candidate in quarters of the grid step."""
        return round(candidate.angle * QUARTERS / self._settings.angle_step)

    def has(self, quarters: int, members: int) -> bool:
        """Whether this angle was scored with so many members."""
        return any(self.quarters(c) == quarters and c.ensemble_size == members for c in self.pool)

    def level(self, members: int) -> list[Candidate]:
        """Acceptable candidates with so many members, and the original weight, the best first."""
        # an infinite value: too much accuracy is lost
        ranked = sorted((value, k) for k, value in enumerate(self._values) if value < math.inf)
        return [self.pool[k] for _, k in ranked if k == 0 or self.pool[k].ensemble_size == members]

    def best(self, members: int) -> Candidate:
        """Return the best acceptable candidate of a level."""
        return self.level(members)[0]

    def least(self, members: int) -> float:
        """Return the value of the best acceptable candidate of a level."""
        best = self.best(members)
        return min(value for value, candidate in zip(self._values, self.pool, strict=True) if candidate is best)

    def last(self, members: int) -> int:
        """Largest angle of a level."""
        return max(self.quarters(c) for k, c in enumerate(self.pool) if k == 0 or c.ensemble_size == members)

    def falls_short(self, near: int, members: int) -> bool:
        """Whether accuracy keeps a level from the target: its choice lies below `near`, or may cost too much.

        It may cost too much if two standard errors of the paired difference reach beyond the constraint.
        """
        best = self.best(members)
        drop, error = accuracy_drop(self.original.scores, best.scores)
        return self.quarters(best) < near or drop + 2 * error > self._settings.max_accuracy_drop + ROUNDING

    def around(self, quarters: int, offsets: Sequence[int]) -> list[int]:
        """Angles at these distances that lie between 0 and 90 degrees."""
        # 0 is the original weight, and at 90 degrees nothing is left of it
        inside = set(self._settings.steps(1))
        return [quarters + k for k in offsets if quarters + k in inside]

    def refine(self, stride: int, extend: Callable[[list[int]], object], members: int, centres: int = 2) -> None:
        """Look half as far on both sides of the best `centres`, again and again down to a distance of 1."""
        tried: set[int] = set()  # angles past the end of the paths are not asked for again
        while stride > 1:
            stride //= 2
            near = {q for c in self.level(members)[:centres] for q in self.around(self.quarters(c), (-stride, stride))}
            new = sorted(q for q in near - tried if not self.has(q, members))
            tried.update(new)
            if new:
                extend(new)


# Offsets from the target that are looked at with more members, in about half degrees or quarters of a larger grid step:
# all in one walk, which adds little for each.
_NEAR = (-8, -4, -2, -1, 0, 1, 2, 4, 8)

# Rotations times classes of all members of one candidate: about 15 seconds on one core. Large heads (n = 2048,
# C = 1000) stop at some hundred members, where their noise, over so many dimensions, is small already.
_MAX_TURNED = 2**30


def search_sparse(
    scored: Scorer,
    settings: SearchSettings,
    progress: Callable[[int, int], None],
    rows: NDArray[np.bool_] | None = None,
) -> tuple[Candidate, ...]:
    """Score candidates around the best one; the first is the original weight.

    `scored`: makes and scores candidates on all calibration samples. `rows`: (N,) samples to search on; all by default.
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
    walk.refine(level.stride, extend, level.members, level.centres)  # step 3
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
    limit.refine(settings.coarse, extend, LIMIT)
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

    scored: Scorer
    settings: SearchSettings
    walk: Walk
    take: Callable[[SampleScores], SampleScores]

    def extend(self, quarters: Sequence[int], members: int) -> None:
        """Score those of the angles that were not scored with so many members."""
        new = [q for q in quarters if not self.walk.has(q, members)]
        for scored in self.scored.candidates(self.settings.angles(new), members):
            self.walk.add([replace(candidate, scores=self.take(candidate.scores)) for candidate in scored])

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
    """Return the most members that the search may average: as set, at most 2^30 turned class vectors a candidate."""
    turned = max([1.0, *(c.rotations for c in level if c.angle <= target)]) * classes  # none in the limit
    # the bound is for sizes that the search chooses: the one asked for stands
    return max(settings.ensemble_size, min(settings.max_ensemble_size, int(_MAX_TURNED / turned)))


ScoreFit = Callable[[NDArray[Any], Any], tuple[SampleScores, Any]]
"""(weight, map to start from) -> scores of all samples after a map fitted for this weight, and that map."""


def search_complete(
    ensemble: Ensemble, score: ScoreFit, settings: SearchSettings, progress: Callable[[int, int], None]
) -> tuple[Candidate, ...]:
    """Score pairs of a weight and the map fitted for it, from coarse to fine around the best four.

    The first is the original weight with its map; accuracy is held against that one. Fits start from the neighbour's.

    Source: the paper's TNA (comp.), section "Experimental Details".

    `ensemble`: members of the weight that is searched around. `score`: fits the map for a weight and scores all
    calibration samples. `settings`: grid, objective and constraint; the ensemble size stays as it is.
    """
    scores, fitted = score(ensemble.weight, None)
    # angle 0 with a map of its own: accuracy is held against this pair
    walk = Walk(Candidate(0.0, 1, 0.0, scores, fitted), settings, progress)
    members = settings.ensemble_size

    def extend(quarters: Sequence[int]) -> None:
        for average in ensemble.averages(settings.angles(quarters), members):
            # the map changes little with the angle: a fit from the neighbour's takes fewer passes
            neighbour = min(walk.pool, key=lambda candidate: abs(candidate.angle - average.angle))
            try:
                scores, fitted = score(average.weight, neighbour.fitted)
            except DataError:  # no map for this weight: it is no candidate
                continue
            walk.add([candidate_of(average, members, scores, fitted)])

    extend(settings.steps(settings.coarse))
    walk.refine(settings.coarse, extend, members, centres=4)  # fitted maps leave a flat curve with several dips
    walk.end()
    return tuple(walk.pool)
