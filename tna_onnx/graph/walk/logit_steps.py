"""Steps from the logits to the linear layer: operators with one input, and constants (rules 2 to 5)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx

from tna_onnx.graph.constants import made_from_constants
from tna_onnx.graph.dtypes import FLOAT_TYPES, type_name
from tna_onnx.graph.linear import is_matrix_transpose
from tna_onnx.graph.load import Model
from tna_onnx.graph.stored import Refused, Stored, resolve
from tna_onnx.graph.traverse import input_at
from tna_onnx.graph.walk.state import State

__all__ = ["CURVED", "ONE_SIDED", "PASSED", "constant_operand", "is_constant", "one_sided", "with_constant"]

PASSED = {"Identity", "Cast", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze"}
"""Operators that change shape or type alone."""

# Operators that keep each score linear in the weight, but may put it in another place or average over places.
_ALIGNED = {
    "Transpose", "Gather", "GatherND", "GatherElements", "Slice", "ReduceMean", "GlobalAveragePool", "AveragePool",
    "Split",
}  # fmt: skip

# Operators f with f(k x) = k f(x) for k > 0: a temperature can be folded through them.
_HOMOGENEOUS = {"Relu", "LeakyRelu", "PRelu", "GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceSum", "Expand"}

CURVED = {
    "BatchNormalization", "Clip", "Elu", "Selu", "Celu", "ThresholdedRelu", "Tanh", "Softplus", "Softsign",
    "HardSigmoid", "HardSwish", "Erf", "Gelu", "Mish", "Swish", "QuantizeLinear", "DequantizeLinear",
}  # fmt: skip
"""Operators behind which only the graph itself computes the logits."""

ONE_SIDED = PASSED | _ALIGNED | _HOMOGENEOUS | CURVED
"""All operators whose first input alone brings the scores."""


def one_sided(state: State, node: onnx.NodeProto, index: int) -> str:
    """Pass an operator whose first input brings the scores."""
    kind = node.op_type
    if state.tensor != node.output[0] and kind != "Split":
        raise Refused(f"'{state.tensor}' is a side output of {kind}")
    if kind == "Cast":
        _cast(state, node)
    # Sizes, slopes, bounds: constants mostly, but a graph may compute them.
    state.side_inputs = (*state.side_inputs, *(name for name in node.input[1:] if name))
    state.aligned |= kind in _ALIGNED  # behind probabilities, this is not plain
    if kind == "Gather":
        _permutation(state, node)
    if is_matrix_transpose(node):
        state.turned = not state.turned
    if kind == "QuantizeLinear":
        _quantized(state, node)
    elif kind == "BatchNormalization":
        _batch_norm(state, node, index)
    elif kind in _HOMOGENEOUS | CURVED and kind != "DequantizeLinear":
        state.leave_to_graph(homogeneous=kind in _HOMOGENEOUS)
    return str(node.input[0])


def _permutation(state: State, node: onnx.NodeProto) -> None:
    """Take in a Gather of all classes, in another order; other selections are for numbers to tell."""
    indices = state.model.constant_tensor(input_at(node, 1))
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    if indices is None or axis not in (1, -1) or len(indices.dims) != 1 or state.turned:
        return
    places = state.model.array(indices)
    if len(places) < 2 or sorted(places.tolist()) != list(range(len(places))):
        return
    order = state.order or tuple(range(len(places)))
    if len(order) == len(places):
        state.order = tuple(int(places[k]) for k in order)


def _cast(state: State, node: onnx.NodeProto) -> None:
    to = next((a.i for a in node.attribute if a.name == "to"), 0)
    if to not in FLOAT_TYPES:
        raise Refused(f"Cast to {type_name(to)}, which is not {', '.join(FLOAT_TYPES.values())}")
    state.cast_to = state.cast_to or FLOAT_TYPES[to]  # the last of several casts counts


def _quantized(state: State, node: onnx.NodeProto) -> None:
    scale = None
    if len(node.input) > 1:
        scale = state.model.constant_tensor(node.input[1])
    if scale is None:
        raise Refused("QuantizeLinear with a scale that is not a constant")
    state.step = max(state.step, float(np.max(state.model.floats(scale), initial=0)))


def _batch_norm(state: State, node: onnx.NodeProto, index: int) -> None:
    """Take in the factor per class; the offset stays with the graph."""
    gamma, _, _, variance = (resolve(state.model, name, index).value.astype(np.float64) for name in node.input[1:5])
    epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
    factor = state.permuted(gamma / np.sqrt(variance + epsilon))
    # A class whose scores are multiplied by 0 has no vector that could be found back.
    if not np.all(np.isfinite(factor)) or np.any(factor == 0):
        raise Refused("BatchNormalization with zero or non-finite factors")
    if factor.ndim != 1 or (state.scale.ndim and state.scale.shape != factor.shape):
        raise Refused(f"BatchNormalization of {factor.size} channels, and factors of {state.scale.size} behind it")
    state.scale = np.asarray(state.scale * factor)
    state.leave_to_graph(homogeneous=False)


def is_constant(model: Model, tensor: str) -> bool:
    """Whether an operand is a constant, brought to the shape of the scores or not."""
    return made_from_constants(model, _before_expand(model, tensor)) is not None


def constant_operand(state: State, tensor: str, reader: int) -> Stored:
    """Return the constant that an operand of node number `reader` is.

    Raises:
        Refused: it cannot be read.
    """
    before = _before_expand(state.model, tensor)
    if before == tensor:
        return resolve(state.model, tensor, reader)
    expand = state.model.producers[tensor]
    state.side_inputs = (*state.side_inputs, state.model.proto.graph.node[expand].input[1])
    constant = resolve(state.model, before, expand)
    if state.model.uses.get(tensor, 0) > 1:  # others read what the Expand gives: this node gets a tensor of its own
        return replace(constant, name=tensor, steps=(), read_as=tensor, reader=reader, shared=True, quantized=None)
    return constant


def _before_expand(model: Model, tensor: str) -> str:
    """Return what an Expand to a computed shape repeats, which Add and Mul would have done by themselves."""
    node = model.producer(tensor)
    if node is None or (node.domain, node.op_type) != ("", "Expand") or len(node.input) < 2:
        return tensor
    if made_from_constants(model, node.input[1]) is not None:  # a constant as a whole
        return tensor
    return str(node.input[0])


def with_constant(state: State, node: onnx.NodeProto, data: str, constant: Stored) -> None:
    """Take in the constant of Add, Sub, Sum, Mul or Div.

    Args:
        state: the walk.
        node: the node.
        data: its operand that brings the scores.
        constant: its other operand.
    """
    shape = constant.value.shape
    if state.turned and constant.value.size > 1 and (len(shape) < 2 or shape[-1] != 1):
        raise Refused(f"{node.op_type} with a constant of shape {shape}, which is one number a sample of (C, N)")
    constant_first = node.input[0] != data
    if node.op_type == "Div" and constant_first:
        raise Refused(f"Div with the constant '{constant.read_as}' in front")
    if node.op_type in ("Mul", "Div"):
        _scale(state, node, constant)  # rule 3
        return
    if state.bias is None:  # rule 4
        state.bias = constant
        state.bias_steps = state.bias_permuted(constant)
        state.bias_scale = state.scale
        if node.op_type == "Sub" and not constant_first:  # s - c
            state.bias_scale = -state.scale
    else:  # a second constant: only the graph adds both
        state.leave_to_graph(homogeneous=False)
    if node.op_type == "Sub" and constant_first:  # c - s
        state.scale = -state.scale


def _scale(state: State, node: onnx.NodeProto, constant: Stored) -> None:
    value = constant.value.astype(np.float64).reshape(-1)
    if constant.value.ndim and value.size not in constant.value.shape:
        raise Refused(
            f"{node.op_type} by a constant of shape {constant.value.shape}; expected one value, or one a class"
        )
    if not np.all(np.isfinite(value)) or np.any(value == 0):
        raise Refused(f"{node.op_type} by a constant with zero or non-finite values")
    factor = value.reshape(()) if value.size == 1 else state.permuted(value)
    if factor.ndim and state.scale.ndim and factor.shape != state.scale.shape:
        raise Refused(f"{node.op_type} by {value.size} values, and by {state.scale.size} values behind it")
    if node.op_type == "Mul":
        state.scale = np.asarray(state.scale * factor)
    else:
        state.scale = np.asarray(state.scale / factor)
