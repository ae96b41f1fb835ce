"""What the inputs of a model are, as text."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import helper

from tests.graph.samples import Builder
from tna_onnx.graph.head import find_heads
from tna_onnx.graph.load import tensor_types


def test_dimensions_without_a_name_and_other_types(tmp_path: Path) -> None:
    b = Builder()
    b.inputs.append(helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [1, None, 3]))
    b.inputs.append(helper.make_tensor_sequence_value_info("list", onnx.TensorProto.FLOAT, None))
    b.linear("y")
    model = b.sample(bias_scale=1.0).write(tmp_path)
    assert tensor_types(model) == {"x": "float32 (N, 6)", "ids": "int64 (1, ?, 3)", "list": "sequence"}
    assert find_heads(model)[0]
