"""What a model may hold, checked once, before anything is computed from it; and lists of what graphs hold.

1. A file of at most 2 GB, which is what protobuf can hold (and 33 levels of nesting).
2. Texts in UTF-8; names of at most `name_length` characters, in one line.
3. Tensors of at most 64 axes, none of negative length: NumPy's limit. No sparse ones.
4. Attributes of the type that the operator's definition gives them.
5. One meaning of every name: of two for one, runtimes take the first, or the last.
6. Functions that do not call themselves, with at most `inlined_nodes` and `inlined_bytes`, counted before inlining.
"""

import graphlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias, cast

import onnx
import onnx.inliner
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import AttributeProto

from tna_onnx.errors import UnsupportedModel, one_line
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


def all_nodes(part: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph or function, those of sub-graphs included."""
    for node in part.node:
        yield node
        for graph in subgraphs_of(node):
            yield from all_nodes(graph)


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


def all_tensors(part: Message) -> Iterator[onnx.TensorProto]:
    """Yield every tensor in a part of a model, those of functions and sub-graphs included."""
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


def subgraph_outputs(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that the sub-graphs of a node make or hold themselves."""
    for graph in subgraphs_of(node):
        yield from (tensor.name for tensor in (*graph.input, *graph.initializer))
        for inner in graph.node:
            yield from inner.output
            yield from subgraph_outputs(inner)


MAX_BYTES = 2**31 - 1
"""Protobuf counts bytes in a signed 32-bit number."""

MAX_AXES = 64
"""Of a tensor: NumPy's limit."""

_BREAKS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")

# Operators of ONNX Runtime that a head may be, and the standard ones whose attributes they have.
_LIKE = {"FusedGemm": "Gemm", "FusedConv": "Conv"}


def check_bounds(name: str, model: onnx.ModelProto, limits: ModelLimits) -> None:
    """Check rules 2 to 5."""
    try:
        _check_texts(name, model, limits)
    except UnicodeDecodeError as error:  # which protobuf raises, or gives bytes: that differs by version
        raise UnsupportedModel(f"{name}: damaged: a name is not UTF-8 text ({error})") from error
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
    for function in model.functions:
        own = [*function.attribute, *(attribute.name for attribute in function.attribute_proto)]
        yield f"in function '{function.name}' the attribute", own
        yield f"in function '{function.name}' the operator set", [entry.domain for entry in function.opset_import]
        yield from _defined_by(function.node, [*function.input], in_function=True)
    # runtimes do not agree on overloads
    yield "function", [f"{function.domain}.{function.name}" for function in model.functions]


def _defined_in(graph: onnx.GraphProto, *, in_function: bool = False) -> Iterator[tuple[str, list[str]]]:
    inputs = [item.name for item in graph.input]
    stored = [tensor.name for tensor in graph.initializer]
    yield "initializer", stored
    yield "input", inputs
    # an input may have a default
    yield from _defined_by(graph.node, list({*inputs, *stored}), in_function=in_function)


def _defined_by(
    nodes: Iterable[onnx.NodeProto], given: list[str], *, in_function: bool
) -> Iterator[tuple[str, list[str]]]:
    yield "tensor", [*given, *(name for node in nodes for name in node.output if name)]
    visible = {*given}
    for node in nodes:
        if in_function:  # the inliner renames what is read in a branch, hidden there or not
            yield "tensor", 2 * [*visible.intersection(subgraph_outputs(node))]
            visible.update(node.output)
        yield f"in {node.op_type} '{node.name}' the attribute", [attribute.name for attribute in node.attribute]
        for graph in subgraphs_of(node):
            yield from _defined_in(graph, in_function=in_function)


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
        expected = _attribute_types(node, opsets)
        for attribute in node.attribute:
            what = f"{model_name}: damaged: attribute '{attribute.name}' of {node.op_type} '{node.name}'"
            if attribute.ref_attr_name:
                raise UnsupportedModel(
                    f"{what} stands for '{attribute.ref_attr_name}' of a function, and is in none; export the model "
                    "again"
                )
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
    if kind not in AttributeProto.AttributeType.values():
        return str(kind)
    return str(AttributeProto.AttributeType.Name(kind))


# Calls inside calls; the inliner calls itself for each.
_MAX_DEPTH = 200

# How domains begin in which ONNX Runtime has operators of its own.
_DEFINED = ("ai.onnx.", "com.microsoft.", "com.ms.")

_Key: TypeAlias = tuple[str, str, str]


def inlined(model: onnx.ModelProto, name: str, limits: ModelLimits) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Return a model with its own functions inlined, and their names; one that cannot be inlined as it is."""
    if not model.functions:
        return model, ()
    _check_calls(model, name, limits)
    try:
        flat = onnx.inliner.inline_local_functions(_aligned(model))
    except onnx.checker.ValidationError as error:
        raise UnsupportedModel(f"{name}: damaged: its functions cannot be inlined: {one_line(error)}") from error
    except (RuntimeError, ValueError):
        # The walk then stops at the call of the function, and says so.
        return model, ()
    _check_attributes(name, flat)
    left = {(function.domain, function.name) for function in flat.functions}  # of other versions
    gone = {(function.domain, function.name) for function in model.functions} - left
    if any((node.domain, node.op_type) in gone for function in flat.functions for node in all_nodes(function)):
        return model, ()
    return flat, tuple(sorted(function for _, function in gone))


def _aligned(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with one version of each domain that has nothing but its own functions.

    A version says which definition of an operator counts; these have one. The inliner wants all versions to be equal,
    and some exporters give a function's own domain that of the standard one.
    """
    own_domains = {function.domain for function in model.functions}
    versions = {entry.domain: entry.version for entry in model.opset_import if entry.domain in own_domains}
    imports = [entry for function in model.functions for entry in function.opset_import]
    if all(entry.version == versions.get(entry.domain, entry.version) for entry in imports):
        return model
    copy = copy_model(model)
    for function in copy.functions:
        for entry in function.opset_import:
            entry.version = versions.get(entry.domain, entry.version)
    return copy


def _calls_made(called: Sequence[onnx.NodeProto], calls: Mapping[_Key, list[onnx.NodeProto]]) -> list[onnx.NodeProto]:
    """Return the calls of the graph, and of all functions that are reached from it."""
    made = [*called]
    looked_at = set()
    for node in made:  # it grows
        key = _called(node)
        if key not in looked_at:
            looked_at.add(key)
            made += calls[key]
    return made


def _check_calls(model: onnx.ModelProto, name: str, limits: ModelLimits) -> None:
    """Check rule 6, that no function is there twice, and that none has the place of an operator."""
    functions: dict[_Key, onnx.FunctionProto] = {}
    for function in model.functions:
        domain = function.domain or "ai.onnx"
        if f"{domain}.".startswith(_DEFINED):
            raise UnsupportedModel(
                f"{name}: function '{function.name}' is in the domain '{domain}', in which ONNX Runtime may "
                "run an operator of its own in place of it; export the model with its functions in another domain"
            )
        functions[_key(function.domain, function.name, function)] = function
    calls = {key: [node for node in all_nodes(f) if _called(node) in functions] for key, f in functions.items()}
    called = [node for node in all_nodes(model.graph) if _called(node) in functions]
    everywhere = [*called, *(node for nodes in calls.values() for node in nodes)]
    for node in _calls_made(called, calls):  # the inliner drops defaults
        defaults = {attribute.name for attribute in functions[_called(node)].attribute_proto}
        if missing := defaults - {attribute.name for attribute in node.attribute}:
            raise UnsupportedModel(
                f"{name}: a call of function '{node.op_type}' leaves out attribute '{min(missing)}'; export the model "
                "with that attribute in the call, or without functions"
            )
    given = [attribute for node in everywhere for attribute in node.attribute]
    if any(next(subgraphs(attribute), None) is not None for attribute in given):
        raise UnsupportedModel(f"{name}: a function takes a graph as an attribute; export the model without functions")
    try:
        sorter = graphlib.TopologicalSorter({key: [*map(_called, nodes)] for key, nodes in calls.items()})
        order = list(sorter.static_order())  # those that are called come first
    except graphlib.CycleError as error:
        names = " -> ".join(str(key[1]) for key in error.args[1][:5])
        raise UnsupportedModel(f"{name}: damaged: functions call themselves: {names}") from error
    largest = max((attribute.ByteSize() for attribute in given), default=0)
    nodes: dict[_Key, int] = {}
    size: dict[_Key, int] = {}  # as if each place of an attribute held the largest one
    depth: dict[_Key, int] = {}
    for key in order:
        below = [_called(call) for call in calls[key]]
        places = sum(bool(each.ref_attr_name) for node in all_nodes(functions[key]) for each in node.attribute)
        nodes[key] = len(functions[key].node) + sum(nodes[each] for each in below)
        size[key] = functions[key].ByteSize() + places * largest + sum(size[each] for each in below)
        depth[key] = 1 + max((depth[each] for each in below), default=0)
    total = sum(nodes[_called(call)] for call in called)
    total_size = sum(size[_called(call)] for call in called)
    limit = limits.inlined_size(model.ByteSize())
    deepest = max(depth.values())  # called or not: the inliner looks at each
    if total > limits.inlined_nodes or total_size > limit or deepest > _MAX_DEPTH:
        raise UnsupportedModel(
            f"{name}: its functions stand for {total:,} nodes in {total_size:,} bytes, {deepest} calls deep; expected "
            f"at most {limits.inlined_nodes:,.0f} nodes in {limit:,} bytes, {_MAX_DEPTH} deep; if that is right, raise "
            "--limit inlined-nodes=NUMBER,inlined-bytes=NUMBER"
        )


def _key(domain: str, name: str, item: onnx.FunctionProto | onnx.NodeProto) -> _Key:
    return domain, name, str(item.overload)


def _called(node: onnx.NodeProto) -> _Key:
    return _key(node.domain, node.op_type, node)
