"""A constant as a linear node reads it (`Stored`), and the linear layer made of such constants (`Linear`).

    read = step_k(... step_1(stored))          stored = step_1^-1(... step_k^-1(read))
    scores = features @ vectors.T * scale + bias * bias_scale

A constant made by steps that cannot be undone, or that others read too, stays, and the node gets a tensor of its own.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from tna_onnx.graph.constants import NotConstant, Quantized, constant_value, made_from_constants, read_quantized
from tna_onnx.graph.load import Model
from tna_onnx.graph.tensors import FLOAT_TYPES, rounded, type_name

_SMALL_INTEGERS = {
    onnx.TensorProto.INT8, onnx.TensorProto.UINT8, onnx.TensorProto.INT4, onnx.TensorProto.UINT4,
    onnx.TensorProto.INT2, onnx.TensorProto.UINT2,
}  # fmt: skip


_FLOATS = ", ".join(FLOAT_TYPES.values())


class Refused(Exception):
    """Why a constant or a node is not what was looked for; the text is shown to the user."""


class LabelsOfPositions(Refused):
    """Several positions of a sample have several labels each."""


@dataclass(frozen=True)
class Transpose:
    """Permutation of axes."""

    perm: tuple[int, ...]

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        return np.transpose(array, self.perm)

    def undo(self, array: NDArray[Any]) -> NDArray[Any]:
        return np.transpose(array, np.argsort(self.perm))


@dataclass(frozen=True)
class Reshape:
    """Change of shape, elements in the same order."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        return array.reshape(self.after)

    def undo(self, array: NDArray[Any]) -> NDArray[Any]:
        return array.reshape(self.before)


@dataclass(frozen=True)
class Cast:
    """Change of the float type."""

    to: str

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        return rounded(array, self.to)

    def undo(self, array: NDArray[Any]) -> NDArray[Any]:
        """Leave the dtype to `Stored.layout`, which ends in the stored one."""
        return array


@dataclass(frozen=True)
class Mirror:
    """Two opposite rows [-w, w] of a binary classifier, seen as the one row w."""

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        """Take the row of the second class."""
        return array[1:]

    def undo(self, array: NDArray[Any]) -> NDArray[Any]:
        """Put the opposite row in front."""
        return np.concatenate([-array, array])


@dataclass(frozen=True, eq=False)
class Select:
    """Some of the classes, or all in another order: entry k of the result is entry `places[k]`."""

    places: tuple[int, ...]  # of the entries, each at most once
    axis: int  # of the classes
    original: NDArray[Any]  # what they are selected from; what is not among them stays

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        return np.take(array, self.places, self.axis)

    def undo(self, array: NDArray[Any]) -> NDArray[Any]:
        """Put the entries where they were."""
        restored = self.original.astype(array.dtype)
        restored[(slice(None),) * self.axis + (list(self.places),)] = array
        return restored


Step: TypeAlias = Transpose | Reshape | Cast | Mirror | Select


@dataclass(frozen=True, eq=False)
class Stored:
    """A constant as stored, and the steps to the value that a node reads."""

    name: str  # initializer, or output of a Constant node; for an attribute, of the node that has it
    value: NDArray[Any]  # the value as read, after the steps; float
    float_type: str  # element type in which a new value is stored, or read if the node gets a tensor of its own
    steps: tuple[Step, ...]  # from the stored (and dequantised) tensor to the value
    read_as: str  # name of the tensor that the node reads
    reader: int  # index of that node
    # the node is given a tensor of its own for a new value, in the layout that it reads: someone outside this path
    # reads the stored tensor, or one on the path, too; or it is computed in a way that cannot be undone
    shared: bool = False
    quantized: Quantized | None = None  # how the tensor is quantised, if it is and can be requantised
    # the value is computed from integers of at most 8 bits that cannot be requantised: blocks of 4 bits, say
    packed: bool = False
    attribute: str = ""  # the constant is this attribute of the node

    @property
    def integers(self) -> bool:
        """Whether the file has the value as integers."""
        return self.packed or self.quantized is not None

    def layout(self, value: NDArray[Any]) -> NDArray[Any]:
        """Return a new value, given as read, in the stored layout, not yet rounded to the stored type."""
        return np.asarray(undone(value, self.steps), order="C")  # ascontiguousarray would make (1,) of ()

    def as_written(self, value: NDArray[Any]) -> NDArray[Any]:
        """Return what the node will read of a new value: rounded to the stored type, or quantised and dequantised."""
        if self.shared:
            return rounded(value, self.float_type)
        stored = self.layout(value)
        if self.quantized is None:
            return oriented(rounded(stored, self.float_type), self.steps)
        return oriented(self.quantized.as_written(stored), self.steps)


def resolve(model: Model, tensor: str, reader: int) -> Stored:
    """Follow a tensor that node number `reader` reads back to the constant behind it."""
    try:
        walk = _Walk(model)
        name, value, steps = walk.value(tensor, reader)
        return Stored(
            name=name,
            value=value,
            float_type=walk.float_type,
            steps=steps,
            read_as=tensor,
            reader=reader,
            shared=walk.shared,
            quantized=None if walk.shared else walk.quantized,  # a tensor of its own is float
            packed=walk.shared and walk.quantized is not None,
        )
    except RecursionError as error:
        raise Refused(f"the chain of nodes behind '{tensor}' is too long to follow") from error
    except _NoWayBack as reason:  # the value can be computed all the same, and written to a tensor of its own
        try:
            value = constant_value(model, tensor, reader)
        except NotConstant as error:
            raise Refused(str(error) or str(reason)) from error  # the reason nearer to the constant
    if value.dtype.name not in FLOAT_TYPES.values():
        raise Refused(f"'{tensor}' is a constant of type {value.dtype.name}; expected {_FLOATS}")
    nodes = (model.proto.graph.node[k] for k in made_from_constants(model, tensor) or ())
    constants = (model.constant_tensor(name) for node in nodes for name in node.input)
    packed = any(constant is not None and constant.data_type in _SMALL_INTEGERS for constant in constants)
    return Stored(tensor, value, value.dtype.name, (), tensor, reader, shared=True, packed=packed)


class _NoWayBack(Exception):
    """A step that cannot be undone; the text says which."""


@dataclass(eq=False)
class _Walk:
    """The walk from a reading node back to the stored tensor, and what it has come across."""

    model: Model
    shared: bool = False
    quantized: Quantized | None = None
    float_type: str = ""

    def value(self, tensor: str, reader: int) -> tuple[str, NDArray[Any], tuple[Step, ...]]:
        """Return (name of the stored tensor, value, steps)."""
        model = self.model
        node = model.producer(tensor)
        constant = model.constant_tensor(tensor)
        self.shared |= model.uses.get(tensor, 0) > 1  # its other readers must not see a new value
        if constant is not None:
            if constant.data_type not in FLOAT_TYPES:
                kind = type_name(constant.data_type)
                raise Refused(f"constant '{tensor}' has element type {kind}; expected {_FLOATS}")
            self.float_type = FLOAT_TYPES[constant.data_type]
            return tensor, model.floats(constant), ()
        if node is None:
            where = "not in the file"
            if tensor in model.inputs:
                where = "a graph input"
            raise Refused(f"'{tensor}' is {where}, not a constant")
        index = model.producers[tensor]
        if index >= reader:
            raise Refused(f"the nodes are not in topological order: '{tensor}' is read before it is computed")
        if not node.input:
            raise Refused(f"'{tensor}' is computed by a {node.op_type} node with 0 inputs")
        if node.op_type == "DequantizeLinear":
            return self._dequantized(tensor, index)
        if node.op_type not in ("Identity", "Cast", "Transpose", "Reshape") or node.domain not in ("", "ai.onnx"):
            raise _NoWayBack(f"'{tensor}' is computed by a {node.op_type} node, not a constant")
        name, value, steps = self.value(node.input[0], index)
        # A damaged file may permute axes that are not there, or reshape to another number of elements.
        try:
            step = _step(model, node, value)
            if step is None:
                return name, value, steps
            value = step.apply(value)
        except (IndexError, ValueError) as error:
            raise Refused(
                f"{node.op_type} does not fit the constant '{node.input[0]}' of shape {value.shape}"
            ) from error
        if isinstance(step, Cast) and self.shared:
            self.float_type = step.to  # the node gets a tensor of its own, in the type that it reads
        return name, value, (*steps, step)

    def _dequantized(self, tensor: str, index: int) -> tuple[str, NDArray[Any], tuple[Step, ...]]:
        model = self.model
        node = model.proto.graph.node[index]
        dequantized = read_quantized(model, index)
        if dequantized is None:
            raise _NoWayBack(f"'{tensor}' is dequantised from something other than constants of 8, 16 or 32 bits")
        self.quantized, value = dequantized
        self.shared |= model.uses.get(node.input[0], 0) > 1  # tied to another layer, as stored integers
        self.float_type = value.dtype.name
        return str(node.input[0]), value, ()


def _step(model: Model, node: onnx.NodeProto, value: NDArray[Any]) -> Step | None:
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "Transpose":
        return Transpose(tuple(attributes.get("perm", range(value.ndim)[::-1])))
    if node.op_type == "Reshape":
        shape = attributes.get("shape")  # opset < 5
        if shape is None:
            target = model.constant_tensor(node.input[1])
            if target is None:
                raise _NoWayBack(f"Reshape of the constant '{node.input[0]}' takes a shape that is not a constant")
            sizes = model.array(target)
            if sizes.ndim != 1:
                raise Refused(f"'{node.input[1]}' has {sizes.ndim} axes; expected one, as the shape of a Reshape")
            shape = sizes.tolist()
        dims = [d or value.shape[k] for k, d in enumerate(shape)]  # 0 keeps the size of that axis
        return Reshape(value.shape, value.reshape(dims).shape)
    if node.op_type == "Cast":
        if attributes.get("to") not in FLOAT_TYPES:
            raise Refused(f"constant '{node.input[0]}' is cast to a type that is not float")
        return Cast(FLOAT_TYPES[attributes["to"]])
    return None


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear layer as one node has it."""

    features: str  # tensor that goes in
    weight: Stored  # the constant behind the weight
    orient: tuple[Step, ...]  # steps from the weight as read to `vectors`
    features_transposed: bool = False  # the tensor is (n, N)
    classes_first: bool = False  # the weight is the left operand, and the result is (C, N)
    # the constant behind the bias, if the node has one; it broadcasts to (C,) after `bias_orient`
    bias: Stored | None = None
    bias_orient: tuple[Step, ...] = ()  # steps from the bias as read to one value per vector
    scale: float = 1.0  # factor on features @ vectors.T
    bias_scale: float = 1.0  # factor on the bias
    classes: int | None = None  # number of classes, where the node says so itself
    link: str = "none"  # what the node does to the scores: none, softmax, sigmoid, or another activation by name
    labels: tuple[int | str, ...] = ()  # what the node calls its classes, if it says so

    @property
    def vectors(self) -> NDArray[Any]:
        """(C, n) class vectors, or (1, n) for one score."""
        return oriented(self.weight.value, self.orient)


def oriented(value: NDArray[Any], steps: tuple[Step, ...]) -> NDArray[Any]:
    for step in steps:
        value = step.apply(value)
    return value


def undone(value: NDArray[Any], steps: tuple[Step, ...]) -> NDArray[Any]:
    """Take steps back, the last one first."""
    for step in reversed(steps):
        value = step.undo(value)
    return value
