"""Values of constants that nodes compute (`constant_value`) or dequantise (`Quantized`), and how a new value is stored.

    value = (stored - zero_point) * scale

A new weight is quantised symmetrically, per channel from opset 13 and with one class axis; 7 bits stay 7 bits. A 32-bit
bias has the scale that integer kernels assume, scale of the features times scale of the weight.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import onnx
from numpy.typing import NDArray

from tna_onnx.errors import one_line
from tna_onnx.graph.bounds import all_tensors, input_at, subgraphs_of
from tna_onnx.graph.load import Model
from tna_onnx.graph.options import ModelLimits
from tna_onnx.graph.tensors import INTEGER_TYPES, is_external

# Some CPUs add products of 8-bit numbers in 16 bits, which 7-bit weights keep from overflowing.
_LIMIT_7_BITS = 64


@dataclass(frozen=True, eq=False)
class Quantized:
    """How a constant is quantised."""

    node: int  # index of the DequantizeLinear
    dtype: np.dtype[Any]  # of the stored integers
    scale: NDArray[Any]  # the stored scale, shape () or (channels,)
    zero_point: str  # name of the zero point's tensor; empty if there is none
    limit: int  # largest distance from the zero point that a new value may take
    axis: int | None  # axis of the stored tensor with a scale each; None for one scale
    fixed_scale: NDArray[np.float64] | None = None  # a scale that a new value must have, in place of its own

    def quantize(self, value: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return (integers, scale, zero point) of a new value in the stored layout."""
        value = value.astype(np.float64)
        scale = self.fixed_scale
        if scale is None:  # with which the largest value, of each channel or of all, takes the limit
            other_axes = tuple(k for k in range(value.ndim) if k != self.axis)
            scale = np.max(np.abs(value), axis=other_axes, initial=0) / self.limit
        scale = np.asarray(np.where(scale > 0, scale, 1.0), self.scale.dtype)  # zeros alone: any scale will do
        middle = 0
        if self.dtype.kind == "u":
            middle = 2 ** (8 * self.dtype.itemsize - 1)
        zero = np.full(scale.shape, middle, self.dtype)
        steps = np.rint(value / _along(scale.astype(np.float64), self.axis, value.ndim))
        # Symmetric: of 8 bits, -128 stays unused.
        steps = np.clip(steps, -self.limit, self.limit) + int(zero.flat[0])
        return steps.astype(self.dtype), scale, zero

    def as_written(self, value: NDArray[Any]) -> NDArray[Any]:
        """Return what DequantizeLinear gives for a new value."""
        integers, scale, zero = self.quantize(value)
        shifted = integers.astype(np.float64) - int(zero.flat[0])
        return np.asarray(shifted * _along(scale.astype(np.float64), self.axis, value.ndim), scale.dtype)


def full_range(dtype: np.dtype[Any]) -> int:
    """Return how many steps an integer type has."""
    return int(np.iinfo(dtype).max) - int(np.iinfo(dtype).min)


def read_quantized(model: Model, index: int) -> tuple[Quantized, NDArray[Any]] | None:
    """Return how the constant behind a DequantizeLinear node is quantised, and its value.

    None if it is another node, or its input no constant of 8, 16 or 32 bits with a constant scale, one or per channel.
    """
    node = model.proto.graph.node[index]
    if node.op_type != "DequantizeLinear":
        return None
    tensors = [model.constant_tensor(name) for name in node.input if name]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    # With block_size, a scale holds for a part of an axis, which `Quantized` does not know.
    if any(t is None for t in tensors) or len(tensors) < 2 or attributes.get("block_size", 0):
        return None
    stored, scale, *zero_points = [t for t in tensors if t is not None]
    if stored.data_type not in INTEGER_TYPES or node.domain not in ("", "ai.onnx", "com.microsoft"):
        return None
    integers = model.array(stored)
    factor = model.floats(scale)
    zero = np.zeros((), np.int64)
    if zero_points:
        zero = model.array(zero_points[0]).astype(np.int64)
    if factor.ndim > 1 or zero.shape not in ((), factor.shape):
        return None
    axis = None
    if factor.size > 1:
        axis = int(attributes.get("axis", 1)) % max(integers.ndim, 1)
    else:
        factor = factor.reshape(())
    shifted = integers.astype(np.int64) - _along(zero, axis, integers.ndim)
    dtype = INTEGER_TYPES[stored.data_type]
    # how far from the zero point a new value may lie
    limit = int(2 ** (8 * dtype.itemsize - 1)) - 1
    if dtype.itemsize == 1 and np.max(np.abs(shifted), initial=0) <= _LIMIT_7_BITS:
        limit = _LIMIT_7_BITS
    quantized = Quantized(node=index, dtype=dtype, scale=factor, zero_point=input_at(node, 2), limit=limit, axis=axis)
    value = shifted * _along(factor.astype(np.float64), axis, integers.ndim)
    return quantized, np.asarray(value, factor.dtype)


def _along(array: NDArray[Any], axis: int | None, rank: int) -> NDArray[Any]:
    """Shape a vector so that it broadcasts along an axis; a number, or one for all axes, stays as it is."""
    if axis is None or array.ndim == 0:
        return array
    return array.reshape([-1 if k == axis else 1 for k in range(rank)])


# A constant weight is a few nodes away from its initializer. A long chain of them is no weight.
_MAX_NODES = 50
_MAX_RESULTS = 16  # a weight that is normalised goes through about ten nodes, each of which gives one of its size

RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}
"""Operators whose results differ from run to run, whatever goes in."""

# Operators whose result has no more elements than what goes in. Of any other, the size of the result must be known
# before it is computed.
_NOT_LARGER = {"Cast", "Flatten", "Identity", "Reshape", "Shape", "Size", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
# Numbers in a constant that may say something of a shape: no tensor has more axes.
_MAX_SHAPE = 64


class NotConstant(Exception):
    """The tensor depends on data, or cannot be computed here; the text says why."""


def made_from_constants(model: Model, tensor: str) -> list[int] | None:
    """Return the indices of the nodes that make a tensor, in order; None if it depends on data or on chance."""
    nodes: set[int] = set()
    todo = [tensor]
    while todo:
        name = todo.pop()
        if not name or name in model.initializers:
            continue  # an empty name is an input that is left out
        index = model.producers.get(name)
        if index is None:
            return None
        node = model.proto.graph.node[index]
        # loops may never end, and branches hide how large their results are
        if node.op_type in RANDOM or next(subgraphs_of(node), None) is not None:
            return None
        if index not in nodes:
            nodes.add(index)
            todo += node.input
    return sorted(nodes)


def constant_value(model: Model, tensor: str, reader: int) -> NDArray[Any]:
    """Compute a tensor that only constants go into.

    Raises NotConstant: it depends on data, or the evaluator cannot compute it.
    """
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - heavy

    nodes = made_from_constants(model, tensor)
    if nodes is None:
        node = model.producer(tensor)
        if node is None:
            raise NotConstant
        raise NotConstant(f"'{tensor}' is computed by a {node.op_type} node, not a constant")
    # A node behind the reader cannot make what it reads; the evaluator would not mind the order.
    if len(nodes) > _MAX_NODES or any(k >= reader for k in nodes):
        raise NotConstant(f"'{tensor}' is computed by {len(nodes)} nodes; fold constants before the export")
    closed = _closed(model, nodes, tensor)
    _require_size(closed, tensor, model.limits)
    try:
        values = cast("list[Any]", ReferenceEvaluator(closed, new_ops=_missing_operators(closed)).run(None, {}))
    except Exception as error:  # whatever an operator of the evaluator raises
        operators = ", ".join(sorted({node.op_type for node in closed.graph.node}))
        raise NotConstant(
            f"'{tensor}' is computed from constants by {operators}, which cannot be evaluated here; fold "
            "constants before the export"
        ) from error
    return np.asarray(values[0])


# The first opset in which `onnx.reference` has DequantizeLinear; the operator itself is of opset 10.
_DEQUANTIZE_FROM = 19


def _missing_operators(closed: onnx.ModelProto) -> list[Any]:
    """Return the operators that the evaluator lacks in the versions that the model asks for.

    A quantisation-aware export computes its weight by them: QuantizeLinear of the floats, then DequantizeLinear.
    """
    from onnx.reference.op_run import OpRun  # noqa: PLC0415 - heavy

    # the evaluator tells operators apart by the names of their classes
    class DequantizeLinear(OpRun):
        op_domain = ""

        def _run(
            self, x: NDArray[Any], scale: NDArray[Any], zero: NDArray[Any] | None = None, axis: int = 1, **_: Any
        ) -> tuple[NDArray[Any]]:  # attributes of newer versions come with their defaults
            channels = int(axis) % max(x.ndim, 1) if scale.ndim else None
            shifted = x.astype(np.int64)
            if zero is not None:
                shifted = shifted - _along(zero.astype(np.int64), channels, x.ndim)
            return (np.asarray(shifted * _along(scale.astype(np.float64), channels, x.ndim), scale.dtype),)

    versions = {opset.domain: opset.version for opset in closed.opset_import}
    if versions.get("", _DEQUANTIZE_FROM) >= _DEQUANTIZE_FROM:
        return []
    return [DequantizeLinear]


def _require_size(closed: onnx.ModelProto, tensor: str, limits: ModelLimits) -> None:
    """Refuse to compute what would not fit into memory, or may not: a few bytes can ask for any size."""
    try:
        graph = onnx.shape_inference.infer_shapes(_without_weights(closed), data_prop=True).graph
    except onnx.shape_inference.InferenceError as error:
        raise NotConstant(f"'{tensor}' is computed by nodes that do not fit together: {one_line(error)}") from error
    stored = sum(math.prod(tensor.dims) for tensor in closed.graph.initializer)
    limit = max(int(limits.constant_elements), _MAX_RESULTS * stored)
    total = 0  # the evaluator keeps all results until it is done
    for node, size in _results(graph):
        if size is None:
            raise NotConstant(f"'{tensor}' is computed by a {node.op_type} node with a result of unknown size")
        total += size
        if total > limit:
            raise NotConstant(
                f"'{tensor}' is computed by a {node.op_type} node with a result of {size:,} elements; expected at most "
                f"{limit:,} in all results (--limit constant-elements=NUMBER)"
            )


def _results(graph: onnx.GraphProto) -> Iterator[tuple[onnx.NodeProto, int | None]]:
    """Yield each node and the elements of each of its results, None if unknown."""
    sizes = {tensor.name: math.prod(tensor.dims) for tensor in graph.initializer}
    for info in (*graph.input, *graph.value_info, *graph.output):
        shape = info.type.tensor_type
        if shape.HasField("shape") and all(d.HasField("dim_value") for d in shape.shape.dim):
            sizes[info.name] = math.prod(d.dim_value for d in shape.shape.dim)
    for node in graph.node:
        for name in filter(None, node.output):
            if name not in sizes and node.op_type in _NOT_LARGER:
                sizes[name] = max((sizes.get(n, 0) for n in node.input), default=0)
            yield node, sizes.get(name)


def _without_weights(closed: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with inputs in the place of large constants: a shape does not depend on those."""
    bare = onnx.ModelProto(ir_version=closed.ir_version, opset_import=closed.opset_import)
    bare.graph.name = closed.graph.name
    bare.graph.node.extend(closed.graph.node)
    bare.graph.output.extend(closed.graph.output)
    for tensor in closed.graph.initializer:
        if math.prod(tensor.dims) > _MAX_SHAPE:
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            bare.graph.input.append(info)
        else:
            bare.graph.initializer.append(tensor)
    return bare


def _closed(model: Model, nodes: list[int], tensor: str) -> onnx.ModelProto:
    """Return a model without inputs that computes a tensor from constants."""
    graph = model.proto.graph
    # The evaluator knows DequantizeLinear only from opset 19 on: its results go in as constants.
    dequantized = {}
    for k in nodes:
        if (quantized := read_quantized(model, k)) is not None:
            dequantized[k] = onnx.numpy_helper.from_array(quantized[1], graph.node[k].output[0])
    computed = [graph.node[k] for k in nodes if k not in dequantized]
    used = {name for node in computed for name in node.input}
    tensors = [model.initializers[name] for name in sorted(used) if name in model.initializers]
    part = onnx.helper.make_graph(
        computed, "constant", [], [onnx.ValueInfoProto(name=tensor)], [*tensors, *dequantized.values()]
    )
    for stored in all_tensors(part):
        if is_external(stored):  # the evaluator would look for it where the process stands
            stored.CopyFrom(model.loaded(stored))
        elif (data := model.large_value(stored)) is not None:
            stored.raw_data = data
    return onnx.ModelProto(ir_version=model.proto.ir_version, opset_import=model.proto.opset_import, graph=part)


def quantization_step(model: Model, tensor: str) -> float:
    """Return the step of a quantised tensor, the largest of several; 0 if it is not quantised by a constant."""
    return float(np.max(dequantized_with(model, tensor), initial=0))


def dequantized_with(model: Model, tensor: str) -> NDArray[Any]:
    """Return the scale of the DequantizeLinear that makes a tensor; nothing if none does, or it is no constant."""
    node = model.producer(tensor)
    if node is None or node.op_type != "DequantizeLinear":
        return np.zeros(0)
    scale = model.constant_tensor(input_at(node, 1))
    if scale is None:
        return np.zeros(0)
    return model.floats(scale)
