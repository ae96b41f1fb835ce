"""Named arrays in a `.npz` archive or a mapping, and the array in a `.npy` file. Nothing is ever unpickled.

The size that a header declares is compared with the bytes in the file before anything is allocated.
"""

from __future__ import annotations

import contextlib
import math
import os
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from tna_onnx.data.digest import arrays_sha256, stream_sha256
from tna_onnx.data.foreign import any_array, open_foreign, parsing
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tna_onnx.data.choices import Limits
    from tna_onnx.data.source import AnyArray, IntArray

# Version 3 has names of fields in UTF-8: it is for structured arrays only.
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(eq=False)
class NpzArrays:
    """Arrays of an open archive; made by `open_npz`."""

    where: str  # what messages start with: the path
    title: str  # what reports call the file
    names: list[str]  # of all arrays
    archive: Any = field(repr=False)  # NumPy's
    stream: Any = field(repr=False)  # the file that it reads
    max_bytes: int  # what its arrays may take
    _arrays: dict[str, AnyArray] = field(default_factory=dict, repr=False)
    _claimed: int = 0
    _sha256: str = ""

    def column(self, name: str) -> AnyArray:
        """Return an array, rows along axis 0; it is loaded once."""
        if name not in self._arrays:
            if not self._sha256:
                self.stream.seek(0)
                self._sha256 = stream_sha256(self.stream).hex()
            self._check_size(name)
            advice = "expected a plain array of numbers; store it again"
            with parsing(self.where, f"array {name!r} cannot be read", advice):
                array = self.archive[name]
            if not isinstance(array, np.ndarray):
                raise DataError(f"{self.where}: {name!r} is not a NumPy array; write the file with numpy.savez")
            self._arrays[name] = array
        return self._arrays[name]

    def digest(self, names: Sequence[str], labels: IntArray) -> str:  # noqa: ARG002 - all of the file counts
        """Return the SHA-256 of the file that was read, even if another one has taken its place."""
        return self._sha256

    def _check_size(self, name: str) -> None:
        archive = self.archive.zip
        member = name if name in archive.namelist() else f"{name}.npy"
        advice = (
            "expected a plain array, objects are never unpickled; store numbers with a numeric dtype, and names of "
            "classes with np.array(names, dtype=str)"
        )
        with parsing(self.where, f"array {name!r} cannot be read", advice), archive.open(member) as stream:
            self._claimed += _claimed_bytes(stream, archive.getinfo(member).file_size)
        if self._claimed > self.max_bytes:
            raise DataError(
                f"{self.where}: its arrays take {self._claimed:,} bytes, more than {self.max_bytes:,}, which is what a "
                "file of its size may expand to; if that is right, raise --limit expansion=NUMBER"
            )


@contextlib.contextmanager
def open_npz(path: Path, limits: Limits) -> Iterator[NpzArrays]:
    """Open a `.npz` file for a block."""
    with contextlib.ExitStack() as stack:
        archive = None
        with parsing(str(path), "cannot be read", "write it again with numpy.savez"):
            stream = stack.enter_context(open_foreign(path))
            # Checked before NumPy opens it: of other files NumPy reads any length, and its message is about pickles.
            if zipfile.is_zipfile(stream):
                stream.seek(0)
                archive = np.load(stream, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            problem = "expected a .npz file, found something else or a broken one; write it with numpy.savez"
            raise DataError(f"{path}: {problem}")
        size = os.fstat(stream.fileno()).st_size
        yield NpzArrays(str(path), path.name, archive.files, archive, stream, limits.expanded_bytes(size))


def read_npy(path: Path) -> AnyArray:
    """Return the array in a `.npy` file."""
    advice = "objects are never unpickled. Write it with numpy.save"
    with parsing(str(path), "cannot be read as an array of numbers", advice), open_foreign(path) as stream:
        _claimed_bytes(stream, os.fstat(stream.fileno()).st_size)
        stream.seek(0)
        return np.lib.format.read_array(stream, allow_pickle=False)


def _claimed_bytes(stream: IO[bytes], size: int) -> int:
    """Return the size of the array whose header `stream` is at, if header and array fit into `size` bytes."""
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


@dataclass(eq=False)
class MappingArrays:
    """Arrays in memory, of NumPy or any library that gives such."""

    where: str  # what messages start with
    values: Mapping[str, Any] = field(repr=False)
    title: ClassVar[str] = ""

    @property
    def names(self) -> list[str]:
        """Names of all arrays."""
        return [*self.values]

    def column(self, name: str) -> AnyArray:
        """Return an array, rows along axis 0."""
        return any_array(self.values[name])

    def digest(self, names: Sequence[str], labels: IntArray) -> str:
        """Return the digest of the values."""
        return arrays_sha256({name: self.column(name) for name in names}, labels)


StoredArrays: TypeAlias = NpzArrays | MappingArrays
"""Arrays by name, as `column`, and their `digest` with labels."""
