"""External tensor data: a separate file for a written model, with every byte that was not changed.

Of each file that the source keeps data in, the ranges that tensors name are copied and nothing else, in order. A range
keeps its position modulo 64 KB, so that alignment stays as it was; what lies between two ranges is zeros. A new value
of the same size takes the place of the old one, unless another tensor has some of the same bytes.

The file is named after its contents: `NAME.onnx.DIGEST.data`. So a new file never has the name of an older one with
other content, and a model and its data cannot be mixed up. The source's files are only read.

Models are copied without the values of initializers that are about to be replaced: a protobuf does not free a replaced
value until the message goes, so a full copy of a model that is one large weight would hold that weight twice.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import onnx
from google.protobuf.unknown_fields import UnknownFieldSet

from tna_onnx.graph.bounds import all_tensors
from tna_onnx.graph.load import Model
from tna_onnx.graph.tensors import Place, is_external, place_of, require_bytes

DIGITS = 16
"""Hexadecimal digits of the SHA-256 of a data file in its name."""

# Runtimes map tensors straight from the file; 64 KB is the coarsest granularity of the systems they run on.
_ALIGNMENT = 2**16

# Bytes copied at a time: files may be larger than memory.
_BLOCK = 2**22


def real_places(model: Model, proto: onnx.ModelProto) -> Path | None:
    """Let a part of a model refer to its external data behind all links, which ONNX Runtime does not follow elsewhere.

    Args:
        model: the source.
        proto: a part of it, edited here.

    Returns:
        The folder that the new places are relative to; None without external data.

    Raises:
        UnsupportedModel: a place outside the model's folder.
    """
    tensors = [tensor for tensor in all_tensors(proto.graph) if is_external(tensor)]
    if not tensors:
        return None
    locations = {place_of(tensor).location for tensor in tensors}
    real = {location: model.data_path(location) for location in locations}
    # Links, as download caches have them, may lead to two folders; ONNX Runtime takes places below one.
    folder = Path(os.path.commonpath([path.parent for path in real.values()]))
    for tensor in tensors:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = real[entry.value].relative_to(folder).as_posix()
    return folder


def write_external(model: Model, proto: onnx.ModelProto, output: Path) -> Path:
    """Copy the source's external data into a file beside `output`, with new values in their places.

    Args:
        model: the source.
        proto: the new model, edited here: places of external data, and new values that move out of it.
        output: path of the model that will be written, in a folder of its own.

    Returns:
        The data file.

    Raises:
        UnsupportedModel: a file is missing, unreadable, outside the model's folder, or shorter than its tensors say.
        OSError: the target cannot be written.
    """
    replaced = _moved_out(model, proto)
    tensors = [tensor for tensor in all_tensors(proto.graph) if is_external(tensor)]
    ranges = _ranges(map(place_of, tensors))
    draft = output.with_name("data")
    with draft.open("xb") as stream:
        out = _Output(stream)
        for location, parts in ranges.items():
            _check_lengths(model, location, tensors)
            with model.open_data(location) as source:
                for part in parts:
                    part.copied_to = out.align(part.start)
                    _copy(source, part, replaced.get(location, {}), out)
        stream.flush()
        os.fsync(stream.fileno())  # a rename may reach the disk before the data do
    data = output.with_name(f"{output.name}.{out.digest.hexdigest()[:DIGITS]}.data")
    draft.rename(data)
    # Last: above, places are still those of the source.
    for tensor in tensors:
        _move(tensor, ranges, data.name)
    return data


class _Range:
    """Bytes of a source file that belong together, and where they are in the new one."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.copied_to = 0


class _Output:
    """The new file, which is written from front to end, and its digest."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._end = 0
        self.digest = hashlib.sha256()

    def align(self, offset: int) -> int:
        """Fill up with zeros to a position that is equal to `offset` modulo the alignment, and return it."""
        self.write(bytes((offset - self._end) % _ALIGNMENT))
        return self._end

    def write(self, data: bytes) -> None:
        """Write at the end."""
        self._stream.write(data)
        self.digest.update(data)
        self._end += len(data)


def _moved_out(model: Model, proto: onnx.ModelProto) -> dict[str, dict[int, bytes]]:
    """Let new values of the old size refer to the place of the old ones; returns location -> offset -> value."""
    replaced: dict[str, dict[int, bytes]] = {}
    for before, after in zip(model.proto.graph.initializer, proto.graph.initializer, strict=False):
        if not is_external(before) or is_external(after):
            continue
        place = place_of(before)
        if len(after.raw_data) != place.length or _overlapped(model, before):
            continue  # the new value stays inside the model
        replaced.setdefault(place.location, {})[place.offset] = after.raw_data
        # Back to where it was: the model stays small enough for one protobuf.
        after.ClearField("raw_data")
        after.data_location = onnx.TensorProto.EXTERNAL
        after.external_data.extend(before.external_data)
    return replaced


def _overlapped(model: Model, tensor: onnx.TensorProto) -> bool:
    """Whether another tensor has some of the same bytes: writers may store equal tensors once."""
    place = place_of(tensor)
    neighbours = (
        tensor_ for tensor_ in all_tensors(model.proto.graph) if tensor_ is not tensor and is_external(tensor_)
    )
    return any(place_of(neighbour).overlaps(place) for neighbour in neighbours)


def _ranges(places: Iterable[Place]) -> dict[str, list[_Range]]:
    """Join places that touch or overlap; returns location -> ranges, in order."""
    ranges: dict[str, list[_Range]] = {}
    for place in sorted(places, key=lambda p: (p.location, p.offset)):
        in_file = ranges.setdefault(place.location, [])
        if in_file and place.offset <= in_file[-1].end:
            in_file[-1].end = max(in_file[-1].end, place.end)
        else:
            in_file.append(_Range(place.offset, place.end))
    return ranges


def _check_lengths(model: Model, location: str, tensors: Iterable[onnx.TensorProto]) -> None:
    """Refuse a file that ends too early before anything is copied."""
    with model.open_data(location) as stream:
        size = stream.seek(0, 2)
    for tensor in tensors:
        place = place_of(tensor)
        if place.location == location:
            require_bytes(model.path or Path(), tensor, place, size)


def _copy(source: BinaryIO, part: _Range, replaced: Mapping[int, bytes], out: _Output) -> None:
    """Copy a range, with new values in the places of the old ones."""
    position = part.start
    for offset in sorted(offset for offset in replaced if part.start <= offset < part.end):
        _copy_bytes(source, position, offset, out)
        out.write(replaced[offset])
        position = offset + len(replaced[offset])
    _copy_bytes(source, position, part.end, out)


def _copy_bytes(source: BinaryIO, start: int, end: int, out: _Output) -> None:
    source.seek(start)
    while start < end:
        block = source.read(min(end - start, _BLOCK))
        if not block:  # it was checked: someone else is at work on it
            raise OSError(0, "a file with external data became shorter while it was read")
        out.write(block)
        start += len(block)


def _move(tensor: onnx.TensorProto, ranges: Mapping[str, list[_Range]], name: str) -> None:
    """Refer to the new file, which may go on behind the tensor where the old one ended."""
    place = place_of(tensor)
    parts = ranges[place.location]
    part = parts[bisect_right(parts, place.offset, key=lambda r: r.start) - 1]
    entries = {entry.key: entry.value for entry in tensor.external_data}
    entries.pop("checksum", None)  # of the old file as a whole
    entries["location"] = name
    entries["offset"] = str(part.copied_to + place.offset - part.start)
    entries["length"] = str(place.length)
    del tensor.external_data[:]
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


def hollow_copy(model: onnx.ModelProto, left_out: Collection[str]) -> onnx.ModelProto:
    """Return a copy of a model, without the values of the initializers of these names.

    Ensures: everything else is equal, fields unknown to this version of ONNX too, but for those inside of the tensors
    that are left out. Where there are such fields beside the initializers, the copy is a whole one.
    """
    names = [tensor.name for tensor in model.graph.initializer]
    # of a name that stands there twice, only the first is written anew
    if any(names.count(name) > 1 for name in left_out):
        return _whole_copy(model)
    # what is unknown cannot be copied field by field
    if not left_out or len(UnknownFieldSet(model)) or len(UnknownFieldSet(model.graph)):
        return _whole_copy(model)
    try:
        return _copy_without(model, left_out)
    except (UnicodeDecodeError, ValueError):  # a text of a damaged file, which only a whole message can take over
        return _whole_copy(model)


def _whole_copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _copy_without(model: onnx.ModelProto, left_out: Collection[str]) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    _copy_fields(model, copy, skipped="graph")
    copy.graph.SetInParent()
    _copy_fields(model.graph, copy.graph, skipped="initializer")
    for tensor in model.graph.initializer:
        if tensor.name in left_out:
            _copy_words(tensor, copy.graph.initializer.add())
        else:
            copy.graph.initializer.add().CopyFrom(tensor)
    return copy


def _copy_fields(source: Any, target: Any, skipped: str) -> None:
    """Copy all fields of a message but one."""
    # `ListFields` would give the values too, large ones as copies
    for descriptor in source.DESCRIPTOR.fields:
        name = descriptor.name
        if name == skipped:
            continue
        if descriptor.is_repeated:
            getattr(target, name).extend(getattr(source, name))
        elif source.HasField(name) and descriptor.message_type is not None:
            getattr(target, name).CopyFrom(getattr(source, name))
        elif source.HasField(name):
            setattr(target, name, getattr(source, name))


def _copy_words(source: onnx.TensorProto, target: onnx.TensorProto) -> None:
    """Copy what a tensor says about itself; its values, type and shape are written anew."""
    target.name = source.name
    keep_words(source, target)


def keep_words(before: onnx.TensorProto, after: onnx.TensorProto) -> None:
    """Take over what a tensor says about itself, besides its name."""
    if before.HasField("doc_string"):
        after.doc_string = before.doc_string
    if hasattr(before, "metadata_props"):  # from onnx 1.17 on
        after.metadata_props.extend(before.metadata_props)
