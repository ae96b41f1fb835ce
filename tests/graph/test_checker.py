"""The ONNX checker, on files and on models in memory."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.graph.samples import CASES
from tna_onnx.graph.load import checker_complaint


@pytest.mark.parametrize("in_memory", [False, True])
def test_what_it_says(in_memory: bool, tmp_path: Path) -> None:
    model = CASES["Softmax opset 17 axis 1"]().write(tmp_path)
    assert checker_complaint(model.proto if in_memory else model.path) == ""
    broken = onnx.ModelProto()
    broken.CopyFrom(model.proto)
    broken.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(broken, tmp_path / "broken.onnx")
    assert "NoSuchOperator" in checker_complaint(broken if in_memory else tmp_path / "broken.onnx")


def test_external_data_are_found_beside_the_file(tmp_path: Path) -> None:
    model = CASES["external data"]().write(tmp_path)
    assert checker_complaint(model.path) == ""
