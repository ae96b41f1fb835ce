"""What a model may hold, checked once, before anything is computed from it.

    1. A file of at most 2 GB, which is what protobuf can hold.
    2. Names of at most `name_length` characters, in one line; these and metadata in UTF-8.
    3. Tensors of at most 64 axes, none of negative length: NumPy's limit.
    4. Sparse tensors of at most `sparse_bytes` when they are filled up.
    5. Attributes of the type that the operator's definition gives them.
    6. Functions that do not call themselves, and once they are inlined no more than `inlined_nodes` and
       `inlined_bytes` (`graph.load`).

How deep graphs are nested is limited by protobuf, which refuses more than 33 levels. No model of the exporters that are
known comes near any of these. Those that have a name are fields of `graph.options.ModelLimits`.

The other functions list what graphs hold, sub-graphs of If, Loop and Scan included.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, cast

import onnx
from onnx import AttributeProto

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.options import ModelLimits
from tna_onnx.graph.tensors import byte_count


def whole_copy(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model, unknown fields included."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def input_at(node: onnx.NodeProto, position: int) -> str:
    """Return the name of an input; empty if it is left out."""
    if len(node.input) <= position:
        return ""
    return str(node.input[position])


def attribute_of(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """Return the value of an attribute: int, float, bytes or a list of them; the default if the node has none."""
    for attribute in node.attribute:
        if attribute.name == name:
            return onnx.helper.get_attribute_value(attribute)
    return default


def subgraphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs inside a node, such as an If, Loop or Scan."""
    for attribute in node.attribute:
        yield from subgraphs(attribute)


def subgraphs(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs of an attribute."""
    # An unset message field reads as an empty one.
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def all_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a graph: initializers, attributes of nodes, sub-graphs."""
    yield from graph.initializer
    for tensor in graph.sparse_initializer:
        yield tensor.values
        yield tensor.indices
    for node in graph.node:
        for attribute in node.attribute:
            yield from all_tensors_of(attribute)


def all_tensors_of(attribute: onnx.AttributeProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of an attribute, sub-graphs included."""
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    for graph in subgraphs(attribute):
        yield from all_tensors(graph)


def subgraph_inputs(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that the sub-graphs of a node (If, Loop, Scan) read, their own tensors included."""
    for graph in subgraphs_of(node):
        for inner in graph.node:
            yield from inner.input
            yield from subgraph_inputs(inner)
        # An output may be a tensor of the graph around, which no inner node reads.
        yield from (output.name for output in graph.output)


def subgraph_outputs(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that the sub-graphs of a node make or hold themselves."""
    for graph in subgraphs_of(node):
        yield from (tensor.name for tensor in (*graph.input, *graph.initializer))
        for inner in graph.node:
            yield from inner.output
            yield from subgraph_outputs(inner)


MAX_BYTES = 2**31 - 1
"""Protobuf counts bytes in a signed 32-bit number."""

_MAX_AXES = 64
_BREAKS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")

# Operators of ONNX Runtime that a head may be, and the standard ones whose attributes they have.
_LIKE = {"FusedGemm": "Gemm", "FusedConv": "Conv"}


def check_bounds(name: str, model: onnx.ModelProto, limits: ModelLimits) -> None:
    """Check rules 2 to 5."""
    try:
        _check_names(name, _names(model.graph), limits)
        _check_text(name, _texts(model))
    except UnicodeDecodeError as error:  # which protobuf raises, or gives bytes: that differs by version
        raise UnsupportedModel(f"{name}: damaged: a name is not UTF-8 text ({error})") from error
    for tensor in all_tensors(model.graph):
        _check_axes(name, tensor.name, tensor.dims)
    for sparse in model.graph.sparse_initializer:
        _check_sparse(name, sparse, limits)
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    for node in model.graph.node:
        _check_attributes(name, node, opsets)


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield every name in a graph and its sub-graphs."""
    for node in graph.node:
        yield from _node_names(node)
        for inner in subgraphs_of(node):
            yield from _names(inner)
    for part in (graph.input, graph.output, graph.value_info, graph.initializer):
        yield from (item.name for item in part)
    yield from (item.values.name for item in graph.sparse_initializer)


def _node_names(node: onnx.NodeProto) -> Iterator[str]:
    yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
    yield from (attribute.name for attribute in node.attribute)


def _check_names(model: str, names: Iterable[str], limits: ModelLimits) -> None:
    for name in names:
        _check_text(model, (name,))
        if len(name) > limits.name_length or _BREAKS.search(name):
            raise UnsupportedModel(
                f"{model}: damaged: a name of {len(name):,} characters begins with {name[:40]!r}; expected one line of "
                f"at most {limits.name_length:,.0f} (--model-limit name-length=NUMBER)"
            )


def _texts(model: onnx.ModelProto) -> Iterator[str]:
    """Yield the texts of any length that are read, besides names; and those in functions, which are inlined later."""
    yield from (model.producer_name, model.producer_version, model.domain, model.doc_string)
    yield from _graph_texts(model.graph)
    for entry in model.metadata_props:
        yield from (entry.key, entry.value)
    yield from (opset.domain for opset in model.opset_import)
    for function in model.functions:
        yield from (function.name, function.domain, *function.input, *function.output)
        for node in function.node:
            yield from _node_names(node)
            for inner in subgraphs_of(node):
                yield from _names(inner)
                yield from _graph_texts(inner)


def _graph_texts(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names of a graph and its sub-graphs, and those of its free axes."""
    yield graph.name
    for item in (*graph.input, *graph.output, *graph.value_info):
        yield from (axis.dim_param for axis in item.type.tensor_type.shape.dim)
    for node in graph.node:
        for inner in subgraphs_of(node):
            yield from _graph_texts(inner)


def _check_text(model: str, texts: Iterable[str | bytes]) -> None:
    for text in texts:
        if isinstance(text, bytes):
            raise UnsupportedModel(f"{model}: damaged: the name {text[:40]!r} is not UTF-8 text")


def _check_axes(model: str, name: str, dims: Iterable[int]) -> None:
    dims = tuple(dims)
    if len(dims) > _MAX_AXES or min(dims, default=0) < 0:
        raise UnsupportedModel(
            f"{model}: damaged: tensor '{name}' has {len(dims)} axes, the shortest of length {min(dims)}; expected at "
            f"most {_MAX_AXES}, and no negative length"
        )


def _check_sparse(model: str, sparse: onnx.SparseTensorProto, limits: ModelLimits) -> None:
    _check_axes(model, sparse.values.name, sparse.dims)
    size = byte_count(sparse.values, sparse.dims)
    if size > limits.sparse_bytes:
        raise UnsupportedModel(
            f"{model}: sparse tensor '{sparse.values.name}' would have {size:,} bytes; expected at most "
            f"{limits.sparse_bytes:,.0f}; if that is right, raise --model-limit sparse-bytes=NUMBER"
        )


def _check_attributes(model: str, node: onnx.NodeProto, opsets: dict[str, int]) -> None:
    """Check rule 5, for operators that have a definition."""
    if not node.attribute:
        return
    expected = _attribute_types(node, opsets)
    for attribute in node.attribute:
        # A reference stands for an attribute of the function around it, which says the type.
        kind = expected.get(attribute.name, attribute.type)
        if attribute.type != kind and not attribute.ref_attr_name:
            raise UnsupportedModel(
                f"{model}: damaged: attribute '{attribute.name}' of {node.op_type} '{node.name}' is of type "
                f"{_type_name(attribute.type)}; expected {_type_name(kind)}"
            )


def _attribute_types(node: onnx.NodeProto, opsets: dict[str, int]) -> dict[str, int]:
    """Return name -> type, as the definition of the operator in its version has them; empty if there is none."""
    domain = node.domain
    if domain in ("ai.onnx", "com.microsoft"):
        domain = ""
    return _defined_types(_LIKE.get(node.op_type, node.op_type), opsets.get(domain, opsets.get("ai.onnx", 0)), domain)


@cache
def _defined_types(op_type: str, version: int, domain: str) -> dict[str, int]:
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except (onnx.defs.SchemaError, TypeError):  # no such operator, or a version or name that is none
        return {}
    return {name: int(cast("Any", definition.type)) for name, definition in schema.attributes.items()}


def _type_name(kind: int) -> str:
    if kind not in AttributeProto.AttributeType.values():
        return str(kind)
    return str(AttributeProto.AttributeType.Name(kind))
