"""Where a constant lies in the file, and how it gets from there to the node that uses it.

A head's weight may pass Identity, Cast, Transpose and Reshape between its initializer (or Constant) and the Gemm. Each
step can be undone, so `Stored.layout` takes a new value back to the layout of the stored tensor:

    read = step_k(... step_1(stored))          stored = step_1^-1(... step_k^-1(read))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tna_onnx.graph.load import Model, type_name

__all__ = ["FLOAT_TYPES", "Refused", "Stored", "resolve"]

FLOAT_TYPES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.DOUBLE: "float64",
}
"""Element types that a head may have, with NumPy's names."""


class Refused(Exception):
    """Why a constant or a node is not what was looked for; the text is shown to the user."""


@dataclass(frozen=True)
class Transpose:
    """Permutation of axes."""

    perm: tuple[int, ...]

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        """Do what the node does."""
        return np.transpose(array, self.perm)

    def undo(self, array: NDArray[Any]) -> NDArray[Any]:
        """Take the permutation back."""
        return np.transpose(array, np.argsort(self.perm))


@dataclass(frozen=True)
class Reshape:
    """Change of shape, elements in the same order."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        """Do what the node does."""
        return array.reshape(self.after)

    def undo(self, array: NDArray[Any]) -> NDArray[Any]:
        """Give the array its former shape."""
        return array.reshape(self.before)


@dataclass(frozen=True)
class Cast:
    """Change of the float type."""

    to: str

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        """Do what the node does."""
        return array.astype(self.to)

    def undo(self, array: NDArray[Any]) -> NDArray[Any]:
        """Leave the dtype to `Stored.layout`, which ends in the stored one."""
        return array


@dataclass(frozen=True, eq=False)
class Stored:
    """A constant as stored, and the steps to the value that a node reads.

    Attributes:
        name: initializer, or output of a Constant node.
        tensor: the stored tensor.
        value: the value as read, after the steps.
        steps: from the stored tensor to the value.
        read_as: name of the tensor that the node reads.
        reader: index of that node.
        shared: someone outside this path reads the stored tensor, or one on the path, too.
    """

    name: str
    tensor: onnx.TensorProto
    value: NDArray[Any]
    steps: tuple[Transpose | Reshape | Cast, ...]
    read_as: str
    reader: int
    shared: bool

    def layout(self, value: NDArray[Any]) -> NDArray[Any]:
        """Return a new value, given as read, in the stored layout and dtype."""
        for step in reversed(self.steps):
            value = step.undo(value)
        return np.asarray(value, FLOAT_TYPES[self.tensor.data_type], order="C")  # ascontiguousarray: () -> (1,)


def resolve(model: Model, tensor: str, reader: int) -> Stored:
    """Follow a tensor that node number `reader` reads back to the constant behind it.

    Raises:
        Refused: it is computed from data, of a type that cannot be replaced, or behind a node that cannot be undone.
    """
    name, value, steps, shared = _follow(model, tensor, reader)
    stored = model.constant_tensor(name)
    assert stored is not None  # noqa: S101 - _follow ended there
    return Stored(name, stored, value, steps, tensor, reader, shared)


def _follow(
    model: Model, tensor: str, reader: int
) -> tuple[str, NDArray[Any], tuple[Transpose | Reshape | Cast, ...], bool]:
    """Return (name of the constant, value as read, steps, shared)."""
    node, constant = model.producer(tensor), model.constant_tensor(tensor)
    shared = model.uses.get(tensor, 0) > 1
    if constant is not None:
        if constant.data_type not in FLOAT_TYPES:
            raise Refused(
                f"constant '{tensor}' has element type {type_name(constant.data_type)}; expected "
                f"{', '.join(FLOAT_TYPES.values())}"
            )
        return tensor, model.array(constant), (), shared
    if node is None:
        where = "a graph input" if tensor in model.inputs else "not a dense initializer"
        raise Refused(f"'{tensor}' is {where}, not a constant")
    if node.op_type == "DequantizeLinear":
        raise Refused(
            f"'{tensor}' is a quantised constant (DequantizeLinear); calibrate the float model, then quantise"
        )
    if node.op_type not in ("Identity", "Cast", "Transpose", "Reshape") or node.domain not in ("", "ai.onnx"):
        raise Refused(f"'{tensor}' is computed by a {node.op_type} node, not a constant")
    index = model.producers[tensor]
    if index >= reader:
        raise Refused(f"the nodes are not in topological order: '{tensor}' is read before it is computed")
    if not node.input:
        raise Refused(f"'{tensor}' is computed by a {node.op_type} node with 0 inputs")
    name, value, steps, inner_shared = _follow(model, node.input[0], index)
    try:
        step = _step(model, node, value)
        if step is not None:
            value, steps = step.apply(value), (*steps, step)
    except (IndexError, ValueError) as error:
        raise Refused(f"{node.op_type} does not fit the constant '{node.input[0]}' of shape {value.shape}") from error
    return name, value, steps, inner_shared or shared


def _step(model: Model, node: onnx.NodeProto, value: NDArray[Any]) -> Transpose | Reshape | Cast | None:
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "Transpose":
        return Transpose(tuple(attributes.get("perm", range(value.ndim)[::-1])))
    if node.op_type == "Reshape":
        shape = attributes.get("shape")  # opset < 5
        if shape is None:
            target = model.constant_tensor(node.input[1])
            if target is None:
                raise Refused(f"Reshape of the constant '{node.input[0]}' takes a shape that is not a constant")
            shape = model.array(target).tolist()
        kept = [value.shape[k] if d == 0 else d for k, d in enumerate(shape)]
        return Reshape(value.shape, value.reshape(kept).shape)
    if node.op_type == "Cast":
        if attributes.get("to") not in FLOAT_TYPES:
            raise Refused(f"constant '{node.input[0]}' is cast to a type that is not float")
        return Cast(FLOAT_TYPES[attributes["to"]])
    return None
