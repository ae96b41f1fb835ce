"""Where paths of rotations stop: the first look at mRC, every n_t rotations, that finds it past an angle: Algorithm 1.

For each class a path follows the deficit e_c = <w_c, w_c - V_c> from the two coordinates that a rotation turns. The
angle of class c is 2 asin(sqrt(e_c / 2) / |w_c|), which is acos(1 - e_c / |w_c|^2) written so that small angles keep
their digits; mRC is its mean over classes. Deficits are added up in the order of the path: stops do not
depend on other angles or on other paths.

A deficit is e_c = <w_c, w_c - V_c>. What a rotation adds to it has the dtype of the weight; sums over rotations are
float64, added in the order of the path.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.rotations import ClassVectors, FloatArray, Rotations, Step, Turns, envelope_reaches

__all__ = ["Stops", "find_stops"]


# Classes that NumPy turns together: what a window of one path loses then stays in the cache.
_CLASSES = 640


@dataclass(frozen=True, eq=False)
class _Window:
    """Deficits of P paths after each of K rotations. Rotation k of path p has the place p K + k.

    Attributes:
        before: (P, C) deficits before the first rotation.
        means: (P, K) means over classes of e_c / (2 |w_c|^2) after each rotation, up to rounding.
        after: (K, P, C) deficits after each rotation.
    """

    before: NDArray[np.float64]
    means: NDArray[np.float64]
    after: NDArray[np.float64]

    def deficits(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (q, C) deficits after the rotations at these places, an array of its own."""
        count = len(self.after)
        return self.after[places % count, places // count]

    def largest(self) -> NDArray[np.float64]:
        """Return (P, C) largest deficit of each class after a rotation."""
        largest: NDArray[np.float64] = self.after.max(axis=0)
        return largest


class _Paths:
    """Paths that are walked side by side: some classes after the others, rotations of disjoint coordinates together.

    Args:
        start: class vectors.
        paths: at most so many are walked side by side.
    """

    def __init__(self, start: ClassVectors, paths: int) -> None:
        self._start = start
        self._weights = start.half * start.share
        classes = start.shape[1]
        self._blocks = [slice(k, k + _CLASSES) for k in range(0, classes, _CLASSES)]
        # cut once for all paths: with many classes that takes as long as a tenth of a path
        self._vectors = [start.block(columns) for columns in self._blocks]
        self._tilted = [np.empty((paths, *block.shape), block.dtype) for block in self._vectors]
        self._last = np.zeros((paths, classes))

    def begin(self, paths: int) -> None:
        """Set out along so many paths."""
        for tilted, vectors in zip(self._tilted, self._vectors, strict=True):
            tilted[:paths] = vectors
        self._last[:] = 0

    def walk(self, going: NDArray[np.int64], pairs: NDArray[np.int64], turn: NDArray[np.float64]) -> _Window:
        """Go on along P of the paths: make (P, K) rotations of (P, K, 2) coordinates."""
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
        before = self._last[going]
        after[0] += before
        # in the order of the path: NumPy would add up a lone class pairwise
        for k in range(1, count):
            after[k] += after[k - 1]
        self._last[going] = after[-1]
        means = after.reshape(-1, classes) @ self._weights
        return _Window(before, means.reshape(count, paths).T, after)


def _gains(step: Step, coordinates: NDArray[np.int64], vectors: FloatArray, tilted: FloatArray) -> FloatArray:
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
_TOGETHER = 2**25

# Elements of angles that are worked out at a time: they stay in the cache.
_ANGLES = 2**15

# In units of x: above the rounding of sums over classes.
_SLACK = 1e-9


@dataclass(frozen=True, eq=False)
class Stops:
    """Where P paths stop for A angles.

    Attributes:
        rotations: (P, A) rotations made; 0 for angles that a path does not reach before it ends.
        reached: (P, A) mRC there, radians, past the angle by a part of n_t rotations.
    """

    rotations: NDArray[np.int64]
    reached: NDArray[np.float64]


def find_stops(
    start: ClassVectors, rotations: Rotations, paths: NDArray[np.int64], angles: NDArray[np.float64]
) -> Stops:
    """Walk paths until mRC exceeds each of the angles.

    Args:
        start: class vectors.
        rotations: of all paths.
        paths: (P,) ascending numbers of paths.
        angles: (A,) ascending mRC targets in radians, at least 0.
    """
    n, classes = start.shape
    size = n * classes * start.weight.itemsize
    together = max(1, min(len(paths), _LOSSES // (_WINDOW * classes), _TOGETHER // size))
    windows = _Paths(start, together)
    stops = []
    for k in range(0, len(paths), together):
        part = paths[k : k + together]
        windows.begin(len(part))
        stops.append(_Walk(start, rotations, part, angles, windows).run())
    return Stops(np.concatenate([f.rotations for f in stops]), np.concatenate([f.reached for f in stops]))


class _Walk:
    """Paths walked side by side, in windows of rotations."""

    def __init__(
        self,
        start: ClassVectors,
        rotations: Rotations,
        paths: NDArray[np.int64],
        angles: NDArray[np.float64],
        windows: _Paths,
    ) -> None:
        self._start = start
        self._rotations = rotations
        self._paths = paths
        self._angles = angles
        self._windows = windows
        # what the mean of x (see `_candidates`) must exceed for mRC to exceed an angle: in general, and while no class
        # is past 90 degrees
        self._in_general = np.array([envelope_reaches(angle) for angle in angles]) - _SLACK
        below = np.sin(np.minimum(angles, math.pi) / 2) ** 2
        self._below_90 = np.where(angles < math.pi / 2, np.maximum(below - _SLACK, self._in_general), self._in_general)
        self._found = Stops(
            np.zeros((len(paths), len(angles)), np.int64), np.zeros((len(paths), len(angles)), np.float64)
        )

    def run(self) -> Stops:
        """Walk until all angles are passed, or the paths end."""
        done = 0
        # positions of the paths that have not passed all angles
        going = np.arange(len(self._paths))
        while going.size and done < self._rotations.last:
            stop = min(done + _WINDOW, self._rotations.last)
            pairs, turn = self._rotations.of(self._paths[going], done, stop)
            self._look(going, self._windows.walk(going, pairs, turn), done)
            done = stop
            going = going[self._found.rotations[going, -1] == 0]
        return self._found

    def _look(self, going: NDArray[np.int64], window: _Window, done: int) -> None:
        """Find which angles are passed, and after which rotations of a window."""
        # Algorithm 1 with n_t: between two looks nothing stops
        looks = np.arange(done + 1, done + window.means.shape[1] + 1) % self._rotations.parameters.n_t == 0
        means = np.where(looks, window.means, -np.inf)
        # angles not passed yet that the window can reach
        near = (self._found.rotations[going] == 0) & (np.max(means, axis=1)[:, None] > self._in_general)
        # where no class is past 90 degrees there are fewer candidates: assumed where that is so before, then checked
        low = (near & (self._below_90 > self._in_general)).any(axis=1) & self._low(window.before)
        path, angle, rotation, mrc = self._passed(window, means, near, low)
        while low.any():
            stayed = low & self._low(window.largest())
            if (stayed == low).all():
                break
            low = stayed
            path, angle, rotation, mrc = self._passed(window, means, near, low)
        at = going[path], angle
        self._found.rotations[at] = done + rotation + 1
        self._found.reached[at] = mrc

    def _passed(
        self, window: _Window, means: NDArray[np.float64], near: NDArray[np.bool_], low: NDArray[np.bool_]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
        """Return (Q,) paths, angles that they pass, the first rotations past these, and mRC there.

        With the mean of x_c = e_c / (2 |w_c|^2), mRC is the mean of 2 asin(sqrt(x_c)). It is at most a concave function
        above that curve, at the mean of x: the envelope on [0, 1], or, while no class is past 90 degrees (x = 1/2, up
        to where the curve is concave), the curve itself.
        """
        count = means.shape[1]
        bounds = np.where(low[:, None], self._below_90, self._in_general)
        path, angle = np.nonzero(near)
        may = means[path] > bounds[path, angle][:, None]
        rotation = np.full(len(path), -1)
        mrc = np.zeros(len(path))
        remaining = np.nonzero(may.any(axis=1))[0]
        # one rotation after the other of those that may pass an angle, for all paths and angles together
        while remaining.size:
            first = np.argmax(may[remaining], axis=1)
            mrc[remaining] = self._mrc(window.deficits(path[remaining] * count + first))
            passed = mrc[remaining] > self._angles[angle[remaining]]
            rotation[remaining[passed]] = first[passed]
            may[remaining, first] = False
            remaining = remaining[~passed]
            remaining = remaining[may[remaining].any(axis=1)]
        reached = rotation >= 0
        return path[reached], angle[reached], rotation[reached], mrc[reached]

    def _low(self, deficits: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Whether no class of (P, C) deficits is past 90 degrees."""
        low: NDArray[np.bool_] = np.max(deficits * self._start.half, axis=1) <= 0.5
        return low

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
