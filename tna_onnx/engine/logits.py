"""Logits of a feature table under one weight, in chunks, for all samples or some.

`HeadLogits` multiplies, `TailLogits` are what the model's own nodes compute, `StoredLogits` lie in the table, and
`KeptChunks` keeps them for a fit of many passes.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.mapped import release, reserve
from tna_onnx.engine.placement import Host, LinearHead, Placement
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.maps.base import CalibrationMap, apply_map
from tna_onnx.numerics.ops import Blocked, WeightedLabels, by_column, namespace, rows_of, to_host
from tna_onnx.numerics.scores import SampleScores, resolved_logits
from tna_onnx.runtime import trim_memory

_KEPT_BYTES = 2**30  # bytes of logits up to which they are kept; above, every pass computes them again
_IN_MEMORY = 2**27  # bytes of logits up to which they stay in memory: less than libraries take

# A graph that takes one sample at a time would give chunks of one sample, and each pass of each fit has a fixed cost
# for each chunk: its batches are joined up to these limits.
_CHUNK_SAMPLES = 256
_CHUNK_BYTES = 2**24


class Logits(ABC):
    """Logits of all samples of a table under one weight.

    Args:
        store: features and labels.
    """

    def __init__(self, store: FeatureTable) -> None:
        self._store = store
        self._kept: KeptChunks | None = None

    def __len__(self) -> int:
        return len(self._store)

    @property
    def clusters(self) -> NDArray[np.int64] | None:
        """Which samples are predictions for one sample of the data, (N,); None where each is its own."""
        return self._store.clusters

    @property
    def labels(self) -> NDArray[np.int64]:
        """Labels of the samples, (N,), or (N, C) where each has several."""
        return self._store.labels

    def _clustered(self, scores: SampleScores, rows: NDArray[np.bool_] | None = None) -> SampleScores:
        clusters, weights = self.clusters, self._store.weights
        if rows is not None:
            clusters, weights = rows_of(clusters, rows), rows_of(weights, rows)
        return scores.clustered(clusters, weights)

    def predictions(self, fitted: CalibrationMap | None = None) -> NDArray[np.int64]:
        """Return the predicted classes (N,) after a map; of several labels, 1 for each that is predicted, (N, C)."""
        chunks = self.chunks(features=fitted is not None and fitted.needs_features)
        return np.concatenate([_predicted(fitted, *chunk) for chunk in chunks])

    @property
    def given(self) -> Logits:
        """The logits of the model as it is, where those for a map take into account what its output can resolve."""
        return self

    def forget(self) -> None:
        """Free the memory of kept logits; they are computed again when they are needed."""
        if self._kept is not None:
            self._kept = None
            trim_memory()

    def at(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the logits of some samples, in ascending order, (R, C)."""
        # a mask keeps the order of the chunks
        mask = np.zeros(len(self), bool)
        mask[rows] = True
        return np.concatenate([to_host(logits) for logits, _, _ in self.chunks(mask)])

    @abstractmethod
    def _compute(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]]:
        """Yield (logits, labels, features) in chunks."""

    @abstractmethod
    def _blocks(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        """Yield (features, labels) in the chunks of `_compute`, on the host."""

    @abstractmethod
    def _size(self) -> int:
        """Bytes of all logits."""

    def chunks(
        self, rows: NDArray[np.bool_] | None = None, *, features: bool = False
    ) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], NDArray[Any] | None]]:
        """Yield (logits, labels, features or None) of all samples, or of those where the (N,) mask is true."""
        # features are mapped from a file; a map's fit takes many passes over the same logits
        if self._kept is None and self._size() <= _KEPT_BYTES:
            self._kept = KeptChunks(self._compute(), len(self._store), self._size())
        passed = self._compute()
        if self._kept is not None:
            blocks = self.placed() if features else self._blocks()
            passed = ((logits, labels, z) for logits, (z, labels) in zip(self._kept, blocks, strict=True))
        start = 0
        for logits, labels, z in passed:
            stop = start + len(labels)
            index: Any = slice(None)
            if rows is not None:
                index = _chosen_rows(rows[start:stop])
            if index is not None:
                yield logits[index], labels[index], z[index] if features else None
            start = stop

    def reduce(self, rows: NDArray[np.bool_] | None = None, *, features: bool = False) -> Reduction:
        """Return the `reduce` that a map's fit asks for; `rows` choose samples, from aligned arrays too."""
        return Reduction(self, rows, features)

    def mapped_scores(self, fitted: CalibrationMap | None, rows: NDArray[np.bool_] | None = None) -> SampleScores:
        """Scores after a calibration map."""

        def of(logits: Any, labels: NDArray[np.int64], features: Any) -> SampleScores:
            return SampleScores.of_logits(apply_map(fitted, logits, features), labels)

        reduce = self.reduce(rows, features=fitted is not None and fitted.needs_features)
        scores: SampleScores = reduce(Blocked(of))
        return self._clustered(scores, rows)

    def scores(self) -> SampleScores:
        """Scores of all samples; logits that are not there already are not kept."""
        # a candidate of a search is scored once: there is no second pass to keep its logits for
        passed = self._compute() if self._kept is None else self.chunks()
        chunks = ((logits, labels) for logits, labels, _ in passed)
        scores: SampleScores = sum_chunks(Blocked(SampleScores.of_logits), chunks)
        return self._clustered(scores)

    def placed(self) -> Iterator[tuple[Any, NDArray[np.int64]]]:
        """Yield (features, labels) in chunks, features where the logits are."""
        return self._blocks()


@dataclass(frozen=True, eq=False)
class Reduction:
    """The `reduce` that a map's fit takes, over all samples or those of a mask, with or without their features."""

    logits: Logits
    rows: NDArray[np.bool_] | None
    features: bool
    # what fits of several maps to these samples have in common (`maps.base.common`)
    cache: dict[Any, Any] = field(default_factory=dict)

    def __call__(self, of: Callable[..., Any], *aligned: NDArray[Any]) -> Any:
        """Return the sum over chunks; see `Reduce`."""
        return sum_chunks(of, self._pieces(aligned))

    @functools.cached_property
    def bare(self) -> Reduction:
        """The reduction without features, which `maps.base.without_features` asks for."""
        if not self.features:
            return self
        return replace(self, features=False)

    def _pieces(self, aligned: Sequence[NDArray[Any]]) -> Iterator[tuple[Any, ...]]:
        """Yield (logits, labels, features or None, *slices) of the samples chosen, with slices of (N,) arrays."""
        start = 0
        for piece in self._kept or self._chosen():
            stop = start + len(piece[1])
            yield (*piece, *(array[start:stop] for array in aligned))
            start = stop

    @functools.cached_property
    def _kept(self) -> list[tuple[Any, ...]]:
        """What every pass would gather again; nothing where it is much, or has features."""
        if self.features or (self.logits._size() or self.logits._store.features.nbytes) > _IN_MEMORY:
            return []
        return [(by_column(logits), *more) for logits, *more in self._chosen()]

    def _chosen(self) -> Iterator[tuple[Any, ...]]:
        """Yield (logits, labels, features or None) of the samples chosen."""
        start = 0
        weights = self.logits._store.weights
        if self.rows is not None:
            weights = rows_of(weights, self.rows)
        for logits, labels, z in self.logits.chunks(self.rows, features=self.features):
            stop = start + len(labels)
            yield logits, labels if weights is None else WeightedLabels(labels, weights[start:stop]), z
            start = stop


class HeadLogits(Logits):
    """features @ weight.T + bias over a table.

    Args:
        store: features (N, n).
        weight: (C, n).
        bias: (C,).
        placement: where the products are computed, and the logits are.
    """

    def __init__(
        self, store: FeatureTable, weight: NDArray[Any], bias: NDArray[Any], placement: Placement | None = None
    ) -> None:
        super().__init__(store)
        self._placement = placement or Host()
        # moved once: every chunk is multiplied with them
        self.head = LinearHead(self._placement.put(weight), self._placement.put(bias))

    def scaled_scores(self, scale: float, *, with_bias: bool = False) -> SampleScores:
        """Scores of all samples under `scale * weight`, from the logits that are there already."""
        # scale W z + b = scale (W z + b) + (1 - scale) b
        shift = (1 - scale) * self.head.bias

        def of(logits: Any, labels: NDArray[np.int64], _: Any) -> SampleScores:
            scaled = logits * scale
            if not with_bias:
                scaled += shift
            return SampleScores.of_logits(scaled, labels)

        scores: SampleScores = self.reduce()(Blocked(of))
        return self._clustered(scores)

    def at(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the logits of some samples, (R, C): the product with their features alone."""
        features = self._store.features[rows]  # float16 is widened, as in `FeatureTable.chunks`
        return to_host(self.head(self._placement.put(np.asarray(features, np.result_type(features, np.float32)))))

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


class TailLogits(Logits):
    """What the model's own nodes make of a table's features.

    Args:
        store: features as they come.
        run: features of one batch -> (B, C) logits.
        n_classes: number of classes C.
    """

    def __init__(self, store: FeatureTable, run: Callable[[NDArray[Any]], NDArray[Any]], n_classes: int) -> None:
        super().__init__(store)
        self._run = run
        self._n_classes = n_classes
        # samples of a chunk, at least
        self._least = max(1, min(_CHUNK_SAMPLES, _CHUNK_BYTES // max(1, store.features[:1].nbytes)))

    def _size(self) -> int:
        # at most: the dtype is known only once the nodes have run
        return len(self._store) * self._n_classes * 8

    def _compute(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]]:
        # the nodes run the batches that the network gave
        step = self._store.batch_size * max(1, self._store.rows)
        for features, labels in self._blocks():
            logits = np.concatenate([self._run(features[at : at + step]) for at in range(0, len(features), step)])
            # nodes of the model give its dtype; fits and scores need more digits
            if logits.dtype == np.float16:
                logits = logits.astype(np.float32)
            yield logits, labels, features

    def _blocks(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        return self._store.blocks(self._least)


class StoredLogits(Logits):
    """Logits that were collected themselves, of a model without a head.

    Args:
        store: the logits.
        resolution: d, where they are of probabilities p that come in steps: a map gets those of (p + d) / (1 + C d).
    """

    def __init__(self, store: FeatureTable, resolution: float = 0.0) -> None:
        super().__init__(store)
        self._resolution = resolution

    @property
    def given(self) -> Logits:
        if self._resolution:
            return StoredLogits(self._store)
        return self

    def mapped_scores(self, fitted: CalibrationMap | None, rows: NDArray[np.bool_] | None = None) -> SampleScores:
        if fitted is None and self._resolution:
            scores = self.given.mapped_scores(None, rows)
            return scores.resolved(self._resolution, self._store.features.shape[1])
        return super().mapped_scores(fitted, rows)

    def scores(self) -> SampleScores:
        return self.mapped_scores(None)

    def _size(self) -> int:
        # as they come they are in the table already
        return self._store.features.nbytes if self._resolution else 0

    def _compute(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]]:
        for stored, labels in self._blocks():
            logits = stored
            if self._resolution:
                logits = resolved_logits(stored, self._resolution, labels=labels.ndim == 2)
            yield logits, labels, logits

    def _blocks(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        return self._store.chunks(self._store.features.shape[1])


class KeptChunks:
    """Chunks of the logits of N samples, which can be passed over again and again; nobody may write to them.

    Args:
        chunks: (logits (B, C), labels, features) each, in order; arrays that are not NumPy's stay where they are.
        samples: their number N.
        size: bytes of all of them, at most.
    """

    def __init__(self, chunks: Iterable[tuple[Any, ...]], samples: int, size: int) -> None:
        self._mapped: NDArray[Any] | None = None
        self._rows: list[slice] = []
        self._arrays: list[Any] = []
        file: IO[bytes] | None = None
        start = 0
        for chunk, *_ in chunks:
            if not start and size > _IN_MEMORY and isinstance(chunk, np.ndarray):
                file = _room(samples * chunk[0].nbytes)
            if file is None:
                self._arrays.append(chunk)
                continue
            # written, and mapped afterwards: each page of a map would be asked for by itself
            file.write(np.ascontiguousarray(chunk).data)
            stop = start + len(chunk)
            self._rows.append(slice(start, stop))
            start = stop
        if file is not None:
            file.flush()
            # the map outlives the handle
            self._mapped = np.memmap(file, chunk.dtype, "r", shape=(samples, *chunk.shape[1:]))
            file.close()

    def __iter__(self) -> Iterator[Any]:
        """Yield the chunks; of those in a file, one at a time is in memory."""
        yield from self._arrays
        for rows in self._rows:
            assert self._mapped is not None  # noqa: S101 - it has rows
            # a plain array: operations on mapped ones give mapped ones
            yield np.asarray(self._mapped[rows])
            release(self._mapped, rows, stays=0)


def score_all(tables: Sequence[Logits]) -> list[SampleScores]:
    """Score all samples under each of several weights over one table; heads read its features once for all."""
    # the other kinds have no features that they could read together
    heads = [logits for logits in tables if isinstance(logits, HeadLogits)]
    # one of another kind: all of them one after the other
    if len(heads) < len(tables) or not heads:
        return [logits.scores() for logits in tables]
    of = Blocked(SampleScores.of_logits)
    chunks = [[of(logits.head(features), labels) for logits in heads] for features, labels in heads[0].placed()]
    return [heads[0]._clustered(SampleScores.concatenate([*scores])) for scores in zip(*chunks, strict=True)]


def sum_chunks(of: Callable[..., Any], chunks: Iterable[tuple[Any, ...]]) -> Any:
    """Return of(*chunk_1) + of(*chunk_2) + ...: neighbours first, as in ((a + b) + (c + d)) + e.

    Joining k parts so copies each value log k times, and no more than log k sums are in memory.

    >>> sum_chunks(lambda a, b: a * b, [(1, 2), (3, 4), (5, 6)])
    44
    """
    # (number of doublings, sum), as the digits of a binary counter
    sums: list[tuple[int, Any]] = []
    for chunk in chunks:
        level = 0
        total = of(*chunk)
        while sums and sums[-1][0] == level:
            total = sums.pop()[1] + total
            level += 1
        sums.append((level, total))
    if not sums:
        raise ValueError("no chunk to sum")
    _, total = sums.pop()
    while sums:
        total = sums.pop()[1] + total
    return total


def _predicted(
    fitted: CalibrationMap | None, logits: Any, labels: NDArray[np.int64], features: Any
) -> NDArray[np.int64]:
    mapped = apply_map(fitted, logits, features)
    if labels.ndim == 2:
        return (to_host(mapped) > 0).astype(np.int64)
    return to_host(namespace(mapped).argmax(mapped, axis=1))


def _chosen_rows(mask: NDArray[np.bool_]) -> NDArray[np.intp] | slice | None:
    """Return an index of the rows where a (B,) mask is true, None if there are none.

    Neighbours are a slice, of which nothing is copied.

    >>> _chosen_rows(np.array([False, True, True]))
    slice(1, 3, None)
    >>> _chosen_rows(np.array([True, False, True])).tolist()
    [0, 2]
    """
    places = np.flatnonzero(mask)
    if not places.size:
        return None
    first = int(places[0])
    stop = int(places[-1]) + 1
    if stop - first == places.size:
        return slice(first, stop)
    return places


def _room(size: int) -> IO[bytes] | None:
    """Return a temporary file with room for so many bytes; None where the folder for such files has none."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        file: IO[bytes] = stack.enter_context(tempfile.TemporaryFile(prefix="tna-onnx-"))
        reserve(file, size)
        file.seek(0)
        stack.pop_all()
        return file
    return None
