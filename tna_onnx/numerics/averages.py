"""Tilt and Average: class vectors turned by random Givens rotations, and the averages of the members at many angles.

<w, R w> = <R^T w, w>, and G(i, j, -t) = G(j, i, t), so a path keeps V = R^T W, whose newest rotation turns two feature
coordinates of what is there: O(C), with the distribution of Algorithm 1's R W and the same mRC. `find_stops` walks with
the deficits e_c = <w_c, w_c - V_c>: class c has turned by 2 asin(sqrt(e_c / 2) / |w_c|). A path stops at the first
look, every n_t rotations, at which mRC is past an angle; `tilted_means` adds up V at the stops.

Stops and sums do not depend on which paths, angles or classes are walked together: what is added is rounded to a
multiple of 2^-51 of a bound on the sum, so that sums in float64 are exact in any order. Member k of an `Ensemble` is
path k of the seed. Source: the paper, Algorithm 1 and section "Tilt the class vectors".
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

from tna_onnx.errors import UsageError
from tna_onnx.numerics.rotations import ClassVectors, FloatArray, Rotations, RotationStep, TiltParameters, Turns


class _Sums:
    """Sums of `members` turned class vectors at each of A stops, for a block of c classes, at most `width`."""

    def __init__(self, start: ClassVectors, stops: int, width: int, members: int) -> None:
        # no element of a turned class vector exceeds its length
        largest = math.sqrt(0.5 / float(np.min(start.half[start.half > 0])))
        exponent = math.frexp(largest * members)[1]
        # what rounds a float64 number by being added and taken away again: sums are below 2^exponent, and numbers near
        # this one are multiples of 2^(exponent - 51)
        self._rounding = 1.5 * 2.0 ** (exponent + 1)
        self._members = members
        # used again for block after block: memory that is new has to be cleared by the system
        self._memory = np.empty((stops, start.shape[0], width))
        # the sum at the first stop, and what it gains from each stop to the next
        self._gains = np.empty((0, 0, 0))
        # sums over counterparts, which share no turns from stop to stop
        self._counterparts: dict[int, NDArray[np.float64]] = {}

    def begin(self, classes: int) -> None:
        """Set all sums to zero, for so many classes."""
        shape = (*self._memory.shape[:2], classes)
        self._gains = self._memory.reshape(-1)[: math.prod(shape)].reshape(shape)
        self._gains.fill(0)
        self._counterparts.clear()

    def add(self, stop: int, vectors: FloatArray) -> None:
        """Take in (n, c) class vectors at the first stop."""
        self._gains[stop] += self._rounded(vectors)

    def change(self, stop: int, rows: NDArray[np.int64], before: FloatArray, after: FloatArray) -> None:
        """Take in what (k, c) different rows of one path have become since the stop before."""
        # what rounds cancels: both are near it, and their difference is exact
        gains = np.add(after, self._rounding, dtype=np.float64)
        gains -= np.add(before, self._rounding, dtype=np.float64)
        self._gains[stop][rows] += gains

    def add_counterpart(self, stop: int, vectors: FloatArray) -> None:
        """Take in (n, c) class vectors of a counterpart."""
        if stop not in self._counterparts:
            self._counterparts[stop] = np.zeros(vectors.shape)
        self._counterparts[stop] += self._rounded(vectors)

    def average(self, means: Sequence[FloatArray], first: int) -> None:
        """Write the means into A arrays (n, C), from a first class on. This ends the sums."""
        columns = slice(first, first + self._gains.shape[2])
        for mean, total in zip(means, self._totals(), strict=True):
            mean[:, columns] = total / self._members

    def _totals(self) -> Iterator[NDArray[np.float64]]:
        total = self._gains[0]
        for stop, gain in enumerate(self._gains):
            if stop:
                total += gain
            yield total + self._counterparts[stop] if stop in self._counterparts else total

    def _rounded(self, vectors: FloatArray) -> NDArray[np.float64]:
        # in float64 whatever the version: NumPy 1 would add a scalar in the dtype of the vectors
        rounded = np.add(vectors, self._rounding, dtype=np.float64)
        rounded -= self._rounding
        return rounded


# Bytes of class vectors that are turned side by side: half of a core's second cache, the other half is for the sum.
_TOGETHER = 2**20

# Rotations whose steps are held at once, where several blocks of classes take them: about 50 MB.
_HELD = 2**20

# Classes below which rows are too short to be worth a step of their own.
_NARROW = 64


def tilted_means(
    start: ClassVectors, rotations: Rotations, stops: NDArray[np.int64], *, paired: int = 0
) -> list[FloatArray]:
    """Average the tilted class vectors of paths 0, 1, ... at each of their stops.

    Gives a means (C, n) in the dtype of the class vectors: the *Average* step of Algorithm 1. `stops`: (P, A) ascending
    numbers of rotations; `paired`: of the first so many paths, the counterpart R W is averaged beside R^T W.
    """
    n, classes = start.shape
    size = n * start.weight.itemsize
    width = min(classes, max(_NARROW, _TOGETHER // size))
    together = max(1, _TOGETHER // (size * width))
    groups = np.split(np.arange(len(stops)), range(together, len(stops), together))

    def walked() -> Iterator[_Legs]:
        return (_Legs(rotations, stops, paired, start.weight.dtype, paths) for paths in groups)

    # a block of classes takes the steps of the one before, unless these are too many to be stored
    n_rotations = int(stops.max(axis=1, initial=0).sum())
    stored = list(walked()) if width < classes and n_rotations <= _HELD else None
    means = [np.empty(start.shape, start.weight.dtype) for _ in range(stops.shape[1])]
    sums = _Sums(start, len(means), width, len(stops) + paired)
    # with the stops known, classes have nothing to do with each other: a block of them stays in the cache
    for first in range(0, classes, width):
        block = start.block(slice(first, first + width))
        sums.begin(block.shape[1])
        for legs in stored or walked():
            legs.walk(block, sums)
        sums.average(means, first)
    return [mean.T for mean in means]


class _Legs:
    """Some paths from stop to stop, in steps."""

    def __init__(
        self,
        rotations: Rotations,
        stops: NDArray[np.int64],
        paired: int,
        dtype: np.dtype[Any],
        paths: NDArray[np.int64],
    ) -> None:
        stops = stops[paths]
        self._n = rotations.n
        self._paths = len(paths)
        self._with_counterpart = int(np.sum(paths < paired))
        self._forward: list[list[RotationStep]] = []
        self._back: list[list[RotationStep]] = []
        pairs, turn = rotations.of(paths, 0, int(np.max(stops, initial=0)))
        position = np.broadcast_to(np.arange(len(paths))[:, None], turn.shape)
        number = np.arange(turn.shape[1])
        done = np.zeros(len(paths), np.int64)
        for stop in stops.T:
            between = (number >= done[:, None]) & (number < stop[:, None])
            turns = Turns(position[between], pairs[between], turn[between])
            self._forward.append([*turns.steps(self._n, dtype)])
            done = stop
            before = (number < stop[:, None]) & (position < self._with_counterpart)
            turns = Turns(position[before], pairs[before], turn[before]).reversed()
            self._back.append([*turns.steps(self._n, dtype)])

    def walk(self, block: FloatArray, sums: _Sums) -> None:
        """Walk with a (n, c) block of classes, and add up."""
        tilted = np.repeat(block[None], self._paths, axis=0)
        flat = tilted.reshape(-1, block.shape[1])
        for stop, (forward, back) in enumerate(zip(self._forward, self._back, strict=True)):
            if stop == 0:
                _apply(forward, flat)
                for vectors in tilted:
                    sums.add(stop, vectors)
            else:
                self._change(stop, forward, flat, sums)
            # R W = R_1 (R_2 (... (R_k W))), from the last rotation to the first
            counterparts = np.repeat(block[None], self._with_counterpart, axis=0)
            _apply(back, counterparts.reshape(-1, block.shape[1]))
            for vectors in counterparts:
                sums.add_counterpart(stop, vectors)

    def _change(self, stop: int, steps: Sequence[RotationStep], flat: FloatArray, sums: _Sums) -> None:
        """Go on to a stop, and add what rows have become."""
        if not steps:
            return
        rows = np.unique(np.concatenate([step.rows.reshape(-1) for step in steps]))
        before = flat.take(rows, axis=0)
        _apply(steps, flat)
        after = flat.take(rows, axis=0)
        # one path after the other: its rows are different ones
        cuts = np.searchsorted(rows, np.arange(self._paths + 1) * self._n)
        for first, last in itertools.pairwise(cuts.tolist()):
            part = slice(first, last)
            sums.change(stop, rows[part] % self._n, before[part], after[part])


def _apply(steps: Sequence[RotationStep], flat: FloatArray) -> None:
    """Turn rows of (rows, c) class vectors in place."""
    for step in steps:
        step.apply(flat)


# Classes that NumPy turns together: what a window of one path loses then stays in the cache.
_CLASSES = 640


class _Paths:
    """Paths that are walked side by side: some classes after the others, rotations of disjoint coordinates together.

    Args:
        start: class vectors.
        rotations: of all paths.
        angles: (A,) ascending mRC targets in radians.
        paths: at most so many are walked side by side.
    """

    def __init__(self, start: ClassVectors, rotations: Rotations, angles: NDArray[np.float64], paths: int) -> None:
        self._start = start
        self._rotations = rotations
        self._angles = angles
        classes = start.shape[1]
        self._blocks = [slice(k, k + _CLASSES) for k in range(0, classes, _CLASSES)]
        # cut once for all paths: with many classes that takes as long as a tenth of a path
        self._vectors = [start.block(columns) for columns in self._blocks]
        self._tilted = [np.empty((paths, *block.shape), block.dtype) for block in self._vectors]
        self._last = np.zeros((paths, classes))

    def stops(self, paths: NDArray[np.int64]) -> Stops:
        """Walk in windows of rotations until all angles are passed, or the paths end."""
        for tilted, vectors in zip(self._tilted, self._vectors, strict=True):
            tilted[: len(paths)] = vectors
        self._last[:] = 0
        shape = len(paths), len(self._angles)
        stops = Stops(np.zeros(shape, np.int64), np.zeros(shape))
        done = 0
        # positions of the paths that have not passed all angles
        going = np.arange(len(paths))
        while going.size and done < self._rotations.last:
            end = min(done + _WINDOW, self._rotations.last)
            self._look(stops, going, self._walk(going, *self._rotations.of(paths[going], done, end)), done)
            done = end
            going = going[stops.rotations[going, -1] == 0]
        return stops

    def _walk(
        self, going: NDArray[np.int64], pairs: NDArray[np.int64], turn: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Go on along P of the paths by (P, K) rotations of (P, K, 2) coordinates; return the (K, P, C) deficits."""
        paths, count = turn.shape
        n, classes = self._start.shape
        turns = Turns(np.tile(going, count), pairs.swapaxes(0, 1).reshape(-1, 2), turn.T.reshape(-1))
        steps = [*turns.steps(n, self._start.weight.dtype)]
        coordinates = np.ascontiguousarray(turns.pairs.T)
        after = np.empty((count, paths, classes))
        for columns, vectors, tilted in zip(self._blocks, self._vectors, self._tilted, strict=True):
            gains = after.reshape(-1, classes)[:, columns]
            for step in steps:
                gains[step.number] = _gains(step, coordinates, vectors, tilted.reshape(-1, vectors.shape[1]))
        after[0] += self._last[going]
        # in the order of the path: NumPy would add up a lone class pairwise
        for k in range(1, count):
            after[k] += after[k - 1]
        self._last[going] = after[-1]
        return after

    def _look(self, stops: Stops, going: NDArray[np.int64], after: NDArray[np.float64], done: int) -> None:
        """Find which angles are passed, and after which rotations of a window, of (K, P, C) deficits."""
        # Algorithm 1 with n_t: between two looks nothing stops
        looks = np.flatnonzero(np.arange(done + 1, done + len(after) + 1) % self._rotations.parameters.n_t == 0)
        if not looks.size:
            return
        mrc = self._mrc(after[looks].reshape(-1, after.shape[2])).reshape(len(looks), len(going))
        # most angles are passed by all paths already, or by none in this window
        due = (self._angles < mrc.max()) & np.any(stops.rotations[going] == 0, axis=0)
        for at in np.flatnonzero(due):
            passed = mrc > self._angles[at]
            path = np.flatnonzero(passed.any(axis=0) & (stops.rotations[going, at] == 0))
            first = np.argmax(passed[:, path], axis=0)
            stops.rotations[going[path], at] = done + looks[first] + 1
            stops.reached[going[path], at] = mrc[first, path]

    def _mrc(self, deficits: NDArray[np.float64]) -> NDArray[np.float64]:
        """MRC per row of (k, C) deficits, which are overwritten."""
        mean = np.empty(len(deficits))
        rows = max(1, _ANGLES // deficits.shape[1])
        for k in range(0, len(deficits), rows):
            half_angles = deficits[k : k + rows]
            half_angles *= self._start.half
            # rounding takes a deficit slightly out of the range of a squared sine
            np.clip(half_angles, 0.0, 1.0, out=half_angles)
            np.sqrt(half_angles, out=half_angles)
            np.arcsin(half_angles, out=half_angles)
            mean[k : k + rows] = np.sum(half_angles, axis=1)
        mean *= 2 * self._start.share
        return mean


def _gains(step: RotationStep, coordinates: NDArray[np.int64], vectors: FloatArray, tilted: FloatArray) -> FloatArray:
    """Make rotations; return (k, c) what the deficits <w, w - V> gain: w_i (old_i - new_i) + w_j (old_j - new_j)."""
    old, new = step.apply(tilted)
    old -= new
    old *= vectors.take(coordinates.take(step.number, axis=1), axis=0)
    gains: FloatArray = old[0]
    gains += old[1]
    return gains


# Rotations that are made at a time: few enough to stay in the cache, many enough for a call of NumPy.
_WINDOW = 50

# Elements of what rotations lose in a window, and bytes of class vectors, of paths walked side by side.
_LOSSES = 2**18
_SIDE_BY_SIDE = 2**25

# Elements of angles that are worked out at a time: they stay in the cache.
_ANGLES = 2**15


@dataclass(frozen=True, eq=False)
class Stops:
    """Where P paths stop for A angles."""

    rotations: NDArray[np.int64]  # (P, A) rotations made; 0 for angles that a path does not reach before it ends
    reached: NDArray[np.float64]  # (P, A) mRC there, radians, past the angle by a part of n_t rotations


def find_stops(
    start: ClassVectors, rotations: Rotations, paths: NDArray[np.int64], angles: NDArray[np.float64]
) -> Stops:
    """Walk paths until mRC exceeds each of the angles.

    `paths`: (P,) ascending numbers of paths; `angles`: (A,) ascending mRC targets in radians, at least 0.
    """
    n, classes = start.shape
    size = n * classes * start.weight.itemsize
    together = max(1, min(len(paths), _LOSSES // (_WINDOW * classes), _SIDE_BY_SIDE // size))
    walked = _Paths(start, rotations, angles, together)
    stops = [walked.stops(paths[k : k + together]) for k in range(0, len(paths), together)]
    return Stops(np.concatenate([f.rotations for f in stops]), np.concatenate([f.reached for f in stops]))


LIMIT = 0
"""Number of members that stands for the limit of many, W' = cos(mRC) W."""

# Angles of a grid that are worth a stop each, though they may never be asked for.
_MOST_STOPS = 400

# Bytes of the averages that are made in one walk.
_MOST_BYTES = 2**27


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
        paired = 0
        if self._draws.antithetic:
            paired = members // 2
        stops = self._stops_of(angles, members - paired)
        # a mean over some of the members would not be the average that was asked for
        reached = np.logical_and.accumulate((stops.rotations > 0).all(axis=0))
        share = np.where(np.arange(members - paired) < paired, 2, 1) / members
        at_once = max(1, _MOST_BYTES // self.weight.nbytes)
        for begin in range(0, int(reached.sum()), at_once):
            part = slice(begin, min(begin + at_once, int(reached.sum())))
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
