"""What a model may hold, checked once, before anything is computed from it; and lists of what graphs hold.

1. A file of at most 2 GB, which is what protobuf can hold (and 33 levels of nesting).
2. Texts in UTF-8, names in one line: more lines could pass for messages of this tool.
3. Tensors of at most 64 axes, which is the limit of NumPy. No sparse ones.
4. One meaning of every name: of two for one, some runtimes take the first, others the last.
5. Functions that do not call themselves, with at most `inlined_nodes` and `inlined_bytes`, counted before inlining.

ONNX Runtime, which opens the model with its functions inlined, and the ONNX checker, which looks at what is written,
check all else.
"""

import graphlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import onnx
import onnx.inliner
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

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
        for graph in inner_graphs(node):
            yield from graph.node


def subgraphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs inside a node, such as an If, Loop or Scan."""
    for attribute in node.attribute:
        # An unset message field reads as an empty one.
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def inner_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs inside a node, and those inside of their nodes."""
    for graph in subgraphs_of(node):
        yield graph
        for inner in graph.node:
            yield from inner_graphs(inner)


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
    for graph in inner_graphs(node):
        for inner in graph.node:
            yield from inner.input
        # An output may be a tensor of the graph around, which no inner node reads.
        yield from (output.name for output in graph.output)


MAX_BYTES = 2**31 - 1
"""Protobuf counts bytes in a signed 32-bit number."""

_MAX_AXES = 64
_BREAKS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")


def check_bounds(name: str, model: onnx.ModelProto) -> None:
    """Check rules 2 to 4."""
    try:
        _check_messages(name, model)
    except UnicodeDecodeError as error:  # which protobuf raises, or gives bytes: that differs by version
        raise UnsupportedModel(f"{name}: damaged: a name is not UTF-8 text ({error})") from error
    for kind, names in _defined_names(model):
        if len(set(names)) < len(names):
            twice = next(text for text, count in Counter(names).items() if count > 1)
            raise UnsupportedModel(f"{name}: damaged: {kind} '{twice}' is there twice; export the model again")
    for node in all_nodes(model.graph):
        if references := [attribute.ref_attr_name for attribute in node.attribute if attribute.ref_attr_name]:
            raise UnsupportedModel(
                f"{name}: damaged: {node.op_type} '{node.name}' takes attribute '{references[0]}' of a function, and "
                "is in none; export the model again"
            )


def _defined_names(model: onnx.ModelProto) -> Iterator[tuple[str, list[str]]]:
    """Yield what is defined in one place, as a noun and its names."""
    versions = {(opset.domain or "ai.onnx", opset.version) for opset in model.opset_import}
    yield "operator set", [domain for domain, _ in versions]
    yield "output", [item.name for item in model.graph.output]
    # runtimes do not agree on overloads
    yield "function", [f"{function.domain}.{function.name}" for function in model.functions]
    results = (result for node in model.graph.node for result in node.output if result)
    yield "tensor", [*(tensor.name for tensor in model.graph.initializer), *results]
    for function in model.functions:
        yield "tensor", 2 * _hidden_names(function.node, {*function.input})
    if model.functions:  # the inliner takes one of two attributes of a call
        for node in itertools.chain(all_nodes(model.graph), *map(all_nodes, model.functions)):
            yield f"in {node.op_type} '{node.name}' the attribute", [attribute.name for attribute in node.attribute]


def _hidden_names(nodes: Iterable[onnx.NodeProto], visible: set[str]) -> list[str]:
    """Return names that branches give again: the inliner renames what is read there, hidden or not."""
    hidden: list[str] = []
    for node in nodes:
        for graph in inner_graphs(node):
            hidden += [name for name in _own_names(graph) if name in visible]
        for graph in subgraphs_of(node):
            hidden += _hidden_names(graph.node, {tensor.name for tensor in (*graph.input, *graph.initializer)})
        visible = visible.union(node.output)
    return hidden


def _own_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names that a graph gives: to its inputs, initializers and results."""
    yield from (tensor.name for tensor in (*graph.input, *graph.initializer))
    for node in graph.node:
        yield from node.output


def _check_messages(name: str, part: Message) -> None:
    """Check rules 2 and 3 in a part of a model, and in those inside it."""
    if isinstance(part, onnx.SparseTensorProto):
        raise UnsupportedModel(f"{name}: tensor '{part.values.name}' is sparse; export the model with dense tensors")
    if isinstance(part, onnx.TensorProto):  # its numbers would be copied
        if len(part.dims) > _MAX_AXES:
            raise UnsupportedModel(f"{name}: damaged: tensor '{part.name}' has more than {_MAX_AXES} axes")
        _check_text(name, part.name)
        return
    for field, value in part.ListFields():
        if field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE):
            continue
        for item in (value,) if isinstance(value, (Message, str, bytes)) else value:
            if isinstance(item, Message):
                _check_messages(name, item)
            else:
                _check_text(name, item, lines=field.name in ("doc_string", "value"))


def _check_text(model: str, text: str | bytes, *, lines: bool = False) -> None:
    if isinstance(text, bytes):
        raise UnsupportedModel(f"{model}: damaged: the name {text[:40]!r} is not UTF-8 text")
    if not lines and _BREAKS.search(text):
        raise UnsupportedModel(f"{model}: damaged: a name of several lines begins with {text[:40]!r}; expected one")


def names_in(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield every name in a graph and its sub-graphs."""
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
        for inner in subgraphs_of(node):
            yield from names_in(inner)
    for part in (graph.input, graph.output, graph.value_info, graph.initializer):
        yield from (item.name for item in part)


# Calls inside calls; the inliner calls itself for each.
_MAX_DEPTH = 100

_MAX_GROWTH = 20  # a large file may honestly call a function of its own that often

# How domains begin in which ONNX Runtime has operators of its own.
_DEFINED = ("ai.onnx.", "com.microsoft.", "com.ms.")

_Key: TypeAlias = tuple[str, str, str]
_MAIN: _Key = ("", "", "")  # in place of a function, the graph


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
    remaining = {(function.domain, function.name) for function in flat.functions}  # of other versions
    gone = {(function.domain, function.name) for function in model.functions} - remaining
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


def _check_calls(model: onnx.ModelProto, name: str, limits: ModelLimits) -> None:
    """Check rule 5, and that inlining keeps what a call means."""
    functions: dict[_Key, Any] = {(f.domain, f.name, str(f.overload)): f for f in model.functions}
    bodies = {**functions, _MAIN: model.graph}
    calls = {key: [node for node in all_nodes(body) if _called(node) in functions] for key, body in bodies.items()}
    for function in model.functions:
        domain = function.domain or "ai.onnx"
        if f"{domain}.".startswith(_DEFINED):
            raise UnsupportedModel(
                f"{name}: function '{function.name}' is in the domain '{domain}', in which ONNX Runtime may "
                "run an operator of its own in place of it; export the model with its functions in another domain"
            )
    for node in itertools.chain(*calls.values()):  # the inliner drops defaults
        defaults = {attribute.name for attribute in functions[_called(node)].attribute_proto}
        if missing := defaults - {attribute.name for attribute in node.attribute}:
            raise UnsupportedModel(
                f"{name}: a call of function '{node.op_type}' leaves out attribute '{min(missing)}'; export the model "
                "with that attribute in the call, or without functions"
            )
        if next(subgraphs_of(node), None) is not None:
            raise UnsupportedModel(
                f"{name}: a function takes a graph as an attribute; export the model without functions"
            )
    nodes, size, deepest = _inlined_size(name, bodies, calls)
    limit = max(int(limits.inlined_bytes), _MAX_GROWTH * model.ByteSize())
    if nodes > limits.inlined_nodes or size > limit or deepest > _MAX_DEPTH:
        raise UnsupportedModel(
            f"{name}: its functions stand for {nodes:,} nodes in {size:,} bytes, {deepest} calls deep; expected "
            f"at most {limits.inlined_nodes:,.0f} nodes in {limit:,} bytes, {_MAX_DEPTH} deep; if that is right, raise "
            "--limit inlined-nodes=NUMBER,inlined-bytes=NUMBER"
        )


def _inlined_size(
    name: str, bodies: Mapping[_Key, Any], calls: Mapping[_Key, Sequence[onnx.NodeProto]]
) -> tuple[int, int, int]:
    """Return how many nodes and bytes the functions of the graph stand for, and how deep calls are in any of them."""
    callees = {key: [_called(call) for call in inner] for key, inner in calls.items()}
    passed = [attribute for node in itertools.chain(*calls.values()) for attribute in node.attribute]
    largest = max((attribute.ByteSize() for attribute in passed), default=0)
    nodes: dict[_Key, int] = {}
    size: dict[_Key, int] = {}  # as if each place of an attribute held the largest one
    depth: dict[_Key, int] = {}
    try:
        for key in graphlib.TopologicalSorter(callees).static_order():  # each behind those that it calls
            places = sum(bool(item.ref_attr_name) for node in all_nodes(bodies[key]) for item in node.attribute)
            nodes[key] = len(bodies[key].node) + sum(nodes[callee] for callee in callees[key])
            size[key] = bodies[key].ByteSize() + places * largest + sum(size[callee] for callee in callees[key])
            depth[key] = 1 + max((depth[callee] for callee in callees[key]), default=0)
    except graphlib.CycleError as error:
        names = " -> ".join(str(key[1]) for key in error.args[1][:5])
        raise UnsupportedModel(f"{name}: damaged: functions call themselves: {names}") from error
    graph = bodies[_MAIN]
    del depth[_MAIN]
    return nodes[_MAIN] - len(graph.node), size[_MAIN] - graph.ByteSize(), max(depth.values())


def _called(node: onnx.NodeProto) -> _Key:
    return node.domain, node.op_type, str(node.overload)
