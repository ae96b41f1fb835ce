"""ONNX tensors: the table of element types, and where external data lie.

Element types include bfloat16, which NumPy does not have: held as float32, rounded to its values.

A model names its data files itself, so a foreign model may name anything. A file is read only if

1. its location is a plain relative path, without `..`;
2. behind all links, it lies below the model's folder, or in the folder in which the model's file lies behind all links:
   download caches keep both as links to files in one folder;
3. it is a regular file: a pipe or a device may never end;
4. it has all the bytes that tensors name.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from tna_onnx.errors import UnsupportedModel
from tna_onnx.files import open_regular
from tna_onnx.graph.large_values import is_large, key_of


@dataclass(frozen=True)
class ElementType:
    """How a tensor stores the elements of one type.

    Attributes:
        raw: NumPy dtype of an element of `raw_data`; empty if NumPy has no such type.
        field: the field of a TensorProto that holds the elements where `raw_data` does not.
        cell: NumPy dtype of the bytes that one entry of that field has in `raw_data`.
        bits: size of an element.
    """

    raw: str
    field: str
    cell: str
    bits: int


_TABLE: dict[int, ElementType] = {
    TensorProto.FLOAT: ElementType("<f4", "float_data", "<f4", 32),
    TensorProto.DOUBLE: ElementType("<f8", "double_data", "<f8", 64),
    # ONNX keeps the bits of 16-bit floats in the lower half of an int32.
    TensorProto.FLOAT16: ElementType("<f2", "int32_data", "<u2", 16),
    TensorProto.BFLOAT16: ElementType("", "int32_data", "<u2", 16),
    # Real and imaginary parts are two entries of the field.
    TensorProto.COMPLEX64: ElementType("<c8", "float_data", "<f4", 64),
    TensorProto.COMPLEX128: ElementType("<c16", "double_data", "<f8", 128),
    TensorProto.BOOL: ElementType("?", "int32_data", "u1", 8),
    TensorProto.INT8: ElementType("i1", "int32_data", "u1", 8),
    TensorProto.INT16: ElementType("<i2", "int32_data", "<u2", 16),
    TensorProto.INT32: ElementType("<i4", "int32_data", "<i4", 32),
    TensorProto.INT64: ElementType("<i8", "int64_data", "<i8", 64),
    TensorProto.UINT8: ElementType("u1", "int32_data", "u1", 8),
    TensorProto.UINT16: ElementType("<u2", "int32_data", "<u2", 16),
    TensorProto.UINT32: ElementType("<u4", "uint64_data", "<u4", 32),
    TensorProto.UINT64: ElementType("<u8", "uint64_data", "<u8", 64),
}

# Bits of the types whose elements share bytes, by name: older versions of onnx do not have all of them.
_PACKED = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6, "UINT2": 2, "INT2": 2}

FLOAT_TYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.DOUBLE: "float64",
    TensorProto.BFLOAT16: "bfloat16",
}
"""Element types that a head may have, by the names that NumPy gives them, or would."""

INTEGER_TYPES: dict[int, np.dtype[Any]] = {
    code: np.dtype(_TABLE[code].raw)
    for code in (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16, TensorProto.INT32)
}
"""Element types that a quantised constant may have."""


def element_type(code: int) -> ElementType:
    """Return how a type is stored; types of a byte or less that are not in the table share one form."""
    return _TABLE.get(code, ElementType("", "int32_data", "u1", _PACKED.get(type_name(code).upper(), 8)))


def byte_count(tensor: TensorProto) -> int:
    """Return the number of bytes that a tensor's shape and type ask for."""
    count: int = math.prod(tensor.dims)
    return (count * element_type(tensor.data_type).bits + 7) // 8


def code_of(dtype: np.dtype[Any]) -> int:
    """Return the ONNX element type of a NumPy dtype."""
    return int(onnx.helper.np_dtype_to_tensor_dtype(dtype))


def type_name(code: int) -> str:
    """Return ONNX's name of an element type, in lower case; its number, if ONNX has no such type."""
    names: dict[int, str] = {number: name.lower() for name, number in TensorProto.DataType.items()}
    return names.get(code, str(code))


def numpy_name(code: int) -> str:
    """Return the name that NumPy gives an element type, or ONNX's where NumPy has none."""
    return FLOAT_TYPES.get(code, type_name(code))


TF32_EPSILON = 2.0**-10
"""Relative step between neighbouring numbers of TF32, to which CUDA may round the factors of float32 products."""

_BFLOAT16 = "bfloat16"
# bfloat16 keeps 7 of the 23 bits of a float32's fraction.
_BFLOAT16_EPSILON = 2.0**-7
_BFLOAT16_NAN = np.uint16(0x7FC0)


def numpy_type(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype that holds values of an element type."""
    if name == _BFLOAT16:
        return np.dtype(np.float32)
    return np.dtype(name)


def epsilon(name: str) -> float:
    """Return the relative step between neighbouring numbers of an element type."""
    if name == _BFLOAT16:
        return _BFLOAT16_EPSILON
    return float(np.finfo(name).eps)


def rounded(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Round to an element type; too large numbers become infinite.

    >>> rounded(np.array([1.001]), "bfloat16")
    array([1.], dtype=float32)
    """
    with np.errstate(over="ignore"):
        stored = np.asarray(array, numpy_type(name))
    if name == _BFLOAT16:
        return widened(_bfloat16_bits(stored))
    return stored


def float_tensor(array: NDArray[Any], element_type: str, name: str) -> onnx.TensorProto:
    """Return a TensorProto with raw data."""
    if element_type != _BFLOAT16:
        return numpy_helper.from_array(rounded(array, element_type), name)
    bits = _bfloat16_bits(np.asarray(array, np.float32)).astype("<u2")
    return onnx.helper.make_tensor(name, onnx.TensorProto.BFLOAT16, array.shape, bits.tobytes(), raw=True)


def large_tensor(array: NDArray[Any], element_type: str, name: str, large_values: dict[bytes, Any]) -> onnx.TensorProto:
    """Return a TensorProto with a key in place of raw data, which go to `large_values`; small values stay."""
    value = np.asarray(array, order="C")
    if not is_large(value.nbytes) or element_type == _BFLOAT16 or sys.byteorder != "little":
        return float_tensor(array, element_type, name)
    value = np.asarray(rounded(value, element_type), order="C")
    key = key_of(value)
    large_values[key] = value
    code = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    return onnx.TensorProto(name=name, dims=value.shape, data_type=code, raw_data=key)


def widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the numbers whose bfloat16 bits these are."""
    wide = (np.atleast_1d(bits).astype(np.uint32) << 16).view(np.float32)
    return wide.reshape(bits.shape)


def _bfloat16_bits(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest, ties to even, and keep the upper half of each number."""
    flat = np.asarray(array).reshape(-1)
    bits = np.ascontiguousarray(flat).view(np.uint32).astype(np.uint64)  # the sum below may need 33 bits
    # 0x7FFF + the last bit that stays: halves go up only where that makes the last bit 0.
    upper = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    # A NaN whose set bits all lie in the lower half would become infinite.
    return np.where(np.isnan(flat), _BFLOAT16_NAN, upper).astype(np.uint16).reshape(array.shape)


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
