"""The choice of the first column of a matrix, as nodes spell it:

x[:, 0]         Gather over axis 1;  Transpose, and Gather over axis 0
x[:, :1]        Slice
"""

from __future__ import annotations

import onnx

from tna_onnx.graph.linear import is_matrix_transpose
from tna_onnx.graph.load import Model

__all__ = ["first_column_of"]

_TO_THE_END = 2**31 - 1  # the largest end of a slice that exporters write in 32 bits


def first_column_of(model: Model, node: onnx.NodeProto) -> str:
    """Return the matrix whose first column, or whose only one, a Gather or Slice takes; empty if it does not."""
    if node.op_type == "Slice":
        return _sliced(model, node)
    index = model.constant_tensor(node.input[1]) if len(node.input) > 1 else None
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    if index is None or model.array(index).reshape(-1).tolist() not in ([0], [-1]):
        return ""
    before = model.producer(node.input[0])
    if axis == 0 and before is not None and is_matrix_transpose(before):  # as JAX writes it
        return str(before.input[0])
    return str(node.input[0]) if axis in (1, -1) else ""


def _sliced(model: Model, node: onnx.NodeProto) -> str:
    given = {a.name: list(a.ints) for a in node.attribute}  # opset < 10
    for name, tensor in zip(("starts", "ends", "axes", "steps"), node.input[1:], strict=False):
        constant = model.constant_tensor(tensor)
        if constant is None:
            return ""
        given[name] = model.array(constant).reshape(-1).tolist()
    starts = given.get("starts", [])
    ends = given.get("ends", [])
    axes = given.get("axes", list(range(len(starts))))
    if any(starts) or any(step != 1 for step in given.get("steps", [])) or not len(starts) == len(ends) == len(axes):
        return ""
    whole = all(end >= _TO_THE_END for axis, end in zip(axes, ends, strict=True) if axis == 0)
    first = all(end >= 1 for axis, end in zip(axes, ends, strict=True) if axis != 0)
    return str(node.input[0]) if whole and first and set(axes) <= {0, 1, -1} else ""
