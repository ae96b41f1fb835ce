"""The run of `study`: open the model, collect features once, compute one study after the other, and write each.

A study that the folder already holds, with the same digest, is read instead of computed.

A study is written as CSV and JSON. Names and sentences must not act as formulas in a spreadsheet: a CSV cell that
begins with =, +, -, @ or a control character gets an apostrophe before it. Numbers have all digits, in stored units.
"""

import csv
import functools
import hashlib
import io
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

from tna_onnx._version import __version__
from tna_onnx.errors import UsageError, writing
from tna_onnx.files import open_regular, write_file
from tna_onnx.graph.outputs import require_one_prediction
from tna_onnx.pipeline.job import Job, ModelJob, Task, with_host
from tna_onnx.pipeline.opening import open_task
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.writing import versions
from tna_onnx.progress import Progress
from tna_onnx.results.as_json import from_json, to_json
from tna_onnx.results.study import Cell, Studies, Study
from tna_onnx.studies import curves, geometry, main_table
from tna_onnx.studies.recalibrations import StudyData, data_of_task
from tna_onnx.studies.settings import STUDIES, StudySettings

_log = logging.getLogger("tna_onnx")

# Raised when a study's numbers or columns change: older files are then not taken for new ones.
_FORM = 6

Experiment: TypeAlias = Callable[[StudyData, StudySettings, Callable[[int, int], None]], Study]
"""Makes one study; the last argument is called with how much is done, and of how much."""

EXPERIMENTS: dict[str, Experiment] = {
    "table": main_table.table,
    "rotations": geometry.rotations,
    "angles": geometry.angles,
    "members": curves.members,
    "angle": curves.angle,
    "samples": curves.samples,
    "dimension": curves.dimension,
}
"""Every study of `STUDIES` and what makes it."""


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
            if name not in STUDIES:
                raise UsageError(f"study '{name}' is not known; expected {', '.join(STUDIES)}")
        return tuple(name for name in STUDIES if not self.only or name in self.only)


def run_studies(job: StudyJob, progress: Progress) -> Studies:
    """Compute the requested studies."""
    names = job.names  # refused before anything is opened
    task = open_task(_calibration(job), progress)
    require_one_prediction(task.model, task.readout, "studies are of models with one prediction each")
    return with_host(task, lambda placed: _run(names, job, placed, progress))


def _run(names: Sequence[str], job: StudyJob, task: Task, progress: Progress) -> Studies:
    data = data_of_task(task)
    assert task.held_out is not None  # noqa: S101 - `StudyJob` has held-out data
    studies = tuple(_studies(names, job, task, data, progress))
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
        folder="" if job.folder is None else str(job.folder),
    )


def _studies(names: Sequence[str], job: StudyJob, task: Task, data: StudyData, progress: Progress) -> Iterator[Study]:
    """Yield the requested studies and those that the folder already holds, since one page shows all of them."""
    for name in STUDIES:
        earlier = _earlier(name, job, task)
        if earlier is not None:
            _log.info("study %s: taken from %s", name, job.folder)
            yield earlier
        elif name in names:
            yield _computed(name, job, task, data, progress)


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
    request = {entry.name: getattr(job, entry.name) for entry in fields(ModelJob)}
    return Job(**{**request, "dry_run": True}, settings=settings, cache=job.cache)


def _computed(name: str, job: StudyJob, task: Task, data: StudyData, progress: Progress) -> Study:
    """Compute a study, and write it."""
    start = time.perf_counter()
    study = replace(
        EXPERIMENTS[name](data, job.settings, functools.partial(progress, name)), digest=_digest(name, job, task)
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
        asdict(job.settings),
        task.model.sha256,
        str(task.where),
        task.source.digest(),
        task.source.recipe(),
        task.held_out.source.digest(),
        task.held_out.source.recipe(),
        task.computed_on,
    )
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


_ACTING = ("=", "+", "-", "@", "\t", "\r", "\n")

# A study's JSON is a few megabytes at most; what is larger is none.
_MAX_BYTES = 2**28


def write_study(folder: Path, study: Study) -> None:
    """Write a study's files; the JSON comes last, because a later run takes it for complete."""
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


def read_study(folder: Path, name: str) -> Study | None:
    """Read a study from a folder; return None if there is none that can be read."""
    try:
        with open_regular(folder / f"{name}.json") as stream:
            study = from_json(Study, json.loads(stream.read(_MAX_BYTES)))
    # whatever is there, this version did not write it: the study is computed again
    except (OSError, ValueError, RecursionError):
        return None
    if any(len(row) != len(study.columns) for row in study.rows):
        return None
    return study
