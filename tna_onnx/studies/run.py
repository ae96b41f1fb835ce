"""The run of `study`: open the model, collect features once, compute one study after the other, and write each.

A CSV cell that begins with =, +, -, @ or a control character gets an apostrophe, so that it cannot act as a formula.
"""

import csv
import functools
import importlib
import io
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from tna_onnx.engine.placement import computing
from tna_onnx.errors import UsageError, writing
from tna_onnx.files import write_file
from tna_onnx.graph.readout import require_one_prediction
from tna_onnx.pipeline.job import Job, ModelJob
from tna_onnx.pipeline.opening import open_task
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.writing import versions
from tna_onnx.progress import Progress
from tna_onnx.results.as_json import to_json
from tna_onnx.results.study import Cell, Found, Studies, Study
from tna_onnx.studies.recalibrations import StudyData, data_of_task
from tna_onnx.studies.settings import EXPERIMENTS, StudySettings

_log = logging.getLogger("tna_onnx")


@dataclass(frozen=True, eq=False)
class StudyJob(ModelJob):
    """The request for a run of studies; held-out data are scored."""

    only: tuple[str, ...] = ()  # names of studies; empty for all
    settings: StudySettings = field(default_factory=StudySettings)  # of the studies
    folder: Path | None = None  # of the results; None to keep them in memory
    cache: str | Path | None = None  # folder of feature stores

    @property
    def names(self) -> tuple[str, ...]:
        """Studies in their order."""
        for name in self.only:
            if name not in EXPERIMENTS:
                raise UsageError(f"study '{name}' is not known; expected {', '.join(EXPERIMENTS)}")
        return tuple(name for name in EXPERIMENTS if not self.only or name in self.only)


def run_studies(job: StudyJob, progress: Progress) -> Studies:
    """Compute the requested studies."""
    _ = job.names  # refused before anything is opened
    # as `calibrate` would open them for a search; nothing is written
    settings = Settings(search="sparse", map="none", bins=job.settings.bins, tilt_bias=job.settings.tilt_bias)
    request = {entry.name: getattr(job, entry.name) for entry in fields(ModelJob)}
    task = open_task(Job(**{**request, "dry_run": True}, settings=settings, cache=job.cache), progress)
    require_one_prediction(task.model, task.readout, "studies are of models with one prediction each")
    data = data_of_task(task)
    with computing():
        studies = tuple(_studies(job, data, progress))
    assert task.held_out is not None  # noqa: S101 - `StudyJob` has held-out data
    return Studies(
        model=task.model.name,
        model_sha256=task.model.sha256,
        calibration=task.source.describe(),
        held_out=task.held_out.source.describe(),
        samples=(len(data.calibration), len(data.held_out)),
        features=data.weight.shape[1],
        classes=data.weight.shape[0],
        settings=asdict(job.settings),
        versions=versions(),
        studies=studies,
        notes=task.data_notes,
        folder=str(job.folder or ""),
    )


def _studies(job: StudyJob, data: StudyData, progress: Progress) -> Iterator[Study]:
    """Compute the requested studies, and write each as soon as it is made: what an interruption leaves is whole."""
    for name in job.names:
        start = time.perf_counter()
        study = made(name, data, job.settings, functools.partial(progress, name))
        _log.info("study %s: %.1f seconds", name, time.perf_counter() - start)
        if job.folder is not None:
            write_study(job.folder, study)
        yield study


def made(name: str, data: StudyData, settings: StudySettings, progress: Callable[[int, int], None]) -> Study:
    """Make a study; `progress` is called with how much is done, and of how much."""
    row = EXPERIMENTS[name]
    make = getattr(importlib.import_module(f"tna_onnx.studies.{row.module}"), name)
    findings: Found = make(data, settings, progress)
    table = (tuple(findings.columns), tuple(findings.rows), tuple(findings.charts))
    return Study(name, row.title, row.element, findings.sentence, *table, findings.notes, findings.footnotes)


_ACTING = ("=", "+", "-", "@", "\t", "\r", "\n")


def write_study(folder: Path, study: Study) -> None:
    """Write a study's files."""
    texts = {"csv": to_csv(study), "json": to_json(study)}
    for ending, text in texts.items():
        path = folder / f"{study.name}.{ending}"
        with writing(path):
            folder.mkdir(parents=True, exist_ok=True)
            write_file(path, text.encode())


def to_csv(study: Study) -> str:
    """Return the rows as CSV with a head of column names."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rows: list[list[Any]] = [[column.name for column in study.columns], *([*map(_csv_cell, row)] for row in study.rows)]
    if study.footnotes:
        rows[0].append("footnotes")
        for k, cells in enumerate(rows[1:]):
            cells.append(" ".join(footnote.text for footnote in study.footnotes if k in footnote.rows))
    writer.writerows(rows)
    return text.getvalue()


def _csv_cell(value: Cell) -> str | int | float:
    if value is None:
        return ""
    if isinstance(value, str) and value.startswith(_ACTING):
        return f"'{value}"
    return value
