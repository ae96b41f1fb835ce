"""External tensor data: where they lie, and which files are read for them.

A model names its data files itself, so a foreign model may name anything. A file is read only if

1. its location is a plain relative path, without `..`;
2. behind all links, it lies below the model's folder, or in the folder in which the model's file lies behind all links:
   download caches keep both as links to files in one folder;
3. it is a regular file: a pipe or a device may never end;
4. it has all the bytes that tensors name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import BinaryIO

from onnx import TensorProto

from tna_onnx.errors import UnsupportedModel
from tna_onnx.files import open_regular
from tna_onnx.graph.tensors import byte_count

# Of the largest file that any system has; its double is still a 64-bit number for ONNX Runtime.
_MAX_DIGITS = 18
# Characters of what stands in the place of a number, in a message.
_MAX_SHOWN = 40


@dataclass(frozen=True)
class Place:
    """A range of bytes in a file."""

    location: str  # the file, relative to the model's folder
    offset: int  # first byte
    length: int  # number of bytes, from type and shape where the tensor does not say it

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
    """Return where the data of an external tensor lie."""
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
    """Return the path of a file with external data, behind all links."""
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
    """Open a file with external data."""
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
    """Check every place of external data before anything opens one of the files, ONNX Runtime included."""
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
    """Refuse a file that ends in front of a tensor's last byte (rule 4)."""
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
