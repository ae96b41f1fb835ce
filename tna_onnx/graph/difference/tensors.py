"""Initializers, dense and sparse, and any other two tensors."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from tna_onnx.graph.difference.content import CONTENT, content_size, largest_change, same_content
from tna_onnx.graph.difference.explained import OWN
from tna_onnx.graph.difference.pair import Pair
from tna_onnx.graph.difference.parts import by_name, field_differences, item_differences, moved
from tna_onnx.graph.difference.texts import arrow, shortened, tensor_text
from tna_onnx.graph.difference.values import Difference
from tna_onnx.graph.dtypes import type_name
from tna_onnx.graph.places import placeless

__all__ = ["tensor_differences", "tensors_differences"]


def tensors_differences(pair: Pair) -> Iterator[Difference]:
    """Compare the initializers of two models."""
    old = by_name(pair.old.proto.graph.initializer)
    new = by_name(pair.new.proto.graph.initializer)
    for name, tensor in old.items():
        if name not in new:
            yield Difference("tensor", name, "removed", tensor_text(tensor))
        else:
            role = pair.explained.values.get(name, "")  # rule 1
            yield from tensor_differences(pair, tensor, new[name], "tensor", name, role)
    added = [name for name in new if name not in old]
    for name in added:
        yield Difference("tensor", name, "added", tensor_text(new[name]), _own_tensor(name))
    # A new tensor may stand anywhere; as encoded, it stands behind all others.
    order = [*old]
    if pair.encoded:
        order += added
    yield from (Difference("tensor", name, "moved") for name in moved(order, new))
    if not pair.encoded:  # as encoded, they are a field of the graph: see `frame`
        yield from _sparse_differences(pair)


def _own_tensor(name: str) -> str:
    """Return what a new tensor is for, if it is one of this tool's (rule 3)."""
    if not name.startswith(OWN):
        return ""
    role = name.removeprefix(OWN).partition("_")[0]
    if role in ("weight", "bias"):
        return role
    return "appended block"


def _sparse_differences(pair: Pair) -> Iterator[Difference]:
    old = {tensor.values.name: tensor for tensor in pair.old.proto.graph.sparse_initializer}
    new = {tensor.values.name: tensor for tensor in pair.new.proto.graph.sparse_initializer}
    yield from item_differences("tensor", old, new, lambda s: f"sparse {tuple(s.dims)}", lambda s: tuple(s.dims))
    for name, before in old.items():
        if name in new:
            after = new[name]
            yield from tensor_differences(pair, before.values, after.values, "tensor", name)
            yield from tensor_differences(pair, before.indices, after.indices, "tensor", f"{name} (indices)")


def tensor_differences(
    pair: Pair, before: TensorProto, after: TensorProto, part: str, name: str, role: str = ""
) -> Iterator[Difference]:
    """Compare two tensors; new values are explained by their role, if they have one."""
    # The two strictnesses meet here: below, only what the bytes mean counts.
    if pair.encoded:
        yield from _encoded_differences(before, after, part, name)
        return
    yield from field_differences(part, name, before, after, {*CONTENT, "data_type", "dims"})
    same_type = before.data_type == after.data_type
    same_shape = list(before.dims) == list(after.dims)
    if not same_type:
        yield Difference(part, name, "type", arrow(type_name(before.data_type), type_name(after.data_type)))
    if not same_shape:
        change = arrow(shortened(tuple(before.dims)), shortened(tuple(after.dims)))
        yield Difference(part, name, "shape", change)
    if same_type and same_shape and not same_content(pair.old, before, pair.new, after):
        yield _value_difference(pair, before, after, part, name, role)


def _encoded_differences(before: TensorProto, after: TensorProto, part: str, name: str) -> Iterator[Difference]:
    """Compare the fields of two tensors; of the place of external data, the length alone."""
    yield from field_differences(part, name, placeless(before), placeless(after), set(), encoded=True)


def _value_difference(
    pair: Pair, before: TensorProto, after: TensorProto, part: str, name: str, role: str
) -> Difference:
    largest, relative = largest_change(pair.old, before, pair.new, after)
    size = content_size(pair.old, before)
    size_after = content_size(pair.new, after)
    if size != size_after:  # damaged: what its shape says, no recalibration makes
        return Difference(part, name, "values", f"{size:,} bytes -> {size_after:,} bytes", "", largest, relative)
    return Difference(part, name, "values", tensor_text(before), role, largest, relative)
