"""A report for TensorBoard: settings as a text, metrics and the search as curves.

The light `tensorboard` package writes the events; TensorFlow is not needed.
"""

from __future__ import annotations

import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from tna_onnx.integrations.tracker import log_to
from tna_onnx.results.report import Report

__all__ = ["log_report"]


def log_report(report: Report, folder: str | Path) -> None:
    """Write a report as a run.

    Args:
        report: of a calibration.
        folder: of the run, below the one that `tensorboard --logdir` names.

    Raises:
        OSError: the folder cannot be written.
    """
    run = _Run(Path(folder))
    try:
        log_to(run, report)
    finally:
        run.writer.close()


class _Run:
    def __init__(self, folder: Path) -> None:
        self.writer = EventFileWriter(str(folder))

    def settings(self, values: dict[str, str]) -> None:
        # the plugin shows Markdown, in which a bar ends a cell and a line break a row
        cells = {name: " ".join(value.replace("|", "&#124;").splitlines()) for name, value in values.items()}
        rows = "\n".join(f"| {name} | {value} |" for name, value in cells.items())
        summary = text_pb("settings", f"| name | value |\n|---|---|\n{rows}")
        self.writer.add_event(Event(wall_time=time.time(), step=0, summary=summary))

    def metric(self, name: str, value: float, step: int) -> None:
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
        self.writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
