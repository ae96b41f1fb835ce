"""Model + new head -> new model: the weight, the scaled bias, the appended map, provenance. Nothing else.

The protobuf is copied and only the fields named here are touched. A constant that others read too (a weight tied to an
embedding, say) is left alone: the head then reads a tensor of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.head import Head
from tna_onnx.graph.load import Model, node_label
from tna_onnx.graph.nodes import PREFIX, NodeOps
from tna_onnx.graph.stored import Stored

__all__ = ["METADATA_PREFIX", "Rewritten", "provenance", "rewrite"]

METADATA_PREFIX = f"{PREFIX}."

WriteMap = Callable[[NodeOps, str, str], str]


@dataclass(frozen=True, eq=False)
class Rewritten:
    """A new model and what was done to it.

    Attributes:
        proto: the new model.
        changed: names of the constants that hold new values.
        added: names of the initializers that are new.
        nodes: names of the nodes that are new.
    """

    proto: onnx.ModelProto
    changed: frozenset[str]
    added: frozenset[str]
    nodes: frozenset[str]


def rewrite(
    model: Model,
    head: Head,
    weight: NDArray[Any],
    *,
    bias_factor: float = 1.0,
    write_map: WriteMap | None = None,
    logits_rank: int = 2,
    metadata: Mapping[str, str],
) -> Rewritten:
    """Write a new weight, bias and map into a copy of the model.

    Args:
        model: the source; not modified.
        head: its head.
        weight: (C, n) class vectors in the scale of `head.weight`.
        bias_factor: what the bias is multiplied by.
        write_map: writes the map's nodes: (ops, logits, features) -> result, all by name. The block goes between the
            logits and everyone who reads them and ends in their old name, so every reader sees the new ones.
        logits_rank: axes of the logits tensor; 1 for some binary heads.
        metadata: provenance, written into metadata_props under `tna_onnx.`.

    Raises:
        UnsupportedModel: a new value does not fit the stored dtype, or the model holds an appended map already.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    changed: set[str] = set()
    added: set[str] = set()
    nodes: set[str] = set()
    values: list[tuple[Stored, NDArray[Any], str]] = [(head.stored_weight, head.as_read(weight), "weight")]
    if head.stored_bias is not None and bias_factor != 1:
        bias = head.stored_bias
        values.append((bias, bias.value.astype(np.float64) * bias_factor, "bias"))
    for place, value, role in values:
        _fits(head, place, value)
        if place.shared:
            added.add(_give_own(proto, place, value, f"{PREFIX}/{role}"))
        else:
            changed.add(_overwrite(proto, place, value))
    if write_map is not None:
        ops = NodeOps(head.logits_type, model.opset)
        _insert(model, proto, head, ops, _for_binary(write_map, logits_rank) if head.binary else write_map)
        added.update(tensor.name for tensor in ops.initializers)
        nodes.update(node.name for node in ops.nodes)
    _annotate(proto, metadata)
    return Rewritten(proto, frozenset(changed), frozenset(added), frozenset(nodes))


def provenance(model: Model) -> dict[str, str]:
    """What this tool wrote into a model's metadata_props, without the prefix; empty for any other model."""
    return {k.removeprefix(METADATA_PREFIX): v for k, v in model.metadata.items() if k.startswith(METADATA_PREFIX)}


def _fits(head: Head, place: Stored, value: NDArray[Any]) -> None:
    with np.errstate(over="ignore"):
        finite = np.all(np.isfinite(place.layout(value))) and np.all(np.isfinite(value.astype(place.value.dtype)))
    if not finite:
        raise UnsupportedModel(f"a new value for '{place.name}' of head '{head.node}' does not fit its dtype")


def _overwrite(proto: onnx.ModelProto, place: Stored, value: NDArray[Any]) -> str:
    """Put a value where the constant lies: raw data, whatever form the old values had."""
    tensor = numpy_helper.from_array(place.layout(value), place.tensor.name)
    if place.tensor.doc_string:
        tensor.doc_string = place.tensor.doc_string
    stored = next((t for t in proto.graph.initializer if t.name == place.name), None)
    if stored is not None:
        stored.CopyFrom(tensor)
    else:  # a Constant node has one attribute: a tensor, or plain numbers
        node = next(n for n in proto.graph.node if place.name in n.output)
        attribute = next(a for a in node.attribute if a.name.startswith("value"))
        attribute.CopyFrom(helper.make_attribute("value", tensor, attribute.doc_string or None))
    return place.name


def _give_own(proto: onnx.ModelProto, place: Stored, value: NDArray[Any], name: str) -> str:
    """Let the reading node read a new initializer, and leave the shared constant alone."""
    taken = {tensor.name for tensor in proto.graph.initializer}
    if name in taken:  # another head of this model was given its own before
        name = next(f"{name}_{k}" for k in count(2) if f"{name}_{k}" not in taken)
    proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value, place.value.dtype, order="C"), name))
    reader = proto.graph.node[place.reader]
    reader.input[list(reader.input).index(place.read_as)] = name
    return name


def _for_binary(write_map: WriteMap, rank: int) -> WriteMap:
    """Let a map over classes work on one logit s: (0, s) goes in, and the difference of the two results comes out."""

    def write(ops: NodeOps, logits: str, features: str) -> str:
        column = ops.reshape(logits, [-1, 1]) if rank == 1 else logits
        pair = ops.matmul(column, ops.const([[0.0, 1.0]]))
        result = ops.matmul(write_map(ops, pair, features), ops.const([[-1.0], [1.0]]))
        return ops.reshape(result, [-1]) if rank == 1 else result

    return write


def _no_other_readers(model: Model, head: Head) -> None:
    """Refuse a map behind tensors that others read too: they would see logits without the map.

    Raises:
        UnsupportedModel: such a tensor lies between the head and its logits.
    """
    tensor, at = head.logits, model.producers[head.logits]
    while node_label(model, at) != head.node:
        node = model.proto.graph.node[at]
        tensor = next(name for name in node.input if name in model.producers and model.constant_tensor(name) is None)
        at = model.producers[tensor]
        if model.uses.get(tensor, 0) > 1:
            raise UnsupportedModel(
                f"{model.path}: '{tensor}', between head '{head.node}' and its logits '{head.logits}', is read "
                "elsewhere too and would miss an appended map; use --map ts or none, which need no new nodes"
            )


def _insert(model: Model, proto: onnx.ModelProto, head: Head, ops: NodeOps, write_map: WriteMap) -> None:
    raw = f"{PREFIX}/logits"
    logits = head.logits
    _no_other_readers(model, head)
    last = write_map(ops, raw, head.features)
    taken = {*model.producers, *model.initializers, *(node.name for node in model.proto.graph.node)}
    new = {raw, *(t.name for t in ops.initializers), *(name for n in ops.nodes for name in (n.name, *n.output))}
    if taken & new:
        raise UnsupportedModel(
            f"{model.path}: already holds a map that tna-onnx wrote ('{min(taken & new)}'); "
            "start from the original model"
        )
    at = model.producers[logits]
    producer = proto.graph.node[at]
    producer.output[list(producer.output).index(logits)] = raw
    ops.nodes[-1].output[list(ops.nodes[-1].output).index(last)] = logits
    following = [onnx.NodeProto.FromString(n.SerializeToString()) for n in proto.graph.node[at + 1 :]]
    del proto.graph.node[at + 1 :]
    proto.graph.node.extend([*ops.nodes, *following])
    proto.graph.initializer.extend(ops.initializers)


def _annotate(proto: onnx.ModelProto, metadata: Mapping[str, str]) -> None:
    """Replace the entries of ours, keep the others."""
    kept = [(e.key, e.value) for e in proto.metadata_props if not e.key.startswith(METADATA_PREFIX)]
    del proto.metadata_props[:]
    for key, value in (*kept, *((METADATA_PREFIX + key, value) for key, value in metadata.items())):
        proto.metadata_props.add(key=key, value=value)
