"""Logits of a feature store under one weight, in chunks, for all samples or some.

`HeadLogits` multiplies; `TailLogits` lets the model's own nodes compute them; `StoredLogits` has them in the store.
`score_all` scores several at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Batch
from tna_onnx.engine.local import reduce_chunks
from tna_onnx.engine.placement import Host, Placement
from tna_onnx.extraction.table import FeatureStore
from tna_onnx.maps.base import CalibrationMap, Reduce, apply_map
from tna_onnx.numerics.ops import blocked, to_host
from tna_onnx.numerics.stats import SampleScores

__all__ = ["HeadLogits", "Logits", "StoredLogits", "TailLogits", "score_all"]

# Logits are kept in memory up to this size, and computed again on every pass above it.
_KEPT_BYTES = 2**30


class Logits(ABC):
    """Logits of all samples of a store under one weight."""

    def __init__(self, store: FeatureStore) -> None:
        self._store = store
        self._kept: list[NDArray[Any]] | None = None

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._store)

    def predictions(self) -> NDArray[np.int64]:
        """Return the predicted class of every sample, (N,)."""
        return np.concatenate([np.argmax(to_host(logits), axis=1) for logits, _, _ in self.chunks()])

    def forget(self) -> None:
        """Give back the memory of logits that are kept; they are computed again if they are asked for."""
        self._kept = None

    def at(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the logits of some samples, in ascending order, (R, C)."""
        mask = np.zeros(len(self), bool)
        mask[rows] = True
        return np.concatenate([to_host(logits) for logits, _, _ in self.chunks(mask)])

    @abstractmethod
    def _compute(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]]:
        """Yield (logits, labels, features) in chunks."""

    @abstractmethod
    def _blocks(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        """Yield (features, labels) in the same chunks."""

    @abstractmethod
    def _size(self) -> int:
        """Bytes of all logits."""

    def chunks(
        self, rows: NDArray[np.bool_] | None = None, *, features: bool = False
    ) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], NDArray[Any] | None]]:
        """Yield (logits, labels, features or None) of all samples, or of those where the (N,) mask is true."""
        start = 0
        for logits, labels, z in self._all():
            stop = start + len(labels)
            if rows is None:
                yield logits, labels, z if features else None
            elif (kept := np.flatnonzero(rows[start:stop])).size:
                yield logits[kept], labels[kept], z[kept] if features else None
            start = stop

    def reduce(self, rows: NDArray[np.bool_] | None = None, *, features: bool = False) -> Reduce:
        """Return the `reduce` that a map's fit asks for; `rows` choose samples, from aligned arrays too."""

        def run(of: Callable[..., Any], *aligned: NDArray[Any]) -> Any:
            def pieces() -> Iterator[tuple[Any, ...]]:
                start = 0
                for logits, labels, z in self.chunks(rows, features=features):
                    stop = start + len(labels)
                    slices = (array[start:stop] for array in aligned)
                    # a map that reads features is fitted on the host
                    yield (logits if z is None else to_host(logits), labels, None if z is None else to_host(z), *slices)
                    start = stop

            return reduce_chunks(of, pieces())

        return run

    def mapped_scores(self, fitted: CalibrationMap | None, rows: NDArray[np.bool_] | None = None) -> SampleScores:
        """Scores after a calibration map."""

        def of(logits: NDArray[Any], labels: NDArray[np.int64], features: NDArray[Any] | None) -> SampleScores:
            return SampleScores.of_logits(apply_map(fitted, logits, features), labels)

        scores: SampleScores = self.reduce(rows, features=bool(fitted and fitted.needs_features))(blocked(of))
        return scores

    def scores(self) -> SampleScores:
        """Scores of all samples; logits are not kept."""
        chunks = ((logits, labels) for logits, labels, _ in self._compute())
        scores: SampleScores = reduce_chunks(blocked(SampleScores.of_logits), chunks)
        return scores

    def _all(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]]:
        if self._kept is None and self._size() <= _KEPT_BYTES:
            self._kept = [logits for logits, _, _ in self._compute()]
        if self._kept is None:
            yield from self._compute()
        else:
            for logits, (features, labels) in zip(self._kept, self._blocks(), strict=True):
                yield logits, labels, features


class HeadLogits(Logits):
    """features @ weight.T + bias over a store.

    Args:
        store: features (N, n).
        weight: (C, n).
        bias: (C,).
        placement: where the products are computed, and the logits are.
    """

    def __init__(
        self, store: FeatureStore, weight: NDArray[Any], bias: NDArray[Any], placement: Placement | None = None
    ) -> None:
        super().__init__(store)
        self._placement = placement or Host()
        self._weight, self._bias = self._placement.put(weight), self._placement.put(bias)

    def scaled_scores(self, scale: float) -> SampleScores:
        """Scores of all samples under `scale * weight` and the same bias, from the logits that are there already."""
        shift = (1 - scale) * self._bias

        def of(logits: Any, labels: NDArray[np.int64], _: None) -> SampleScores:
            return SampleScores.of_logits(logits * scale + shift, labels)

        scores: SampleScores = self.reduce()(blocked(of))
        return scores

    def _size(self) -> int:
        return len(self._store) * int(self._weight.shape[0]) * int(self._weight.itemsize)

    def of(self, features: NDArray[Any]) -> NDArray[Any]:
        """Return the logits (B, C) of features (B, n)."""
        logits: NDArray[Any] = features @ self._weight.T
        logits += self._bias
        return logits

    def _compute(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]]:
        for features, labels in self._blocks():
            yield self.of(features), labels, features

    def _blocks(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        return self._placement.chunks(self._store, self._weight.shape[0])


class TailLogits(Logits):
    """What the model's own nodes make of a store's features.

    Args:
        store: features as they come, with what else those nodes read.
        features: name of the feature tensor.
        run: {tensor: values} of one batch -> (B, C) logits.
        n_classes: number of classes C.
    """

    def __init__(
        self, store: FeatureStore, features: str, run: Callable[[Batch], NDArray[Any]], n_classes: int
    ) -> None:
        super().__init__(store)
        self._features, self._run, self._n_classes = features, run, n_classes

    def _size(self) -> int:
        return len(self._store) * self._n_classes * 8

    def _compute(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]]:
        for features, labels, beside in self._store.batches():
            logits = self._run({self._features: features, **beside})
            yield logits.astype(np.float32, copy=False) if logits.dtype == np.float16 else logits, labels, features

    def _blocks(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        for features, labels, _ in self._store.batches():
            yield features, labels


class StoredLogits(Logits):
    """Logits that were collected themselves, of a model without a head."""

    def _size(self) -> int:
        return 0

    def _compute(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]]:
        for logits, labels in self._blocks():
            yield logits, labels, logits

    def _blocks(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        return self._store.chunks(self._store.features.shape[1])


def score_all(several: Sequence[Logits]) -> list[SampleScores]:
    """Score all samples under each of several weights over one store; heads read its features once for all."""
    heads = [logits for logits in several if isinstance(logits, HeadLogits)]
    if len(heads) < len(several) or not heads:
        return [logits.scores() for logits in several]
    parts: list[list[SampleScores]] = [[] for _ in heads]
    for features, labels in heads[0]._blocks():
        for part, head in zip(parts, heads, strict=True):
            part.append(blocked(SampleScores.of_logits)(head.of(features), labels))
    return [SampleScores.concatenate(part) for part in parts]
