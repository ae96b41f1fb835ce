"""A report as a run of Weights & Biases: settings, metrics, the search as curves, the model as an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import wandb

from tna_onnx.integrations.tracker import log_to
from tna_onnx.results.report import Report

__all__ = ["log_report"]


def log_report(report: Report, **words: Any) -> str:
    """Log a report as a run, and return the run's id.

    Args:
        report: of a calibration; its model is logged if a file was written.
        **words: of `wandb.init`, such as project, name and mode.

    Raises:
        wandb.errors.Error: the run cannot be opened.
    """
    with wandb.init(**words) as opened:
        run = _Run(opened)
        log_to(run, report)
        run.flush()
        if report.output and Path(report.output).is_file():
            opened.log_artifact(report.output, name="model", type="model")
        return str(opened.id)


class _Run:
    def __init__(self, opened: Any) -> None:
        self._opened = opened
        self._step = 0
        self._values: dict[str, float] = {}

    def settings(self, values: dict[str, str]) -> None:
        self._opened.config.update(values)

    def metric(self, name: str, value: float, step: int) -> None:
        # all values of a step go in one call
        if step != self._step:
            self.flush()
            self._step = step
        self._values[name] = value

    def flush(self) -> None:
        """Send the values of the current step."""
        self._opened.log(self._values, step=self._step)
        self._values = {}
