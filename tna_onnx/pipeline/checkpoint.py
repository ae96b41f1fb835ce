"""A recalibrated head in the checkpoint that the model was exported from, a .safetensors file of PyTorch, say.

An export may rename and transpose weights, so that they are found by their values: the tensor of the checkpoint that
equals the old weight of the ONNX file gets the new one, in its own type and orientation. All other bytes stay.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError, UnsupportedModel, UsageError
from tna_onnx.files import open_regular
from tna_onnx.graph.load import Model
from tna_onnx.graph.tensors import FLOAT_TYPES, float_tensor, rounded, widened
from tna_onnx.graph.written_values import new_values

_HEADER = 2**27  # bytes of a header at most, as the format's own reader has it

TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
"""What a .safetensors file calls the types of its tensors -> what NumPy, or ONNX, does."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of a .safetensors file.

    Attributes:
        name: as there.
        type: of its elements, as NumPy calls it; empty for another one, which is not read.
        shape: of its values.
        start: first byte of the values in the file.
        end: the byte behind them.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(content: bytes) -> tuple[dict[str, str], list[Tensor]]:
    """Return the metadata and the tensors of a .safetensors file, which is given as its bytes.

    Raises AttributeError, LookupError, RecursionError, TypeError, ValueError: it is none, or damaged.
    """
    size = int.from_bytes(content[:8], "little")
    if not 2 <= size <= min(_HEADER, len(content) - 8):
        raise ValueError(f"a header of {size:,} bytes")
    header = json.loads(content[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    tensors = []
    for name, about in header.items():
        start, end = (8 + size + int(place) for place in about["data_offsets"])
        shape = tuple(int(length) for length in about["shape"])
        tensor = Tensor(name, TYPES.get(about["dtype"], ""), shape, start, end)
        width = 2 if tensor.type == "bfloat16" else np.dtype(tensor.type or "V").itemsize  # 0 of a type not known
        if not 8 + size <= start <= end <= len(content) or (width and end - start != width * math.prod(shape)):
            raise ValueError(f"the values of '{name}' are not within the file, or not of its type and shape")
        tensors.append(tensor)
    return metadata, tensors


def recalibrated_checkpoint(source: Model, file: Model, checkpoint: Path) -> bytes:
    """Return a checkpoint with the head of a recalibrated model, as the bytes of a file."""
    content, tensors = _read(checkpoint)
    written = bytearray(content)
    for name, (old, new) in _changes(source, file).items():
        tensor, transposed = _find(name, old, tensors, content, checkpoint)
        values = np.ascontiguousarray(new.T if transposed else new)
        if not np.all(np.isfinite(rounded(values, tensor.type))):
            raise UnsupportedModel(f"{checkpoint}: a new value of '{tensor.name}' does not fit its {tensor.type}")
        written[tensor.start : tensor.end] = float_tensor(values, tensor.type, name).raw_data
    return bytes(written)


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


def _read(path: Path) -> tuple[bytes, list[Tensor]]:
    """Return the bytes of a checkpoint, and its tensors."""
    try:
        with open_regular(path) as stream:
            content = stream.read()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return content, read_header(content)[1]
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged, or no .safetensors file ({error})") from error


def _find(name: str, old: NDArray[Any], tensors: list[Tensor], content: bytes, path: Path) -> tuple[Tensor, bool]:
    """Return the one tensor that holds the old values, and whether it holds them transposed."""
    matches = []
    for tensor in tensors:
        if tensor.type not in FLOAT_TYPES.values() or math.prod(tensor.shape) != old.size:
            continue
        values = _values(content[tensor.start : tensor.end], tensor.type)
        if np.array_equal(values, old.reshape(-1)):
            matches.append((tensor, False))
        elif old.ndim == 2 and np.array_equal(values, old.T.reshape(-1)):
            matches.append((tensor, True))
    if len(matches) == 1:
        return matches[0]
    names = ", ".join(f"'{tensor.name}'" for tensor, _ in matches)
    raise DataError(
        f"{path}: {f'{names} all hold' if matches else 'no tensor holds'} the values of '{name}'; expected the "
        "checkpoint that the model was exported from, with its weight in one place"
    )


def _values(stored: bytes, kind: str) -> NDArray[Any]:
    if kind == "bfloat16":
        return widened(np.frombuffer(stored, "<u2"))
    return np.frombuffer(stored, np.dtype(kind).newbyteorder("<"))
