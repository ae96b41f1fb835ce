"""The value of a tensor that nodes make from constants alone, computed with ONNX's reference evaluator."""

from __future__ import annotations

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


class NotConstant(Exception):
    """The tensor depends on data, or cannot be computed here; the text says why."""


def made_from_constants(model: Model, tensor: str) -> list[int] | None:
    """Return the indices of the nodes that make a tensor, in order; None if it depends on a graph input."""
    found: set[int] = set()
    todo = [tensor]
    while todo:
        name = todo.pop()
        if not name or name in model.initializers or name in model.sparse:
            continue
        index = model.producers.get(name)
        if index is None:
            return None
        if index not in found:
            found.add(index)
            node = model.proto.graph.node[index]
            todo += [*node.input, *subgraph_inputs(node)]
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
    used = {name for k in nodes for name in graph.node[k].input}
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


def _loaded(model: Model, name: str) -> onnx.TensorProto:
    stored = model.initializers[name]
    if stored.data_location != onnx.TensorProto.EXTERNAL:
        return stored
    return onnx.numpy_helper.from_array(model.array(stored), name)
