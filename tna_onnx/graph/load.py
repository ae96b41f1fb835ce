"""Loading a model from a file or from memory into `Model`: its protobuf, and queries on its main graph.

The protobuf is kept and edited field by field, so that all else is written back as it came. Model-local functions are
inlined (`graph.bounds`).
"""

import difflib
import functools
import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

import numpy as np
import onnx
from google.protobuf.message import DecodeError, EncodeError
from numpy.typing import NDArray

from tna_onnx.errors import TnaError, UnsupportedModel, UsageError, one_line
from tna_onnx.files import model_file, model_folders, model_name_problem, open_regular
from tna_onnx.graph import tensors
from tna_onnx.graph.bounds import MAX_BYTES, all_tensors, check_bounds, inlined, subgraph_inputs
from tna_onnx.graph.options import DEFAULT_MODEL_LIMITS, ModelLimits, ModelSource

P = ParamSpec("P")
R = TypeVar("R")


def model_bytes(source: Any) -> bytes:
    """Return a model in memory as the bytes of a file.

    `source`: bytes, or an onnx.ModelProto; never modified.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    if isinstance(source, onnx.ModelProto):
        try:
            # A copy: the caller may go on editing.
            return bytes(source.SerializeToString(deterministic=True))
        except (ValueError, EncodeError) as error:
            raise UsageError(
                f"the model in memory is above 2 GB: save it with external data and pass the path ({error})"
            ) from error
    raise UsageError(
        f"expected a path, bytes or an onnx.ModelProto as the model, got {type(source).__name__}; export it to ONNX "
        "first (torch.onnx.export, skl2onnx.to_onnx), or make a ModelProto of it (onnx_ir.to_proto, "
        "onnx_graphsurgeon.export_onnx)"
    )


# Attributes of a Constant node that hold plain numbers in place of a tensor, and the dtype of its output.
_SHORT_CONSTANTS = {"value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64"}

# What ONNX Runtime knows its own format by, from byte 4 on; it then reads nothing else.
_ORT_MARK = b"ORTM"
_GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER

PARSER_ERROR: type[Exception] = DecodeError
"""What protobuf raises of bytes that are no message."""

SHAPE_OR_TYPE = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators that change shape or type alone."""

_MAX_PASSED = 50  # of them, in a row
IN_MEMORY = "the model in memory"
"""What messages call a model without a path."""

PREFIX = "tna_onnx"
"""How the names begin of all that this tool adds to a graph."""

METADATA_PREFIX = f"{PREFIX}."
"""How the keys of this tool's entries in `metadata_props` begin."""

_MAX_CONFIG = 2**24  # bytes of a config.json: 21,843 names are 1 MB


@dataclass(frozen=True, eq=False)
class Model:
    """An ONNX model and the lookups that head finding and rewriting need. Never modified."""

    # the model as read; external data not loaded, functions inlined, keys in the places of `large_values`
    proto: onnx.ModelProto
    sha256: str  # hex digest of the file's bytes
    path: Path | None  # where it was read from; None for a model in memory
    title: str = IN_MEMORY  # what messages call one without a path
    inlined: tuple[str, ...] = ()  # names of the functions that were inlined
    limits: ModelLimits = DEFAULT_MODEL_LIMITS  # how much of it is taken in
    # raw data of initializers outside of the protobuf, by key (`graph.tensors`); of files alone
    large_values: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """What messages call the model."""
        return str(self.path or self.title)

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

    @property
    def provenance(self) -> dict[str, str]:
        """What this tool wrote into the metadata, without the prefix; empty for any other model."""
        entries = self.metadata.items()
        return {key.removeprefix(METADATA_PREFIX): value for key, value in entries if key.startswith(METADATA_PREFIX)}

    def provenance_of(self, output: str | None) -> dict[str, str]:
        """Return the entries on one output of a file with several heads; of any other file, all entries."""
        entries = self.provenance
        start = head_key(output or "")
        entries_of_head = {key.removeprefix(start): value for key, value in entries.items() if key.startswith(start)}
        return entries_of_head or entries

    @property
    def calibrated_heads(self) -> tuple[str, ...]:
        """The graph outputs of which a file of several heads has entries, in order; empty for any other file."""
        outputs = {head_key(output): output for output in self.outputs}
        starts = (f"{key.rpartition('/')[0]}/" for key in self.provenance)
        return tuple(dict.fromkeys(outputs[start] for start in starts if start in outputs))

    @property
    def calibrations(self) -> dict[str, dict[str, str]]:
        """Graph output -> entries of each head that was calibrated; files of early versions do not name theirs."""
        entries = self.provenance
        heads = self.calibrated_heads
        if heads:
            return {output: self.provenance_of(output) for output in heads}
        if "calibration_sha256" in entries:
            return {entries.get("output", ""): entries}
        return {}

    @cached_property
    def said_of_classes(self) -> dict[str, str]:
        """The metadata; where they do not name the classes, with `id2label` of a `config.json` beside the model."""
        if self._named_beside is None:
            return self.metadata
        return {**self.metadata, "id2label": json.dumps(self._named_beside[1])}

    def class_notes(self, names: Sequence[str] | None) -> tuple[str, ...]:
        """Return a note if the class names come from a file beside the model."""
        if self._named_beside is None or names is None:
            return ()
        file, labels = self._named_beside
        if {*names} != {*map(str, labels.values())}:
            return ()
        return (f"the classes are named by {file}",)

    @cached_property
    def _named_beside(self) -> tuple[Path, dict[str, Any]] | None:
        """The `config.json` beside the model that names its classes, and the names; None if there is none."""
        if self.path is None or "id2label" in self.metadata:
            return None
        for place in model_folders(self.path):
            try:
                with open_regular(place / "config.json") as stream:
                    labels = json.loads(stream.read(_MAX_CONFIG))["id2label"]
            except (OSError, ValueError, TypeError, KeyError, RecursionError):  # none, or one about other things
                continue
            # what the library writes where nobody named them
            if isinstance(labels, dict) and not all(re.fullmatch(r"LABEL_\d+", str(name)) for name in labels.values()):
                return place / "config.json", labels
        return None

    @cached_property
    def producers(self) -> dict[str, int]:
        """Index of the main-graph node that makes each tensor."""
        return {name: k for k, node in enumerate(self.proto.graph.node) for name in filter(None, node.output)}

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
        places = (tensors.place_of(tensor) for tensor in all_tensors(self.proto) if tensors.is_external(tensor))
        return tuple(sorted({place.location for place in places}))

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of the file with its external data: no array of it has more numbers."""
        external = sum(self.data_path(name).stat().st_size for name in self.external_files)
        return int(self.proto.ByteSize()) + sum(len(value) for value in self.large_values.values()) + external

    @cached_property
    def _shapes(self) -> dict[str, onnx.TensorShapeProto]:
        """Name -> declared shape; of two for one name, the first, outputs before others."""
        graph = self.proto.graph
        infos = reversed((*graph.output, *graph.value_info, *graph.input))
        return {info.name: info.type.tensor_type.shape for info in infos if info.type.tensor_type.HasField("shape")}

    def sizes(self, tensor: str) -> list[int | None] | None:
        """Return the declared lengths of a tensor's axes, None for any; None where no shape is declared."""
        shape = self._shapes.get(tensor)
        if shape is None:
            return None
        return [dim.dim_value if dim.HasField("dim_value") else None for dim in shape.dim]

    def ancestors(self, tensor: str) -> set[int]:
        """Return the indices of all nodes whose values a tensor is computed from; shapes are no values."""
        todo = [tensor]
        visited: set[int] = set()
        while todo:
            k = self.producers.get(todo.pop())
            if k is None or k in visited:
                continue
            visited.add(k)
            node = self.proto.graph.node[k]
            if node.op_type not in ("Shape", "Size"):  # they read no numbers
                todo += [*node.input, *subgraph_inputs(node)]
        return visited

    def reads(self, output: str, tensor: str) -> bool:
        """Whether a graph output is computed from a tensor."""
        return self.producers.get(tensor) in self.ancestors(output)

    def producer(self, tensor: str) -> onnx.NodeProto | None:
        """Return the node that makes a tensor; None for graph inputs and initializers."""
        k = self.producers.get(tensor)
        if k is None:
            return None
        node: onnx.NodeProto = self.proto.graph.node[k]
        return node

    def maker(self, tensor: str, passed: Collection[str]) -> onnx.NodeProto | None:
        """Return the node that makes a tensor, behind nodes of the kinds `passed`, which hand on their first input."""
        for _ in range(_MAX_PASSED):
            node = self.producer(tensor)
            if node is None or node.op_type not in passed or not node.input:
                return node
            tensor = node.input[0]
        return None

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
        """Return the values of a tensor, reading external data if need be."""
        try:
            if tensors.is_external(tensor):
                tensor = self.loaded(tensor)
            elif (data := self.large_value(tensor)) is not None:
                return _array_on(data, tensor)
            return np.asarray(onnx.numpy_helper.to_array(tensor))
        except (KeyError, OSError, TypeError, ValueError) as error:
            raise UnsupportedModel(f"{self.name}: cannot read tensor '{tensor.name}': {one_line(error)}") from error

    def data_path(self, location: str) -> Path:
        """Return the path of a file with external data, behind all links."""
        return tensors.data_path(self.path or Path(), location)

    def open_data(self, location: str) -> BinaryIO:
        """Open a file with external data."""
        return tensors.open_data(self.path or Path(), location)

    def large_value(self, tensor: onnx.TensorProto) -> bytes | None:
        """Return the raw data of a tensor that has a key in their place; None of any other."""
        # raw data are given out as a copy, so they are looked at in files alone, where none are large
        if not self.large_values:
            return None
        return self.large_values.get(tensor.raw_data)

    def loaded(self, tensor: onnx.TensorProto) -> onnx.TensorProto:
        """Return an external tensor with its data inside."""
        place = tensors.place_of(tensor)
        try:
            with self.open_data(place.location) as file:
                file.seek(place.offset)
                data = file.read(place.length)
        except OSError as error:
            raise UnsupportedModel(f"{self.name}: cannot read tensor '{tensor.name}': {one_line(error)}") from error
        return onnx.TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type, raw_data=data)

    def floats(self, tensor: onnx.TensorProto) -> NDArray[Any]:
        """Return the values of a float tensor; bfloat16 as float32."""
        value = self.array(tensor)
        if tensor.data_type == onnx.TensorProto.BFLOAT16:
            return value.astype(np.float32)
        return value


def head_key(output: str) -> str:
    """Return how the keys of one output's entries begin in a file of several calibrated heads."""
    # `h` is no part of `h/b`
    return f"head/{quote(output, safe='')}/"


def load_model(
    source: ModelSource, limits: ModelLimits = DEFAULT_MODEL_LIMITS, *, similar: Model | None = None
) -> Model:
    """Read an ONNX file, or take a model in memory.

    `source`: a path, the bytes of a file, or an onnx.ModelProto.
    `similar`: a model that is expected to have most of the same weights, which are then shared.
    """
    if isinstance(source, (str, Path)):
        path = model_file(Path(source))
        return _parsed(_read(path), path, limits, similar)
    return _parsed(model_bytes(source), None, limits)


def _meant(path: Path) -> str:
    """Return a file beside a path whose name is nearly that of the path, as a question; nothing without one."""
    try:
        names = [name for name in os.listdir(path.parent) if name.endswith(".onnx")]  # noqa: PTH208 - names alone
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, names, n=1)
    return "".join(f" (did you mean {path.with_name(name)}?)" for name in near)


def _read(path: Path) -> bytes:
    if problem := model_name_problem(path):
        raise UsageError(problem)
    if path.is_dir():
        advice = ""
        if any(path.glob("*.safetensors")):
            advice = f": optimum-cli export onnx --model {path} FOLDER writes one"
        raise UsageError(
            f"{path}: is a directory; expected an ONNX model file, or a folder with model.onnx in it{advice}"
        )
    if not path.is_file():
        problem = f"no such file{_meant(path)}"
        if path.exists():
            problem = "is not a regular file"
        raise UsageError(f"{path}: {problem}; expected an ONNX model file")
    if path.stat().st_size > MAX_BYTES:
        raise UnsupportedModel(f"{path}: has {path.stat().st_size:,} bytes; an ONNX file has at most {MAX_BYTES:,}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error


def _parsed(data: bytes, file: Path | None, limits: ModelLimits, similar: Model | None = None) -> Model:
    # An empty file, and some others, parse as a protobuf with nothing in it: the graph tells.
    proto = onnx.ModelProto()
    name = file or IN_MEMORY
    _refuse_own_format(name, data)
    message = data
    large_values: dict[bytes, bytes] = {}
    if file is not None:  # a model in memory has its values inside
        message, large_values = tensors.split_off(data, similar.large_values if similar else None)
    try:
        proto.ParseFromString(message)
    except DecodeError as error:
        bytearray(len(message))  # protobuf says the same where memory is out; this says so
        raise UnsupportedModel(
            f"{name}: not an ONNX file, or a truncated one ({len(data):,} bytes do not parse as an ONNX model). "
            "The model comes first, the data behind it; export the model to ONNX first if it has another format "
            "(torch.onnx.export, optimum-cli export onnx, skl2onnx, tf2onnx)"
        ) from error
    if not proto.graph.node or not proto.graph.output or not proto.opset_import:
        raise UnsupportedModel(f"{name}: no graph in it ({len(data):,} bytes); expected an ONNX model file")
    check_bounds(str(name), proto)
    # what this tool, and others, write first of it
    start = onnx.ModelProto(**{part.name: value for part, value in proto.ListFields() if part.number < _GRAPH})
    _refuse_own_format(name, start.SerializeToString())
    if (rest := len(data) - tensors.total_size(proto, large_values)) > 0:
        raise UnsupportedModel(
            f"{name}: has {rest:,} bytes that are no part of the model in it, and that others may read as another "
            "model; `onnx.save(onnx.load(FILE), NEW)` writes the model alone"
        )
    external = filter(tensors.is_external, all_tensors(proto))
    if file is not None:
        # Before anything opens the files: what is no part of the model must not become one.
        tensors.check_places(file, external)
    elif any(external):
        raise UsageError(
            "the model in memory refers to external data without saying where they lie; pass the path of its file, or "
            "load the data first (`onnx.load(path)` does)"
        )
    flat, functions = inlined(proto, str(name), limits)
    return Model(flat, hashlib.sha256(data).hexdigest(), file, IN_MEMORY, functions, limits, large_values)


def _refuse_own_format(name: Path | str, data: bytes) -> None:
    if data[4:8] == _ORT_MARK:
        raise UnsupportedModel(
            f"{name}: ONNX Runtime takes it for a model in its own format (bytes 4 to 7 are ORTM); expected an ONNX "
            "file: give the one that it was made from"
        )


def _array_on(data: bytes, tensor: onnx.TensorProto) -> NDArray[Any]:
    """Return the values of a tensor with its raw data beside it: no copy, where NumPy has the type."""
    kind = tensors.FLOAT_TYPES.get(tensor.data_type, "")
    if kind in ("float32", "float64", "float16") and sys.byteorder == "little":
        return np.frombuffer(data, kind).reshape(tuple(tensor.dims))
    loaded = onnx.TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type, raw_data=data)
    return np.asarray(onnx.numpy_helper.to_array(loaded))


def checker_complaint(model: Path | onnx.ModelProto | bytes) -> str:
    """Return what the ONNX checker, shape inference included, says against a file or model; empty if nothing."""
    # Given a path, the checker finds external data, and takes models above 2 GB.
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return one_line(error)
    # Of some damaged files it says so in other ways.
    except (MemoryError, RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {one_line(error)}"
    return ""


def damage(model: Model, error: Exception) -> str:
    """Say what is damaged in a model that cannot be read; raise the error where the ONNX checker has no complaint.

    A node of a damaged file may lack anything that its operator has, or hold what no such node can hold.
    """
    complaint = checker_complaint(model.path or model.proto)
    if not complaint and model.inlined and not model.external_files:  # it does not look at what calls hand on
        complaint = checker_complaint(b"".join(tensors.pieces(model.proto, model.large_values)))
    if not complaint:  # the file is right, so our reader is wrong
        raise error
    first = complaint.strip().splitlines()[0]
    # it also complains of some that run: then the error may be ours
    return (
        f"damaged ({type(error).__name__}: {error}); the ONNX checker says: {first}; if ONNX Runtime opens it all the "
        "same, please report this"
    )


def tells_damage(function: Callable[Concatenate[Model, P], R]) -> Callable[Concatenate[Model, P], R]:
    """Return a function that reads a model; where a damaged one makes it fail, it says so."""

    @functools.wraps(function)
    def read(model: Model, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(model, *args, **kwargs)
        except TnaError:
            raise
        except Exception as error:
            raise UnsupportedModel(f"{model.name}: {damage(model, error)}") from error

    return read


def tensor_types(model: Model) -> dict[str, str]:
    """Dtype and shape of each graph input as text, such as `float32 (N, 3, 32, 32)`; dynamic dimensions by name."""
    texts = {}
    for info in model.proto.graph.input:
        tensor = info.type.tensor_type
        dtype = tensors.FLOAT_TYPES.get(tensor.elem_type, tensors.type_name(tensor.elem_type))
        texts[info.name] = f"{dtype} {dims_text(tensor.shape)}"
        if not info.type.HasField("tensor_type"):
            texts[info.name] = str(info.type.WhichOneof("value")).removesuffix("_type")
    return texts


def dims_text(shape: onnx.TensorShapeProto) -> str:
    """Return a declared shape as text, such as `(N, 3)`; a dimension without name or size is `?`."""
    names = (str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in shape.dim)
    return f"({', '.join(names)})"
