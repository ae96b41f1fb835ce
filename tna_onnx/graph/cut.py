"""A model cut at chosen tensors: only what they depend on, with those tensors as the outputs."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from tna_onnx.graph.load import Model, subgraph_inputs

__all__ = ["cut_at"]


def cut_at(model: Model, tensors: Sequence[str]) -> onnx.ModelProto:
    """Return a new model whose outputs are `tensors`, without nodes and initializers that they do not need.

    Requires: every tensor is made by a node of the main graph. Ensures: same opset, functions and inputs; the source
    model is not modified.
    """
    graph, needed, kept = model.proto.graph, set(tensors), []
    for node in reversed(graph.node):  # nodes are in topological order
        if needed.intersection(node.output):
            needed.update(node.input, subgraph_inputs(node))
            kept.append(node)
    cut = onnx.ModelProto()
    cut.ir_version = model.proto.ir_version
    cut.opset_import.extend(model.proto.opset_import)
    cut.functions.extend(model.proto.functions)
    cut.graph.name = graph.name
    cut.graph.node.extend(reversed(kept))
    cut.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in needed)
    cut.graph.sparse_initializer.extend(t for t in graph.sparse_initializer if t.values.name in needed)
    cut.graph.input.extend(i for i in graph.input if i.name in needed or i.name not in model.initializers)
    cut.graph.value_info.extend(info for info in graph.value_info if info.name in needed)
    known = {info.name: info for info in (*graph.value_info, *graph.output)}
    cut.graph.output.extend(known.get(name, onnx.ValueInfoProto(name=name)) for name in tensors)
    return cut
