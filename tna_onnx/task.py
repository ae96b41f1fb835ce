"""Everything that `calibrate` opens and checks before any search: model, head, data, device, features."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from tna_onnx.crossfit import FOLDS
from tna_onnx.data import Recipe, Source, open_source
from tna_onnx.errors import UsageError
from tna_onnx.evaluation import require_samples
from tna_onnx.features import FeatureStore, HeadTensors, Progress, check_head, collect_features, input_specs, open_probe
from tna_onnx.graph.head import Head, choose_head
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.outputs import ClassOutput, output_of
from tna_onnx.graph.save import check_output
from tna_onnx.runtime import Device, parse_device

__all__ = ["Task", "open_task"]


@dataclass(frozen=True, eq=False)
class Task:
    """A recalibration that is ready to start.

    Attributes:
        model: the source.
        head: its linear head, checked against the model's logits.
        tensors: what the first batch showed of the head's tensors.
        class_output: the graph output behind it.
        output: path to write.
        source: calibration data.
        held_out: evaluation data, if given.
        store: features of the calibration data.
        device: what was asked for.
        provider: ONNX Runtime's execution provider.
        fallback: why `auto` did not get CUDA; empty otherwise.
        batch_size: samples per run.
    """

    model: Model
    head: Head
    tensors: HeadTensors
    class_output: ClassOutput
    output: Path
    source: Source
    held_out: Source | None
    store: FeatureStore
    device: Device
    provider: str
    fallback: str
    batch_size: int


def open_task(
    path: str | Path,
    calib: str | Path,
    held_out: str | Path | None,
    output: str | Path | None,
    *,
    head: str | None,
    recipe: Recipe | None,
    device: str,
    batch_size: int,
    overwrite: bool,
    bins: int,
    show: Progress,
) -> Task:
    """Open and check, cheapest first, then collect the features.

    Raises:
        UsageError, UnsupportedModel, DataError, DeviceError: see `tna_onnx.calibrate`.
    """
    if batch_size < 1:
        raise UsageError(f"batch size must be at least 1, got {batch_size}")
    where, model = parse_device(device), load_model(path)
    target = Path(output) if output is not None else model.path.with_suffix(".tna.onnx")
    check_output(model, target, overwrite=overwrite)
    for data in (calib, held_out):
        if data is not None and target.exists() and Path(data).exists() and target.samefile(data):
            raise UsageError(f"{target}: output is the data file; choose another --output")
    found = choose_head(model, head)
    class_output = output_of(model, found)
    probe = open_probe(model, found, where)
    specs = input_specs(probe)
    source = open_source(calib, specs, found.n_classes, recipe)
    other = None if held_out is None else open_source(held_out, specs, found.n_classes, recipe)
    require_samples(source, bins, 0 if other else math.ceil(len(source) / FOLDS))
    if other is not None:
        require_samples(other, bins)
        if other.digest() == source.digest():
            raise UsageError(
                f"{held_out}: the same data as {calib}; held-out data must be other samples. Leave --eval away to have "
                "the result cross-fitted"
            )
    tensors = check_head(model, found, probe, source, batch_size)
    store = collect_features(model, found, source, where, batch_size, show)
    return Task(
        model,
        found,
        tensors,
        class_output,
        target,
        source,
        other,
        store,
        where,
        probe.provider,
        probe.fallback,
        batch_size,
    )
