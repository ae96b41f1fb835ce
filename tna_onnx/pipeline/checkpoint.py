"""A recalibrated head in the checkpoint that the model was exported from, a .safetensors file of PyTorch, say.

An export may rename and transpose weights, so that they are found by their values: the tensor of the checkpoint that
equals the old weight of the ONNX file gets the new one, in its own type and orientation. All other bytes stay.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError, UnsupportedModel, UsageError
from tna_onnx.files import open_regular, write_file
from tna_onnx.graph.load import Model
from tna_onnx.graph.tensors import float_tensor, widened
from tna_onnx.graph.written_values import new_values

_HEADER = 2**27  # bytes of a header at most, as the format's own reader has it
_TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, eq=False)
class _Tensor:
    """A tensor of a checkpoint: its name, its type in the format's words, its shape and the place of its bytes."""

    name: str
    type: str
    shape: tuple[int, ...]
    start: int
    end: int


def write_checkpoint(source: Model, file: Model, checkpoint: Path, target: Path) -> None:
    """Write a checkpoint anew, with the head of a recalibrated model.

    Args:
        source: the model, exported from the checkpoint.
        file: the recalibrated model.
        checkpoint: the .safetensors file.
        target: file to write.

    Raises:
        UsageError: the checkpoint cannot be read.
        DataError: it is damaged, or does not hold the model's head.
        UnsupportedModel: the calibration has more than new values of the model's own tensors.
    """
    content, tensors = _read(checkpoint)
    written = bytearray(content)
    for name, (old, new) in _changes(source, file).items():
        tensor, turned = _find(name, old, tensors, content, checkpoint)
        values = new.T if turned else new
        stored = float_tensor(np.ascontiguousarray(values), _TYPES[tensor.type], name)
        written[tensor.start : tensor.end] = stored.raw_data
    write_file(target, bytes(written))


def _changes(source: Model, file: Model) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    """Return old and new values of all tensors that a calibration has changed, by name."""
    names = list(new_values(source, file))
    appended = list(source.proto.graph.node) != list(file.proto.graph.node)
    if appended or any(name not in source.initializers for name in names):
        raise UnsupportedModel(
            f"{source.name}: the calibration has nodes or a bias that the model did not have, and a checkpoint holds "
            "values of the model's own tensors; use --map ts, svs, bias or refit"
        )
    return {name: (source.array(source.initializers[name]), file.array(file.initializers[name])) for name in names}


def _read(path: Path) -> tuple[bytes, list[_Tensor]]:
    """Return the bytes of a checkpoint, and what its header says."""
    try:
        with open_regular(path) as stream:
            content = stream.read()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    size = int.from_bytes(content[:8], "little")
    try:
        if not 2 <= size <= min(_HEADER, len(content) - 8):
            raise ValueError(f"a header of {size:,} bytes")
        header = json.loads(content[8 : 8 + size])
        header.pop("__metadata__", None)
        tensors = [_tensor(name, about, 8 + size) for name, about in header.items()]
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged, or no .safetensors file ({error})") from error
    broken = next((each for each in tensors if not 8 + size <= each.start <= each.end <= len(content)), None)
    if broken is not None:
        raise DataError(f"{path}: damaged: the values of '{broken.name}' are not within the file")
    return content, tensors


def _tensor(name: str, about: dict[str, Any], offset: int) -> _Tensor:
    start, end = (offset + int(place) for place in about["data_offsets"])
    return _Tensor(name, str(about["dtype"]), tuple(int(length) for length in about["shape"]), start, end)


def _find(name: str, old: NDArray[Any], tensors: list[_Tensor], content: bytes, path: Path) -> tuple[_Tensor, bool]:
    """Return the one tensor that holds the old values, and whether it holds them transposed."""
    found = []
    for tensor in tensors:
        if tensor.type not in _TYPES or np.prod(tensor.shape) != old.size:
            continue
        values = _values(content[tensor.start : tensor.end], tensor.type)
        if np.array_equal(values, old.reshape(-1)):
            found.append((tensor, False))
        elif old.ndim == 2 and np.array_equal(values, old.T.reshape(-1)):
            found.append((tensor, True))
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"'{tensor.name}'" for tensor, _ in found)
    raise DataError(
        f"{path}: {f'{names} all hold' if found else 'no tensor holds'} the values of '{name}'; expected the "
        "checkpoint that the model was exported from, with its weight in one place"
    )


def _values(stored: bytes, kind: str) -> NDArray[Any]:
    if kind == "BF16":
        return widened(np.frombuffer(stored, "<u2"))
    return np.frombuffer(stored, np.dtype(_TYPES[kind]).newbyteorder("<"))
