"""Where a model's scores are: behind its head, or in an output of logits or probabilities (`find_readout`).

The graph or the user says what an output holds; values are never looked at. A walk backwards (`graph.walk`) finds the
head, or the reason why an output has none. `is_one_vs_rest` recognises separate binary classifiers side by side, as
skl2onnx writes them.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.bounds import attribute_of, input_at
from tna_onnx.graph.cut import ancestors, cut_at
from tna_onnx.graph.linear import integer_layer, is_linear, is_quantized
from tna_onnx.graph.load import Model, dims_text
from tna_onnx.graph.options import LABEL_KINDS
from tna_onnx.graph.purpose import BOXES, box_output, is_box_output, purpose
from tna_onnx.graph.readout import ONE, OPEN_AXIS, Head, Readout, class_axis_of, has_positions, quantization_step
from tna_onnx.graph.stored import Refused
from tna_onnx.graph.tensors import FLOAT_TYPES, epsilon
from tna_onnx.graph.walk.layer import MULTI_LABEL, ONE_NUMBER, SINGLE_ONLY
from tna_onnx.graph.walk.loop import walk_back
from tna_onnx.graph.walk.output_steps import is_complement, refuse_no_scores, require_little_slack, require_samples_axis
from tna_onnx.graph.walk.steps import Refusal, State

LABELS = "holds class labels, not scores; export the scores that they come from (leave out an ArgMax)"
"""Why an output of labels is no head's."""

AMBIGUOUS_SCORES = (
    "the graph does not tell what they are: if they are logits, say so with --output-kind logits. If they are no "
    "scores of classes (but an image, say), the model is no classifier"
)
"""What a message says of an output that was taken for probabilities, and holds none."""


class SeveralHeads(UnsupportedModel):
    """There are several heads, or outputs that may have one, and nothing says which one is meant."""


class _AmbiguousScores(Refused):
    """The graph does not tell whether an output holds logits or probabilities."""


def find_readout(model: Model, head: str | None = None, output: str | None = None, kind: str | None = None) -> Readout:
    """Return the head if there is one, else the tensor of logits or probabilities behind an output.

    `head`: label of its linear node, or its output, where there are several. `kind`: what `--output-kind` says that the
    output holds: `logits` or `probabilities`, whatever computes them; `logit` or `probability` of the second of two
    classes; `label-logits` or `label-probabilities` of several labels a sample.
    """
    if head is not None:
        return choose_head(model, head, output, kind)
    if kind not in (None, "logit", "label-logits"):
        return _choose_scores(model, output, kind)
    try:
        return choose_head(model, None, output, kind)
    except SeveralHeads:
        # one output may hold scores all the same; else which head is meant has to be told
        with contextlib.suppress(UnsupportedModel):
            readout = _choose_scores(model, output, kind)
            with contextlib.suppress(UnsupportedModel):
                return choose_head(model, None, readout.output, kind)
            return readout
        raise
    except UnsupportedModel:  # a map alone needs no head
        return _choose_scores(model, output, kind, guess=True)


def _choose_scores(model: Model, output: str | None, kind: str | None, *, guess: bool = False) -> Readout:
    """Return the tensor of logits or probabilities behind an output, whatever computes it.

    `guess`: take the only output that may hold either for probabilities; the run shows whether each row is a
    distribution, and where one is not, `AMBIGUOUS_SCORES` asks for a kind.
    """
    _require_output(model, output)
    readouts = []
    reasons = []
    untold = []
    for info in model.proto.graph.output:
        if output not in (None, info.name):
            continue
        try:
            readouts.append(_readout(model, info, kind))
        except Refused as refused:
            reasons.append(f"\n  output '{info.name}': {refused}")
            if isinstance(refused, _AmbiguousScores):
                untold.append(info)
    if not readouts:
        if subject := purpose(model):
            raise UnsupportedModel(f"{model.name}: {subject}; only classifiers can be calibrated")
        if guess and len(untold) == 1:
            try:
                guessed = _readout(model, untold[0], "probabilities")
            except Refused as refused:
                reasons = [f"\n  output '{untold[0].name}': {refused}"]
            else:
                if not guessed.several:
                    return guessed
        raise UnsupportedModel(f"{model.name}: no output that can be calibrated{''.join(reasons)}")
    if len({readout.logits for readout in readouts}) > 1:
        names = ", ".join(readout.output for readout in readouts)
        raise SeveralHeads(f"{model.name}: several outputs can be calibrated: {names}; choose one: --output-name")
    return readouts[0]


def _require_output(model: Model, output: str | None) -> None:
    if output is not None and output not in model.outputs:
        raise UnsupportedModel(f"{model.name}: no output '{output}'; the model has {', '.join(model.outputs)}")


def find_heads(model: Model, kind: str | None = None) -> tuple[tuple[Head, ...], tuple[Refusal, ...]]:
    """Walk back from every graph output. Outputs that lead to no head give a refusal."""
    boxes = box_output(model)
    heads = []
    refusals = []
    for name in model.outputs:
        outcome = walk_back(model, name, kind=kind).outcome
        if isinstance(outcome, Refusal):
            refusals.append(outcome)
        # nobody has labels for each box: which object it belongs to, training decides
        elif boxes and (name == boxes or outcome.several):
            refusals.append(Refusal(name, outcome.node, f"{BOXES} ('{boxes}')"))
        else:
            heads.append(outcome)
    return tuple(heads), tuple(refusals)


def choose_head(model: Model, node: str | None = None, output: str | None = None, kind: str | None = None) -> Head:
    """Return the one head of a model; of several outputs behind it, the first (logits before probabilities).

    `node`: label of the linear node, where there are several, or its graph output.
    """
    heads, refusals = find_heads(model, kind)
    _require_output(model, output)
    if output is not None:
        heads = tuple(head for head in heads if head.output == output)
        refusals = tuple(refusal for refusal in refusals if refusal.output == output)
    heads = _as_labels(heads, refusals)
    if node is None and output is None:
        heads = _last(model, heads)
        # labels, such as gates and attributes, give way to a head that gives each sample one class
        heads = tuple(head for head in heads if not head.multi_label) or heads
        _refuse_doubt(model, heads, refusals)
    by_node = {head.node: head for head in reversed(heads)}  # reversed: of several outputs, the first stays
    if node is not None:
        if node not in by_node:
            node = next((head.node for head in heads if head.output == node), node)
        if node in by_node:
            return by_node[node]
        # of the output that was named; of all where none of them has a head
        own = [refusal for refusal in refusals if node in (refusal.output, refusal.node)]
        raise UnsupportedModel(
            f"{model.name}: no linear head is called '{node}', and no output of that name has one; the model has "
            f"{', '.join(by_node) or 'none'}{_reasons(own or ([] if by_node else refusals))}"
        )
    if not by_node and output is None and (subject := purpose(model)):
        raise UnsupportedModel(f"{model.name}: {subject}; only classifiers can be calibrated{_reasons(refusals)}")
    if not by_node:
        raise UnsupportedModel(
            f"{model.name}: no linear head found (`tna-onnx inspect` shows the same){_reasons(refusals)}\n"
            "  a calibration map alone needs none: --search none"
        )
    if len(by_node) > 1:
        listing = ", ".join(f"{head.node} (output '{head.output}')" for head in by_node.values())
        raise SeveralHeads(
            f"{model.name}: {len(by_node)} heads found: {listing}; choose one with --head NODE, or --output-name NAME"
        )
    return next(iter(by_node.values()))


def _as_labels(heads: tuple[Head, ...], refusals: tuple[Refusal, ...]) -> tuple[Head, ...]:
    """Mark a layer as one of labels for all of its outputs if any of them has a Sigmoid behind it."""
    labelled = {head.node for head in heads if head.multi_label}
    closed = {refusal.node for refusal in refusals if refusal.labels_of_positions}
    heads = tuple(head for head in heads if head.node not in closed)
    # a Softmax beside the Sigmoid says something else
    return tuple(
        replace(head, multi_label=True) if head.node in labelled and head.activation == "none" else head
        for head in heads
    )


def _reasons(refusals: Sequence[Refusal]) -> str:
    return "".join(f"\n  output '{r.output}', at {r.node}: {r.reason}" for r in refusals)


def _last(model: Model, heads: tuple[Head, ...]) -> tuple[Head, ...]:
    """Drop linear layers that another head is computed from: hidden layers whose activations are outputs too."""
    trunk = {k for head in heads for name in head.parts or (head.features,) for k in ancestors(model, name)}
    return tuple(head for head in heads if trunk.isdisjoint(head.readers))


def _refuse_doubt(model: Model, heads: tuple[Head, ...], refusals: tuple[Refusal, ...]) -> None:
    """Refuse to choose while an output that was not understood, with a linear layer of its own, may classify."""
    if not heads:  # the caller says that there is none, with all reasons
        return
    behind_heads = {k for head in heads for k in ancestors(model, head.output)}
    kinds = {info.name: info.type.tensor_type.elem_type for info in model.proto.graph.output}
    # An output without a linear layer of its own, such as features or labels, is not another classifier's.
    boxes = box_output(model)
    for refusal in refusals:
        if refusal.output == boxes:
            continue
        behind_refusal = ancestors(model, refusal.output)
        linear = any(is_linear(model.proto.graph.node[k]) for k in behind_refusal - behind_heads)
        if (
            linear
            and model.producers.get(refusal.output) not in behind_heads
            and kinds[refusal.output] in (0, *FLOAT_TYPES)
        ):
            raise SeveralHeads(
                f"{model.name}: head '{heads[0].node}' leads to output '{heads[0].output}', but output "
                f"'{refusal.output}' was not understood and may be the classifier's (at {refusal.node}: "
                f"{refusal.reason}); if '{heads[0].output}' holds the classes, add --output-name {heads[0].output}"
            )


def behind_outputs(model: Model) -> list[tuple[Readout, State]]:
    """Return the tensors that maps can go behind, and what the walk learned.

    Where the graph does not tell what an output holds, and the user would have to, `Readout.holds` is empty.
    """
    outputs = []
    for info in model.proto.graph.output:
        walked = walk_back(model, info.name)
        try:
            outputs.append((_readout(model, info, None), walked))
        except Refused:
            # a forest and the like are asked about; a regressor or a detector is not, nor is an image
            with contextlib.suppress(Refused):
                asked = replace(_readout(model, info, "logits"), holds="")
                if not (asked.several or purpose(model)):
                    outputs.append((asked, walked))
    return outputs


def _readout(model: Model, info: onnx.ValueInfoProto, kind: str | None) -> Readout:
    """Read one output."""
    tensor = info.type.tensor_type
    # ZipMap gives a sequence of maps; 0 is an output whose type the file does not say.
    scores = info.type.HasField("sequence_type") or tensor.elem_type in (0, *FLOAT_TYPES)
    if not scores:
        raise Refused(LABELS)
    if is_box_output(model, info.name):
        raise Refused(BOXES)
    require_samples_axis(model, info.name)
    walked = walk_back(model, info.name, kind=kind)
    if info.type.sequence_type.elem_type.HasField("tensor_type") and isinstance(walked.outcome, Refusal):
        raise Refused(walked.outcome.reason)
    labels = walked.class_labels
    sizes = _sizes(model, info.name)
    class_axis = _class_axis(model, walked, sizes)
    plain = walked.activation == "none" and walked.holds == "logits"  # divided by their sum, columns are of one class
    if kind is None and plain and is_one_vs_rest(model, walked.node):
        kind = "label-probabilities"
    if kind == "probability" and walked.activation == "sigmoid":
        kind = None  # the graph says the same
    single = kind in _SINGLE
    if single:
        _require_single(info, walked)
    columns = _columns(sizes, class_axis, walked, labels)
    multi_label = _is_multi_label(kind, walked, columns, class_axis)
    if single or (walked.activation == "sigmoid" and not multi_label):
        columns = 2
    holds = _holds(model, walked, kind, columns)
    if columns < 2:
        raise Refused(
            "the output's last dimension, the number of classes, is not declared; export the model with it fixed"
        )
    require_little_slack(walked.output_slack, columns, walked.activation)
    return Readout(
        output=info.name,
        logits=walked.logits,
        logits_type=_logits_type(model, walked, tensor.elem_type),
        holds=holds,
        activation=walked.activation,
        follows=walked.follows,
        binary=not multi_label and (walked.activation == "sigmoid" or single),
        paired=walked.paired,
        n_classes=columns,
        labels=labels,
        output_step=walked.output_step,
        output_slack=walked.output_slack,
        class_axis=class_axis,
        multi_label=multi_label,
        quantum=_quantum(model, walked.logits, columns) if holds == "probabilities" else 0.0,
    )


def _sizes(model: Model, output: str) -> list[int | None]:
    """Return the lengths of an output's axes: as declared, or as its nodes tell where the classes' only have a name."""
    sizes = model.sizes(output) or []
    if len(sizes) != 2 or sizes[1] is not None:
        return sizes
    return [dim.dim_value or None for dim in _inferred_type(model, output).shape.dim]


def _inferred_type(model: Model, tensor: str) -> Any:
    """Return the type of a tensor as its nodes tell it; an empty one where they do not, or contradict each other."""
    try:
        return onnx.shape_inference.infer_shapes(cut_at(model, [tensor])).graph.output[0].type.tensor_type
    except onnx.shape_inference.InferenceError:
        return onnx.TypeProto.Tensor()


def _logits_type(model: Model, walked: State, declared: int) -> str:
    """Return the element type of the logits: that of the output, but for a Cast between the two."""
    if walked.logits != walked.output and "Cast" in walked.follows:
        declared = _inferred_type(model, walked.logits).elem_type or declared
    return FLOAT_TYPES.get(declared, "float32")


def _class_axis(model: Model, walked: State, sizes: list[int | None]) -> int:
    """Return the axis of the classes where there are several predictions a sample, or `ONE`."""
    if not has_positions(sizes):
        return ONE
    # one class a box is not one class a position
    subject = purpose(model)
    if subject:
        raise Refused(subject)
    axis = walked.class_axis or class_axis_of(sizes)
    if axis == ONE:
        raise Refused(OPEN_AXIS)
    return axis


# Words for one number of the second of two classes -> what it is.
_SINGLE = {"logit": "logits", "probability": "probabilities"}


def _require_single(info: onnx.ValueInfoProto, walked: State) -> None:
    """Refuse an output that cannot hold one logit, or one probability."""
    sizes = [d.dim_value for d in info.type.tensor_type.shape.dim]
    if walked.activation != "none" or walked.holds != "logits" or (len(sizes) > 1 and sizes[-1] > 1):
        shape = dims_text(info.type.tensor_type.shape)
        raise Refused(f"{SINGLE_ONLY}; this one has shape {shape} and the activation {walked.activation}")


def _holds(model: Model, walked: State, kind: str | None, columns: int) -> str:
    """Return whether a tensor holds logits or probabilities; only where the graph does not tell, the user may."""
    if walked.activation != "none" or walked.holds != "logits":
        return walked.holds
    refuse_no_scores(model, walked.output)
    if columns == 1:
        raise Refused(walked.changed or f"holds {ONE_NUMBER}")
    if kind in _SINGLE:
        return _SINGLE[kind]
    if kind in LABEL_KINDS:
        return kind.removeprefix("label-")
    per_position = has_positions(model.sizes(walked.logits))
    # an image may end in a convolution too
    layer = walked.node is not None and is_linear(walked.node) and not per_position
    if kind is None and (layer or integer_layer(model, walked.node) is not None):
        return "logits"
    shown = _known_kind(walked.node)
    if adds_up_to_one(walked.node) or is_complement(model, walked.node):
        shown = "probabilities"
    if shown and kind == "logits":
        raise Refused(f"holds probabilities, as {walked.where} shows; leave --output-kind logits out")
    holds = kind or shown
    if not holds:
        if _adds_up_shares(walked.node):
            raise _AmbiguousScores(
                f"a tree ensemble ({walked.where}), which has no linear layer, but a map can go behind it; its leaves "
                f"hold shares from 0 to 1: say so with --output-kind probabilities"
            )
        source = walked.where
        if walked.node is not None and is_quantized(walked.node):
            source += f", a {walked.node.op_type}, whose quantised weight cannot be replaced"
        raise _AmbiguousScores(
            f"the graph does not tell whether it holds logits or probabilities (it comes from {source}); say "
            "so with --output-kind logits or --output-kind probabilities. If it holds neither (but an image, say), "
            "the model is no classifier"
        )
    return holds


def _columns(sizes: list[int | None], class_axis: int, walked: State, labels: tuple[int | str, ...]) -> int:
    """Return the number of classes that an output declares; 0 if it declares none."""
    if walked.paired:
        return 2
    if labels or not sizes:
        return len(labels)
    if len(sizes) == 1:  # (N,): one number a sample
        return 1
    return sizes[class_axis or -1] or 0


def _is_multi_label(kind: str | None, walked: State, columns: int, class_axis: int) -> bool:
    """Tell whether an output holds several labels a sample, each by itself."""
    if kind in LABEL_KINDS and (walked.activation not in ("none", "sigmoid") or walked.holds != "logits"):
        raise Refused(f"the graph gives one class a sample ({walked.activation}); leave --output-kind {kind} out")
    multi_label = kind in LABEL_KINDS or (walked.activation == "sigmoid" and not walked.paired and columns != 1)
    if kind in LABEL_KINDS and class_axis != ONE:
        raise Refused(f"--output-kind {kind} is for an output (N, C), one number a label; this one has further axes")
    if multi_label and class_axis != ONE:
        raise Refused(f"{columns or 'several'} {MULTI_LABEL}")
    if multi_label and columns < 2:
        raise Refused(
            "the output's last dimension, the number of labels, is not declared; export the model with it fixed"
        )
    return multi_label


def _known_kind(node: onnx.NodeProto | None) -> str:
    """Return what an operator's attributes say its scores are; empty if they do not say."""
    if node is None:
        return ""
    known = node.op_type == "QLinearSoftmax"
    if node.domain == "ai.onnx.ml" and node.op_type in _CLASSIFIERS:
        known = attribute_of(node, "post_transform", b"NONE") in (b"SOFTMAX", b"LOGISTIC")
    if node.domain == "ai.onnx.ml" and node.op_type == "SVMClassifier":
        known = any(a.name == "prob_a" for a in node.attribute)
    return "probabilities" if known else ""


def adds_up_to_one(node: onnx.NodeProto | None) -> bool:
    """Tell whether a node is a forest in which every leaf gives its classes shares of 1 / (number of trees).

    Of two classes the second one's share alone may be stored: then no leaf gives more, and one gives all of it.
    """
    if not _adds_up_shares(node):
        return False
    assert node is not None  # noqa: S101 - `_adds_up_shares` says so
    if attribute_of(node, "base_values", ()) or attribute_of(node, "post_transform", b"NONE") != b"NONE":
        return False
    names = ("class_treeids", "class_nodeids", "class_weights", "class_ids")
    trees, places, weights, classes = (np.array(attribute_of(node, name, ())) for name in names)
    if not len(trees) == len(places) == len(weights):
        return False
    _, leaf = np.unique(np.stack([trees, places]), axis=1, return_inverse=True)
    share = np.bincount(np.ravel(leaf), weights) * len(np.unique(trees))
    one_class = len(np.unique(classes)) == 1
    return bool(np.allclose(share.max(), 1, atol=1e-3) and (one_class or np.allclose(share, 1, atol=1e-3)))


def _adds_up_shares(node: onnx.NodeProto | None) -> bool:
    """Whether a node is a forest whose leaves hold shares of samples, as in scikit-learn."""
    if node is None or node.op_type != "TreeEnsembleClassifier":
        return False
    weights = attribute_of(node, "class_weights", ())
    return bool(weights) and min(weights) >= 0 and max(weights) <= 1


# What changes shape or type alone, or takes columns.
_UNROUNDED = (
    "ArrayFeatureExtractor", "Cast", "Flatten", "Gather", "Identity", "Normalizer", "Reshape", "Slice", "Squeeze",
    "Transpose", "Unsqueeze",
)  # fmt: skip


def _quantum(model: Model, tensor: str, n_classes: int) -> float | None:
    """Return the step in which probabilities come that have no tensor of logits; None where the graph does not tell.

    It is that of a quantiser, 1/T of T trees that vote, 1/k of k neighbours, or the rounding of 1 where 1 - p is stored
    beside p.
    """
    node = model.maker(tensor, _UNROUNDED)
    if node is None:
        return None
    if node.op_type == "DequantizeLinear":
        return quantization_step(model, node.output[0]) or None
    if node.op_type == "TreeEnsembleClassifier" and attribute_of(node, "post_transform", b"NONE") == b"NONE":
        return 1 / max(1, len(np.unique(attribute_of(node, "class_treeids", ()))))
    if node.domain == "ai.onnx.ml" and node.op_type.endswith("Classifier"):
        return n_classes * epsilon("float32") if n_classes == 2 else 0.0
    return _share_of_neighbours(model, tensor)


def _share_of_neighbours(model: Model, tensor: str) -> float | None:
    """Return 1/k where the k nearest of stored samples are on the way to a tensor; else None."""
    for k in ancestors(model, tensor):
        node = model.proto.graph.node[k]
        count = model.constant_tensor(input_at(node, 1))
        if node.op_type == "TopK" and count is not None:
            return 1 / max(1, int(model.array(count).item()))
    return None


# What takes the second column out of two, and what changes the shape alone.
_PASSED = {
    "ArrayFeatureExtractor", "Cast", "DequantizeLinear", "Flatten", "Gather", "Identity", "QuantizeLinear", "Reshape",
    "Slice", "Squeeze", "Unsqueeze",
}  # fmt: skip
_CLASSIFIERS = ("LinearClassifier", "TreeEnsembleClassifier")


def is_one_vs_rest(model: Model, node: onnx.NodeProto | None) -> bool:
    """Whether a node puts side by side what several sigmoids give, each of a classifier of its own.

    A sigmoid of integers is one too: logits are no float tensor there, so that its output is calibrated as it is.
    """
    if node is None or node.op_type not in ("Concat", "QLinearConcat") or len(node.input) < 2:
        return node is not None and node.op_type == "QLinearSigmoid"
    if attribute_of(node, "axis", 0) not in (1, -1):
        return False
    names = node.input[2::3] if node.op_type == "QLinearConcat" else node.input  # each with scale and zero point
    sources = [_sigmoid_behind(model, name) for name in names]
    # columns of one classifier are put together again elsewhere
    return "" not in sources and len(set(sources)) == len(sources)


def _sigmoid_behind(model: Model, tensor: str) -> str:
    """Return the result of the sigmoid that makes a column; empty if none does."""
    node = model.maker(tensor, _PASSED)
    if node is not None and node.op_type == "Concat" and len(node.input) == 2:
        node = model.maker(node.input[1], _PASSED)  # (1 - p, p)
    if node is None:
        return ""
    logistic = node.op_type in _CLASSIFIERS and attribute_of(node, "post_transform", b"") == b"LOGISTIC"
    if node.op_type in ("Sigmoid", "QLinearSigmoid") or logistic:
        return str(node.output[0])
    return ""
