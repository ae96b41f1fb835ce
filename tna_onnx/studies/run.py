"""What happens inside `study`, in order: open, collect features once, then one study after the other.

A study that a folder holds already, with the same digest, is read and not made again.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from tna_onnx._version import __version__
from tna_onnx.calibration.job import Job
from tna_onnx.calibration.opening import open_task
from tna_onnx.calibration.provenance import versions
from tna_onnx.calibration.settings import Settings
from tna_onnx.calibration.spread import spread_over
from tna_onnx.calibration.task import Task
from tna_onnx.data.options import Data
from tna_onnx.errors import DataError, UsageError
from tna_onnx.extraction.batch_size import DEFAULT
from tna_onnx.extraction.words import BatchSize
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.graph.outputs import require_one_prediction
from tna_onnx.progress import Progress
from tna_onnx.results.study import Studies, Study
from tna_onnx.studies.data import StudyData, data_of_task
from tna_onnx.studies.files import read_study, write_study
from tna_onnx.studies.settings import STUDIES, StudySettings

__all__ = ["StudyJob", "run_studies"]

_log = logging.getLogger("tna_onnx")

# Raised when a study's numbers or columns change: older files are then not taken for new ones.
_FORM = 3


class MakeStudy(Protocol):
    """What each file of this package has as `study`."""

    def __call__(self, data: StudyData, settings: StudySettings, progress: Any) -> Study:
        """Return the study; `progress` is called with (done, total)."""


@dataclass(frozen=True, eq=False)
class StudyJob:
    """Studies before anything is opened.

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
    """Make the studies that are asked for.

    Raises:
        UsageError, UnsupportedModel, DataError, DeviceError: see `tna_onnx.study`.
    """
    names = job.names  # refused before anything is opened
    task = open_task(_calibration(job), progress)
    require_one_prediction(task.model, task.readout, "studies are of models with one prediction each")
    data = data_of_task(task)
    assert task.held_out is not None  # noqa: S101 - `StudyJob` has held-out data
    _check_samples(names, data, job.settings.bins)
    with spread_over("local", task):
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


def _check_samples(names: Sequence[str], data: StudyData, bins: int) -> None:
    """Refuse too few samples before anything is made.

    Raises:
        DataError: a study that splits them further would score fewer samples than there are bins.
    """
    # half for the head, and half of the rest to be scored
    scored = (len(data.calibration) + len(data.held_out)) // 4
    if "dimension" in names and scored - 1 < bins:
        raise DataError(
            f"study dimension: {scored} of all samples would be scored; expected more than {bins}, the number of bins; "
            "use more samples or fewer --bins, or leave it out of --only"
        )


def _studies(names: Sequence[str], job: StudyJob, task: Task, data: StudyData, progress: Progress) -> Iterator[Study]:
    """Yield the studies that are asked for, and others that the folder holds already: one page shows them all."""
    for name in STUDIES:
        if name in names:
            yield _made(name, job, task, data, progress)
        elif (earlier := _earlier(name, job, task)) is not None:
            yield earlier


def _earlier(name: str, job: StudyJob, task: Task) -> Study | None:
    """Return a study that the folder holds, of the same model, data and settings."""
    if job.folder is None:
        return None
    study = read_study(job.folder, name)
    if study is not None and study.digest == _digest(name, job, task):
        return study
    return None


def _calibration(job: StudyJob) -> Job:
    """Return what `calibrate` opens for a search; nothing is written."""
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


def _made(name: str, job: StudyJob, task: Task, data: StudyData, progress: Progress) -> Study:
    """Read a study of the same digest, or make it and write it."""
    earlier = _earlier(name, job, task)
    if earlier is not None:
        _log.info("study %s: taken from %s", name, job.folder)
        return earlier
    start = time.perf_counter()
    make: MakeStudy = importlib.import_module(f"tna_onnx.studies.{name}").study
    study = replace(make(data, job.settings, functools.partial(progress, name)), digest=_digest(name, job, task))
    _log.info("study %s: %.1f seconds", name, time.perf_counter() - start)
    if job.folder is not None:
        # one after the other: what an interruption leaves is whole
        write_study(job.folder, study)
    return study


def _digest(name: str, job: StudyJob, task: Task) -> str:
    """SHA-256 of all that the numbers of a study depend on."""
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
