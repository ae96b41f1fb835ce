"""External tensor data: one file of its own for a written model, with every byte that was not changed.

Each file that the source keeps data in is copied whole, one behind the other, so that tensors keep their order and
alignment; a new value of the same size is written over the old one, unless another tensor has the same bytes. The
source's files are only read.
"""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from typing import BinaryIO

import onnx

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.load import Model, all_tensors

__all__ = ["external_placeless", "real_places", "write_external"]

# Runtimes map tensors straight from the file; 64 KB is the coarsest granularity of the systems they run on.
_ALIGNMENT = 2**16

# Types whose elements share a byte, by name: older versions of onnx do not have all of them.
_BITS = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2}


def external_placeless(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """Return a copy that says how long the data are, and not in which file, and where in it, they lie."""
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    del copy.external_data[:]
    copy.external_data.add(key="length", value=str(_length(tensor)))
    return copy


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
    tensors = [tensor for tensor in all_tensors(proto.graph) if _external(tensor)]
    if not tensors:
        return None
    real = {location: model.data_path(location).resolve() for location in {_place(tensor)[0] for tensor in tensors}}
    folder = Path(os.path.commonpath([path.parent for path in real.values()]))
    for tensor in tensors:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = real[entry.value].relative_to(folder).as_posix()
    return folder


def write_external(model: Model, proto: onnx.ModelProto, target: Path) -> None:
    """Copy the source's external data into `target`, with new values in their places, and let `proto` refer to it.

    Args:
        model: the source.
        proto: the new model, edited here: places of external data, and new values that move out of it.
        target: file to write; the model that is written beside it refers to it by its name.

    Raises:
        UnsupportedModel: a file is missing, unreadable, outside the model's folder, or shorter than its tensors say.
        OSError: the target cannot be written.
    """
    with target.open("xb") as out:
        starts = {location: _append(model, location, out) for location in model.external_files}
        for before, after in zip(model.proto.graph.initializer, proto.graph.initializer, strict=False):
            if not _external(before) or _external(after):
                continue
            if len(after.raw_data) != _length(before) or _overlapped(model, before):
                continue  # the new value stays inside the model
            location, offset = _place(before)
            out.seek(starts[location] + offset)
            out.write(after.raw_data)
            after.ClearField("raw_data")
            after.data_location = onnx.TensorProto.EXTERNAL
            after.external_data.extend(before.external_data)
    for tensor in filter(_external, all_tensors(proto.graph)):
        _move(tensor, starts, target.name)


def _external(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def _place(tensor: onnx.TensorProto) -> tuple[str, int]:
    """Return the file and the offset."""
    entries = {e.key: e.value for e in tensor.external_data}
    return entries.get("location", ""), _number(tensor, "offset", entries.get("offset", "0"))


def _number(tensor: onnx.TensorProto, key: str, text: str) -> int:
    if not text.isdecimal():
        raise UnsupportedModel(f"tensor '{tensor.name}' has external data with the {key} '{text}'; expected a number")
    return int(text)


def _length(tensor: onnx.TensorProto) -> int:
    """Return the number of bytes, from the shape where the tensor does not say it."""
    stated = next((e.value for e in tensor.external_data if e.key == "length"), None)
    if stated is not None:
        return _number(tensor, "length", stated)
    count = int(math.prod(tensor.dims))
    bits: int | None = _BITS.get(onnx.TensorProto.DataType.Name(tensor.data_type))
    if bits is None:
        bits = 8 * int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    return (count * bits + 7) // 8


def _overlapped(model: Model, tensor: onnx.TensorProto) -> bool:
    """Whether another tensor has some of the same bytes: writers may store equal tensors once."""
    location, start = _place(tensor)
    end = start + _length(tensor)
    for other in filter(_external, all_tensors(model.proto.graph)):
        file, offset = _place(other)
        if other is not tensor and file == location and offset < end and start < offset + _length(other):
            return True
    return False


def _append(model: Model, location: str, out: BinaryIO) -> int:
    """Copy one file to the end of another; returns where it starts."""
    source = model.data_path(location)
    start = -(-out.seek(0, 2) // _ALIGNMENT) * _ALIGNMENT
    out.seek(start)
    try:
        stream = source.open("rb")
    except FileNotFoundError as error:
        raise UnsupportedModel(f"{model.name}: external data '{location}' is missing in {model.folder}") from error
    except OSError as error:
        raise UnsupportedModel(f"{model.name}: external data '{location}' cannot be read: {error.strerror}") from error
    with stream:
        shutil.copyfileobj(stream, out, 2**22)
    _check_length(model, location, out.tell() - start)
    return start


def _check_length(model: Model, location: str, length: int) -> None:
    for tensor in filter(_external, all_tensors(model.proto.graph)):
        file, offset = _place(tensor)
        if file == location and offset + _length(tensor) > length:
            raise UnsupportedModel(
                f"{model.name}: external data '{location}' has {length:,} bytes, but tensor '{tensor.name}' ends at "
                f"{offset + _length(tensor):,}"
            )


def _move(tensor: onnx.TensorProto, starts: dict[str, int], name: str) -> None:
    """Refer to the new file, which may go on behind the tensor where the old one ended."""
    location, offset = _place(tensor)
    place = {e.key: e.value for e in tensor.external_data if e.key != "checksum"}
    place |= {"location": name, "offset": str(starts.get(location, 0) + offset), "length": str(_length(tensor))}
    del tensor.external_data[:]
    for key, value in place.items():
        tensor.external_data.add(key=key, value=value)
