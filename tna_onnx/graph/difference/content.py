"""The elements of a tensor as bytes and as numbers, block by block, wherever they lie."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.dtypes import element_type
from tna_onnx.graph.floats import widened
from tna_onnx.graph.load import Model
from tna_onnx.graph.places import is_external, place_of

__all__ = ["CONTENT", "content_size", "largest_change", "ratio", "same_content"]

CONTENT = {
    "raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data",
    "external_data", "data_location",
}  # fmt: skip
"""Fields that say what a tensor's elements are and where they lie."""

# Bytes of a tensor compared at a time; a multiple of the size of every element.
_BLOCK = 2**24


def same_content(old: Model, before: TensorProto, new: Model, after: TensorProto) -> bool:
    """Whether two tensors have the same bytes."""
    pairs = zip_longest(_blocks(old, before), _blocks(new, after), fillvalue=b"")
    return all(x == y for x, y in pairs)


def content_size(model: Model, tensor: TensorProto) -> int:
    """Return the number of bytes that are there; a damaged tensor may have fewer or more than its shape says."""
    return sum(map(len, _blocks(model, tensor)))


def largest_change(
    old: Model, before: TensorProto, new: Model, after: TensorProto
) -> tuple[float | None, float | None]:
    """Return the largest |new - old|, and the same over the largest |old|; None where there is no such number."""
    largest = 0.0
    size = 0.0
    for x, y in zip_longest(_blocks(old, before), _blocks(new, after), fillvalue=b""):
        a = _numbers(x, before.data_type)
        b = _numbers(y, after.data_type)
        if a is None or b is None or a.shape != b.shape:
            return None, None
        with np.errstate(invalid="ignore"):
            change = np.abs(np.where(a == b, 0, b - a))
        largest = float(np.max(change, initial=largest))
        size = float(np.max(np.abs(a), initial=size))
    return ratio(largest, size)


def ratio(largest: float, size: float) -> tuple[float | None, float | None]:
    """Return a change, and the same relative to a size; None where there is no such number."""
    if not np.isfinite(largest):
        return None, None
    if not np.isfinite(size) or size <= 0:
        return largest, None
    return largest, largest / size


def _numbers(block: bytes, data_type: int) -> NDArray[Any] | None:
    """Return the elements of a block in double precision; None for types that NumPy does not have."""
    if data_type == TensorProto.BFLOAT16 and len(block) % 2 == 0:
        return widened(np.frombuffer(block, "<u2")).astype(np.float64)
    raw = element_type(data_type).raw
    if not raw or len(block) % np.dtype(raw).itemsize:
        return None
    numbers = np.frombuffer(block, raw)
    with np.errstate(invalid="ignore"):  # of signalling NaNs
        return numbers.astype(np.complex128 if numbers.dtype.kind == "c" else np.float64)


def _blocks(model: Model, tensor: TensorProto) -> Iterator[bytes]:
    """Yield the elements as raw data, `_BLOCK` bytes at a time."""
    if is_external(tensor):
        yield from _external_blocks(model, tensor)
        return
    data = model.data_apart(tensor)
    if data is None:
        data = tensor.raw_data if tensor.HasField("raw_data") else _typed_bytes(tensor)
    if len(data) <= _BLOCK:
        yield data
    else:
        yield from (data[start : start + _BLOCK] for start in range(0, len(data), _BLOCK))


def _typed_bytes(tensor: TensorProto) -> bytes:
    """Return the elements as raw data would hold them, from the field of their type."""
    if tensor.data_type == TensorProto.STRING:
        # With its length in front, ["ab", "c"] differs from ["a", "bc"].
        return b"".join(len(s).to_bytes(8, "little") + s for s in tensor.string_data)
    kind = element_type(tensor.data_type)
    entries = getattr(tensor, kind.field)
    if kind.field == "int32_data":  # negative numbers and bits of floats: the lower bytes of each entry
        return np.array(entries, "<i4").astype(kind.cell).tobytes()
    if kind.field == "uint64_data":
        return np.array(entries, "<u8").astype(kind.cell).tobytes()
    return np.array(entries, kind.cell).tobytes()


def _external_blocks(model: Model, tensor: TensorProto) -> Iterator[bytes]:
    place = place_of(tensor)
    # The place may be damaged, too: every message names the model and the tensor.
    where = f"{model.name}: external data '{place.location}' of tensor '{tensor.name}'"
    left = place.length
    try:
        with model.open_data(place.location) as stream:
            stream.seek(place.offset)
            while left > 0:
                block = stream.read(min(left, _BLOCK))
                if len(block) < min(left, _BLOCK):
                    raise UnsupportedModel(f"{where}: the file ends too early; expected {left:,} bytes more")
                left -= len(block)
                yield block
    except OSError as error:
        raise UnsupportedModel(f"{where} cannot be read: {error}") from error
