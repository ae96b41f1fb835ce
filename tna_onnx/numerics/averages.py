"""Averages of tilted class vectors, the *Average* step of Algorithm 1, for many angles in one walk.

Member k is the path of the k-th child of the seed, whatever the number of members; with antithetic draws, a pair of
members is that path and its counterpart. Members are added up in groups of 16, in the dtype of the weight, and groups
in float64: an average of so many members at an angle has the same bits, whatever was computed before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import array_api_compat
import numpy as np

from tna_onnx.numerics.rotations import TiltParameters
from tna_onnx.numerics.tilt import tilted_sums

__all__ = ["LIMIT", "Average", "Draws", "GrowingAverages", "averages", "kept_part", "more_members"]

LIMIT = 0
"""Number of members that stands for the limit of many, W' = cos(mRC) W."""

# Paths walked side by side: above this many members, sums are kept per angle instead of vectors per member.
_GROUP = 16

# Bytes of the paths of one ensemble that may be in memory together.
_TOGETHER = 2**32


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

    def child(self, k: int) -> np.random.SeedSequence:
        """Seed of path k."""
        # a fixed key, not .spawn: member k is the same one whatever was drawn before it
        return np.random.SeedSequence(self.seed, spawn_key=(k,))


def kept_part(weight: Any, average: Any) -> float:
    """Return how much of a (C, n) weight is left in a tilted one: <W', W> / |W|^2, cos(mRC) in the limit of many.

    >>> kept_part(np.eye(2), 0.5 * np.eye(2))
    0.5
    """
    return float(np.vdot(weight, average) / np.vdot(weight, weight))


@dataclass(frozen=True, eq=False)
class Average:
    """An averaged weight.

    Attributes:
        angle: target of mRC in degrees.
        weight: (C, n), in the dtype of the original.
        rotations: mean number of rotations of a member.
        reached: mean mRC of the members in degrees, past the target by a part of one rotation.
    """

    angle: float
    weight: Any
    rotations: float
    reached: float


def averages(weight: Any, angles: Sequence[float], members: int, draws: Draws) -> Iterator[Average]:
    """Yield the average at each angle in degrees, ascending; ends early where a member's path does.

    Args:
        weight: (C, n) class vectors.
        angles: ascending, in [0, 90).
        members: how many are averaged; `LIMIT` for the limit of many.
        draws: where rotations come from.

    Raises:
        ValueError: the weight cannot be tilted (n < 2, or all class vectors zero).
    """
    # E[R] is a multiple of the identity: the limit needs no rotation at all
    if members == LIMIT:
        xp = array_api_compat.array_namespace(weight)
        for angle in angles:
            yield Average(angle, xp.astype(weight * math.cos(math.radians(angle)), weight.dtype), 0.0, angle)
        return
    if len(angles) > 1 and members * weight.size * weight.itemsize > _TOGETHER:
        for angle in angles:  # a walk for each angle, one path after the other
            yield from averages(weight, [angle], members, draws)
        return
    growing = GrowingAverages(weight, angles, draws)
    # more than one group: sums over groups are float64
    if len(groups := list(growing.groups(0, members))) > 1:
        growing.grow(members)
        yield from (growing.at(k) for k in range(len(growing)))
        return
    for angle, (reached, total, rotations) in zip(angles, groups[0][1], strict=False):  # nothing to keep
        yield Average(angle, total / members, rotations, math.degrees(reached))


def more_members(members: int) -> int:
    """Return the next size of an ensemble that grows: at least twice as many, in whole groups."""
    # 2 groups: with antithetic draws a group of paths is twice as many members
    return -(-2 * members // (2 * _GROUP)) * 2 * _GROUP


class GrowingAverages:
    """Averages at some angles of a number of members that grows; every path is walked once.

    Args:
        weight: (C, n) class vectors.
        angles: ascending, in degrees, in [0, 90).
        draws: where rotations come from.

    Its length is the number of angles that every member has reached so far.
    """

    def __init__(self, weight: Any, angles: Sequence[float], draws: Draws) -> None:
        self._weight = weight
        self._angles = list(angles)
        self._draws = draws
        self._sums: list[Any] = []
        self._means = np.zeros((len(angles), 2))
        self.members = 0

    def __len__(self) -> int:
        return len(self._angles)

    def grow(self, members: int) -> None:
        """Add members up to so many; sizes that will grow again are those of `more_members`.

        Raises:
            ValueError: the weight cannot be tilted, or this size cannot follow the last one.
        """
        # whole groups only, pairs of members counted: a group that was cut would be summed in another order
        if self.members % (2 * _GROUP) or members < self.members:
            raise ValueError(f"{members} members cannot follow {self.members}")
        xp = array_api_compat.array_namespace(self._weight)
        # a group is summed in the dtype of the weight, and joins the others in float64 (see the head of this file)
        for size, walk in self.groups(self.members, members):
            k = -1
            for k, (reached, total, rotations) in enumerate(walk):
                if k == len(self._sums):
                    self._sums.append(total)
                elif self._sums[k].dtype == xp.float64:
                    self._sums[k] += total
                else:
                    self._sums[k] = xp.astype(self._sums[k], xp.float64) + total
                self._means[k] += np.array([rotations, reached]) * size
            # angles that these members do not reach are lost for all
            del self._angles[k + 1 :], self._sums[k + 1 :]
        self.members = members

    def at(self, k: int) -> Average:
        """Return the average at angle number k."""
        xp = array_api_compat.array_namespace(self._weight)
        rotations, reached = self._means[k] / self.members
        # divided in float64, rounded to the dtype of the weight once
        mean = xp.astype(self._sums[k] / self.members, self._weight.dtype)
        return Average(self._angles[k], mean, float(rotations), math.degrees(reached))

    def groups(self, start: int, members: int) -> Iterator[tuple[int, Iterator[tuple[float, Any, float]]]]:
        """Yield (size, walk of `tilted_sums`) of groups that hold the members from `start` on."""
        draws = self._draws
        radians = [math.radians(a) for a in self._angles]
        share = 2 if draws.antithetic else 1  # members that one seed gives
        for k in range(start // share, members // share, _GROUP):
            seeds = [draws.child(i) for i in range(k, min(k + _GROUP, members // share))]
            yield (
                share * len(seeds),
                tilted_sums(self._weight, radians, seeds, draws.tilt, antithetic=draws.antithetic),
            )
        if members % share:  # the odd one has no counterpart
            yield 1, tilted_sums(self._weight, radians, [draws.child(members // share)], draws.tilt)
