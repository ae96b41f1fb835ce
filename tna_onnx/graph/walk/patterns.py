"""Softmax, LogSoftmax and Sigmoid that exporters write in simpler nodes, as formulas (rule 1); reductions by axes.

In a formula, s are the scores, m is made of nothing but maxima and numbers, and `max`, `sum`, `log_sum` and
`log_sum_exp` are reductions, whose results may have been brought into shape. Over which axis they run is settled by
numbers, at run time.
"""

import ast
import itertools
import math
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import onnx

from tna_onnx.graph.bounds import attribute_of, input_at
from tna_onnx.graph.load import Model

_SHIFTED = "s - max(s)"
_SOFTMAX = [
    f"exp({x}) {over}" for x in (_SHIFTED, "s") for over in (f"/ sum(exp({x}))", f"* reciprocal(sum(exp({x})))")
]
_LOG_SUMS = ("log(sum(exp({})))", "log_sum(exp({}))", "log_sum_exp({})")
_LOG_SOFTMAX = [
    *(f"{x} - {log.format(x)}" for x in (_SHIFTED, "s") for log in _LOG_SUMS),
    *(f"s - shaped({log.format(f's - {m}')} + {m})" for m in ("max(s)", "m") for log in _LOG_SUMS),
]
_HALVED = ("* 0.5", "/ 2")
_NEGATED = ("neg(s)", "0 - s", "s * -1", "s / -1")
_SIGMOID = [
    *(f"{over}(1 + exp({x}))" for over in ("1 / ", "reciprocal", "1 * reciprocal") for x in _NEGATED),
    *(f"exp(s) {over}(1 + exp(s))" for over in ("/ ", "* reciprocal")),
    *(form for a in _HALVED for b in _HALVED for form in (f"(1 + tanh(s {a})) {b}", f"0.5 + tanh(s {a}) {b}")),
]
# Operator -> the formulas that stand for it.
_FORMS = {
    "Softmax": [*_SOFTMAX, *(f"exp({form})" for form in _LOG_SOFTMAX)],
    "LogSoftmax": _LOG_SOFTMAX,
    "Sigmoid": _SIGMOID,
}
_PARSED = [(kind, ast.parse(form, mode="eval").body) for kind, forms in _FORMS.items() for form in forms]

_FUNCTIONS = {"exp": ("Exp",), "tanh": ("Tanh",), "neg": ("Neg",)}
_IN_SHAPE = {
    "max": ("ReduceMax",), "sum": ("ReduceSum", "ReduceL1"), "log": ("Log",), "log_sum": ("ReduceLogSum",),
    "log_sum_exp": ("ReduceLogSumExp",), "reciprocal": ("Reciprocal",),
}  # fmt: skip
_SIGNS = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.Div: "Div"}

BESIDE_SUM = ("Reshape", "Unsqueeze", "Squeeze", "Clip", "Expand", "Identity")
"""What exporters put between a maximum or a sum and what reads it."""

_MAX_NODES = 20  # in a row
_MAX_COPIES = 2**20  # of a number, for a batch of samples; a weight is not read for each formula
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)


def written_out(model: Model, tensor: str) -> tuple[str, str] | None:
    """Return which operator the nodes in front of a tensor spell, and its logits; None if they do not spell one."""
    node = _node(model, tensor)
    if node is None or node.op_type not in ("Add", "Div", "Exp", "Mul", "Reciprocal", "Sub"):
        return None
    for kind, form in _PARSED:
        for names in _matches(model, form, tensor, {}):
            return kind, names["s"]
    return None


def scores_behind(model: Model, tensor: str) -> str:
    """Return s where a tensor is s - max s; else the tensor itself."""
    form = ast.parse(_SHIFTED, mode="eval").body
    return next((names["s"] for names in _matches(model, form, tensor, {})), tensor)


def _matches(model: Model, form: ast.expr, tensor: str, names: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Yield which tensors the names of a formula stand for, where nodes compute a tensor by it."""
    node = _node(model, tensor)
    match form:
        case ast.Name(id=name):
            if names.get(name, tensor) == tensor and (name != "m" or _of_maxima(model, tensor)):
                yield {**names, name: tensor}
        case ast.Constant() | ast.UnaryOp():
            if _number(model, tensor) == ast.literal_eval(form):
                yield names
        case ast.Call(func=ast.Name(id="shaped"), args=[inner]):
            yield from _matches(model, inner, _in_shape(model, tensor), names)
        case ast.Call(func=ast.Name(id=name), args=[inner]):
            if name in _IN_SHAPE:
                # no sum of exponentials is below 0, so that JAX's Abs changes nothing
                node = _node(model, _in_shape(model, tensor, ("Abs",) if name == "sum" else ()))
            if node is not None and node.op_type in (_FUNCTIONS | _IN_SHAPE)[name]:
                yield from _matches(model, inner, node.input[0], names)
        case ast.BinOp(left=left, op=sign, right=right) if node is not None and node.op_type == _SIGNS[type(sign)]:
            orders = list(itertools.permutations(node.input[:2]))
            if node.op_type in ("Div", "Sub"):
                del orders[1:]
            for first, second in orders:
                for bound in _matches(model, left, first, names):
                    yield from _matches(model, right, second, bound)


def _node(model: Model, tensor: str) -> onnx.NodeProto | None:
    """Return the standard operator that makes a tensor, if there is one, with the operands that the forms read."""
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
    if constant is None or constant.data_type not in _FLOATS or not 0 < math.prod(constant.dims) <= _MAX_COPIES:
        return None
    values = model.floats(constant).reshape(-1)
    if np.any(values != values[0]):
        return None
    return float(values[0])


def _in_shape(model: Model, tensor: str, passed: Collection[str] = ()) -> str:
    """Return the maximum or sum that a tensor is, in front of what brings it into shape."""
    for _ in range(_MAX_NODES):
        node = _node(model, tensor)
        if node is None:
            break
        operands = node.input[:1]
        if node.op_type in ("Max", "Where"):  # kept above -inf; 0 in its place where it is infinite
            values = node.input[1:] if node.op_type == "Where" else node.input
            operands = [name for name in values if model.constant_tensor(name) is None]
        elif node.op_type not in (*BESIDE_SUM, *passed):
            break
        if len(operands) != 1:
            break
        tensor = str(operands[0])
    return tensor


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
