"""Where a search has been, and where it looks next: the bookkeeping that sparse and complete search share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from tna_onnx.search.candidates import ROUNDING, Candidate, accuracy_drop, pick, value_of
from tna_onnx.search.settings import QUARTERS, SearchSettings

__all__ = ["Walk"]


class Walk:
    """Candidates so far, the original weight first, and where to look next.

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
        """Tell that nothing will follow."""
        if self._progress:
            self._progress(len(self.pool), len(self.pool))

    def quarters(self, candidate: Candidate) -> int:
        """Angle of a candidate in quarters of the grid step."""
        return round(candidate.angle * QUARTERS / self._settings.angle_step)

    def has(self, quarters: int, members: int) -> bool:
        """Whether this angle was looked at with so many members."""
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

    def refine(
        self, stride: int, last: int, extend: Callable[[list[int]], object], members: int, centres: int = 2
    ) -> None:
        """Look half as far on both sides of the best `centres`, again and again down to a distance of `last`."""
        tried: set[int] = set()  # angles past the end of the paths are not asked for again
        while stride > last:
            stride //= 2
            near = {q for c in self.level(members)[:centres] for q in self.around(self.quarters(c), (-stride, stride))}
            new = sorted(q for q in near - tried if not self.has(q, members))
            tried.update(new)
            if new:
                extend(new)
