"""Logits of several stores, one after the other, each under a weight of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.engine import local
from tna_onnx.engine.logits import Logits

__all__ = ["JoinedLogits"]


class JoinedLogits(Logits):
    """The samples of several `Logits` as one.

    Args:
        parts: at least one; all on one engine. Where that reads rows by itself, chunks are computed here.
    """

    def __init__(self, parts: Sequence[Logits]) -> None:
        super().__init__(parts[0]._store, local if parts[0].far else parts[0].engine)
        self._parts = parts

    def __len__(self) -> int:
        """Return the number of samples of all parts."""
        return sum(len(part) for part in self._parts)

    @property
    def clusters(self) -> NDArray[np.int64] | None:
        """Which of the samples are predictions for one sample of the data."""
        parts = [part.clusters for part in self._parts]
        known = [each for each in parts if each is not None]
        return np.concatenate(known) if len(known) == len(parts) else None

    def forget(self) -> None:
        """Give back the memory of logits that the parts keep."""
        for part in self._parts:
            part.forget()

    def _all(self, *, features: bool = False) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
        # the parts keep their logits, so this one need not
        return itertools.chain.from_iterable(part._all(features=features) for part in self._parts)

    def _compute(self) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
        return itertools.chain.from_iterable(part._compute() for part in self._parts)

    def _blocks(self) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        return itertools.chain.from_iterable(part._blocks() for part in self._parts)

    def _size(self) -> int:
        return sum(part._size() for part in self._parts)
