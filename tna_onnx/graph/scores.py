"""Where a model's scores are: its head, or else the tensor of logits or probabilities behind an output.

The graph says what an output holds (what follows the head), or the user; values are never looked at.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import onnx

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.dtypes import FLOAT_TYPES
from tna_onnx.graph.head import choose_head
from tna_onnx.graph.input_types import shape_text
from tna_onnx.graph.label_columns import stands_for_labels
from tna_onnx.graph.linear import is_quantized
from tna_onnx.graph.load import Model
from tna_onnx.graph.options import LABEL_KINDS
from tna_onnx.graph.purpose import purpose
from tna_onnx.graph.readout import Readout
from tna_onnx.graph.refusal import Refusal
from tna_onnx.graph.several import ONE, OPEN_AXIS, class_axis_of, declared_sizes, has_several
from tna_onnx.graph.stored import Refused
from tna_onnx.graph.walk import MULTI_LABEL, ONE_NUMBER, SINGLE_ONLY, Walked, require_little_slack, walk_back

__all__ = ["behind_outputs", "choose_readout", "find_readout"]


def find_readout(model: Model, head: str | None = None, output: str | None = None, kind: str | None = None) -> Readout:
    """Return the head if there is one, else the tensor of logits or probabilities behind an output.

    Args:
        model: the model.
        head: label of the linear node; then nothing else will do.
        output: graph output, where there are several.
        kind: what `--output-kind` says that output holds: `logits` or `probabilities`, whatever computes them; `logit`;
            `label-logits` or `label-probabilities` of several labels a sample.

    Raises:
        UnsupportedModel: neither.
    """
    if kind in ("logit", "label-logits") and head is not None:
        return choose_head(model, head, output, kind)
    if head is None and kind in (None, "logit", "label-logits"):
        try:
            return choose_head(model, None, output, kind)
        except UnsupportedModel as error:  # a map alone needs no head
            try:
                return choose_readout(model, output, kind)
            except UnsupportedModel:
                if "choose one with --head" in str(error):  # there are heads: that is what has to be told
                    raise error from None
                raise
    if head is not None:
        return choose_head(model, head, output)
    return choose_readout(model, output, kind)


def choose_readout(model: Model, output: str | None = None, kind: str | None = None) -> Readout:
    """Return the tensor of logits or probabilities behind an output, whatever computes it.

    Args:
        model: the model.
        output: graph output, where there are several that may hold scores.
        kind: what `--output-kind` says, where the graph does not tell.

    Raises:
        UnsupportedModel: no such output, several, or the graph does not tell what it holds.
    """
    if output is not None and output not in model.outputs:
        raise UnsupportedModel(f"{model.name}: no output '{output}'; the model has {', '.join(model.outputs)}")
    readouts = []
    reasons = []
    for info in model.proto.graph.output:
        if output not in (None, info.name):
            continue
        try:
            readouts.append(_readout(model, info, kind))
        except Refused as refused:
            reasons.append(f"\n  output '{info.name}': {refused}")
    if not readouts:
        what = purpose(model)
        if what:
            raise UnsupportedModel(f"{model.name}: {what}; only classifiers can be calibrated")
        raise UnsupportedModel(f"{model.name}: no output that can be calibrated{''.join(reasons)}")
    if len({readout.logits for readout in readouts}) > 1:
        names = ", ".join(readout.output for readout in readouts)
        raise UnsupportedModel(f"{model.name}: several outputs can be calibrated: {names}; choose one: --output-name")
    return readouts[0]


def behind_outputs(model: Model) -> list[tuple[Readout, Walked]]:
    """Return the tensors that maps can go behind, and what the walk learned.

    Where the graph does not tell what an output holds, and the user would have to, `Readout.holds` is empty.
    """
    found = []
    for info in model.proto.graph.output:
        walked = walk_back(model, info.name)
        try:
            found.append((_readout(model, info, None), walked))
        except Refused:
            # a forest and the like are asked about; a regressor or a detector is not
            with contextlib.suppress(Refused):
                if not purpose(model):
                    found.append((replace(_readout(model, info, "logits"), holds=""), walked))
    return found


def _readout(model: Model, info: onnx.ValueInfoProto, kind: str | None) -> Readout:
    """Read one output.

    Raises:
        Refused: it holds no scores, or the graph does not tell what they are.
    """
    tensor = info.type.tensor_type
    # ZipMap gives a sequence of maps; 0 is an output whose type the file does not say.
    scores = info.type.HasField("sequence_type") or tensor.elem_type in (0, *FLOAT_TYPES)
    if not scores:
        raise Refused("holds class labels, not scores")
    walked = walk_back(model, info.name, kind=kind)
    if info.type.sequence_type.elem_type.HasField("tensor_type") and isinstance(walked.outcome, Refusal):
        raise Refused(walked.outcome.reason)
    labels = walked.labels or _node_labels(walked.node)
    sizes = declared_sizes(model, info.name) or []
    class_axis = _class_axis(model, walked, sizes)
    plain = walked.activation == "none" and walked.holds == "logits"  # divided by their sum, columns are of one class
    if kind is None and plain and stands_for_labels(model, walked.node):
        kind = "label-probabilities"
    columns = _single_logit(info, walked) if kind == "logit" else _columns(sizes, class_axis, walked, labels)
    multi_label = _is_multi_label(kind, walked, columns, class_axis)
    if walked.activation == "sigmoid" and not multi_label:
        columns = 2
    holds = _holds(walked, kind, columns)
    if columns < 2:
        raise Refused("the number of classes is unknown: the output's last dimension is not declared")
    require_little_slack(walked.output_slack, columns, walked.activation)
    return Readout(
        output=info.name,
        logits=walked.logits,
        logits_type=FLOAT_TYPES.get(tensor.elem_type, "float32"),
        holds=holds,
        activation=walked.activation,
        follows=walked.follows,
        binary=not multi_label and (walked.activation == "sigmoid" or kind == "logit"),
        paired=walked.paired,
        n_classes=columns,
        labels=labels,
        output_step=walked.output_step,
        output_slack=walked.output_slack,
        class_axis=class_axis,
        multi_label=multi_label,
    )


def _class_axis(model: Model, walked: Walked, sizes: list[int | None]) -> int:
    """Return the axis of the classes where there are several predictions a sample, or `ONE`.

    Raises:
        Refused: the predictions are no classes of positions, or no axis is known to be that of the classes.
    """
    if not has_several(sizes):
        return ONE
    # one class a box is not one class a position
    what = purpose(model)
    if what:
        raise Refused(what)
    axis = walked.class_axis or class_axis_of(sizes)
    if axis == ONE:
        raise Refused(OPEN_AXIS)
    return axis


def _single_logit(info: onnx.ValueInfoProto, walked: Walked) -> int:
    """Return the two classes of an output that is said to hold one logit.

    Raises:
        Refused: it does not.
    """
    sizes = [d.dim_value for d in info.type.tensor_type.shape.dim]
    if walked.activation != "none" or walked.holds != "logits" or (len(sizes) > 1 and sizes[-1] > 1):
        raise Refused(f"{SINGLE_ONLY}; it has shape {shape_text(info.type.tensor_type.shape)}, {walked.activation}")
    return 2


def _holds(walked: Walked, kind: str | None, columns: int) -> str:
    """Return whether a tensor holds logits or probabilities; only where the graph does not tell, the user may."""
    if walked.activation != "none" or walked.holds != "logits":
        return walked.holds
    if columns == 1:
        raise Refused(f"holds {ONE_NUMBER}")
    if kind == "logit":
        return "logits"
    if walked.measure:  # the larger, the better, and of any size
        if kind in ("probabilities", "label-probabilities"):
            raise Refused(f"holds {walked.measure}, which are logits; leave --output-kind {kind} out")
        return "logits"
    if kind in LABEL_KINDS:
        return kind.removeprefix("label-")
    holds = kind or _known_kind(walked.node)
    if not holds:
        if _adds_up_shares(walked.node):
            raise Refused(
                f"a tree ensemble ({walked.where}), which has no linear layer, but a map can go behind it; its leaves "
                "hold shares from 0 to 1: say so with --output-kind probabilities"
            )
        raise Refused(
            f"the graph does not tell whether it holds logits or probabilities (it comes from {_from(walked)}); say "
            "so with --output-kind logits or --output-kind probabilities. If it holds neither (but an image, say), "
            "the model is no classifier"
        )
    return holds


def _from(walked: Walked) -> str:
    """Say where an output comes from, and why an integer operator there is no head."""
    if walked.node is None or not is_quantized(walked.node):
        return walked.where
    return f"{walked.where}, a {walked.node.op_type}, whose quantised weight cannot be replaced"


def _columns(sizes: list[int | None], class_axis: int, walked: Walked, labels: tuple[int | str, ...]) -> int:
    """Return the number of classes that an output declares; 0 if it declares none."""
    columns = len(labels)
    if not columns and sizes:
        columns = sizes[class_axis or -1] or 0
    if walked.paired:
        return 2
    one_axis = len(sizes) == 1 and not labels  # (N,): one number a sample
    if one_axis:
        return 1
    return columns


def _is_multi_label(kind: str | None, walked: Walked, columns: int, class_axis: int) -> bool:
    """Tell whether an output holds several labels a sample, each by itself.

    Raises:
        Refused: the user says so of an output that holds something else; or each position has several.
    """
    if kind in LABEL_KINDS and (walked.activation not in ("none", "sigmoid") or walked.holds != "logits"):
        raise Refused(f"--output-kind {kind}: the graph gives one class a sample there ({walked.activation})")
    several = kind in LABEL_KINDS or (walked.activation == "sigmoid" and not walked.paired and columns != 1)
    if kind in LABEL_KINDS and class_axis != ONE:
        raise Refused(f"--output-kind {kind}: expected an output (N, C), one number a label; this one has further axes")
    if several and class_axis != ONE:
        raise Refused(f"{columns or 'several'} {MULTI_LABEL}")
    if several and columns < 2:
        raise Refused("the number of labels is unknown: the output's last dimension is not declared")
    return several


def _known_kind(node: onnx.NodeProto | None) -> str:
    """Return what an operator's own attributes say about its scores; empty if they do not."""
    if node is None or node.domain != "ai.onnx.ml":
        return ""
    transform = next((a.s for a in node.attribute if a.name == "post_transform"), b"NONE")
    if node.op_type in ("TreeEnsembleClassifier", "LinearClassifier") and transform in (b"SOFTMAX", b"LOGISTIC"):
        return "probabilities"
    if node.op_type == "SVMClassifier" and any(a.name == "prob_a" for a in node.attribute):
        return "probabilities"
    return ""


def _adds_up_shares(node: onnx.NodeProto | None) -> bool:
    """Tell whether a node is a forest whose leaves hold shares of samples, as those of scikit-learn do."""
    if node is None or node.op_type != "TreeEnsembleClassifier":
        return False
    weights = [weight for a in node.attribute if a.name == "class_weights" for weight in a.floats]
    return bool(weights) and min(weights) >= 0 and max(weights) <= 1


def _node_labels(node: onnx.NodeProto | None) -> tuple[int | str, ...]:
    """Return what a classifier node calls its classes."""
    if node is None:
        return ()
    for attribute in node.attribute:
        if attribute.name in ("classlabels_ints", "classlabels_int64s"):
            return tuple(attribute.ints)
        if attribute.name == "classlabels_strings":
            return tuple(label.decode(errors="replace") for label in attribute.strings)
    return ()
