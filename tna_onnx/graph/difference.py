"""In what two models differ (`differences`), and values that are taken from a file when it is rebuilt
(`WrittenValues`).

Two models are the same where their protobufs are, with the bytes of each tensor replaced by their SHA-256. The writer
computes with placeholders for arrays that are not in the metadata; what comes out as no number is taken from the file.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.bounds import all_tensors, copy_model
from tna_onnx.graph.load import Model
from tna_onnx.graph.options import Difference
from tna_onnx.graph.tensors import FLOAT_TYPES, byte_count, digest_in, is_external, pieces, place_of, type_name

# Longer texts do not fit beside a name on a line of the terminal.
_MAX_LENGTH = 60

# Bytes of external data read at a time.
_BLOCK = 2**24

# Numbers of a tensor that are compared at a time: 8 MB in double precision.
_NUMBERS = 2**20

_CONTENT = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")


def content_digest(model: Model, tensor: TensorProto) -> bytes:
    """Return the SHA-256 of a tensor's raw data, wherever they lie."""
    digest = hashlib.sha256()
    if not is_external(tensor):
        raw = tensor.raw_data
        if raw in model.large_values:
            return digest_in(raw)
        return hashlib.sha256(raw).digest()
    place = place_of(tensor)
    remaining = place.length
    where = f"{model.name}: external data '{place.location}' of tensor '{tensor.name}'"
    try:
        with model.open_data(place.location) as stream:
            stream.seek(place.offset)
            while remaining > 0:
                block = stream.read(min(remaining, _BLOCK))
                if not block:
                    raise UnsupportedModel(f"{where}: the file ends too early; expected {remaining:,} bytes more")
                remaining -= len(block)
                digest.update(block)
    except OSError as error:
        raise UnsupportedModel(f"{where} cannot be read: {error}") from error
    return digest.digest()


def same_models(old: Model, new: Model) -> bool:
    """Return whether two models are the same."""
    return _encoded(_digested(old)) == _encoded(_digested(new))


def is_plainly_encoded(model: Model) -> bool:
    """Return whether a file's bytes are those that its model is written in, and so can be read in one way alone.

    A parser takes the last of two equal fields, merges messages that come twice, and drops what it knows from before.
    """
    digest = hashlib.sha256()
    for piece in pieces(model.proto, model.large_values):
        digest.update(piece)
    return digest.hexdigest() == model.sha256


def differences(old: Model, new: Model) -> tuple[Difference, ...]:
    """Return in what two models differ; empty only where they are the same."""
    before = _digested(old)
    after = _digested(new)
    if _encoded(before) == _encoded(after):
        return ()
    nodes = [dict(_nodes(model.proto)) for model in (old, new)]
    compare = {"tensor": partial(_tensor_changes, (old, new)), "node": partial(_node_changes, (old, new), nodes)}
    parts = zip(_parts(before).items(), _parts(after).values(), strict=True)
    rows = [
        *(row for (part, a), b in parts for row in _named(part, a, b, compare.get(part, _whole))),
        *_fields("graph", before.graph, after.graph),
        *_fields("model", before, after),
    ]
    # what no part of it shows, as two entries of one name that changed places
    return tuple(rows) or (Difference("model", "encoding", "changed"),)


Items = Sequence[tuple[str, Any]]
Models = tuple[Model, Model]


def _digested(model: Model) -> onnx.ModelProto:
    """Return a copy in which the digest of each tensor's bytes is in their place."""
    copy = copy_model(model.proto)
    for tensor in all_tensors(copy):
        if tensor.HasField("raw_data") or is_external(tensor):
            digest = content_digest(model, tensor)
            if is_external(tensor):
                # bytes that another runtime might take in place of those in the file
                digest += tensor.raw_data
                del tensor.external_data[:]
            tensor.ClearField("data_location")
            tensor.raw_data = digest
    return copy


def _encoded(message: Any) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))


def _parts(proto: onnx.ModelProto) -> dict[str, Items]:
    """Return the parts of a model that have names, by what they are."""
    graph = proto.graph
    return {
        "tensor": _by_name(graph.initializer),
        "node": _nodes(proto),
        "input": _by_name(graph.input),
        "output": _by_name(graph.output),
        "value_info": _by_name(graph.value_info),
        "opset": _numbered([(entry.domain or "ai.onnx", entry) for entry in proto.opset_import]),
        "metadata": _numbered([(entry.key, entry) for entry in proto.metadata_props]),
    }


def _nodes(proto: onnx.ModelProto) -> Items:
    """Return the nodes by name; one without is called by what it makes, which no other node does."""
    return _numbered([(n.name or f"{n.op_type} of '{next(iter(n.output), '')}'", n) for n in proto.graph.node])


def _by_name(items: Iterable[Any]) -> Items:
    return _numbered([(item.name, item) for item in items])


def _numbered(items: Items) -> Items:
    """Give a name that stands there again a number."""
    count = Counter[str]()
    named = []
    for name, item in items:
        count[name] += 1
        named.append((name if count[name] == 1 else f"{name} ({count[name]})", item))
    return named


def _named(part: str, before: Items, after: Items, compare: Any) -> Iterator[Difference]:
    """Compare parts that have names: those that are gone, new, in another place, or changed."""
    old = dict(before)
    new = dict(after)
    for name, item in before:
        if name not in new:
            yield Difference(part, name, "removed", _text(item))
        elif _encoded(item) != _encoded(new[name]):
            yield from compare(part, name, item, new[name])
    yield from (Difference(part, name, "added", _text(item)) for name, item in after if name not in old)
    shared = ([name for name, _ in before if name in new], [name for name, _ in after if name in old])
    moved = [name for name, other in zip(*shared, strict=True) if name != other]
    if moved:
        yield Difference(part, moved[0], "moved")


def _text(item: Any) -> str:
    """Return a part in a word or two."""
    if isinstance(item, TensorProto):
        return f"{type_name(item.data_type)} {tuple(item.dims)}"
    if isinstance(item, onnx.NodeProto):
        return str(item.op_type)
    if isinstance(item, onnx.OperatorSetIdProto):
        return str(item.version)
    if isinstance(item, onnx.StringStringEntryProto):
        return _shortened(item.value)
    if isinstance(item, onnx.ValueInfoProto):
        return _shortened(" ".join(str(item.type).split()))
    return ""


def _shortened(text: str) -> str:
    if len(text) <= _MAX_LENGTH:
        return text
    return f"{text[: _MAX_LENGTH - 3]}..."


def _arrow(before: str, after: str) -> str:
    return f"{before or 'nothing'} -> {after or 'nothing'}"


def _whole(part: str, name: str, before: Any, after: Any) -> Iterator[Difference]:
    yield Difference(part, name, "changed", _arrow(_text(before), _text(after)))


def _changed_fields(before: Any, after: Any) -> list[str]:
    """Return the names of the fields with other values; none where the same values are encoded otherwise."""
    names = (field.name for field in before.DESCRIPTOR.fields)
    return [name for name in names if getattr(before, name) != getattr(after, name)]


def _tensor_changes(models: Models, part: str, name: str, before: Any, after: Any) -> Iterator[Difference]:
    if not isinstance(before, TensorProto) or not isinstance(after, TensorProto):
        yield from _whole(part, name, before, after)
        return
    changed = _changed_fields(before, after) or ["encoding"]
    for field in changed:
        if field == "data_type":
            yield Difference(part, name, "type", _arrow(type_name(before.data_type), type_name(after.data_type)))
        elif field == "dims":
            yield Difference(part, name, "shape", _arrow(str(tuple(before.dims)), str(tuple(after.dims))))
        elif field not in _CONTENT:
            yield Difference(part, name, field)
    if {"data_type", "dims"}.isdisjoint(changed) and not {*_CONTENT}.isdisjoint(changed):
        tensors = (model.initializers.get(name) for model in models)
        numbers = (_numbers(model, tensor) for model, tensor in zip(models, tensors, strict=True))
        yield Difference(part, name, "values", _text(before), "", *_largest_change(*numbers))


def _node_changes(
    models: Models, nodes: Sequence[dict[str, Any]], part: str, name: str, before: Any, after: Any
) -> Iterator[Difference]:
    for field in _changed_fields(before, after) or ["encoding"]:
        if field == "attribute":
            # those of the models: their tensors have their bytes
            own = [dict(_by_name(of[name].attribute)) for of in nodes]
            yield from _attribute_changes(models, own, part, name, before, after)
        elif field in ("input", "output"):
            names = itertools.zip_longest(getattr(before, field), getattr(after, field), fillvalue="")
            renamed = ", ".join(_arrow(*pair) for pair in names if pair[0] != pair[1])
            yield Difference(part, name, field, _shortened(renamed))
        elif field == "op_type":
            yield Difference(part, name, field, _arrow(before.op_type, after.op_type))
        else:
            yield Difference(part, name, field)


def _attribute_changes(
    models: Models, attributes: Sequence[dict[str, Any]], part: str, name: str, before: Any, after: Any
) -> Iterator[Difference]:
    old, new = (dict(_by_name(node.attribute)) for node in (before, after))
    for key in dict.fromkeys([*old, *new]):
        if key not in old or key not in new or _encoded(old[key]) != _encoded(new[key]):
            numbers = (_attribute_numbers(model, own.get(key)) for model, own in zip(models, attributes, strict=True))
            yield Difference(part, name, f"attribute:{key}", "", "", *_largest_change(*numbers))


def _fields(part: str, before: Any, after: Any) -> Iterator[Difference]:
    """Compare the fields of the graph, or of the model, that are no list of parts."""
    for name in _changed_fields(before, after):
        if name not in _LISTS or (name == "metadata_props" and part == "graph"):
            yield Difference(part, name, "changed")


_LISTS = (
    "node", "initializer", "input", "output", "value_info", "graph", "opset_import", "metadata_props", "functions",
)  # fmt: skip


def _attribute_numbers(model: Model, attribute: onnx.AttributeProto | None) -> NDArray[Any] | None:
    if attribute is None:
        return None
    if attribute.floats:
        return np.array(attribute.floats)
    tensors = list(all_tensors(attribute))
    if len(tensors) != 1:
        return None
    return _numbers(model, tensors[0])


def _numbers(model: Model, tensor: TensorProto | None) -> NDArray[Any] | None:
    """Return the values of a tensor; None where there is none, or they are no numbers, or damaged."""
    if tensor is None:
        return None
    try:
        values = model.floats(tensor)
    except UnsupportedModel:
        return None
    if values.dtype.kind not in "biuf":
        return None
    return values


def _largest_change(before: NDArray[Any] | None, after: NDArray[Any] | None) -> tuple[float | None, float | None]:
    """Return the largest |new - old|, and the same over the largest |old|; None where there is no such number."""
    if before is None or after is None or before.shape != after.shape:
        return None, None
    largest = size = 0.0
    old, new = before.reshape(-1), after.reshape(-1)
    # in double precision, some at a time: all of them would take four times a float32 weight
    for start in range(0, len(old), _NUMBERS):
        with np.errstate(invalid="ignore", over="ignore"):  # of infinite values and signalling NaNs
            was, now = (values[start : start + _NUMBERS].astype(np.float64) for values in (old, new))
            largest = np.maximum(largest, np.max(np.abs(np.where(was == now, 0, now - was))))
            size = np.maximum(size, np.max(np.abs(was)))
    if not np.isfinite(largest):
        return None, None
    largest, size = float(largest), float(size)
    return largest, largest / size if np.isfinite(size) and size > 0 else None


PLACEHOLDER_INT = int(np.iinfo(np.int64).min)
"""What stands for a whole number that is not there; NaN stands for others."""


class NotRebuilt(Exception):
    """Why the writer cannot make a file again; the text is shown to the user."""


class OfAnother(NotRebuilt):
    """The file was made of another model than the one that it is compared with."""


@dataclass(frozen=True)
class WrittenValues:
    """A file of which values are taken."""

    model: Model  # the file
    roles: Collection[str] = ()  # `weight`, `bias`: taken from it as a whole
    rename: Callable[[str], str] = str  # from the name that the writer has for a constant to that in the file

    def taken(self, tensor: onnx.TensorProto, *, infinite: bool = False) -> onnx.TensorProto:
        """Return a tensor with the values that it has in the file.

        `infinite`: whether a value may be infinite, as the threshold of a class that every set holds is.
        """
        name = self.rename(tensor.name)
        theirs = self.model.constant_tensor(name)
        if theirs is None or theirs.data_type != tensor.data_type or list(theirs.dims) != list(tensor.dims):
            raise NotRebuilt(f"expected a tensor '{name}' of the type and shape that it is written in")
        values = self.model.array(theirs)
        floats = self.model.floats(theirs) if tensor.data_type in FLOAT_TYPES else np.zeros(0)
        if not np.all(~np.isnan(floats) if infinite else np.isfinite(floats)):
            raise NotRebuilt(f"tensor '{name}' holds NaN or infinite values, which are never written")
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        # the key of values apart stays one; external data are read
        copy.raw_data = values.tobytes() if is_external(theirs) else theirs.raw_data
        if self.model.large_value(theirs) is None and len(copy.raw_data) != byte_count(tensor):
            raise NotRebuilt(f"tensor '{name}' is stored in another form than it is written in")
        return copy

    def taken_attribute(self, node: onnx.NodeProto, name: str) -> NDArray[np.float32]:
        """Return the numbers in an attribute of a node, as many as it has."""
        own = next(len(a.floats) for a in node.attribute if a.name == name)
        for other in self.model.proto.graph.node:
            if (other.op_type, other.name, list(other.input)) == (node.op_type, node.name, list(node.input)):
                values = [np.array(a.floats, np.float32) for a in other.attribute if a.name == name]
                if len(values) == 1 and len(values[0]) == own and np.all(np.isfinite(values[0])):
                    return values[0]
        raise NotRebuilt(f"expected {own:,} finite numbers in the attribute '{name}' of node '{node.name}'")
