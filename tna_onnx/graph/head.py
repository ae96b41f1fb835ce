"""The linear head of a model, or the reason why a graph output has none: a walk backwards, by these rules.

1. Softmax, LogSoftmax or Sigmoid, at most one. ZipMap, 1 - p beside p, and division by the sum may come after it.
2. Identity, Cast, Dropout, changes of shape, selections and averages keep the scores linear in the weight.
3. Mul and Div by a constant of one element, or one per class, scale what lies behind them.
4. Add of a constant is the bias, once, in front of a layer without one.
5. Other functions, masks, quantisation, numbers computed elsewhere: only the graph computes the logits (`Head.linear`).
6. The linear layer (`graph.linear`, sums of them `walk.layer`); anything else is refused with node and reason.
"""

from collections.abc import Sequence
from dataclasses import replace

import onnx

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.bounds import attribute_of
from tna_onnx.graph.cut import ancestors
from tna_onnx.graph.linear import is_linear
from tna_onnx.graph.load import Model
from tna_onnx.graph.readout import Head
from tna_onnx.graph.tensors import FLOAT_TYPES
from tna_onnx.graph.walk.loop import walk_back
from tna_onnx.graph.walk.steps import Refusal


class NoHead(UnsupportedModel):
    """No output leads to a linear head; a map alone may do without."""


class SeveralHeads(UnsupportedModel):
    """There are several heads, or outputs that may have one, and nothing says which one is meant."""


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


BOXES = "holds boxes, or one prediction for each of them: no classes of a sample"


def choose_head(model: Model, node: str | None = None, output: str | None = None, kind: str | None = None) -> Head:
    """Return the one head of a model; of several outputs behind it, the first (logits before probabilities).

    `node`: label of the linear node, where there are several, or its graph output.
    """
    heads, refusals = find_heads(model, kind)
    if output is not None:
        if output not in model.outputs:
            raise UnsupportedModel(f"{model.name}: no output '{output}'; the model has {', '.join(model.outputs)}")
        heads = tuple(head for head in heads if head.output == output)
        refusals = tuple(refusal for refusal in refusals if refusal.output == output)
    heads = _as_labels(heads, refusals)
    if node is None and output is None:
        heads = _last(model, heads)
        # labels, such as gates and attributes, give way to a head that gives each sample one class
        heads = tuple(head for head in heads if not head.multi_label) or heads
        _refuse_doubt(model, heads, refusals)
    by_node = {head.node: head for head in reversed(heads)}  # reversed: of several outputs, the first stays
    if node is not None and node not in by_node:
        node = next((head.node for head in heads if head.output == node), node)
    if node is not None:
        return _named(model, node, by_node, refusals)
    if not by_node:
        raise NoHead(
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


def _named(model: Model, node: str, by_node: dict[str, Head], refusals: Sequence[Refusal]) -> Head:
    if node in by_node:
        return by_node[node]
    # of the output that was named; of all where none of them has a head
    own = [refusal for refusal in refusals if node in (refusal.output, refusal.node)]
    subject = f"output '{node}' has no linear head" if node in model.outputs else f"no linear head is called '{node}'"
    hint = f"the model has {', '.join(by_node) or 'none'}"
    raise UnsupportedModel(f"{model.name}: {subject}; {hint}{_reasons(own or ([] if by_node else refusals))}")


def _reasons(refusals: Sequence[Refusal]) -> str:
    return "".join(f"\n  output '{r.output}', at {r.node}: {r.reason}" for r in refusals)


def _last(model: Model, heads: tuple[Head, ...]) -> tuple[Head, ...]:
    """Drop linear layers that another head is computed from: hidden layers whose activations are outputs too."""
    trunk = {k for head in heads for name in head.parts or (head.features,) for k in ancestors(model, name)}
    return tuple(head for head in heads if trunk.isdisjoint(head.readers))


def _refuse_doubt(model: Model, heads: tuple[Head, ...], refusals: tuple[Refusal, ...]) -> None:
    """Refuse to choose while an output that was not understood may be the classifier's.

    Raises SeveralHeads: a refused output holds numbers that a linear layer makes, not on the way to the head found.
    """
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


_COORDINATES = ("loc", "locs", "locations", "coords", "coordinates", "rects", "deltas")


def box_output(model: Model) -> str:
    """Return the output that holds boxes, as its name says: (N, 4) or (N, boxes, 4), beside others; empty if none does.

    The shape alone says too little: another task may have four classes.
    """
    return next((name for name in model.outputs if is_box_output(model, name)), "")


def is_box_output(model: Model, output: str) -> bool:
    """Whether an output holds boxes."""
    name = output.lower()
    if "box" not in name and name not in _COORDINATES:
        return False
    sizes = model.sizes(output) or [None]
    return len(sizes) in (2, 3) and sizes[-1] == 4 and len(model.outputs) > 1


_BOXES = ("NonMaxSuppression", "RoiAlign", "MaxRoiPool")
_SEARCHED = ("boxes", "bboxes", "dets", "detection_boxes", "pred_boxes")


def purpose(model: Model) -> str:
    """Return what a refused model is, and what follows from that; empty if its file does not tell."""
    operators = [node.op_type for node in model.proto.graph.node]
    outputs = [info.name for info in model.proto.graph.output]
    names = [name.lower() for name in outputs]
    box = next((kind for kind in operators if kind in _BOXES), None)
    boxed = next((name for name in names if name in _SEARCHED), None)
    if box or boxed:
        source = box or f"output '{boxed}'"
        return f"this is a detector ({source}): it gives boxes, and no one distribution over classes for a sample"
    box_name = box_output(model)
    if box_name and len(model.sizes(box_name) or ()) == 3:
        return f"this is a detector (boxes in '{box_name}' beside scores): it gives no one distribution for a sample"
    boxes = next((info.name for info in model.proto.graph.output if _boxes_beside_scores(model, info)), None)
    if boxes is not None:
        return f"this is a detector (boxes beside scores in '{boxes}'): it gives no one distribution for a sample"
    unit_vectors = (
        node for node in model.proto.graph.node if node.op_type == "LpNormalization" and attribute_of(node, "p", 2) == 2
    )
    if any(set(node.output) & set(outputs) for node in unit_vectors):
        return "this is an embedding model (LpNormalization): it gives unit vectors, and no scores of classes"
    regressor = next((kind for kind in operators if kind.endswith("Regressor")), None)
    classifier = any(kind.endswith("Classifier") or kind == "ZipMap" for kind in operators)
    # one number of another operator may be a logit, and the refusal asks for that
    if classifier or regressor is None or not _gives_one_number(model):
        return ""
    return f"this is a regressor ({regressor}): it gives one number a sample, and no classes with confidences"


# What changes the shape alone, and what takes a part.
_MOVED = frozenset({"Cast", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"})
_MAX_JOINS = 32  # YOLO joins three scales of three parts


def _boxes_beside_scores(model: Model, info: onnx.ValueInfoProto) -> bool:
    """Whether an output (N, 4 + C, A), or (N, A, 4 + C), puts sigmoids beside other numbers, as YOLO does."""
    dims = info.type.tensor_type.shape.dim
    if len(dims) != 3:
        return False
    pending = [info.name]
    joined = sigmoids = other_operators = 0
    while pending and joined < _MAX_JOINS:
        index = model.producers.get(pending.pop())
        if index is None:
            return False
        node = model.proto.graph.node[index]
        if node.op_type == "Concat":
            joined += 1
            pending += node.input
        elif node.op_type in _MOVED:
            pending.append(node.input[0])
        elif node.op_type == "Sigmoid":
            sigmoids += 1
        else:
            other_operators += 1
    return bool(joined and sigmoids and other_operators)


def _gives_one_number(model: Model) -> bool:
    """Whether every output is a float tensor with one number a sample."""
    for info in model.proto.graph.output:
        tensor = info.type.tensor_type
        if not info.type.HasField("tensor_type") or tensor.elem_type not in FLOAT_TYPES:
            return False
        # skl2onnx declares (N, 1), and other exporters (N,)
        if any(dim.dim_value != 1 for dim in tensor.shape.dim[1:]):
            return False
    return True
