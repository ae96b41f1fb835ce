"""The end of the walk: a linear layer, checked and accepted as the head (rule 6), or scores without class vectors.

The latter are cosines, and distances of the features from constant prototypes, recognised by their nodes:

    squared Euclidean   sum_k (x_k - p_k)^2
    Euclidean           its root;  under a root also |x|^2 - 2 x p + |p|^2, in any order
    city-block          sum_k |x_k - p_k|

A constant may be expanded to the shape of the batch first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
from numpy.typing import NDArray

from tna_onnx.graph.bounds import input_at
from tna_onnx.graph.constants import made_from_constants
from tna_onnx.graph.cut import ancestors
from tna_onnx.graph.linear import adds_up_products, read_linear
from tna_onnx.graph.load import Model, shape_text
from tna_onnx.graph.nodes import PREFIX
from tna_onnx.graph.readout import Head
from tna_onnx.graph.several import CLASSES_FIRST, CLASSES_LAST, ONE, declared_sizes, has_several, lengths_of
from tna_onnx.graph.stored import LabelsOfPositions, Linear, Mirror, Refused, Select, Step, Stored, oriented
from tna_onnx.graph.walk.output_steps import require_little_slack
from tna_onnx.graph.walk.steps import PASSED, State

ONE_NUMBER = (
    "one number a sample. Is it the logit of the second of two classes, whose Sigmoid was left out? Then say "
    "--output-kind logit; a regression has no probabilities"
)
"""What is asked where one number a sample comes without a Sigmoid."""

LABELS_ONLY = "--output-kind label-logits is for one number a label, of two labels or more, without a Softmax"
"""The same of several labels."""

SINGLE_ONLY = "--output-kind logit is for one number a sample without a Sigmoid"
"""What the user's word is for, where it does not fit."""

MULTI_LABEL = "logits with a Sigmoid at several positions of a sample: several labels are calibrated one set a sample"
"""Why the labels of tokens or pixels are no head's."""


def head_at(state: State, node: onnx.NodeProto, index: int) -> Head:
    """Return the head that a linear node is.

    Raises:
        Refused: it is not the layer that makes the scores, or does not fit what follows it.
    """
    layer = _in_order(state, _read(state, node, index))
    if layer.classes_first and not state.turned:
        raise Refused("its weight is the left operand, so its result is (C, N), and no Transpose makes that (N, C)")
    _take_in_link(state, layer)
    _take_in_bias(state, layer)
    if state.step:  # quantised scores are steps, not features @ weight.T + bias
        state.leave_to_graph(homogeneous=False)
    vectors = layer.vectors
    _take_in_positions(state, node, len(vectors))
    _check(state, layer, vectors)
    kernel = layer.weight.value.shape[2:] if node.op_type in ("Conv", "FusedConv") else ()
    if any(size != 1 for size in kernel) and (state.aligned or not state.linear or state.class_axis != ONE):
        raise Refused(f"{node.op_type} with a kernel of {kernel}, whose results at several positions come together")
    return Head(
        output=state.output,
        logits=state.logits,
        logits_type=state.cast_to or layer.weight.value.dtype.name,
        holds=state.holds,
        activation=state.activation,
        follows=state.follows,
        # LinearClassifier gives both scores, however many vectors it stores.
        binary=len(vectors) == 1 and node.op_type != "LinearClassifier",
        paired=state.paired,
        n_classes=layer.classes or max(2, len(vectors)),
        labels=state.labels or layer.labels,
        output_step=state.output_step,
        output_slack=state.output_slack,
        class_axis=state.class_axis,
        multi_label=len(vectors) > 1 and (state.activation == "sigmoid" or state.labelled),
        node=state.where,
        op_type=node.op_type,
        features=layer.features,
        features_transposed=layer.features_transposed,
        stored_weight=layer.weight,
        orient=layer.orient,
        stored_bias=state.bias,
        bias_orient=layer.bias_orient if state.bias is layer.bias else state.bias_steps,
        weight_scale=np.asarray(state.scale * layer.scale),
        bias_scale=np.asarray(state.bias_scale),
        linear=state.linear,
        homogeneous=state.homogeneous,
        step=state.step,
    )


def _read(state: State, node: onnx.NodeProto, index: int) -> Linear:
    """Read the layer, and refuse one that does not make the scores from features alone."""
    model = state.model
    if state.tensor != node.output[0] and node.op_type != "LinearClassifier":
        raise Refused(f"'{state.tensor}' is a side output of {node.op_type}")
    for name in state.side_inputs:
        if index in ancestors(model, name):
            raise Refused(f"'{name}', which is computed from the scores of this layer, changes them")
    if node.name.startswith(f"{PREFIX}/"):
        raise Refused("tna-onnx wrote this node: start from the original model")
    layer = read_linear(model, index, state.tensor)
    if kind := _softmax_behind(model, layer.features):
        raise Refused(f"its features are the result of {kind}: a layer behind probabilities is no head")
    return layer


def _in_order(state: State, layer: Linear) -> Linear:
    """Take those classes of the layer that the output has, in its order."""
    if state.order == ():
        return layer
    rows = len(layer.vectors)
    # Of a LinearClassifier's scores, rows and biases may stand for two classes in one.
    if layer.bias_orient or rows < 2:
        raise Refused(f"{rows} class vectors, and scores selected behind them")
    bias_orient = () if layer.bias is None else state.bias_selected(layer.bias)
    selection = Select(state.places(rows), 0, layer.vectors)
    return replace(layer, orient=(*layer.orient, selection), bias_orient=bias_orient)


def _softmax_behind(model: Model, tensor: str) -> str:
    """Return the kind of softmax that makes a tensor, through changes of shape or type; empty if none does."""
    index = model.producers.get(tensor)
    while index is not None:
        node = model.proto.graph.node[index]
        if node.op_type in ("Softmax", "LogSoftmax"):
            return str(node.op_type)
        if node.op_type not in PASSED or not node.input:
            break
        before = model.producers.get(node.input[0])
        # a damaged file may have nodes in a circle
        if before is not None and before >= index:
            break
        index = before
    return ""


def _take_in_positions(state: State, node: onnx.NodeProto, rows: int) -> None:
    """Take in where the classes of several predictions a sample are, if there are several.

    Raises:
        Refused: neither axis is as long as there are classes: keys of an attention, say, which are split into parts.
    """
    declared = [declared_sizes(state.model, name) for name in (state.output, state.logits)]
    sizes = next((shape for shape in declared if has_several(shape)), None)
    if sizes is None:
        return
    fits = [axis for axis in (CLASSES_FIRST, CLASSES_LAST) if rows == 1 or sizes[axis] in (None, rows)]
    if not fits:
        raise Refused(
            f"'{state.output}' has {len(sizes)} axes, several predictions a sample, and neither axis 1 nor the last "
            f"one has the {rows} classes of the linear layer"
        )
    if state.class_axis == ONE:
        # both fit: the one on which the operator has them
        state.class_axis = fits[0]
        if node.op_type not in ("Conv", "FusedConv"):
            state.class_axis = fits[-1]


def _take_in_link(state: State, layer: Linear) -> None:
    """Take in what the linear node itself does to its scores."""
    if layer.link == "none":
        return
    if layer.link not in ("softmax", "sigmoid"):
        state.leave_to_graph(homogeneous=layer.link in ("relu", "leakyrelu"))
        return
    state.require_plain(f"the {layer.link} of the linear layer")
    if state.activation != "none":
        raise Refused(f"a second activation: {layer.link} in the linear layer before {state.activation}")
    state.holds = "probabilities"
    if layer.link == "sigmoid" and len(layer.vectors) == 1:
        state.begin_logits(state.tensor)  # a sum of 1 that p and 1 - p are divided by changes nothing
    if layer.link == "sigmoid" and len(layer.vectors) > 1:
        if not state.summed:
            raise Refused(
                f"{len(layer.vectors)} labels, each with a sigmoid of the layer's own, which hides their logits; a "
                "map goes behind the probabilities with --search none --output-kind label-probabilities"
            )
        state.leave_to_graph(homogeneous=False)


def _take_in_bias(state: State, layer: Linear) -> None:
    """Take in the layer's own bias; behind one, a constant that is added is not the bias (rule 4)."""
    if layer.bias is None:
        return
    if state.bias is not None:
        state.leave_to_graph(homogeneous=False)
        return
    state.bias = layer.bias
    state.bias_scale = np.asarray(state.scale * layer.bias_scale)


def _check(state: State, layer: Linear, vectors: NDArray[np.float64]) -> None:
    """Refuse a layer that does not fit what follows it."""
    rows = len(vectors)
    weight = layer.weight
    linked = layer.link == "sigmoid" and state.holds == "probabilities"
    sizes = declared_sizes(state.model, state.output) or [1]
    if rows == 1 and state.activation != "sigmoid" and (sizes[-1] or 1) > 1 and "Reshape" in state.follows:
        raise Refused(
            f"weight '{weight.name}' has one class vector, which scores each of {sizes[-1]} choices of a sample; a map "
            "can go behind them (--search none)"
        )
    if rows < 2 and state.activation != "sigmoid" and not linked and not state.single:
        raise Refused(f"weight '{weight.name}' has {rows} class vector: {ONE_NUMBER}")
    if state.single and (rows > 1 or state.activation != "none" or linked):
        raise Refused(f"{rows} class vectors, followed by {state.activation}; {SINGLE_ONLY}")
    if state.paired and rows > 1:
        raise Refused(f"1 - p beside the p of {rows} scores")
    if state.only_column and rows > 1:
        raise Refused(f"the output is one column of {rows} probabilities")
    if rows > 1 and state.activation == "sigmoid" and state.class_axis != ONE:
        raise LabelsOfPositions(f"{rows} {MULTI_LABEL}")
    if state.labelled and (rows < 2 or state.activation not in ("none", "sigmoid") or linked):
        raise Refused(f"{rows} class vectors, followed by {state.activation}; {LABELS_ONLY}")
    if not np.all(np.isfinite(vectors)):
        raise Refused(f"weight '{weight.name}' holds NaN or infinite values")
    if state.scale.ndim and state.scale.shape[0] not in (1, rows):
        raise Refused(f"logits are scaled by {state.scale.shape[0]} values, but there are {rows} classes")
    if state.bias is not None:
        _check_bias(state.bias, layer, () if state.bias is layer.bias else state.bias_steps, rows)
    require_little_slack(state.output_slack, layer.classes or max(2, rows), state.activation)
    _check_declared(state, rows)


def _check_bias(bias: Stored, layer: Linear, steps: Sequence[Step], rows: int) -> None:
    if not np.all(np.isfinite(bias.value)):
        raise Refused(f"bias '{bias.name}' holds NaN or infinite values")
    shape = bias.value.shape
    selects = tuple(step for step in (*layer.bias_orient, *steps) if isinstance(step, Select))
    if selects:
        shape = oriented(bias.value, selects).shape
    size = int(np.prod(shape))
    # All on one axis: (C,), (1, C), or (C, 1, 1) behind a convolution.
    on_one_axis = size in shape[-3:] or not shape
    mirrored = any(isinstance(step, Mirror) for step in layer.bias_orient)
    if not mirrored and not (on_one_axis and size in (1, rows)):
        raise Refused(f"bias '{bias.name}' has shape {shape}; expected ({rows},)")


def _check_declared(state: State, rows: int) -> None:
    """Refuse logits and outputs that are declared with other classes."""
    graph = state.model.proto.graph
    for info in (*graph.output, *graph.value_info):
        shape = info.type.tensor_type.shape
        if info.name not in (state.output, state.logits) or not info.type.tensor_type.HasField("shape"):
            continue
        sizes = lengths_of(info)
        classes = {rows}
        if rows == 1:
            classes.add(2)
        # of several predictions the run shows whether the classes are where they should be
        if len(sizes) == 2 and sizes[1] is not None and sizes[1] not in classes:
            raise Refused(f"'{info.name}' has shape {shape_text(shape)}, but the linear layer has {rows} class vectors")


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
    keeps = next((a.i for a in node.attribute if a.name == "keepdims"), 1)
    return keeps == 1 and reduced_axes(model, node) in ([1], [-1])


def reduced_axes(model: Model, node: onnx.NodeProto) -> list[int]:
    """Return the axes that a node names: in an attribute, or in a constant second input."""
    axes = next((list(a.ints) for a in node.attribute if a.name == "axes"), None)
    constant = model.constant_tensor(input_at(node, 1))
    if axes is None and constant is not None:
        axes = model.array(constant).reshape(-1).tolist()
    return axes or []


_NO_ORIGIN = "which has no class vectors to tilt: an angle needs an origin, and a distance has none"
_AS_LAYER = "; written as 2 x @ P.T - |P|^2 it is a linear layer, which can be tilted"
_FARTHEST = "whose largest score is that of the farthest class; a classifier's scores are their negatives"


def refuse_distances(state: State) -> None:
    """Refuse scores that are distances, or products that no layer adds up; maps can go behind them.

    Raises:
        Refused: they are.
    """
    kind = distance(state.model, state.tensor)
    if kind:
        # a factor of each class, or one of all
        if not np.all(state.scale < 0):
            raise Refused(f"a {kind} distance, {_FARTHEST}")
        state.measure = f"negative {kind} distances"
        raise Refused(f"a {kind} distance, {_NO_ORIGIN}{_AS_LAYER if kind == SQUARED else ''}")
    if products_added_up(state.model, state.tensor):
        node = state.model.producer(state.tensor)
        product = state.model.producer(node.input[0]) if node is not None else None
        if product is None or adds_up_products(state.model, product, ("ReduceSum",)):
            return
        state.measure = "products of features and constants"
        raise Refused("products of the features and of constants that are repeated for each sample, added up")
