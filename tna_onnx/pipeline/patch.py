"""A patch: what a recalibration changes, without the model. It is small, and belongs to one source.

A written file is its source and a change (`pipeline.change`). A patch holds what the file says of its making, and the
values that only the file has, so that the same writer makes the same file again of the source. Two containers:

    NAME.npz           an array for each value under its name in the file, and `tna_onnx.patch`, a text
    NAME.safetensors   the same, with the text in `__metadata__`

A third, `NAME.onnx_adapter`, is for ONNX Runtime alone.

The text is JSON: {"format": 1, "source": SHA-256, "entries": {metadata of the file}, "types": {name: [type, *shape]}};
the types are those that NumPy lacks, whose bytes are stored.

A calibration as an adapter of ONNX Runtime: weight and bias of the head, which a run takes in place of others.

The model is prepared once: the head's initializers become inputs, whose defaults are the values that they had. A run
with an active adapter takes these from `NAME.onnx_adapter`, so that one session serves many calibrations. An adapter
holds values alone. So a calibration has to be in weight and bias: no nodes, and no integers, whose scales would change.

A recalibrated head in the checkpoint that the model was exported from, a .safetensors file of PyTorch, say: an export
may rename and transpose weights, so that they are found by their values. The tensor of the checkpoint that equals the
old weight of the ONNX file gets the new one, in its own type and orientation. All other bytes stay.
"""

import contextlib
import io
import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.labels import listed
from tna_onnx.errors import CheckFailed, DataError, UnsupportedModel, UsageError
from tna_onnx.files import open_regular
from tna_onnx.graph.difference import NotRebuilt, Typed, new_values, same_models, stand_in
from tna_onnx.graph.head import find_heads
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import METADATA_PREFIX, MIN_IR_OF_INITIALIZERS, provenance
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.rewrite import with_inputs
from tna_onnx.graph.tensors import FLOAT_TYPES, float_tensor, numpy_name, rounded, widened
from tna_onnx.pipeline.change import make_again
from tna_onnx.pipeline.settings import check_patch_name
from tna_onnx.runtime import adapter_bytes, read_adapter

_FORMAT = 1
_TEXT = "tna_onnx.patch"


def patch_of(source: Model, file: Model, ending: str, readout: Readout) -> bytes:
    """Return a patch, as the bytes of a file."""
    if ending == ".onnx_adapter":
        return adapter_of(source, file, readout)
    values = new_values(source, file)
    text = {
        "format": _FORMAT,
        "source": source.sha256,
        "entries": {} if same_models(source, file) else provenance(file),
        "types": {name: kind for name, (_, kind) in values.items() if kind},
    }
    arrays = {name: array for name, (array, _) in values.items()}
    write = _npz if ending == ".npz" else _safetensors
    content = write(arrays, json.dumps(text))
    # what is not the file must not be taken for it
    if not same_models(file, apply_patch(source, content, "the patch")):
        raise CheckFailed(f"verification: {source.name} and the patch do not give the written file")
    return content


def apply_patch(source: Model, content: bytes, name: str) -> Model:
    """Return the file that a patch was made of; the source itself where the patch changes nothing."""
    arrays, text = _read(content, name)
    belongs = text["source"]
    if belongs != source.sha256:
        raise CheckFailed(
            f"{name}: belongs to the model with SHA-256 {belongs}, and {source.name} has {source.sha256}; "
            "give the model that the patch was made for"
        )
    if not text["entries"] and not arrays:
        return source
    metadata = {METADATA_PREFIX + key: value for key, value in text["entries"].items()}
    values = {key: (array, text["types"].get(key, [])) for key, array in arrays.items()}
    try:
        made = make_again(source, stand_in(source, values, metadata))
    except NotRebuilt as error:
        raise DataError(f"{name}: the patch is damaged, or of another version of tna-onnx: {error}") from error
    expected = new_values(source, made)
    differing = sorted(key for key in values.keys() | expected if not _is_same(values.get(key), expected.get(key)))
    if differing:
        raise DataError(f"{name}: the patch is damaged: its '{differing[0]}' is not that of the file")
    return made


def _is_same(values: Typed | None, others: Typed | None) -> bool:
    if values is None or others is None:
        return False
    (array, kind), (other, other_kind) = values, others
    described = (array.dtype, array.shape, kind) == (other.dtype, other.shape, other_kind)
    return described and array.tobytes() == other.tobytes()


def read_patch(path: str | Path) -> bytes:
    """Return the bytes of a patch."""
    check_patch_name(path)
    try:
        with open_regular(Path(path)) as stream:
            return stream.read()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error


def _read(content: bytes, name: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    try:
        arrays, text = _read_npz(content) if content.startswith(b"PK") else _read_safetensors(content)
        said = json.loads(text)
        if (
            said["format"] == _FORMAT
            and all(isinstance(value, str) for value in said["entries"].values())
            and set(said["types"]) <= set(arrays)
        ):
            return arrays, {**said, "source": str(said["source"])}
    # whatever bytes may do to readers of zip, NumPy and JSON: of what is encrypted, a RuntimeError
    except (
        ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, OSError, RuntimeError, TypeError,
        ValueError, zipfile.BadZipFile,
    ) as error:  # fmt: skip
        raise DataError(f"{name}: the patch is damaged, or no patch of tna-onnx ({error})") from error
    raise DataError(f"{name}: the patch has a form that this version of tna-onnx does not know")


def _npz(arrays: Mapping[str, NDArray[Any]], text: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in {**arrays, _TEXT: np.array(text.encode())}.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)
            # without the time: the same run writes the same bytes
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue())
    return stream.getvalue()


def _read_npz(content: bytes) -> tuple[dict[str, NDArray[Any]], str]:
    arrays: dict[str, NDArray[Any]] = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for info in archive.infolist():
            # a few bytes may unpack to any number of them
            if info.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{info.filename} is compressed")
            member = io.BytesIO(archive.read(info))
            arrays[info.filename.removesuffix(".npy")] = np.lib.format.read_array(member, allow_pickle=False)
    return arrays, arrays.pop(_TEXT).item().decode()


def _safetensors(arrays: Mapping[str, NDArray[Any]], text: str) -> bytes:
    header: dict[str, Any] = {"__metadata__": {_TEXT: text}}
    at = 0
    words = {name: word for word, name in TYPES.items()}
    # the largest items first, as the format's own writer has them: every value is then aligned
    ordered = sorted(arrays.items(), key=lambda item: -item[1].itemsize)
    for name, array in ordered:
        place = [at, at + array.nbytes]
        header[name] = {"dtype": words[array.dtype.name], "shape": list(array.shape), "data_offsets": place}
        at += array.nbytes
    line = json.dumps(header, separators=(",", ":")).encode()
    line += b" " * (-len(line) % 8)
    return b"".join([len(line).to_bytes(8, "little"), line, *(array.tobytes() for _, array in ordered)])


def _read_safetensors(content: bytes) -> tuple[dict[str, NDArray[Any]], str]:
    metadata, tensors = read_header(content)
    arrays: dict[str, NDArray[Any]] = {}
    for tensor in tensors:
        arrays[tensor.name] = np.frombuffer(content[tensor.start : tensor.end], np.dtype(tensor.type)).reshape(
            tensor.shape
        )
    return arrays, metadata[_TEXT]


_DTYPES = ("float32", "float16", "float64")

# A model version is an int32.
_DIGITS = 7


def adapter_tensors(model: Model, readout: Readout) -> tuple[str, ...]:
    """Return the names of the initializers that an adapter takes the place of: weight, and bias where there is one."""
    if not isinstance(readout, Head):
        raise UnsupportedModel(f"{model.name}: an adapter holds weight and bias of a linear head, and there is none")
    if model.proto.ir_version < MIN_IR_OF_INITIALIZERS:
        raise UnsupportedModel(
            f"{model.name}: has IR version {model.proto.ir_version}; an input with a default needs "
            f"{MIN_IR_OF_INITIALIZERS} or newer: convert the model, or write a patch as .npz"
        )
    for place in readout.places:
        tensor = model.initializers.get(place.name)
        plain = place.overwritten and place.quantized is None
        if tensor is None or not plain or numpy_name(tensor.data_type) not in _DTYPES:
            raise UnsupportedModel(
                f"{model.name}: '{place.name}' of head '{readout.node}' is not a float initializer that only the "
                "head reads, which an adapter needs; write a patch as .npz"
            )
    return tuple(place.name for place in readout.places)


def adapter_of(source: Model, file: Model, readout: Readout) -> bytes:
    """Return the adapter with which the prepared source computes what a file does."""
    names = adapter_tensors(source, readout)
    if list(source.proto.graph.node) != list(file.proto.graph.node) or not set(new_values(source, file)) <= set(names):
        raise UnsupportedModel(
            f"{source.name}: the calibration has nodes of its own, and an adapter holds weight and bias alone; use "
            "--map ts, svs, bias or refit, or write a patch as .npz"
        )
    values = {name: file.array(file.initializers[name]) for name in names}
    return adapter_bytes(values, _version_of(source))


def adaptable(source: Model, path: Path) -> Model:
    """Return a model whose initializers are inputs with defaults, as far as an adapter has them."""
    values, version = read_adapter(path)
    if version != _version_of(source):
        raise CheckFailed(f"{path}: belongs to another model than {source.name}; give the one that was calibrated")
    for name, array in values.items():
        tensor = source.initializers.get(name)
        if tensor is None or (list(tensor.dims), numpy_name(tensor.data_type)) != ([*array.shape], array.dtype.name):
            raise DataError(f"{path}: {source.name} has no initializer '{name}' of the adapter's type and shape")
        if not np.all(np.isfinite(array)):
            raise DataError(f"{path}: '{name}' holds NaN or infinite values, which are never written")
    if set(values) not in _adaptable_names(source):
        raise DataError(
            f"{path}: holds {', '.join(sorted(values)) or 'nothing'}; expected weight and bias of one head of "
            f"{source.name}, and nothing else"
        )
    return Model(with_inputs(source, values), "", source.path, large_values=source.large_values)


def _adaptable_names(source: Model) -> Iterator[set[str]]:
    for head in (head for kind in (None, "logit", "label-logits") for head in find_heads(source, kind)[0]):
        with contextlib.suppress(UnsupportedModel):
            yield set(adapter_tensors(source, head))


def _version_of(model: Model) -> int:
    """Return what an adapter says of its model: the beginning of its digest."""
    return int(model.sha256[:_DIGITS], 16)


_HEADER = 2**27  # bytes of a header at most, as the format's own reader has it

TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
"""What a .safetensors file calls the types of its tensors -> what NumPy, or ONNX, does."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of a .safetensors file."""

    name: str  # as there
    type: str  # of its elements, as NumPy calls it; empty for another one, which is not read
    shape: tuple[int, ...]  # of its values
    start: int  # first byte of the values in the file
    end: int  # the byte behind them


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
    content, tensors = _read_checkpoint(checkpoint)
    written = bytearray(content)
    for name, (old, new) in _changed_values(source, file).items():
        tensor, transposed = _find(name, old, tensors, content, checkpoint)
        values = np.ascontiguousarray(new.T if transposed else new)
        if not np.all(np.isfinite(rounded(values, tensor.type))):
            raise UnsupportedModel(f"{checkpoint}: a new value of '{tensor.name}' does not fit its {tensor.type}")
        written[tensor.start : tensor.end] = float_tensor(values, tensor.type, name).raw_data
    return bytes(written)


def _changed_values(source: Model, file: Model) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    """Return old and new values of all tensors that a calibration has changed, by name."""
    names = list(new_values(source, file))
    appended = list(source.proto.graph.node) != list(file.proto.graph.node)
    if appended or any(name not in source.initializers for name in names):
        raise UnsupportedModel(
            f"{source.name}: the calibration has nodes or a bias that the model did not have, and a checkpoint holds "
            "values of the model's own tensors; use --map ts, svs, bias or refit"
        )
    return {name: (source.array(source.initializers[name]), file.array(file.initializers[name])) for name in names}


def _read_checkpoint(path: Path) -> tuple[bytes, list[Tensor]]:
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
    holders = "no tensor holds"
    if matches:
        holders = f"{listed(tensor.name for tensor, _ in matches)} all hold"
    raise DataError(
        f"{path}: {holders} the values of '{name}'; expected the checkpoint that the model was exported from, with its "
        "weight in one place"
    )


def _values(stored: bytes, kind: str) -> NDArray[Any]:
    if kind == "bfloat16":
        return widened(np.frombuffer(stored, "<u2"))
    return np.frombuffer(stored, np.dtype(kind).newbyteorder("<"))
