"""Some samples of a source, as a source of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tna_onnx.data.digest import sample_digests, sample_form
from tna_onnx.data.source import Batch, IntArray, Source, source_notes
from tna_onnx.errors import DataError

__all__ = ["Part", "halves"]


@dataclass(frozen=True, eq=False)
class Part:
    """The samples `rows` of `whole`, in that order; the laws of `Source` hold.

    Attributes:
        whole: the source.
        rows: (M,) of its samples.
        purpose: what they are for, for reports.
        digests: of all samples of `whole`, (N,); read once for all parts.
    """

    whole: Source
    rows: IntArray
    purpose: str
    digests: npt.NDArray[np.uint64] = field(repr=False)

    @property
    def labels(self) -> IntArray:
        """Class indices (M,)."""
        return self.whole.labels[self.rows]

    @property
    def sample_form(self) -> str:
        """What the digests of single samples are of."""
        return sample_form(self.whole)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the source says of how it was read."""
        return source_notes(self.whole)

    def __len__(self) -> int:
        return len(self.rows)

    def describe(self) -> str:
        """Return one line for reports."""
        return f"{self.whole.describe()}, of which {len(self.rows):,} {self.purpose}"

    def recipe(self) -> dict[str, object] | None:
        """Return the preprocessing of the source."""
        return self.whole.recipe()

    def batches(self, size: int, rows: IntArray | None = None) -> Iterator[Batch]:
        """Yield samples of the part, `size` at a time."""
        chosen = self.rows if rows is None else self.rows[rows]
        return self.whole.batches(size, chosen)

    def digest(self) -> str:
        """Return SHA-256 (hex) of the digest of the source and of which samples these are."""
        whole = self.whole.digest().encode()
        return hashlib.sha256(whole + self.rows.astype(">i8").tobytes()).hexdigest()

    def sample_digests(self) -> npt.NDArray[np.uint64]:
        """Return 64 bits for each sample, (M,)."""
        return self.digests[self.rows]


def halves(source: Source, seed: int, purposes: tuple[str, str]) -> tuple[Part, Part]:
    """Split samples at random into two parts of about the same size; copies of one sample stay together.

    Raises:
        DataError: a sample cannot be read, or all of them are equal.
    """
    digests = sample_digests(source)
    _, group = np.unique(digests, return_inverse=True)
    # a group's place in a random order is that of all its copies
    place = np.random.default_rng(seed).permutation(int(group.max()) + 1)[group]
    middle = np.sort(place)[(len(place) - 1) // 2]
    first = place <= middle
    if first.all():
        raise DataError(f"{source.describe()}: cannot be split into two parts, as the samples are equal; give others")
    rows = (np.flatnonzero(first), np.flatnonzero(~first))
    one, two = (Part(source, own, purpose, digests) for own, purpose in zip(rows, purposes, strict=True))
    return one, two
