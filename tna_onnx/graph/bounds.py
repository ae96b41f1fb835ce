"""What a model may hold, checked once, before anything is computed from it; and lists of what graphs hold.

1. A file of at most 2 GB, which is what protobuf can hold (and 33 levels of nesting).
2. Texts in UTF-8; names of at most `name_length` characters, in one line.
3. Tensors of at most 64 axes, none of negative length: NumPy's limit. No sparse ones.
4. Attributes of the type that the operator's definition gives them.
5. One meaning of every name: of two for one, runtimes take the first, or the last.
6. No functions of its own: heads are found in nodes alone.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any, cast

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import AttributeProto

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.options import ModelLimits


def copy_model(model: onnx.ModelProto) -> onnx.ModelProto:
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


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph, those of sub-graphs included."""
    for node in graph.node:
        yield node
        for inner in subgraphs_of(node):
            yield from all_nodes(inner)


def subgraphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs inside a node, such as an If, Loop or Scan."""
    for attribute in node.attribute:
        if attribute.HasField("g"):  # an unset one reads as an empty one
            yield attribute.g
        yield from attribute.graphs


def all_tensors(part: Message) -> Iterator[onnx.TensorProto]:
    """Yield every tensor in a part of a model, those of sub-graphs included."""
    if isinstance(part, onnx.TensorProto):
        yield part
        return
    for field, value in part.ListFields():
        if field.message_type is not None and field.name not in _WITHOUT_TENSORS:
            for item in (value,) if isinstance(value, Message) else value:
                yield from all_tensors(item)


# Most messages of a model.
_WITHOUT_TENSORS = ("type", "metadata_props", "opset_import")


def subgraph_inputs(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that the sub-graphs of a node (If, Loop, Scan) read, their own tensors included."""
    for graph in subgraphs_of(node):
        for inner in graph.node:
            yield from inner.input
            yield from subgraph_inputs(inner)
        # An output may be a tensor of the graph around, which no inner node reads.
        yield from (output.name for output in graph.output)


MAX_BYTES = 2**31 - 1
"""Protobuf counts bytes in a signed 32-bit number."""

MAX_AXES = 64
"""Of a tensor: NumPy's limit."""

_BREAKS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")

# Operators of ONNX Runtime that a head may be, and the standard ones whose attributes they have.
_LIKE = {"FusedGemm": "Gemm", "FusedConv": "Conv"}


def check_bounds(name: str, model: onnx.ModelProto, limits: ModelLimits) -> None:
    """Check rules 2 to 6."""
    try:
        _check_texts(name, model, limits)
    except UnicodeDecodeError as error:  # which protobuf raises, or gives bytes: that differs by version
        raise UnsupportedModel(f"{name}: damaged: a name is not UTF-8 text ({error})") from error
    if model.functions:
        raise UnsupportedModel(
            f"{name}: it has functions of its own ('{model.functions[0].name}'); export the model without them. In "
            "Python, onnx.inliner.inline_local_functions writes out those whose attributes have no defaults"
        )
    for tensor in all_tensors(model):
        if len(tensor.dims) > MAX_AXES or min(tensor.dims, default=0) < 0:
            raise UnsupportedModel(
                f"{name}: damaged: tensor '{tensor.name}' has {len(tensor.dims)} axes, the shortest of length "
                f"{min(tensor.dims)}; expected at most {MAX_AXES}, and no negative length"
            )
    for what, names in _defined_names(model):
        if len(set(names)) < len(names):
            twice = next(each for each, count in Counter(names).items() if count > 1)
            raise UnsupportedModel(f"{name}: damaged: {what} '{twice}' is there twice; export the model again")
    _check_attributes(name, model)


def _check_texts(name: str, part: Message, limits: ModelLimits) -> None:
    """Check rule 2, and refuse sparse tensors: both look at every message."""
    if isinstance(part, onnx.SparseTensorProto):
        raise UnsupportedModel(f"{name}: tensor '{part.values.name}' is sparse; export the model with dense tensors")
    if isinstance(part, onnx.TensorProto):  # its numbers would be copied
        _check_text(name, part.name, limits)
        return
    for field, value in part.ListFields():
        if field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE):
            continue
        for item in (value,) if isinstance(value, (Message, str, bytes)) else value:
            if isinstance(item, Message):
                _check_texts(name, item, limits)
            else:
                _check_text(name, item, limits, any_length=field.name in ("doc_string", "value"))


def _check_text(model: str, text: str | bytes, limits: ModelLimits, *, any_length: bool = False) -> None:
    if isinstance(text, bytes):
        raise UnsupportedModel(f"{model}: damaged: the name {text[:40]!r} is not UTF-8 text")
    if not any_length and (len(text) > limits.name_length or _BREAKS.search(text)):
        raise UnsupportedModel(
            f"{model}: damaged: a name of {len(text):,} characters begins with {text[:40]!r}; expected one line of "
            f"at most {limits.name_length:,.0f} (--limit name-length=NUMBER)"
        )


def _defined_names(model: onnx.ModelProto) -> Iterator[tuple[str, list[str]]]:
    """Yield what is defined in one place, as a noun and its names: each may stand there once."""
    versions = {(opset.domain or "ai.onnx", opset.version) for opset in model.opset_import}
    yield "operator set", [domain for domain, _ in versions]
    yield "output", [item.name for item in model.graph.output]
    yield from _defined_in(model.graph)


def _defined_in(graph: onnx.GraphProto) -> Iterator[tuple[str, list[str]]]:
    inputs = [item.name for item in graph.input]
    stored = [tensor.name for tensor in graph.initializer]
    yield "initializer", stored
    yield "input", inputs
    # an input may have a default
    yield "tensor", [*{*inputs, *stored}, *(name for node in graph.node for name in node.output if name)]
    for node in graph.node:
        yield f"in {node.op_type} '{node.name}' the attribute", [attribute.name for attribute in node.attribute]
        for inner in subgraphs_of(node):
            yield from _defined_in(inner)


def names_in(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield every name in a graph and its sub-graphs."""
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
        for inner in subgraphs_of(node):
            yield from names_in(inner)
    for part in (graph.input, graph.output, graph.value_info, graph.initializer):
        yield from (item.name for item in part)


def _check_attributes(model_name: str, model: onnx.ModelProto) -> None:
    """Check rule 4, for operators that have a definition."""
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    for node in all_nodes(model.graph):
        expected = _attribute_types(node, opsets) if node.attribute else {}
        for attribute in node.attribute:
            what = f"{model_name}: damaged: attribute '{attribute.name}' of {node.op_type} '{node.name}'"
            if attribute.ref_attr_name:
                raise UnsupportedModel(f"{what} stands for an attribute of a function; export the model again")
            kind = expected.get(attribute.name, attribute.type)
            if attribute.type != kind:
                raise UnsupportedModel(f"{what} is of type {_type_name(attribute.type)}; expected {_type_name(kind)}")


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
    return str(AttributeProto.AttributeType.Name(kind))
