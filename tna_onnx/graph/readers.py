"""Who else reads the scores between the linear layer and the logits, and what that rules out.

A map behind the logits, or a scaled bias, changes the logits; whoever reads the scores in front of them would see the
old ones.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.cut import tail_nodes
from tna_onnx.graph.load import Model
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.several import CLASSES_LAST, ONE, declared_sizes
from tna_onnx.graph.traverse import subgraph_inputs

__all__ = ["can_insert", "can_scale", "require_no_other_readers"]


def can_scale(model: Model, head: Head) -> bool:
    """Whether scaling weight and bias scales the logits, and nothing reads the scores in front of the bias."""
    if not head.homogeneous:
        return False
    tail = tail_nodes(model, head)
    end = head.stored_weight.reader
    if head.stored_bias is not None:
        end = _added_at(model, tail, head.stored_bias.reader)
    scores = _scores(model, [k for k in tail if k < end])
    reads = _reads(_nodes(model, tail), scores)
    return all(model.uses.get(name, 0) == reads[name] for name in scores)


def _added_at(model: Model, tail: Iterable[int], reader: int) -> int:
    """Return the index of the node that adds a bias, which an Expand may read before it."""
    nodes = model.proto.graph.node
    if nodes[reader].op_type != "Expand":
        return reader
    return next(k for k in tail if nodes[reader].output[0] in nodes[k].input)


def can_insert(model: Model, readout: Readout, *, keeps_order: bool) -> bool:
    """Whether a map may go behind the logits: nothing reads the scores in front of it."""
    try:
        require_no_other_readers(model, readout, keeps_order=keeps_order)
    except UnsupportedModel:
        return False
    return True


def require_no_other_readers(model: Model, readout: Readout, *, keeps_order: bool) -> None:
    """Refuse a map behind tensors that others read too: they would see scores without the map.

    Args:
        model: the model.
        readout: its head, or its tensor of logits or probabilities.
        keeps_order: the map never changes which class comes first, so labels from in front of it stay right.

    Raises:
        UnsupportedModel: such a tensor lies between the head and its logits, or the labels come from there.
    """
    indices = [model.producers[readout.logits]]
    if isinstance(readout, Head):
        indices = tail_nodes(model, readout)
    tail = _nodes(model, indices)
    scores = _scores(model, indices)
    reads = _reads(tail, scores)
    for name in sorted(scores - {readout.logits}):
        if model.uses.get(name, 0) <= reads[name]:
            continue  # nobody but the tail itself
        beside = model.uses[name] - reads[name]
        if not _are_labels(model, name) and _argmaxes(model, name, readout) != beside:
            raise UnsupportedModel(
                f"{model.name}: '{name}', between the linear layer and '{readout.logits}', is read elsewhere too and "
                f"would miss an appended map; use --map none{_or_fold(model, readout)}"
            )
        if not keeps_order:
            raise UnsupportedModel(
                f"{model.name}: '{name}', {_what(model, name)}, would not follow an appended map; use --map ts, ets or "
                "none, which never change the order of the classes"
            )


def _scores(model: Model, tail: Iterable[int]) -> set[str]:
    """Return what holds scores of the tensors that these nodes give: the first node's, and what is made of them.

    How many samples there are (Shape, Size) says nothing of their scores, nor does a bias that is repeated so often.
    """
    scores: set[str] = set()
    for node in _nodes(model, tail):
        sized = node.op_type in ("Shape", "Size")
        if not scores or (not sized and scores.intersection((*node.input, *subgraph_inputs(node)))):
            scores.update(name for name in node.output if name)
    return scores


def _nodes(model: Model, indices: Iterable[int]) -> list[onnx.NodeProto]:
    return [model.proto.graph.node[k] for k in indices]


def _reads(nodes: Iterable[onnx.NodeProto], scores: Iterable[str]) -> dict[str, int]:
    """Count how often some nodes read each of some tensors."""
    reads = dict.fromkeys(scores, 0)
    for node in nodes:
        for name in node.input:
            if name in reads:
                reads[name] += 1
    return reads


def _are_labels(model: Model, name: str) -> bool:
    """Whether a tensor holds the labels of a classifier node, which has its scores as the last output."""
    node = model.producer(name)
    return node is not None and node.domain == "ai.onnx.ml" and name != node.output[-1]


def _argmaxes(model: Model, name: str, readout: Readout) -> int:
    """Count the nodes that read labels off a tensor: the place of the largest score of each prediction."""
    readers = [node for node in model.proto.graph.node if node.op_type == "ArgMax" and name in node.input]
    axes = _class_axes(model, name, readout)
    return sum(any(a.name == "axis" and a.i in axes for a in node.attribute) for node in readers)


def _class_axes(model: Model, name: str, readout: Readout) -> set[int]:
    """Return what an attribute may call the axis of the classes: of (N, C), as far as the file does not say more."""
    sizes = declared_sizes(model, name) or []
    # over the positions of a sample, the largest score is no label
    if readout.class_axis == CLASSES_LAST:
        return {CLASSES_LAST, len(sizes) - 1}
    if readout.class_axis != ONE:
        return {readout.class_axis}
    if len(sizes) < 3:
        return {1, -1}
    # A convolution gives (N, C, 1, 1); a size that is not declared is None.
    places = [k for k, size in enumerate(sizes) if k and size == readout.n_classes]
    return {axis for k in places if len(places) == 1 for axis in (k, k - len(sizes))}


def _what(model: Model, name: str) -> str:
    if _are_labels(model, name):
        return "the labels of the same node"
    return "from which labels are read"


def _or_fold(model: Model, readout: Readout) -> str:
    if isinstance(readout, Head) and can_scale(model, readout):
        return ", or ts, which needs no new nodes"
    return ""
