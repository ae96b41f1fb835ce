"""A teacher: a model whose probabilities t stand for labels, such as the float file of a quantised one.

The student's loss of a sample is sum_c t_c (-log q_c). What knows labels alone, such as accuracy, gets labels that were
drawn from t. Unlabelled samples are enough; held-out labelled ones are reported on.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.options import Data
from tna_onnx.data.source import NO_LABELS, Batch, InputSpec, Part, Source, halves
from tna_onnx.data.sources.image_files import ImageSource
from tna_onnx.engine.logits import Logits
from tna_onnx.engine.scoring import BatchRunner, with_projections
from tna_onnx.errors import DataError, UnsupportedModel, UsageError, listed
from tna_onnx.extraction.classifier import Classifier, OpenModel, names_of, read_classifier
from tna_onnx.extraction.opened_samples import Samples, open_inputs, open_samples
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.graph.readout import require_one_prediction
from tna_onnx.maps.base import CalibrationMap, apply_map
from tna_onnx.numerics.intervals import quantile
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.ops import SoftLabels, to_host
from tna_onnx.numerics.scores import SampleScores, mean_and_error, weighted_mean
from tna_onnx.pipeline.job import Collected, Job, Task, Teacher
from tna_onnx.pipeline.writing import Shipped
from tna_onnx.progress import Progress
from tna_onnx.results.details import BinFree
from tna_onnx.results.report import Report, Taught
from tna_onnx.runtime import Session

# Of the unlabelled samples, those that are fitted; the others are for the report.
_FITTED = 0.75

_ONE_LABEL = "a teacher stands for one label a sample"

_FIRST = 5

# A teacher is called badly calibrated if chance alone makes it so once in a hundred times, and by an ECE that matters.
_LEVEL = 0.01
_SMALLEST_ECE = 0.01


def open_unlabelled(opened: OpenModel, data: Data, held_out: Samples | None, seed: int) -> tuple[Samples, Samples]:
    """Open the samples that a teacher labels, and those for the report: a part of the former, if there are no others.

    `held_out`: those that the user names, if there are any.
    """
    require_one_prediction(opened.model, opened.readout, _ONE_LABEL)
    if data.labels is not None:
        raise UsageError("--teacher takes the place of the labels of the calibration data; leave --labels out")
    samples = open_samples(opened, replace(data, labels=NO_LABELS))
    for side in (samples, held_out):
        if side is not None and side.given:
            raise UsageError(
                f"{side.source.describe()}: contains features or logits of {opened.model.name}, which the teacher "
                "cannot read; give samples for its inputs"
            )
    if held_out is not None:
        return samples, held_out
    parts = halves(samples.source, seed, ("are fitted", "are for the report"), _FITTED)
    fitted, reported = (replace(samples, source=side) for side in parts)
    return fitted, reported


def open_teacher(file: ModelSource, opened: OpenModel, data: Data, target: Path | None) -> Classifier:
    """Open the model whose probabilities stand for labels of a student's samples; nothing has run yet.

    `target`: the file to write, which must be another one.
    """
    model, output = read_classifier(file, ModelOptions())
    require_one_prediction(model, output, _ONE_LABEL)
    if target is not None and model.path is not None and target.exists() and target.samefile(model.path):
        raise UsageError(f"{target}: output is the teacher; choose another --output")
    if model.sha256 == opened.model.sha256:
        raise UsageError(f"--teacher: {model.name} is the model itself; name a better one, such as the float model")
    if output.n_classes != opened.readout.n_classes:
        raise UnsupportedModel(
            f"{model.name}: has {output.n_classes} classes, but {opened.model.name} has {opened.readout.n_classes}; "
            "expected a teacher with the same classes in the same order"
        )
    names = names_of(model, output, replace(data, classes=None)) or ()
    if names and names != opened.names and sorted(names) == sorted(opened.names or ()):
        raise UnsupportedModel(
            f"{model.name}: numbers the classes in another order than {opened.model.name} ({listed(names)}, not "
            f"{listed(opened.names or ())}); expected a teacher with the same classes in the same order"
        )
    return Classifier(model, output, opened.device, data)


@dataclass(frozen=True, eq=False)
class _OneInput:
    """A session with one input, which batches may call something else."""

    session: Session
    name: str

    def run(self, outputs: list[str], batch: Batch, /) -> list[NDArray[Any]]:
        """Run one batch."""
        (values,) = batch.values()
        return self.session.run(outputs, {self.name: values})


def taught(
    classifier: Classifier,
    job: Job,
    opened: OpenModel,
    calibration: Collected,
    held_out: Collected,
    batch_size: int,
    progress: Progress,
) -> tuple[Teacher, Collected, Collected]:
    """Run the teacher over the samples of a student, and return both sets with its labels where they have none."""
    session: BatchRunner = classifier.session
    if len(classifier.inputs) == 1:
        session = _OneInput(classifier.session, classifier.inputs[0].name)

    def run(collected: Collected, stage: str) -> NDArray[np.float32]:
        source = _as_inputs_of(classifier, collected, opened.inputs)
        (probabilities,) = with_projections(session, classifier.output, [], source, batch_size, stage, progress)
        return probabilities

    soft: Any = SoftLabels.drawn(run(calibration, "teacher"), job.settings.seed)  # labels, for all that reads them
    calibration = replace(calibration, table=replace(calibration.table, labels=soft))
    probabilities = run(held_out, "teacher, samples of the report")
    labelled = job.held_out is not None
    if not labelled:
        drawn = SoftLabels.drawn(probabilities, job.settings.seed + 1).labels
        held_out = replace(held_out, table=replace(held_out.table, labels=drawn))
    return Teacher(classifier.model, probabilities, labelled), calibration, held_out


def _as_inputs_of(classifier: Classifier, collected: Collected, inputs: Sequence[InputSpec]) -> Source:
    """Return the same samples as the inputs of the teacher, which may have other types; and names, if it has one."""
    source = collected.source
    all_samples = source.source if isinstance(source, Part) else source
    data = collected.samples.data
    assert data is not None  # noqa: S101 - they hold no features
    # data with names have those of the student's inputs
    if len(inputs) == len(classifier.inputs) == 1 and not isinstance(all_samples, ImageSource):
        classifier = copy.copy(classifier)
        classifier.inputs = (replace(classifier.inputs[0], name=inputs[0].name),)
    _, opened = open_inputs(classifier, data, labels=False)
    n = len(all_samples)
    if len(opened) != n:
        raise DataError(f"{opened.describe()}: expected the same samples as for the student, which are {n:,}")
    if isinstance(source, Part):
        return Part(opened, source.rows, source.purpose, source.digests)
    return opened


def with_teacher(report: Report, task: Task, after: Shipped) -> Report:
    """Return a report that also says how student and teacher agree on its samples."""
    teacher = task.teacher
    assert teacher is not None  # noqa: S101 - asked for
    table = task.reported.table
    z = quantile((1 + task.settings.level) / 2, table.clusters, table.weights)
    sides = (
        _followed(task.logits(task.weight, on=task.reported), None, teacher.probabilities),
        _followed(after.logits, after.fitted, teacher.probabilities),
    )
    numbers: dict[str, Any] = {}
    for name, before, now in zip(("kl", "agreement", "top5"), *sides, strict=True):
        numbers[f"{name}_before"] = weighted_mean(before, table.weights)
        numbers[f"{name}_after"] = weighted_mean(now, table.weights)
        change, error = mean_and_error(now - before, table.clusters, table.weights)
        numbers[f"{name}_change"] = (change - z * error, change + z * error)
    del numbers["top5_change"]
    if teacher.probabilities.shape[1] <= _FIRST:
        numbers |= {"top5_before": None, "top5_after": None}
    metrics, notes = _of_teacher(teacher, task)
    result = Taught(
        model=teacher.model.name,
        model_sha256=teacher.model.sha256,
        samples=len(teacher.probabilities),
        metrics=metrics,
        **numbers,
    )
    return replace(report, teacher=result, notes=(*report.notes, *notes))


def _of_teacher(teacher: Teacher, task: Task) -> tuple[Metrics | None, tuple[str, ...]]:
    """Measure the teacher, where there are labels, and say what the reader should know of it."""
    if not teacher.labelled:
        note = (
            "no labels: accuracy, ECE, NLL and Brier score are against labels drawn from the teacher's probabilities. "
            "They say how well the model follows the teacher, not how good both are; --eval with labels tells that"
        )
        return None, (note,)
    table = task.reported.table
    scores = SampleScores.of_probabilities(teacher.probabilities, np.asarray(table.labels))
    scores = scores.clustered(table.clusters, table.weights)
    settings = task.settings
    metrics = Metrics.of(scores, settings.bins)
    free = BinFree.of(scores, settings.bins, settings.seed)
    p = free.cumulative.kuiper_p
    if p is None or p >= _LEVEL or free.ece_debiased < _SMALLEST_ECE:
        return metrics, ()
    note = (
        f"the teacher itself is badly calibrated: its ECE is {100 * metrics.ece:.2f} % on the labelled samples, and "
        "the model is fitted to these probabilities; calibrate the teacher first, and give the result as --teacher"
    )
    return metrics, (note,)


def _followed(logits: Logits, fitted: CalibrationMap | None, shares: NDArray[np.float32]) -> list[NDArray[np.float64]]:
    """Return KL(t || q), whether the first class is the same, and the share of the first five that are, (N,) each."""
    columns: list[list[NDArray[np.float64]]] = [[], [], []]
    start = 0
    for chunk, labels, features in logits.chunks(features=fitted is not None and fitted.needs_features):
        t = shares[start : start + len(labels)].astype(np.float64)
        t /= t.sum(axis=1, keepdims=True)
        z = to_host(apply_map(fitted, chunk, features)).astype(np.float64)
        z -= z.max(axis=1, keepdims=True)
        log_q = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
        log_t = np.log(np.maximum(t, np.finfo(np.float64).tiny))
        columns[0].append(np.sum(t * (log_t - log_q), axis=1))
        columns[1].append((np.argmax(z, axis=1) == np.argmax(t, axis=1)).astype(np.float64))
        first = (np.argsort(-values, axis=1, kind="stable")[:, :_FIRST] for values in (z, t))
        ours, theirs = first
        columns[2].append((ours[:, :, None] == theirs[:, None]).any(axis=2).mean(axis=1))
        start += len(labels)
    return [np.concatenate(column) for column in columns]
