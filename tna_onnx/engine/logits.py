"""Logits of a feature store under one weight, in chunks, for all samples or some."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.engine.local import reduce_chunks
from tna_onnx.features import FeatureStore
from tna_onnx.maps import CalibrationMap, Reduce, apply_map
from tna_onnx.numerics.stats import SampleScores

__all__ = ["HeadLogits"]

# Logits are kept in memory up to this size, and computed again on every pass above it.
_KEPT_BYTES = 2**30


class HeadLogits:
    """features @ weight.T + bias over a store."""

    def __init__(self, store: FeatureStore, weight: NDArray[Any], bias: NDArray[Any]) -> None:
        self._store, self._weight, self._bias = store, weight, bias
        self._kept: list[NDArray[Any]] | None = None

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
                for chunk in self.chunks(rows, features=features):
                    stop = start + len(chunk[1])
                    yield (*chunk, *(array[start:stop] for array in aligned))
                    start = stop

            return reduce_chunks(of, pieces())

        return run

    def mapped_scores(self, fitted: CalibrationMap | None, rows: NDArray[np.bool_] | None = None) -> SampleScores:
        """Scores after a calibration map."""

        def of(logits: NDArray[Any], labels: NDArray[np.int64], features: NDArray[Any] | None) -> SampleScores:
            return SampleScores.of_logits(apply_map(fitted, logits, features), labels)

        scores: SampleScores = self.reduce(rows, features=bool(fitted and fitted.needs_features))(of)
        return scores

    def scores(self) -> SampleScores:
        """Scores of all samples; logits are not kept."""
        chunks = ((logits, labels) for logits, labels, _ in self._compute())
        scores: SampleScores = reduce_chunks(SampleScores.of_logits, chunks)
        return scores

    def scaled_scores(self, scale: float) -> SampleScores:
        """Scores of all samples under `scale * weight` and the same bias, from the logits that are there already."""
        factor = np.asarray(scale, self._bias.dtype)
        shift = (1 - factor) * self._bias

        def of(logits: NDArray[Any], labels: NDArray[np.int64], _: None) -> SampleScores:
            return SampleScores.of_logits(logits * factor + shift, labels)

        scores: SampleScores = self.reduce()(of)
        return scores

    def _all(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]]:
        if self._kept is None and len(self._store) * self._weight.shape[0] * self._weight.itemsize <= _KEPT_BYTES:
            self._kept = [logits for logits, _, _ in self._compute()]
        if self._kept is None:
            yield from self._compute()
        else:
            for logits, (features, labels) in zip(self._kept, self._blocks(), strict=True):
                yield logits, labels, features

    def _compute(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]]:
        for features, labels in self._blocks():
            logits = features @ self._weight.T
            logits += self._bias
            yield logits, labels, features

    def _blocks(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        return self._store.chunks(self._weight.shape[0])
