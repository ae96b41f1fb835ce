"""Random Givens rotations: which pairs of coordinates turn, by which angles.

Pairs and angles have generators of their own, so that a path is a function of its seed however it is cut. Rotations of
disjoint coordinates commute: `runs` cuts the sequence into runs of these, which can be applied together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

__all__ = ["Run", "TiltParameters", "runs"]

# A path ends when the expected cosine has fallen to this: 89.4 degrees, where nothing but noise is left.
_LAST_COSINE = 0.01

# A path that would take longer is refused: n = 100,000 at the paper's parameters takes 850,000.
_MAX_ROTATIONS = 2_000_000


@dataclass(frozen=True)
class TiltParameters:
    """How rotations are drawn: angle t = theta_s * tau with tau ~ Beta(alpha, beta).

    Attributes:
        alpha: first shape of the Beta distribution, above 0 (paper: 5); no unit.
        beta: second shape of the Beta distribution, above 0 (paper: 1); no unit.
        theta_s: largest angle of one rotation, radians (paper: 0.9).
        n_t: rotations drawn at a time, at least 1 (paper: 50). Speed only: mRC is exact after every rotation.
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
        # E cos t by the midpoint rule over quantiles of tau
        quantiles = special.betaincinv(self.alpha, self.beta, (np.arange(256) + 0.5) / 256)
        turned = float(np.mean(1 - np.cos(self.theta_s * quantiles)))
        needed = 4 + math.ceil(math.log(_LAST_COSINE) / math.log1p(-min(2 / n * max(turned, 1e-9), 0.99)))
        if needed > _MAX_ROTATIONS:
            raise ValueError(
                f"theta_s {self.theta_s}, alpha {self.alpha} and beta {self.beta} turn so little that {needed:,} "
                f"rotations would be needed; at most {_MAX_ROTATIONS:,} are made, raise theta_s"
            )
        return needed


@dataclass(frozen=True, eq=False)
class Run:
    """Rotations of disjoint coordinates: (k, 2) pairs and (k,) angles in radians."""

    pairs: NDArray[np.int64]
    turn: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.turn)

    def __getitem__(self, part: slice) -> Run:
        return Run(self.pairs[part], self.turn[part])


def runs(n: int, seed: np.random.SeedSequence, parameters: TiltParameters) -> Iterator[Run]:
    """Yield the rotations of a path, without end, in runs of at most n_t.

    Args:
        n: number of coordinates, at least 2.
        seed: source of the draws.
        parameters: distribution of the rotations.
    """
    # fixed child keys (not .spawn, which counts its calls): a path restarts the same from the same seed
    # two generators: a path does not change with the number drawn at a time
    pair_seed, angle_seed = (np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, k)) for k in (0, 1))
    pair_draws = np.random.default_rng(pair_seed)
    angle_draws = np.random.default_rng(angle_seed)
    p = parameters
    # drawn ahead in large blocks: a call of NumPy costs far more than one draw
    count = max(p.n_t, n // 4)
    while True:
        pairs = pair_draws.integers(0, np.array([n, n - 1]), size=(count, 2))
        pairs[:, 1] += pairs[:, 1] >= pairs[:, 0]  # ordered pair of two different coordinates
        drawn = Run(pairs, p.theta_s * angle_draws.beta(p.alpha, p.beta, size=count))
        last = _last_use(pairs)
        begin = 0
        while begin < count:
            # a run ends before the first pair that shares a coordinate with one of the run
            clash = last[begin : begin + p.n_t] >= begin
            size = int(np.argmax(clash)) if clash.any() else len(clash)
            yield drawn[begin : begin + size]
            begin += size


def _last_use(pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of each of (k, 2) pairs, the last earlier one that shares a coordinate with it; -1 for none."""
    coordinates = pairs.reshape(-1)
    order = np.argsort(coordinates, kind="stable")
    again = coordinates[order[1:]] == coordinates[order[:-1]]
    last = np.full(len(coordinates), -1)
    last[order[1:][again]] = order[:-1][again] // 2
    latest: NDArray[np.int64] = np.max(last.reshape(-1, 2), axis=1)
    return latest
