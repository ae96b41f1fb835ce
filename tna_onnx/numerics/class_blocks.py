"""Products with a large weight in float64, some classes at a time: no copy of all of it is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["class_blocks"]

# Elements of a block of the weight: 8 MB of float64, of which callers hold a few.
_BLOCK = 2**20


def class_blocks(weight: NDArray[Any]) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yield (classes, their vectors in float64), (c, n) each, of a (C, n) weight.

    >>> [(block.start, wide.shape) for block, wide in class_blocks(np.ones((3, 2), np.float32))]
    [(0, (3, 2))]
    """
    classes, n = weight.shape
    width = max(1, _BLOCK // max(1, n))
    for start in range(0, classes, width):
        block = slice(start, min(start + width, classes))
        yield block, weight[block].astype(np.float64)
