"""The report on a run: what it says is what the stages found, and only what was written is said to be."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

from tests.conftest import Small
from tests.pipeline.samples import few, job_of
from tna_onnx.pipeline.recalibrate import recalibrate
from tna_onnx.pipeline.settings import Settings
from tna_onnx.progress import silent
from tna_onnx.results.gates import GateMissed, Gates
from tna_onnx.results.report import Report


def report_of(small: Small, model: Any = None, **fields: Any) -> Report:
    return recalibrate(job_of(small, model, few(small.calib), **fields), silent)


@pytest.fixture(scope="module")
def in_memory(small: Small) -> Report:
    settings = Settings(search="sparse", angle_step=40.0, ensemble_size=2, adaptive=False, map="isotonic", bins=10)
    return report_of(small, onnx.load(small.model), settings=settings)


def test_the_head_and_what_was_searched(in_memory: Report) -> None:
    assert (in_memory.head, in_memory.classes, in_memory.features) == ("head", 5, 32)
    assert (in_memory.search, in_memory.map, in_memory.folded, in_memory.objective) == (
        "sparse",
        "isotonic",
        False,
        "nll",
    )
    assert [point.angle for point in in_memory.curve][:3] == [0, 40, 80]  # the grid; then the angles near its best
    assert in_memory.angle in {point.angle for point in in_memory.curve}


def test_changes_are_the_differences_of_the_two_graphs(in_memory: Report, small: Small) -> None:
    old, new = onnx.load(small.model).graph, in_memory.recalibrated.graph
    before = {tensor.name: tensor for tensor in old.initializer}
    after = {tensor.name: tensor for tensor in new.initializer}
    changes = in_memory.changes
    assert changes is not None
    assert changes.tensors == tuple(sorted(name for name in before if before[name] != after[name]))
    assert changes.added == tuple(sorted(set(after) - set(before)))
    assert changes.nodes == tuple(sorted({node.name for node in new.node} - {node.name for node in old.node}))
    assert changes.target == ""


def test_a_missed_gate_holds_the_model_back_in_memory_too(small: Small) -> None:
    with pytest.raises(GateMissed) as caught:
        report_of(small, onnx.load(small.model), gates=Gates(max_nll=1e-6))
    report = caught.value.result
    assert (report.output, report.recalibrated) == ("", None)
    assert len(report.missed) == 1
    assert "--max-nll 1e-06 missed" in report.missed[0]
