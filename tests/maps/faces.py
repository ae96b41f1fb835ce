"""The faces of a map's one formula: NumPy, torch, and the ONNX nodes in two runtimes."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from tests.builders import small_model, tensor_info
from tests.support import outputs_of, pairwise
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
    (found,) = outputs_of(model, logits).values()
    return np.asarray(found)


def on_reference_evaluator(fitted: CalibrationMap, logits: Array) -> Array:
    model = onnx_model(fitted, logits.dtype.name, logits.shape[1])
    return np.asarray(ReferenceEvaluator(model).run(None, {"logits": logits})[0])


FACES = [on_numpy, on_torch, on_onnxruntime, on_reference_evaluator]
# Clip takes bounds as inputs from opset 11 on, reductions axes from 18 on; older ones know float32 alone.
OPSETS = [partial(on_onnxruntime, opset=opset) for opset in (9, 11, 18)]


def with_faces(*choices: Iterable[Any], dtypes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return combinations of one of each choice, a dtype and a face, in which every two values occur together."""
    return [*pairwise(*choices, dtypes, FACES), *pairwise(*choices, [np.float32], OPSETS)]
