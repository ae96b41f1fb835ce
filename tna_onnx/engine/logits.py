"""Logits of a feature store under one weight, in chunks, for all samples or some.

`HeadLogits` multiplies; `engine.other_logits` has those that the model's own nodes compute, or a store.
`score_all` scores several at a time. Sums over chunks are the engine's: functions and statistics that go to it can be
pickled.
"""

from __future__ import annotations

import copy
import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.engine import local, sent
from tna_onnx.engine.chosen import chosen_rows
from tna_onnx.engine.far import KEPT_BYTES, FarTable
from tna_onnx.engine.kept import KeptChunks
from tna_onnx.engine.placement import Host, LinearHead, Placement
from tna_onnx.engine.protocol import Engine
from tna_onnx.engine.reduction import Reduction
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.maps.base import CalibrationMap, Reduce
from tna_onnx.numerics.ops import Blocked, to_host
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.runtime import trim_memory

__all__ = ["HeadLogits", "Logits", "score_all"]

# Logits under each weight that a worker may see have a number.
_NUMBERS = itertools.count()


class Logits(ABC):
    """Logits of all samples of a store under one weight.

    Args:
        store: features and labels.
        engine: where functions of chunks are run.
    """

    far: FarTable | None = None
    """The table as workers read it; None where chunks of arrays are sent to the engine."""

    def __init__(self, store: FeatureTable, engine: Engine = local) -> None:
        self._store = store
        self.engine = engine
        self._kept: KeptChunks | None = None

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._store)

    @property
    def clusters(self) -> NDArray[np.int64] | None:
        """Which samples are predictions for one sample of the data, (N,); None where each is its own."""
        return self._store.clusters

    def _clustered(self, scores: SampleScores, rows: NDArray[np.bool_] | None = None) -> SampleScores:
        clusters = self.clusters
        return scores.clustered(clusters if clusters is None or rows is None else clusters[rows])

    def predictions(self, fitted: CalibrationMap | None = None) -> NDArray[np.int64]:
        """Return the predicted class of every sample, (N,), after a calibration map."""
        features = fitted is not None and fitted.needs_features
        of = functools.partial(sent.predicted, fitted)
        return np.concatenate(list(self.engine.map_chunks(*self.sent(of, None, features, ()))))

    def forget(self) -> None:
        """Give back the memory of logits that are kept; they are computed again if they are asked for."""
        if self._kept is not None:
            self._kept = None
            trim_memory()

    def at(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the logits of some samples, in ascending order, (R, C)."""
        # a mask keeps the order of the chunks
        mask = np.zeros(len(self), bool)
        mask[rows] = True
        return np.concatenate(list(self.engine.map_chunks(sent.on_host, self.chunks(mask))))

    @abstractmethod
    def _compute(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]]:
        """Yield (logits, labels, features) in chunks."""

    @abstractmethod
    def _blocks(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        """Yield (features, labels) in the same chunks, on the host."""

    @abstractmethod
    def _size(self) -> int:
        """Bytes of all logits."""

    def chunks(
        self, rows: NDArray[np.bool_] | None = None, *, features: bool = False
    ) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], NDArray[Any] | None]]:
        """Yield (logits, labels, features or None) of all samples, or of those where the (N,) mask is true."""
        start = 0
        for logits, labels, z in self._all(features=features):
            stop = start + len(labels)
            if rows is None:
                yield logits, labels, z if features else None
            elif (kept := chosen_rows(rows[start:stop])) is not None:
                yield logits[kept], labels[kept], z[kept] if features else None
            start = stop

    def reduce(self, rows: NDArray[np.bool_] | None = None, *, features: bool = False) -> Reduce:
        """Return the `reduce` that a map's fit asks for; `rows` choose samples, from aligned arrays too."""
        return Reduction(self, rows, features)

    def mapped_scores(self, fitted: CalibrationMap | None, rows: NDArray[np.bool_] | None = None) -> SampleScores:
        """Scores after a calibration map."""
        reduce = self.reduce(rows, features=fitted is not None and fitted.needs_features)
        scores: SampleScores = reduce(Blocked(functools.partial(sent.of_mapped, fitted)))
        return self._clustered(scores, rows)

    def scores(self) -> SampleScores:
        """Scores of all samples; logits that are not there already are not kept."""
        # a candidate of a search is scored once: there is no second pass to keep its logits for
        passed = self._compute() if self._kept is None else self._all()
        chunks = ((logits, labels) for logits, labels, _ in passed)
        scores: SampleScores = self.engine.sum_chunks(Blocked(SampleScores.of_logits), chunks)
        return self._clustered(scores)

    def pieces(
        self, rows: NDArray[np.bool_] | None, features: bool, aligned: Sequence[NDArray[Any]]
    ) -> Iterator[tuple[Any, ...]]:
        """Yield (logits, labels, features or None, *slices) of the samples chosen, with slices of (N,) arrays."""
        start = 0
        for logits, labels, z in self.chunks(rows, features=features):
            stop = start + len(labels)
            slices = (array[start:stop] for array in aligned)
            yield (logits, labels, z, *slices)
            start = stop

    def sent(
        self,
        of: Callable[..., Any],
        rows: NDArray[np.bool_] | None,
        features: bool,
        aligned: Sequence[NDArray[Any]],
    ) -> tuple[Callable[..., Any], Iterator[tuple[Any, ...]]]:
        """Return what the engine is given to compute of(*piece) for each of the `pieces`: a function and chunks."""
        return of, self.pieces(rows, features, aligned)

    def _all(self, *, features: bool = False) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]]:
        # features are mapped from a file; a map's fit takes many passes over the same logits
        if self._kept is None and self._size() <= KEPT_BYTES:
            self._kept = KeptChunks((logits for logits, _, _ in self._compute()), len(self), self._size())
        if self._kept is None:
            yield from self._compute()
        else:
            blocks = self._read_blocks() if features else self._blocks()
            for logits, (z, labels) in zip(self._kept, blocks, strict=True):
                yield logits, labels, z

    def _read_blocks(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        """Yield the same with the features where the logits are."""
        return self._blocks()


class HeadLogits(Logits):
    """features @ weight.T + bias over a store.

    Args:
        store: features (N, n).
        weight: (C, n).
        bias: (C,).
        placement: where the products are computed, and the logits are.
        engine: where functions of chunks are run.
        far: the same table as workers read it; None where chunks of arrays are sent to the engine.
    """

    def __init__(
        self,
        store: FeatureTable,
        weight: NDArray[Any],
        bias: NDArray[Any],
        placement: Placement | None = None,
        engine: Engine = local,
        far: FarTable | None = None,
    ) -> None:
        super().__init__(store, engine)
        self.far = far
        self._number = next(_NUMBERS)
        self._placement = placement or Host()
        # moved once: every chunk is multiplied with them
        self.head = LinearHead(self._placement.put(weight), self._placement.put(bias))

    def turned(self, matrix: NDArray[Any], bias: NDArray[Any]) -> HeadLogits:
        """Return the logits under this weight times a (n, n) matrix, beside a (C,) new bias."""
        turned = copy.copy(self)
        turned._kept = None
        turned._number = next(_NUMBERS)
        turned.head = replace(self.head, bias=self._placement.put(bias), matrix=self._placement.put(matrix))
        return turned

    def sent(
        self,
        of: Callable[..., Any],
        rows: NDArray[np.bool_] | None,
        features: bool,
        aligned: Sequence[NDArray[Any]],
    ) -> tuple[Callable[..., Any], Iterator[tuple[Any, ...]]]:
        """Return what the engine is given; places of rows where workers read them."""
        if self.far is None:
            return super().sent(of, rows, features, aligned)
        number = self._number if self._size() <= KEPT_BYTES else None
        return self.far.with_logits(of, self.head, number, rows, features, aligned)

    def scores(self) -> SampleScores:
        """Scores of all samples."""
        if self.far is None:
            return super().scores()
        of = Blocked(functools.partial(sent.of_mapped, None))
        scores: SampleScores = self.engine.sum_chunks(*self.far.with_logits(of, self.head, None, None, False, ()))
        return self._clustered(scores)

    def sent_features(self, of: Callable[..., Any]) -> tuple[Callable[..., Any], Iterator[tuple[Any, ...]]]:
        """Return what the engine is given to compute of(features, labels) of each chunk."""
        return (of, self.placed()) if self.far is None else self.far.with_features(of)

    def scaled_scores(self, scale: float, *, with_bias: bool = False) -> SampleScores:
        """Scores of all samples under `scale * weight`, from the logits that are there already.

        Args:
            scale: what the weight is multiplied by.
            with_bias: whether the bias is, too.
        """
        # scale W z + b = scale (W z + b) + (1 - scale) b
        shift = None if with_bias else (1 - scale) * self.head.bias
        scores: SampleScores = self.reduce()(Blocked(functools.partial(sent.of_scaled, scale, shift)))
        return self._clustered(scores)

    def at(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the logits of some samples, (R, C): the product with their features alone."""
        features = self._store.features[rows]  # float16 is widened, as in `FeatureTable.chunks`
        wide = np.asarray(features, np.float64 if features.dtype == np.float64 else np.float32)
        return to_host(self.head(self._placement.put(wide)))

    def _size(self) -> int:
        return len(self._store) * int(self.head.weight.shape[0]) * int(self.head.weight.itemsize)

    def _compute(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]]:
        for features, labels in self.placed():
            yield self.head(features), labels, features

    def placed(self) -> Iterator[tuple[Any, NDArray[np.int64]]]:
        """Yield (features, labels) in chunks, features where the products are computed."""
        return self._placement.chunks(self._store, self.head.weight.shape[0])

    def _blocks(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        # with the logits kept, most passes ask for labels alone: nothing is moved for those
        return self._store.chunks(self.head.weight.shape[0])

    def _read_blocks(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        return self.placed()


def score_all(several: Sequence[Logits]) -> list[SampleScores]:
    """Score all samples under each of several weights over one store; heads read its features once for all."""
    # the other kinds have no features that they could read together
    heads = [logits for logits in several if isinstance(logits, HeadLogits)]
    # one of another kind: all of them one after the other
    if len(heads) < len(several) or not heads:
        return [logits.scores() for logits in several]
    of = functools.partial(sent.scores_of_heads, [logits.head for logits in heads])
    chunks = list(heads[0].engine.map_chunks(*heads[0].sent_features(of)))
    return [heads[0]._clustered(SampleScores.concatenate([*scores])) for scores in zip(*chunks, strict=True)]
