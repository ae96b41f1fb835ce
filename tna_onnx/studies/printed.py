"""Algorithm 1 and its grid search as the paper prints them: rotations in steps of n_t, n_e members, no constraint.

Each member is a product of k elementary rotations. After every n_t of them mRC is measured, the tilted weights of all
members, which have the same n_r, are averaged, and the average is scored; the best one wins, the original weight among
them. The paper names no step of angles besides n_t, so every n_r that Algorithm 1 can end at is looked at. It ends
where the expected cosine is below 0.01, past 89 degrees.

    R = R_1 R_2 ... R_k         mRC(W, R) = mRC(W, R^T)         R^T = R_k^T ... R_1^T

R^T is a product of the same kind of rotations, so a walk applies each new one to the vectors that are there.
Source: Cho & Youn (2024), Algorithm 1 and section "Experimental Details".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.metrics import objective_value
from tna_onnx.numerics.rotations import TiltParameters
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.search.settings import SearchSettings

__all__ = ["MEMBERS", "Printed", "Stop", "angles_of", "search_printed", "walk"]

MEMBERS = 10
"""The paper's n_e."""


@dataclass(frozen=True, eq=False)
class Stop:
    """Tilted weights after n_r rotations each.

    Attributes:
        rotations: n_r.
        tilted: (D, n, C) class vectors of D draws.
        angles: (D, C) between each class vector and its tilted self, radians; NaN for zero vectors.
    """

    rotations: int
    tilted: NDArray[Any]
    angles: NDArray[np.float64]

    @property
    def mrc(self) -> NDArray[np.float64]:
        """(D,) mRC in degrees."""
        mean: NDArray[np.float64] = np.degrees(np.nanmean(self.angles, axis=1))
        return mean


@dataclass(frozen=True, eq=False)
class Printed:
    """What the search chose: weight (C, n), mean mRC in degrees, and the index of the choice among the candidates."""

    weight: NDArray[Any]
    angle: float
    index: int
    candidates: int


def walk(
    weight: NDArray[Any], draws: int, tilt: TiltParameters, rng: np.random.Generator, rotations: int, every: int
) -> Iterator[Stop]:
    """Yield tilted weights after every so many rotations.

    Args:
        weight: (C, n) class vectors.
        draws: walks side by side, each with rotations of its own.
        tilt: how rotations are drawn.
        rng: of the draws.
        rotations: where the walk ends.
        every: rotations from one to the next.
    """
    start = np.ascontiguousarray(weight.T)
    n = len(start)
    each = np.arange(draws)
    tilted = np.repeat(start[None], draws, axis=0)
    for stop in range(every, rotations + 1, every):
        # an ordered pair of two different coordinates for each draw
        first = rng.integers(0, n, (every, draws))
        second = (first + rng.integers(1, n, (every, draws))) % n
        turn = tilt.theta_s * rng.beta(tilt.alpha, tilt.beta, (every, draws))
        cos = np.cos(turn).astype(weight.dtype)[..., None]
        sin = np.sin(turn).astype(weight.dtype)[..., None]
        for k in range(every):
            one = tilted[each, first[k]]
            two = tilted[each, second[k]]
            tilted[each, first[k]] = cos[k] * one - sin[k] * two
            tilted[each, second[k]] = sin[k] * one + cos[k] * two
        yield Stop(stop, tilted, angles_of(start, tilted))


def angles_of(start: NDArray[Any], tilted: NDArray[Any]) -> NDArray[np.float64]:
    """Return (D, C) angles in radians between (n, C) vectors and (D, n, C) tilted ones of the same lengths."""
    squares = np.sum(np.square(start, dtype=np.float64), axis=0)
    # a zero vector has no direction
    squares[squares == 0] = np.nan
    inner = np.einsum("nc,dnc->dc", start, tilted, dtype=np.float64)
    angles: NDArray[np.float64] = np.arccos(np.clip(inner / squares, -1, 1))
    return angles


def search_printed(
    weight: NDArray[Any],
    score: Callable[[NDArray[Any]], SampleScores | None],
    settings: SearchSettings,
) -> Printed:
    """Score the average of n_e members after every n_t rotations, and return the best.

    Args:
        weight: (C, n) class vectors.
        score: scores all calibration samples with a weight; None where that cannot be done, and it is no candidate.
        settings: objective, bins, seed and rotations.
    """
    chosen = weight
    angle = 0.0
    index = 0
    least = _value(score(weight), settings)
    count = 1
    rng = np.random.default_rng(settings.seed)
    last = settings.tilt.max_rotations(weight.shape[1])
    for stop in walk(weight, MEMBERS, settings.tilt, rng, last, settings.tilt.n_t):
        average = np.ascontiguousarray(stop.tilted.mean(axis=0, dtype=np.float64).T, weight.dtype)
        value = _value(score(average), settings)
        if value < least:
            least = value
            chosen = average
            angle = float(stop.mrc.mean())
            index = count
        count += 1
    return Printed(chosen, angle, index, count)


def _value(scores: SampleScores | None, settings: SearchSettings) -> float:
    if scores is None:
        return math.inf
    return objective_value(scores, settings.objective, settings.bins)
