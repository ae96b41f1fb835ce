"""Everything that `calibrate` opens and checks before any search: model, head, data, device, features."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tna_onnx.calibration.crossfit import FOLDS
from tna_onnx.data import Source
from tna_onnx.data.options import DataOptions
from tna_onnx.data.source import require_samples
from tna_onnx.engine.logits import HeadLogits, Logits, StoredLogits, TailLogits
from tna_onnx.engine.placement import Host, Placement, placement_of
from tna_onnx.errors import UsageError
from tna_onnx.extraction.batch_size import BatchSize, check_batch_size
from tna_onnx.extraction.collect import batch_size_for, collect_features
from tna_onnx.extraction.given import Entered, open_samples
from tna_onnx.extraction.head_check import Probed, check_readout
from tna_onnx.extraction.sessions import open_probe
from tna_onnx.extraction.table import FeatureStore
from tna_onnx.graph.head import choose_head
from tna_onnx.graph.load import Model, ModelSource, load_model
from tna_onnx.graph.outputs import ClassOutput, find_readout, output_of
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.requantize import requantized
from tna_onnx.graph.save import check_output
from tna_onnx.numerics.ops import softmax
from tna_onnx.progress import Progress
from tna_onnx.runtime import Device, Session, parse_device

__all__ = ["QuantizedHead", "Task", "open_task"]

QuantizedHead = Literal["requantize", "float"]


@dataclass(frozen=True, eq=False)
class Task:
    """A recalibration that is ready to start.

    Attributes:
        model: the source.
        probed: where its logits are, checked against the model itself.
        class_output: the graph output behind it.
        class_names: in the order of the model's output, if known.
        output: path to write; None for a model in memory that stays there.
        samples: calibration data.
        held_out: evaluation data, if given.
        store: features of the calibration data.
        device: what was asked for.
        provider: ONNX Runtime's execution provider.
        fallback: why `auto` did not get CUDA; empty otherwise.
        batch_size: samples per run.
        placement: where the search computes.
    """

    model: Model
    probed: Probed
    class_output: ClassOutput
    class_names: tuple[str, ...] | None
    output: Path | None
    samples: Entered
    held_out: Entered | None
    store: FeatureStore
    device: Device
    provider: str
    fallback: str
    batch_size: int
    placement: Placement = field(default_factory=Host)

    @property
    def source(self) -> Source:
        """The calibration data."""
        return self.samples.source

    @property
    def readout(self) -> Readout:
        """The head, or else the tensor of logits or probabilities."""
        return self.probed.readout

    @property
    def head(self) -> Head | None:
        """The linear head, if there is one."""
        return self.readout if isinstance(self.readout, Head) else None

    def quantization_drift(self, weight: NDArray[Any]) -> float | None:
        """Largest change of a probability that quantising a new weight makes; None if the weight is not quantised.

        On up to 512 calibration samples, before any map.
        """
        head = self.head
        if head is None or head.stored_weight.quantized is None or weight is head.weight:
            return None
        if self.probed.tail is None:
            in_float: Logits = HeadLogits(self.store, weight, head.bias)
        else:
            run = self.probed.tail.in_float().logits(weight)
            in_float = TailLogits(self.store, head.features, run, head.n_classes)
        rows = np.arange(min(512, len(self.store)), dtype=np.int64)
        shipped = softmax(self.logits(weight).at(rows))
        return float(np.max(np.abs(shipped - softmax(in_float.at(rows)))))

    def logits(self, weight: NDArray[Any] | None, factor: float | None = None) -> Logits:
        """Logits of the calibration data under a (C, n) weight, rounded as the file will have it.

        With a factor, they are rounded as they are when that is folded into weight and bias.
        """
        head = self.head
        if head is None or weight is None:
            return StoredLogits(self.store)
        unchanged = weight is head.weight
        if self.probed.tail is not None:
            run = self.probed.tail.logits(None if unchanged else weight)
            return TailLogits(self.store, head.features, run, head.n_classes)
        if factor is not None:
            written, scale = head.as_written(weight * np.asarray(factor, weight.dtype)), head.working_type.type(factor)
            return HeadLogits(self.store, written / scale, head.bias_as_written(factor) / scale, self.placement)
        return HeadLogits(self.store, weight if unchanged else head.as_written(weight), head.bias, self.placement)


def open_task(
    source: ModelSource,
    calib: Any,
    held_out: Any,
    output: str | Path | None,
    *,
    needs_head: bool,
    head: str | None,
    output_name: str | None,
    output_kind: str | None,
    quantized_head: QuantizedHead,
    data: DataOptions,
    labels: Any,
    held_out_labels: Any,
    device: str,
    batch_size: BatchSize,
    overwrite: bool,
    bins: int,
    cache: str | Path | None,
    show: Progress,
) -> Task:
    """Open and check, cheapest first, then collect the features.

    Raises:
        UsageError, UnsupportedModel, DataError, DeviceError: see `tna_onnx.calibrate`.
    """
    check_batch_size(batch_size)
    if needs_head and output_kind is not None:
        raise UsageError("--output-kind is for --search none; where class vectors are searched, the graph tells")
    where, model = parse_device(device), load_model(source)
    target = _target(model, output)
    if target is not None:
        check_output(model, target, overwrite=overwrite)
        for path in (calib, held_out, labels, held_out_labels):
            if isinstance(path, (str, Path)) and target.exists() and Path(path).exists() and target.samefile(path):
                raise UsageError(f"{target}: output is the data file; choose another --output")
    found = choose_head(model, head, output_name) if needs_head else find_readout(model, head, output_name, output_kind)
    if isinstance(found, Head):
        found = requantized(model, found) if quantized_head == "requantize" else _in_float(found)
    class_output = output_of(found)
    names = data.class_names(model.metadata, found.labels, found.n_classes)
    opened = functools.cache(lambda: open_probe(model, found, where))
    samples = open_samples(model, found, calib, data, names, labels, opened)
    if needs_head and not isinstance(samples.readout, Head):
        raise UsageError(f"{samples.source.describe()}: holds logits, which leave nothing to tilt; add --search none")
    other = None
    if held_out is not None:
        other = open_samples(model, found, held_out, data, names, held_out_labels, opened)
    require_samples(samples.source, bins, 0 if other else math.ceil(len(samples.source) / FOLDS))
    if other is not None:
        require_samples(other.source, bins)
        if other.source.digest() == samples.source.digest():
            raise UsageError(
                f"{other.source.describe()}: the same data as {samples.source.describe()}; held-out data must be other "
                "samples. Leave --eval away to have the result cross-fitted"
            )
    probe = _probe(model, samples, where) if samples.given else opened()
    folder = None if cache is None else Path(cache)
    size = batch_size_for(batch_size, model, None if samples.given else probe, samples.source, folder)
    probed = check_readout(model, samples.readout, probe, samples.source, size, where)
    if probed.tail is not None and probe is not None and probe.fixed_batch:
        size = probe.fixed_batch
    provider, fallback = (probe.provider, probe.fallback) if probe else ("none", "")
    del probe  # its memory goes to the session that collects
    opened.cache_clear()
    store = collect_features(model, probed.readout, samples.source, where, size, show, folder, frozenset(samples.given))
    return Task(
        model,
        probed,
        class_output,
        names,
        target,
        samples,
        other,
        store,
        where,
        provider,
        fallback,
        size,
        placement_of(provider, where),
    )


def _probe(model: Model, samples: Entered, device: Device) -> Session | None:
    """Open the model from what the samples hold to its logits; nothing if they hold the logits."""
    if samples.readout.logits in samples.given:
        return None
    return open_probe(model, samples.readout, device, samples.given)


def _target(model: Model, output: str | Path | None) -> Path | None:
    if output is not None:
        return Path(output)
    return None if model.path is None else model.path.with_suffix(".tna.onnx")


def _in_float(head: Head) -> Head:
    return head.kept_in_float() if head.stored_weight.quantized else head
