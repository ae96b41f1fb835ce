"""Scores that are distances of the features from constant prototypes, told by the nodes that compute them:

    squared Euclidean   sum_k (x_k - p_k)^2
    Euclidean           its root;  under a root also |x|^2 - 2 x p + |p|^2, in any order
    city-block          sum_k |x_k - p_k|

A constant may be brought to the shape of the batch first (Expand).
"""

from __future__ import annotations

import numpy as np
import onnx

from tna_onnx.graph.constants import made_from_constants
from tna_onnx.graph.load import Model
from tna_onnx.graph.traverse import input_at
from tna_onnx.graph.walk.logit_steps import PASSED

__all__ = ["distance", "one_a_sample", "products_added_up"]

SQUARED = "squared Euclidean"
EUCLIDEAN = "Euclidean"
CITY_BLOCK = "city-block"

# ONNX Runtime's operator for all distances of two sets of vectors, by its metric.
_CDIST = {b"sqeuclidean": SQUARED, b"euclidean": EUCLIDEAN, b"cityblock": CITY_BLOCK}

# What keeps a squared distance from falling below 0, or its root from an infinite slope there.
_KEPT_ABOVE = ("Max", "Clip", "Relu", "Abs", "Add")

_REDUCED = (
    "ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMin", "ReduceLogSumExp",
)  # fmt: skip
_UNARY = ("Neg", "Sqrt", "Pow", "Mul", "Div", "Add", "Sub", "Clip", "Max", "Log", "Exp", "Identity")

_MAX_NODES = 20


def distance(model: Model, tensor: str) -> str:
    """Return which distance from constants a tensor holds; empty if it holds none."""
    for _ in range(_MAX_NODES):
        node = model.producer(tensor)
        if node is None or not node.input:
            return ""
        if node.op_type not in PASSED:
            return _made_by(model, node)
        tensor = node.input[0]
    return ""


def _made_by(model: Model, node: onnx.NodeProto) -> str:
    kind = node.op_type
    data = str(node.input[0])
    if kind == "CDist" and _one_constant(model, node):
        metric = next((a.s for a in node.attribute if a.name == "metric"), b"sqeuclidean")
        return _CDIST.get(metric, "")
    if _root_of(model, node) and _squared(model, data):
        return EUCLIDEAN
    if _square_of(model, node) and distance(model, _unsigned(model, data)) == EUCLIDEAN:
        return SQUARED
    if kind in ("ReduceL2", "ReduceSumSquare", "ReduceL1") and _is_difference(model, data):
        return {"ReduceL2": EUCLIDEAN, "ReduceSumSquare": SQUARED}.get(kind, CITY_BLOCK)
    if kind in ("ReduceSum", "ReduceMean"):
        return _sum(model, data)
    return ""


def _sum(model: Model, terms: str) -> str:
    """Return which distance the sum of a tensor is."""
    node = model.producer(terms)
    if node is None or not node.input or not _is_difference(model, node.input[0]):
        return ""
    if _square_of(model, node):
        return SQUARED
    if node.op_type == "Abs":
        return CITY_BLOCK
    return ""


def _squared(model: Model, tensor: str) -> bool:
    """Whether a tensor, of which a root is taken, holds squared distances."""
    for _ in range(_MAX_NODES):
        if distance(model, tensor) == SQUARED:
            return True
        node = model.producer(tensor)
        if node is None or not node.input:
            return False
        computed = [name for name in node.input if name and not _is_constant(model, name)]
        if node.op_type in (*PASSED, *_KEPT_ABOVE) and len(computed) == 1:
            tensor = computed[0]
        else:
            return _is_expanded(model, node, computed)
    return False


def _is_expanded(model: Model, node: onnx.NodeProto, computed: list[str]) -> bool:
    """Whether a node adds |x|^2 to products of x and constants: in a sum, or as a product of [x, |x|^2, 1]."""
    if node.op_type in ("Add", "Sub", "Sum"):
        return any(_is_norm(model, name) for name in computed)
    if node.op_type not in ("MatMul", "Gemm") or len(computed) != 1:
        return False
    before = model.producer(computed[0])
    return before is not None and before.op_type == "Concat" and any(_is_norm(model, name) for name in before.input)


def _is_norm(model: Model, tensor: str) -> bool:
    """Whether a tensor holds |x|^2, on its own or with products added."""
    node = model.producer(tensor)
    if node is None or not node.input:
        return False
    if node.op_type == "ReduceSum":
        before = model.producer(node.input[0])
        return before is not None and _square_of(model, before)
    if node.op_type in ("Add", "Sub"):
        return any(_is_norm(model, name) for name in node.input)
    return node.op_type == "ReduceSumSquare"


def _root_of(model: Model, node: onnx.NodeProto) -> bool:
    """Whether a node takes the square root of its first input."""
    return node.op_type == "Sqrt" or (node.op_type == "Pow" and _exponent(model, node) == 0.5)


def _square_of(model: Model, node: onnx.NodeProto) -> bool:
    """Whether a node squares its first input."""
    if len(node.input) < 2:
        return False
    if node.op_type == "Mul":
        return bool(node.input[0] == node.input[1])
    return node.op_type == "Pow" and _exponent(model, node) == 2


def _unsigned(model: Model, tensor: str) -> str:
    """Return what a tensor is without its sign, which a square does not see."""
    node = model.producer(tensor)
    if node is None or node.op_type != "Neg" or not node.input:
        return tensor
    return str(node.input[0])


def _exponent(model: Model, node: onnx.NodeProto) -> float:
    """Return the one exponent of a Pow; 0 where it is none, or is not constant."""
    tensor = model.constant_tensor(input_at(node, 1))
    if tensor is None:
        return 0.0
    values = np.unique(model.array(tensor))
    if values.size != 1:
        return 0.0
    return float(values[0])


def _is_difference(model: Model, tensor: str) -> bool:
    node = model.producer(tensor)
    return node is not None and node.op_type == "Sub" and _one_constant(model, node)


def _one_constant(model: Model, node: onnx.NodeProto) -> bool:
    """Whether one of two operands is a constant, and the other is not."""
    return len(node.input) == 2 and _is_constant(model, node.input[0]) != _is_constant(model, node.input[1])


def _is_constant(model: Model, tensor: str) -> bool:
    """Whether a tensor is made from constants alone, but for a size of the batch that it is repeated by."""
    todo = [tensor]
    for _ in range(_MAX_NODES):
        if not todo:
            return True
        name = todo.pop()
        if made_from_constants(model, name) is not None:
            continue
        node = model.producer(name)
        if node is None or not node.input:
            return False
        # the second input of an Expand is a shape
        todo += node.input[:1] if node.op_type == "Expand" else node.input
    return False


def products_added_up(model: Model, tensor: str) -> bool:
    """Whether a tensor holds sums of products of features and constants, which no matrix product makes.

    So torch writes `cosine_similarity` of (N, 1, n) and (1, C, n).
    """
    node = model.producer(tensor)
    if node is None or node.op_type != "ReduceSum" or not node.input:
        return False
    product = model.producer(node.input[0])
    return product is not None and product.op_type == "Mul" and _one_constant(model, product)


def one_a_sample(model: Model, tensor: str) -> bool:
    """Whether a tensor is (N, 1): what a reduction over the last axis leaves, which a softmax does not see."""
    for _ in range(_MAX_NODES):
        node = model.producer(tensor)
        if node is None or not node.input:
            return False
        if node.op_type in _REDUCED:
            return _over_last(model, node)
        computed = [name for name in node.input if name and model.constant_tensor(name) is None]
        scalars = all(_is_scalar(model, name) for name in node.input if name not in computed)
        if node.op_type not in _UNARY or len(computed) != 1 or not scalars:
            return False
        tensor = computed[0]
    return False


def _is_scalar(model: Model, tensor: str) -> bool:
    constant = model.constant_tensor(tensor)
    return constant is None or int(np.prod(constant.dims)) == 1


def _over_last(model: Model, node: onnx.NodeProto) -> bool:
    """Whether a reduction of a matrix keeps its axis, and goes over the last one."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    axes = attributes.get("axes")
    constant = model.constant_tensor(input_at(node, 1))
    if axes is None and constant is not None:
        axes = model.array(constant).reshape(-1).tolist()
    return attributes.get("keepdims", 1) == 1 and list(axes or ()) in ([1], [-1])
