"""Where `calibrate` writes, and which files of its run that must not harm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tna_onnx.calibration.job import Job
from tna_onnx.errors import UsageError
from tna_onnx.graph.load import Model
from tna_onnx.graph.save import check_output

__all__ = ["target_of"]


def target_of(job: Job, model: Model) -> Path | None:
    """Return the path to write, and refuse one that would harm a file of the run.

    Raises:
        UsageError: such a path.
    """
    if job.output is not None:
        target = Path(job.output)
    elif model.path is not None:
        target = model.path.with_suffix(".tna.onnx")
    else:
        return None
    # a dry run beside a model in a read-only folder writes nothing there
    if job.output is not None or not job.dry_run:
        check_output(model, target, overwrite=job.overwrite)
    # writing the model over its own data would lose them
    for path in _data_files(job):
        if target.exists() and path.exists() and target.samefile(path):
            raise UsageError(f"{target}: output is the data file; choose another --output")
    return target


def _data_files(job: Job) -> Iterator[Path]:
    for data in (job.calib, job.held_out):
        if data is not None:
            yield from (Path(each) for each in (data.samples, data.labels) if isinstance(each, (str, Path)))
