"""The files that a model keeps external data in: which of them are read, and how they are opened.

A model names these files itself, so one that someone else made may name anything. A file is read only if

1. its location is a plain relative path, without `..`;
2. behind all links, it lies below the model's folder, or in the folder in which the model's file lies behind all links:
   download caches keep both as links to files in one folder;
3. it is a regular file: a pipe or a device may never end;
4. it has all the bytes that tensors name.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import BinaryIO

from onnx import TensorProto

from tna_onnx.errors import UnsupportedModel
from tna_onnx.files import open_regular
from tna_onnx.graph.places import Place, place_of

__all__ = ["check_places", "data_path", "open_data", "require_bytes"]


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
