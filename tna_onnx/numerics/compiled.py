"""The two loops of the tilt, compiled: optional, with the same bits.

Where numba is installed, large heads are turned by these; NumPy turns the others. Every element sees the arithmetic of
`numerics.tilt` and `numerics.stops` in the same order, and nothing is fused or reordered, so results do not differ.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Kernels", "compiled", "follow_deficits", "sum_tilted"]

# Elements turned (rotations times classes) from which the import and the first compilation, about 3 s, are worth it.
_LARGE = 2**26


@dataclass(frozen=True)
class Kernels:
    """`follow_deficits` and `sum_tilted`, compiled."""

    follow_deficits: Any
    sum_tilted: Any


def compiled(elements: float, dtype: np.dtype[Any]) -> Kernels | None:
    """Return the compiled loops for so many turned elements; None if these are few, or numba is not installed."""
    return _kernels() if elements >= _LARGE and dtype in (np.float32, np.float64) else None


@functools.cache
def _kernels() -> Kernels | None:
    try:
        import numba  # noqa: PLC0415 - heavy, and optional
    except ImportError:
        return None
    try:
        return Kernels(*(numba.njit(cache=True, nogil=True)(loop) for loop in (follow_deficits, sum_tilted)))
    except RuntimeError:
        # there is no folder that compiled code could be kept in
        return Kernels(*(numba.njit(nogil=True)(loop) for loop in (follow_deficits, sum_tilted)))


def follow_deficits(
    tilted: NDArray[Any],
    vectors: NDArray[Any],
    going: NDArray[np.int64],
    pairs: NDArray[np.int64],
    cos: NDArray[Any],
    sin: NDArray[Any],
    deficits: NDArray[np.float64],
) -> None:
    """Make K rotations of P paths, and follow the deficits <w, w - V>.

    Args:
        tilted: (Q, n, c) class vectors of all paths, turned in place.
        vectors: (n, c) class vectors before the first rotation.
        going: (P,) which of the paths are turned.
        pairs: (P, K, 2) coordinates.
        cos: (P, K) cosines, in the dtype of the vectors.
        sin: (P, K) sines.
        deficits: (Q, K + 1, c) of all paths: the first is given, those after each rotation are written.
    """
    # short loops over few arrays: a compiler must show that arrays do not overlap before it uses vector instructions
    less_i = np.empty(vectors.shape[1], vectors.dtype)
    less_j = np.empty(vectors.shape[1], vectors.dtype)
    for p in range(pairs.shape[0]):
        path = tilted[going[p]]
        for k in range(pairs.shape[1]):
            turn_cos = cos[p, k]
            turn_sin = sin[p, k]
            row_i = path[pairs[p, k, 0]]
            row_j = path[pairs[p, k, 1]]
            vector_i = vectors[pairs[p, k, 0]]
            vector_j = vectors[pairs[p, k, 1]]
            before = deficits[going[p], k]
            after = deficits[going[p], k + 1]
            for c in range(vectors.shape[1]):
                old_i = row_i[c]
                old_j = row_j[c]
                new_i = turn_cos * old_i + turn_sin * old_j
                new_j = turn_cos * old_j - turn_sin * old_i
                row_i[c] = new_i
                row_j[c] = new_j
                less_i[c] = old_i - new_i
                less_j[c] = old_j - new_j
            for c in range(vectors.shape[1]):
                after[c] = before[c] + (less_i[c] * vector_i[c] + less_j[c] * vector_j[c])


def sum_tilted(
    block: NDArray[Any],
    pairs: NDArray[np.int64],
    cos: NDArray[Any],
    sin: NDArray[Any],
    stops: NDArray[np.int64],
    rounding: float,
    gains: NDArray[np.float64],
) -> None:
    """Add up the class vectors of P paths at the first stop, and what they gain from stop to stop.

    Args:
        block: (n, c) class vectors before the first rotation.
        pairs: (P, K, 2) coordinates.
        cos: (P, K) cosines, in the dtype of the vectors.
        sin: (P, K) sines.
        stops: (P, A) ascending numbers of rotations.
        rounding: what rounds a number by being added and taken away again.
        gains: (A, n, c), added to.
    """
    old_i = np.empty(block.shape[1], block.dtype)
    old_j = np.empty(block.shape[1], block.dtype)
    for p in range(pairs.shape[0]):
        path = block.copy()
        done = 0
        for a in range(stops.shape[1]):
            for k in range(done, stops[p, a]):
                turn_cos = cos[p, k]
                turn_sin = sin[p, k]
                row_i = path[pairs[p, k, 0]]
                row_j = path[pairs[p, k, 1]]
                gain_i = gains[a, pairs[p, k, 0]]
                gain_j = gains[a, pairs[p, k, 1]]
                for c in range(block.shape[1]):
                    old_i[c] = row_i[c]
                    old_j[c] = row_j[c]
                    row_i[c] = turn_cos * old_i[c] + turn_sin * old_j[c]
                    row_j[c] = turn_cos * old_j[c] - turn_sin * old_i[c]
                if a == 0:
                    continue
                for c in range(block.shape[1]):
                    gain_i[c] += ((row_i[c] + rounding) - rounding) - ((old_i[c] + rounding) - rounding)
                for c in range(block.shape[1]):
                    gain_j[c] += ((row_j[c] + rounding) - rounding) - ((old_j[c] + rounding) - rounding)
            if a == 0:
                for i in range(block.shape[0]):
                    for c in range(block.shape[1]):
                        gains[0, i, c] += (path[i, c] + rounding) - rounding
            done = stops[p, a]
