"""NumPy file formats: arrays of a `.npz` archive, and memory-mapped `.npy` files. Nothing is ever unpickled.

The size that a header declares is compared with the bytes in the file before anything is mapped or allocated.
"""

from __future__ import annotations

import math
import os
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.choices import DEFAULT_LIMITS
from tna_onnx.data.digest import stream_sha256
from tna_onnx.data.files import open_regular, parsing
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import IO

    from tna_onnx.data.choices import Limits
    from tna_onnx.data.source import AnyArray

# Version 3 has names of fields in UTF-8: it is for structured arrays only.
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def map_npy(path: Path) -> AnyArray:
    """Map the array in a `.npy` file, read-only.

    Raises:
        DataError: the file is not a `.npy` file, is shorter than its header says, or holds objects, which are never
            unpickled.
    """
    advice = "objects are never unpickled. Write it with numpy.save"
    with parsing(str(path), "cannot be read as an array of numbers", advice):
        with open_regular(path) as stream:
            _claimed_bytes(stream, os.fstat(stream.fileno()).st_size)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path}: is not a .npy file; write it with numpy.save")
    return array


def read_npz(
    path: Path, choose: Callable[[list[str]], list[str]], limits: Limits = DEFAULT_LIMITS
) -> tuple[dict[str, AnyArray], str]:
    """Return the arrays that `choose` takes from the list of names, and the SHA-256 (hex) of the very file read.

    Raises:
        DataError: the file or one of these arrays cannot be read, or they are larger than the limits allow; what
            `choose` raises.
    """
    with parsing(str(path), "cannot be read", "write it again with numpy.savez"), open_regular(path) as stream:
        # Asked first: of anything else NumPy says only that it will not unpickle, and it may be of any length.
        if zipfile.is_zipfile(stream):
            size = os.fstat(stream.fileno()).st_size
            stream.seek(0)
            sha256 = stream_sha256(stream).hex()
            stream.seek(0)
            archive = np.load(stream, allow_pickle=False)
            if isinstance(archive, np.lib.npyio.NpzFile):
                selected = choose(archive.files)
                _check_sizes(path, archive.zip, selected, limits.expanded_bytes(size))  # type: ignore[arg-type]
                return {name: _member(path, archive, name) for name in selected}, sha256
    raise DataError(f"{path}: expected a .npz file, found something else or a broken one; write it with numpy.savez")


def _check_sizes(path: Path, archive: zipfile.ZipFile, names: Sequence[str], max_bytes: int) -> None:
    """Compare the declared size of each array with that of its member, and their sum with the limit.

    Raises:
        DataError: an array is larger than its member, or all are larger than the limit.
    """
    members = set(archive.namelist())
    total = 0
    for name in names:
        member = name if name in members else f"{name}.npy"
        advice = (
            "expected a plain array, objects are never unpickled; store numbers with a numeric dtype, and names of "
            "classes with np.array(names, dtype=str)"
        )
        with parsing(str(path), f"array {name!r} cannot be read", advice), archive.open(member) as stream:
            total += _claimed_bytes(stream, archive.getinfo(member).file_size)
    if total > max_bytes:
        raise DataError(
            f"{path}: its arrays take {total:,} bytes, more than {max_bytes:,}, which is what a file of its size may "
            "expand to; if that is right, raise --data-limit expansion=NUMBER"
        )


def _claimed_bytes(stream: IO[bytes], size: int) -> int:
    """Return the size of the array whose header `stream` is at, if header and array fit into `size` bytes.

    Raises:
        ValueError: they do not, or the array is none of plain values.
    """
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of the format is not read")
    shape, _, dtype = _HEADERS[version](stream)
    if dtype.hasobject:
        raise ValueError("it holds objects")
    if any(isinstance(length, bool) or length < 0 for length in shape):
        raise ValueError(f"its header says shape {shape}")
    claimed = math.prod(shape) * dtype.itemsize
    available = size - stream.tell()
    if claimed > available:
        raise ValueError(f"its header says {claimed:,} bytes of values, and {available:,} are there")
    return claimed


def _member(path: Path, archive: Any, name: str) -> AnyArray:
    advice = "expected a plain array of numbers; store it again, or as .npy files in a folder"
    with parsing(str(path), f"array {name!r} cannot be read", advice):
        array = archive[name]
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path}: {name!r} is not a NumPy array; write the file with numpy.savez")
    return array
