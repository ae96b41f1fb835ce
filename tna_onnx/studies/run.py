"""The run of `study`: open the model, collect features once, then compute one study after the other.

Studies compute on `StudyData`: features of calibration and held-out samples, and the linear layer behind them. A study
that the folder already holds, with the same digest, is read instead of computed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx._version import __version__
from tna_onnx.data.choices import BatchSize
from tna_onnx.data.options import Data
from tna_onnx.engine.logits import HeadLogits
from tna_onnx.engine.placement import Host, Placement
from tna_onnx.errors import UnsupportedModel, UsageError
from tna_onnx.extraction.batch_size import DEFAULT
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.graph.outputs import require_one_prediction
from tna_onnx.numerics.averages import kept_part
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.numerics.threads import one_thread
from tna_onnx.pipeline.job import Job, Task
from tna_onnx.pipeline.opening import open_task
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.writing import versions
from tna_onnx.progress import Progress
from tna_onnx.results.study import Studies, Study
from tna_onnx.runtime import allowed_cores
from tna_onnx.studies.files import read_study, write_study
from tna_onnx.studies.settings import STUDIES, StudySettings


@dataclass(frozen=True, eq=False)
class StudyData:
    """Features of two sets of samples, and the layer s = W z + b.

    Attributes:
        weight: (C, n) class vectors, float32 or float64.
        bias: (C,) in the dtype of the weight.
        calibration: samples to search and fit on.
        held_out: samples to score.
        tilt_bias: whether the bias is scaled by what is left of a tilted weight.
        placement: where products are computed.
    """

    weight: NDArray[Any]
    bias: NDArray[Any]
    calibration: FeatureTable
    held_out: FeatureTable
    tilt_bias: bool = True
    placement: Placement = Host()  # noqa: RUF009 - a frozen value

    def logits(self, table: FeatureTable, weight: NDArray[Any] | None = None) -> HeadLogits:
        """Logits of samples under a (C, n) weight; the original one by default."""
        if weight is None or weight is self.weight:
            return HeadLogits(table, self.weight, self.bias, self.placement)
        bias = self.bias
        if self.tilt_bias:
            bias = bias * self.bias.dtype.type(kept_part(self.weight, weight))
        return HeadLogits(table, weight, bias, self.placement)

    def scores(self, weight: NDArray[Any] | None = None) -> SampleScores:
        """Scores of the held-out samples under a weight."""
        return self.logits(self.held_out, weight).scores()

    def split(self, repeat: int, seed: int) -> StudyData:
        """Return all samples split anew into sets of the same sizes, stratified by class."""
        features = np.concatenate([self.calibration.features, self.held_out.features])
        labels = np.concatenate([self.calibration.labels, self.held_out.labels])
        rng = np.random.default_rng([seed, repeat])
        rows = stratified(labels, len(self.calibration), rng)
        remaining = np.setdiff1d(np.arange(len(labels)), rows)
        joined = FeatureTable(features, labels)
        return replace(self, calibration=rows_of(joined, rows), held_out=rows_of(joined, remaining))

    def fewer(self, samples: int, rng: np.random.Generator) -> StudyData:
        """Return a stratified draw of the calibration samples, and all held-out ones."""
        rows = stratified(self.calibration.labels, samples, rng)
        return replace(self, calibration=rows_of(self.calibration, rows))


def rows_of(table: FeatureTable, rows: NDArray[Any]) -> FeatureTable:
    """Return some rows of a table."""
    return FeatureTable(np.asarray(table.features)[rows], table.labels[rows])


def stratified(labels: NDArray[np.int64], samples: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw rows, ascending, so that each class keeps its share within about one sample."""
    order = rng.permutation(len(labels))
    place = np.empty(len(labels))
    for label in np.unique(labels):
        rows = order[labels[order] == label]
        # evenly spaced in [0, 1): the first m of all places hold the share m / N of every class
        place[rows] = (np.arange(len(rows)) + rng.random()) / len(rows)
    return np.sort(np.argsort(place, kind="stable")[:samples])


def data_of_task(task: Task) -> StudyData:
    """Return the features and the head of an opened task.

    Raises:
        UnsupportedModel: only the graph can compute the logits, or there is nothing to tilt.
    """
    head = task.head
    if head is None or task.probed.tail is not None or task.held_out is None:
        raise UnsupportedModel(
            f"{task.model.name}: {task.where}: logits that only the graph can compute; use calibrate"
        )
    if head.weight.shape[1] < 2 or not np.any(head.weight):
        raise UnsupportedModel(
            f"{task.model.name}: {task.where}: a weight with one feature, or of zeros, cannot be tilted"
        )
    tables = (task.calibration.table, task.held_out.table)
    # a study goes over them hundreds of times, and splits them
    calibration, held_out = (FeatureTable(np.asarray(table.features), table.labels) for table in tables)
    return StudyData(head.weight, head.bias, calibration, held_out, task.tilt_bias, task.placement)


_log = logging.getLogger("tna_onnx")

# Raised when a study's numbers or columns change: older files are then not taken for new ones.
_FORM = 5


# Module of this package -> its studies: functions of data, settings and what is called with (done, total).
_MODULES = {
    "table": ("table", "time"),
    "geometry": ("rotations", "angles"),
    "curves": ("members", "angle", "samples", "dimension", "parameters"),
}


def _study_function(name: str) -> Callable[[StudyData, StudySettings, Any], Study]:
    module = next(module for module, names in _MODULES.items() if name in names)
    function: Callable[[StudyData, StudySettings, Any], Study]
    function = getattr(importlib.import_module(f"tna_onnx.studies.{module}"), name)
    return function


@dataclass(frozen=True, eq=False)
class StudyJob:
    """The request for a run of studies.

    Attributes:
        model: the source.
        calib: calibration data.
        held_out: data to score.
        only: names of studies; empty for all.
        settings: of the studies.
        options: on the model's head and output.
        folder: of the results; None to keep them in memory.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run, or `auto`.
        cache: folder of feature stores.
    """

    model: ModelSource
    calib: Data
    held_out: Data
    only: tuple[str, ...] = ()
    settings: StudySettings = field(default_factory=StudySettings)
    options: ModelOptions = field(default_factory=ModelOptions)
    folder: Path | None = None
    device: str = "auto"
    batch_size: BatchSize = DEFAULT
    cache: str | Path | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Studies in their order.

        Raises:
            UsageError: there is no study of a name.
        """
        for name in self.only:
            if name not in STUDIES:
                raise UsageError(f"study '{name}' is not known; expected {', '.join(STUDIES)}")
        return tuple(name for name in STUDIES if not self.only or name in self.only)


def run_studies(job: StudyJob, progress: Progress) -> Studies:
    """Compute the requested studies.

    Raises:
        UsageError, UnsupportedModel, DataError, DeviceError: see `tna_onnx.study`.
    """
    names = job.names  # refused before anything is opened
    task = open_task(_calibration(job), progress)
    require_one_prediction(task.model, task.readout, "studies are of models with one prediction each")
    data = data_of_task(task)
    assert task.held_out is not None  # noqa: S101 - `StudyJob` has held-out data
    with one_thread(allowed_cores()):
        studies = tuple(_studies(names, job, task, data, progress))
    return Studies(
        model=task.model.name,
        model_sha256=task.model.sha256,
        calibration=task.source.describe(),
        held_out=task.held_out.source.describe(),
        samples=(len(data.calibration), len(data.held_out)),
        features=data.weight.shape[1],
        classes=data.weight.shape[0],
        settings=job.settings.recorded,
        versions=versions(),
        studies=studies,
        notes=task.data_notes,
        folder="" if job.folder is None else str(job.folder),
    )


def _studies(names: Sequence[str], job: StudyJob, task: Task, data: StudyData, progress: Progress) -> Iterator[Study]:
    """Yield the requested studies and those that the folder already holds, since one page shows all of them."""
    for name in STUDIES:
        if name in names:
            yield _computed(name, job, task, data, progress)
        elif (earlier := _earlier(name, job, task)) is not None:
            yield earlier


def _earlier(name: str, job: StudyJob, task: Task) -> Study | None:
    """Read a study of the same model, data and settings from the folder; None without one."""
    if job.folder is None:
        return None
    study = read_study(job.folder, name)
    if study is not None and study.digest == _digest(name, job, task):
        return study
    return None


def _calibration(job: StudyJob) -> Job:
    """Return the job that `calibrate` would open for a search; nothing is written."""
    settings = Settings(search="sparse", map="none", bins=job.settings.bins, tilt_bias=job.settings.tilt_bias)
    return Job(
        model=job.model,
        calib=job.calib,
        held_out=job.held_out,
        options=job.options,
        settings=settings,
        dry_run=True,
        device=job.device,
        batch_size=job.batch_size,
        cache=job.cache,
    )


def _computed(name: str, job: StudyJob, task: Task, data: StudyData, progress: Progress) -> Study:
    """Read the study of the same digest, or compute and write it."""
    earlier = _earlier(name, job, task)
    if earlier is not None:
        _log.info("study %s: taken from %s", name, job.folder)
        return earlier
    start = time.perf_counter()
    study = replace(
        _study_function(name)(data, job.settings, functools.partial(progress, name)), digest=_digest(name, job, task)
    )
    _log.info("study %s: %.1f seconds", name, time.perf_counter() - start)
    if job.folder is not None:
        # one after the other: what an interruption leaves is whole
        write_study(job.folder, study)
    return study


def _digest(name: str, job: StudyJob, task: Task) -> str:
    """Return the SHA-256 of everything that the numbers of a study depend on."""
    assert task.held_out is not None  # noqa: S101 - `StudyJob` has held-out data
    parts: Sequence[Any] = (
        name,
        _FORM,
        __version__,
        job.settings.recorded,
        task.model.sha256,
        str(task.where),
        task.source.digest(),
        task.source.recipe(),
        task.held_out.source.digest(),
        task.held_out.source.recipe(),
        task.computed_on,
    )
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
