"""ONNX nodes that this package appends: the operations of map formulas, opset versions, names and metadata.

Each operation of `numerics.ops` appends one standard node. All is 2-D in the dtype of the logits. Names share one
prefix, so that users can leave the block out of a quantisation.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.bounds import all_nodes
from tna_onnx.graph.difference import PLACEHOLDER_INT, WrittenValues
from tna_onnx.graph.load import METADATA_PREFIX, PREFIX, Model, head_key
from tna_onnx.numerics.ops import least_probability

_MIN_OPSET = 7  # Mul and Add broadcast from 7 on
_MIN_OPSETS = {"float64": 12}  # Clip knows float64 from 12 on

MIN_IR_OF_INITIALIZERS = 4
"""From this IR version on an initializer need not be a graph input."""


def constant_node(tensor: onnx.TensorProto) -> onnx.NodeProto:
    """Return a node that makes a tensor, for files in which an initializer would have to be a graph input."""
    return helper.make_node("Constant", [], [tensor.name], name=tensor.name, value=tensor)


def insert_nodes(graph: onnx.GraphProto, at: int, nodes: Iterable[onnx.NodeProto]) -> None:
    """Put nodes in front of node number `at`."""
    # Copies, as the nodes themselves are deleted; protobuf lists cannot be inserted into.
    following = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node[at:]]
    del graph.node[at:]
    graph.node.extend([*nodes, *following])


def can_append(dtype: str, opset: int) -> bool:
    """Whether a model's opset has the operators that an appended map needs."""
    return opset >= _MIN_OPSETS.get(dtype, _MIN_OPSET)


def too_old(dtype: str, opset: int) -> str:
    """Say why a model's opset has no place for an appended map, and what to do."""
    version = f"opset {opset}"
    if not opset:
        version = "standard nodes without an opset for them"
    least = _MIN_OPSETS.get(dtype, _MIN_OPSET)
    return f"the model has {version}, too old for an appended map in {dtype}; convert it to opset {least} or newer"


class NodeOps:
    """The words as nodes; collects what they wrote.

    Args:
        dtype: NumPy name of the logits' dtype.
        opset: the model's opset; Clip takes its bounds as attributes before 11, reductions their axes before 18.
        ir_version: of the model; before 4 an initializer has to be an input too, so constants become nodes.
        prefix: how names begin.
        from_file: a file that is made again, for constants that are no numbers; None where all are.

    Raises:
        UnsupportedModel: the opset is too old.
    """

    def __init__(
        self,
        dtype: str,
        opset: int,
        ir_version: int = MIN_IR_OF_INITIALIZERS,
        prefix: str = PREFIX,
        from_file: WrittenValues | None = None,
    ) -> None:
        if not can_append(dtype, opset):
            raise UnsupportedModel(too_old(dtype, opset))
        self._dtype = np.dtype(dtype)
        self._opset = opset
        self._prefix = prefix
        self._from_file = from_file
        self._as_nodes = ir_version < MIN_IR_OF_INITIALIZERS
        self._stored = 0
        self._axes = ""
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    @property
    def tiny(self) -> float:
        """Smallest normal number of the dtype."""
        return least_probability(np.finfo(self._dtype).tiny)

    @property
    def names(self) -> set[str]:
        """Names of all that was written."""
        nodes = {name for node in self.nodes for name in (node.name, *node.output)}
        return nodes | {tensor.name for tensor in self.initializers}

    def const(self, value: Any) -> str:
        return self._store(np.asarray(value, self._dtype), f"const_{self._stored}")

    def in_float(self, value: Any) -> str:
        """Write a constant behind an Identity, so that quantisation tools leave it in float.

        ONNX Runtime's dynamic quantisation leaves a MatMul of such a one in float, and its sessions fold the Identity.
        """
        return self.node("Identity", [self.const(value)])

    def add(self, a: str, b: str) -> str:
        return self.node("Add", [a, b])

    def mul(self, a: str, b: str) -> str:
        return self.node("Mul", [a, b])

    def div(self, a: str, b: str) -> str:
        return self.node("Div", [a, b])

    def matmul(self, a: str, b: str) -> str:
        return self.node("MatMul", [a, b])

    def log(self, a: str) -> str:
        return self.node("Log", [a])

    def clip(self, a: str, low: float, high: float) -> str:
        """Write Clip with both bounds."""
        if self._opset < 11:  # bounds are attributes
            return self.node("Clip", [a], min=low, max=high)
        return self.node("Clip", [a, self.const(low), self.const(high)])

    def softmax(self, a: str) -> str:
        """Write Softmax over axis 1."""
        return self.node("Softmax", [a], axis=1)

    def sigmoid(self, a: str) -> str:
        """Write Sigmoid; not a word of the maps, but what ends those behind probabilities of labels."""
        return self.node("Sigmoid", [a])

    def cast_behind(self, tensor: str, result: str) -> None:
        """Put a Cast to the type of the map in front of all nodes, if one of them reads its result."""
        if any(result in node.input for node in self.nodes):
            self.node("Cast", [tensor], to=helper.np_dtype_to_tensor_dtype(self._dtype))
            cast = self.nodes.pop()
            cast.output[0] = result
            self.nodes.insert(0, cast)

    def first_class(self, a: str) -> str:
        """Write the place of the largest entry of each row, the first of equal ones, (N,); no word of the maps."""
        if self._dtype == np.float16:  # runtimes have no ArgMax of it
            a = self.node("Cast", [a], to=onnx.TensorProto.FLOAT)
        return self.node("ArgMax", [a], axis=1, keepdims=0)

    def class_names(self, places: str, names: Sequence[int | str], kind: int, shape: list[int], output: str) -> None:
        """Write the names of classes in places (N,) as `output`, in ONNX's type `kind`; no word of the maps."""
        texts = isinstance(names[0], str)
        values = np.array(names, object if texts else np.int64)
        result = self.node("Gather", [self._store(values, f"classes_{self._stored}"), places], axis=0)
        if kind not in (onnx.TensorProto.INT64, onnx.TensorProto.STRING):
            result = self.node("Cast", [result], to=kind)
        self.reshape(result, shape)
        self.nodes[-1].output[:] = [output]

    def mean(self, a: str) -> str:
        """Write ReduceMean over axis 1."""
        return self._reduced("ReduceMean", a)

    def min(self, a: str) -> str:
        """Write ReduceMin over axis 1."""
        return self._reduced("ReduceMin", a)

    def sum_square(self, a: str) -> str:
        """Write ReduceSumSquare over axis 1."""
        return self._reduced("ReduceSumSquare", a)

    def reshape(self, a: str, shape: list[int]) -> str:
        """Write Reshape; not a word of the maps, but what a binary head with logits of shape (N,) needs around them."""
        return self.node("Reshape", [a, self._store(np.array(shape, np.int64), f"shape_{self._stored}")])

    def reshape_as(self, a: str, like: str) -> str:
        """Write Reshape to the shape that another tensor has when the model runs."""
        return self.node("Reshape", [a, self.node("Shape", [like])])

    def transpose(self, a: str, axes: list[int]) -> str:
        return self.node("Transpose", [a], perm=axes)

    def _reduced(self, op_type: str, a: str) -> str:
        if self._opset < 18:  # axes are an attribute
            return self.node(op_type, [a], axes=[1], keepdims=1)
        # All reductions of a map share one tensor of axes.
        self._axes = self._axes or self._store(np.array([1], np.int64), "axes")
        return self.node(op_type, [a, self._axes], keepdims=1)

    def _store(self, value: NDArray[Any], name: str) -> str:
        tensor = self._tensor(value, f"{self._prefix}/{name}")
        self._stored += 1
        if self._as_nodes:
            self.nodes.append(constant_node(tensor))
        else:
            self.initializers.append(tensor)
        return str(tensor.name)

    def _tensor(self, value: NDArray[Any], name: str) -> onnx.TensorProto:
        """Return a constant; one with placeholders in it is taken from the file that is being rebuilt."""
        tensor = numpy_helper.from_array(value, name)
        if self._from_file is None:
            return tensor
        unknown = np.isnan(value) if value.dtype.kind == "f" else value == PLACEHOLDER_INT
        if np.any(unknown):
            tensor = self._from_file.taken(tensor, infinite=True)
            # the digest of a map is of the values, as when it was written
            tensor.raw_data = self._from_file.model.large_value(tensor) or tensor.raw_data
        return tensor

    def node(self, op_type: str, inputs: list[str], **attributes: Any) -> str:
        """Write one node; return what its result is called."""
        name = f"{self._prefix}/{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"


# IR version -> the first default operator set that came with it.
_OPSETS = {3: 7, 4: 9, 5: 10, 6: 11, 7: 12, 8: 15, 9: 19, 10: 21}


def map_opset(model: Model) -> int:
    """Return the version of the default operator set that appended nodes have; 0 if they cannot have one.

    A file without standard nodes, such as boosted trees alone, may not import the set, or import version 1. Then it is
    the oldest one of the file's IR version, which every runtime of that version knows.
    """
    enough = can_append("", model.opset)
    if enough or any(node.domain in ("", "ai.onnx") for node in all_nodes(model.proto.graph)):
        return model.opset
    return _OPSETS.get(model.proto.ir_version, max(_OPSETS.values()))


"""How the keys of this tool's metadata begin."""

RAW_LOGITS = f"{PREFIX}/logits"
"""What the logits in front of an appended map are called."""

PRIOR_BLOCK = f"{PREFIX}/prior"
"""How names of the nodes begin that shift the class prior, behind a map that was appended before."""


def annotate(proto: onnx.ModelProto, metadata: Mapping[str, str]) -> None:
    """Replace the entries of ours, keep the others."""
    foreign = [(e.key, e.value) for e in proto.metadata_props if not e.key.startswith(METADATA_PREFIX)]
    del proto.metadata_props[:]
    for key, value in (*foreign, *((METADATA_PREFIX + key, value) for key, value in metadata.items())):
        proto.metadata_props.add(key=key, value=value)


def raw_logits(block: str) -> str:
    """Return what the logits are called in front of an appended block."""
    return f"{block}/logits"


def free_block(model: Model, output: str) -> str:
    """Return how names of the nodes begin that are appended for one output: another head may have the plain names."""
    if RAW_LOGITS in model.producers:
        return block_of(output)
    return PREFIX


def block_of(output: str) -> str:
    """Return how names of the nodes of one of several heads begin, by the graph output of that head."""
    return f"{PREFIX}/{head_key(output)}".removesuffix("/")


def merged_provenance(model: Model, output: str, entries: Mapping[str, str]) -> dict[str, str]:
    """Return all entries of a file in which the head of an output is calibrated now, and others may have been before.

    The entries of a single head stand as they are, those of several as `head/OUTPUT/KEY`.
    """
    earlier_heads = {name: earlier for name, earlier in model.calibrations.items() if name not in ("", output)}
    if not earlier_heads:
        return {**entries}
    heads = {**earlier_heads, output: entries}
    return {f"{head_key(name)}{key}": value for name, values in heads.items() for key, value in values.items()}


def scores_model(columns: int) -> onnx.ModelProto:
    """Return a model that hands on `scores` (N, columns) as `calibrated`."""
    node = helper.make_node("Identity", ["scores"], ["calibrated"], name="scores")
    ports = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", columns]) for name in
             ("scores", "calibrated")]  # fmt: skip
    graph = helper.make_graph([node], "calibrator", ports[:1], ports[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
