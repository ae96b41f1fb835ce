"""External tensor data: one file of its own for a written model, with every byte that was not changed.

Each file that the source keeps data in is copied whole, one behind the other, so that tensors keep their order and
alignment; a new value of the same size is written over the old one, unless another tensor has the same bytes. The
source's files are only read.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import BinaryIO

import onnx

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.load import Model
from tna_onnx.graph.places import is_external, place_of
from tna_onnx.graph.traverse import all_tensors

__all__ = ["real_places", "write_external"]

# Runtimes map tensors straight from the file; 64 KB is the coarsest granularity of the systems they run on.
_ALIGNMENT = 2**16


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
    tensors = [tensor for tensor in all_tensors(proto.graph) if is_external(tensor)]
    if not tensors:
        return None
    locations = {place_of(tensor).location for tensor in tensors}
    real = {location: model.data_path(location).resolve() for location in locations}
    # Links, as download caches have them, may lead to several folders; ONNX Runtime takes places below one.
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
    with target.open("xb") as out:  # in a folder of its own: nothing may be there
        starts = {location: _append(model, location, out) for location in model.external_files}
        for before, after in zip(model.proto.graph.initializer, proto.graph.initializer, strict=False):
            if not is_external(before) or is_external(after):
                continue
            place = place_of(before)
            if len(after.raw_data) != place.length or _overlapped(model, before):
                continue  # the new value stays inside the model
            out.seek(starts[place.location] + place.offset)
            out.write(after.raw_data)
            # Back to where it was: the model stays small enough for one protobuf.
            after.ClearField("raw_data")
            after.data_location = onnx.TensorProto.EXTERNAL
            after.external_data.extend(before.external_data)
    # Last: above, places are still those of the source.
    for tensor in filter(is_external, all_tensors(proto.graph)):
        _move(tensor, starts, target.name)


def _overlapped(model: Model, tensor: onnx.TensorProto) -> bool:
    """Whether another tensor has some of the same bytes: writers may store equal tensors once."""
    place = place_of(tensor)
    others = (other for other in all_tensors(model.proto.graph) if other is not tensor and is_external(other))
    return any(place_of(other).overlaps(place) for other in others)


def _append(model: Model, location: str, out: BinaryIO) -> int:
    """Copy one file to the end of another; returns where it starts."""
    source = model.data_path(location)
    start = -(-out.seek(0, 2) // _ALIGNMENT) * _ALIGNMENT  # the end, rounded up
    out.seek(start)
    try:
        stream = source.open("rb")
    except FileNotFoundError as error:
        raise UnsupportedModel(f"{model.name}: external data '{location}' is missing in {model.folder}") from error
    except OSError as error:
        raise UnsupportedModel(f"{model.name}: external data '{location}' cannot be read: {error.strerror}") from error
    with stream:
        shutil.copyfileobj(stream, out, 2**22)  # 4 MiB at a time: files may be larger than memory
    _check_length(model, location, out.tell() - start)
    return start


def _check_length(model: Model, location: str, length: int) -> None:
    for tensor in filter(is_external, all_tensors(model.proto.graph)):
        place = place_of(tensor)
        if place.location == location and place.end > length:
            raise UnsupportedModel(
                f"{model.name}: external data '{location}' has {length:,} bytes, but tensor '{tensor.name}' ends at "
                f"{place.end:,}"
            )


def _move(tensor: onnx.TensorProto, starts: dict[str, int], name: str) -> None:
    """Refer to the new file, which may go on behind the tensor where the old one ended."""
    place = place_of(tensor)
    entries = {entry.key: entry.value for entry in tensor.external_data}
    entries.pop("checksum", None)  # of the old file as a whole
    entries["location"] = name
    entries["offset"] = str(starts.get(place.location, 0) + place.offset)
    entries["length"] = str(place.length)
    del tensor.external_data[:]
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
