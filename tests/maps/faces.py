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


def onnx_model(fitted: CalibrationMap, feeds: dict[str, Array], opset: int) -> onnx.ModelProto:
    ops = NodeOps(feeds["logits"].dtype.name, opset)
    result = fitted.forward(ops, "logits", "features")
    before = [tensor_info(name, ["N", values.shape[1]], values.dtype) for name, values in feeds.items()]
    after = tensor_info(result, ["N", feeds["logits"].shape[1]], feeds["logits"].dtype)
    model = small_model(ops.nodes, before, [after], ops.initializers, opset=opset)
    onnx.checker.check_model(model, full_check=True)
    return model


def on_numpy(fitted: CalibrationMap, logits: Array, features: Array | None = None) -> Array:
    return np.asarray(apply_map(fitted, logits, features))


def on_torch(fitted: CalibrationMap, logits: Array, features: Array | None = None) -> Array:
    torch = pytest.importorskip("torch", reason="torch is in the extra 'gpu'")
    tensors = [torch.from_numpy(values) for values in (logits, features) if values is not None]
    return np.asarray(apply_map(fitted, *tensors).numpy())


def on_onnxruntime(fitted: CalibrationMap, logits: Array, features: Array | None = None, opset: int = 17) -> Array:
    feeds = _feeds(fitted, logits, features)
    (found,) = outputs_of(onnx_model(fitted, feeds, opset), feeds).values()
    return np.asarray(found)


def on_reference_evaluator(fitted: CalibrationMap, logits: Array, features: Array | None = None) -> Array:
    feeds = _feeds(fitted, logits, features)
    return np.asarray(ReferenceEvaluator(onnx_model(fitted, feeds, 17)).run(None, feeds)[0])


def _feeds(fitted: CalibrationMap, logits: Array, features: Array | None) -> dict[str, Array]:
    if features is None or not fitted.needs_features:
        return {"logits": logits}
    return {"logits": logits, "features": features}


FACES = [on_numpy, on_torch, on_onnxruntime, on_reference_evaluator]
# Clip takes bounds as inputs from opset 11 on, reductions axes from 18 on; older ones know float32 alone.
OPSETS = [partial(on_onnxruntime, opset=opset) for opset in (9, 11, 18)]


def with_faces(*choices: Iterable[Any], dtypes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return combinations of one of each choice, a dtype and a face, in which every two values occur together."""
    return [*pairwise(*choices, dtypes, FACES), *pairwise(*choices, [np.float32], OPSETS)]
