"""Decisions, taken off a file before it is compared.

They explain themselves (rule 8 of `difference.explained`) if taking them off leaves everything else as it is: their
nodes stand behind all others, so that no other node reads them; they make new outputs and no old one; inputs that are
theirs have a default, and nothing else reads it.
"""

from __future__ import annotations

import dataclasses

import onnx

from tna_onnx.graph.decisions import GUARD
from tna_onnx.graph.difference.texts import info_text, tensor_text
from tna_onnx.graph.difference.values import Difference
from tna_onnx.graph.load import Model

__all__ = ["without_decisions"]

_ROLE = "decisions"


def without_decisions(old: Model, new: Model) -> tuple[Model, tuple[Difference, ...]]:
    """Return the new model without the decisions that the old one has not, and what was taken off.

    A model whose decisions do not explain themselves is returned as it is.
    """
    graph = new.proto.graph
    start = _first_node(old, graph)
    nodes = graph.node[start:]
    made = {name for node in nodes for name in node.output}
    outputs = [info for info in graph.output if info.name in made]
    if not nodes or made & {*old.outputs}:
        return new, ()
    kept = {name for node in graph.node[:start] for name in node.input} | {info.name for info in graph.output}
    read = {name for node in nodes for name in node.input}
    known = {info.name for info in old.proto.graph.input} | {*old.initializers}
    dials = [info for info in graph.input if info.name in read - kept - known and info.name in new.initializers]
    names = {info.name for info in dials}
    taken = [*(Difference("node", node.name, "added", node.op_type, _ROLE) for node in nodes)]
    taken += [Difference("output", info.name, "added", info_text(info), _ROLE) for info in outputs]
    taken += [Difference("input", info.name, "added", info_text(info), _ROLE) for info in dials]
    taken += [Difference("tensor", name, "added", tensor_text(new.initializers[name]), _ROLE) for name in sorted(names)]
    proto = onnx.ModelProto()
    proto.CopyFrom(new.proto)
    del proto.graph.node[start:]
    for parts in (proto.graph.output, proto.graph.input, proto.graph.initializer):
        for place in reversed(range(len(parts))):
            if parts[place].name in made | names:
                del parts[place]
    return dataclasses.replace(new, proto=proto), tuple(taken)


def _first_node(old: Model, graph: onnx.GraphProto) -> int:
    """Return where the decisions begin, behind all other nodes; the number of nodes where there are none."""
    names = {node.name for node in old.proto.graph.node}
    outputs = {info.name for info in graph.output}
    start = len(graph.node)
    while start and graph.node[start - 1].name not in names and _is_decision(graph.node[start - 1], outputs):
        start -= 1
    return start


def _is_decision(node: onnx.NodeProto, outputs: set[str]) -> bool:
    own = f"{GUARD}/"
    return node.name.startswith(own) and all(name.startswith(own) or name in outputs for name in node.output)
