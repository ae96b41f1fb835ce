"""ONNX tensors: element types (bfloat16 is held as float32), large values of a file, and external data.

Large raw data are taken out before a protobuf is parsed, as it holds what it has parsed and gives out copies. A key
with the SHA-256 of the bytes stands in their place until the file is written. External data are read only if

1. its location is a plain relative path, without `..`;
2. behind all links, it lies below the model's folder, or in the folder where the model's file lies (download caches);
3. it is a regular file: a pipe or a device may never end;
4. it has all the bytes that tensors name.
"""

import hashlib
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from tna_onnx.errors import UnsupportedModel
from tna_onnx.files import model_name_problem, open_regular, resolved

# Bits of an element, by name: older versions of onnx do not have all types. Others have a byte.
_BITS = {
    "FLOAT": 32, "DOUBLE": 64, "FLOAT16": 16, "BFLOAT16": 16, "COMPLEX64": 64, "COMPLEX128": 128, "INT16": 16,
    "INT32": 32, "INT64": 64, "UINT16": 16, "UINT32": 32, "UINT64": 64, "UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4,
    "FLOAT6E2M3": 6, "FLOAT6E3M2": 6, "UINT2": 2, "INT2": 2,
}  # fmt: skip

FLOAT_TYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.DOUBLE: "float64",
    TensorProto.BFLOAT16: "bfloat16",
}
"""Element types that a head may have, by the names that NumPy gives them, or would."""

INTEGER_TYPES: dict[int, np.dtype[Any]] = {
    TensorProto.INT8: np.dtype("i1"),
    TensorProto.UINT8: np.dtype("u1"),
    TensorProto.INT16: np.dtype("<i2"),
    TensorProto.UINT16: np.dtype("<u2"),
    TensorProto.INT32: np.dtype("<i4"),
}
"""Element types that a quantised constant may have."""


def byte_count(tensor: TensorProto) -> int:
    """Return the number of bytes that a tensor's type and shape ask for."""
    count: int = math.prod(tensor.dims)
    return (count * _BITS.get(type_name(tensor.data_type).upper(), 8) + 7) // 8


def type_name(code: int) -> str:
    """Return ONNX's name of an element type, in lower case; its number, if ONNX has no such type."""
    names: dict[int, str] = {number: name.lower() for name, number in TensorProto.DataType.items()}
    return names.get(code, str(code))


TF32_EPSILON = 2.0**-10
"""Relative step between neighbouring numbers of TF32, to which CUDA may round the factors of float32 products."""

_BFLOAT16 = "bfloat16"
_BFLOAT16_DTYPE = onnx.helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
_BFLOAT16_EPSILON = 2.0**-7  # 7 of the 23 bits of a float32's fraction are kept


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
    with np.errstate(over="ignore", invalid="ignore"):  # of signalling NaNs
        stored = np.asarray(array, numpy_type(name))
        if name == _BFLOAT16:
            return stored.astype(_BFLOAT16_DTYPE).astype(np.float32)
    return stored


def float_tensor(array: NDArray[Any], element_type: str, name: str) -> onnx.TensorProto:
    """Return a TensorProto with raw data."""
    value = rounded(array, element_type)
    if element_type == _BFLOAT16:
        value = value.astype(_BFLOAT16_DTYPE)
    return numpy_helper.from_array(value, name)


def large_tensor(array: NDArray[Any], element_type: str, name: str, large_values: dict[bytes, Any]) -> onnx.TensorProto:
    """Return a TensorProto with a key in place of raw data, which go to `large_values`; small values stay."""
    value = np.asarray(array, order="C")
    if value.nbytes < _LARGE or element_type == _BFLOAT16 or sys.byteorder != "little":
        return float_tensor(array, element_type, name)
    value = np.asarray(rounded(value, element_type), order="C")
    key = key_of(value)
    large_values[key] = value
    code = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    return onnx.TensorProto(name=name, dims=value.shape, data_type=code, raw_data=key)


LargeValues: TypeAlias = Mapping[bytes, "bytes | NDArray[Any]"]
"""Key -> value: the raw data, or an array in memory as raw data are, little-endian and in C order."""

# Bytes of raw data from which they are kept apart.
_LARGE = 2**20

_KEY = b"tna-onnx: apart: "
_KEY_LENGTH = len(_KEY) + hashlib.sha256().digest_size

# Numbers of fields, and how a field with a length is encoded (protobuf's wire format).
_GRAPH = 7
_FUNCTIONS = 25
_INITIALIZER = 5
_RAW_DATA = 9
_WITH_LENGTH = 2
_FIXED = {1: 8, 5: 4}

# Fields of one message: nodes of a graph, say.
_MAX_FIELDS = 2**20


class _Unusual(Exception):
    """Bytes that no writer of ONNX files makes."""


@dataclass(frozen=True)
class _Field:
    """A field of an encoded message."""

    number: int  # of the field
    kind: int  # how it is encoded
    start: int  # where it begins
    value: int  # where its value begins
    stop: int  # where it ends


@dataclass(frozen=True)
class _Spot:
    """The raw data of an initializer."""

    tensor: _Field
    raw: _Field


def key_of(value: bytes | NDArray[Any]) -> bytes:
    """Return the key of raw data."""
    return _KEY + hashlib.sha256(_flat(value)).digest()


def digest_in(key: bytes) -> bytes:
    """Return the SHA-256 of the raw data that a key stands for."""
    return key[len(_KEY) :]


def split_off(data: bytes, similar: Mapping[bytes, bytes] | None = None) -> tuple[bytes, dict[bytes, bytes]]:
    """Take large raw data of dense initializers of the main graph out of an encoded model.

    Gives (encoded model with keys, values by key); all of it and nothing where the encoding is an unusual one.
    `similar`: values of a model that has most of them, in this order: equal ones are neither copied nor hashed.
    """
    if len(data) < _LARGE:
        return data, {}
    message = memoryview(data)
    try:
        # they are inlined, within limits that depend on the size of the message
        if any(field.number == _FUNCTIONS for field in _fields(message, 0, len(message))):
            return data, {}
        graph, spots = _spots(message)
    except _Unusual:
        return data, {}
    large = [spot for spot in spots if spot.raw.stop - spot.raw.value >= _LARGE]
    if not large:
        return data, {}
    candidates: defaultdict[int, list[tuple[bytes, bytes]]] = defaultdict(list)
    for key, value in reversed(list((similar or {}).items())):
        candidates[len(value)].append((key, value))
    keys = []
    values: dict[bytes, bytes] = {}
    for spot in large:
        raw = np.frombuffer(message[spot.raw.value : spot.raw.stop], np.uint8)
        key, value = candidates[len(raw)].pop() if candidates[len(raw)] else (b"", b"")
        if not np.array_equal(np.frombuffer(value, np.uint8), raw):
            value = raw.tobytes()  # a copy: arrays on it must begin where numbers may
            key = key_of(value)
        keys.append(memoryview(key))
        values[key] = value
    hollow = b"".join(_replaced(message, graph, list(zip(large, keys, strict=True))))
    # what looks like a key would be taken for one
    if hollow.count(_KEY) != len(keys):
        return data, {}
    return hollow, values


def pieces(proto: onnx.ModelProto, large_values: LargeValues) -> list[memoryview]:
    """Return the encoded model, the same for equal models, in pieces: values are in the places of their keys."""
    message = memoryview(proto.SerializeToString(deterministic=True))
    if not large_values:
        return [message]
    graph, spots = _spots(message, times=2)  # a writer adds some to what was read
    short = (spot for spot in spots if spot.raw.stop - spot.raw.value == _KEY_LENGTH)
    values = [(spot, large_values.get(bytes(message[spot.raw.value : spot.raw.stop]))) for spot in short]
    return _replaced(message, graph, [(spot, _flat(value)) for spot, value in values if value is not None])


def total_size(proto: onnx.ModelProto, large_values: LargeValues) -> int:
    """Return the bytes of the encoded model with all values."""
    # a message without keys may be too large to be encoded
    if not large_values:
        return int(proto.ByteSize())
    return sum(piece.nbytes for piece in pieces(proto, large_values))


def _flat(value: bytes | NDArray[Any]) -> memoryview:
    if isinstance(value, bytes):
        return memoryview(value)
    return np.ravel(value).view(np.uint8).data


def _replaced(message: memoryview, graph: _Field, new: Sequence[tuple[_Spot, memoryview]]) -> list[memoryview]:
    """Return an encoded model with other raw data in some places, ascending, in pieces."""
    inner = []
    at = graph.value
    for spot, value in new:
        content = [
            message[spot.tensor.value : spot.raw.start],
            *_with_length(_RAW_DATA, [value]),
            message[spot.raw.stop : spot.tensor.stop],
        ]
        inner += [message[at : spot.tensor.start], *_with_length(_INITIALIZER, content)]
        at = spot.tensor.stop
    inner.append(message[at : graph.stop])
    return [message[: graph.start], *_with_length(_GRAPH, inner), message[graph.stop :]]


def _with_length(number: int, content: Sequence[memoryview]) -> list[memoryview]:
    """Encode a field with a length."""
    length = sum(part.nbytes for part in content)
    head = bytearray([number << 3 | _WITH_LENGTH])
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return [memoryview(bytes(head)), *content]


def _spots(message: memoryview, times: int = 1) -> tuple[_Field, list[_Spot]]:
    """Return the graph of an encoded model, and its initializers that have raw data."""
    graph = _only([field for field in _fields(message, 0, len(message)) if field.number == _GRAPH])
    if graph is None:
        raise _Unusual
    spots = []
    for tensor in _fields(message, graph.value, graph.stop, times):
        if tensor.number != _INITIALIZER:
            continue
        if tensor.kind != _WITH_LENGTH:
            raise _Unusual
        inner = _fields(message, tensor.value, tensor.stop)
        raw = _only([field for field in inner if field.number == _RAW_DATA])
        if raw is not None:
            spots.append(_Spot(tensor, raw))
    return graph, spots


def _only(fields: Sequence[_Field]) -> _Field | None:
    """Return a field that stands once, or None; of a field that stands again, a parser would merge all."""
    if len(fields) > 1 or any(field.kind != _WITH_LENGTH for field in fields):
        raise _Unusual
    if not fields:
        return None
    return fields[0]


def _fields(message: memoryview, at: int, stop: int, times: int = 1) -> Iterator[_Field]:
    """Yield the fields of a message."""
    for _ in range(times * _MAX_FIELDS):
        if at == stop:
            return
        start = at
        tag, at = _varint(message, at, stop)
        kind = tag & 7
        value = at
        if kind == 0:
            _, at = _varint(message, at, stop)
        elif kind == _WITH_LENGTH:
            length, value = _varint(message, at, stop)
            at = value + length
        elif kind in _FIXED:
            at += _FIXED[kind]
        else:  # groups, which ONNX has none of
            raise _Unusual
        if at > stop:
            raise _Unusual
        yield _Field(tag >> 3, kind, start, value, at)
    # a number of each element by itself, which would take minutes here
    raise _Unusual


def _varint(message: memoryview, at: int, stop: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, lowest first, and where it ends."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= stop:
            break
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise _Unusual


# What external data say of their place; the checksum is of the whole file.
_PLACE = ("location", "offset", "length", "checksum")

# Of the largest file that any system has; its double is still a 64-bit number for ONNX Runtime.
_MAX_DIGITS = 18
# Characters of what stands in the place of a number, in a message.
_MAX_SHOWN = 40


@dataclass(frozen=True)
class Place:
    """A range of bytes in a file."""

    location: str  # the file, relative to the model's folder
    offset: int  # first byte
    length: int  # number of bytes, as type and shape have it

    @property
    def end(self) -> int:
        """First byte behind the range."""
        return self.offset + self.length

    def overlaps(self, second: "Place") -> bool:
        """Whether two places have bytes in common."""
        return self.location == second.location and self.offset < second.end and second.offset < self.end


def is_external(tensor: TensorProto) -> bool:
    """Whether a tensor's data lie in another file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def place_of(tensor: TensorProto) -> Place:
    """Return where the data of an external tensor lie."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if any(isinstance(text, bytes) for entry in entries.items() for text in entry):
        raise UnsupportedModel(f"tensor '{tensor.name}' has external data in a place that is not UTF-8 text")
    # ONNX Runtime takes packed weights from further places, in place of the tensor; of two words, runtimes take either
    unusual = Counter(entry.key for entry in tensor.external_data) - Counter(_PLACE)
    if unusual:
        raise UnsupportedModel(
            f"tensor '{tensor.name}' has external data with the word '{min(unusual)[:_MAX_SHOWN]}' or has it twice; "
            "expected location, offset, length and checksum, once each; "
            "`onnx.save(onnx.load(FILE), NEW, save_as_external_data=True)` writes such a model"
        )
    offset = _number(tensor, "offset", entries.get("offset", "0"))
    length = byte_count(tensor)
    stated = _number(tensor, "length", entries.get("length", str(length)))
    if stated != length:
        raise UnsupportedModel(
            f"tensor '{tensor.name}' has external data of {stated:,} bytes; expected {length:,} for its type and shape"
        )
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
    folder = resolved(model.parent)
    file = resolved(folder / location)
    if problem := model_name_problem(file):
        raise UnsupportedModel(f"{model}: external data '{location}' cannot be read: {problem}")
    home = resolved(model).parent
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
            f"{model}: external data '{location}' is missing in {model.parent.absolute()}; copy it there too"
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
