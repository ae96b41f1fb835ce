"""In what two models differ (`differences`), and values that are taken from a file when it is rebuilt
(`WrittenValues`).

Two models are the same where their protobufs are, with the bytes of each tensor replaced by their SHA-256. The writer
computes with placeholders for arrays that are not in the metadata; what comes out as no number is taken from the file.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from google.protobuf.message import Message
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
    if not is_external(tensor):
        if tensor.raw_data in model.large_values:
            return digest_in(tensor.raw_data)
        return hashlib.sha256(tensor.raw_data).digest()
    digest = hashlib.sha256()
    place = place_of(tensor)
    with model.open_data(place.location) as stream:
        stream.seek(place.offset)
        for start in range(0, place.length, _BLOCK):
            digest.update(stream.read(min(_BLOCK, place.length - start)))
    return digest.digest()


@dataclass(frozen=True, eq=False)
class _Digested:
    """A copy of a model with the digest of each tensor's bytes in their place."""

    model: Model
    proto: onnx.ModelProto  # the copy
    tensors: dict[bytes, TensorProto]  # a tensor of the copy, encoded -> that of the model

    def numbers(self, part: Message | None) -> NDArray[Any] | None:
        """Return the values of a tensor or attribute of the copy; None if there are none, or no numbers, or damaged."""
        if part is None:
            return None
        if isinstance(part, onnx.AttributeProto) and part.floats:
            return np.array(part.floats)
        tensors = list(all_tensors(part))
        if len(tensors) != 1:
            return None
        try:
            values = self.model.floats(self.tensors.get(_encoded(tensors[0]), tensors[0]))
        except UnsupportedModel:
            return None
        if values.dtype.kind not in "biuf":
            return None
        return values


def _digested(model: Model) -> _Digested:
    copy = copy_model(model.proto)
    digested = _Digested(model, copy, {})
    for tensor, original in zip(all_tensors(copy), all_tensors(model.proto), strict=True):
        if tensor.HasField("raw_data") or is_external(tensor):
            digest = content_digest(model, tensor)
            if is_external(tensor):
                # bytes that another runtime might take in place of those in the file
                digest += tensor.raw_data
                del tensor.external_data[:]
            tensor.ClearField("data_location")
            tensor.raw_data = digest
            digested.tensors[_encoded(tensor)] = original
    return digested


def same_models(old: Model, new: Model) -> bool:
    """Return whether two models are the same."""
    return _encoded(_digested(old).proto) == _encoded(_digested(new).proto)


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
    sides = (_digested(old), _digested(new))
    before, after = (side.proto for side in sides)
    if _encoded(before) == _encoded(after):
        return ()
    rows: list[Difference] = []
    for part in _PARTS:
        rows += _named(sides, part, _named_items(before, part), _named_items(after, part))
    rows += [Difference("graph", name, "changed") for name in _changed_fields(before.graph, after.graph, _LISTS)]
    rows += [Difference("model", name, "changed") for name in _changed_fields(before, after, (*_LISTS, *_MODEL_LISTS))]
    # what no part of it shows, as two entries of one name that changed places
    return tuple(rows) or (Difference("model", "encoding", "changed"),)


_Sides: TypeAlias = tuple[_Digested, _Digested]

# Part whose items have names -> the list that holds them, and the field that names an item.
_PARTS = {
    "tensor": ("initializer", "name"),
    "node": ("node", "name"),
    "input": ("input", "name"),
    "output": ("output", "name"),
    "value_info": ("value_info", "name"),
    "opset": ("opset_import", "domain"),
    "metadata": ("metadata_props", "key"),
    "function": ("functions", "name"),
}
_LISTS = ("node", "initializer", "input", "output", "value_info")
_MODEL_LISTS = ("graph", "opset_import", "metadata_props")


def _encoded(message: Any) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))


def _named_items(proto: onnx.ModelProto, part: str) -> dict[str, Any]:
    """Return the items of a part of a model by name; a name that stands there again has a number."""
    field, name_field = _PARTS[part]
    count = Counter[str]()
    named = {}
    for item in getattr(proto.graph if field in _LISTS else proto, field):
        name = getattr(item, name_field)
        if part == "node" and not name:  # it is called by what it makes, which no other node does
            name = f"{item.op_type} of '{next(iter(item.output), '')}'"
        if part == "opset":
            name = name or "ai.onnx"
        count[name] += 1
        named[name if count[name] == 1 else f"{name} ({count[name]})"] = item
    return named


def _named(sides: _Sides, part: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    """Compare parts that have names: those that are gone, new, in another place, or changed."""
    for name, item in old.items():
        if name not in new:
            yield Difference(part, name, "removed", _text(item))
        elif _encoded(item) != _encoded(new[name]):
            yield from _changes(sides, part, name, item, new[name])
    yield from (Difference(part, name, "added", _text(item)) for name, item in new.items() if name not in old)
    shared = ([name for name in old if name in new], [name for name in new if name in old])
    moved = [name for name, new_name in zip(*shared, strict=True) if name != new_name]
    if moved:
        yield Difference(part, moved[0], "moved")


def _text(item: Any) -> str:
    """Return a part in a word or two."""
    if isinstance(item, TensorProto):
        return f"{type_name(item.data_type)} {tuple(item.dims)}"
    word = next(name for name in ("op_type", "version", "value", "type") if name in item.DESCRIPTOR.fields_by_name)
    return " ".join(str(getattr(item, word)).split())


def _arrow(before: str, after: str) -> str:
    text = f"{before or 'nothing'} -> {after or 'nothing'}"
    if len(text) <= _MAX_LENGTH:
        return text
    return f"{text[: _MAX_LENGTH - 3]}..."


def _changed_fields(before: Any, after: Any, left_out: Collection[str] = ()) -> list[str]:
    """Return the names of the fields with other values; none where the same values are encoded otherwise."""
    names = (field.name for field in before.DESCRIPTOR.fields if field.name not in left_out)
    return [name for name in names if getattr(before, name) != getattr(after, name)]


def _changes(sides: _Sides, part: str, name: str, before: Any, after: Any) -> Iterator[Difference]:
    """Say what is new in a part that both models have: of a tensor or a node, in which fields."""
    if part not in ("tensor", "node"):
        yield Difference(part, name, "changed", _arrow(_text(before), _text(after)))
        return
    changed = _changed_fields(before, after) or ["encoding"]
    for field in changed:
        if field == "attribute":
            old, new = ({a.name: a for a in node.attribute} for node in (before, after))
            for key in dict.fromkeys([*old, *new]):
                if key not in old or key not in new or _encoded(old[key]) != _encoded(new[key]):
                    largest = _largest_change(sides, old.get(key), new.get(key))
                    yield Difference(part, name, f"attribute:{key}", "", "", *largest)
        elif field not in _CONTENT:
            word, texts = _TOLD.get(field, (field, lambda _: []))
            pairs = itertools.zip_longest(texts(before), texts(after), fillvalue="")
            yield Difference(part, name, word, ", ".join(_arrow(*pair) for pair in pairs if pair[0] != pair[1]))
    if {"data_type", "dims"}.isdisjoint(changed) and not {*_CONTENT}.isdisjoint(changed):
        yield Difference(part, name, "values", _text(before), "", *_largest_change(sides, before, after))


# Field of a tensor or a node whose values are told -> what it is called, and its values as texts.
_TOLD: dict[str, tuple[str, Callable[[Any], list[str]]]] = {
    "data_type": ("type", lambda part: [type_name(part.data_type)]),
    "dims": ("shape", lambda part: [str(tuple(part.dims))]),
    "op_type": ("op_type", lambda part: [part.op_type]),
    "input": ("input", lambda part: list(part.input)),
    "output": ("output", lambda part: list(part.output)),
}


def _largest_change(
    sides: _Sides, old_part: Message | None, new_part: Message | None
) -> tuple[float | None, float | None]:
    """Return the largest |new - old|, and the same over the largest |old|; None where there is no such number."""
    before, after = sides[0].numbers(old_part), sides[1].numbers(new_part)
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
    if not np.isfinite(size) or size == 0:
        return float(largest), None
    return float(largest), float(largest / size)


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

    def taken(self, tensor: onnx.TensorProto, *, infinite: bool = False) -> onnx.TensorProto:
        """Return a tensor with the values that it has in the file.

        `infinite`: whether a value may be infinite, as the threshold of a class that every set holds is.
        """
        name = tensor.name
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
        copy.raw_data = theirs.raw_data
        if is_external(theirs):
            copy.raw_data = values.tobytes()
        if self.model.large_value(theirs) is None and len(copy.raw_data) != byte_count(tensor):
            raise NotRebuilt(f"tensor '{name}' is stored in another form than it is written in")
        return copy

    def taken_attribute(self, node: onnx.NodeProto, name: str) -> NDArray[np.float32]:
        """Return the numbers in an attribute of a node, as many as it has."""
        count = next(len(a.floats) for a in node.attribute if a.name == name)
        for candidate in self.model.proto.graph.node:
            if (candidate.op_type, candidate.name, list(candidate.input)) == (
                node.op_type,
                node.name,
                list(node.input),
            ):
                values = [np.array(a.floats, np.float32) for a in candidate.attribute if a.name == name]
                if len(values) == 1 and len(values[0]) == count and np.all(np.isfinite(values[0])):
                    return values[0]
        raise NotRebuilt(f"expected {count:,} finite numbers in the attribute '{name}' of node '{node.name}'")
