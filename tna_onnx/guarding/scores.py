"""One pass over samples: what a model's score outputs say of each, as far as thresholds need it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Source
from tna_onnx.engine.outputs import Runs
from tna_onnx.errors import DataError
from tna_onnx.graph.outputs import ClassOutput
from tna_onnx.progress import Progress

__all__ = ["SampleValues", "collect_values", "labelled_outputs"]


@dataclass(frozen=True, eq=False)
class SampleValues:
    """Scores of N samples, float32 as the graph computes them.

    Attributes:
        labels: class indices (N,).
        hit: whether the model classifies the sample right, (N,).
        confidence: largest probability, (N,).
        own: set score of the sample's class, (N,); zeros without sets.
        ood: outlier score, (N,); zeros without one.
        fresh: whether the outlier score was not fitted to the sample, (N,).
    """

    labels: NDArray[np.int64]
    hit: NDArray[np.bool_]
    confidence: NDArray[np.float32]
    own: NDArray[np.float32]
    ood: NDArray[np.float32]
    fresh: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.labels)


def labelled_outputs(
    session: Runs,
    names: list[str],
    source: Source,
    rows: NDArray[np.int64],
    batch_size: int,
    stage: str,
    progress: Progress,
) -> Iterator[tuple[NDArray[np.int64], list[NDArray[Any]]]]:
    """Yield the labels of each batch, and what the outputs say of it.

    Args:
        session: on the model.
        names: of the outputs.
        source: the samples.
        rows: those of them to run.
        batch_size: samples per run.
        stage: for `progress`.
        progress: called with (stage, done, total).
    """
    labels = source.labels[rows]
    done = 0
    for batch in source.batches(batch_size, rows):
        own = labels[done : done + len(next(iter(batch.values())))]
        yield own, session.run(names, batch)
        done += len(own)
        progress(stage, done, len(rows))


def collect_values(
    session: Runs,
    output: ClassOutput,
    tensors: Mapping[str, str],
    source: Source,
    fitted: NDArray[np.int64],
    batch_size: int,
    progress: Progress,
) -> SampleValues:
    """Run a model that has its scores as outputs over samples.

    Args:
        session: on the model.
        output: the output that classifies.
        tensors: role -> score output: `confidence`, and `set` and `ood` if they are there.
        source: the samples.
        fitted: those of them that an outlier score was fitted to, indices.
        batch_size: samples per run.
        progress: called with (stage, done, total).

    Raises:
        DataError: a score is not finite, or its shape is not that of one value a sample.
    """
    hits = []
    kept: dict[str, list[NDArray[np.float32]]] = {role: [] for role in tensors}
    every = np.arange(len(source))
    names = [output.name, *tensors.values()]
    for own, (values, *scores) in labelled_outputs(session, names, source, every, batch_size, "score", progress):
        hits.append(output.probabilities(values).argmax(axis=1) == own)
        for role, score in zip(tensors, scores, strict=True):
            if len(score) != len(own):
                raise DataError(f"{source.describe()}: the {role} score has shape {score.shape} for {len(own)} samples")
            column = score
            if role == "set":
                column = score[np.arange(len(own)), own]
            kept[role].append(column)
    labels = source.labels
    fresh = np.ones(len(labels), np.bool_)
    fresh[fitted] = False
    zeros = np.zeros(len(labels), np.float32)
    columns = {role: np.concatenate(parts) for role, parts in kept.items()}
    for role, column in columns.items():
        if not np.all(np.isfinite(column)):
            row = int(np.flatnonzero(~np.isfinite(column))[0])
            raise DataError(f"{source.describe()}: the {role} score of sample {row} is not a finite number")
    hit = np.concatenate(hits)
    own_scores = columns.get("set", zeros)
    return SampleValues(labels, hit, columns["confidence"], own_scores, columns.get("ood", zeros), fresh)
