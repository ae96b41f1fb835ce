"""The value of a tensor that nodes make from constants alone, computed with ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from tna_onnx.graph.load import Model, subgraph_inputs
from tna_onnx.graph.quantized import read_quantized

__all__ = ["NotConstant", "constant_value", "made_from_constants"]

# A constant weight is a few nodes away from its initializer. A long chain of them is no weight.
_MOST_NODES = 50

# Their results are no constants, whatever goes in.
_RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}


class NotConstant(Exception):
    """The tensor depends on data, or cannot be computed here; the text says why."""


def made_from_constants(model: Model, tensor: str) -> list[int] | None:
    """Return the indices of the nodes that make a tensor, in order; None if it depends on data or on chance."""
    found: set[int] = set()
    todo = [tensor]
    while todo:
        name = todo.pop()
        if not name or name in model.initializers or name in model.sparse:
            continue
        index = model.producers.get(name)
        if index is None or model.proto.graph.node[index].op_type in _RANDOM:
            return None
        if index not in found:
            found.add(index)
            todo += _read(model.proto.graph.node[index])
    return sorted(found)


def constant_value(model: Model, tensor: str, reader: int) -> NDArray[Any]:
    """Compute a tensor that only constants go into.

    Raises:
        NotConstant: it depends on data, or the evaluator cannot compute it.
    """
    nodes = made_from_constants(model, tensor)
    if nodes is None:
        node = model.producer(tensor)
        raise NotConstant(f"'{tensor}' is computed by a {node.op_type} node, not a constant" if node else "")
    if len(nodes) > _MOST_NODES or any(k >= reader for k in nodes):
        raise NotConstant(f"'{tensor}' is computed by {len(nodes)} nodes, not a constant")
    graph = model.proto.graph
    # the evaluator knows DequantizeLinear from opset 19 on only
    dequantized = {k: found[1] for k in nodes if (found := read_quantized(model, k)) is not None}
    nodes = [k for k in nodes if k not in dequantized]
    used = {name for k in nodes for name in _read(graph.node[k])}
    tensors = [_loaded(model, name) for name in sorted(used) if name in model.initializers]
    tensors += [onnx.numpy_helper.from_array(v, graph.node[k].output[0]) for k, v in dequantized.items()]
    part = onnx.helper.make_graph(
        [graph.node[k] for k in nodes], "constant", [], [onnx.ValueInfoProto(name=tensor)], tensors
    )
    proto = onnx.ModelProto(ir_version=model.proto.ir_version, opset_import=model.proto.opset_import, graph=part)
    try:
        values = cast("list[Any]", ReferenceEvaluator(proto).run(None, {}))
    except Exception as error:
        raise NotConstant(f"'{tensor}' is computed by nodes that cannot be evaluated: {error}") from error
    return np.asarray(values[0])


def _read(node: onnx.NodeProto) -> list[str]:
    """Return the tensors that a node and its sub-graphs read, without those that the sub-graphs make."""
    return [*node.input, *(set(subgraph_inputs(node)) - set(_made_inside(node)))]


def _made_inside(node: onnx.NodeProto) -> Iterator[str]:
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
            yield from (tensor.name for tensor in (*graph.input, *graph.initializer))
            for inner in graph.node:
                yield from inner.output
                yield from _made_inside(inner)


def _loaded(model: Model, name: str) -> onnx.TensorProto:
    stored = model.initializers[name]
    if stored.data_location != onnx.TensorProto.EXTERNAL:
        return stored
    return onnx.numpy_helper.from_array(model.array(stored), name)
