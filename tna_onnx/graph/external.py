"""External tensor data: where they lie, and a separate file of them for a written model.

A model names its data files itself, so a foreign model may name anything. A file is read only if

1. its location is a plain relative path, without `..`;
2. behind all links, it lies below the model's folder, or in the folder in which the model's file lies behind all links:
   download caches keep both as links to files in one folder;
3. it is a regular file: a pipe or a device may never end;
4. it has all the bytes that tensors name.

Of each file that the source keeps data in, the ranges that tensors name are copied and nothing else, in order. A range
keeps its position modulo 64 KB, so that alignment stays as it was; what lies between two ranges is zeros. A new value
of the same size takes the place of the old one, unless another tensor has some of the same bytes.

The new file is named after its contents: `NAME.onnx.DIGEST.data`. So it never has the name of an older one with other
content, and a model and its data cannot be mixed up. The source's files are only read.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, BinaryIO

import onnx
from onnx import TensorProto

from tna_onnx.errors import UnsupportedModel
from tna_onnx.files import open_regular
from tna_onnx.graph.bounds import all_tensors
from tna_onnx.graph.tensors import byte_count

if TYPE_CHECKING:
    from tna_onnx.graph.load import Model

DIGITS = 16
"""Hexadecimal digits of the SHA-256 of a data file in its name."""

# Runtimes map tensors straight from the file; 64 KB is the coarsest granularity of the systems they run on.
_ALIGNMENT = 2**16

# Bytes copied at a time: files may be larger than memory.
_BLOCK = 2**22

# Of the largest file that any system has; its double is still a 64-bit number for ONNX Runtime.
_MAX_DIGITS = 18
# Characters of what stands in the place of a number, in a message.
_MAX_SHOWN = 40


@dataclass(frozen=True)
class Place:
    """A range of bytes in a file.

    Attributes:
        location: the file, relative to the model's folder.
        offset: first byte.
        length: number of bytes, from type and shape where the tensor does not say it.
    """

    location: str
    offset: int
    length: int

    @property
    def end(self) -> int:
        """First byte behind the range."""
        return self.offset + self.length

    def overlaps(self, second: Place) -> bool:
        """Whether two places have bytes in common."""
        return self.location == second.location and self.offset < second.end and second.offset < self.end


def is_external(tensor: TensorProto) -> bool:
    """Whether a tensor's data lie in another file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def place_of(tensor: TensorProto) -> Place:
    """Return where the data of an external tensor lie.

    Raises:
        UnsupportedModel: the offset or the length is not a number, a word stands twice, or a text is not UTF-8.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if len(entries) < len(tensor.external_data):  # some runtimes take the first, others the last
        raise UnsupportedModel(
            f"tensor '{tensor.name}' has external data of which one word stands twice; expected once"
        )
    if any(isinstance(text, bytes) for entry in entries.items() for text in entry):
        raise UnsupportedModel(f"tensor '{tensor.name}' has external data in a place that is not UTF-8 text")
    offset = _number(tensor, "offset", entries.get("offset", "0"))
    length = byte_count(tensor)
    if "length" in entries:
        length = _number(tensor, "length", entries["length"])
    return Place(entries.get("location", ""), offset, length)


def _number(tensor: TensorProto, key: str, text: str) -> int:
    # `int` would take a sign, spaces and underscores, too, and a negative offset would be read from somewhere.
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise UnsupportedModel(
            f"tensor '{tensor.name}' has external data with the {key} '{text[:_MAX_SHOWN]}'; expected a number of bytes"
        )
    return int(text)


def data_path(model: Path, location: str) -> Path:
    """Return the path of a file with external data, behind all links.

    Raises:
        UnsupportedModel: the location is not a relative path, or leads out of the model's folder.
    """
    if not _is_plain(location):  # rule 1
        raise UnsupportedModel(
            f"{model}: external data '{location}' lie outside the model's folder; expected the path of a file below it"
        )
    try:
        folder = model.parent.resolve()
        file = (folder / location).resolve()
        home = model.resolve().parent
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, names that are too long
        raise UnsupportedModel(f"{model}: external data '{location}' cannot be read: {error}") from error
    if folder not in file.parents and file.parent != home:  # rule 2
        raise UnsupportedModel(
            f"{model}: external data '{location}' lie outside the model's folder, behind a link to {file}; put a copy "
            "of the file there if you trust it"
        )
    return file


def open_data(model: Path, location: str) -> BinaryIO:
    """Open a file with external data.

    Raises:
        UnsupportedModel: it lies elsewhere (see `data_path`), is missing, no regular file, or cannot be opened.
    """
    file = data_path(model, location)
    try:
        return open_regular(file)  # rule 3
    except FileNotFoundError as error:
        raise UnsupportedModel(
            f"{model}: external data '{location}' is missing in {model.parent.absolute()}"
        ) from error
    except OSError as error:
        raise UnsupportedModel(f"{model}: external data '{location}' cannot be read: {error.strerror}") from error


def check_places(model: Path, tensors: Iterable[TensorProto]) -> None:
    """Check every place of external data before anything opens one of the files, ONNX Runtime included.

    Raises:
        UnsupportedModel: one of the rules.
    """
    sizes: dict[str, int] = {}
    for tensor in tensors:
        try:
            place = place_of(tensor)
        except UnsupportedModel as error:
            raise UnsupportedModel(f"{model}: {error}") from error
        if place.location not in sizes:
            with open_data(model, place.location) as stream:
                sizes[place.location] = stream.seek(0, 2)
        require_bytes(model, tensor, place, sizes[place.location])


def require_bytes(model: Path, tensor: TensorProto, place: Place, size: int) -> None:
    """Refuse a file that ends in front of a tensor's last byte (rule 4).

    Raises:
        UnsupportedModel: it does.
    """
    if place.end > size:
        raise UnsupportedModel(
            f"{model}: external data '{place.location}' has {size:,} bytes, but tensor '{tensor.name}' ends at "
            f"{place.end:,}"
        )


def _is_plain(location: str) -> bool:
    # As on either kind of system: a file is not to mean something else where it is moved to.
    for kind in (PurePosixPath, PureWindowsPath):
        path = kind(location)
        if path.is_absolute() or path.anchor or ".." in path.parts or not path.parts:
            return False
    # ONNX Runtime takes locations of this kind for addresses in memory.
    return not {"*", "\0"}.intersection(location)


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
