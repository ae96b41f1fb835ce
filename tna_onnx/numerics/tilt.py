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
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

__all__ = ["TiltParameters", "TiltPath", "angles_between", "mean_rotation", "tilted_sums"]

FloatArray = NDArray[np.floating[Any]]

# A path ends when the expected cosine has fallen to this: 89.4 degrees, where nothing but noise is left.
_LAST_COSINE = 0.01


@dataclass(frozen=True)
class TiltParameters:
    """How rotations are drawn: angle t = theta_s * tau with tau ~ Beta(alpha, beta).

    Attributes:
        alpha: first shape of the Beta distribution (paper: 5).
        beta: second shape of the Beta distribution (paper: 1).
        theta_s: largest angle of one rotation, radians (paper: 0.9).
        n_t: rotations drawn and applied at a time (paper: 50). Speed only: mRC is exact after every rotation.
    """

    alpha: float = 5.0
    beta: float = 1.0
    theta_s: float = 0.9
    n_t: int = 50

    def __post_init__(self) -> None:
        if not (self.alpha > 0 and self.beta > 0):
            raise ValueError(f"alpha and beta must be positive, got {self.alpha} and {self.beta}")
        if not 0 < self.theta_s <= math.pi:
            raise ValueError(f"theta_s must lie in (0, pi] radians, got {self.theta_s}")
        if self.n_t < 1:
            raise ValueError(f"n_t must be at least 1, got {self.n_t}")

    def max_rotations(self, n: int) -> int:
        """Rotations after which the expected cosine E<w, R w> = (1 - 2/n (1 - E cos t))^k is below 0.01."""
        quantiles = special.betaincinv(self.alpha, self.beta, (np.arange(256) + 0.5) / 256)
        turned = float(np.mean(1 - np.cos(self.theta_s * quantiles)))
        return 4 + math.ceil(math.log(_LAST_COSINE) / math.log1p(-min(2 / n * max(turned, 1e-9), 0.99)))


def mean_rotation(weight: FloatArray, tilted: FloatArray) -> float:
    """MRC: mean over classes of the angle between each class vector and its tilted self.

    Args:
        weight: (C, n) class vectors; zero vectors have no direction and are left out.
        tilted: (C, n) tilted class vectors, of any norm.

    Returns:
        Mean angle in radians.

    Source: definition of mRC, section "Tilt the class vectors".

    >>> mean_rotation(np.eye(2), np.array([[0.0, 1.0], [0.0, 1.0]])) / np.pi * 180
    45.0
    """
    return float(np.mean(angles_between(weight, tilted)))


def angles_between(weight: FloatArray, tilted: FloatArray) -> NDArray[np.float64]:
    """Angle in radians between each class vector and its tilted self, both (C, n); zero vectors are left out."""
    w, v = np.asarray(weight, np.float64), np.asarray(tilted, np.float64)
    length = np.linalg.norm(w, axis=1) * np.linalg.norm(v, axis=1)
    kept = length > 0
    cosine = np.einsum("cn,cn->c", w, v)[kept] / length[kept]
    angle: NDArray[np.float64] = np.arccos(np.clip(cosine, -1.0, 1.0))
    return angle


class TiltPath:
    """One random path of tilted class vectors on its way to 90 degrees.

    The path is a function of the seed: pausing at other angles or another `n_t` gives the same vectors, bit for bit.

    Args:
        weight: (C, n) class vectors, float32 or float64, n >= 2; not modified.
        seed: source of the draws.
        parameters: distribution of the rotations.

    Raises:
        ValueError: weight is not 2-D, has n < 2, or all its rows are zero.
    """

    def __init__(self, weight: FloatArray, seed: np.random.SeedSequence, parameters: TiltParameters) -> None:
        if weight.ndim != 2 or weight.shape[1] < 2:
            raise ValueError(f"weight must be (C, n) with n >= 2, got shape {weight.shape}")
        self._start = np.ascontiguousarray(weight.T)  # (n, C): the two coordinates of a rotation are contiguous
        self._tilted = self._start.copy()
        squared = np.einsum("nc,nc->c", self._start, self._start, dtype=np.float64)
        self._directed = np.flatnonzero(squared > 0)
        if not len(self._directed):
            raise ValueError("every class vector is zero: there is nothing to tilt")
        self._twice_squared = 2 * squared[self._directed]
        self._deficit = np.zeros(weight.shape[0])
        self._parameters = parameters
        self._max_rotations = parameters.max_rotations(weight.shape[1])
        # fixed child keys (not .spawn, which counts its calls): a path restarts the same from the same seed
        pairs, angles = (np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, k)) for k in (0, 1))
        self._pair_draws = np.random.default_rng(pairs)
        self._angle_draws = np.random.default_rng(angles)
        self._run: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []
        self.rotations = 0
        self.angle = 0.0

    @property
    def tilted(self) -> FloatArray:
        """(C, n) view of the tilted class vectors, in the dtype of the weight."""
        return self._tilted.T

    def advance(self, angle: float) -> bool:
        """Rotate until mRC exceeds `angle` (radians); the loop of Algorithm 1. False: the path has ended before."""
        while self.angle <= angle:
            if self.rotations >= self._max_rotations:
                return False
            if not self._run:
                self._draw()
            first, second, turn = self._run[0]
            done = self._rotate(first, second, turn, angle)
            if done < len(first):
                self._run[0] = (first[done:], second[done:], turn[done:])
            else:
                self._run.pop(0)
        return True

    def _draw(self) -> None:
        """Draw n_t rotations and cut them into runs whose coordinates are disjoint."""
        p, n = self._parameters, self._start.shape[0]
        pairs = self._pair_draws.integers(0, np.array([n, n - 1]), size=(p.n_t, 2))
        pairs[:, 1] += pairs[:, 1] >= pairs[:, 0]  # ordered pair of two different coordinates
        turn = p.theta_s * self._angle_draws.beta(p.alpha, p.beta, size=p.n_t)
        begin, seen = 0, set[int]()
        for k, (i, j) in enumerate(pairs.tolist()):
            if i in seen or j in seen:
                self._run.append((pairs[begin:k, 0], pairs[begin:k, 1], turn[begin:k]))
                begin, seen = k, set()
            seen.update((i, j))
        self._run.append((pairs[begin:, 0], pairs[begin:, 1], turn[begin:]))

    def _rotate(
        self, first: NDArray[np.int64], second: NDArray[np.int64], turn: NDArray[np.float64], target: float
    ) -> int:
        """Apply a run up to the rotation that takes mRC past the target; returns how many were applied."""
        dtype = self._tilted.dtype
        cos, sin = np.cos(turn).astype(dtype)[:, None], np.sin(turn).astype(dtype)[:, None]
        old_i, old_j = self._tilted[first], self._tilted[second]
        new_i, new_j = cos * old_i + sin * old_j, cos * old_j - sin * old_i  # rows i and j of G(i, j, t)^T V
        lost = np.multiply(self._start[first], old_i - new_i, dtype=np.float64)
        lost += np.multiply(self._start[second], old_j - new_j, dtype=np.float64)
        lost[0] += self._deficit
        deficit = np.cumsum(lost, axis=0)  # row k: after rotation k
        # take, and not deficit[:, directed], which is column-major: the mean would add in another order for another run
        half_sine = np.clip(np.take(deficit, self._directed, axis=1) / self._twice_squared, 0.0, 1.0)
        mrc = np.mean(2 * np.arcsin(np.sqrt(half_sine)), axis=1)
        passed = np.flatnonzero(mrc > target)
        done = min(int(passed[0]) + 1 if len(passed) else len(first), self._max_rotations - self.rotations)
        self._tilted[first[:done]], self._tilted[second[:done]] = new_i[:done], new_j[:done]
        self._deficit, self.angle = deficit[done - 1], float(mrc[done - 1])
        self.rotations += done
        return done


def tilted_sums(
    weight: FloatArray,
    angles: Sequence[float],
    seeds: Sequence[np.random.SeedSequence],
    parameters: TiltParameters,
) -> Iterator[tuple[float, NDArray[np.float64], float]]:
    """Walk one path per seed side by side; at each angle give the sum of their tilted class vectors.

    The mean over members is the *Average* step of Algorithm 1; sums over different seeds add up.

    Args:
        weight: (C, n) class vectors.
        angles: ascending mRC targets in radians, in [0, pi/2).
        seeds: one per member.
        parameters: distribution of the rotations.

    Yields:
        (angle, (C, n) float64 sum over members, mean number of rotations). Ends early, after the last angle that
        every member can reach.

    Raises:
        ValueError: angles are not ascending, or weight is refused by `TiltPath`.
    """
    if any(b <= a for a, b in itertools.pairwise(angles)):
        raise ValueError(f"angles must ascend, got {list(angles)}")
    paths = [TiltPath(weight, seed, parameters) for seed in seeds]
    for angle in angles:
        if not all(path.advance(angle) for path in paths):
            return
        total = np.zeros(weight.shape)
        for path in paths:
            total += path.tilted
        yield angle, total, float(np.mean([path.rotations for path in paths]))
