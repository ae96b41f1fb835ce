"""`features`: fill a feature store, so that fitting later needs neither the data nor a run of the network."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tna_onnx.data import Format, Recipe
from tna_onnx.data.options import DataOptions
from tna_onnx.errors import UsageError
from tna_onnx.extraction.batch_size import BatchSize, batch_size_notes, check_batch_size
from tna_onnx.extraction.collect import batch_size_for, collect_features
from tna_onnx.extraction.given import open_samples
from tna_onnx.extraction.head_check import check_readout
from tna_onnx.extraction.sessions import open_probe
from tna_onnx.graph.load import ModelSource, load_model
from tna_onnx.graph.outputs import find_readout
from tna_onnx.graph.readout import Head
from tna_onnx.progress import Progress, silent
from tna_onnx.results.collection import Collection
from tna_onnx.runtime import parse_device

__all__ = ["features"]


def features(
    model: ModelSource,
    data: Any,
    cache: str | Path,
    *,
    head: str | None = None,
    output_name: str | None = None,
    output_kind: Literal["logits", "probabilities"] | None = None,
    preprocessing: Recipe | str | Path | None = None,
    format: Format | None = None,  # noqa: A002 - the word of the command line
    labels: Any = None,
    classes: Sequence[str] | str | Path | None = None,
    label_column: str | None = None,
    skip_bad: bool = False,
    expect_accuracy: float | None = None,
    device: str = "auto",
    batch_size: BatchSize = 64,
    progress: Progress | None = None,
) -> Collection:
    """Run a model over labelled data up to its features, and keep these with logits and labels.

    A run that was interrupted goes on at the first chunk that is missing; the features are the same, bit for bit.

    Args:
        model: an ONNX model as for `calibrate`.
        data: labelled data, as for `calibrate`.
        cache: folder of feature stores; made if it is missing.
        head: node of the head, where the model has several.
        output_name: graph output, where the model has several.
        output_kind: what it holds, where the graph does not tell.
        preprocessing: recipe for images, or the path of a `preprocessor_config.json` or timm `config.json`.
        format: what the path of the data is; found out by default.
        labels: labels that stand apart from the samples: values, or the path of a file.
        classes: the model's class names in the order of its output, or the path of a file with them.
        label_column: column of a manifest or table that holds the labels.
        skip_bad: leave out images that cannot be read, and count them.
        expect_accuracy: accuracy in per cent that the model is known to have.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run; `auto` finds them by a short probe.
        progress: called with (stage, done, total).

    Raises:
        UsageError: a path or setting that cannot be used, no room, or another process is filling the same store.
        UnsupportedModel: the model is no classifier that can be read.
        DataError: the data do not fit the model.
        CheckFailed: the accuracy is more than two standard errors below the expected one.
        DeviceError: ONNX Runtime or the device is missing.
    """
    check_batch_size(batch_size)
    where, loaded = parse_device(device), load_model(model)
    found = find_readout(loaded, head, output_name, output_kind)
    options = DataOptions(preprocessing, format, classes, label_column, skip_bad, expect_accuracy)
    names = options.class_names(loaded.metadata, found.labels, found.n_classes)
    opened = functools.cache(lambda: open_probe(loaded, found, where))
    samples = open_samples(loaded, found, data, options, names, labels, opened)
    if samples.given:
        raise UsageError(f"{samples.source.describe()}: holds computed features or logits already")
    probe = opened()
    size = batch_size_for(batch_size, loaded, probe, samples.source, Path(cache))
    probed = check_readout(loaded, found, probe, samples.source, size, where)
    readout = probed.readout
    if probed.tail is not None:
        size = probe.fixed_batch or size
    provider = probe.provider
    del probe  # its memory goes to the session that collects
    opened.cache_clear()
    store = collect_features(loaded, readout, samples.source, where, size, progress or silent, Path(cache))
    # without a head the rows are class logits already, whatever the model's output holds
    predicted = np.argmax(store.features, axis=1) if store.logits is None else readout.predicted(store.logits)
    warning = options.check(predicted, samples.source.labels, names, readout.n_classes)
    return Collection(
        model=loaded.name,
        model_sha256=loaded.sha256,
        data=samples.source.describe(),
        head=readout.node if isinstance(readout, Head) else "",
        tensor=readout.features if isinstance(readout, Head) else readout.logits,
        shape=store.features.shape,
        dtype=store.features.dtype.name,
        folder=str(store.folder),
        notes=(*store.resumed, *batch_size_notes(batch_size, size), *((warning,) if warning else ())),
        preprocessing=samples.source.recipe(),
        provider=provider,
    )
