"""Logits that are not a product of features and a weight: the model's own nodes compute them, or a store has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Batch
from tna_onnx.engine import local
from tna_onnx.engine.logits import Logits
from tna_onnx.engine.protocol import Engine
from tna_onnx.extraction.table import FeatureTable

__all__ = ["StoredLogits", "TailLogits"]


class TailLogits(Logits):
    """What the model's own nodes make of a store's features.

    Args:
        store: features as they come, with what else those nodes read.
        features: name of the feature tensor.
        run: {tensor: values} of one batch -> (B, C) logits.
        n_classes: number of classes C.
        engine: where functions of chunks are run.
    """

    def __init__(
        self,
        store: FeatureTable,
        features: str,
        run: Callable[[Batch], NDArray[Any]],
        n_classes: int,
        engine: Engine = local,
    ) -> None:
        super().__init__(store, engine)
        self._features = features
        self._run = run
        self._n_classes = n_classes

    def _size(self) -> int:
        # at most: the dtype is known only once the nodes have run
        return len(self._store) * self._n_classes * 8

    def _compute(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]]:
        for features, labels, other_inputs in self._store.batches():
            logits = self._run({self._features: features, **other_inputs})
            # nodes of the model give its dtype; fits and scores need more digits
            if logits.dtype == np.float16:
                logits = logits.astype(np.float32)
            yield logits, labels, features

    def _blocks(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        for features, labels, _ in self._store.batches():
            yield features, labels


class StoredLogits(Logits):
    """Logits that were collected themselves, of a model without a head."""

    def _size(self) -> int:
        return 0  # they are in the store already

    def _compute(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]]:
        for logits, labels in self._blocks():
            yield logits, labels, logits

    def _blocks(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        return self._store.chunks(self._store.features.shape[1])
