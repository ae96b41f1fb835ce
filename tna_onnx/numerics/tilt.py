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

# A path that would take longer is refused: n = 100,000 at the paper's parameters takes 850,000.
_MOST_ROTATIONS = 2_000_000


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
        if not (0 < self.alpha < math.inf and 0 < self.beta < math.inf):
            raise ValueError(f"alpha and beta must be positive and finite, got {self.alpha} and {self.beta}")
        if not 0 < self.theta_s <= math.pi:
            raise ValueError(f"theta_s must lie in (0, pi] radians, got {self.theta_s}")
        if self.n_t < 1:
            raise ValueError(f"n_t must be at least 1, got {self.n_t}")

    def max_rotations(self, n: int) -> int:
        """Rotations after which the expected cosine E<w, R w> = (1 - 2/n (1 - E cos t))^k is below 0.01."""
        quantiles = special.betaincinv(self.alpha, self.beta, (np.arange(256) + 0.5) / 256)
        turned = float(np.mean(1 - np.cos(self.theta_s * quantiles)))
        needed = 4 + math.ceil(math.log(_LAST_COSINE) / math.log1p(-min(2 / n * max(turned, 1e-9), 0.99)))
        if needed > _MOST_ROTATIONS:
            raise ValueError(
                f"theta_s {self.theta_s}, alpha {self.alpha} and beta {self.beta} turn so little that {needed:,} "
                f"rotations would be needed; at most {_MOST_ROTATIONS:,} are made, raise theta_s"
            )
        return needed


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


@dataclass(frozen=True, eq=False)
class _Start:
    """Where all paths of one weight begin.

    Attributes:
        vectors: (n, C) class vectors, feature-major: the two coordinates of a rotation are contiguous.
        half: (C,) factor from a deficit to the squared sine of half the angle, 1 / (2 |w_c|^2); zero for vectors
            without a direction, which then count for nothing.
        share: one over the number of vectors with a direction.
    """

    vectors: FloatArray
    half: NDArray[np.float64]
    share: float

    @classmethod
    def of(cls, weight: FloatArray) -> _Start:
        if weight.ndim != 2 or weight.shape[1] < 2:
            raise ValueError(f"weight must be (C, n) with n >= 2, got shape {weight.shape}")
        vectors = np.ascontiguousarray(weight.T)
        squared = np.einsum("nc,nc->c", vectors, vectors, dtype=np.float64)
        directed = squared > 0
        if not directed.any():
            raise ValueError("every class vector is zero: there is nothing to tilt")
        half = np.divide(0.5, squared, out=np.zeros_like(squared), where=directed)
        return cls(vectors, half, 1 / np.count_nonzero(directed))


class TiltPath:
    """One random path of tilted class vectors on its way to 90 degrees.

    The path is a function of the seed: pausing at other angles or another `n_t` gives the same vectors, bit for bit.

    Args:
        weight: (C, n) class vectors, float32 or float64, n >= 2; not modified. Paths of one weight can share its
            preparation.
        seed: source of the draws.
        parameters: distribution of the rotations.

    Raises:
        ValueError: weight is not 2-D, has n < 2, or all its rows are zero.
    """

    def __init__(self, weight: FloatArray | _Start, seed: np.random.SeedSequence, parameters: TiltParameters) -> None:
        start = weight if isinstance(weight, _Start) else _Start.of(weight)
        self._start, self._half, self._share = start.vectors, start.half, start.share
        self._tilted = self._start.copy()
        self._deficit = np.zeros(self._start.shape[1])
        self._parameters = parameters
        self._max_rotations = parameters.max_rotations(self._start.shape[0])
        # fixed child keys (not .spawn, which counts its calls): a path restarts the same from the same seed
        pairs, angles = (np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, k)) for k in (0, 1))
        self._pair_draws = np.random.default_rng(pairs)
        self._angle_draws = np.random.default_rng(angles)
        self._run: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []
        self._applied: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []
        self.rotations = 0
        self.angle = 0.0

    @property
    def tilted(self) -> FloatArray:
        """(C, n) view of the tilted class vectors, in the dtype of the weight."""
        return self._tilted.T

    def counterpart(self) -> FloatArray:
        """Return the (C, n) class vectors turned by the transpose of this path's rotation; mRC is the same.

        The path holds V = R^T W; this is R W = R_1 (R_2 (... (R_k W))), from the last rotation to the first.
        """
        turned = self._start.copy()
        for first, second, turn in reversed(self._applied):
            cos, sin = np.cos(turn).astype(turned.dtype)[:, None], np.sin(turn).astype(turned.dtype)[:, None]
            old_i, old_j = turned[first], turned[second]
            turned[first], turned[second] = cos * old_i - sin * old_j, sin * old_i + cos * old_j
        return turned.T

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
        lost[0] += self._deficit  # rows add up from the first to the last, whether by sum or by cumsum
        done = min(len(first), self._max_rotations - self.rotations)
        if self._may_pass(lost, target):
            passed = np.flatnonzero(self._mrc(np.cumsum(lost, axis=0)) > target)
            done = min(int(passed[0]) + 1, done) if len(passed) else done
        self._tilted[first[:done]], self._tilted[second[:done]] = new_i[:done], new_j[:done]
        self._applied.append((first[:done], second[:done], turn[:done]))
        # NumPy sums rows in order, but a single column pairwise
        self._deficit = np.sum(lost[:done], axis=0) if lost.shape[1] > 1 else np.cumsum(lost[:done], axis=0)[-1]
        self.angle = float(self._mrc(self._deficit[None])[0])
        self.rotations += done
        return done

    def _mrc(self, deficit: NDArray[np.float64]) -> NDArray[np.float64]:
        """MRC per row of (k, C) deficits."""
        angles: NDArray[np.float64] = 2 * np.arcsin(np.sqrt(np.clip(deficit * self._half, 0.0, 1.0)))
        mean: NDArray[np.float64] = np.sum(angles, axis=1) * self._share
        return mean

    def _may_pass(self, lost: NDArray[np.float64], target: float) -> bool:
        """Whether mRC can lie past the target after one of these rotations; saves most of the arcsines.

        2 asin(sqrt(x)) is concave up to x = 1/2, that is up to 90 degrees, so while no class can be past that, the mean
        angle is at most the angle of the mean x. The mean is linear in the deficits: one product with `lost`. 1e-9 is
        far above the rounding of either side.
        """
        highest = np.sum(np.maximum(lost, 0.0), axis=0) * self._half
        mean = float(np.max(np.cumsum(lost @ self._half))) * self._share
        if highest.max() > 0.5 or mean > 0.5:
            return True
        return 2 * math.asin(math.sqrt(max(mean, 0.0))) > target - 1e-9


def tilted_sums(
    weight: FloatArray,
    angles: Sequence[float],
    seeds: Sequence[np.random.SeedSequence],
    parameters: TiltParameters,
    *,
    antithetic: bool = False,
) -> Iterator[tuple[float, NDArray[np.float64], float]]:
    """Walk one path per seed side by side; at each angle give the sum of their tilted class vectors.

    The mean over members is the *Average* step of Algorithm 1; sums over different seeds add up.

    Args:
        weight: (C, n) class vectors.
        angles: ascending mRC targets in radians, in [0, pi/2).
        seeds: one per member.
        parameters: distribution of the rotations.
        antithetic: add each path's counterpart, so that a seed gives two members whose antisymmetric noise cancels.

    Yields:
        (mean mRC reached in radians, (C, n) float64 sum over members, mean number of rotations). The angle reached
        lies past the target by a part of one rotation, which for short features is many degrees. Ends early, after
        the last angle that every member can reach.

    Raises:
        ValueError: angles are not ascending, or weight is refused by `TiltPath`.
    """
    if any(b <= a for a, b in itertools.pairwise(angles)):
        raise ValueError(f"angles must ascend, got {list(angles)}")
    start = _Start.of(weight)
    paths = [TiltPath(start, seed, parameters) for seed in seeds]
    for angle in angles:
        if not all(path.advance(angle) for path in paths):
            return
        total = np.zeros(weight.shape, order="F")
        for path in paths:
            total += path.tilted
            if antithetic:
                total += path.counterpart()
        yield float(np.mean([path.angle for path in paths])), total, float(np.mean([path.rotations for path in paths]))
