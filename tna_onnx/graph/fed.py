"""The new constants of a rewritten model as inputs: one session then serves all weights."""

from __future__ import annotations

from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from tna_onnx.graph.rewrite import Rewritten

__all__ = ["new_floats"]


def new_floats(written: Rewritten) -> dict[str, NDArray[Any]]:
    """Return the new initializers by name, to be fed to a session that has them as inputs.

    None where it has to hold them: kernels for integers want constants, and NumPy has no bfloat16.
    """
    new = written.changed | written.added
    tensors = [tensor for tensor in written.proto.graph.initializer if tensor.name in new]
    fed = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
    if written.constants or len(tensors) < len(new) or any(tensor.data_type not in fed for tensor in tensors):
        return {}
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in tensors}
