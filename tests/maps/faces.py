"""The faces of a map's one formula: NumPy, torch, and the ONNX nodes in two runtimes."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from tests.builders import small_model, tensor_info
from tna_onnx.graph.nodes import NodeOps
from tna_onnx.maps.base import CalibrationMap, apply_map

Array = NDArray[Any]


def onnx_model(fitted: CalibrationMap, dtype: str, classes: int, opset: int = 17) -> onnx.ModelProto:
    ops = NodeOps(dtype, opset)
    result = fitted.forward(ops, "logits")
    before, after = (tensor_info(name, ["N", classes], dtype) for name in ("logits", result))
    model = small_model(ops.nodes, [before], [after], ops.initializers, opset=opset)
    onnx.checker.check_model(model, full_check=True)
    return model


def on_numpy(fitted: CalibrationMap, logits: Array) -> Array:
    return np.asarray(apply_map(fitted, logits))


def on_torch(fitted: CalibrationMap, logits: Array) -> Array:
    torch = pytest.importorskip("torch", reason="torch is in the extra 'gpu'")
    return np.asarray(apply_map(fitted, torch.from_numpy(logits)).numpy())


def on_onnxruntime(fitted: CalibrationMap, logits: Array, opset: int = 17) -> Array:
    model = onnx_model(fitted, logits.dtype.name, logits.shape[1], opset)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"logits": logits})[0])


def on_reference_evaluator(fitted: CalibrationMap, logits: Array) -> Array:
    model = onnx_model(fitted, logits.dtype.name, logits.shape[1])
    return np.asarray(ReferenceEvaluator(model).run(None, {"logits": logits})[0])
