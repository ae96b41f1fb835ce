"""External tensor data: one file of its own for a written model, with every byte that was not changed.

Each file that the source keeps data in is copied whole, one behind the other, so that tensors keep their order and
alignment; a new value of the same size is written over the old one. The source's files are only read.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import BinaryIO

import onnx

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.load import Model, all_tensors

__all__ = ["external_placeless", "write_external"]

# Runtimes map tensors straight from the file; 64 KB is the coarsest granularity of the systems they run on.
_ALIGNMENT = 2**16


def external_placeless(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """Return a copy that does not say in which file, and where in it, the data lie."""
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    kept = [(e.key, e.value) for e in tensor.external_data if e.key == "length"]
    del copy.external_data[:]
    for key, value in kept:
        copy.external_data.add(key=key, value=value)
    return copy


def write_external(model: Model, proto: onnx.ModelProto, target: Path) -> None:
    """Copy the source's external data into `target`, with new values in their places, and let `proto` refer to it.

    Args:
        model: the source.
        proto: the new model, edited here: places of external data, and new values that move out of it.
        target: file to write; the model that is written beside it refers to it by its name.

    Raises:
        UnsupportedModel: a file is missing, outside the model's folder, or shorter than its tensors say.
        OSError: the target cannot be written.
    """
    starts: dict[str, int] = {}
    with target.open("xb") as out:
        for location in model.external_files:
            starts[location] = _append(model, location, out)
        for before, after in zip(model.proto.graph.initializer, proto.graph.initializer, strict=False):
            if before.data_location != onnx.TensorProto.EXTERNAL or after.data_location == onnx.TensorProto.EXTERNAL:
                continue
            place = {e.key: e.value for e in before.external_data}
            if len(after.raw_data) != int(place.get("length", len(after.raw_data))):
                continue  # another size: the new value stays inside the model
            out.seek(starts[place["location"]] + int(place.get("offset", 0)))
            out.write(after.raw_data)
            after.ClearField("raw_data")
            after.data_location = onnx.TensorProto.EXTERNAL
            after.external_data.extend(before.external_data)
    for tensor in all_tensors(proto.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _move(tensor, starts, target.name)


def _append(model: Model, location: str, out: BinaryIO) -> int:
    """Copy one file to the end of another; returns where it starts."""
    source = model.folder / location
    if not source.resolve().is_relative_to(model.folder.resolve()):
        raise UnsupportedModel(f"{model.name}: external data '{location}' lie outside the model's folder")
    start = -(-out.seek(0, 2) // _ALIGNMENT) * _ALIGNMENT
    out.seek(start)
    try:
        with source.open("rb") as stream:
            shutil.copyfileobj(stream, out, 2**22)
    except FileNotFoundError as error:
        raise UnsupportedModel(f"{model.name}: external data '{location}' is missing in {model.folder}") from error
    return start


def _move(tensor: onnx.TensorProto, starts: dict[str, int], name: str) -> None:
    place = {e.key: e.value for e in tensor.external_data}
    start = starts.get(place.get("location", ""), 0)
    place["location"] = name
    if start or "offset" in place:
        place["offset"] = str(start + int(place.get("offset", 0)))
    place.pop("checksum", None)
    del tensor.external_data[:]
    for key, value in place.items():
        tensor.external_data.add(key=key, value=value)
