"""The end of the walk: a linear layer, checked and taken in as the head (rule 6)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from numpy.typing import NDArray

from tna_onnx.graph.cut import ancestors
from tna_onnx.graph.input_types import shape_text
from tna_onnx.graph.linear import read_linear
from tna_onnx.graph.linear_layer import Linear
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import PREFIX
from tna_onnx.graph.readout import Head
from tna_onnx.graph.several import CLASSES_FIRST, CLASSES_LAST, ONE, declared_sizes, has_several, lengths_of
from tna_onnx.graph.stored import Mirror, Permute, Refused, Stored
from tna_onnx.graph.walk.logit_steps import PASSED
from tna_onnx.graph.walk.output_steps import require_little_slack
from tna_onnx.graph.walk.state import State

__all__ = ["LABELS_ONLY", "MULTI_LABEL", "ONE_NUMBER", "SINGLE_ONLY", "head_at"]

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
    """Put the classes of the layer into the order that they have in the output."""
    if not state.order:
        return layer
    # Of a LinearClassifier's scores, rows and biases may stand for two classes in one.
    if len(layer.vectors) != len(state.order) or layer.bias_orient:
        raise Refused(f"{len(layer.vectors)} class vectors, and a Gather of {len(state.order)} scores behind them")
    bias_orient = () if layer.bias is None else state.bias_permuted(layer.bias)
    return replace(layer, orient=(*layer.orient, Permute(state.order, 0)), bias_orient=bias_orient)


def _softmax_behind(model: Model, tensor: str) -> str:
    """Return the kind of softmax that makes a tensor, through changes of shape or type; empty if none does."""
    node = model.producer(tensor)
    while node is not None and node.op_type in PASSED and node.input:
        node = model.producer(node.input[0])
    if node is None or node.op_type not in ("Softmax", "LogSoftmax"):
        return ""
    return str(node.op_type)


def _take_in_positions(state: State, node: onnx.NodeProto, rows: int) -> None:
    """Take in where the classes of several predictions a sample are, if there are several.

    Raises:
        Refused: neither axis is as long as there are classes: keys of an attention, say, which are split into parts.
    """
    declared = [declared_sizes(state.model, name) for name in (state.output, state.logits)]
    sizes = next((each for each in declared if has_several(each)), None)
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
    if rows < 2 and state.activation != "sigmoid" and not linked and not state.single:
        raise Refused(f"weight '{weight.name}' has {rows} class vector: {ONE_NUMBER}")
    if state.single and (rows > 1 or state.activation != "none" or linked):
        raise Refused(f"{rows} class vectors, followed by {state.activation}; {SINGLE_ONLY}")
    if state.paired and rows > 1:
        raise Refused(f"1 - p beside the p of {rows} scores")
    if state.only_column and rows > 1:
        raise Refused(f"the output is one column of {rows} probabilities")
    if rows > 1 and state.activation == "sigmoid" and state.class_axis != ONE:
        raise Refused(f"{rows} {MULTI_LABEL}")
    if state.labelled and (rows < 2 or state.activation not in ("none", "sigmoid") or linked):
        raise Refused(f"{rows} class vectors, followed by {state.activation}; {LABELS_ONLY}")
    if not np.all(np.isfinite(vectors)):
        raise Refused(f"weight '{weight.name}' holds NaN or infinite values")
    if state.scale.ndim and state.scale.shape[0] not in (1, rows):
        raise Refused(f"logits are scaled by {state.scale.shape[0]} values, but there are {rows} classes")
    if state.bias is not None:
        _check_bias(state.bias, layer, rows)
    require_little_slack(state.output_slack, layer.classes or max(2, rows), state.activation)
    _check_declared(state, rows)


def _check_bias(bias: Stored, layer: Linear, rows: int) -> None:
    if not np.all(np.isfinite(bias.value)):
        raise Refused(f"bias '{bias.name}' holds NaN or infinite values")
    shape = bias.value.shape
    size = bias.value.size
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
