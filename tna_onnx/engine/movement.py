"""How far the outputs of a model moved: both files run over the same samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Source
from tna_onnx.errors import DataError, UnsupportedModel
from tna_onnx.extraction.sessions import in_rows, input_specs, open_model
from tna_onnx.graph.cut import ancestors
from tna_onnx.graph.load import Model
from tna_onnx.graph.outputs import ClassOutput
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.progress import Progress
from tna_onnx.results.difference import OtherOutput, OutputDifference
from tna_onnx.runtime import Device, Session

__all__ = ["Both", "run_both"]


@dataclass(frozen=True, eq=False)
class Both:
    """An original, opened, and the file that was made of it.

    Attributes:
        old: the original.
        session: on it.
        new: the recalibrated file.
        readouts: the original's heads that were recalibrated, or its tensor of scores; empty where there is neither.
        output: the original's output that classifies.
    """

    old: Model
    session: Session
    new: Model
    readouts: tuple[Readout, ...]
    output: ClassOutput


def run_both(both: Both, device: Device, source: Source, batch_size: int, progress: Progress) -> OutputDifference:
    """Run both files on all samples.

    Raises:
        UnsupportedModel: the new file cannot be loaded, or has not the inputs and outputs of the old one.
        DataError: an output of the wrong shape, or NaN or infinite values in it.
    """
    other = in_rows(open_model(both.new, device), both.output, both.new.name)
    # outputs that only the new file has are no obstacle
    if input_specs(both.session) != input_specs(other) or not {*both.old.outputs} <= {*both.new.outputs}:
        raise UnsupportedModel(f"{both.new.name}: other inputs or outputs than {both.old.name}")
    output = both.output
    sums = _Sums()
    tallies = {name: _Tally() for name in both.old.outputs if name != output.name}
    names = [output.name, *tallies]
    done = 0
    for batch in source.batches(batch_size):
        labels = source.labels[done : done + len(next(iter(batch.values())))]
        # both files on one batch: the samples are read once
        before = both.session.run(names, batch)
        after = other.run(names, batch)
        p = _probabilities(before[0], output, len(labels), f"{both.old.name}: sample {done} and following")
        q = _probabilities(after[0], output, len(labels), f"{both.new.name}: sample {done} and following")
        sums.add(p, q, labels)
        for tally, x, y in zip(tallies.values(), before[1:], after[1:], strict=True):
            tally.add(x, y)
        done += len(labels)
        progress("compare", done, len(source))
    downstream = _downstream(both.old, both.readouts)
    return OutputDifference(
        data=source.describe(),
        samples=done,
        output=output.name,
        output_kind=output.kind,
        largest=sums.largest,
        mean=sums.difference / (done * output.n_classes),
        same_class=sums.same,
        confidence_before=sums.confidence[0] / done,
        confidence_after=sums.confidence[1] / done,
        accuracy_before=sums.hits[0] / done,
        accuracy_after=sums.hits[1] / done,
        others=tuple(
            OtherOutput(name, name in downstream, t.values, t.differing, t.largest) for name, t in tallies.items()
        ),
        preprocessing=source.recipe(),
        provider=other.provider,
    )


class _Sums:
    """Sums in float64 over the samples seen."""

    def __init__(self) -> None:
        self.largest = 0.0
        self.difference = 0.0
        self.same = 0
        self.confidence = [0.0, 0.0]
        self.hits = [0.0, 0.0]

    def add(self, p: NDArray[np.float64], q: NDArray[np.float64], labels: NDArray[np.int64]) -> None:
        """Take in the (B, C) probabilities of both files."""
        moved = np.abs(p - q)
        self.largest = max(self.largest, float(np.max(moved, initial=0)))
        self.difference += float(np.sum(moved))
        if labels.ndim == 2:
            self._add_labels(p, q, labels)
            return
        self.same += int(np.sum(p.argmax(axis=1) == q.argmax(axis=1)))
        for k, values in enumerate((p, q)):
            self.confidence[k] += float(np.sum(values.max(axis=1)))
            self.hits[k] += int(np.sum(values.argmax(axis=1) == labels))

    def _add_labels(self, p: NDArray[np.float64], q: NDArray[np.float64], labels: NDArray[np.int64]) -> None:
        """Take in probabilities of labels: a sample is the same where all of its labels are; the rest is their mean."""
        self.same += int(np.sum(np.all((p > 0.5) == (q > 0.5), axis=1)))
        for k, values in enumerate((p, q)):
            self.confidence[k] += float(np.sum(np.mean(np.maximum(values, 1 - values), axis=1)))
            self.hits[k] += float(np.sum(np.mean((values > 0.5) == labels, axis=1)))


class _Tally:
    """How far an output moved over the samples seen; equal NaNs are the same."""

    def __init__(self) -> None:
        self.values = 0
        self.differing = 0
        self.largest: float | None = 0.0

    def add(self, x: NDArray[Any], y: NDArray[Any]) -> None:
        """Take in the output of both files for one batch."""
        self.values += x.size
        if x.shape != y.shape:
            self.differing += x.size
            self.largest = None
            return
        numbers = x.dtype.kind in "biuf" and y.dtype.kind in "biuf"
        same = x == y
        if numbers and x.dtype.kind == "f":
            # NaN is not equal to itself
            same |= np.isnan(x) & np.isnan(y)
        self.differing += int(np.sum(~same))
        # texts are equal or not: there is no distance between them
        if not numbers:
            if not same.all():
                self.largest = None
        elif self.largest is not None:
            # float64: differences of unsigned integers would wrap around
            self._move(x.astype(np.float64), y.astype(np.float64), same)

    def _move(self, x: NDArray[np.float64], y: NDArray[np.float64], same: NDArray[np.bool_]) -> None:
        with np.errstate(invalid="ignore"):  # infinite minus infinite
            moved = np.abs(np.where(same, 0, y - x))
            largest = float(np.max(moved, initial=self.largest or 0.0))
        self.largest = largest if np.isfinite(largest) else None


def _probabilities(values: NDArray[Any], output: ClassOutput, count: int, where: str) -> NDArray[np.float64]:
    if values.size != count * output.width:
        raise DataError(f"{where}: output '{output.name}' has shape {values.shape}; expected ({count}, {output.width})")
    if not np.all(np.isfinite(values)):
        raise DataError(f"{where}: output '{output.name}' holds NaN or infinite values")
    return output.probabilities(values)


def _downstream(model: Model, readouts: tuple[Readout, ...]) -> set[str]:
    """Return the outputs that are computed from the scores of a head, or from the tensor of scores."""
    if not readouts:
        return {*model.outputs}
    firsts = [
        each.stored_weight.reader if isinstance(each, Head) else model.producers.get(each.logits, -1)
        for each in readouts
    ]
    return {name for name in model.outputs if not ancestors(model, name).isdisjoint(firsts)}
