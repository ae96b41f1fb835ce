"""When a result was made, from which data, and which inputs its file has: what a page says beside the numbers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime, timezone

from tna_onnx.calibration.task import Task
from tna_onnx.results.details import Made, Port

__all__ = ["Started", "made_by"]


@dataclass(frozen=True)
class Started:
    """The moment in which a run began; `monotonic` for durations, in seconds."""

    date: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    monotonic: float = field(default_factory=time.monotonic)


def made_by(task: Task, started: Started) -> Made:
    """Describe a run that ends now.

    Raises:
        DataError: a file of the data cannot be read again.
    """
    held_out = ""
    if task.held_out is not None:
        held_out = task.held_out.source.digest()
    return Made(
        # a page is read by people: fractions of a second say nothing
        date=started.date.isoformat(timespec="seconds"),
        seconds=time.monotonic() - started.monotonic,
        calibration_sha256=task.source.digest(),
        held_out_sha256=held_out,
        inputs=tuple(Port(each.name, each.shape, each.dtype.name) for each in task.opened.inputs),
        output=task.class_output.name,
        output_kind=task.class_output.kind,
        mapped=task.class_output.mapped,
    )
