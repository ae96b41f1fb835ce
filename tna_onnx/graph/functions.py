"""Model-local functions, inlined: a head inside one could not be seen otherwise.

A function may call others twice, and these others twice: a small file can stand for more nodes than any memory holds.
So what comes out is counted before anything is inlined.
"""

from __future__ import annotations

import graphlib
from collections.abc import Iterator
from typing import TypeAlias

import onnx
import onnx.inliner

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.limits import DEFAULT_MODEL_LIMITS, ModelLimits
from tna_onnx.graph.traverse import subgraphs

__all__ = ["inlined"]

# Calls inside calls; the inliner calls itself for each.
_MAX_DEPTH = 200

# Domains whose versions say something.
_DEFINED = {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft"}

_Key: TypeAlias = tuple[str, str, str]


def inlined(
    model: onnx.ModelProto, name: str = "the model", limits: ModelLimits = DEFAULT_MODEL_LIMITS
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Return a model with its own functions inlined, and their names; one that cannot be inlined as it is.

    Args:
        model: as parsed.
        name: what messages call it.
        limits: on what functions stand for.

    Raises:
        UnsupportedModel: a function is there twice, calls itself, or stands for too many nodes.
    """
    if not model.functions:
        return model, ()
    _check_calls(model, name, limits)
    try:
        flat = onnx.inliner.inline_local_functions(_aligned(model))
    except onnx.checker.ValidationError as error:
        raise UnsupportedModel(f"{name}: damaged: its functions cannot be inlined: {error}") from error
    except (RuntimeError, ValueError):
        # The walk then stops at the call of the function, and says so.
        return model, ()
    return flat, tuple(sorted(function.name for function in model.functions))


def _aligned(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with one version of each domain that has nothing but its own functions.

    A version says which definition of an operator counts; these have one. The inliner wants all versions to be equal,
    and some exporters give a function's own domain that of the standard one.
    """
    own = {function.domain for function in model.functions} - _DEFINED
    versions = {entry.domain: entry.version for entry in model.opset_import if entry.domain in own}
    imports = [entry for function in model.functions for entry in function.opset_import]
    if all(entry.version == versions.get(entry.domain, entry.version) for entry in imports):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for function in copy.functions:
        for entry in function.opset_import:
            entry.version = versions.get(entry.domain, entry.version)
    return copy


def _check_calls(model: onnx.ModelProto, name: str, limits: ModelLimits) -> None:
    """Check rule 6 of `graph.bounds`, and that no function is there twice."""
    functions = _by_key(model, name)
    calls = {key: [k for k in map(_called, _nodes(f)) if k in functions] for key, f in functions.items()}
    try:
        order = list(graphlib.TopologicalSorter(calls).static_order())  # those that are called come first
    except graphlib.CycleError as error:
        names = " -> ".join(str(key[1]) for key in error.args[1][:5])
        raise UnsupportedModel(f"{name}: damaged: functions call themselves: {names}") from error
    nodes: dict[_Key, int] = {}
    size: dict[_Key, int] = {}
    depth: dict[_Key, int] = {}
    for key in order:
        nodes[key] = len(functions[key].node) + sum(nodes[k] for k in calls[key])
        size[key] = functions[key].ByteSize() + sum(size[k] for k in calls[key])
        depth[key] = 1 + max((depth[k] for k in calls[key]), default=0)
    called = [k for k in map(_called, _nodes(model.graph)) if k in functions]
    total = sum(nodes[k] for k in called)
    total_size = sum(size[k] for k in called)
    limit = limits.inlined_size(model.ByteSize())
    deepest = max(depth.values())  # called or not: the inliner looks at each
    if total > limits.inlined_nodes or total_size > limit or deepest > _MAX_DEPTH:
        raise UnsupportedModel(
            f"{name}: its functions stand for {total:,} nodes in {total_size:,} bytes, {deepest} calls deep; expected "
            f"at most {limits.inlined_nodes:,.0f} nodes in {limit:,} bytes, {_MAX_DEPTH} deep; if that is right, raise "
            "--model-limit inlined-nodes=NUMBER,inlined-bytes=NUMBER"
        )


def _by_key(model: onnx.ModelProto, name: str) -> dict[_Key, onnx.FunctionProto]:
    functions: dict[_Key, onnx.FunctionProto] = {}
    for function in model.functions:
        key = _key(function.domain, function.name, function)
        if key in functions:
            raise UnsupportedModel(f"{name}: damaged: function '{function.name}' is there twice")
        functions[key] = function
    return functions


def _key(domain: str, name: str, item: onnx.FunctionProto | onnx.NodeProto) -> _Key:
    # Older versions of onnx have no overloads.
    return domain, name, getattr(item, "overload", "")


def _called(node: onnx.NodeProto) -> _Key:
    return _key(node.domain, node.op_type, node)


def _nodes(part: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph or function, those of sub-graphs included."""
    for node in part.node:
        yield node
        for attribute in node.attribute:
            for graph in subgraphs(attribute):
                yield from _nodes(graph)
