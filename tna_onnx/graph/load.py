"""A model file -> `Model`: the protobuf as it stands, with what later stages ask of its main graph.

The protobuf itself is kept and edited, field by field, so that whatever this package does not touch is written back
as it came: unknown fields, metadata, doc strings, value_info, every other tensor. External tensor data stay where
they are and are not read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from tna_onnx.errors import UnsupportedModel, UsageError

__all__ = ["Model", "load_model", "node_label", "subgraph_inputs", "tensor_types", "type_name"]


@dataclass(frozen=True, eq=False)
class Model:
    """An ONNX model and the lookups that head finding and rewriting need. Never modified.

    Attributes:
        proto: the model as read; external data not loaded.
        sha256: hex digest of the file's bytes.
        path: where it was read from.
    """

    proto: onnx.ModelProto
    sha256: str
    path: Path

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
        count: dict[str, int] = {}
        for node in self.proto.graph.node:
            for name in (*node.input, *subgraph_inputs(node)):
                count[name] = count.get(name, 0) + 1
        for name in self.outputs:
            count[name] = count.get(name, 0) + 1
        return count

    @property
    def external_files(self) -> tuple[str, ...]:
        """Locations of external data, relative to the model's folder."""
        locations = {e.value for t in self.initializers.values() for e in t.external_data if e.key == "location"}
        return tuple(sorted(locations))

    def producer(self, tensor: str) -> onnx.NodeProto | None:
        """Return the node that makes a tensor; None for graph inputs and initializers."""
        k = self.producers.get(tensor)
        return None if k is None else self.proto.graph.node[k]

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
            return np.asarray(onnx.numpy_helper.to_array(tensor, base_dir=str(self.path.parent)))
        except (KeyError, OSError, TypeError, ValueError, onnx.checker.ValidationError) as error:
            raise UnsupportedModel(f"{self.path}: cannot read tensor '{tensor.name}': {error}") from error


def load_model(path: str | Path) -> Model:
    """Read an ONNX file.

    Raises:
        UsageError: no such file.
        UnsupportedModel: not an ONNX file, or a damaged one.
    """
    path = Path(path)
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "no such file"
        raise UsageError(f"{path}: {what}; expected an ONNX model file")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise UnsupportedModel(
            f"{path}: not an ONNX file, or a truncated one ({len(data):,} bytes do not parse as an ONNX model)"
        ) from error
    if not proto.graph.node or not proto.graph.output or not proto.opset_import:
        raise UnsupportedModel(f"{path}: no graph in it ({len(data):,} bytes); expected an ONNX model file")
    return Model(proto, hashlib.sha256(data).hexdigest(), path)


def node_label(model: Model, index: int) -> str:
    """Name of a node: what `--head` takes and messages show. `OpType_index` without one, `name_index` if not unique."""
    nodes = model.proto.graph.node
    name = nodes[index].name
    unique = name and sum(node.name == name for node in nodes) == 1
    return name if unique else f"{name or nodes[index].op_type}_{index}"


def type_name(code: int) -> str:
    """Name of an ONNX element type; its number, if ONNX has no such type."""
    names: dict[int, str] = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
    return names.get(code, str(code))


def subgraph_inputs(node: onnx.NodeProto) -> Iterator[str]:
    """Names that the sub-graphs of a node (If, Loop, Scan) read, their own tensors included."""
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
            for inner in graph.node:
                yield from inner.input
                yield from subgraph_inputs(inner)
            yield from (output.name for output in graph.output)


def tensor_types(model: Model) -> dict[str, str]:
    """Dtype and shape of each graph input as text, such as `float32 (N, 3, 32, 32)`; dynamic dimensions by name."""
    types = {}
    for info in model.proto.graph.input:
        if not info.type.HasField("tensor_type"):
            types[info.name] = str(info.type.WhichOneof("value")).removesuffix("_type")
            continue
        tensor = info.type.tensor_type
        kind = type_name(tensor.elem_type)
        sizes = [str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim]
        types[info.name] = f"{_SPELLED.get(kind, kind)} ({', '.join(sizes)})"
    return types


_SHORT_CONSTANTS = {"value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64"}
"""Attributes of a Constant node that hold plain numbers in place of a tensor, and the dtype of its output."""

_SPELLED = {"float": "float32", "double": "float64"}
