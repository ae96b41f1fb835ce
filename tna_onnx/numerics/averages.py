"""Averages of tilted class vectors, the *Average* step of Algorithm 1, at many angles.

Member k is path k of the seed, whatever the number of members; with antithetic draws, a pair of members is a path and
its counterpart. An average of so many members at an angle has the same bits, whatever was asked for before it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.rotations import ClassVectors, FloatArray, Rotations, TiltParameters
from tna_onnx.numerics.stops import Stops, find_stops
from tna_onnx.numerics.threads import several_threads
from tna_onnx.numerics.tilt import tilted_means

__all__ = ["LIMIT", "Average", "Draws", "Ensemble", "TurnedWeight", "averages", "kept_part", "more_members"]

LIMIT = 0
"""Number of members that stands for the limit of many, W' = cos(mRC) W."""

# Angles of a grid that are worth a stop each, though they may never be asked for.
_MOST_STOPS = 400

# Classes to a feature from which it costs less to turn the basis, and to multiply the class vectors once an angle.
_MANY = 4

# Bytes of the averages that are made in one walk.
_TOGETHER = 2**27


@dataclass(frozen=True)
class Draws:
    """Where rotations come from.

    Attributes:
        seed: of all random draws.
        antithetic: members come in pairs R, R^T, whose antisymmetric noise cancels.
        tilt: distribution of the rotations.
    """

    seed: int = 0
    antithetic: bool = False
    tilt: TiltParameters = field(default_factory=TiltParameters)


def kept_part(weight: Any, average: Any) -> float:
    """Return how much of a (C, n) weight is left in a tilted one: <W', W> / |W|^2, cos(mRC) in the limit of many.

    >>> kept_part(np.eye(2), 0.5 * np.eye(2))
    0.5
    """
    return float(np.vdot(weight, average) / np.vdot(weight, weight))


@dataclass(frozen=True, eq=False)
class TurnedWeight:
    """A (C, n) weight times a (n, n) matrix, not multiplied yet: with many classes the product is large.

    Attributes:
        original: (C, n).
        matrix: (n, n), in the dtype of the original.
    """

    original: FloatArray
    matrix: FloatArray

    def product(self) -> FloatArray:
        """Return the (C, n) weight."""
        with several_threads(*self.original.shape, len(self.matrix)):
            product: FloatArray = self.original @ self.matrix
        return product

    def kept_part(self, gram: FloatArray) -> float:
        """Return `kept_part` of the product: <W, W M> = <W'W, M>; `gram` is W'W, (n, n)."""
        return float(np.vdot(gram, self.matrix) / np.trace(gram))


@dataclass(frozen=True, eq=False)
class Average:
    """An averaged weight.

    Attributes:
        angle: target of mRC in degrees.
        made: (C, n), in the dtype of the original, or what makes it.
        rotations: mean number of rotations of a member.
        reached: mean mRC of the members in degrees, past the target by a part of n_t rotations.
    """

    angle: float
    made: FloatArray | TurnedWeight
    rotations: float
    reached: float

    @functools.cached_property
    def weight(self) -> FloatArray:
        """(C, n), in the dtype of the original."""
        return self.made.product() if isinstance(self.made, TurnedWeight) else self.made


def averages(weight: FloatArray, angles: Sequence[float], members: int, draws: Draws) -> Iterator[Average]:
    """Yield the average at each angle in degrees, ascending (see `Ensemble.averages`)."""
    return Ensemble(weight, draws).averages(angles, members)


def more_members(members: int) -> int:
    """Return the next size of an ensemble that grows: at least twice as many."""
    return -(-2 * members // 32) * 32


class Ensemble:
    """The members of one weight, as many as are asked for; where their paths stop is found once.

    Args:
        weight: (C, n) class vectors; kept.
        draws: where rotations come from.
        grid: angles in degrees that may be asked for, ascending, in [0, 90): their stops are found on the way.
    """

    def __init__(self, weight: FloatArray, draws: Draws, grid: Sequence[float] = ()) -> None:
        self.weight = weight
        self._draws = draws
        self._grid = list(grid) if len(grid) <= _MOST_STOPS else []
        self._angles: list[float] = []
        self._stops = Stops(np.zeros((0, 0), np.int64), np.zeros((0, 0)))

    def averages(self, angles: Sequence[float], members: int) -> Iterator[Average]:
        """Yield the average at each angle, ascending; ends early where a member's path does.

        Args:
            angles: ascending, in degrees, in [0, 90).
            members: how many are averaged; `LIMIT` for the limit of many.

        Raises:
            ValueError: angles are not ascending.
            UnsupportedModel: the weight cannot be tilted (n < 2, or all class vectors zero).
        """
        if any(b <= a for a, b in itertools.pairwise(angles)):
            raise ValueError(f"angles must ascend, got {list(angles)}")
        # E[R] is a multiple of the identity: the limit needs no rotation at all
        if members == LIMIT:
            for angle in angles:
                cosine = self.weight.dtype.type(math.cos(math.radians(angle)))
                yield Average(angle, self.weight * cosine, 0.0, angle)
            return
        # the odd one of pairs has no counterpart
        paired = members // 2 if self._draws.antithetic else 0
        stops = self._stops_of(angles, members - paired)
        # a mean over some of the members would not be the average that was asked for
        reached = np.logical_and.accumulate((stops.rotations > 0).all(axis=0))
        share = np.where(np.arange(members - paired) < paired, 2, 1) / members
        # means of the basis are float64
        size = 8 * self.weight.shape[1] ** 2 if self._of_basis else self.weight.nbytes
        together = max(1, _TOGETHER // size)
        for begin in range(0, int(reached.sum()), together):
            part = slice(begin, min(begin + together, int(reached.sum())))
            for k, mean in enumerate(self._means(stops.rotations[:, part], paired), start=begin):
                yield Average(
                    angles[k],
                    mean,
                    float(share @ stops.rotations[:, k]),
                    math.degrees(float(share @ stops.reached[:, k])),
                )

    def limit(self, angle: float) -> FloatArray | TurnedWeight:
        """Return the limit of many members at an angle in degrees; not multiplied yet, as averages are."""
        cosine = self.weight.dtype.type(math.cos(math.radians(angle)))
        if self._of_basis:
            return TurnedWeight(self.weight, cosine * np.eye(self.weight.shape[1], dtype=self.weight.dtype))
        return self.weight * cosine

    def _means(self, stops: NDArray[np.int64], paired: int) -> Iterator[FloatArray | TurnedWeight]:
        """Yield the mean (C, n) class vectors at each of (P, A) stops, or what makes them."""
        if not self._of_basis:
            yield from tilted_means(self._start, self._rotations, stops, paired=paired)
            return
        # a path is linear: the mean of what it makes of the n basis vectors says what it makes of all class vectors
        basis = ClassVectors.of(np.eye(self.weight.shape[1]))
        for turned in tilted_means(basis, self._rotations, stops, paired=paired):
            yield TurnedWeight(self.weight, turned.astype(self.weight.dtype))

    @property
    def average_bytes(self) -> int:
        """Bytes of an average, as it is made."""
        if self._of_basis:
            return int(self.weight.shape[1] ** 2 * self.weight.itemsize)
        return int(self.weight.nbytes)

    @property
    def _of_basis(self) -> bool:
        classes, n = self.weight.shape
        return bool(classes >= _MANY * n)

    @functools.cached_property
    def _start(self) -> ClassVectors:
        return ClassVectors.of(self.weight)

    @functools.cached_property
    def _rotations(self) -> Rotations:
        return Rotations(self.weight.shape[1], self._draws.seed, self._draws.tilt)

    def _stops_of(self, angles: Sequence[float], paths: int) -> Stops:
        """Return the (paths, angles) stops of the first paths; those that are not known yet are found."""
        n_rotations = len(self._stops.rotations)
        if not {*angles} <= {*self._angles}:
            end = max(*angles, *self._angles, 0.0)
            self._angles = sorted({*angles, *self._angles, *(a for a in self._grid if a <= end)})
            self._stops = self._find(range(max(n_rotations, paths)))
        elif n_rotations < paths:
            more = self._find(range(n_rotations, paths))
            self._stops = Stops(
                np.concatenate([self._stops.rotations, more.rotations]),
                np.concatenate([self._stops.reached, more.reached]),
            )
        at = [self._angles.index(angle) for angle in angles]
        return Stops(self._stops.rotations[:paths, at], self._stops.reached[:paths, at])

    def _find(self, paths: range) -> Stops:
        return find_stops(self._start, self._rotations, np.array(paths, np.int64), np.radians(self._angles))
