"""A graph in which single nodes are replaced by several, with every result under its old name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tna_onnx.graph.bounds import input_at
from tna_onnx.graph.load import Model

__all__ = ["Replacement", "Unknown", "Work"]

# From here on DequantizeLinear takes a scale per column.
_PER_COLUMN_OPSET = 13


class Unknown(Exception):
    """A form of an operator that is left as it is."""


@dataclass
class Replacement:
    """The replacement of one node: new nodes, new constants, and the nodes that it makes unnecessary."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)


class Work:
    """The graph that is being opened up, node by node."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.at = 0
        self._made: dict[int, Replacement] = {}
        self._opened: dict[str, str] = {}
        self._names = {*model.producers, *model.initializers, *model.inputs}

    @property
    def node(self) -> onnx.NodeProto:
        """The node that is being opened."""
        opened: onnx.NodeProto = self.model.proto.graph.node[self.at]
        return opened

    @property
    def attributes(self) -> dict[str, Any]:
        """Its attributes."""
        return {a.name: helper.get_attribute_value(a) for a in self.node.attribute}

    def input(self, position: int) -> str:
        """Return the name of an input; empty if it is left out."""
        return input_at(self.node, position)

    def fresh(self, role: str) -> str:
        """Return a name that is free."""
        stem = f"{self.node.name or self.node.output[0]}/{role}"
        name = next(
            candidate for candidate in (stem, *(f"{stem}_{k}" for k in range(2, 1000))) if candidate not in self._names
        )
        self._names.add(name)
        return name

    def constant(self, name: str) -> NDArray[Any]:
        """Return the value of a constant.

        Raises:
            Unknown: it is none.
        """
        tensor = self.model.constant_tensor(name)
        if tensor is None:
            raise Unknown
        return self.model.array(tensor)

    def put(self, replacement: Replacement, value: NDArray[Any], role: str) -> str:
        """Add a constant."""
        tensor = numpy_helper.from_array(value, self.fresh(role))
        replacement.constants.append(tensor)
        return str(tensor.name)

    def write(self, replacement: Replacement, kind: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        """Add a node; returns its result."""
        output = output or self.fresh(kind.lower())
        node = helper.make_node(kind, inputs, [output], name=f"{output}_node", **attributes)
        replacement.nodes.append(node)
        return output

    def main(self, replacement: Replacement, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add the float operator, by the label that the node had."""
        self.write(replacement, kind, inputs, output, **attributes)
        replacement.nodes[-1].name = self.model.labels[self.at]
        return output

    def dequantized(self, replacement: Replacement, names: tuple[str, str, str], axis: int = 0) -> str:
        """Add a DequantizeLinear of a tensor with a scale and a zero point; `axis` counts where there is one a column.

        Raises:
            Unknown: the scale is none that it takes.
        """
        tensor, scale, zero = names
        inputs = [tensor, scale]
        sizes = {self._size(scale)}
        if zero:
            inputs.append(zero)
            sizes.add(self._size(zero))
        if max(sizes) == 1:
            return self.write(replacement, "DequantizeLinear", inputs)
        if self.model.opset < _PER_COLUMN_OPSET or len(sizes) > 1:
            raise Unknown
        flat = self.constant(scale)
        if flat.ndim > 1:  # a factor behind a convolution is (C, 1, 1)
            inputs[1] = self.put(replacement, flat.reshape(-1), "scale")
        return self.write(replacement, "DequantizeLinear", inputs, axis=axis)

    def _size(self, name: str) -> int:
        """Return the number of elements of a scale or zero point; one that is computed is one number."""
        tensor = self.model.constant_tensor(name)
        if tensor is not None:
            return int(np.prod(tensor.dims, dtype=np.int64))
        producer = self.model.producer(name)
        if producer is None or producer.op_type != "DynamicQuantizeLinear":
            raise Unknown
        return 1

    def taken_over(self, replacement: Replacement) -> None:
        """Take over what was made for the node."""
        replacement.gone.add(self.at)
        self._opened[self.model.labels[self.at]] = self.node.op_type
        # The last node makes what the last of those that are gone made: it stands there.
        self._made[max(replacement.gone)] = replacement

    def result(self) -> Model:
        """Return the model with all of it."""
        if not self._made:
            return self.model
        gone = {index for replacement in self._made.values() for index in replacement.gone}
        proto = onnx.ModelProto()
        proto.CopyFrom(self.model.proto)
        del proto.graph.node[:]
        for index, node in enumerate(self.model.proto.graph.node):
            if index in self._made:
                proto.graph.node.extend(self._made[index].nodes)
                proto.graph.initializer.extend(self._made[index].constants)
            elif index not in gone:
                proto.graph.node.append(node)
        bare = _without_unused(self.model, proto)
        return replace(self.model, proto=bare, opened=dict(self._opened), closed=self.model)


def _without_unused(before: Model, proto: onnx.ModelProto) -> onnx.ModelProto:
    """Take away nodes and constants that were read before, and are not any more."""
    while True:
        read = set(Model(proto, "", None).uses)
        used_nodes = [node for node in proto.graph.node if not _unread(before, node.output, read)]
        stored = [tensor for tensor in proto.graph.initializer if not _unread(before, [tensor.name], read)]
        if len(used_nodes) == len(proto.graph.node) and len(stored) == len(proto.graph.initializer):
            return proto
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in used_nodes]
        names = {tensor.name for tensor in stored}
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
        for k in reversed(range(len(proto.graph.initializer))):
            if proto.graph.initializer[k].name not in names:
                del proto.graph.initializer[k]


def _unread(before: Model, names: Iterable[str], read: set[str]) -> bool:
    """Whether none of some tensors is read, and one was."""
    entry = tuple(names)
    return read.isdisjoint(entry) and any(before.uses.get(name, 0) for name in entry)
