"""Large values of a file, kept apart from its protobuf.

A protobuf gives out a value as a copy only, and keeps its room until the whole message goes: a model that is one large
weight would be in memory several times. So large raw data are taken out before a file is parsed. A key stands in their
place, and whoever writes the message puts them back on the way to the file.

    graph { initializer { raw_data: BYTES } }   <->   graph { initializer { raw_data: KEY } }, {KEY: BYTES}

A key holds the SHA-256 of the bytes: two keys are equal where the values are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

Apart: TypeAlias = Mapping[bytes, "bytes | NDArray[Any]"]
"""Key -> value: the raw data, or an array in memory as raw data are, little-endian and in C order."""

# Bytes of raw data from which they are kept apart.
_LARGE = 2**24

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
    """A field of an encoded message.

    Attributes:
        number: of the field.
        kind: how it is encoded.
        start: where it begins.
        value: where its value begins.
        stop: where it ends.
    """

    number: int
    kind: int
    start: int
    value: int
    stop: int


@dataclass(frozen=True)
class _Spot:
    """The raw data of an initializer."""

    tensor: _Field
    raw: _Field


def is_large(size: int) -> bool:
    """Return whether raw data of so many bytes are kept apart."""
    return size >= _LARGE


def key_of(value: bytes | NDArray[Any]) -> bytes:
    """Return the key of raw data."""
    return _KEY + hashlib.sha256(_flat(value)).digest()


def take_apart(data: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Take large raw data of dense initializers of the main graph out of an encoded model.

    Returns:
        (encoded model with keys, values by key); all of it and nothing where the encoding is an unusual one.
    """
    # what looks like a key would be taken for one
    if not is_large(len(data)) or _KEY in data:
        return data, {}
    message = memoryview(data)
    try:
        # they are inlined, within limits that depend on the size of the message
        if any(field.number == _FUNCTIONS for field in _fields(message, 0, len(message))):
            return data, {}
        graph, spots = _spots(message)
    except _Unusual:
        return data, {}
    large = [spot for spot in spots if is_large(spot.raw.stop - spot.raw.value)]
    if not large:
        return data, {}
    # copies: arrays on them must begin where numbers may
    values = [bytes(message[spot.raw.value : spot.raw.stop]) for spot in large]
    keys = [key_of(value) for value in values]
    parts = _replaced(message, graph, [(spot, memoryview(key)) for spot, key in zip(large, keys, strict=True)])
    return b"".join(parts), dict(zip(keys, values, strict=True))


def pieces(proto: onnx.ModelProto, large_values: Apart) -> list[memoryview]:
    """Return the encoded model, the same for equal models, in pieces: values are in the places of their keys."""
    message = memoryview(proto.SerializeToString(deterministic=True))
    if not large_values:
        return [message]
    graph, spots = _spots(message)
    short = (spot for spot in spots if spot.raw.stop - spot.raw.value == _KEY_LENGTH)
    values = [(spot, large_values.get(bytes(message[spot.raw.value : spot.raw.stop]))) for spot in short]
    return _replaced(message, graph, [(spot, _flat(value)) for spot, value in values if value is not None])


def total_size(proto: onnx.ModelProto, large_values: Apart) -> int:
    """Return the bytes of the encoded model with all values."""
    # a message without keys may be too large to be encoded
    if not large_values:
        return int(proto.ByteSize())
    return sum(piece.nbytes for piece in pieces(proto, large_values))


def _flat(value: bytes | NDArray[Any]) -> memoryview:
    return memoryview(value) if isinstance(value, bytes) else np.ravel(value).view(np.uint8).data


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


def _spots(message: memoryview) -> tuple[_Field, list[_Spot]]:
    """Return the graph of an encoded model, and its initializers that have raw data."""
    graph = _only([field for field in _fields(message, 0, len(message)) if field.number == _GRAPH])
    if graph is None:
        raise _Unusual
    spots = []
    for tensor in _fields(message, graph.value, graph.stop):
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
    return fields[0] if fields else None


def _fields(message: memoryview, at: int, stop: int) -> Iterator[_Field]:
    """Yield the fields of a message."""
    for _ in range(_MAX_FIELDS):
        if at == stop:
            return
        start = at
        tag, at = _number(message, at, stop)
        kind = tag & 7
        value = at
        if kind == 0:
            _, at = _number(message, at, stop)
        elif kind == _WITH_LENGTH:
            length, value = _number(message, at, stop)
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


def _number(message: memoryview, at: int, stop: int) -> tuple[int, int]:
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
