"""The nodes of the main graph: which belong together, what changed in them, and the appended block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import onnx

from tna_onnx.graph.difference.attributes import attribute_differences, encoded_attribute_differences
from tna_onnx.graph.difference.explained import OWN, Explained
from tna_onnx.graph.difference.pair import Pair
from tna_onnx.graph.difference.parts import field_differences, moved, serialized
from tna_onnx.graph.difference.tensors import tensor_differences
from tna_onnx.graph.difference.texts import arrow
from tna_onnx.graph.difference.values import Difference
from tna_onnx.graph.load import Model
from tna_onnx.graph.places import is_external
from tna_onnx.graph.traverse import all_tensors_of, subgraph_inputs

__all__ = ["nodes_differences"]


def nodes_differences(pair: Pair) -> Iterator[Difference]:
    """Compare the nodes of two models."""
    old = pair.old.proto.graph.node
    new = pair.new.proto.graph.node
    raw = pair.raw_logits
    pairs = _matched(old, new, pair.explained, raw)
    for k, node in enumerate(old):
        if k in pairs:
            yield from _node_differences(pair, k, pairs[k])
        else:
            yield Difference("node", pair.old.labels[k], "removed", node.op_type)
    added = sorted({*range(len(new))} - {*pairs.values()})
    constants = _new_constants(pair, added)
    block = _block(pair.new, sorted({*added} - constants), pairs.get(pair.explained.producer, -1), pair.explained, raw)
    for m in added:
        role = "appended block" if m in block else ""
        if m in constants:
            role = "new constant"
        yield Difference("node", pair.new.labels[m], "added", new[m].op_type, role)
    places = (str(k) for k in sorted(pairs))
    order = (str(k) for k in sorted(pairs, key=pairs.__getitem__))
    yield from (Difference("node", pair.old.labels[int(k)], "moved") for k in moved(places, order))


# --- which nodes belong together


def _matched(
    old: Sequence[onnx.NodeProto], new: Sequence[onnx.NodeProto], explained: Explained, raw: str
) -> dict[int, int]:
    """Return index in old -> index in new: nodes of the same name, then of the same outputs, that are unique."""
    pairs: dict[int, int] = {}
    names = {node.name for node in old}

    def name_of(node: onnx.NodeProto) -> str:
        return str(node.name)

    def outputs_of(node: onnx.NodeProto) -> tuple[str, ...]:
        if node.name.startswith(OWN) and node.name not in names:
            return ()  # of the block; its last node has taken the name of the logits
        return tuple(explained.logits if name == raw else name for name in node.output)

    # Names first: a rewrite keeps them, where outputs may be renamed. Many exporters give none.
    keys: tuple[Callable[[onnx.NodeProto], Any], ...] = (name_of, outputs_of)
    for key in keys:
        left = _unique((k, key(node)) for k, node in enumerate(old) if k not in pairs)
        taken = {*pairs.values()}
        right = _unique((k, key(node)) for k, node in enumerate(new) if k not in taken)
        pairs |= {k: right[name] for name, k in left.items() if name and name in right}
    return pairs


def _unique(keys: Iterable[tuple[int, Any]]) -> dict[Any, int]:
    """Return key -> index for the keys that come once."""
    places: dict[Any, list[int]] = {}
    for k, key in keys:
        places.setdefault(key, []).append(k)
    return {key: indices[0] for key, indices in places.items() if len(indices) == 1}


def _new_constants(pair: Pair, added: list[int]) -> set[int]:
    """Return which of the added nodes are constants of this tool in front of all others (rule 3)."""
    nodes = pair.new.proto.graph.node
    front = 0
    while front in added and nodes[front].op_type == "Constant" and nodes[front].name.startswith(OWN):
        front += 1
    return {*range(front)}


def _block(new: Model, added: list[int], front: int, explained: Explained, raw: str) -> set[int]:
    """Return which of the added nodes are a whole block as rule 4 has it: all that have its names, or none."""
    nodes = new.proto.graph.node
    name = raw.removesuffix("logits")
    ours = [k for k in added if nodes[k].name.startswith(name)]
    known = {"", raw, explained.features, *(name for name in new.initializers if name.startswith(OWN))}
    for k in ours:  # in their order, so that each reads what stands in front of it
        if not known.issuperset((*nodes[k].input, *subgraph_inputs(nodes[k]))):
            return set()
        known.update(name for name in nodes[k].output if name.startswith(OWN) or name == explained.logits)
    in_one_piece = front >= 0 and ours == [*range(front + 1, front + 1 + len(ours))]
    if not in_one_piece or explained.logits not in known:
        return set()
    return {*ours}


# --- two nodes that belong together


def _node_differences(pair: Pair, k: int, m: int) -> Iterator[Difference]:
    before = pair.old.proto.graph.node[k]
    after = pair.new.proto.graph.node[m]
    # Most nodes; the rest of this is slow.
    if serialized(before) == serialized(after) and not _holds_external(before):
        return
    name = pair.old.labels[k]
    apart = {"input", "output", "attribute"}
    yield from field_differences("node", name, before, after, apart, encoded=pair.encoded)
    if list(before.input) != list(after.input):
        yield _input_difference(pair, k, after)
    if list(before.output) != list(after.output):
        yield _output_difference(pair, k, after)
    if pair.encoded:
        yield from encoded_attribute_differences(before, after, name)
        return
    values = _constant_differences(pair, before, after)
    if values is not None:
        yield from values
    else:
        yield from attribute_differences(pair, k, before, after)


def _holds_external(node: onnx.NodeProto) -> bool:
    """Whether a tensor of the node lies in another file, where equal nodes may have unequal data."""
    return any(is_external(tensor) for attribute in node.attribute for tensor in all_tensors_of(attribute))


def _input_difference(pair: Pair, k: int, after: onnx.NodeProto) -> Difference:
    """Compare the operands; one that is read from a new tensor of this tool is explained (rule 2)."""
    before = pair.old.proto.graph.node[k]
    details = []
    roles = []
    for at, (operand, operand_after) in enumerate(zip_longest(before.input, after.input, fillvalue="")):
        if operand == operand_after:
            continue
        details.append(arrow(repr(operand), repr(operand_after)))
        added = operand_after not in pair.old.initializers and pair.new.constant_tensor(operand_after) is not None
        if added and operand_after.startswith(OWN):
            roles.append(pair.explained.operands.get((k, at), ""))
        else:
            roles.append("")
    explained = ""
    if all(roles):  # one operand that is not explained leaves the node unexplained
        explained = "; ".join(roles)
    return Difference("node", pair.old.labels[k], "input", ", ".join(details), explained)


def _output_difference(pair: Pair, k: int, after: onnx.NodeProto) -> Difference:
    """Compare the outputs; the logits in front of an appended block are explained (rule 5)."""
    before = pair.old.proto.graph.node[k]
    logits = pair.explained.logits
    renamed = [pair.raw_logits if name == logits else name for name in before.output]
    maker = pair.new.producer(logits)
    behind_block = maker is not None and maker.name.startswith(OWN)
    explained = ""
    if k == pair.explained.producer and renamed == list(after.output) and behind_block:
        explained = "in front of the appended block"
    detail = arrow(", ".join(before.output), ", ".join(after.output))
    return Difference("node", pair.old.labels[k], "output", detail, explained)


def _constant_differences(pair: Pair, before: onnx.NodeProto, after: onnx.NodeProto) -> list[Difference] | None:
    """Compare the values of two Constant nodes whose value a recalibration may change (rule 1); None for others."""
    if not before.op_type == after.op_type == "Constant":
        return None
    name = before.output[0]
    role = pair.explained.values.get(name, "")
    old = pair.old.constant_tensor(name)
    new = pair.new.constant_tensor(name)
    if not role or old is None or new is None:
        return None
    # A Constant is written anew as a whole: what it says besides its numbers does not count.
    all_differences = tensor_differences(pair, old, new, "tensor", name, role)
    return [difference for difference in all_differences if difference.change in ("values", "type", "shape")]
