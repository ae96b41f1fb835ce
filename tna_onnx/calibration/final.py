"""A file that was made of the recalibrated one, by adding decisions: checked again, and the report is about it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from tna_onnx.calibration.task import Collected, Task
from tna_onnx.calibration.writing import Shipped
from tna_onnx.calibration.written import check_runs
from tna_onnx.data.digest import file_sha256
from tna_onnx.errors import CheckFailed
from tna_onnx.graph.difference import Difference, differences
from tna_onnx.graph.integers import opened_like
from tna_onnx.graph.limits import NO_MODEL_LIMITS
from tna_onnx.graph.load import load_model
from tna_onnx.results.report import Changes, Report

__all__ = ["FinalFile", "with_digest"]


def with_digest(report: Report, path: Path) -> Report:
    """Return a report that tells the file at `path` by its digest, if it is one on a written file."""
    return dataclasses.replace(report, output_sha256=file_sha256(path).hex() if report.output else "")


@dataclass(frozen=True, eq=False)
class FinalFile:
    """What a final file is compared with.

    Attributes:
        task: what was opened.
        checked: samples of which a part is run through it.
        shipped: what the recalibration should compute for them.
    """

    task: Task
    checked: Collected
    shipped: Shipped

    def report(self, report: Report, path: Path) -> Report:
        """Return the report with differences and checks of the file at `path` in place of those before it.

        Raises:
            CheckFailed: the file differs in what nothing explains, or gives other probabilities.
        """
        task = self.task
        found = differences(task.model, opened_like(task.model, load_model(path, NO_MODEL_LIMITS)), task.readout)
        wrong = [f"{each.part} {each.name}: {each.change}" for each in found if not each.explained]
        if wrong:
            raise CheckFailed(f"verification: the written file differs from {task.model.name} in {'; '.join(wrong)}")
        verification = check_runs(task, self.checked, self.shipped, path, checker=report.verification.checker)
        details = None if report.details is None else dataclasses.replace(report.details, changes=found)
        changes = None if report.changes is None else _with_added(report.changes, found)
        changed = dataclasses.replace(report, verification=verification, details=details, changes=changes)
        return with_digest(changed, path)


def _with_added(changes: Changes, found: tuple[Difference, ...]) -> Changes:
    def names(part: str) -> set[str]:
        return {each.name for each in found if each.part == part and each.change == "added"}

    nodes = tuple(sorted({*changes.nodes} | names("node")))
    added = tuple(sorted({*changes.added} | names("tensor")))
    return dataclasses.replace(changes, nodes=nodes, added=added)
