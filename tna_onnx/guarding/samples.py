"""One pass over samples: what outputs of a model say of each, as far as thresholds and figures need it.

The same code reads scores, which thresholds come from, and decisions, which follow from them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Batch, Source
from tna_onnx.engine.outputs import Runs
from tna_onnx.errors import DataError
from tna_onnx.graph.outputs import ClassOutput
from tna_onnx.progress import Progress

__all__ = ["Columns", "Listening", "Values", "collect_values"]


@dataclass(frozen=True, eq=False)
class Values:
    """What outputs say of N samples.

    Attributes:
        labels: class indices (N,).
        hit: whether the sample is classified right, (N,).
        confidence: largest probability of the output that classifies, (N,).
        values: role -> (N,) of a score or a decision; of `set` that of the sample's class.
        sizes: classes in the set of each sample, (N,); empty without sets.
    """

    labels: NDArray[np.int64]
    hit: NDArray[np.bool_]
    confidence: NDArray[np.floating[Any]]
    values: dict[str, NDArray[Any]]
    sizes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int) -> Values:
        """Return those of the first samples."""
        columns = {role: column[:count] for role, column in self.values.items()}
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return Values(**{name: value[:count] for name, value in fields.items() if name != "values"}, values=columns)


class Columns:
    """One column a role, filled batch by batch: the scores of all classes are never in memory together."""

    def __init__(self, roles: Iterable[str], where: str) -> None:
        self._kept: dict[str, list[NDArray[Any]]] = {role: [] for role in roles}
        self._sizes: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
        self._where = where

    def add(self, labels: NDArray[np.int64], outputs: Iterable[NDArray[Any]]) -> None:
        """Take in what the outputs, in the order of the roles, say of a batch with these labels (B,).

        Raises:
            DataError: another shape than that of one row a sample.
        """
        for (role, kept), output in zip(self._kept.items(), outputs, strict=True):
            rows = (len(labels), int(labels.max(initial=0)) + 1) if role == "set" else (len(labels),)
            if output.ndim != len(rows) or len(output) != rows[0] or output.shape[-1] < rows[-1]:
                raise DataError(f"{self._where}: output {role} has shape {output.shape} for {len(labels)} samples")
            if role != "set":
                kept.append(output)
                continue
            if output.dtype == np.bool_:
                self._sizes.append(output.sum(axis=1, dtype=np.int64))
            kept.append(output[np.arange(len(labels)), labels])

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """Role -> (N,)."""
        return {role: np.concatenate(parts) for role, parts in self._kept.items()}

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Classes in each set, (N,); empty without sets."""
        return np.concatenate(self._sizes)


class Listening:
    """A session that also runs further outputs, and keeps what they say; batches come in the order of the labels."""

    def __init__(self, session: Runs, names: Mapping[str, str], labels: NDArray[np.int64], where: str) -> None:
        self._session = session
        self._names = [*names.values()]
        self._labels = labels
        self._done = 0
        self.columns = Columns(names, where)

    def run(self, outputs: list[str], batch: Batch, /) -> list[NDArray[Any]]:
        """Run one batch, and return what was asked for.

        Raises:
            DataError: ONNX Runtime refuses the data, or a further output has another shape.
        """
        found = self._session.run([*outputs, *self._names], batch)
        end = self._done + len(next(iter(batch.values())))
        self.columns.add(self._labels[self._done : end], found[len(outputs) :])
        self._done = end
        return found[: len(outputs)]


def collect_values(
    session: Runs,
    output: ClassOutput,
    names: Mapping[str, str],
    source: Source,
    batch_size: int,
    progress: Progress,
    *,
    rows: NDArray[np.int64] | None = None,
    stage: str = "score",
) -> Values:
    """Run a model over samples.

    Args:
        session: on the model.
        output: the output that classifies.
        names: role -> further output: scores or decisions.
        source: the samples.
        batch_size: samples per run.
        progress: called with (stage, done, total).
        rows: those of the samples to run; all by default.
        stage: for `progress`.

    Raises:
        DataError: a number is not finite, or a shape is not that of one row a sample.
    """
    if rows is None:
        rows = np.arange(len(source))
    labels = source.labels[rows]
    listening = Listening(session, names, labels, source.describe())
    hits: list[NDArray[np.bool_]] = []
    confidences: list[NDArray[np.floating[Any]]] = []
    done = 0
    for batch in source.batches(batch_size, rows):
        p = output.probabilities(listening.run([output.name], batch)[0])
        hits.append(p.argmax(axis=1) == labels[done : done + len(p)])
        confidences.append(p.max(axis=1))
        done += len(p)
        progress(stage, done, len(rows))
    columns = listening.columns.columns
    for role, column in columns.items():
        if not np.all(np.isfinite(column)):
            row = rows[int(np.flatnonzero(~np.isfinite(column))[0])]
            raise DataError(f"{source.describe()}: the {role} score of sample {row} is not a finite number")
    return Values(labels, np.concatenate(hits), np.concatenate(confidences), columns, listening.columns.sizes)
