"""Where paths of rotations stop: the first look at mRC, every n_t rotations, that finds it past an angle: Algorithm 1.

For each class a path follows the deficit e_c = <w_c, w_c - V_c> from the two coordinates that a rotation turns. The
angle of class c is 2 asin(sqrt(e_c / 2) / |w_c|), which is acos(1 - e_c / |w_c|^2) written so that small angles keep
their digits; mRC is its mean over classes. What rotations lose has the dtype of the weight, sums over rotations are
float64, added in the order of the path: stops do not depend on other angles or on other paths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.angles import envelope_reaches
from tna_onnx.numerics.class_vectors import ClassVectors, FloatArray
from tna_onnx.numerics.compiled import Kernels, compiled
from tna_onnx.numerics.rotations import Rotations
from tna_onnx.numerics.turns import Step, Turns

__all__ = ["Stops", "find_stops"]

# Rotations that are made at a time: few enough to stay in the cache, many enough for a call of NumPy.
_WINDOW = 50

# Elements of what rotations lose in a window, and bytes of class vectors, of paths walked side by side.
_LOSSES = 2**18
_TOGETHER = 2**25

# Elements of what the rotations of one path lose, for as many classes as are turned together: they stay in the cache.
_BLOCK = 2**15

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
    together = min(_LOSSES // (_WINDOW * classes), _TOGETHER // (n * classes * start.weight.itemsize))
    kernels = compiled(len(paths) * rotations.last * classes, start.weight.dtype)
    # cut once for all paths: with many classes that takes as long as a tenth of a path
    vectors = _cut(start)
    found = [
        _Walk(start, vectors, rotations, paths[k : k + max(1, together)], angles, kernels).run()
        for k in range(0, len(paths), max(1, together))
    ]
    return Stops(np.concatenate([f.rotations for f in found]), np.concatenate([f.reached for f in found]))


@dataclass(frozen=True, eq=False)
class _Block:
    """Some classes of paths that are walked side by side.

    Attributes:
        classes: which.
        vectors: (n, c) class vectors before the first rotation.
        tilted: (P n, c) class vectors of all paths, turned in place.
    """

    classes: slice
    vectors: FloatArray
    tilted: FloatArray

    def turn(self, pairs: NDArray[np.int64], steps: Sequence[Step]) -> FloatArray:
        """Make K rotations of all paths; return (K, c) what the deficits gain by each."""
        lost = np.empty((len(pairs), self.vectors.shape[1]), self.vectors.dtype)
        for step in steps:
            old_i, old_j, new_i, new_j = step.apply(self.tilted)
            # what the deficit <w, w - V> gains: w_i (old_i - new_i) + w_j (old_j - new_j)
            old_i -= new_i
            old_i *= self.vectors.take(pairs[step.number, 0], axis=0)
            old_j -= new_j
            old_j *= self.vectors.take(pairs[step.number, 1], axis=0)
            old_i += old_j
            lost[step.number] = old_i
        return lost


def _cut(start: ClassVectors) -> list[tuple[slice, FloatArray]]:
    """Cut class vectors (n, C) into blocks (n, c); returns which classes, and their vectors."""
    width = max(64, _BLOCK // _WINDOW)
    blocks = [slice(k, k + width) for k in range(0, start.shape[1], width)]
    return [(classes, start.block(classes)) for classes in blocks]


class _Walk:
    """Paths walked side by side, in windows of rotations."""

    def __init__(
        self,
        start: ClassVectors,
        vectors: Sequence[tuple[slice, FloatArray]],
        rotations: Rotations,
        paths: NDArray[np.int64],
        angles: NDArray[np.float64],
        kernels: Kernels | None,
    ) -> None:
        self._start = start
        self._rotations = rotations
        self._paths = paths
        self._angles = angles
        self._blocks = [_Block(classes, block, np.tile(block, (len(paths), 1))) for classes, block in vectors]
        self._kernels = kernels
        # the last deficits, and those after each rotation of a window: one array, used again
        self._deficits = np.zeros((len(paths), _WINDOW + 1, len(start.half)))
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
            self._turn(going, pairs, turn)
            window = self._deficits[:, 1 : stop - done + 1]
            self._look(going, window if len(going) == len(window) else window[going], done)
            self._deficits[:, 0] = self._deficits[:, stop - done]
            done = stop
            going = going[self._found.rotations[going, -1] == 0]
        return self._found

    def _turn(self, going: NDArray[np.int64], pairs: NDArray[np.int64], turn: NDArray[np.float64]) -> None:
        """Make (P, K) rotations, and write down the deficits after each."""
        # classes have nothing to do with each other
        if self._kernels:
            dtype = self._start.weight.dtype
            cos = np.cos(turn).astype(dtype)
            sin = np.sin(turn).astype(dtype)
            for block in self._blocks:
                deficits = self._deficits[:, :, block.classes]
                tilted = block.tilted.reshape(len(deficits), -1, deficits.shape[2])
                self._kernels.follow_deficits(tilted, block.vectors, going, pairs, cos, sin, deficits)
            return
        paths, count = turn.shape
        turns = Turns(np.repeat(going, count), pairs.reshape(-1, 2), turn.reshape(-1))
        steps = [*turns.steps(self._start.shape[0])]
        for block in self._blocks:
            after = block.turn(turns.pairs, steps).reshape(paths, count, -1).astype(np.float64)
            after[:, 0] += self._deficits[going, 0, block.classes]
            # in the order of the path: NumPy would add up a lone class pairwise
            for k in range(1, count):
                after[:, k] += after[:, k - 1]
            self._deficits[going, 1 : count + 1, block.classes] = after

    def _look(self, going: NDArray[np.int64], window: NDArray[np.float64], done: int) -> None:
        """Find which angles are passed, after which rotations of a window: (P, K, C) deficits after each."""
        path, angle, may = self._candidates(going, window)
        # Algorithm 1 with n_t: between two looks nothing stops
        may &= np.arange(done + 1, done + may.shape[1] + 1) % self._rotations.parameters.n_t == 0
        seen = may.any(axis=1)
        path, angle, may = path[seen], angle[seen], may[seen]
        # one rotation after the other of those that may pass an angle, for all paths and angles together
        while path.size:
            first = np.argmax(may, axis=1)
            mrc = self._mrc(window[path, first])
            passed = mrc > self._angles[angle]
            at = going[path[passed]], angle[passed]
            self._found.rotations[at] = done + first[passed] + 1
            self._found.reached[at] = mrc[passed]
            may[np.arange(len(path)), first] = False
            left = ~passed & may.any(axis=1)
            path, angle, may = path[left], angle[left], may[left]

    def _candidates(
        self, going: NDArray[np.int64], window: NDArray[np.float64]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
        """Return (Q,) paths, (Q,) angles not passed yet, and (Q, K) whether mRC can be past them after each rotation.

        The mean of x_c = e_c / (2 |w_c|^2) is one product, and mRC is the mean of 2 asin(sqrt(x_c)). It is at most a
        concave function above that curve, at the mean of x: the envelope on [0, 1], or, while no class is past 90
        degrees (x = 1/2, up to where the curve is concave), the curve itself.
        """
        half = self._start.half
        means = window @ (half * self._start.share)
        low = (np.max(window, axis=1) * half).max(axis=1) <= 0.5
        bounds = np.where(low[:, None], self._below_90, self._in_general)
        open_angles = self._found.rotations[going] == 0
        path, angle = np.nonzero(open_angles & (np.max(means, axis=1)[:, None] > bounds))
        return path, angle, means[path] > bounds[path, angle][:, None]

    def _mrc(self, deficits: NDArray[np.float64]) -> NDArray[np.float64]:
        """MRC per row of (k, C) deficits."""
        # clip: rounding takes a deficit slightly out of the range of a squared sine
        angles = 2 * np.arcsin(np.sqrt(np.clip(deficits * self._start.half, 0.0, 1.0)))
        mean: NDArray[np.float64] = np.sum(angles, axis=1) * self._start.share
        return mean
