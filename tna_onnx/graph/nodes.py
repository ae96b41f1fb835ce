"""The word list of map formulas, written as ONNX nodes.

The other face of `numerics.ops`: each word appends one standard node and returns the name of its result. Everything is
2-D in the dtype of the logits; constants become initializers of shape [] or [C], or Constant nodes in old files. Names
share one prefix, so that users can leave the block out of a quantisation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tna_onnx.errors import UnsupportedModel

__all__ = ["MIN_IR_OF_INITIALIZERS", "PREFIX", "NodeOps", "can_append", "constant_node", "insert_nodes", "too_old"]

PREFIX = "tna_onnx"


MIN_IR_OF_INITIALIZERS = 4
"""From this IR version on an initializer need not be a graph input."""


def constant_node(tensor: onnx.TensorProto) -> onnx.NodeProto:
    """Return a node that makes a tensor, for files in which an initializer would have to be a graph input."""
    return helper.make_node("Constant", [], [tensor.name], name=tensor.name, value=tensor)


def insert_nodes(graph: onnx.GraphProto, at: int, nodes: Iterable[onnx.NodeProto]) -> None:
    """Put nodes in front of node number `at`."""
    # Copies, as the nodes themselves are deleted; protobuf lists cannot be inserted into.
    following = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node[at:]]
    del graph.node[at:]
    graph.node.extend([*nodes, *following])


def can_append(dtype: str, opset: int) -> bool:
    """Whether a model's opset has the operators that an appended map needs."""
    return opset >= _min_opset(dtype)


def _min_opset(dtype: str) -> int:
    if dtype == "float64":
        return 12  # Clip knows float64 from 12 on
    return 7  # Mul and Add broadcast from 7 on


def too_old(dtype: str, opset: int) -> str:
    """Say why a model's opset has no place for an appended map, and what to do."""
    version = f"opset {opset}"
    if not opset:
        version = "standard nodes without an opset for them"
    return (
        f"the model has {version}, too old for an appended map in {dtype}; convert it to opset {_min_opset(dtype)} or "
        "newer"
    )


class NodeOps:
    """The words as nodes; collects what they wrote.

    Args:
        dtype: NumPy name of the logits' dtype.
        opset: the model's opset; Clip takes its bounds as attributes before 11, reductions their axes before 18.
        ir_version: of the model; before 4 an initializer has to be an input too, so constants become nodes.
        prefix: how names begin.

    Raises:
        UnsupportedModel: the opset is too old.
    """

    def __init__(self, dtype: str, opset: int, ir_version: int = MIN_IR_OF_INITIALIZERS, prefix: str = PREFIX) -> None:
        if not can_append(dtype, opset):
            raise UnsupportedModel(too_old(dtype, opset))
        self._dtype = np.dtype(dtype)
        self._opset = opset
        self._prefix = prefix
        self._as_nodes = ir_version < MIN_IR_OF_INITIALIZERS
        self._stored = 0
        self._axes = ""
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    @property
    def tiny(self) -> float:
        """Smallest normal number of the dtype."""
        return float(np.finfo(self._dtype).tiny)

    @property
    def names(self) -> set[str]:
        """Names of all that was written."""
        nodes = {name for node in self.nodes for name in (node.name, *node.output)}
        return nodes | {tensor.name for tensor in self.initializers}

    def const(self, value: Any) -> str:
        """Write a constant."""
        return self._store(np.asarray(value, self._dtype), f"const_{self._stored}")

    def in_float(self, value: Any) -> str:
        """Write a constant that is no initializer of the node which reads it.

        ONNX Runtime's dynamic quantisation leaves a MatMul of such a one in float, and its sessions fold the Identity.
        """
        return self._node("Identity", [self.const(value)])

    def add(self, a: str, b: str) -> str:
        """Write Add."""
        return self._node("Add", [a, b])

    def mul(self, a: str, b: str) -> str:
        """Write Mul."""
        return self._node("Mul", [a, b])

    def div(self, a: str, b: str) -> str:
        """Write Div."""
        return self._node("Div", [a, b])

    def matmul(self, a: str, b: str) -> str:
        """Write MatMul."""
        return self._node("MatMul", [a, b])

    def log(self, a: str) -> str:
        """Write Log."""
        return self._node("Log", [a])

    def clip(self, a: str, low: float, high: float) -> str:
        """Write Clip with both bounds."""
        if self._opset < 11:  # bounds are attributes
            return self._node("Clip", [a], min=low, max=high)
        return self._node("Clip", [a, self.const(low), self.const(high)])

    def softmax(self, a: str) -> str:
        """Write Softmax over axis 1."""
        return self._node("Softmax", [a], axis=1)

    def sigmoid(self, a: str) -> str:
        """Write Sigmoid; not a word of the maps, but what ends those behind probabilities of labels."""
        return self._node("Sigmoid", [a])

    def mean(self, a: str) -> str:
        """Write ReduceMean over axis 1."""
        return self._reduced("ReduceMean", a)

    def min(self, a: str) -> str:
        """Write ReduceMin over axis 1."""
        return self._reduced("ReduceMin", a)

    def sum_square(self, a: str) -> str:
        """Write ReduceSumSquare over axis 1."""
        return self._reduced("ReduceSumSquare", a)

    def reshape(self, a: str, shape: list[int]) -> str:
        """Write Reshape; not a word of the maps, but what a binary head with logits of shape (N,) needs around them."""
        return self._node("Reshape", [a, self._store(np.array(shape, np.int64), f"shape_{self._stored}")])

    def reshape_as(self, a: str, like: str) -> str:
        """Write Reshape to the shape that another tensor has when the model runs."""
        return self._node("Reshape", [a, self._node("Shape", [like])])

    def transpose(self, a: str, axes: list[int]) -> str:
        """Write Transpose."""
        return self._node("Transpose", [a], perm=axes)

    def _reduced(self, op_type: str, a: str) -> str:
        if self._opset < 18:  # axes are an attribute
            return self._node(op_type, [a], axes=[1], keepdims=1)
        # All reductions of a map share one tensor of axes.
        self._axes = self._axes or self._store(np.array([1], np.int64), "axes")
        return self._node(op_type, [a, self._axes], keepdims=1)

    def _store(self, value: NDArray[Any], name: str) -> str:
        tensor = numpy_helper.from_array(value, f"{self._prefix}/{name}")
        self._stored += 1
        if self._as_nodes:
            self.nodes.append(constant_node(tensor))
        else:
            self.initializers.append(tensor)
        return str(tensor.name)

    def _node(self, op_type: str, inputs: list[str], **attributes: Any) -> str:
        name = f"{self._prefix}/{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"
