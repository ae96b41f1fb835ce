"""Two models -> everything in which they differ, and which of it a recalibration explains.

All fields of both protobufs are compared; an empty field is the same as none. Tensors are compared by type, shape and
bytes, wherever the bytes lie: in the field of their type, as raw data, or in external files, which are read in blocks.
Explained is

1. a new value of the same type and shape: of the head's weight or bias, where they lie (initializer, Constant,
   attribute), and of the scales and zero points they are quantised with; the axis of those scales;
2. an operand by which a node reads the weight, the bias or their scales, if it now reads a new tensor `tna_onnx/...`;
3. a new tensor `tna_onnx/...`;
4. new nodes `tna_onnx/...` that stand in one piece behind the node that made the logits, read nothing but each other,
   such tensors and the features, and make the logits;
5. the output of that node: the logits become `tna_onnx/logits`;
6. metadata `tna_onnx.*`, and functions that were inlined.

What the new values are, and what the block computes, is for numbers on data to tell.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.load import Model, all_tensors_of, node_label, subgraph_inputs, type_name
from tna_onnx.graph.nodes import PREFIX
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.rewrite import METADATA_PREFIX, provenance

__all__ = ["Difference", "differences"]

_OURS, _RAW_LOGITS = f"{PREFIX}/", f"{PREFIX}/logits"
# Bytes of a tensor compared at a time; a multiple of the size of every element.
_BLOCK = 2**24


@dataclass(frozen=True)
class Difference:
    """One thing in which two models differ.

    Attributes:
        part: what it belongs to: `tensor`, `node`, `input`, `output`, `opset`, `metadata`, `value_info`, `function`,
            `graph` or `model`.
        name: its name there; for `graph` and `model`, of the field.
        change: `added`, `removed`, `moved`, or the field that changed: `values`, `type`, `shape`, `input`,
            `attribute:NAME`, ...
        detail: before and after, as text.
        explained: what makes it part of a recalibration; empty if nothing does.
        largest: of changed numbers, the largest |new - old|, in units of the tensor; None if it is not finite, or not
            about numbers.
        relative: `largest` over the largest |old| of the tensor, no unit; None as above, or where all are 0.
    """

    part: str
    name: str
    change: str
    detail: str = ""
    explained: str = ""
    largest: float | None = None
    relative: float | None = None


def differences(original: Model, recalibrated: Model, readout: Readout | None) -> tuple[Difference, ...]:
    """Compare two models.

    Args:
        original: before.
        recalibrated: after.
        readout: the head of the original, or its tensor of logits or probabilities; None explains nothing but metadata.

    Raises:
        UnsupportedModel: external data are missing, too short, or outside a model's folder; or a name is no text.
    """
    for model in (original, recalibrated):
        _require_text(model)
    allowed = _allowed(original, readout)
    return (
        *_frame(original, recalibrated),
        *_tensors(original, recalibrated, allowed),
        *_nodes(original, recalibrated, allowed),
    )


def _require_text(model: Model) -> None:
    """Refuse a damaged file: of names that are not UTF-8, protobuf gives the bytes, or raises."""
    proto, words = model.proto, []
    try:
        for node in proto.graph.node:
            words += [
                node.name,
                node.op_type,
                node.domain,
                *node.input,
                *node.output,
                *(a.name for a in node.attribute),
            ]
        for part in ("initializer", "input", "output", "value_info"):
            words += [item.name for item in getattr(proto.graph, part)]
        words += [word for entry in proto.metadata_props for word in (entry.key, entry.value)]
        words += [entry.domain for entry in proto.opset_import]
    except UnicodeDecodeError as error:
        raise UnsupportedModel(f"{model.name}: damaged: a name is not UTF-8 text ({error})") from error
    if damaged := next((word for word in words if isinstance(word, bytes)), None):
        raise UnsupportedModel(f"{model.name}: damaged: the name {damaged!r} is not UTF-8 text")


@dataclass(frozen=True)
class _Allowed:
    """What a recalibration may change, each with what it is called.

    Attributes:
        values: constants, by name.
        operands: (index of the node, position of the input).
        attributes: (index of the node, name).
        logits: tensor behind which the block goes.
        producer: index of the node that makes it.
        features: tensor that the block may read.
    """

    values: dict[str, str] = field(default_factory=dict)
    operands: dict[tuple[int, int], str] = field(default_factory=dict)
    attributes: dict[tuple[int, str], str] = field(default_factory=dict)
    logits: str = ""
    producer: int = -1
    features: str = ""


def _allowed(model: Model, readout: Readout | None) -> _Allowed:
    if readout is None:
        return _Allowed()
    features = readout.features if isinstance(readout, Head) else ""
    allowed = _Allowed(logits=readout.logits, producer=model.producers.get(readout.logits, -1), features=features)
    places = (("weight", readout.stored_weight), ("bias", readout.stored_bias)) if isinstance(readout, Head) else ()
    for role, place in places:
        if place is None:
            continue
        if place.attribute:
            allowed.attributes[place.reader, place.attribute] = role
            continue
        inputs = list(model.proto.graph.node[place.reader].input)
        allowed.operands[place.reader, inputs.index(place.read_as)] = role
        if not place.shared:
            allowed.values[place.name] = role
        if place.quantized is not None:
            at = place.quantized.node
            allowed.attributes[at, "axis"] = f"{role}, axis of the scale"
            for position, what in ((1, "scale"), (2, "zero point")):
                allowed.operands[at, position] = f"{role}, {what}"
                name = "".join(model.proto.graph.node[at].input[position : position + 1])
                if name in model.initializers and model.uses.get(name, 0) == 1:
                    allowed.values[name] = f"{role}, {what}"
    return allowed


# --- outside nodes and tensors


def _frame(old: Model, new: Model) -> Iterator[Difference]:
    a, b = old.proto, new.proto
    yield from _fields("model", "", a, b, {"graph", "metadata_props", "opset_import"})
    apart = {"node", "initializer", "sparse_initializer", "input", "output", "value_info"}
    yield from _fields("graph", "", a.graph, b.graph, apart)
    versions, versions_after = ({o.domain or "ai.onnx": o.version for o in p.opset_import} for p in (a, b))
    yield from _items("opset", versions, versions_after, _text)
    for part in ("input", "output", "value_info"):
        before, after = (_keyed(getattr(proto.graph, part)) for proto in (a, b))
        yield from _items(part, before, after, _info_text, _bytes)
    entries, entries_after = provenance(old), provenance(new)
    if entries != entries_after:
        detail = f"{len(entries)} entries -> {len(entries_after)} entries"
        yield Difference("metadata", f"{METADATA_PREFIX}*", "values", detail, "provenance")
    yield from _items("metadata", _other_metadata(old), _other_metadata(new), _text)
    for name in sorted({*old.inlined} ^ {*new.inlined}):
        gone = name in old.inlined
        yield Difference("function", name, "removed" if gone else "added", "", "inlined" if gone else "")


def _other_metadata(model: Model) -> dict[str, str]:
    return {key: value for key, value in model.metadata.items() if not key.startswith(METADATA_PREFIX)}


def _fields(part: str, name: str, old: Any, new: Any, apart: set[str]) -> Iterator[Difference]:
    """Compare the fields of two messages, those in `apart` left out."""
    a, b = _field_bytes(old, apart), _field_bytes(new, apart)
    for key in sorted(key for key in {*a, *b} if a.get(key) != b.get(key)):
        detail = ""
        if key != "unknown fields" and not isinstance(value := getattr(new, key), bytes) and np.isscalar(value):
            detail = _arrow(_text(getattr(old, key)), _text(value))
        yield Difference(part, name or key, key if name else "changed", detail)


def _field_bytes(message: Any, apart: set[str]) -> dict[str, bytes]:
    """Serialise every field that is not empty or 0, those unknown to this version of ONNX together."""
    found, rest = {}, type(message)()
    rest.CopyFrom(message)
    for descriptor, value in message.ListFields():
        rest.ClearField(descriptor.name)
        if descriptor.name not in apart and (value or not np.isscalar(value)):
            part = type(message)()
            if hasattr(value, "MergeFrom"):
                getattr(part, descriptor.name).MergeFrom(value)
            elif not isinstance(value, bytes):  # which text that is not UTF-8 is, too, and cannot be set
                setattr(part, descriptor.name, value)
            found[descriptor.name] = value if isinstance(value, bytes) else _bytes(part)
    found["unknown fields"] = _bytes(rest)
    return found


def _items(
    part: str,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    text: Callable[[Any], str],
    identity: Callable[[Any], Any] = lambda item: item,
) -> Iterator[Difference]:
    """Compare two lists of named items."""
    for name, item in old.items():
        if name not in new:
            yield Difference(part, name, "removed", text(item))
        elif identity(item) != identity(new[name]):
            before, after = text(item), text(new[name])
            yield Difference(part, name, "changed", "" if before == after else _arrow(before, after))
    yield from (Difference(part, name, "added", text(item)) for name, item in new.items() if name not in old)
    yield from (Difference(part, name, "moved") for name in _moved(old, new))


def _moved(old: Iterable[str], new: Iterable[str]) -> list[str]:
    """Return the fewest names that, taken out, leave the common names in the same order."""
    place = {name: k for k, name in enumerate(old)}
    names = [name for name in new if name in place]
    ends: list[int] = []  # last place of the best increasing run of each length
    before: list[int] = []  # index of the predecessor of each name in its run
    at: list[int] = []
    for k, name in enumerate(names):
        length = bisect_left(ends, place[name])
        ends[length : length + 1] = [place[name]]
        at[length : length + 1] = [k]
        before.append(at[length - 1] if length else -1)
    kept, k = set(), at[-1] if at else -1
    while k >= 0:
        kept.add(k)
        k = before[k]
    return [name for k, name in enumerate(names) if k not in kept]


# --- tensors


def _tensors(old: Model, new: Model, allowed: _Allowed) -> Iterator[Difference]:
    a, b = _keyed(old.proto.graph.initializer), _keyed(new.proto.graph.initializer)
    for name, tensor in a.items():
        if name not in b:
            yield Difference("tensor", name, "removed", _shape_text(tensor))
        else:
            yield from _tensor(old, tensor, new, b[name], "tensor", name, allowed.values.get(name, ""))
    for name, tensor in b.items():
        if name not in a:
            yield Difference("tensor", name, "added", _shape_text(tensor), _own_tensor(name))
    yield from (Difference("tensor", name, "moved") for name in _moved(a, b))
    yield from _sparse(old, new)


def _own_tensor(name: str) -> str:
    if not name.startswith(_OURS):
        return ""
    role = name.removeprefix(_OURS).partition("_")[0]
    return role if role in ("weight", "bias") else "appended block"


def _sparse(old: Model, new: Model) -> Iterator[Difference]:
    a, b = ({s.values.name: s for s in model.proto.graph.sparse_initializer} for model in (old, new))
    yield from _items("tensor", a, b, lambda s: f"sparse {tuple(s.dims)}", lambda s: tuple(s.dims))
    for name in (name for name in a if name in b):
        yield from _tensor(old, a[name].values, new, b[name].values, "tensor", name)
        yield from _tensor(old, a[name].indices, new, b[name].indices, "tensor", f"{name} (indices)")


def _tensor(
    old: Model, before: TensorProto, new: Model, after: TensorProto, part: str, name: str, role: str = ""
) -> Iterator[Difference]:
    """Compare two tensors; new values are explained by their role, if they have one."""
    fields = {*_CONTENT, "data_type", "dims"}
    yield from _fields(part, name, before, after, fields)
    if before.data_type != after.data_type:
        yield Difference(part, name, "type", _arrow(type_name(before.data_type), type_name(after.data_type)))
    if list(before.dims) != list(after.dims):
        yield Difference(part, name, "shape", _arrow(_text(tuple(before.dims)), _text(tuple(after.dims))))
    alike = before.data_type == after.data_type and list(before.dims) == list(after.dims)
    if alike and not _same_content(old, before, new, after):
        largest, relative = _change(old, before, new, after)
        sizes = [sum(map(len, _blocks(model, tensor))) for model, tensor in ((old, before), (new, after))]
        whole = sizes[0] == sizes[1]  # a damaged tensor may hold fewer or more bytes than its shape says
        detail = _shape_text(before) if whole else f"{sizes[0]:,} bytes -> {sizes[1]:,} bytes"
        yield Difference(part, name, "values", detail, role if whole else "", largest, relative)


# Fields that say what a tensor's elements are and where they lie.
_CONTENT = {
    "raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data",
    "external_data", "data_location",
}  # fmt: skip
_NUMPY: dict[int, str] = {
    TensorProto.FLOAT: "<f4", TensorProto.DOUBLE: "<f8", TensorProto.FLOAT16: "<f2", TensorProto.BOOL: "?",
    TensorProto.INT8: "i1", TensorProto.INT16: "<i2", TensorProto.INT32: "<i4", TensorProto.INT64: "<i8",
    TensorProto.UINT8: "u1", TensorProto.UINT16: "<u2", TensorProto.UINT32: "<u4", TensorProto.UINT64: "<u8",
    TensorProto.COMPLEX64: "<c8", TensorProto.COMPLEX128: "<c16",
}  # fmt: skip
_HALVES = (TensorProto.INT16, TensorProto.UINT16, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def _same_content(old: Model, before: TensorProto, new: Model, after: TensorProto) -> bool:
    pairs = zip_longest(_blocks(old, before), _blocks(new, after), fillvalue=b"")
    return all(x == y for x, y in pairs)


def _change(old: Model, before: TensorProto, new: Model, after: TensorProto) -> tuple[float | None, float | None]:
    """Return the largest |new - old|, and the same over the largest |old|; None where there is no such number."""
    largest = size = 0.0
    for x, y in zip_longest(_blocks(old, before), _blocks(new, after), fillvalue=b""):
        a, b = _numbers(x, before.data_type), _numbers(y, after.data_type)
        if a is None or b is None or a.shape != b.shape:
            return None, None
        with np.errstate(invalid="ignore"):
            change = np.abs(np.where(a == b, 0, b - a))
        largest, size = float(np.max(change, initial=largest)), float(np.max(np.abs(a), initial=size))
    return _ratio(largest, size)


def _ratio(largest: float, size: float) -> tuple[float | None, float | None]:
    if not np.isfinite(largest):
        return None, None
    return largest, largest / size if size > 0 and np.isfinite(size) else None


def _numbers(block: bytes, data_type: int) -> NDArray[Any] | None:
    """Return the elements of a block in double precision; None for types that NumPy does not have."""
    if data_type == TensorProto.BFLOAT16 and len(block) % 2 == 0:
        wide: NDArray[Any] = (np.frombuffer(block, "<u2").astype("<u4") << 16).view("<f4")
        return wide.astype(np.float64)
    dtype = np.dtype(_NUMPY.get(data_type, "V1"))
    if dtype.kind == "V" or len(block) % dtype.itemsize:
        return None
    with np.errstate(invalid="ignore"):  # of signalling NaNs
        return np.frombuffer(block, dtype).astype(np.complex128 if dtype.kind == "c" else np.float64)


def _blocks(model: Model, tensor: TensorProto) -> Iterator[bytes]:
    """Yield the elements as raw data, `_BLOCK` bytes at a time."""
    if tensor.data_location == TensorProto.EXTERNAL:
        yield from _external_blocks(model, tensor)
        return
    data = tensor.raw_data if tensor.HasField("raw_data") else _typed_bytes(tensor)
    if len(data) <= _BLOCK:
        yield data
    else:
        yield from (data[start : start + _BLOCK] for start in range(0, len(data), _BLOCK))


def _typed_bytes(tensor: TensorProto) -> bytes:
    """Return the elements as raw data would hold them, from the field of their type."""
    kind = tensor.data_type
    if kind == TensorProto.STRING:
        return b"".join(len(s).to_bytes(8, "little") + s for s in tensor.string_data)
    if kind in (TensorProto.FLOAT, TensorProto.COMPLEX64):
        return np.array(tensor.float_data, "<f4").tobytes()
    if kind in (TensorProto.DOUBLE, TensorProto.COMPLEX128):
        return np.array(tensor.double_data, "<f8").tobytes()
    if kind == TensorProto.INT64:
        return np.array(tensor.int64_data, "<i8").tobytes()
    if kind in (TensorProto.UINT32, TensorProto.UINT64):
        return np.array(tensor.uint64_data, "<u8").astype("<u4" if kind == TensorProto.UINT32 else "<u8").tobytes()
    narrow = "<i4" if kind == TensorProto.INT32 else "<u2" if kind in _HALVES else "u1"
    return np.array(tensor.int32_data, "<i4").astype(narrow).tobytes()


def _external_blocks(model: Model, tensor: TensorProto) -> Iterator[bytes]:
    place = {e.key: e.value for e in tensor.external_data}
    location = place.get("location", "")
    path = model.data_path(location)
    where = f"{model.name}: external data '{location}' of tensor '{tensor.name}'"
    if not path.is_file():
        raise UnsupportedModel(f"{where} are missing in {model.folder.absolute()}")
    try:
        start = int(place.get("offset", 0))
        left = int(place.get("length", max(0, path.stat().st_size - start)))
        with path.open("rb") as stream:
            stream.seek(start)
            while left > 0:
                block = stream.read(min(left, _BLOCK))
                if len(block) < min(left, _BLOCK):
                    raise UnsupportedModel(f"{where}: the file ends too early; expected {left:,} bytes more")
                left -= len(block)
                yield block
    except (OSError, ValueError) as error:
        raise UnsupportedModel(f"{where} cannot be read: {error}") from error


# --- nodes


def _nodes(old: Model, new: Model, allowed: _Allowed) -> Iterator[Difference]:
    a, b = old.proto.graph.node, new.proto.graph.node
    pairs = _matched(a, b, allowed)
    for k, node in enumerate(a):
        if k in pairs:
            yield from _node(old, k, new, pairs[k], allowed)
        else:
            yield Difference("node", node_label(old, k), "removed", node.op_type)
    added = sorted({*range(len(b))} - {*pairs.values()})
    block = _block(new, added, pairs.get(allowed.producer, -1), allowed)
    for k in added:
        role = "appended block" if k in block else ""
        yield Difference("node", node_label(new, k), "added", b[k].op_type, role)
    order = sorted(pairs, key=pairs.__getitem__)
    labels = {str(k): node_label(old, k) for k in sorted(pairs)}
    yield from (Difference("node", labels[k], "moved") for k in _moved(labels, map(str, order)))


def _matched(old: Sequence[onnx.NodeProto], new: Sequence[onnx.NodeProto], allowed: _Allowed) -> dict[int, int]:
    """Return index in old -> index in new: nodes of the same name, then of the same outputs, that are unique."""
    pairs: dict[int, int] = {}
    names = {node.name for node in old}

    def outputs(node: onnx.NodeProto) -> tuple[str, ...]:
        if node.name.startswith(_OURS) and node.name not in names:
            return ()  # of the block; its last node has taken the name of the logits
        return tuple(allowed.logits if name == _RAW_LOGITS else name for name in node.output)

    for key in (lambda node: node.name, outputs):
        left = _unique((k, key(node)) for k, node in enumerate(old) if k not in pairs)
        taken = {*pairs.values()}
        right = _unique((k, key(node)) for k, node in enumerate(new) if k not in taken)
        pairs |= {k: right[name] for name, k in left.items() if name and name in right}
    return pairs


def _unique(keys: Iterable[tuple[int, Any]]) -> dict[Any, int]:
    found: dict[Any, list[int]] = {}
    for k, key in keys:
        found.setdefault(key, []).append(k)
    return {key: places[0] for key, places in found.items() if len(places) == 1}


def _block(new: Model, added: list[int], front: int, allowed: _Allowed) -> set[int]:
    """Return which of the added nodes are a whole block as rule 4 has it: all that have its names, or none."""
    nodes = new.proto.graph.node
    ours = [k for k in added if nodes[k].name.startswith(_OURS)]
    known = {"", _RAW_LOGITS, allowed.features, *(name for name in new.initializers if name.startswith(_OURS))}
    for k in ours:
        if not known.issuperset((*nodes[k].input, *subgraph_inputs(nodes[k]))):
            return set()
        known.update(name for name in nodes[k].output if name.startswith(_OURS) or name == allowed.logits)
    whole = front >= 0 and ours == [*range(front + 1, front + 1 + len(ours))] and allowed.logits in known
    return {*ours} if whole else set()


def _node(old: Model, k: int, new: Model, m: int, allowed: _Allowed) -> Iterator[Difference]:
    """Compare two matched nodes."""
    a, b = old.proto.graph.node[k], new.proto.graph.node[m]
    name = node_label(old, k)
    if a.SerializeToString(deterministic=True) == b.SerializeToString(deterministic=True) and not _external(a):
        return
    yield from _fields("node", name, a, b, {"input", "output", "attribute"})
    if list(a.input) != list(b.input):
        yield _operands(old, k, new, b, allowed)
    if list(a.output) != list(b.output):
        raw = [_RAW_LOGITS if o == allowed.logits else o for o in a.output]
        maker = new.producer(allowed.logits)
        block = k == allowed.producer and raw == list(b.output) and maker is not None and maker.name.startswith(_OURS)
        detail = _arrow(", ".join(a.output), ", ".join(b.output))
        yield Difference("node", name, "output", detail, "in front of the appended block" if block else "")
    if a.op_type == b.op_type == "Constant" and (role := allowed.values.get(a.output[0], "")):
        before, after = (model.constant_tensor(a.output[0]) for model in (old, new))
        if before is not None and after is not None:
            yield from (d for d in _tensor(old, before, new, after, "tensor", a.output[0], role) if _about_numbers(d))
            return
    left, right = ({attribute.name: attribute for attribute in node.attribute} for node in (a, b))
    for key in sorted({*left, *right}):
        role = allowed.attributes.get((k, key), "")
        if key not in left or key not in right:
            texts = [_attribute_text(side[key]) if key in side else "" for side in (left, right)]
            yield Difference("node", name, f"attribute:{key}", _arrow(*texts), role if key == "axis" else "")
        else:
            yield from _attribute(old, left[key], new, right[key], name, role)


def _about_numbers(difference: Difference) -> bool:
    """Leave out what a Constant says besides its value: it is written anew as a whole."""
    return difference.change in ("values", "type", "shape")


def _external(node: onnx.NodeProto) -> bool:
    return any(t.data_location == TensorProto.EXTERNAL for a in node.attribute for t in all_tensors_of(a))


def _operands(old: Model, k: int, new: Model, after: onnx.NodeProto, allowed: _Allowed) -> Difference:
    before = old.proto.graph.node[k]
    pairs = list(zip_longest(before.input, after.input, fillvalue=""))
    changed = [at for at, (x, y) in enumerate(pairs) if x != y]
    own = [y.startswith(_OURS) and y in new.initializers and y not in old.initializers for _, y in pairs]
    roles = [allowed.operands.get((k, at), "") if own[at] else "" for at in changed]
    detail = ", ".join(_arrow(repr(pairs[at][0]), repr(pairs[at][1])) for at in changed)
    return Difference("node", node_label(old, k), "input", detail, "; ".join(roles) if roles and all(roles) else "")


def _attribute(
    old: Model, before: onnx.AttributeProto, new: Model, after: onnx.AttributeProto, node: str, role: str
) -> Iterator[Difference]:
    """Compare two attributes: without their tensors' contents, then these."""
    change = f"attribute:{before.name}"
    if _contentless(before) != _contentless(after):
        x, y = _floats(before), _floats(after)
        if x.size and x.size == y.size:
            with np.errstate(invalid="ignore"):
                largest = float(np.max(np.abs(np.where(x == y, 0, y - x))))
            yield Difference("node", node, change, f"{x.size} values", role, *_ratio(largest, float(np.max(np.abs(x)))))
        else:
            detail = _arrow(_attribute_text(before), _attribute_text(after))
            yield Difference("node", node, change, detail, role if before.name == "axis" else "")
        return
    for a, b in zip(all_tensors_of(before), all_tensors_of(after), strict=True):
        for d in _tensor(old, a, new, b, "node", node):
            yield Difference("node", node, change, d.detail, "", d.largest, d.relative)


def _contentless(attribute: onnx.AttributeProto) -> bytes:
    copy = onnx.AttributeProto()
    copy.CopyFrom(attribute)
    for tensor in all_tensors_of(copy):
        for name in _CONTENT:
            tensor.ClearField(name)
    return _bytes(copy)


def _floats(attribute: onnx.AttributeProto) -> NDArray[np.float64]:
    return np.array([attribute.f] if attribute.HasField("f") else attribute.floats, np.float64)


# --- texts and keys


def _keyed(items: Iterable[Any]) -> dict[str, Any]:
    """Return items by name; of a name that comes again, with its number."""
    found: dict[str, Any] = {}
    for item in items:
        copies = sum(key == item.name or key.startswith(f"{item.name} (") for key in found) if item.name in found else 0
        found[f"{item.name} ({copies + 1})" if copies else item.name] = item
    return found


def _bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))


def _text(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _arrow(before: str, after: str) -> str:
    return f"{before or 'nothing'} -> {after or 'nothing'}"


def _shape_text(tensor: TensorProto) -> str:
    return f"{type_name(tensor.data_type)} {tuple(tensor.dims)}"


def _info_text(info: onnx.ValueInfoProto) -> str:
    try:
        return _text(onnx.helper.printable_value_info(info))
    except ValueError:  # an element type that this version of ONNX does not know
        return ""


def _attribute_text(attribute: onnx.AttributeProto) -> str:
    return _text(str(onnx.helper.printable_attribute(attribute)).partition(" = ")[2])
