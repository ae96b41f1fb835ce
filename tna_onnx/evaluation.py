"""`evaluate`: run models over labelled data and reduce what they say to metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tna_onnx.batching import BatchSize, batch_size_notes, check_batch_size, choose_batch_size
from tna_onnx.data import Batch, Format, Recipe, Source
from tna_onnx.errors import DataError, UsageError
from tna_onnx.extraction import Progress, input_specs, open_model, silent
from tna_onnx.gates import GateMissed, Gates
from tna_onnx.graph.load import ModelSource, load_model
from tna_onnx.graph.outputs import ClassOutput, class_output
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.reliability import Bins
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.runtime import parse_device
from tna_onnx.samples import DataOptions

__all__ = [
    "HIGHEST_LEVEL",
    "Evaluation",
    "check_level",
    "check_numbers",
    "evaluate",
    "require_samples",
    "score_models",
]

HIGHEST_LEVEL = 99.9
"""Per cent; beyond it the bootstrap has too few resamples for the ends of an interval."""


@dataclass(frozen=True)
class Evaluation:
    """Metrics and top-label diagram of one model on labelled data, and the gates that they missed, a line each."""

    model: str
    model_sha256: str
    output: str
    output_kind: str
    data: str
    metrics: Metrics
    reliability: Bins
    preprocessing: dict[str, object] | None
    provider: str
    notes: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()


def evaluate(
    model: ModelSource,
    data: Any,
    *,
    head: str | None = None,
    output_name: str | None = None,
    output_kind: Literal["logits", "probabilities"] | None = None,
    bins: int = 15,
    preprocessing: Recipe | str | Path | None = None,
    format: Format | None = None,  # noqa: A002 - the word of the command line
    labels: Any = None,
    classes: Sequence[str] | str | Path | None = None,
    label_column: str | None = None,
    skip_bad: bool = False,
    expect_accuracy: float | None = None,
    max_ece: float | None = None,
    max_nll: float | None = None,
    min_accuracy: float | None = None,
    device: str = "auto",
    batch_size: BatchSize = 64,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure a classifier on labelled data: accuracy, ECE, AdaECE, NLL, Brier.

    Args:
        model: an ONNX model as for `calibrate`, written by this package or not.
        data: labelled data, as for `calibrate`.
        head: node of the head, where the model has several.
        output_name: graph output, where the model has several.
        output_kind: what it holds, where the graph does not tell.
        bins: bins of ECE and AdaECE.
        preprocessing: recipe for images, or the path of a `preprocessor_config.json` or timm `config.json`.
        format: what the path of the data is; found out by default.
        labels: labels that stand apart from the samples: values, or the path of a file.
        classes: the model's class names in the order of its output, or the path of a file with them.
        label_column: column of a manifest or table that holds the labels.
        skip_bad: leave out images that cannot be read, and count them.
        expect_accuracy: accuracy in per cent that the model is known to have.
        max_ece: gate: largest ECE, per cent.
        max_nll: gate: largest NLL, nats.
        min_accuracy: gate: least accuracy, per cent.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run; `auto` finds them by a short probe.
        progress: called with (stage, done, total).

    Raises:
        UsageError: a path or setting that cannot be used.
        UnsupportedModel: the file is no classifier that can be read.
        DataError: the data do not fit the model.
        CheckFailed: the accuracy is more than two standard errors below the expected one.
        GateMissed: a CheckFailed whose `result` is the Evaluation of a model that missed gates.
        DeviceError: ONNX Runtime or the device is missing.
    """
    check_numbers("a whole number", bins=bins)
    check_numbers(
        "a number or None",
        max_ece=max_ece,
        max_nll=max_nll,
        min_accuracy=min_accuracy,
        expect_accuracy=expect_accuracy,
    )
    gates = Gates(max_ece, max_nll, min_accuracy)
    check_batch_size(batch_size)
    loaded = load_model(model)
    output = class_output(loaded, head, output_name, output_kind)
    session = open_model(loaded, parse_device(device))
    options = DataOptions(preprocessing, format, classes, label_column, skip_bad, expect_accuracy)
    names = options.class_names(loaded, output.labels, output.n_classes)
    source = options.open(data, input_specs(session), output.n_classes, names, labels)
    require_samples(source, bins)
    size = choose_batch_size(batch_size, session, [output.name], source)
    predicted: list[NDArray[np.int64]] = []
    scores = score_models([(session, output)], source, size, progress or silent, predicted)[0]
    warning = options.check(np.concatenate(predicted), source.labels, names, output.n_classes)
    metrics = Metrics.of(scores, bins)
    evaluation = Evaluation(
        model=loaded.name,
        model_sha256=loaded.sha256,
        output=output.name,
        output_kind=output.kind,
        data=source.describe(),
        metrics=metrics,
        reliability=Bins.of(scores.confidence, scores.hit, bins),
        preprocessing=source.recipe(),
        provider=session.provider,
        notes=(*batch_size_notes(batch_size, size), *((warning,) if warning else ())),
        missed=gates.limits_missed(metrics, ""),
    )
    if evaluation.missed:
        raise GateMissed(evaluation)
    return evaluation


_NUMBERS = {"a whole number": (Integral,), "a number": (Real,), "a number or None": (Real, type(None))}


def check_numbers(expected: Literal["a whole number", "a number", "a number or None"], **given: object) -> None:
    """Refuse arguments of a wrong type, which the command line's types do not see on the way through Python.

    Raises:
        UsageError: one is something else; truth values and texts are no numbers.

    >>> check_numbers("a whole number", bins=15, seed=1.5)
    Traceback (most recent call last):
    tna_onnx.errors.UsageError: seed must be a whole number, got 1.5 (float)
    """
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, _NUMBERS[expected]):
            raise UsageError(f"{name} must be {expected}, got {value!r} ({type(value).__name__})")


def check_level(per_cent: float) -> float:
    """Return a confidence level as a fraction.

    Raises:
        UsageError: not a number, or outside of 50 to 99.9 per cent.
    """
    check_numbers("a number", confidence_level=per_cent)
    if not 50 <= per_cent <= HIGHEST_LEVEL:
        raise UsageError(f"confidence_level must be in 50 to {HIGHEST_LEVEL} per cent, got {per_cent}")
    return per_cent / 100


class Runs(Protocol):
    """A session, or something that stands for one."""

    def run(self, outputs: list[str], batch: Batch, /) -> list[NDArray[Any]]:
        """Run one batch."""


def score_models(
    models: Sequence[tuple[Runs, ClassOutput]],
    source: Source,
    batch_size: int,
    progress: Progress,
    predicted: list[NDArray[np.int64]] | None = None,
) -> list[SampleScores]:
    """Score several models on the same samples, each batch read once.

    Args:
        models: sessions and the outputs that classify.
        source: the samples.
        batch_size: samples per run.
        progress: called with (stage, done, total).
        predicted: gets the classes that the first model predicts, batch by batch.

    Raises:
        DataError: an output of the wrong shape, or NaN or infinite values in it.
    """
    parts: list[list[SampleScores]] = [[] for _ in models]
    done, labels = 0, source.labels
    for batch in source.batches(batch_size):
        size = len(next(iter(batch.values())))
        for kept, (session, output) in zip(parts, models, strict=True):
            values = session.run([output.name], batch)[0]
            kept.append(_score(values, labels[done : done + size], output, source, done))
            if predicted is not None and kept is parts[0]:
                predicted.append(np.argmax(output.probabilities(values), axis=1))
        done += size
        progress("evaluate", done, len(source))
    return [SampleScores.concatenate(kept) for kept in parts]


def require_samples(source: Source, bins: int, held_out: int = 0) -> None:
    """Refuse fewer samples than bins.

    Args:
        source: the data.
        bins: of ECE.
        held_out: samples that a fold leaves out.

    Raises:
        DataError: too few samples.
    """
    if bins < 1:
        raise UsageError(f"bins must be at least 1, got {bins}")
    if len(source) - held_out < bins:
        rest = f" outside a fold of {held_out}" if held_out else ""
        raise DataError(
            f"{source.describe()}: {len(source) - held_out} samples{rest}, fewer than the {bins} bins of the ECE; "
            "give more samples, or fewer --bins"
        )


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
    if output.kind == "logits" and len(values) > 1 and np.all(values >= 0) and np.all(np.abs(sums - 1) < 1e-3):
        raise DataError(
            f"{source.describe()}: output '{output.name}' should hold logits, but all values are positive and add up "
            "to 1: they are probabilities; say --output-kind probabilities"
        )
    if output.kind in ("probabilities", "positive_probability"):
        return SampleScores.of_probabilities(_widened(values, output), labels)
    return SampleScores.of_logits(values, labels)


def _widened(values: NDArray[Any], output: ClassOutput) -> NDArray[np.float64]:
    """Return (N, C) probabilities of values in the model's order of classes."""
    values = np.asarray(values, np.float64)
    return np.concatenate([1 - values, values], axis=1) if output.kind == "positive_probability" else values
