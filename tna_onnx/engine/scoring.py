"""Scores of whole models: a file is run over samples and reduced to scores (`score_model`), or two files over the same
samples, to see how far their outputs differ (`run_both`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.source import Batch, Source, clusters_of, source_weights
from tna_onnx.errors import CheckFailed, DataError, TnaError, UnsupportedModel
from tna_onnx.extraction.independence import require_independence
from tna_onnx.extraction.sessions import in_rows, input_specs, open_model
from tna_onnx.graph.load import Model
from tna_onnx.graph.readers import LabelOutput, outputs_of_scores
from tna_onnx.graph.readout import ClassOutput, Readout, require_rows
from tna_onnx.numerics.reference import projections
from tna_onnx.numerics.scores import NotProbabilities, SampleScores, grid_of
from tna_onnx.progress import Progress
from tna_onnx.results.inspection import OtherOutput, OutputDifference
from tna_onnx.runtime import Device, Session


class BatchRunner(Protocol):
    """Anything that runs a batch, such as a session."""

    def run(self, outputs: list[str], batch: Batch, /) -> list[NDArray[Any]]:
        """Run one batch."""


def score_model(
    session: BatchRunner,
    output: ClassOutput,
    source: Source,
    batch_size: int,
    progress: Progress,
    label: LabelOutput | None = None,
) -> tuple[SampleScores, NDArray[np.int64]]:
    """Run a model over samples and score its predictions.

    `label`: an output with labels, whose classes are the model's answers. Gives (scores, predicted classes (N,); of
    several labels, 1 for each that is predicted, (N, C)).
    """
    scores = []
    predicted = []
    answers = []
    names = [item.name for item in (output, label) if item is not None]
    done = 0
    where = source.describe()  # counts the classes of all labels
    # batch by batch: outputs of all samples are never in memory together
    for batch in source.batches(batch_size):
        size = len(next(iter(batch.values())))
        values, *texts = session.run(names, batch)
        if label is not None:
            answers.append(label.places(texts[0]))
        require_scores(values, output, size, where, done)
        scores.append(_scores_of(values, source.labels[done : done + size], output))
        predicted.append(output.predicted(values))
        done += size
        progress("evaluate", done, len(source))
    joined = SampleScores.concatenate(scores).clustered(clusters_of(source), source_weights(source))
    places = np.concatenate([*answers, np.empty(0, np.int64)])
    classes = np.concatenate(predicted)
    # what names other things than the classes is no answer
    if places.shape != classes.shape or np.any(places < 0):
        return joined, classes
    return joined.labelled(source.labels, places), places


# As many samples show the step of probabilities, for every command.
_SHOWN = 256


def with_quantum(session: BatchRunner, output: ClassOutput, source: Source, batch_size: int) -> ClassOutput:
    """Return an output with the step of its probabilities: as samples show it, where the graph does not tell."""
    if output.quantum is not None:
        return output
    batches = source.batches(batch_size, np.arange(min(_SHOWN, len(source)), dtype=np.int64))
    values = np.concatenate([output.in_order(session.run([output.name], batch)[0]) for batch in batches])
    return replace(output, quantum=grid_of(values))


def readout_with_quantum(readout: Readout, scores: NDArray[Any]) -> Readout:
    """Return a readout with that step, from log p (N, C), or from the logits of labels."""
    if readout.quantum is not None:
        return replace(readout, quantum=float(readout.quantum))
    logits = np.asarray(scores[:_SHOWN], np.float64)
    return replace(readout, quantum=grid_of(readout.probabilities(logits) if readout.multi_label else np.exp(logits)))


def with_projections(
    session: BatchRunner,
    output: ClassOutput,
    features: Sequence[str],
    source: Source,
    batch_size: int,
    stage: str,
    progress: Progress,
) -> list[NDArray[Any]]:
    """Return (N, C) probabilities, and of each tensor of features the projections of `numerics.reference`."""
    parts = []
    done = 0
    where = source.describe()
    for batch in source.batches(batch_size):
        size = len(next(iter(batch.values())))
        values, *tensors = session.run([output.name, *features], batch)
        require_scores(values, output, size, where, done)
        parts.append((output.probabilities(values).astype(np.float32), *map(projections, tensors)))
        done += size
        progress(stage, done, len(source))
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def _scores_of(values: NDArray[Any], labels: NDArray[np.int64], output: ClassOutput) -> SampleScores:
    values = output.in_order(values)
    if output.kind == "positive_probability":
        values = np.concatenate([1 - values, values], axis=1)
    if output.kind in ("label_probabilities", "probabilities", "positive_probability"):
        return SampleScores.of_probabilities(output.normalized(values), labels)
    return SampleScores.of_logits(output.class_logits(values), labels)


@dataclass(frozen=True, eq=False)
class FilePair:
    """An original, opened, and the file that was made of it."""

    old: Model  # the original
    session: Session  # on it
    new: Model  # the recalibrated file
    # the original's heads that were recalibrated, or its tensor of scores; empty where there is neither
    readouts: tuple[Readout, ...]
    output: ClassOutput  # the original's output that classifies


class NotFinite(CheckFailed):
    """A file gives NaN or infinite values where the model that it was made of gives numbers."""


@dataclass(frozen=True, eq=False)
class Moved:
    """How far the outputs of two files differ, the scores of both, and notes on their dependence on the batch."""

    outputs: OutputDifference
    before: SampleScores
    after: SampleScores
    notes: tuple[str, ...]


def run_both(pair: FilePair, device: Device, source: Source, batch_size: int, progress: Progress) -> Moved:
    """Run both files on all samples.

    Raises NotFinite: such values in that of the new file.
    """
    new_session = in_rows(open_model(pair.new, device), pair.output, pair.new.name)
    # outputs that only the new file has are no obstacle
    if input_specs(pair.session) != input_specs(new_session) or not {*pair.old.outputs} <= {*pair.new.outputs}:
        raise UnsupportedModel(f"{pair.new.name}: other inputs or outputs than {pair.old.name}")
    output = pair.output
    notes: list[str] = []
    for model, session in ((pair.old, pair.session), (pair.new, new_session)):
        notes += require_independence(model, session, output, source, batch_size)
    sums = _Sums()
    scores: tuple[list[SampleScores], list[SampleScores]] = ([], [])
    tallies = {name: _Tally() for name in pair.old.outputs if name != output.name}
    names = [output.name, *tallies]
    where = source.describe()
    done = 0
    for batch in source.batches(batch_size):
        labels = source.labels[done : done + len(next(iter(batch.values())))]
        # both files on one batch: the samples are read once
        before = pair.session.run(names, batch)
        after = new_session.run(names, batch)
        require_scores(before[0], output, len(labels), pair.old.name, done)
        require_scores(after[0], output, len(labels), pair.new.name, done, NotFinite)
        p = output.probabilities(before[0])
        q = output.probabilities(after[0])
        sums.add(p, q, labels)
        for part, values in zip(scores, (before[0], after[0]), strict=True):
            part.append(_scores_of(values, labels, output))
        for tally, x, y in zip(tallies.values(), before[1:], after[1:], strict=True):
            tally.add(x, y)
        done += len(labels)
        progress("compare", done, len(source))
    joined = [SampleScores.concatenate(part).clustered(clusters_of(source)) for part in scores]
    before_scores, after_scores = (part.resolved(output.resolution, output.n_classes) for part in joined)
    downstream = {*pair.old.outputs}
    if pair.readouts:
        downstream = {name for readout in pair.readouts for name in outputs_of_scores(pair.old, readout)}
    other_outputs = tuple(
        OtherOutput(name, name in downstream, tally.values, tally.differing, tally.largest)
        for name, tally in tallies.items()
    )
    difference = OutputDifference(
        data=where,
        samples=done,
        output=output.name,
        output_kind=output.kind,
        **sums.means(),
        others=other_outputs,
        preprocessing=source.recipe(),
        provider=new_session.provider,
    )
    return Moved(difference, before_scores, after_scores, tuple(notes))


class _Sums:
    """Sums in float64 over the samples seen."""

    def __init__(self) -> None:
        self.largest = 0.0
        self.sums = np.zeros(6)  # of |p - q|, samples of the same class, both confidences, both hits
        self.samples = 0
        self.values = 0

    def add(self, p: NDArray[np.float64], q: NDArray[np.float64], labels: NDArray[np.int64]) -> None:
        """Take in the (B, C) probabilities of both files; of several labels, a sample has the mean of its labels."""
        moved = np.abs(p - q)
        if labels.ndim == 2:
            same = np.all((p > 0.5) == (q > 0.5), axis=1)
            confidence = [np.mean(np.maximum(side, 1 - side), axis=1) for side in (p, q)]
            hits = [np.mean((side > 0.5) == labels, axis=1) for side in (p, q)]
        else:
            same = p.argmax(axis=1) == q.argmax(axis=1)
            confidence = [side.max(axis=1) for side in (p, q)]
            hits = [side.argmax(axis=1) == labels for side in (p, q)]
        self.largest = max(self.largest, float(np.max(moved, initial=0)))
        self.sums += [float(np.sum(values)) for values in (moved, same, *confidence, *hits)]
        self.samples += len(labels)
        self.values += moved.size

    def means(self) -> dict[str, Any]:
        """Return the figures of `OutputDifference`."""
        difference, same, *rest = self.sums.tolist()
        names = ("confidence_before", "confidence_after", "accuracy_before", "accuracy_after")
        shares = {name: value / self.samples for name, value in zip(names, rest, strict=True)}
        return {"largest": self.largest, "mean": difference / self.values, "same_class": int(same), **shares}


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
        self.largest = None
        if np.isfinite(largest):
            self.largest = largest


def require_scores(
    values: NDArray[Any],
    output: ClassOutput,
    count: int,
    where: str,
    start: int = 0,
    error: type[TnaError] = DataError,
) -> None:
    """Refuse what an output gave for a batch of `count` samples if it is not what the output should hold.

    `where`: what messages start with. `start`: number of the first sample. `error`: raised for values that are not
    finite.

    Raises DataError: another shape, or probabilities in place of logits; NotProbabilities: none where there should be.
    """
    require_rows(values, count, f"{where}: output '{output.name}'")
    if values.size != count * output.width:
        raise DataError(
            f"{where}: output '{output.name}' has shape {values.shape} for {count} samples; expected "
            f"({count}, {output.width})"
        )
    values = output.in_order(values)
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        row = start + int(np.argmin(finite))
        raise error(f"{where}: output '{output.name}' of sample {row} holds NaN or infinite values")
    sums = values.sum(axis=1, dtype=np.float64)
    # a single row of logits may add up to 1 by chance
    if output.kind == "logits" and count > 1 and np.all(values >= 0) and np.all(np.abs(sums - 1) < 1e-3):
        raise DataError(
            f"{where}: output '{output.name}' should hold logits, but all values are positive and add up "
            "to 1: they are probabilities; say --output-kind probabilities"
        )
    try:
        output.require_probabilities(values)
    except NotProbabilities as mismatch:
        raise NotProbabilities(f"{where}: {mismatch}") from mismatch
