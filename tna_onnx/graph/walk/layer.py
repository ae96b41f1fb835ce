"""The end of the walk: a linear layer, accepted as the head (rule 6).

A sum, difference or mean of linear layers (DeiT, PiT, LeViT, CrossViT) is one layer over their features side by side:

    s = a_1 (x_1 W_1^T + b_1) + a_2 (x_2 W_2^T + b_2) = [x_1, x_2] [a_1 W_1, a_2 W_2]^T + (a_1 b_1 + a_2 b_2)

Layers that read the same features have one weight; a new value goes to the first, and the others stay.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tna_onnx.graph.linear import read_linear
from tna_onnx.graph.load import PREFIX, Model
from tna_onnx.graph.readout import CLASSES_FIRST, CLASSES_LAST, ONE, Head, has_positions
from tna_onnx.graph.stored import LabelsOfPositions, Linear, Mirror, Refused, Select, Step, Stored, oriented
from tna_onnx.graph.walk.output_steps import require_little_slack
from tna_onnx.graph.walk.steps import PASSED, State

ONE_NUMBER = (
    "one number a sample. If it is the probability of the second of two classes, say --output-kind probability; if it "
    "is its logit, whose Sigmoid was left out, --output-kind logit; a regression has no probabilities"
)
"""What is asked where one number a sample comes without a Sigmoid."""

LABELS_ONLY = "--output-kind label-logits is for one number a label, of two labels or more, without a Softmax"
"""The same of several labels."""

SINGLE_ONLY = "--output-kind logit (or probability) is for one number a sample without a Sigmoid"
"""What the user's word is for, where it does not fit."""

MULTI_LABEL = "logits with a Sigmoid at several positions of a sample; several labels are calibrated for whole samples"
"""Why the labels of tokens or pixels are no head's."""


def head_at(state: State, node: onnx.NodeProto) -> Head:
    """Return the head that a linear node is."""
    _require_features(state, node)
    layer = read_linear(state.model, state.reader, state.tensor)
    before = state.model.maker(layer.features, PASSED)
    if before is not None and before.op_type in ("Softmax", "LogSoftmax"):
        raise Refused(
            f"its features are the result of {before.op_type}: a layer that reads probabilities is not the head"
        )
    layer = _in_order(state, layer)
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
        raise Refused(f"{node.op_type} has a kernel of {kernel}, and its results at several positions come together")
    further = {"labels": state.labels or layer.labels, "bias_scale": np.asarray(state.bias_scale)}
    head = Head(
        **state.fields_of(Head) | further,
        logits_type=state.cast_to or layer.weight.value.dtype.name,
        # LinearClassifier gives both scores, however many vectors it stores.
        binary=len(vectors) == 1 and node.op_type != "LinearClassifier",
        n_classes=layer.classes or max(2, len(vectors)),
        multi_label=len(vectors) > 1 and (state.activation == "sigmoid" or state.kind == "label-logits"),
        node=state.where,
        op_type=node.op_type,
        features=layer.features,
        features_transposed=layer.features_transposed,
        stored_weight=layer.weight,
        orient=layer.orient,
        stored_bias=state.bias,
        bias_orient=layer.bias_orient if state.bias is layer.bias else state.bias_steps,
        weight_scale=np.asarray(state.scale * layer.scale),
    )
    _require_finite(head)
    return head


@np.errstate(all="ignore")
def _require_finite(head: Head) -> None:
    """Refuse a weight or bias that the constant factors behind it take to 0, NaN or infinity, or that holds these."""
    if np.any(head.weight_scale == 0) or not np.all(np.isfinite(head.weight)):
        name = head.stored_weight.name
        raise Refused(
            f"weight '{name}' holds NaN or infinite values, or becomes 0 or infinite by the factors behind it"
        )
    if head.stored_bias is not None and not np.all(np.isfinite(head.bias)):
        name = head.stored_bias.name
        raise Refused(f"bias '{name}' holds NaN or infinite values, or becomes so by the factors behind it")


def _require_features(state: State, node: onnx.NodeProto) -> None:
    """Refuse a layer that does not make the scores from features alone."""
    if state.tensor != node.output[0] and node.op_type != "LinearClassifier":
        raise Refused(f"'{state.tensor}' is a side output of {node.op_type}")
    for name in state.side_inputs:
        if state.reader in state.model.ancestors(name):
            raise Refused(f"the scores of this layer are changed by '{name}', which is computed from them")
    if node.name.startswith(f"{PREFIX}/"):
        raise Refused("tna-onnx wrote this node: start from the original model")


def _in_order(state: State, layer: Linear) -> Linear:
    """Take those classes of the layer that the output has, in its order."""
    if state.order == ():
        return layer
    rows = len(layer.vectors)
    # Of a LinearClassifier's scores, rows and biases may stand for two classes in one.
    if layer.bias_orient or rows < 2:
        raise Refused(f"scores are selected behind a layer of {rows} class vectors; expected one vector a class")
    bias_orient = () if layer.bias is None else state.bias_selected(layer.bias)
    selection = Select(state.places(rows), 0, layer.vectors)
    return replace(layer, orient=(*layer.orient, selection), bias_orient=bias_orient)


def _take_in_positions(state: State, node: onnx.NodeProto, rows: int) -> None:
    """Take in where the classes of several predictions a sample are, if there are several."""
    declared = [state.model.sizes(name) for name in (state.output, state.logits)]
    sizes = next((shape for shape in declared if has_positions(shape)), None)
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
        raise Refused(f"the linear layer has the activation {layer.link}, and {state.activation} is a second one")
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
    single = state.kind == "logit"
    sizes = state.model.sizes(state.output) or [1]
    if rows == 1 and state.activation != "sigmoid" and "Reshape" in state.follows and len(sizes) > 1:
        subject = f"weight '{weight.name}' has one class vector, which scores each choice of a sample"
        if sizes[-1] is None and not (single or linked):
            raise Refused(
                f"{subject}, and the last dimension of the output does not say how many there are; exported with a "
                "fixed number of choices, the model can get a map behind its scores (--search none)"
            )
        if (sizes[-1] or 1) > 1:
            raise Refused(f"{subject} ({sizes[-1]} of them); a map can go behind these scores (--search none)")
    if rows < 2 and state.activation != "sigmoid" and not linked and not single:
        raise Refused(f"weight '{weight.name}' has {rows} class vector: {ONE_NUMBER}")
    if single and (rows > 1 or state.activation != "none" or linked):
        raise Refused(f"the layer has {rows} class vectors, followed by {state.activation}; {SINGLE_ONLY}")
    if state.paired and rows > 1:
        raise Refused(f"1 - p stands beside p, and the layer has {rows} scores; expected one")
    if state.only_column and rows > 1:
        raise Refused(f"the output is one column of {rows} probabilities; export all of them")
    if rows > 1 and state.activation == "sigmoid" and state.class_axis != ONE:
        raise LabelsOfPositions(f"{rows} {MULTI_LABEL}")
    if state.kind == "label-logits" and (rows < 2 or state.activation not in ("none", "sigmoid") or linked):
        raise Refused(f"the layer has {rows} class vectors, followed by {state.activation}; {LABELS_ONLY}")
    if state.scale.ndim and state.scale.shape[0] not in (1, rows):
        raise Refused(f"logits are scaled by {state.scale.shape[0]} values, but there are {rows} classes")
    if state.bias is not None:
        _check_bias(state.bias, layer, () if state.bias is layer.bias else state.bias_steps, rows)
    require_little_slack(state.output_slack, layer.classes or max(2, rows), state.activation)
    _check_declared(state, rows)


def _check_bias(bias: Stored, layer: Linear, steps: Sequence[Step], rows: int) -> None:
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
    classes = (None, rows, max(rows, 2))
    for name in (state.output, state.logits):
        sizes = state.model.sizes(name) or []
        # of several predictions the run shows whether the classes are where they should be
        if len(sizes) == 2 and sizes[1] not in classes:
            raise Refused(f"'{name}' has {sizes[1]} columns, but the linear layer has {rows} class vectors")


@dataclass(frozen=True, eq=False)
class SummedHead(Head):
    """Linear layers whose scores are added up, seen as one layer."""

    layers: tuple[Head, ...] = ()  # the layers, each with its factor in `weight_scale` and `bias_scale`

    @property
    def parts(self) -> dict[str, int]:
        """The tensors that the features consist of, with the length of each; none where all layers read the same."""
        lengths = {layer.features: layer.n_features for layer in self.layers}
        if len(lengths) == 1:
            return {}
        return lengths

    @property
    def readers(self) -> tuple[int, ...]:
        return tuple(reader for layer in self.layers for reader in layer.readers)

    @property
    def places(self) -> tuple[Stored, ...]:
        return tuple(place for layer in self.layers for place in layer.places)

    @cached_property
    def weight(self) -> NDArray[Any]:
        """(C, n) class vectors over all features, with the factors in them."""
        return self._side_by_side([layer.weight for layer in self.layers])

    @cached_property
    def bias(self) -> NDArray[Any]:
        """(C,) sum of the biases, with the factors in them."""
        return self._added([layer.bias for layer in self.layers])

    @property
    def holds_bias(self) -> bool:
        return any(layer.holds_bias for layer in self.layers)

    def written(
        self, weight: NDArray[Any] | None, bias: NDArray[Any] | None
    ) -> Iterator[tuple[Head, NDArray[Any] | None, NDArray[Any] | None]]:
        holder = next((layer for layer in self.layers if layer.holds_bias), None)
        start = 0
        read: set[str] = set()
        for layer in self.layers:
            new_weight = new_bias = None
            if weight is not None and layer.features not in read:
                end = start + layer.n_features
                tied = [
                    summand.weight
                    for summand in self.layers
                    if summand is not layer and summand.features == layer.features
                ]
                new_weight = weight[:, start:end]
                if tied:
                    new_weight = new_weight - sum(tied)
                start = end
            read.add(layer.features)
            if bias is not None and layer is holder:
                new_bias = bias - sum(summand.bias for summand in self.layers if summand is not layer)
            yield layer, new_weight, new_bias

    def as_written(self, weight: NDArray[Any]) -> NDArray[Any]:
        written = self.written(weight, None)
        return self._side_by_side([layer.weight if new is None else layer.as_written(new) for layer, new, _ in written])

    def new_bias_as_written(self, bias: NDArray[Any]) -> NDArray[Any]:
        written = self.written(None, bias)
        return self._added([layer.bias if new is None else layer.new_bias_as_written(new) for layer, _, new in written])

    def bias_as_written(self, factor: float) -> NDArray[Any]:
        return self._added([layer.bias_as_written(factor) for layer in self.layers])

    def _side_by_side(self, weights: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return weights of the layers as one, those on the same features added up."""
        blocks: dict[str, NDArray[Any]] = {}
        for layer, weight in zip(self.layers, weights, strict=True):
            blocks[layer.features] = blocks.get(layer.features, 0) + weight
        return np.ascontiguousarray(np.concatenate(list(blocks.values()), axis=1), self.working_type)

    def _added(self, biases: Sequence[NDArray[Any]]) -> NDArray[Any]:
        return np.asarray(np.sum(biases, axis=0), self.working_type)


def summed(model: Model, heads: Sequence[Head]) -> SummedHead:
    """Return the one head that some linear layers are, whose scores are added up."""
    layers = [layer for head in heads for layer in (getattr(head, "layers", (head,)))]
    for layer in layers:
        _require_plain(model, layer, layers)
    first = layers[0]
    features = dict.fromkeys(layer.features for layer in layers)
    values = {field.name: getattr(first, field.name) for field in fields(Head)}
    values["node"] = " + ".join(layer.node for layer in layers)
    values["features"] = " + ".join(features)
    head = SummedHead(**values, layers=tuple(layers))
    # what the layers hold together, as far as a description needs it
    stored = first.stored_weight
    shared = any(layer.stored_weight.shared for layer in layers)
    value = head.weight[-first.rows :].astype(np.result_type(*(layer.stored_weight.value for layer in layers)))
    name = ", ".join(layer.stored_weight.name for layer in layers)
    together = replace(stored, name=name, value=value, steps=(), shared=shared)
    return replace(head, stored_weight=together, orient=(), weight_scale=np.ones(()))


def _require_plain(model: Model, layer: Head, layers: Sequence[Head]) -> None:
    """Refuse a layer that cannot be one of several."""
    behind = model.ancestors(layer.features)
    summands = [summand for summand in layers if summand is not layer]
    if any({*summand.readers} & {*layer.readers} for summand in summands):
        raise Refused(f"the scores of {layer.node} are added up twice: a new weight would have to be that of both")
    before = next((summand for summand in summands if behind.intersection(summand.readers)), None)
    if before is not None:
        raise Refused(f"the features of {layer.node} are computed from the scores of {before.node}")
    if not layer.linear or layer.step:
        raise Refused(f"the scores of {layer.node} pass a non-linear function before they are added")
    if any(place.quantized is not None for place in layer.places):
        raise Refused(f"{layer.node} is quantised, and the scores of quantised layers cannot be added up here")
    if layer.several or layer.features_transposed or layer.op_type in ("Conv", "FusedConv"):
        raise Refused(f"{layer.node} does not read one vector a sample, (N, n)")
    if layer.rows != layers[0].rows:
        raise Refused(f"{layer.node} has {layer.rows} class vectors, and {layers[0].node} has {layers[0].rows}")
