"""A model cut at chosen tensors: what they depend on, or what lies between two of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from tna_onnx.graph.constants import made_from_constants
from tna_onnx.graph.load import Model, subgraph_inputs
from tna_onnx.graph.readout import Head

__all__ = ["ModelProto", "cut_at", "cut_between", "read_beside", "tail_nodes"]


def cut_at(model: Model, tensors: Sequence[str]) -> onnx.ModelProto:
    """Return a new model whose outputs are `tensors`, without nodes and initializers that they do not need.

    Requires: every tensor is made by a node of the main graph. Ensures: same opset, functions and inputs; the source
    model is not modified.
    """
    cut = _part(model.proto, tensors, frozenset())
    cut.graph.input.extend(
        i
        for i in model.proto.graph.input
        if i.name not in model.initializers or any(t.name == i.name for t in cut.graph.initializer)
    )
    return cut


def cut_between(proto: onnx.ModelProto, feeds: Mapping[str, np.dtype[Any]], outputs: Sequence[str]) -> onnx.ModelProto:
    """Return a new model that computes `outputs` from the tensors `feeds`, which become its inputs, of any shape."""
    cut = _part(proto, outputs, frozenset(feeds))
    for name, dtype in feeds.items():
        element = onnx.helper.np_dtype_to_tensor_dtype(dtype)
        cut.graph.input.append(onnx.helper.make_tensor_value_info(name, element, None))
    return cut


def tail_nodes(model: Model, head: Head) -> list[int]:
    """Return the indices of the linear node and of all between it and the logits, in order."""
    nodes, start = model.proto.graph.node, head.stored_weight.reader
    made, after = set(nodes[start].output), [start]
    for k in range(start + 1, len(nodes)):
        if made.intersection((*nodes[k].input, *subgraph_inputs(nodes[k]))):
            made.update(nodes[k].output)
            after.append(k)
    needed, tail = {head.logits}, []
    for k in reversed(after):
        if needed.intersection(nodes[k].output):
            needed.update(nodes[k].input)
            tail.append(k)
    return tail[::-1]


def read_beside(model: Model, head: Head) -> list[str]:
    """Return the tensors besides the features that the nodes from the linear layer to the logits read of the data."""
    tail = tail_nodes(model, head)
    made = {name for k in tail for name in model.proto.graph.node[k].output}
    read = dict.fromkeys(name for k in tail for name in model.proto.graph.node[k].input if name)
    return [
        name for name in read if name not in made and name != head.features and made_from_constants(model, name) is None
    ]


def _part(proto: onnx.ModelProto, outputs: Sequence[str], given: frozenset[str]) -> onnx.ModelProto:
    """Return the nodes and initializers that `outputs` need, not looking behind the tensors `given`."""
    graph = proto.graph
    producers = {name: k for k, node in enumerate(graph.node) for name in node.output if name}
    needed, kept, todo = set(), set(), [name for name in outputs if name not in given]
    while todo:  # the nodes of a file need not be sorted
        name = todo.pop()
        needed.add(name)
        k = producers.get(name)
        if k is not None and k not in kept:
            kept.add(k)
            node = graph.node[k]
            todo += [n for n in (*node.input, *subgraph_inputs(node)) if n not in given and n not in needed]
    cut = onnx.ModelProto()
    cut.ir_version = proto.ir_version
    cut.opset_import.extend(proto.opset_import)
    cut.functions.extend(proto.functions)
    cut.graph.name = graph.name
    cut.graph.node.extend(graph.node[k] for k in sorted(kept))
    cut.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in needed)
    cut.graph.sparse_initializer.extend(t for t in graph.sparse_initializer if t.values.name in needed)
    cut.graph.value_info.extend(info for info in graph.value_info if info.name in needed)
    known = {info.name: info for info in (*graph.value_info, *graph.output)}
    cut.graph.output.extend(known.get(name, onnx.ValueInfoProto(name=name)) for name in outputs)
    return cut
