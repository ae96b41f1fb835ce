"""The search for the best angle and number of members: sparse (the weight alone) and complete (weight and map).

Angles go from coarse to fine: every 8 degrees, then half as far around the two best, down to a quarter of the grid
step. The sparse search (paper, section "Experimental Details") goes
1. over the angles with the requested ensemble size;
2. with more members near the target angle, up to a cap, while their noise costs accuracy; the last candidate is the
   limit of many members, W' -> cos(mRC) W, whose best angle is the target;
3. finer around the best two of the largest ensembles (the best one, where step 2 has looked closely).

Angle 0, the original weight, is always a candidate.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

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
        self._values = [value_of(original.scores, original.scores, settings)]
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
        self._values += [value_of(self.original.scores, c.scores, self._settings) for c in candidates]
        best = pick(self.pool, self._values)
        new = range(len(self.pool) - len(candidates), len(self.pool))
        for k in {*new, self._best} - {best}:  # weights are large, and can be made again
            self.pool[k] = replace(self.pool[k], weight=None)
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

    def ranked(self, members: int) -> list[tuple[float, Candidate]]:
        """Acceptable candidates with so many members, and the original weight, with their values, the best first."""
        # an infinite value: too much accuracy is lost
        ranked = sorted((value, k) for k, value in enumerate(self._values) if value < math.inf)
        level = [(value, k) for value, k in ranked if k == 0 or self.pool[k].ensemble_size == members]
        return [(value, self.pool[k]) for value, k in level]

    def best(self, members: int) -> Candidate:
        """Return the best acceptable candidate of a level."""
        return self.ranked(members)[0][1]

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
            best = [candidate for _, candidate in self.ranked(members)[:centres]]
            near = {q for c in best for q in self.around(self.quarters(c), (-stride, stride))}
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

    def take(scores: SampleScores) -> SampleScores:
        if rows is None:
            return scores
        return scores.take(rows)

    walk = Walk(Candidate(0.0, 1, 0.0, take(scored.original)), settings, progress)
    target = _target(walk.original, settings, lambda angle: take(scored.limit(angle)))

    def extend(quarters: Sequence[int], members: int) -> None:
        new = [q for q in quarters if not walk.has(q, members)]
        for candidates in scored.candidates(settings.angles(new), members):
            walk.add([replace(candidate, scores=take(candidate.scores)) for candidate in candidates])

    _look_along(walk, settings, target, extend)
    members, stride, centres = _add_members(walk, settings, target, extend, len(scored.ensemble.weight))
    walk.refine(stride, functools.partial(extend, members=members), members, centres)  # step 3
    walk.end()
    return tuple(walk.pool)


def _target(original: Candidate, settings: SearchSettings, scores_at: Callable[[float], SampleScores]) -> int:
    """Return the best angle of the limit of many members, in quarters of the grid step."""
    limit = Walk(original, settings)

    def extend(quarters: Sequence[int]) -> None:
        limit.add([Candidate(angle, LIMIT, 0.0, scores_at(angle)) for angle in settings.angles(quarters)])

    extend(settings.steps(settings.coarse))
    # as finely as the search itself: the target lies on its grid
    limit.refine(settings.coarse, extend, LIMIT)
    return limit.quarters(limit.best(LIMIT))


_Extend: TypeAlias = Callable[[Sequence[int], int], object]
"""Scores those of some angles, in quarters of the grid step, that were not scored with so many members."""


def _look_along(walk: Walk, settings: SearchSettings, target: int, extend: _Extend) -> None:
    """Step 1: up to two coarse steps past the target, and on while the best angle is the last one."""
    members = settings.ensemble_size
    coarse = settings.steps(settings.coarse)
    # few members carry noise: their best angle may lie past that of the limit
    end = target + 2 * settings.coarse if settings.adaptive else coarse[-1]
    extend([q for q in coarse if q <= end], members)
    for q in coarse:
        if q <= end:
            continue
        last = max(walk.quarters(c) for c in walk.pool if c.angle == 0 or c.ensemble_size == members)
        if last != walk.quarters(walk.best(members)):
            return
        extend([q], members)
        if not walk.has(q, members):  # paths end before
            return


def _add_members(
    walk: Walk, settings: SearchSettings, target: int, extend: _Extend, classes: int
) -> tuple[int, int, int]:
    """Step 2, where it is needed: add members around the target until accuracy allows it, or there are too many.

    Return the members, the distance from the best angles in quarters of the grid step, and how many of these, for
    step 3.
    """
    members = settings.ensemble_size
    unchanged = (members, settings.coarse, 2)
    # the target is the original weight, or there is no noise that members could shrink
    if target == 0 or members == LIMIT or not settings.grows:
        return unchanged
    # half degrees, or quarters of a larger grid step (see `_NEAR`)
    unit = max(1, settings.coarse // (4 * QUARTERS))
    ends = walk.around(target, (-8 * unit, 0, 8 * unit))
    extend(ends, members)
    # accuracy does not stand in the way
    if not walk.falls_short(ends[0], members):
        return unchanged
    angle = settings.angles([target])[0]
    turned = classes * max([1.0, *(c.rotations for c in walk.pool if c.angle <= angle)])  # none in the limit
    # the bound is for sizes that the search chooses: the one asked for stands
    cap = max(members, min(settings.max_ensemble_size, int(_MAX_TURNED / turned)))
    near = walk.around(target, [unit * k for k in _NEAR])
    while members < cap and walk.falls_short(near[0], members):
        members = min(more_members(members), cap)
        # The target tells whether more members are needed; only the last level needs its neighbours.
        extend([target], members)
        if members == cap or not walk.falls_short(near[0], members):
            extend(near, members)
    if walk.falls_short(near[0], members):
        extend(near, LIMIT)
        # of two that keep the constraint, the better one
        members = min((members, LIMIT), key=lambda size: walk.ranked(size)[0][0])
    return members, QUARTERS * unit, 1


ScoreFit: TypeAlias = Callable[[NDArray[Any], Any], tuple[SampleScores, Any]]
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
