"""Steps from the output to the logits: activations and what may come behind them (rule 1)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from tna_onnx.graph.load import Model
from tna_onnx.graph.stored import Refused
from tna_onnx.graph.walk.state import State

__all__ = ["STEPS", "divides_by_own_sum", "normalized", "normalizer", "zip_map"]

# Operators that end the logits.
_ACTIVATIONS = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Sigmoid": "sigmoid"}

# What exporters put between a sum and the division by it.
_BESIDE_SUM = ("Reshape", "Unsqueeze", "Clip", "Expand")


def zip_map(state: State, node: onnx.NodeProto) -> str:
    """Pass ZipMap, which says what the classes are called."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    names = (label.decode(errors="replace") for label in attributes.get("classlabels_strings", ()))
    state.labels = tuple(attributes.get("classlabels_int64s", ())) or tuple(names)
    return _behind_activation(state, node, 0)


def normalizer(state: State, node: onnx.NodeProto) -> str:
    """Pass Normalizer, which divides by the sum."""
    # ONNX: MAX unless stated.
    norm = next((a.s for a in node.attribute if a.name == "norm"), b"MAX")
    if norm != b"L1":
        raise Refused(f"Normalizer with norm {norm.decode(errors='replace')}; expected L1, which makes probabilities")
    return normalized(state, str(node.input[0]))


def normalized(state: State, inner: str) -> str:
    """Pass the division of probabilities by their sum: what comes out of it is what can be calibrated."""
    state.require_plain("probabilities that are normalised")
    if state.activation != "none":
        raise Refused(f"normalised scores before {state.activation}")
    state.holds = "probabilities"
    state.summed = True
    state.begin_logits(state.tensor)
    return inner


def divides_by_own_sum(model: Model, node: onnx.NodeProto) -> bool:
    """Whether a Div divides a tensor by its own sum, which may have been brought into shape."""
    divisor = model.producer(node.input[1])
    while divisor is not None and divisor.op_type in _BESIDE_SUM and divisor.input:
        divisor = model.producer(divisor.input[0])
    if divisor is None or divisor.op_type not in ("ReduceSum", "ReduceL1") or not divisor.input:
        return False
    return bool(divisor.input[0] == node.input[0])


def _complement(state: State, node: onnx.NodeProto) -> str | None:
    """Pass Concat(1 - p, p) of a binary model; None if it is not that."""
    if len(node.input) != 2 or state.paired:
        return None
    first = state.model.producer(node.input[0])
    if first is None or first.op_type != "Sub" or len(first.input) != 2 or first.input[1] != node.input[1]:
        return None
    one = state.model.constant_tensor(first.input[0])
    # Both a number and a vector of ones are written.
    if one is None or not np.all(state.model.floats(one) == 1):
        return None
    state.paired = True
    return _behind_activation(state, node, 1)


def _behind_activation(state: State, node: onnx.NodeProto, position: int) -> str:
    """Pass a node between the activation and the output."""
    state.require_plain(node.op_type)
    if state.activation != "none":
        raise Refused(f"{node.op_type} before {state.activation}")
    return state.begin_logits(str(node.input[position]))


def _activation(state: State, node: onnx.NodeProto) -> str:
    """Pass Softmax, LogSoftmax or Sigmoid: the logits are in front of it."""
    kind = node.op_type
    if state.activation != "none":
        raise Refused(f"a second activation: {kind} before {state.activation}")
    state.require_plain(f"the result of {kind}")
    if kind != "Sigmoid":
        default = 1 if state.model.opset < 13 else -1  # ONNX changed it with opset 13
        axis = next((a.i for a in node.attribute if a.name == "axis"), default)
        if axis not in (1, -1):
            raise Refused(f"{kind} over axis {axis}; expected the class axis, 1 of (N, C)")
        if state.paired:
            raise Refused(f"1 - p beside the p of a {kind}")
    if state.summed:
        return _summed_activation(state, node)
    if state.logged and kind != "Softmax":
        raise Refused(f"the log of {kind}")
    state.activation = "log_softmax" if state.logged else _ACTIVATIONS[kind]
    return state.begin_logits(str(node.input[0]))


def _summed_activation(state: State, node: onnx.NodeProto) -> str:
    """Pass an activation whose results are divided by their sum: there is no tensor of logits."""
    if node.op_type == "LogSoftmax":
        raise Refused("the result of LogSoftmax is divided by its sum")
    if node.op_type == "Sigmoid":
        state.leave_to_graph(homogeneous=False)
    return str(node.input[0])


def _log_or_exp(state: State, node: onnx.NodeProto) -> str | None:
    """Pass the Log of a Softmax, or the Exp of a softmax that is written out; None if it is neither."""
    inner = state.model.producer(node.input[0])
    if node.op_type == "Log" and state.activation == "none" and inner is not None and inner.op_type == "Softmax":
        state.require_plain("the log of probabilities")
        state.logged = True
        return str(node.input[0])
    if node.op_type == "Exp" and state.summed:
        # exp(s) / sum(exp(s)) is softmax(s), and so is exp(s - max s) / sum(exp(s - max s)).
        state.summed = False
        state.holds = "logits"
        state.activation = "softmax"
        state.logits = str(node.input[0])
        if inner is not None and inner.op_type == "Sub" and _subtracts_own_maximum(state.model, inner):
            state.logits = str(inner.input[0])
        return state.logits
    return None


def _subtracts_own_maximum(model: Model, node: onnx.NodeProto) -> bool:
    if len(node.input) < 2:
        return False
    maximum = model.producer(node.input[1])
    return maximum is not None and maximum.op_type == "ReduceMax" and maximum.input[0] == node.input[0]


STEPS: dict[str, Callable[[State, onnx.NodeProto], str | None]] = {
    **dict.fromkeys(_ACTIVATIONS, _activation),
    "Log": _log_or_exp,
    "Exp": _log_or_exp,
    "Concat": _complement,
}
"""Standard operator -> its step: the tensor before it, or None if it is not what may stand there."""
