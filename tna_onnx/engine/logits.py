"""Logits of a feature store under one weight, in chunks, for all samples or some."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.engine.local import reduce_chunks
from tna_onnx.features import FeatureStore
from tna_onnx.maps import Reduce
from tna_onnx.numerics.stats import SampleScores

__all__ = ["HeadLogits"]

# Logits are kept in memory up to this size, and computed again on every pass above it.
_KEPT_BYTES = 2**30


class HeadLogits:
    """features @ weight.T + bias over a store."""

    def __init__(self, store: FeatureStore, weight: NDArray[Any], bias: NDArray[Any]) -> None:
        self._store, self._weight, self._bias = store, weight, bias
        self._kept: list[tuple[NDArray[Any], NDArray[np.int64]]] | None = None

    def chunks(self, rows: NDArray[np.bool_] | None = None) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        """Yield (logits, labels) of all samples, or of those where the (N,) mask is true."""
        start = 0
        for logits, labels in self._all():
            stop = start + len(labels)
            if rows is None:
                yield logits, labels
            elif rows[start:stop].any():
                yield logits[rows[start:stop]], labels[rows[start:stop]]
            start = stop

    def reduce(self, rows: NDArray[np.bool_] | None = None) -> Reduce:
        """Return the `reduce` that a map's fit asks for."""
        return lambda of: reduce_chunks(of, self.chunks(rows))

    def scores(self) -> SampleScores:
        """Scores of all samples."""
        scores: SampleScores = reduce_chunks(SampleScores.of_logits, self._compute())
        return scores

    def scaled_scores(self, scale: float) -> SampleScores:
        """Scores of all samples under `scale * weight` and the same bias, from the logits that are there already."""
        factor = np.asarray(scale, self._bias.dtype)
        shift = (1 - factor) * self._bias

        def of(logits: NDArray[Any], labels: NDArray[np.int64]) -> SampleScores:
            return SampleScores.of_logits(logits * factor + shift, labels)

        scores: SampleScores = reduce_chunks(of, self._all())
        return scores

    def _all(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        if self._kept is None and len(self._store) * self._weight.shape[0] * self._weight.itemsize <= _KEPT_BYTES:
            self._kept = list(self._compute())
        yield from self._kept if self._kept is not None else self._compute()

    def _compute(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        for features, labels in self._store.chunks(self._weight.shape[0]):
            logits = features @ self._weight.T
            logits += self._bias
            yield logits, labels
