"""NumPy's file formats: arrays out of a `.npz` archive, and a `.npy` file mapped. Nothing is ever unpickled."""

from __future__ import annotations

import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.digest import stream_sha256
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tna_onnx.data.source import AnyArray

__all__ = ["map_npy", "read_npz"]

# What zipfile, zlib and numpy.lib.format raise on broken bytes, encrypted members and unknown compression.
_UNREADABLE = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error)


def map_npy(path: Path) -> AnyArray:
    """Map the array in a `.npy` file, read-only.

    Raises:
        DataError: the file is not a `.npy` file, or holds objects, which are never unpickled.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except _UNREADABLE as error:
        raise DataError(
            f"{path}: cannot be read as an array of numbers ({error}); objects are never unpickled. Write it with "
            "numpy.save"
        ) from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path}: is not a .npy file; write it with numpy.save")
    return array


def read_npz(path: Path, choose: Callable[[list[str]], list[str]]) -> tuple[dict[str, AnyArray], str]:
    """Return the arrays that `choose` takes from the list of names, and the SHA-256 (hex) of the very file read.

    Raises:
        DataError: the file or one of these arrays cannot be read; what `choose` raises.
    """
    try:
        with path.open("rb") as stream:
            sha256 = stream_sha256(stream).hex()
            if zipfile.is_zipfile(stream):  # asked first: of anything else NumPy says only that it will not unpickle
                stream.seek(0)
                archive = np.load(stream, allow_pickle=False)
                if isinstance(archive, np.lib.npyio.NpzFile):
                    return {name: _member(path, archive, name) for name in choose(archive.files)}, sha256
    except _UNREADABLE as error:
        raise DataError(f"{path}: cannot be read ({error}); write it again with numpy.savez") from error
    raise DataError(f"{path}: expected a .npz file, found something else or a broken one; write it with numpy.savez")


def _member(path: Path, archive: Mapping[str, Any], name: str) -> AnyArray:
    try:
        array = archive[name]
    except MemoryError as error:
        raise DataError(
            f"{path}: array {name!r} does not fit in memory; store the arrays as .npy files in a folder"
        ) from error
    except _UNREADABLE as error:
        raise DataError(
            f"{path}: array {name!r} cannot be read ({error}). Expected a plain array of numbers: object arrays are "
            "never unpickled; store it again with a numeric dtype"
        ) from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path}: {name!r} is not a NumPy array; write the file with numpy.savez")
    return array
