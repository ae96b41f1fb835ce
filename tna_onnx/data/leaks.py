"""Samples that occur twice: within a data set, in two that must be apart, and with labels that contradict each other.

All of it is told by the digests of single samples, so neither order nor labels hide a copy, nor does another format of
arrays. Samples in another form (features for images, say) have other digests. A file's own
record of its calibration data is a sketch: the K smallest of their n digests. Digests are uniform, so among the m
samples of other data whose digests are not above the largest of the sketch, the share that is in the sketch is the
share of those data that were calibration data too, with a standard error of sqrt(p (1 - p) / m).

Source: K. Beyer et al., On synopses for distinct-value estimation under multiset operations, SIGMOD 2007, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tna_onnx.data.source import IntArray

__all__ = ["Overlap", "Repeats", "overlap_of", "read_sketch", "repeats_of", "sketch_of", "sketch_overlap"]

_SKETCH = 64  # digests in a file: a kilobyte, and a share of one half is known to 6 points


@dataclass(frozen=True)
class Repeats:
    """Equal samples within one data set.

    Attributes:
        copies: samples that are equal to an earlier one.
        contradicting: samples that have an equal one with another label.
        n: number of samples.
    """

    copies: int
    contradicting: int
    n: int


@dataclass(frozen=True)
class Overlap:
    """Samples of one data set that occur in another.

    Attributes:
        shared: their number; for a sketch, those of the ones that could be looked up.
        n: number of samples that were looked up.
    """

    shared: int
    n: int

    @property
    def share(self) -> float:
        """Shared samples per sample looked up, 0..1; 0 without any."""
        return self.shared / max(1, self.n)


def repeats_of(digests: NDArray[np.uint64], labels: IntArray) -> Repeats:
    """Count equal samples within one data set.

    Args:
        digests: of the samples, (N,).
        labels: class indices (N,).

    >>> repeats_of(np.array([7, 8, 7, 7], np.uint64), np.array([0, 1, 0, 2]))
    Repeats(copies=2, contradicting=3, n=4)
    """
    if not len(digests):
        return Repeats(0, 0, 0)
    order = np.argsort(digests, kind="stable")
    _, starts, counts = np.unique(digests[order], return_index=True, return_counts=True)
    low = np.minimum.reduceat(labels[order], starts)
    high = np.maximum.reduceat(labels[order], starts)
    return Repeats(len(digests) - len(starts), int(counts[low != high].sum()), len(digests))


def overlap_of(digests: NDArray[np.uint64], others: NDArray[np.uint64]) -> Overlap:
    """Count the samples that occur among others, in any order.

    Args:
        digests: of the samples, (N,).
        others: digests of the other samples, (M,).

    >>> overlap_of(np.array([1, 2, 3, 3], np.uint64), np.array([3, 9], np.uint64))
    Overlap(shared=2, n=4)
    """
    return Overlap(int(np.isin(digests, others).sum()), len(digests))


def sketch_of(digests: NDArray[np.uint64]) -> str:
    """Return the smallest digests as text, 16 hexadecimal digits each, ascending.

    >>> sketch_of(np.array([255, 1, 1], np.uint64))
    '0000000000000001 00000000000000ff'
    """
    return " ".join(f"{digest:016x}" for digest in np.unique(digests)[:_SKETCH].tolist())


def read_sketch(text: str) -> NDArray[np.uint64]:
    """Return the digests that `sketch_of` wrote; none of a text that it did not write."""
    words = text.split()
    if not all(len(word) == 16 and set(word) <= set("0123456789abcdef") for word in words):
        return np.zeros(0, np.uint64)
    return np.array([int(word, 16) for word in words], np.uint64)


def sketch_overlap(digests: NDArray[np.uint64], sketch: NDArray[np.uint64]) -> Overlap:
    """Look up those of the samples that a sketch can tell of.

    Args:
        digests: of the samples, (N,).
        sketch: the smallest digests of other samples.
    """
    if not len(sketch):
        return Overlap(0, 0)
    # A sketch that is not full holds all of its samples: each of the new ones can be looked up.
    told = digests
    if len(sketch) == _SKETCH:
        told = digests[digests <= sketch.max()]
    return overlap_of(told, sketch)
