"""Search and fits over the workers of an engine, where these find the features by themselves."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import replace

from tna_onnx.calibration.task import Task
from tna_onnx.engine.choice import staying
from tna_onnx.engine.placement import Host
from tna_onnx.extraction.shared import shared_rows
from tna_onnx.graph.readout import Head
from tna_onnx.numerics.threads import one_thread
from tna_onnx.runtime import allowed_cores

__all__ = ["spread_over"]

_log = logging.getLogger("tna_onnx")


@contextlib.contextmanager
def spread_over(engine: str, task: Task) -> Iterator[Task]:
    """Give the task with workers for a block; the same task where there is nothing that they could do.

    In it, linear algebra has one thread but for large products, here and at the workers.

    Args:
        engine: as the command line has it.
        task: opened, its features in place.

    Raises:
        DeviceError: the workers cannot be reached.
    """
    reason = "" if engine == "local" else _reason_to_stay(task)
    if reason:
        _log.info("engine: search and fits run in this process: %s", reason)
    with one_thread(allowed_cores()):
        if engine == "local" or reason:
            yield task
            return
        with staying(engine) as workers:
            _log.info("engine: sums over all samples run on %s, up to %d workers", engine, workers.count)
            yield replace(task, workers=workers)


def _reason_to_stay(task: Task) -> str:
    """Say why this process computes all sums itself; empty where it need not."""
    table = task.calibration.table
    head = task.calibration.samples.readout
    if not isinstance(head, Head):
        return "there is no linear head to multiply features with"
    if task.probed.tail is not None:
        return "the model's own nodes compute its logits"
    if not isinstance(task.placement, Host):
        return f"they are computed by {task.placement.name}"
    if shared_rows(table) is None:
        return "the features are in no store that workers could read as they are"
    if len(table.blocks(head.n_classes)) < 2:
        return "all features are one chunk"
    return ""
