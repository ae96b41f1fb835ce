"""A table's chunks at workers that read the rows themselves: places are sent, and sums or scores come back.

The chunks are those of one process, and what is computed of them is the same, so sums have the same bits. A worker
keeps logits that many passes of a fit ask for, as one process does, as far as its share of that memory goes.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.engine.chosen import chosen_rows
from tna_onnx.engine.placement import LinearHead
from tna_onnx.errors import DeviceError
from tna_onnx.extraction.shared import SharedRows, shared_rows
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.numerics.threads import several_threads

__all__ = ["KEPT_BYTES", "FarTable", "Probe", "far_table"]

KEPT_BYTES = 2**30
"""Logits are kept in memory up to this size, and computed again on every pass above it."""

# Columns of a product that a worker computes first, to compare its bits: other processors, libraries or threads show.
_PROBED = 256


@dataclass(frozen=True)
class Probe:
    """The last bits of products here.

    Attributes:
        stop: rows of the first chunk.
        columns: of what they are multiplied with, as many as there are classes if these are few.
        digest: SHA-256 (hex) of the product, and of its product with the same rows.
    """

    stop: int
    columns: int
    digest: str

    @classmethod
    def of(cls, table: FeatureTable, stop: int, columns: int) -> Probe:
        """Compute the products."""
        features, _ = table.block(slice(0, stop))
        vectors = np.random.default_rng(0).standard_normal((columns, features.shape[1]))
        with several_threads(*features.shape, columns):
            product = features @ vectors.astype(features.dtype).T
            digest = hashlib.sha256(np.ascontiguousarray(product).data)
            digest.update(np.ascontiguousarray(product.T @ features).data)
        return cls(stop, columns, digest.hexdigest())


@dataclass(frozen=True, eq=False)
class FarTable:
    """A table whose rows workers find by themselves.

    Attributes:
        table: as this process has it.
        shared: as the others find it.
        blocks: rows of its chunks.
        workers: their number, at most.
        probe: what products of the first chunk are here.
    """

    table: FeatureTable
    shared: SharedRows
    blocks: Sequence[slice]
    workers: int
    probe: Probe

    def with_features(self, of: Callable[..., Any]) -> tuple[Callable[..., Any], Iterator[tuple[Any, ...]]]:
        """Return what an engine is given to compute of(features, labels) of each chunk."""
        return _OfFeatures(self.shared, self.probe, of), ((rows.start, rows.stop) for rows in self.blocks)

    def with_logits(
        self,
        of: Callable[..., Any],
        head: LinearHead,
        number: int | None,
        rows: NDArray[np.bool_] | None,
        features: bool,
        aligned: Sequence[NDArray[Any]],
    ) -> tuple[Callable[..., Any], Iterator[tuple[Any, ...]]]:
        """Return what an engine is given to compute of(logits, labels, features or None, *slices) of each chunk.

        Args:
            of: the function.
            head: gives the logits.
            number: by which workers know the logits again, to keep them; None if there is no second pass.
            rows: (N,) mask of the samples that are chosen; None for all.
            features: whether the function reads the features.
            aligned: arrays of all chosen samples, cut like the chunks.
        """
        bytes_each = KEPT_BYTES // self.workers
        far = _OfLogits(self.shared, self.probe, of, head, number, features, bytes_each)
        return far, self._places(rows, aligned)

    def _places(self, rows: NDArray[np.bool_] | None, aligned: Sequence[NDArray[Any]]) -> Iterator[tuple[Any, ...]]:
        """Yield (start, stop, mask of these or None, *slices), without chunks that have no sample."""
        done = 0
        for block in self.blocks:
            mask = None if rows is None else rows[block]
            count = block.stop - block.start if mask is None else int(np.count_nonzero(mask))
            if count:
                slices = (array[done : done + count] for array in aligned)
                yield (block.start, block.stop, mask, *slices)
            done += count


def far_table(table: FeatureTable, n_classes: int, workers: int) -> FarTable | None:
    """Return how workers read a table; None where it is one chunk, or not in a store."""
    blocks = table.blocks(n_classes)
    # one chunk: there is nothing to share
    if len(blocks) < 2:
        return None
    shared = shared_rows(table)
    if shared is None:
        return None
    probe = Probe.of(table, blocks[0].stop, min(n_classes, _PROBED))
    return FarTable(table, shared, blocks, workers, probe)


# What runs at a worker.

_PROVEN: set[SharedRows] = set()


@dataclass(frozen=True, eq=False)
class _OfFeatures:
    shared: SharedRows
    probe: Probe
    of: Callable[..., Any]

    def __call__(self, start: int, stop: int) -> Any:
        return self.of(*_read(self.shared, self.probe, slice(start, stop)))


@dataclass(frozen=True, eq=False)
class _OfLogits:
    shared: SharedRows
    probe: Probe
    of: Callable[..., Any]
    head: LinearHead
    number: int | None
    features: bool
    bytes_each: int

    def __call__(self, start: int, stop: int, mask: NDArray[np.bool_] | None, *slices: NDArray[Any]) -> Any:
        logits = _KEPT.get(self.number, start)
        if logits is None or self.features:
            features, labels = _read(self.shared, self.probe, slice(start, stop))
        else:
            features, labels = None, self.shared.table().labels[start:stop]
        if logits is None:
            logits = self.head(features)
            _KEPT.put(self.number, start, logits, self.bytes_each)
        wanted = features if self.features else None
        if mask is not None:
            chosen = chosen_rows(mask)
            logits, labels = logits[chosen], labels[chosen]
            wanted = None if wanted is None else wanted[chosen]
        return self.of(logits, labels, wanted, *slices)


def _read(shared: SharedRows, probe: Probe, rows: slice) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return (features, labels) of some rows.

    Raises:
        DeviceError: products of this machine have other last bits than those of the driver.
    """
    table = shared.table()
    if shared not in _PROVEN:
        if Probe.of(table, probe.stop, probe.columns) != probe:
            raise DeviceError(
                "a worker multiplies with other rounding than the driver; use machines of one kind, with the same "
                "libraries and number of threads"
            )
        _PROVEN.add(shared)
    return table.block(rows)


class _Kept:
    """Logits of chunks, up to a number of bytes; those of heads that were asked for long ago go first."""

    def __init__(self) -> None:
        self._heads: dict[int, dict[int, NDArray[Any]]] = {}

    def get(self, number: int | None, start: int) -> NDArray[Any] | None:
        """Return the logits of the chunk that begins at `start`, if they are here."""
        return None if number is None else self._heads.get(number, {}).get(start)

    def put(self, number: int | None, start: int, logits: NDArray[Any], limit: int) -> None:
        """Keep logits if there is room, or can be made."""
        if number is None:
            return
        own = self._heads.pop(number, {})
        self._heads[number] = own  # the last one now
        while self._bytes() + logits.nbytes > limit and len(self._heads) > 1:
            del self._heads[next(iter(self._heads))]
        # a head's own chunks stay: the next pass asks for the first of them again
        if self._bytes() + logits.nbytes <= limit:
            own[start] = logits

    def _bytes(self) -> int:
        return sum(logits.nbytes for logits in itertools.chain(*(own.values() for own in self._heads.values())))


_KEPT = _Kept()
