"""Scores of whole models: run them over samples and reduce what they say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Batch, Source
from tna_onnx.data.positions import clusters_of
from tna_onnx.errors import DataError
from tna_onnx.graph.outputs import ClassOutput
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.progress import Progress

__all__ = ["Runs", "score_batches", "score_model"]


class Runs(Protocol):
    """A session, or something that stands for one."""

    def run(self, outputs: list[str], batch: Batch, /) -> list[NDArray[Any]]:
        """Run one batch."""


def score_model(
    session: Runs, output: ClassOutput, source: Source, batch_size: int, progress: Progress
) -> tuple[SampleScores, NDArray[np.int64]]:
    """Run a model over samples and score what it says.

    Args:
        session: on the model.
        output: the output that classifies.
        source: the samples.
        batch_size: samples per run.
        progress: called with (stage, done, total).

    Returns:
        (scores, predicted classes (N,); of several labels, 1 for each that is predicted, (N, C)).

    Raises:
        DataError: an output of the wrong shape, or NaN or infinite values in it.
    """
    scores = []
    predicted = []
    done = 0
    for part, classes in score_batches(session, output, source, batch_size):
        # batch by batch: outputs of all samples are never in memory together
        scores.append(part)
        predicted.append(classes)
        done += len(part)
        progress("evaluate", done, len(source))
    return SampleScores.concatenate(scores).clustered(clusters_of(source)), np.concatenate(predicted)


def score_batches(
    session: Runs, output: ClassOutput, source: Source, batch_size: int, rows: slice | None = None
) -> Iterator[tuple[SampleScores, NDArray[np.int64]]]:
    """Yield what `score_model` joins, a batch at a time, of all samples or of those from one to another.

    Raises:
        DataError: an output of the wrong shape, or NaN or infinite values in it.
    """
    done = 0
    batches = source.batches(batch_size)
    if rows is not None:
        done = rows.start
        batches = source.batches(batch_size, np.arange(rows.start, rows.stop))
    for batch in batches:
        size = len(next(iter(batch.values())))
        values = session.run([output.name], batch)[0]
        yield _score(values, source.labels[done : done + size], output, source, done), output.predicted(values)
        done += size


def _score(
    values: NDArray[Any], labels: NDArray[np.int64], output: ClassOutput, source: Source, start: int
) -> SampleScores:
    if values.size != len(labels) * output.width:
        raise DataError(
            f"{source.describe()}: output '{output.name}' has shape {values.shape} for {len(labels)} samples; expected "
            f"({len(labels)}, {output.width})"
        )
    values = output.in_order(values)
    if not np.all(np.isfinite(values)):
        row = start + int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
        raise DataError(f"{source.describe()}: output '{output.name}' of sample {row} holds NaN or infinite values")
    sums = values.sum(axis=1, dtype=np.float64)
    # a single row of logits may add up to 1 by chance
    if output.kind == "logits" and len(values) > 1 and np.all(values >= 0) and np.all(np.abs(sums - 1) < 1e-3):
        raise DataError(
            f"{source.describe()}: output '{output.name}' should hold logits, but all values are positive and add up "
            "to 1: they are probabilities; say --output-kind probabilities"
        )
    if output.kind == "label_probabilities" and (np.any(values < 0) or np.any(values > 1)):
        raise DataError(
            f"{source.describe()}: output '{output.name}' should hold probabilities of labels, but some values lie "
            "outside of 0 to 1; if they are logits, say --output-kind label-logits"
        )
    if output.kind == "label_probabilities":
        return SampleScores.of_probabilities(values, labels)
    if output.kind in ("probabilities", "positive_probability"):
        return SampleScores.of_probabilities(_widened(values, output), labels)
    return SampleScores.of_logits(output.class_logits(values), labels)


def _widened(values: NDArray[Any], output: ClassOutput) -> NDArray[np.float64]:
    """Return (N, C) probabilities of values in the model's order of classes."""
    values = np.asarray(values, np.float64)
    if output.kind == "positive_probability":
        return np.concatenate([1 - values, values], axis=1)
    return values
