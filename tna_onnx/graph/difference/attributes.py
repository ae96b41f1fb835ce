"""The attributes of two nodes: numbers, tensors, and what else they hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from numpy.typing import NDArray

from tna_onnx.graph.difference.content import CONTENT, ratio
from tna_onnx.graph.difference.pair import Pair
from tna_onnx.graph.difference.parts import serialized
from tna_onnx.graph.difference.tensors import tensor_differences
from tna_onnx.graph.difference.texts import arrow, attribute_text
from tna_onnx.graph.difference.values import Difference
from tna_onnx.graph.hidden import TRANSFORM
from tna_onnx.graph.places import is_external, placeless
from tna_onnx.graph.traverse import all_tensors_of

__all__ = ["attribute_differences", "encoded_attribute_differences"]


def attribute_differences(pair: Pair, k: int, before: onnx.NodeProto, after: onnx.NodeProto) -> Iterator[Difference]:
    """Compare the attributes of node number `k`, by what they mean."""
    node = pair.old.labels[k]
    old = {attribute.name: attribute for attribute in before.attribute}
    new = {attribute.name: attribute for attribute in after.attribute}
    for key in sorted({*old, *new}):
        role = pair.explained.attributes.get((k, key), "")  # rule 1
        if key in old and key in new:
            yield from _attribute_differences(pair, old[key], new[key], node, role)
        else:
            detail = arrow(attribute_text(old.get(key)), attribute_text(new.get(key)))
            yield Difference("node", node, f"attribute:{key}", detail, _axis_role(key, role))


def _axis_role(key: str, role: str) -> str:
    """Only the axis of a scale may come, go, or change in another way than by numbers."""
    if key != "axis":
        return ""
    return role


def _attribute_differences(
    pair: Pair, before: onnx.AttributeProto, after: onnx.AttributeProto, node: str, role: str
) -> Iterator[Difference]:
    """Compare two attributes: without their tensors' contents, then these."""
    change = f"attribute:{before.name}"
    if _contentless(before) == _contentless(after):
        # Equal without their contents, both hold tensors of the same number, types and shapes.
        for a, b in zip(all_tensors_of(before), all_tensors_of(after), strict=True):
            for d in tensor_differences(pair, a, b, "node", node):
                yield Difference("node", node, change, d.detail, "", d.largest, d.relative)
        return
    old = _floats(before)
    new = _floats(after)
    if old.size and old.size == new.size:
        yield _number_difference(node, change, old, new, role)
    else:
        detail = arrow(attribute_text(before), attribute_text(after))
        # Without the block the scores would be no probabilities.
        shown = before.name == TRANSFORM and after.s == b"NONE" and pair.raw_logits in pair.new.producers
        if not shown:
            role = _axis_role(before.name, role)
        yield Difference("node", node, change, detail, role)


def _number_difference(
    node: str, change: str, old: NDArray[np.float64], new: NDArray[np.float64], role: str
) -> Difference:
    with np.errstate(invalid="ignore"):  # of infinite numbers
        largest = float(np.max(np.abs(np.where(old == new, 0, new - old))))
    size = float(np.max(np.abs(old)))
    return Difference("node", node, change, f"{old.size} values", role, *ratio(largest, size))


def _contentless(attribute: onnx.AttributeProto) -> bytes:
    copy = onnx.AttributeProto()
    copy.CopyFrom(attribute)
    for tensor in all_tensors_of(copy):
        for name in CONTENT:
            tensor.ClearField(name)
    return serialized(copy)


def _floats(attribute: onnx.AttributeProto) -> NDArray[np.float64]:
    numbers = [attribute.f] if attribute.HasField("f") else attribute.floats
    return np.array(numbers, np.float64)


def encoded_attribute_differences(before: onnx.NodeProto, after: onnx.NodeProto, node: str) -> Iterator[Difference]:
    """Compare the attributes of two nodes as encoded: those of each name, and their order."""
    old = _encoded(before)
    new = _encoded(after)
    changed = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    yield from (Difference("node", node, f"attribute:{name}") for name in changed)
    order = [a.name for a in before.attribute if a.name not in changed]
    if order != [a.name for a in after.attribute if a.name not in changed]:
        yield Difference("node", node, "encoding", "order of the attributes")


def _encoded(node: onnx.NodeProto) -> dict[str, list[bytes]]:
    """Return name -> attributes of that name, as bytes, without the places of external data."""
    encoded: dict[str, list[bytes]] = {}
    for attribute in node.attribute:
        copy = onnx.AttributeProto()
        copy.CopyFrom(attribute)
        for tensor in all_tensors_of(copy):
            if is_external(tensor):
                tensor.CopyFrom(placeless(tensor))
        encoded.setdefault(attribute.name, []).append(serialized(copy))
    return encoded
