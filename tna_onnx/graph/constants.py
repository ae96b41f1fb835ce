"""The value of a tensor that nodes make from constants alone, computed with ONNX's reference evaluator."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import numpy as np
import onnx
from numpy.typing import NDArray

from tna_onnx.graph.limits import ModelLimits
from tna_onnx.graph.load import Model
from tna_onnx.graph.places import is_external
from tna_onnx.graph.quantized import read_quantized
from tna_onnx.graph.traverse import subgraph_inputs, subgraph_outputs, subgraphs

__all__ = ["NotConstant", "constant_value", "made_from_constants"]

# A constant weight is a few nodes away from its initializer. A long chain of them is no weight.
_MAX_NODES = 50

# Their results differ from run to run, whatever goes in; or they may never end.
_RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}
_LOOPS = {"Loop", "Scan", "SequenceMap"}

# Operators whose result has no more elements than what goes in. Of any other, the size of the result must be known
# before it is computed.
_NOT_LARGER = {"Cast", "Flatten", "Identity", "Reshape", "Shape", "Size", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
# Numbers in a constant that may say something of a shape: no tensor has more axes.
_MAX_SHAPE = 64


class NotConstant(Exception):
    """The tensor depends on data, or cannot be computed here; the text says why."""


def made_from_constants(model: Model, tensor: str) -> list[int] | None:
    """Return the indices of the nodes that make a tensor, in order; None if it depends on data or on chance."""
    nodes: set[int] = set()
    todo = [tensor]
    while todo:
        name = todo.pop()
        if not name or name in model.initializers or name in model.sparse:
            continue  # an empty name is an input that is left out
        index = model.producers.get(name)
        if index is None or not _operators(model.proto.graph.node[index]).isdisjoint(_RANDOM | _LOOPS):
            return None
        if index not in nodes:
            nodes.add(index)
            todo += _read(model.proto.graph.node[index])
    return sorted(nodes)


def constant_value(model: Model, tensor: str, reader: int) -> NDArray[Any]:
    """Compute a tensor that only constants go into.

    Raises:
        NotConstant: it depends on data, or the evaluator cannot compute it.
    """
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - heavy

    nodes = made_from_constants(model, tensor)
    if nodes is None:
        node = model.producer(tensor)
        if node is None:
            raise NotConstant
        raise NotConstant(f"'{tensor}' is computed by a {node.op_type} node, not a constant")
    # A node behind the reader cannot make what it reads; the evaluator would not mind the order.
    if len(nodes) > _MAX_NODES or any(k >= reader for k in nodes):
        raise NotConstant(f"'{tensor}' is computed by {len(nodes)} nodes, not a constant")
    closed = _closed(model, nodes, tensor)
    _require_size(closed, tensor, model.limits)
    try:
        values = cast("list[Any]", ReferenceEvaluator(closed).run(None, {}))
    except Exception as error:  # whatever an operator of the evaluator raises
        raise NotConstant(f"'{tensor}' is computed by nodes that cannot be evaluated: {error}") from error
    return np.asarray(values[0])


def _require_size(closed: onnx.ModelProto, tensor: str, limits: ModelLimits) -> None:
    """Refuse to compute what would not fit into memory: a few bytes can ask for any size.

    Raises:
        NotConstant: a result is too large, or nobody can tell before it is computed.
    """
    try:
        graph = onnx.shape_inference.infer_shapes(_without_weights(closed), data_prop=True).graph
    except onnx.shape_inference.InferenceError as error:
        raise NotConstant(f"'{tensor}' is computed by nodes that do not fit together: {error}") from error
    stored = sum(math.prod(tensor.dims) for tensor in closed.graph.initializer)
    limit = limits.constant_size(stored)
    total = 0  # the evaluator keeps all results until it is done
    for node, size in _results(graph, {}):
        if size is None:
            raise NotConstant(f"'{tensor}' is computed by a {node.op_type} node with a result of unknown size")
        total += size
        if total > limit:
            raise NotConstant(
                f"'{tensor}' is computed by a {node.op_type} node with a result of {size:,} elements; expected at most "
                f"{limit:,} in all results (--model-limit constant-elements=NUMBER)"
            )


def _results(graph: onnx.GraphProto, outer: Mapping[str, int]) -> Iterator[tuple[onnx.NodeProto, int | None]]:
    """Yield each node and the elements of each of its results, None if unknown; those in sub-graphs too."""
    sizes = dict(outer)
    sizes |= {tensor.name: math.prod(tensor.dims) for tensor in graph.initializer}
    sizes |= _known_sizes((*graph.input, *graph.value_info, *graph.output))
    for node in graph.node:
        for inner in (inner for attribute in node.attribute for inner in subgraphs(attribute)):
            yield from _results(inner, sizes)
        for name in filter(None, node.output):
            if name not in sizes and node.op_type in _NOT_LARGER:
                sizes[name] = max((sizes.get(n, 0) for n in node.input), default=0)
            yield node, sizes.get(name)


def _known_sizes(infos: Iterable[onnx.ValueInfoProto]) -> dict[str, int]:
    """Return name -> number of elements, of the tensors whose shapes are known."""
    sizes = {}
    for info in infos:
        shape = info.type.tensor_type
        if shape.HasField("shape") and all(d.HasField("dim_value") for d in shape.shape.dim):
            sizes[info.name] = math.prod(d.dim_value for d in shape.shape.dim)
    return sizes


def _without_weights(closed: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with inputs in the place of large constants: a shape does not depend on those."""
    bare = onnx.ModelProto(ir_version=closed.ir_version, opset_import=closed.opset_import)
    bare.graph.name = closed.graph.name
    bare.graph.node.extend(closed.graph.node)
    bare.graph.output.extend(closed.graph.output)
    for tensor in closed.graph.initializer:
        if math.prod(tensor.dims) > _MAX_SHAPE:
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            bare.graph.input.append(info)
        else:
            bare.graph.initializer.append(tensor)
    return bare


def _operators(node: onnx.NodeProto) -> set[str]:
    """Return the operator of a node and those in its sub-graphs."""
    inner = (n for attribute in node.attribute for graph in subgraphs(attribute) for n in graph.node)
    return {node.op_type}.union(*map(_operators, inner))


def _read(node: onnx.NodeProto) -> list[str]:
    """Return the tensors that a node and its sub-graphs read, without those that the sub-graphs make."""
    return [*node.input, *(set(subgraph_inputs(node)) - set(subgraph_outputs(node)))]


def _closed(model: Model, nodes: list[int], tensor: str) -> onnx.ModelProto:
    """Return a model without inputs that computes a tensor from constants."""
    graph = model.proto.graph
    # The evaluator knows DequantizeLinear only from opset 19 on: its results go in as constants.
    dequantized = {}
    for k in nodes:
        if (quantized := read_quantized(model, k)) is not None:
            dequantized[k] = onnx.numpy_helper.from_array(quantized[1], graph.node[k].output[0])
    computed = [graph.node[k] for k in nodes if k not in dequantized]
    used = {name for node in computed for name in _read(node)}
    tensors = [_loaded(model, name) for name in sorted(used) if name in model.initializers]
    part = onnx.helper.make_graph(
        computed, "constant", [], [onnx.ValueInfoProto(name=tensor)], [*tensors, *dequantized.values()]
    )
    return onnx.ModelProto(ir_version=model.proto.ir_version, opset_import=model.proto.opset_import, graph=part)


def _loaded(model: Model, name: str) -> onnx.TensorProto:
    stored = model.initializers[name]
    if not is_external(stored) and model.data_apart(stored) is None:
        return stored
    return onnx.numpy_helper.from_array(model.array(stored), name)
