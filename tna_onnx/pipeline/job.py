"""What a command is asked to do, before anything is opened (`ModelJob`, and `Job` for a recalibration), and a
recalibration that is ready to start (`Task`): the model, its head, and what the network made of the samples.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.choices import BATCH_SIZE
from tna_onnx.data.options import Data
from tna_onnx.data.source import Source
from tna_onnx.engine.logits import HeadLogits, Logits, StoredLogits, TailLogits
from tna_onnx.engine.placement import Host, Placement
from tna_onnx.extraction.classifier import OpenModel
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.extraction.head_check import CheckedHead
from tna_onnx.extraction.opened_samples import Samples
from tna_onnx.graph.load import Model
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.save import file_beside
from tna_onnx.maps.base import Folding
from tna_onnx.numerics.averages import kept_part
from tna_onnx.pipeline.settings import Settings
from tna_onnx.results.gates import Gates
from tna_onnx.runtime import CUDA, Device


@dataclass(frozen=True, eq=False)
class ModelJob:
    """What a command is asked to do with a classifier and samples, before anything is opened."""

    model: ModelSource  # the source
    calib: Data  # labelled samples that something is fitted to
    held_out: Data | None = None  # labelled samples for the report; None without
    options: ModelOptions = field(default_factory=ModelOptions)  # on the model's head and output
    output: str | Path | None = None  # path to write; None for the default
    overwrite: bool = False  # allow the output to be the input
    dry_run: bool = False  # write no model
    device: str = "auto"  # `auto`, `cpu`, `cuda` or `cuda:INDEX`
    batch_size: int = BATCH_SIZE  # samples per run


@dataclass(frozen=True, eq=False)
class Job(ModelJob):
    """The request for a recalibration; without held-out data the report is cross-fitted."""

    settings: Settings = field(default_factory=Settings)  # of search, map and intervals
    gates: Gates = field(default_factory=Gates)  # limits on the result
    details: bool = False  # collect the numbers behind the figures
    cache: str | Path | None = None  # folder of feature stores
    teacher: ModelSource | None = None  # a model whose probabilities stand for the labels of `calib`; None without

    @property
    def needs_head(self) -> bool:
        """Whether class vectors are searched."""
        return self.settings.resolved_search in ("sparse", "complete")


def target_of(job: ModelJob, model: Model, ending: str, *, in_memory: bool = False) -> Path | None:
    """Return the path to write; None where there is none and none is needed, also in a dry run."""
    if in_memory and job.output is None and model.path is None:
        return None
    return file_beside(model, job.output, ending, overwrite=job.overwrite, dry_run=job.dry_run)


# Samples on which the effect of quantising a weight is measured.
_DRIFT_SAMPLES = 512


@dataclass(frozen=True, eq=False)
class Collected:
    """Samples, and what the network made of them in its one run."""

    samples: Samples
    table: FeatureTable

    @property
    def source(self) -> Source:
        """The labelled samples."""
        return self.samples.source


@dataclass(frozen=True, eq=False)
class Teacher:
    """A model whose probabilities stand for labels."""

    model: Model  # as read
    probabilities: NDArray[np.float32]  # (N, C) its probabilities for the samples of the report
    labelled: bool  # whether those have labels of their own


@dataclass(frozen=True, eq=False)
class Task:
    """A recalibration that is ready to start."""

    job: Job  # the request
    opened: OpenModel  # the source model and its session
    probed: CheckedHead  # where its logits are, checked against the model itself
    output: Path | None  # path to write; None for a model in memory that stays there
    calibration: Collected  # samples to search and fit on
    held_out: Collected | None  # samples for the report, if given
    provider: str  # ONNX Runtime's execution provider
    fallback: str  # why `auto` did not get CUDA; empty otherwise
    batch_size: int  # samples per run
    placement: Placement = field(default_factory=Host)  # where the products of the search are computed
    data_notes: tuple[str, ...] = ()  # what users should know about the samples
    teacher: Teacher | None = None  # whose probabilities stand for labels; None where there are labels
    _originals: WeakKeyDictionary[Collected, Logits] = field(default_factory=WeakKeyDictionary, repr=False)

    @property
    def settings(self) -> Settings:
        """The job's settings: search, map, intervals."""
        return self.job.settings

    @property
    def model(self) -> Model:
        """The source model."""
        return self.opened.model

    @property
    def device(self) -> Device:
        """The device that was asked for."""
        return self.opened.device

    @property
    def tf32(self) -> bool:
        """Whether ONNX Runtime may round products of float32 to TF32 in this run."""
        return self.provider == CUDA and self.device.tf32

    @property
    def source(self) -> Source:
        """The calibration samples."""
        return self.calibration.source

    @property
    def reported(self) -> Collected:
        """The samples that the report is about: the held-out ones, if there are any."""
        # without --eval the figures show the data that were fitted, and say so
        return self.held_out or self.calibration

    @property
    def readout(self) -> Readout:
        """The head, or else the tensor of logits or probabilities."""
        return self.probed.readout

    @property
    def head(self) -> Head | None:
        """The linear head, if there is one."""
        if not isinstance(self.readout, Head):
            return None
        return self.readout

    def part(self, rows: NDArray[np.intp]) -> Task:
        """Return the task with only the calibration samples `rows`, in that order; for linear heads."""
        return replace(self, calibration=replace(self.calibration, table=self.calibration.table.part(rows)))

    @functools.cached_property
    def weight(self) -> NDArray[Any] | None:
        """(C, n) class vectors that a search tilts, if there is a head."""
        if self.head is None:
            return None
        return self.head.weight

    @property
    def has_own_threshold(self) -> bool:
        """Whether callers compare a probability with a threshold of theirs: one sigmoid, or several labels a sample."""
        return self.readout.multi_label or (self.readout.binary and not self.readout.paired)

    @property
    def where(self) -> str:
        """What is calibrated, for messages."""
        if self.head is None:
            return f"output '{self.readout.output}'"
        return f"head '{self.head.node}'"

    @property
    def computed_on(self) -> str:
        """Where search and fits are computed: only products with a plain weight can be on a device."""
        if self.head is None or self.probed.tail is not None:
            return Host.name
        return self.placement.name

    def new_numbers(
        self, weight: NDArray[Any], folding: Folding | None
    ) -> tuple[NDArray[Any], NDArray[Any] | None, float]:
        """Return weight (C, n) and bias (C,) with a map in them, or None and a factor on the bias; not rounded yet."""
        head = self.head
        assert head is not None  # noqa: S101 - there is a weight
        factor = self.bias_factor(weight)
        if folding is None:
            return weight, None, factor
        folded = head.anchored(folding.weight(weight))
        if folding.factor is not None:
            return folded, None, folding.factor * factor
        return folded, head.anchored(folding.bias(head.bias * head.working_type.type(factor))), 1.0

    def new_logits(self, weight: NDArray[Any], folding: Folding | None, on: Collected) -> Logits:
        """Logits of a linear head under a (C, n) weight and a map in it, rounded as the file will have both.

        Where the file has no place for a bias, the shift is not rounded.
        """
        head = self.head
        assert head is not None  # noqa: S101 - there is a weight
        new, bias, factor = self.new_numbers(weight, folding)
        if bias is None:
            bias = head.bias_as_written(factor)
        elif head.holds_bias:
            bias = head.new_bias_as_written(bias)
        return HeadLogits(on.table, head.as_written(new), bias, self.placement)

    def logits(self, weight: NDArray[Any] | None, on: Collected | None = None) -> Logits:
        """Logits under a (C, n) weight, rounded as the file will hold it; of the source's weight, one object for all.

        Many stages ask for the latter: logits that one of them keeps serve the others until they are forgotten.

        `weight`: None for a model without a head.
        """
        collected = on or self.calibration
        if self.head is None or weight is not self.head.weight:
            return self._logits(weight, collected)
        if collected not in self._originals:
            self._originals[collected] = self._logits(weight, collected)
        return self._originals[collected]

    def _logits(self, weight: NDArray[Any] | None, collected: Collected) -> Logits:
        table = collected.table
        head = self.head
        if head is None or weight is None:
            # the network gave logits, or someone had stored them: there is nothing to multiply
            return StoredLogits(table, self.readout.resolution)
        unchanged = weight is head.weight
        if self.probed.tail is not None:
            # None leaves the stored tensor as it is: no second rounding of a weight that nobody changed
            new = None if unchanged else weight
            return TailLogits(table, self.probed.tail.logits(new), head.n_classes)
        if unchanged:
            return HeadLogits(table, weight, head.bias, self.placement)
        return self.new_logits(weight, None, collected)

    def bias_factor(self, weight: NDArray[Any]) -> float:
        """Return the factor on the bias that goes with a tilted weight."""
        head = self.head
        # behind a tail only the graph computes logits, with the bias that it holds
        if not self.settings.tilt_bias or head is None or weight is self.weight or self.probed.tail is not None:
            return 1.0
        return kept_part(self.weight, weight)

    def quantization_drift(self, weight: NDArray[Any] | None) -> float | None:
        """Largest change of a probability that quantising a new weight makes; None if the weight is not quantised.

        On up to 512 calibration samples, before any map.
        """
        head = self.head
        if head is None or head.stored_weight.quantized is None or weight is None or weight is head.weight:
            return None
        # without a map: only what quantising the weight does is measured
        table = self.calibration.table
        if self.probed.tail is None:
            bias = head.bias * head.working_type.type(self.bias_factor(weight))
            in_float: Logits = HeadLogits(table, weight, bias)
        else:
            in_float = TailLogits(table, self.probed.tail.in_float().logits(weight), head.n_classes)
        rows = np.arange(min(_DRIFT_SAMPLES, len(table)), dtype=np.int64)
        shipped = self.readout.probabilities(self.logits(weight).at(rows))
        return float(np.max(np.abs(shipped - self.readout.probabilities(in_float.at(rows)))))
