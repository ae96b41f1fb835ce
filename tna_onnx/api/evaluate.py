"""`evaluate`: run models over labelled data and reduce what they say to metrics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tna_onnx.api.arguments import check_numbers
from tna_onnx.data import Format, Recipe
from tna_onnx.data.options import DataOptions
from tna_onnx.data.source import require_samples
from tna_onnx.engine.outputs import score_models
from tna_onnx.extraction.batch_size import BatchSize, batch_size_notes, check_batch_size, choose_batch_size
from tna_onnx.extraction.sessions import input_specs, open_model
from tna_onnx.graph.load import ModelSource, load_model
from tna_onnx.graph.outputs import class_output
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.reliability import Bins
from tna_onnx.progress import Progress, silent
from tna_onnx.results.evaluation import Evaluation
from tna_onnx.results.gates import GateMissed, Gates
from tna_onnx.runtime import parse_device

__all__ = ["evaluate"]


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
    names = options.class_names(loaded.metadata, output.labels, output.n_classes)
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
