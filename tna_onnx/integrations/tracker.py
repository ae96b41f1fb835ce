"""What a tracker of experiments has to offer, and how a report goes into one.

MLflow has `--mlflow` and is not one of these: it takes many values in one request.
"""

from __future__ import annotations

from typing import Protocol

from tna_onnx.render.logged import metrics_of, parameters_of, tags_of
from tna_onnx.results.report import Report

__all__ = ["Tracker", "log_to"]


class Tracker(Protocol):
    """A run that is open."""

    def settings(self, values: dict[str, str]) -> None:
        """Keep parameters and tags, once."""

    def metric(self, name: str, value: float, step: int) -> None:
        """Keep a number; those of the search have a step for each candidate."""


def log_to(tracker: Tracker, report: Report) -> None:
    """Give a report to a tracker; names are those of MLflow's runs."""
    tracker.settings({**dict(parameters_of(report)), **tags_of(report)})
    # one step after the other: trackers expect steps that rise
    for name, value, step in sorted(metrics_of(report), key=lambda entry: entry[2]):
        tracker.metric(name, value, step)
