"""`evaluate`: run models over labelled data and reduce what they say to metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Recipe, Source, open_source
from tna_onnx.errors import DataError, UsageError
from tna_onnx.features import Progress, input_specs, open_model, silent
from tna_onnx.graph.load import ModelSource, load_model
from tna_onnx.graph.outputs import ClassOutput, class_output
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.runtime import Session, parse_device

__all__ = ["Evaluation", "evaluate", "require_samples", "score_models"]


@dataclass(frozen=True)
class Evaluation:
    """Metrics of one model on labelled data."""

    model: str
    model_sha256: str
    output: str
    output_kind: str
    data: str
    metrics: Metrics
    preprocessing: dict[str, object] | None
    provider: str


def evaluate(
    model: ModelSource,
    data: str | Path,
    *,
    head: str | None = None,
    output_name: str | None = None,
    output_kind: Literal["logits", "probabilities"] | None = None,
    bins: int = 15,
    preprocessing: Recipe | None = None,
    device: str = "auto",
    batch_size: int = 64,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure a classifier on labelled data: accuracy, ECE, AdaECE, NLL, Brier.

    Args:
        model: an ONNX model as for `calibrate`, written by this package or not.
        data: image folder or `.npz`.
        head: node of the head, where the model has several.
        output_name: graph output, where the model has several.
        output_kind: what it holds, where the graph does not tell.
        bins: bins of ECE and AdaECE.
        preprocessing: recipe for images.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run.
        progress: called with (stage, done, total).

    Raises:
        UsageError: a path or setting that cannot be used.
        UnsupportedModel: the file is no classifier that can be read.
        DataError: the data do not fit the model.
        DeviceError: ONNX Runtime or the device is missing.
    """
    loaded = load_model(model)
    output = class_output(loaded, head, output_name, output_kind)
    session = open_model(loaded, parse_device(device))
    source = open_source(data, input_specs(session), output.n_classes, preprocessing)
    require_samples(source, bins)
    scores = score_models([(session, output)], source, batch_size, progress or silent)[0]
    return Evaluation(
        model=loaded.name,
        model_sha256=loaded.sha256,
        output=output.name,
        output_kind=output.kind,
        data=source.describe(),
        metrics=Metrics.of(scores, bins),
        preprocessing=source.recipe(),
        provider=session.provider,
    )


def score_models(
    models: Sequence[tuple[Session, ClassOutput]], source: Source, batch_size: int, progress: Progress
) -> list[SampleScores]:
    """Score several models on the same samples, each batch read once.

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
    if output.kind in ("probabilities", "positive_probability"):
        return SampleScores.of_probabilities(_widened(values, output), labels)
    return SampleScores.of_logits(values, labels)


def _widened(values: NDArray[Any], output: ClassOutput) -> NDArray[np.float64]:
    """Return (N, C) probabilities of values in the model's order of classes."""
    values = np.asarray(values, np.float64)
    return np.concatenate([1 - values, values], axis=1) if output.kind == "positive_probability" else values
