"""A model, in a file or in memory -> `Model`: the protobuf as it stands, with what later stages ask of its main graph.

The protobuf itself is kept and edited, field by field, so that whatever this package does not touch is written back
as it came: unknown fields, metadata, doc strings, value_info, every other tensor. External tensor data stay where
they are and are not read. Model-local functions are inlined: a head inside one could not be seen otherwise.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from tna_onnx.errors import UnsupportedModel, UsageError
from tna_onnx.graph.apart import take_apart
from tna_onnx.graph.bounds import MAX_BYTES, check_bounds
from tna_onnx.graph.datafiles import check_places, data_path, open_data, require_bytes
from tna_onnx.graph.dtypes import FLOAT_TYPES
from tna_onnx.graph.functions import inlined
from tna_onnx.graph.in_memory import model_bytes
from tna_onnx.graph.limits import DEFAULT_MODEL_LIMITS, ModelLimits
from tna_onnx.graph.options import ModelSource
from tna_onnx.graph.places import is_external, place_of
from tna_onnx.graph.traverse import all_tensors, subgraph_inputs

__all__ = ["Model", "load_model"]

# Files that people give in the place of a model.
_DATA = (".npz", ".npy", ".csv", ".tsv", ".json", ".jsonl", ".parquet")
_OTHERS = (".pt", ".pth", ".ckpt", ".safetensors", ".h5", ".keras", ".pb", ".tflite", ".pkl", ".joblib")

# Attributes of a Constant node that hold plain numbers in place of a tensor, and the dtype of its output.
_SHORT_CONSTANTS = {"value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64"}


@dataclass(frozen=True, eq=False)
class Model:
    """An ONNX model and the lookups that head finding and rewriting need. Never modified.

    Attributes:
        proto: the model as read; external data not loaded, functions inlined, keys in the places of `apart`.
        sha256: hex digest of the file's bytes.
        path: where it was read from; None for a model in memory.
        inlined: names of the functions that were inlined.
        limits: how much of it is taken in.
        apart: large raw data of initializers that are not in the protobuf, by key (`graph.apart`); of files alone.
        opened: label -> operator of the integer nodes that were brought into QDQ form (`graph.integers`).
        closed: the model before that; None where nothing was opened.
    """

    proto: onnx.ModelProto
    sha256: str
    path: Path | None
    inlined: tuple[str, ...] = ()
    limits: ModelLimits = DEFAULT_MODEL_LIMITS
    apart: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)
    opened: Mapping[str, str] = field(default_factory=dict)
    closed: Model | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """What messages call the model."""
        return str(self.path or "the model in memory")

    @property
    def folder(self) -> Path:
        """Where external data lie."""
        return (self.path or Path()).parent

    @property
    def opset(self) -> int:
        """Version of the default operator set."""
        return next((o.version for o in self.proto.opset_import if o.domain in ("", "ai.onnx")), 0)

    @property
    def metadata(self) -> dict[str, str]:
        """The model's metadata_props."""
        return {entry.key: entry.value for entry in self.proto.metadata_props}

    @cached_property
    def producers(self) -> dict[str, int]:
        """Index of the main-graph node that makes each tensor."""
        return {name: k for k, node in enumerate(self.proto.graph.node) for name in node.output if name}

    @cached_property
    def initializers(self) -> dict[str, onnx.TensorProto]:
        """Dense initializers of the main graph by name."""
        return {tensor.name: tensor for tensor in self.proto.graph.initializer}

    @cached_property
    def sparse(self) -> frozenset[str]:
        """Names of the sparse initializers of the main graph."""
        return frozenset(tensor.values.name for tensor in self.proto.graph.sparse_initializer)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the graph inputs that a caller feeds: initializers that are also inputs are left out."""
        return tuple(i.name for i in self.proto.graph.input if i.name not in self.initializers)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the graph outputs."""
        return tuple(o.name for o in self.proto.graph.output)

    @cached_property
    def uses(self) -> dict[str, int]:
        """How often each tensor is read: by nodes, by sub-graphs that capture it, as a graph output."""
        count = Counter(self.outputs)
        for node in self.proto.graph.node:
            count.update(node.input)
            count.update(subgraph_inputs(node))
        return count

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """What `--head` and messages call each node: its name; `name_index` if not unique, `OpType_index` without."""
        nodes = self.proto.graph.node
        names = Counter(node.name for node in nodes)
        labels = [node.name for node in nodes]
        for k, node in enumerate(nodes):
            if not node.name or names[node.name] > 1:
                labels[k] = f"{node.name or node.op_type}_{k}"
        return tuple(labels)

    @property
    def external_files(self) -> tuple[str, ...]:
        """Locations of external data, relative to the model's folder."""
        places = (place_of(tensor) for tensor in all_tensors(self.proto.graph) if is_external(tensor))
        return tuple(sorted({place.location for place in places}))

    def producer(self, tensor: str) -> onnx.NodeProto | None:
        """Return the node that makes a tensor; None for graph inputs and initializers."""
        k = self.producers.get(tensor)
        if k is None:
            return None
        node: onnx.NodeProto = self.proto.graph.node[k]
        return node

    def constant_tensor(self, tensor: str) -> onnx.TensorProto | None:
        """Return the initializer, or the value of the Constant node, of that name."""
        if tensor in self.initializers:
            return self.initializers[tensor]
        node = self.producer(tensor)
        if node is None or node.op_type != "Constant":
            return None
        for attribute in node.attribute:
            if attribute.name == "value":
                stored: onnx.TensorProto = attribute.t
                return stored
            if attribute.name in _SHORT_CONSTANTS:
                value = np.asarray(onnx.helper.get_attribute_value(attribute), _SHORT_CONSTANTS[attribute.name])
                return onnx.numpy_helper.from_array(value, tensor)
        return None

    def array(self, tensor: onnx.TensorProto) -> NDArray[Any]:
        """Return the values of a tensor, reading external data if need be.

        Raises:
            UnsupportedModel: the tensor is damaged; or its external file is missing, too short, or outside the model's
                folder.
        """
        try:
            if is_external(tensor):
                tensor = self._with_data(tensor)
            elif (data := self.data_apart(tensor)) is not None:
                return _array_on(data, tensor)
            return np.asarray(onnx.numpy_helper.to_array(tensor))
        except (KeyError, OSError, TypeError, ValueError) as error:
            raise UnsupportedModel(f"{self.name}: cannot read tensor '{tensor.name}': {error}") from error

    def data_path(self, location: str) -> Path:
        """Return the path of a file with external data, behind all links.

        Raises:
            UnsupportedModel: it lies outside the model's folder (see `graph.datafiles`).
        """
        return data_path(self.path or Path(), location)

    def open_data(self, location: str) -> BinaryIO:
        """Open a file with external data.

        Raises:
            UnsupportedModel: it lies outside the model's folder, is missing, no regular file, or cannot be opened.
        """
        return open_data(self.path or Path(), location)

    def data_apart(self, tensor: onnx.TensorProto) -> bytes | None:
        """Return the raw data of a tensor that has a key in their place; None of any other."""
        # raw data are given out as a copy, so they are looked at in files alone, where none are large
        return self.apart.get(tensor.raw_data) if self.apart else None

    def _with_data(self, tensor: onnx.TensorProto) -> onnx.TensorProto:
        """Return a tensor with its external data inside."""
        place = place_of(tensor)
        with self.open_data(place.location) as file:
            require_bytes(self.path or Path(), tensor, place, file.seek(0, 2))  # before that much is allocated
            file.seek(place.offset)
            data = file.read(place.length)
        return onnx.TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type, raw_data=data)

    def floats(self, tensor: onnx.TensorProto) -> NDArray[Any]:
        """Return the values of a float tensor; bfloat16 as float32.

        Raises:
            UnsupportedModel: as for `array`.
        """
        value = self.array(tensor)
        # Some versions of onnx give bfloat16 as float32, others in a dtype of ml_dtypes.
        if tensor.data_type == onnx.TensorProto.BFLOAT16:
            return value.astype(np.float32)
        return value


def load_model(source: ModelSource, limits: ModelLimits = DEFAULT_MODEL_LIMITS, *, whole: bool = False) -> Model:
    """Read an ONNX file, or take a model in memory.

    Args:
        source: a path, the bytes of a file, an onnx.ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph.
        limits: how much of it is taken in.
        whole: keep nothing apart from the protobuf, as it is with a model in memory.

    Raises:
        UsageError: no such file, or something else.
        UnsupportedModel: not an ONNX file, or a damaged one.
    """
    if isinstance(source, (str, Path)):
        model = _read(Path(source), limits, whole=whole)
        # Before anything opens the files: what is no part of the model must not become one.
        check_places(Path(source), filter(is_external, all_tensors(model.proto.graph)))
        return model
    return _complete(_parsed(model_bytes(source), None, limits, whole=True))


def _read(path: Path, limits: ModelLimits, *, whole: bool) -> Model:
    if path.is_dir():
        raise UsageError(f"{path}: is a directory; expected an ONNX model file")
    if not path.is_file():
        what = "is not a regular file" if path.exists() else "no such file"
        raise UsageError(f"{path}: {what}; expected an ONNX model file")
    if path.stat().st_size > MAX_BYTES:
        raise UnsupportedModel(f"{path}: has {path.stat().st_size:,} bytes; an ONNX file has at most {MAX_BYTES:,}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    return _parsed(data, path, limits, whole=whole)


def _parsed(data: bytes, file: Path | None, limits: ModelLimits, *, whole: bool) -> Model:
    # An empty file, and some others, parse as a protobuf with nothing in it: the graph tells.
    proto = onnx.ModelProto()
    name = file or "the model in memory"
    message, apart = (data, {}) if whole else take_apart(data)
    try:
        proto.ParseFromString(message)
    except DecodeError as error:
        advice = ""
        if file is not None and file.suffix.lower() in _DATA:
            advice = "; the model comes first, the data behind it"
        elif file is not None and file.suffix.lower() in _OTHERS:
            advice = "; export the model to ONNX first"
        raise UnsupportedModel(
            f"{name}: not an ONNX file, or a truncated one ({len(data):,} bytes do not parse as an ONNX model){advice}"
        ) from error
    if not proto.graph.node or not proto.graph.output or not proto.opset_import:
        raise UnsupportedModel(f"{name}: no graph in it ({len(data):,} bytes); expected an ONNX model file")
    check_bounds(str(name), proto, limits)
    flat, functions = inlined(proto, str(name), limits)
    return Model(flat, hashlib.sha256(data).hexdigest(), file, functions, limits, apart)


def _array_on(data: bytes, tensor: onnx.TensorProto) -> NDArray[Any]:
    """Return the values of a tensor with its raw data beside it: no copy, where NumPy has the type."""
    kind = FLOAT_TYPES.get(tensor.data_type, "")
    if kind in ("float32", "float64", "float16") and sys.byteorder == "little":
        return np.frombuffer(data, kind).reshape(tuple(tensor.dims))
    whole = onnx.TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type, raw_data=data)
    return np.asarray(onnx.numpy_helper.to_array(whole))


def _complete(model: Model) -> Model:
    """Refuse a model in memory without its external data: nothing says where they lie."""
    if model.external_files:
        raise UsageError(
            "the model in memory refers to external data without saying where they lie; pass the path of its file, or "
            "load the data first (`onnx.load(path)` does)"
        )
    return model
