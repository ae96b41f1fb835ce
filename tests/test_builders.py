"""The builder of small models makes what ONNX accepts."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tests.builders import small_model, tensor_info


def test_a_model_from_nodes_and_arrays() -> None:
    weight = np.ones((3, 2), np.float32)
    proto = small_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        inputs=[tensor_info("x", ["N", 3])],
        outputs=[tensor_info("y", ["N", 2])],
        tensors={"w": weight},
        domains={"ai.onnx.ml": 3},
        producer_name="here",
        metadata={"team": "tests"},
    )
    onnx.checker.check_model(proto, full_check=True)
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(proto.graph.initializer[0]), weight)
    assert {entry.domain: entry.version for entry in proto.opset_import} == {"": 17, "ai.onnx.ml": 3}
    assert (proto.ir_version, proto.producer_name) == (8, "here")
    assert [(entry.key, entry.value) for entry in proto.metadata_props] == [("team", "tests")]


def test_an_input_of_any_shape_and_another_type() -> None:
    declared = tensor_info("ids", None, np.int64).type.tensor_type
    assert declared.elem_type == onnx.TensorProto.INT64
    assert not declared.HasField("shape")
