"""Averages of tilted class vectors, the *Average* step of Algorithm 1, at many angles.

Member k is path k of the seed (with antithetic draws, a pair is a path and its counterpart), whatever the number of
members and whatever was asked for before.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import UsageError
from tna_onnx.numerics.rotations import ClassVectors, FloatArray, Rotations, TiltParameters
from tna_onnx.numerics.tilt import Stops, find_stops, tilted_means

LIMIT = 0
"""Number of members that stands for the limit of many, W' = cos(mRC) W."""

# Angles of a grid that are worth a stop each, though they may never be asked for.
_MOST_STOPS = 400

# Bytes of the averages that are made in one walk.
_TOGETHER = 2**27


@dataclass(frozen=True)
class Draws:
    """Where rotations come from."""

    seed: int = 0  # of all random draws
    antithetic: bool = False  # members come in pairs R, R^T, whose antisymmetric noise cancels
    tilt: TiltParameters = field(default_factory=TiltParameters)  # distribution of the rotations


def kept_part(weight: Any, average: Any) -> float:
    """Return how much of a (C, n) weight is left in a tilted one: <W', W> / |W|^2, cos(mRC) in the limit of many.

    >>> kept_part(np.eye(2), 0.5 * np.eye(2))
    0.5
    """
    return float(np.vdot(weight, average) / np.vdot(weight, weight))


@dataclass(frozen=True, eq=False)
class Average:
    """An averaged weight."""

    angle: float  # target of mRC in degrees
    weight: FloatArray  # (C, n), in the dtype of the original
    rotations: float  # mean number of rotations of a member
    reached: float  # mean mRC of the members in degrees, past the target by a part of n_t rotations


def averages(weight: FloatArray, angles: Sequence[float], members: int, draws: Draws) -> Iterator[Average]:
    """Yield the average at each angle in degrees, ascending (see `Ensemble.averages`)."""
    return Ensemble(weight, draws).averages(angles, members)


def tilt(weight: Any, angle: float, seed: int = 0, *, members: int = 1) -> FloatArray:
    """Return the mean of tilted copies of a weight, as `calibrate` draws them.

    With a report of `calibrate(..., map="none", search="sparse")`, the weight that it wrote is
    `tilt(weight, report.angle, report.settings["seed"], members=report.ensemble_size)`; a temperature divides it.
    Settings with another `theta_s`, `alpha`, `beta` or `n_t`, such as `PAPER`, give another weight.

    Args:
        weight: (C, n) class vectors.
        angle: mean rotation of the class vectors, degrees, from 0 to below 90.
        seed: of all random draws.
        members: copies that are averaged; 0 is the limit of many.

    Raises:
        UsageError: the angle or the number of members is out of its range.
        UnsupportedModel: the weight has no direction that could be tilted.
    """
    if not 0 <= angle < 90:
        raise UsageError(f"angle must be from 0 to below 90 degrees, got {angle}")
    if members < 0:
        raise UsageError(f"members must be 0 (the limit of many) or more, got {members}")
    vectors = np.asarray(weight)
    if vectors.dtype not in (np.float32, np.float64):
        vectors = vectors.astype(np.float64)
    return next(averages(vectors, [angle], members, Draws(seed))).weight


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

        `angles`: ascending, in degrees, in [0, 90). `members`: how many are averaged; `LIMIT` for the limit of many.
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
        together = max(1, _TOGETHER // self.weight.nbytes)
        for begin in range(0, int(reached.sum()), together):
            part = slice(begin, min(begin + together, int(reached.sum())))
            means = tilted_means(self._start, self._rotations, stops.rotations[:, part], paired=paired)
            for k, mean in enumerate(means, start=begin):
                yield Average(
                    angles[k],
                    mean,
                    float(share @ stops.rotations[:, k]),
                    math.degrees(float(share @ stops.reached[:, k])),
                )

    @functools.cached_property
    def _start(self) -> ClassVectors:
        return ClassVectors.of(self.weight)

    @functools.cached_property
    def _rotations(self) -> Rotations:
        return Rotations(self.weight.shape[1], self._draws.seed, self._draws.tilt)

    def _stops_of(self, angles: Sequence[float], paths: int) -> Stops:
        """Return the (paths, angles) stops of the first paths, walking those that have not been walked yet."""
        n_rotations = len(self._stops.rotations)
        if not {*angles} <= {*self._angles}:
            end = max(*angles, *self._angles, 0.0)
            self._angles = sorted({*angles, *self._angles, *(a for a in self._grid if a <= end)})
            self._stops = self._find(np.arange(max(n_rotations, paths)))
        elif n_rotations < paths:
            more = self._find(np.arange(n_rotations, paths))
            self._stops = Stops(
                np.concatenate([self._stops.rotations, more.rotations]),
                np.concatenate([self._stops.reached, more.reached]),
            )
        at = [self._angles.index(angle) for angle in angles]
        return Stops(self._stops.rotations[:paths, at], self._stops.reached[:paths, at])

    def _find(self, paths: NDArray[np.int64]) -> Stops:
        return find_stops(self._start, self._rotations, paths, np.radians(self._angles))
