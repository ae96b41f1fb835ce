"""The loops of the tilt, compiled: optional, with the same bits.

Where numba is installed, large heads are turned by these; NumPy turns the others. Every element sees the arithmetic of
`numerics.windows` and `numerics.path_sums` in the same order, and nothing is fused or reordered, so results do not
differ. Only `weigh` adds up in any order: its sums are for bounds, which leave a slack.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Kernels", "add", "average", "compiled", "sum_tilted", "turn", "weigh"]

# Elements turned (rotations times classes) from which the import and the first compilation, about 3 s, are worth it.
_LARGE = 2**26

# Classes that a loop runs over before the next: what loops hand each other stays in the first cache.
_TILE = 512


@dataclass(frozen=True)
class Kernels:
    """The loops below, compiled."""

    turn: Any
    add: Any
    weigh: Any
    sum_tilted: Any
    average: Any


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
        return _compile(functools.partial(numba.njit, cache=True, nogil=True))
    except RuntimeError:
        # there is no folder that compiled code could be kept in
        return _compile(functools.partial(numba.njit, nogil=True))


def _compile(jit: Any) -> Kernels:
    # sums of `weigh` are used with slack: only these may be added in another order
    any_order = jit(fastmath={"contract", "reassoc"})
    # a division that could raise would be made one by one
    exact = jit(error_model="numpy")
    return Kernels(exact(turn), exact(add), any_order(weigh), exact(sum_tilted), exact(average))


def turn(
    tilted: NDArray[Any],
    vectors: NDArray[Any],
    going: NDArray[np.int64],
    pairs: NDArray[np.int64],
    cos: NDArray[Any],
    sin: NDArray[Any],
    gains: NDArray[Any],
) -> None:
    """Make K rotations of P paths, and write down what each adds to the deficits <w, w - V>.

    Args:
        tilted: (Q, n, C) class vectors of all paths, turned in place.
        vectors: (n, C) class vectors before the first rotation.
        going: (P,) which of the paths are turned.
        pairs: (P, K, 2) coordinates.
        cos: (P, K) cosines, in the dtype of the vectors.
        sin: (P, K) sines.
        gains: (P, K, C), written.
    """
    # short loops over few arrays: a compiler must show that arrays do not overlap before it uses vector instructions
    less_i = np.empty(_TILE, vectors.dtype)
    less_j = np.empty(_TILE, vectors.dtype)
    classes = vectors.shape[1]
    for p in range(pairs.shape[0]):
        path = tilted[going[p]]
        for k in range(pairs.shape[1]):
            i = pairs[p, k, 0]
            j = pairs[p, k, 1]
            turn_cos = cos[p, k]
            turn_sin = sin[p, k]
            for first in range(0, classes, _TILE):
                last = min(first + _TILE, classes)
                row_i = path[i, first:last]
                row_j = path[j, first:last]
                vector_i = vectors[i, first:last]
                vector_j = vectors[j, first:last]
                gain = gains[p, k, first:last]
                for c in range(last - first):
                    old_i = row_i[c]
                    old_j = row_j[c]
                    new_i = turn_cos * old_i + turn_sin * old_j
                    new_j = turn_cos * old_j - turn_sin * old_i
                    row_i[c] = new_i
                    row_j[c] = new_j
                    less_i[c] = old_i - new_i
                    less_j[c] = old_j - new_j
                for c in range(last - first):
                    gain[c] = less_i[c] * vector_i[c] + less_j[c] * vector_j[c]


def add(
    before: NDArray[np.float64],
    gains: NDArray[Any],
    path: NDArray[np.intp],
    rotation: NDArray[np.intp],
    deficits: NDArray[np.float64],
    largest: NDArray[np.float64],
) -> None:
    """Add up gains in the order of the path, up to some of the rotations.

    Args:
        before: (P, C) deficits before the first rotation.
        gains: (P, K, C) what each rotation adds.
        path: (q,) ascending.
        rotation: (q,) of each, ascending within a path.
        deficits: (q, C) after these rotations, written.
        largest: (P, C) largest after any rotation up to these, kept up to date.
    """
    classes = gains.shape[2]
    for first in range(0, classes, _TILE):
        last = min(first + _TILE, classes)
        for q in range(path.shape[0]):
            p = path[q]
            on = q > 0 and path[q - 1] == p
            done = rotation[q - 1] + 1 if on else 0
            deficit = deficits[q, first:last]
            start = deficits[q - 1, first:last] if on else before[p, first:last]
            # loops, not assignments of arrays: these take seconds to compile
            for c in range(last - first):
                deficit[c] = start[c]
            large = largest[p, first:last]
            for k in range(done, rotation[q] + 1):
                gain = gains[p, k, first:last]
                for c in range(last - first):
                    after = deficit[c] + gain[c]
                    deficit[c] = after
                    large[c] = after if after > large[c] else large[c]


def weigh(gains: NDArray[Any], weights: NDArray[np.float64], sums: NDArray[np.float64]) -> None:
    """Write (P, K) sums of (P, K, C) gains times (C,) weights, added up in any order: for bounds that leave a slack."""
    for p in range(gains.shape[0]):
        for k in range(gains.shape[1]):
            gain = gains[p, k]
            total = 0.0
            for c in range(weights.shape[0]):
                total += gain[c] * weights[c]
            sums[p, k] = total


def sum_tilted(  # noqa: PLR0912 - loops over elements, which only compiled code can afford
    block: NDArray[Any],
    pairs: NDArray[np.int64],
    cos: NDArray[Any],
    sin: NDArray[Any],
    stops: NDArray[np.int64],
    rounding: float,
    path: NDArray[Any],
    gains: NDArray[np.float64],
    gained: NDArray[np.bool_],
) -> None:
    """Add up the class vectors of P paths at the first stop, and what they gain from stop to stop.

    Args:
        block: (n, c) class vectors before the first rotation.
        pairs: (P, K, 2) coordinates.
        cos: (P, K) cosines, in the dtype of the vectors.
        sin: (P, K) sines.
        stops: (P, A) ascending numbers of rotations.
        rounding: what rounds a number by being added and taken away again.
        path: (n, c) memory for the class vectors of a path.
        gains: (A, n, c), added to.
        gained: (A, n) which rows of gains hold something, kept up to date: others are cleared before they are added to.
    """
    old_i = np.empty(block.shape[1], block.dtype)
    old_j = np.empty(block.shape[1], block.dtype)
    for p in range(pairs.shape[0]):
        for i in range(block.shape[0]):
            for c in range(block.shape[1]):
                path[i, c] = block[i, c]
        done = 0
        for a in range(stops.shape[1]):
            for k in range(done, stops[p, a]):
                i = pairs[p, k, 0]
                j = pairs[p, k, 1]
                turn_cos = cos[p, k]
                turn_sin = sin[p, k]
                row_i = path[i]
                row_j = path[j]
                for c in range(block.shape[1]):
                    old_i[c] = row_i[c]
                    old_j[c] = row_j[c]
                    row_i[c] = turn_cos * old_i[c] + turn_sin * old_j[c]
                    row_j[c] = turn_cos * old_j[c] - turn_sin * old_i[c]
                if a == 0:
                    continue
                gain_i = gains[a, i]
                gain_j = gains[a, j]
                for side in range(2):
                    cleared = pairs[p, k, side]
                    if not gained[a, cleared]:
                        gained[a, cleared] = True
                        for c in range(block.shape[1]):
                            gains[a, cleared, c] = 0.0
                for c in range(block.shape[1]):
                    gain_i[c] += (row_i[c] + rounding) - (old_i[c] + rounding)
                for c in range(block.shape[1]):
                    gain_j[c] += (row_j[c] + rounding) - (old_j[c] + rounding)
            if a == 0:
                for i in range(block.shape[0]):
                    gain_i = gains[0, i]
                    row_i = path[i]
                    for c in range(block.shape[1]):
                        gain_i[c] += (row_i[c] + rounding) - rounding
            done = stops[p, a]


def average(
    total: NDArray[np.float64],
    gain: NDArray[np.float64],
    gained: NDArray[np.bool_],
    members: float,
    share: float,
    first: int,
    mean: NDArray[Any],
) -> None:
    """Go on to a stop: add to the sums what they gain, and write means.

    Args:
        total: (n, c) sums, added to.
        gain: (n, c) what they gain; not to be added to themselves.
        gained: (n,) which rows gain anything.
        members: number of summands.
        share: one over this number if that is exact, otherwise 0: a product takes less time than a division.
        first: of the c classes.
        mean: (n, C) of which c classes are written.
    """
    for i in range(total.shape[0]):
        row = total[i]
        if gained[i]:
            more = gain[i]
            for c in range(total.shape[1]):
                row[c] += more[c]
        out = mean[i, first : first + total.shape[1]]
        if share > 0:
            for c in range(total.shape[1]):
                out[c] = row[c] * share
        else:
            for c in range(total.shape[1]):
                out[c] = row[c] / members
