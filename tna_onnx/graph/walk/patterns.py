"""What exporters write in simpler nodes: Softmax, LogSoftmax and Sigmoid (rule 1).

    softmax       exp(s) / sum exp(s),    exp(s) * (1 / sum exp(s)),    exp(log_softmax(s));    s may be s - max s
    log_softmax   s - log sum exp(s),     s - (log sum exp(s - m) + m), m = max s
    sigmoid       1 / (1 + exp(-s)),      exp(s) / (1 + exp(s)),        (1 + tanh(s / 2)) / 2

Maxima and sums come in many shapes and twice; over which axis they run is settled by numbers, at run time. A constant
may be expanded to the shape of the batch first.
"""

import math
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import onnx

from tna_onnx.graph.bounds import attribute_of, input_at
from tna_onnx.graph.load import Model

BESIDE_SUM = ("Reshape", "Unsqueeze", "Squeeze", "Clip", "Expand", "Identity")
"""What exporters put between a maximum or a sum and what reads it."""

_MAX_NODES = 20  # in a row
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)

_Scores: TypeAlias = tuple[str, bool]


def written_out(model: Model, tensor: str) -> tuple[str, str] | None:
    """Return which operator the nodes in front of a tensor spell, and its logits; None if they do not spell one."""
    node = _node(model, tensor)
    if node is None:
        return None
    if node.op_type == "Exp":
        inner = written_out(model, node.input[0])
        if inner is not None and inner[0] == "LogSoftmax":
            return "Softmax", inner[1]
    if node.op_type == "Sub":  # s - log sum exp(s), or the same of s - m
        scores = scores_behind(model, node.input[0])
        if scores == _log_summed(model, node.input[1]):
            return "LogSoftmax", scores[0]
    for top, bottom in _quotients(model, node):
        exponent = _exponent(model, top)
        if exponent is not None and exponent == _summed(model, bottom):
            return "Softmax", exponent[0]
    logit = _sigmoid(model, node)
    if logit is not None:
        return "Sigmoid", logit
    return None


def _quotients(model: Model, node: onnx.NodeProto) -> Iterator[tuple[str, str]]:
    """Yield (numerator, denominator) of a division, or of a product with a reciprocal."""
    if node.op_type == "Div":
        yield str(node.input[0]), str(node.input[1])
    if node.op_type == "Mul":
        for top, bottom in _both_ways(node):
            inverse = _shaped(model, bottom)
            if inverse is not None and inverse.op_type == "Reciprocal":
                yield top, str(inverse.input[0])


def _sigmoid(model: Model, node: onnx.NodeProto) -> str | None:
    """Return s where a node makes sigmoid(s)."""
    logit: str | None = None
    for top, bottom in _quotients(model, node):
        inner = _one_plus(model, bottom, "Exp")
        if _number(model, top) == 1:
            logit = logit or _negated(model, inner)
        elif inner is not None and _exponent(model, top) == (inner, False):
            logit = logit or inner
    if node.op_type == "Reciprocal":
        logit = _negated(model, _one_plus(model, node.input[0], "Exp"))
    if node.op_type in ("Div", "Mul"):  # (1 + tanh(s / 2)) / 2
        doubled = _times(model, node.output[0], 0.5)
        logit = logit or _times(model, _one_plus(model, doubled, "Tanh"), 0.5)
    if node.op_type == "Add":  # 1/2 + tanh(s / 2) / 2
        for number, second in _both_ways(node):
            tanh = _node(model, _times(model, second, 0.5))
            if _number(model, number) == 0.5 and tanh is not None and tanh.op_type == "Tanh":
                return _times(model, tanh.input[0], 0.5)
    return logit


def _both_ways(node: onnx.NodeProto) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return both orders of two operands."""
    first, second = (str(name) for name in node.input[:2])
    return (first, second), (second, first)


def _node(model: Model, tensor: str | None) -> onnx.NodeProto | None:
    """Return the standard operator that makes a tensor, if there is one, with the operands that the forms read."""
    if tensor is None:
        return None
    node = model.producer(tensor)
    if node is None or node.domain not in ("", "ai.onnx"):
        return None
    n_inputs = {"Div": 2, "Sub": 2, "Mul": 2, "Add": 2, "Max": 2, "Where": 3}.get(node.op_type, 1)
    if len(node.input) < n_inputs:
        return None
    return node


def _number(model: Model, tensor: str) -> float | None:
    """Return the one value that a constant holds."""
    constant = model.constant_tensor(tensor)
    if constant is None or constant.data_type not in _FLOATS:
        return None
    values = np.unique(model.floats(constant))
    if values.size != 1:
        return None
    return float(values[0])


def _shaped(model: Model, tensor: str) -> onnx.NodeProto | None:
    """Return the node that makes a maximum or a sum, behind what brings it into shape."""
    for _ in range(_MAX_NODES):
        node = _node(model, tensor)
        if node is None:
            return None
        if node.op_type in BESIDE_SUM:
            tensor = node.input[0]
        elif node.op_type in ("Max", "Where"):  # kept above -inf; 0 in its place where it is infinite
            values = node.input[-2:]
            computed = [name for name in values if model.constant_tensor(name) is None]
            if len(computed) != 1:
                return None
            tensor = computed[0]
        else:
            return node
    return None


def scores_behind(model: Model, tensor: str) -> _Scores:
    """Return (s, whether its maximum is subtracted) for s or s - max s."""
    node = _node(model, tensor)
    if node is not None and node.op_type == "Sub" and _is_maximum(model, node.input[1], node.input[0]):
        return str(node.input[0]), True
    return tensor, False


def _is_maximum(model: Model, tensor: str, of: str) -> bool:
    node = _shaped(model, tensor)
    return node is not None and node.op_type == "ReduceMax" and node.input[0] == of


def _exponent(model: Model, tensor: str) -> _Scores | None:
    node = _node(model, tensor)
    if node is None or node.op_type != "Exp":
        return None
    return scores_behind(model, node.input[0])


def _summed(model: Model, tensor: str) -> _Scores | None:
    """Return the scores whose exponentials a tensor is the sum of."""
    node = _shaped(model, tensor)
    if node is not None and node.op_type == "Abs":  # JAX's: no sum of exponentials is below 0
        node = _shaped(model, node.input[0])
    if node is None or node.op_type not in ("ReduceSum", "ReduceL1"):
        return None
    return _exponent(model, node.input[0])


def _log_summed(model: Model, tensor: str) -> _Scores | None:
    """Return the scores of which a tensor is log sum exp, the maximum still subtracted or not."""
    node = _shaped(model, tensor)
    if node is None:
        return None
    scores: _Scores | None = None
    if node.op_type == "ReduceLogSumExp":
        scores = scores_behind(model, node.input[0])
    elif node.op_type == "ReduceLogSum":
        scores = _exponent(model, node.input[0])
    elif node.op_type == "Log":
        scores = _summed(model, node.input[0])
    elif node.op_type == "Add":
        scores = _lifted(model, node)
    return scores


def _lifted(model: Model, node: onnx.NodeProto) -> _Scores | None:
    """Return s where a sum is log sum exp(s - m) + m, for the maximum m or one that is checked."""
    for log, maximum in _both_ways(node):
        inner = _log_summed(model, log)
        if inner is None:
            continue
        if inner[1] and _is_maximum(model, maximum, inner[0]):
            return inner[0], False
        # A maximum that more nodes check may be there, if it is the same twice.
        shifted = _node(model, inner[0])
        if shifted is None or shifted.op_type != "Sub" or shifted.input[1] != maximum:
            continue
        if _of_maxima(model, maximum):
            return str(shifted.input[0]), False
    return None


def _of_maxima(model: Model, tensor: str) -> bool:
    """Whether nothing but maxima and numbers makes a tensor: what else differs by class could be 0 on all data."""
    waiting, visited = [tensor], set[str]()
    while waiting:
        name = waiting.pop()
        if name in visited or _number(model, name) is not None:
            continue
        node = _node(model, name)
        if node is None or len(visited) == _MAX_NODES:
            return False
        visited.add(name)
        if node.op_type != "ReduceMax":
            # the second operand of these is a shape or an axis
            operands = [*node.input]
            if node.op_type in BESIDE_SUM:
                operands = operands[:1]
            waiting += [str(operand) for operand in operands if operand]
    return bool(visited)


def _one_plus(model: Model, tensor: str | None, kind: str) -> str | None:
    """Return x where a tensor is 1 + f(x)."""
    node = _node(model, tensor)
    if node is None or node.op_type != "Add":
        return None
    for number, second in _both_ways(node):
        inner = _node(model, second)
        if _number(model, number) == 1 and inner is not None and inner.op_type == kind:
            return str(inner.input[0])
    return None


def _negated(model: Model, tensor: str | None) -> str | None:
    """Return x where a tensor is -x."""
    node = _node(model, tensor)
    if node is None:
        return None
    if node.op_type == "Neg":
        return str(node.input[0])
    if node.op_type == "Sub" and _number(model, node.input[0]) == 0:
        return str(node.input[1])
    return _times(model, tensor, -1.0)


def _times(model: Model, tensor: str | None, factor: float) -> str | None:
    """Return x where a tensor is x times a number."""
    node = _node(model, tensor)
    if node is None:
        return None
    if node.op_type == "Div" and _number(model, node.input[1]) == 1 / factor:
        return str(node.input[0])
    if node.op_type != "Mul":
        return None
    for number, second in _both_ways(node):
        if _number(model, number) == factor:
            return str(second)
    return None


_REDUCED = (
    "ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMin", "ReduceLogSumExp",
)  # fmt: skip
_UNARY = ("Neg", "Sqrt", "Pow", "Mul", "Div", "Add", "Sub", "Clip", "Max", "Log", "Exp", "Identity")


def one_a_sample(model: Model, tensor: str) -> bool:
    """Whether a tensor is (N, 1): what a reduction over the last axis leaves, which a softmax does not see."""
    for _ in range(_MAX_NODES):
        node = model.producer(tensor)
        if node is None or not node.input:
            return False
        if node.op_type in _REDUCED:
            # of a matrix, over the last axis, which stays
            return bool(attribute_of(node, "keepdims", 1)) and reduced_axes(model, node) in ([1], [-1])
        constants = {name: model.constant_tensor(name) for name in node.input if name}
        computed = [name for name in node.input if name and constants[name] is None]
        scalars = all(constant is None or math.prod(constant.dims) == 1 for constant in constants.values())
        if node.op_type not in _UNARY or len(computed) != 1 or not scalars:
            return False
        tensor = computed[0]
    return False


def reduced_axes(model: Model, node: onnx.NodeProto) -> list[int]:
    """Return the axes that a node names: in an attribute, or in a constant second input."""
    axes: list[int] | None = attribute_of(node, "axes", None)
    constant = model.constant_tensor(input_at(node, 1))
    if axes is None and constant is not None:
        axes = model.array(constant).reshape(-1).tolist()
    return axes or []
