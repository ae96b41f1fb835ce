"""The operators that are linear layers, each read into the one form `stored.Linear`, and those that look like one.

`vectors` (C, n) comes from the constant of Gemm, MatMul, Einsum, a convolution with a kernel of one pixel or of its
whole input, FusedGemm, FusedMatMul, FusedConv, or LinearClassifier (ai.onnx.ml). `first_column_of` knows how nodes
spell x[:, 0] and x[:, :1]: Gather, also behind a Transpose, and Slice.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from tna_onnx.graph.bounds import attribute_of, input_at
from tna_onnx.graph.load import Model
from tna_onnx.graph.stored import Linear, Mirror, Refused, Reshape, Step, Stored, Transpose, resolve

_STANDARD = ("", "ai.onnx")
_MICROSOFT = "com.microsoft"
_INTEGER_LAYERS = {
    "QLinearMatMul", "MatMulInteger", "QLinearConv", "ConvInteger", "QGemm", "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul", "MatMulNBits", "MatMulBnb4",
}  # fmt: skip
_MAX_PASSED = 50  # nodes
# what may follow one in integers too, and leaves scores scores
_INTEGER_STEPS = {"QLinearGlobalAveragePool", "QLinearAdd", "QLinearMul", "QLinearLeakyRelu", "QLinearAveragePool"}
_QUANTIZED = {
    *_INTEGER_LAYERS, *_INTEGER_STEPS, "QAttention", "QLinearSoftmax", "QLinearConcat", "QLinearSigmoid",
}  # fmt: skip


def is_linear(node: onnx.NodeProto) -> bool:
    """Whether a node is one of the operators of this module."""
    return (node.domain or "", node.op_type) in _READERS


def adds_up_products(model: Model, node: onnx.NodeProto, behind: Sequence[str]) -> bool:
    """Whether a Mul and a ReduceSum `behind` it are a linear layer: (N, 1, n) features, (1, C, n) class vectors."""
    if node.op_type != "Mul" or tuple(behind[:1]) != ("ReduceSum",):
        return False
    constants = [model.constant_tensor(name) for name in node.input]
    return any(c is not None and len(c.dims) == 3 and c.dims[0] == 1 and c.dims[1] > 1 for c in constants)


def is_matrix_transpose(node: onnx.NodeProto) -> bool:
    """Whether a node exchanges the axes of a matrix, as far as its attributes tell."""
    return node.op_type == "Transpose" and all(list(a.ints) == [1, 0] for a in node.attribute if a.name == "perm")


def is_quantized(node: onnx.NodeProto) -> bool:
    """Whether a node computes with quantised numbers, so that its weight is not a float constant."""
    return node.op_type in _QUANTIZED


def integer_layer(model: Model, node: onnx.NodeProto | None) -> onnx.NodeProto | None:
    """Return the linear layer in integers that makes the scores a node gives; None if something else makes them.

    Its weight cannot be replaced; what it gives are logits all the same.
    """
    todo = [node]
    visited = 0
    while todo and visited < _MAX_PASSED:
        visited += 1
        node = todo.pop()
        if node is None:
            continue
        if node.op_type in _INTEGER_LAYERS:
            return node
        # Cast and Mul: the product of a MatMulInteger with its scales, which the data decide on
        if node.op_type in (*_INTEGER_STEPS, "Cast", "Mul"):
            todo += [model.producer(name) for name in node.input]
    return None


def read_linear(model: Model, index: int, output: str) -> Linear:
    """Read a node as a linear layer whose result is the tensor `output`."""
    node = model.proto.graph.node[index]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    # of its own operators ONNX's checker says what they lack
    if node.domain == _MICROSOFT and len(node.input) < 2:
        raise Refused(f"{node.op_type} has {len(node.input)} inputs; expected at least 2")
    if node.op_type == "Mul":
        return _products(model, index, node)
    return _READERS[node.domain or "", node.op_type](model, index, node, attributes, output)


def _matrix(weight: Stored, transposed: bool) -> tuple[Step, ...]:
    """Steps to (C, n) from a weight read as (n, C), or as (C, n) if transposed; leading axes of one may be there."""
    shape = weight.value.shape
    if len(shape) == 1 and not transposed:
        return (Reshape(shape, (1, *shape)),)
    steps: tuple[Step, ...] = ()
    if len(shape) > 2 and all(d == 1 for d in shape[:-2]):
        steps = (Reshape(shape, shape[-2:]),)
        shape = shape[-2:]
    if len(shape) != 2:
        raise Refused(f"weight '{weight.name}' is {weight.value.ndim}-dimensional; expected a matrix")
    if transposed:
        return steps
    return (*steps, Transpose((1, 0)))


def _constant_first(model: Model, node: onnx.NodeProto, index: int, refused: Refused) -> Stored:
    """Return a matrix that is the left operand."""
    try:
        weight = resolve(model, node.input[0], index)
    except Refused:
        raise refused from None
    if weight.value.ndim != 2:
        raise refused
    return weight


def _classes_first(
    model: Model, node: onnx.NodeProto, weight: Stored, turned: tuple[bool, bool], scale: float, bias: Stored | None
) -> Linear:
    """Read W x^T, (C, N): the weight is the left operand."""
    orient = _matrix(weight, not turned[0])
    features = str(node.input[1])
    transposed = not turned[1]
    before = model.producer(features)
    # The features as they were in front of it; ONNX Runtime takes some Transposes away, even where one is an output.
    if transposed and before is not None and is_matrix_transpose(before):
        features = str(before.input[0])
        transposed = False
    # Of a vector, each sample would have its own number.
    if bias is not None and bias.value.size > 1 and (bias.value.ndim < 2 or bias.value.shape[-1] != 1):
        raise Refused(f"bias '{bias.name}' has shape {bias.value.shape} beside a result of (C, N); expected (C, 1)")
    return Linear(features, weight, orient, transposed, True, bias, scale=scale)


def _product(model: Model, index: int, node: onnx.NodeProto, attributes: dict[str, Any], _: str) -> Linear:
    """Read MatMul and Gemm, and those that ONNX Runtime has fused with what stands beside them."""
    # Batches of products have no one weight.
    if attributes.get("transBatchA", 0) or attributes.get("transBatchB", 0):
        raise Refused(f"{node.op_type} transposes batches, which is not supported")
    is_gemm = node.op_type.endswith("Gemm")
    alpha = float(attributes.get("alpha", 1.0))
    beta = float(attributes.get("beta", 1.0))
    # Zero times any weight is zero: no new weight would change the scores.
    if alpha == 0:
        raise Refused(f"{node.op_type} has an alpha of 0")
    # So it is with a bias: JAX writes a plain product with a bias of zeros, and adds the real one behind it.
    bias = None
    if is_gemm and beta != 0 and input_at(node, 2):
        bias = resolve(model, input_at(node, 2), index)
    turned_a = bool(attributes.get("transA", 0))
    turned_b = bool(attributes.get("transB", 0))
    try:
        weight = resolve(model, node.input[1], index)
    except Refused as refused:
        weight = _constant_first(model, node, index, refused)
        first = _classes_first(model, node, weight, (turned_a, turned_b), alpha, bias)
        return replace(first, bias_scale=beta, link=_activation(attributes))
    if is_gemm and weight.value.ndim != 2:
        raise Refused(f"weight '{weight.name}' is {weight.value.ndim}-dimensional; expected a matrix")
    return Linear(
        features=node.input[0],
        weight=weight,
        orient=_matrix(weight, turned_b),
        features_transposed=turned_a,
        bias=bias,
        scale=alpha,
        bias_scale=beta,
        link=_activation(attributes),
    )


def _products(model: Model, index: int, node: onnx.NodeProto) -> Linear:
    """Read a Mul that `adds_up_products` knows."""
    place = next(k for k, name in enumerate(node.input) if model.constant_tensor(name) is not None)
    weight = resolve(model, node.input[place], index)
    shape = weight.value.shape
    return Linear(str(node.input[1 - place]), weight, (Reshape(shape, shape[1:]),))


def _conv(model: Model, index: int, node: onnx.NodeProto, attributes: dict[str, Any], _: str) -> Linear:
    weight = resolve(model, node.input[1], index)
    shape = weight.value.shape
    if len(shape) < 3:
        raise Refused(f"{node.op_type} has a weight of shape {shape}; expected (C, n, 1, 1)")
    if any(d != 1 for d in shape[2:]) and not _covers(model, node, attributes, shape):
        raise Refused(
            f"{node.op_type} has a weight of shape {shape}; expected (C, n, 1, 1), a kernel of one pixel, or one as "
            "large as its input"
        )
    if attributes.get("group", 1) != 1:  # each class would see a part of the features
        raise Refused(f"{node.op_type} has {attributes['group']} groups; expected one")
    if input_at(node, 3):  # FusedConv's Z, which is computed from data
        raise Refused(f"{node.op_type} adds a second tensor")
    bias = None
    if input_at(node, 2):
        bias = resolve(model, input_at(node, 2), index)
    return Linear(
        features=node.input[0],
        weight=weight,
        orient=(Reshape(shape, (shape[0], math.prod(shape[1:]))),),
        bias=bias,
        link=_activation(attributes),
    )


def _covers(model: Model, node: onnx.NodeProto, attributes: dict[str, Any], shape: tuple[int, ...]) -> bool:
    """Whether a kernel is as large as the input, as far as its shape is declared: numbers tell at run time.

    What follows must keep to shapes then, since a kernel that moves gives several positions, which are pooled.
    """
    sizes = model.sizes(node.input[0])
    plain = not any(attributes.get("pads", ())) and attributes.get("auto_pad", b"NOTSET") in (b"NOTSET", b"VALID")
    declared = sizes is None or all(size in (None, k) for size, k in zip(sizes[2:], shape[2:], strict=True))
    return plain and declared and set(attributes.get("dilations", (1,))) == {1}


def _einsum(model: Model, index: int, node: onnx.NodeProto, attributes: dict[str, Any], _: str) -> Linear:
    equation = attributes.get("equation", b"").decode(errors="replace").replace(" ", "")
    operands, arrow, result = equation.partition("->")
    terms = operands.split(",")
    if not arrow:  # ONNX: the letters that come once, in alphabetical order
        result = "".join(sorted(k for k in set(operands) if k.isalpha() and operands.count(k) == 1))
    if len(terms) != 2 or len(node.input) != 2:
        raise Refused(f"Einsum '{equation}' is not a product of features and a weight")
    reasons = []
    for data, constant in ((0, 1), (1, 0)):
        try:
            weight = resolve(model, node.input[constant], index)
        except Refused as refused:
            reasons.append(str(refused))
            continue
        term = terms[constant]
        second_term = terms[data]
        # A product over one letter, that leaves one of the weight's.
        inner = [k for k in term if k in second_term and k not in result]
        outer = [k for k in term if k in result and k not in second_term]
        if len(term) != 2 or len(inner) != 1 or len(outer) != 1 or weight.value.ndim != 2:
            raise Refused(f"Einsum '{equation}' is not a product of features and a weight")
        orient: tuple[Step, ...] = ()
        if term[0] != outer[0]:
            orient = (Transpose((1, 0)),)
        return Linear(node.input[data], weight, orient)
    raise Refused(f"Einsum has no constant operand ({'; '.join(reasons)})")


def _linear_classifier(_: Model, index: int, node: onnx.NodeProto, attributes: dict[str, Any], output: str) -> Linear:
    if len(node.output) < 2 or output != node.output[1]:
        raise Refused(f"'{output}' holds the labels of LinearClassifier, not its scores")
    labels = class_labels(node)
    coefficients = np.asarray(attributes.get("coefficients", ()), np.float32)
    intercepts = np.asarray(attributes.get("intercepts", ()), np.float32)
    rows = intercepts.size or len(labels)
    if not rows or not coefficients.size or coefficients.size % rows:
        raise Refused(f"LinearClassifier has {coefficients.size} coefficients for {rows} classes")
    name = node.name or node.output[1]
    # Attributes are float32, whatever the type of the input.
    weight = Stored(name, coefficients, "float32", (), "", index, attribute="coefficients")
    bias = None
    if intercepts.size:
        bias = Stored(name, intercepts, "float32", (), "", index, attribute="intercepts")
    linear = Linear(
        features=node.input[0],
        weight=weight,
        orient=(Reshape(coefficients.shape, (rows, coefficients.size // rows)),),
        bias=bias,
        classes=len(labels),
        link=_POST_TRANSFORMS.get(attributes.get("post_transform", b"NONE").decode(), "unknown"),
        labels=labels,
    )
    if linear.link == "unknown":
        transform = attributes["post_transform"].decode(errors="replace")
        raise Refused(f"LinearClassifier has the post_transform {transform}, which is not supported")
    # A binary classifier may store the rows -w and w; its one degree of freedom is w.
    opposite = rows == 2 and np.array_equal(linear.vectors[0], -linear.vectors[1])
    if linear.link == "sigmoid" and opposite and (not intercepts.size or intercepts[0] == -intercepts[1]):
        return replace(linear, orient=(*linear.orient, Mirror()), bias_orient=(Mirror(),))
    return linear


def class_labels(node: onnx.NodeProto) -> tuple[int | str, ...]:
    """Return what a classifier or a ZipMap calls its classes; empty if it does not say."""
    numbers = attribute_of(node, "classlabels_ints", ()) or attribute_of(node, "classlabels_int64s", ())
    names = attribute_of(node, "classlabels_strings", ())
    return tuple(numbers) or tuple(name.decode(errors="replace") for name in names)


def _activation(attributes: dict[str, Any]) -> str:
    name: bytes = attributes.get("activation", b"")
    return name.decode(errors="replace").lower() or "none"


_POST_TRANSFORMS = {"NONE": "none", "SOFTMAX": "softmax", "LOGISTIC": "sigmoid"}

_READERS = {
    **{(domain, "MatMul"): _product for domain in _STANDARD},
    **{(domain, "Gemm"): _product for domain in _STANDARD},
    **{(domain, "Conv"): _conv for domain in _STANDARD},
    **{(domain, "Einsum"): _einsum for domain in _STANDARD},
    (_MICROSOFT, "FusedMatMul"): _product,
    (_MICROSOFT, "FusedGemm"): _product,
    (_MICROSOFT, "FusedConv"): _conv,
    ("ai.onnx.ml", "LinearClassifier"): _linear_classifier,
}

_TO_THE_END = 2**31 - 1  # the largest end of a slice that exporters write in 32 bits


def first_column_of(model: Model, node: onnx.NodeProto) -> str:
    """Return the matrix whose first column, or whose only one, a Gather or Slice takes; empty if it does not."""
    data = str(node.input[0])
    if node.op_type == "Slice":
        bounds = slice_bounds(model, node)
        columns = [bound for bound in bounds if bound != (0, 0, None, 1)]  # all rows
        first = all(b[0] in (1, -1) and b[1] == 0 and b[3] == 1 and (b[2] is None or b[2] >= 1) for b in columns)
        return data if bounds and first else ""
    index = model.constant_tensor(input_at(node, 1))
    if index is None or model.array(index).reshape(-1).tolist() not in ([0], [-1]):
        return ""
    before = model.producer(data)
    axis = attribute_of(node, "axis", 0)
    if axis == 0 and before is not None and is_matrix_transpose(before):  # as JAX writes it
        return str(before.input[0])
    return data if axis in (1, -1) else ""


def slice_bounds(model: Model, node: onnx.NodeProto) -> list[tuple[int, int, int | None, int]]:
    """Return (axis, start, end, step) of each axis that a Slice cuts, end None for all; nothing if it is computed."""
    attributes = {a.name: list(a.ints) for a in node.attribute}  # opset < 10
    for name, tensor in zip(("starts", "ends", "axes", "steps"), node.input[1:], strict=False):
        constant = model.constant_tensor(tensor)
        if tensor and constant is None:
            return []
        if constant is not None:
            attributes[name] = model.array(constant).reshape(-1).tolist()
    starts = attributes.get("starts", [])
    ends = [None if end >= _TO_THE_END else end for end in attributes.get("ends", [])]
    axes = attributes.get("axes", list(range(len(starts))))
    steps = attributes.get("steps", [1] * len(starts))
    if not len(starts) == len(ends) == len(axes) == len(steps):
        return []
    return list(zip(axes, starts, ends, steps, strict=True))
