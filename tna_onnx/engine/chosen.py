"""Which rows of a chunk a mask chooses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["chosen_rows"]


def chosen_rows(mask: NDArray[np.bool_]) -> NDArray[np.intp] | slice | None:
    """Return an index of the rows where a (B,) mask is true, None if there are none.

    Neighbours are a slice, of which nothing is copied.

    >>> chosen_rows(np.array([False, True, True]))
    slice(1, 3, None)
    >>> chosen_rows(np.array([True, False, True])).tolist()
    [0, 2]
    """
    places = np.flatnonzero(mask)
    if not places.size:
        return None
    first = int(places[0])
    stop = int(places[-1]) + 1
    return slice(first, stop) if stop - first == places.size else places
