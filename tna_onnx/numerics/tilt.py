"""Tilt and Average: class vectors turned by random Givens rotations, and their mean.

Source: *Tilt and Average: Geometric Adjustment of the Last Layer for Recalibration* (ICML 2024), Algorithm 1,
with the definition of mRC (mean Rotation over Classes) in its section "Tilt the class vectors".

Algorithm 1 multiplies an explicit R = R_1 R_2 ... R_k (n x n) and measures mRC(W, R) from R W. Nothing needs R:

- <w, R w> = <R^T w, w>, so mRC(W, R) = mRC(W, R^T), class by class;
- R^T W = R_k^T (... (R_1^T W)): the newest rotation acts on two coordinates of what is already there;
- G(i, j, -t) = G(j, i, t), so with (i, j) an ordered random pair R^T has the distribution of R.

A path therefore keeps V = R^T W, turns two of its feature coordinates per rotation, and follows for each class
the deficit e_c = <w_c, w_c - V_c> from those two coordinates alone: O(C) per rotation. The angle of class c is
2 asin(sqrt(e_c / 2) / |w_c|), which is acos(1 - e_c / |w_c|^2) written so that small angles keep their digits.

Rotations on disjoint coordinates commute, so a run of them is one gather and one scatter. Every element sees the
same arithmetic in the same order however the runs are cut: results do not depend on `n_t` or on where paths pause.

Class vectors may be NumPy or torch arrays, on any device; draws are made by NumPy on the host, so a seed gives the same
rotations everywhere. Products have the dtype of the weight, sums over rotations are float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.angles import envelope_reaches
from tna_onnx.numerics.class_vectors import ClassVectors
from tna_onnx.numerics.ops import to_host
from tna_onnx.numerics.rotations import Run, TiltParameters, runs

__all__ = ["TiltPath", "tilted_sums"]


class TiltPath:
    """One random path of tilted class vectors on its way to 90 degrees.

    The path is a function of the seed: pausing at other angles or another `n_t` gives the same vectors, bit for bit.

    Args:
        weight: (C, n) class vectors, float32 or float64, n >= 2; not modified. Paths of one weight can share its
            preparation.
        seed: source of the draws.
        parameters: distribution of the rotations.
        counterpart: whether `counterpart` will be asked for, for which the rotations are kept.

    Raises:
        ValueError: weight is not 2-D, has n < 2, or all its rows are zero.
    """

    def __init__(
        self, weight: Any, seed: np.random.SeedSequence, parameters: TiltParameters, *, counterpart: bool = True
    ) -> None:
        start = weight if isinstance(weight, ClassVectors) else ClassVectors.of(weight)
        self._xp = array_api_compat.array_namespace(start.vectors)
        self._start = start.vectors
        self._half = start.half
        self._share = start.share
        # in the dtype of the weight, for products with what single rotations lose
        self._weak_half = self._xp.astype(start.half * start.share, start.vectors.dtype)
        self._tilted = self._xp.asarray(start.vectors, copy=True)  # the start is shared by all paths
        self._deficit = self._xp.zeros_like(start.half)
        self._max_rotations = parameters.max_rotations(self._start.shape[0])
        self._runs = runs(self._start.shape[0], seed, parameters)
        self._rest: Run | None = None  # of a run that the last target has cut
        self._applied: list[Run] | None = [] if counterpart else None
        self.rotations = 0
        self.angle = 0.0

    @property
    def tilted(self) -> Any:
        """(C, n) view of the tilted class vectors, in the dtype of the weight."""
        return self._tilted.T

    def counterpart(self) -> Any:
        """Return the (C, n) class vectors turned by the transpose of this path's rotation; mRC is the same.

        The path holds V = R^T W; this is R W = R_1 (R_2 (... (R_k W))), from the last rotation to the first.
        """
        assert self._applied is not None, "the path was made without counterpart"  # noqa: S101
        turned = self._xp.asarray(self._start, copy=True)
        for run in reversed(self._applied):
            rows, cos, sin = self._put(run)
            old = self._xp.take(turned, rows, axis=0)
            old_i = old[: len(run)]
            old_j = old[len(run) :]
            turned[rows] = self._xp.concat([cos * old_i - sin * old_j, sin * old_i + cos * old_j])
        return turned.T

    def advance(self, angle: float) -> bool:
        """Rotate until mRC exceeds `angle` (radians); the loop of Algorithm 1. False: the path has ended before."""
        # the last rotation towards one target can pass the next one too
        passed = self.angle > angle
        while not passed and self.rotations < self._max_rotations:
            run = self._rest or next(self._runs)
            done, passed = self._rotate(run, angle)
            self._rest = run[done:]
        self.angle = float(self._mrc(self._deficit[None, :])[0])
        return passed

    def _put(self, run: Run) -> tuple[Any, Any, Any]:
        """Bring a run to the device: (2k,) rows i and then j, (k, 1) cosines and sines."""
        rows = np.ascontiguousarray(run.pairs.T).reshape(-1)
        cos = np.cos(run.turn)[:, None]
        sin = np.sin(run.turn)[:, None]
        device = array_api_compat.device(self._tilted)
        dtype = self._tilted.dtype
        if device == "cpu":  # NumPy
            return rows, cos.astype(dtype), sin.astype(dtype)
        rows, cos, sin = (self._xp.asarray(array, device=device) for array in (rows, cos, sin))
        return rows, self._xp.astype(cos, dtype), self._xp.astype(sin, dtype)

    def _rotate(self, run: Run, target: float) -> tuple[int, bool]:
        """Apply a run up to the rotation that takes mRC past the target; return how many that were, and if it did."""
        xp = self._xp
        size = len(run)
        rows, cos, sin = self._put(run)
        both = xp.concat([cos, cos])
        blocks = self._blocks(size)
        turned = []
        lost = []
        # nothing is written until it is known how many of these rotations are made
        for block in blocks:
            old = self._tilted[:, block][rows]
            start = self._start[:, block][rows]
            new = both * old  # rows i and j of G(i, j, t)^T V
            # G^T (v_i, v_j) = (cos v_i + sin v_j, cos v_j - sin v_i)
            new[:size, :] += sin * old[size:, :]
            new[size:, :] -= sin * old[:size, :]
            # what the deficit <w, w - V> gains: w_i (old_i - new_i) + w_j (old_j - new_j)
            old -= new
            start *= old
            turned.append(new)
            lost.append(start[:size, :] + start[size:, :])
        done = min(size, self._max_rotations - self.rotations)
        first = self._first_past(lost, blocks, done, target)
        passed = first is not None
        if first is not None:
            done = first + 1
        # the rest of the run is kept for the next target
        if done < size:
            rows = self._put(run[:done])[0]
            turned = [xp.concat([new[:done, :], new[size : size + done, :]]) for new in turned]
        for block, new, x in zip(blocks, turned, lost, strict=True):
            self._tilted[:, block][rows] = new
            added = self._added(x[:done, :], block)
            if added.shape[1] == 1:  # NumPy sums rows in order, but a single column pairwise
                self._deficit[block] = xp.cumulative_sum(added, axis=0)[-1, :]
            else:
                self._deficit[block] = xp.sum(added, axis=0)
        if self._applied is not None:
            self._applied.append(run[:done])
        self.rotations += done
        return done, passed

    def _blocks(self, size: int) -> list[slice]:
        """Cut the classes into blocks that fit a core's cache in a run of this size; torch arrays stay whole."""
        classes = self._start.shape[1]
        if not isinstance(self._start, np.ndarray):
            return [slice(0, classes)]
        width = max(1, _BLOCK // (2 * size))
        return [slice(k, min(k + width, classes)) for k in range(0, classes, width)]

    def _added(self, lost: Any, block: slice) -> Any:
        """Put what was lost before on the first of (k, c) losses: their sum over rows, in order, is the deficit."""
        lost = self._xp.astype(lost, self._xp.float64)
        lost[0, :] += self._deficit[block]
        return lost

    def _mrc(self, deficit: Any) -> Any:
        """MRC per row of (k, C) deficits."""
        xp = self._xp
        # clip: rounding takes a deficit slightly out of the range of a squared sine
        return xp.sum(2 * xp.asin(xp.sqrt(xp.clip(deficit * self._half, 0.0, 1.0))), axis=1) * self._share

    def _first_past(self, lost: list[Any], blocks: list[slice], done: int, target: float) -> int | None:
        """Index of the first of these rotations after which mRC lies past the target; None if there is none."""
        # arcsines of all classes after every rotation would take most of the time: first a bound without any
        rows = self._may_pass(lost, blocks, target)
        if not (rows := rows[rows < done]).size:
            return None
        xp = self._xp
        sums = [xp.cumulative_sum(self._added(x[:done, :], b), axis=0) for x, b in zip(lost, blocks, strict=True)]
        deficits = xp.concat(sums, axis=1)
        begin = 0
        width = 1  # mostly it is the first, and arcsines of all classes are expensive
        while begin < len(rows):
            part = rows[begin : begin + width]
            past = np.flatnonzero(to_host(self._mrc(deficits[part, :])) > target)
            if len(past):
                return int(part[past[0]])
            begin += width
            width *= 2
        return None

    def _may_pass(self, lost: list[Any], blocks: list[slice], target: float) -> NDArray[np.int64]:
        """Rotations after which mRC can lie past the target.

        The mean of x_c = deficit / (2 |w_c|^2) is linear in the deficits, one product with `lost`, and mRC is the mean
        of 2 asin(sqrt(x_c)). It is at most a concave function above that curve, at the mean of x: first the envelope on
        [0, 1], then, while no class can be past 90 degrees, the curve itself. The slack is far above the rounding of
        float32 sums.
        """
        xp = self._xp
        # dot products of a block have no need of BLAS's threads, which would wait for one another
        parts = list(zip(lost, blocks, strict=True))
        mean = sum(float(xp.vecdot(self._deficit[b], self._half[b])) for b in blocks) * self._share + _SLACK
        gains = sum(to_host(xp.vecdot(x, self._weak_half[None, b])).astype(np.float64) for x, b in parts)
        # the mean of x after each rotation
        means = mean + np.cumsum(gains)
        rows = np.flatnonzero(means > envelope_reaches(target))
        if not rows.size:
            return rows
        # 2 asin(sqrt(x)) is concave up to x = 1/2, which is 90 degrees: no class may have passed it in between
        risen = xp.concat([xp.sum(xp.clip(x, 0.0, None), axis=0) for x in lost])
        if float(xp.max((self._deficit + risen) * self._half)) > 0.5 - _SLACK:
            return rows
        return rows[means[rows] > min(0.5, math.sin(min(target, math.pi) / 2) ** 2)]


# Elements of both rows of a run of rotations in one block of classes: 1 MB of float32.
_BLOCK = 2**18

# In units of x.
_SLACK = 4e-6


def tilted_sums(
    weight: Any,
    angles: Sequence[float],
    seeds: Sequence[np.random.SeedSequence],
    parameters: TiltParameters,
    *,
    antithetic: bool = False,
) -> Iterator[tuple[float, Any, float]]:
    """Walk one path per seed side by side; at each angle give the sum of their tilted class vectors.

    The mean over members is the *Average* step of Algorithm 1; sums over different seeds add up.

    Args:
        weight: (C, n) class vectors.
        angles: ascending mRC targets in radians, in [0, pi/2).
        seeds: one per member.
        parameters: distribution of the rotations.
        antithetic: add each path's counterpart, so that a seed gives two members whose antisymmetric noise cancels.

    Yields:
        (mean mRC reached in radians, (C, n) sum over members in the dtype of the weight, mean number of rotations). The
        angle reached lies past the target by a part of one rotation, which for short features is many degrees. Ends
        early, after the last angle that every member can reach.

    Raises:
        ValueError: angles are not ascending, or weight is refused by `TiltPath`.
    """
    if any(b <= a for a, b in itertools.pairwise(angles)):
        raise ValueError(f"angles must ascend, got {list(angles)}")
    start = ClassVectors.of(weight)
    made = (TiltPath(start, seed, parameters, counterpart=antithetic) for seed in seeds)
    paths = made if len(angles) == 1 else list(made)  # for one angle they need not be in memory together
    for angle in angles:
        # zeros in the namespace, on the device and in the dtype of the weight
        total = start.vectors * 0
        ends = []
        for path in paths:
            # a mean over some of the members would not be the average that was asked for
            if not path.advance(angle):
                return
            total += path.tilted.T
            if antithetic:
                total += path.counterpart().T
            ends.append((path.angle, path.rotations))
        reached, rotations = np.mean(ends, axis=0).tolist()
        yield reached, total.T, rotations
