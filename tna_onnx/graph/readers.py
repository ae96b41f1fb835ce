"""Who reads the scores besides the output that classifies, and what becomes of them behind a map.

`label_outputs` are the outputs that hold the class of each sample. Behind a map (`OutputChange`), what is `kept` is
computed from the old scores s, by copies of the nodes if need be. `likeliest` follows the new scores s' by itself;
another label becomes the name of the largest s'. `can_insert` says whether a map may go there, `can_scale` whether the
layer may be scaled: whoever reads scores in front of a map would see the old ones.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.bounds import attribute_of, subgraph_inputs
from tna_onnx.graph.linear import class_labels
from tna_onnx.graph.load import SHAPE_OR_TYPE, Model, tells_damage
from tna_onnx.graph.nodes import NodeOps
from tna_onnx.graph.readout import CLASSES_LAST, ONE, ClassOutput, Head, Readout
from tna_onnx.graph.tensors import FLOAT_TYPES

_TEXTS_AND_WHOLE = (TensorProto.INT64, TensorProto.INT32, TensorProto.STRING)

# What takes classes by their places, and which inputs these are: (classes, places).
_TAKERS = ("ArrayFeatureExtractor", "Gather")

# More nodes between a choice of classes and the output are no mere change of form.
_MAX_PASSED = 12


def tensor_outputs(model: Model) -> list[str]:
    """Return the graph outputs that are tensors with at least one axis, as far as they are declared."""
    return [
        info.name
        for info in model.proto.graph.output
        if info.type.HasField("tensor_type")
        and (not info.type.tensor_type.HasField("shape") or len(info.type.tensor_type.shape.dim) > 0)
    ]


@dataclass(frozen=True)
class LabelOutput:
    """A graph output with one class a sample."""

    name: str  # of the graph output
    classes: tuple[int | str, ...]  # what it calls the classes, in their order; empty where nothing tells
    first: bool  # the class of the largest score; else a classifier of its own kind decides, as an SVM does

    def places(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return the places (N,) of classes by their names; -1 for what is none of them."""
        place = {str(name): c for c, name in enumerate(self.classes)}
        texts = (value.decode() if isinstance(value, bytes) else str(value) for value in values.reshape(-1).tolist())
        return np.array([place.get(text, -1) for text in texts], np.int64)


@dataclass(frozen=True)
class OutputChange:
    """What is done about outputs beside the one that classifies."""

    kept: tuple[str, ...] = ()  # outputs that stay as they are: labels, or what else is computed from the scores
    likeliest: tuple[str, ...] = ()  # label outputs that become the likeliest class
    classes: tuple[int | str, ...] = ()  # what these call the classes, in their order


UNCHANGED = OutputChange()
"""Nothing is done: outputs follow the scores that they are computed from."""


def label_candidates(model: Model, output: str) -> list[str]:
    """Return the graph outputs that may hold labels: tensors of whole numbers or texts, beside the one of scores."""
    numbers = {info.name for info in model.proto.graph.output if info.type.tensor_type.elem_type in FLOAT_TYPES}
    return [name for name in tensor_outputs(model) if name not in (output, *numbers)]


@tells_damage
def label_outputs(model: Model, output: str, n_classes: int) -> list[LabelOutput]:
    """Return the label outputs that the graph shows: an ArgMax, or a classifier's own labels, on the way to `output`.

    `output`: the graph output that classifies, into `n_classes` classes.
    """
    types = {info.name: info.type.tensor_type.elem_type for info in model.proto.graph.output}
    names = [name for name in label_candidates(model, output) if types[name] in _TEXTS_AND_WHOLE]
    labels = (_label(model, name, output, n_classes) for name in names)
    return [label for label in labels if label is not None]


def answer_of(model: Model, output: ClassOutput) -> LabelOutput | None:
    """Return the output with the class of each sample, as the graph shows it; None where there is none."""
    if output.multi_label or output.several:
        return None
    return next(iter(label_outputs(model, output.name, output.n_classes)), None)


def _label(model: Model, name: str, output: str, n_classes: int) -> LabelOutput | None:
    """Return an output with what it calls the classes; None where it holds no labels that the graph shows."""
    scores = model.ancestors(output)
    classes: tuple[int | str, ...] = tuple(range(n_classes))
    tensor = name
    for _ in range(_MAX_PASSED):
        node = model.producer(tensor)
        if node is None:
            return None
        if node.op_type in _TAKERS:
            stored = model.constant_tensor(node.input[0])
            if stored is None:
                return None
            values = onnx.numpy_helper.to_array(stored).reshape(-1).tolist()
            classes = tuple(value.decode() if isinstance(value, bytes) else value for value in values)
            tensor = node.input[1]
        elif node.op_type in SHAPE_OR_TYPE:
            tensor = node.input[0]
        elif node.op_type == "ArgMax":
            related = model.producers.get(node.input[0]) in scores and attribute_of(node, "axis", 0) != 0
            return LabelOutput(name, classes, first=True) if related and len(classes) == n_classes else None
        elif node.domain == "ai.onnx.ml" and tensor == node.output[0] and node.op_type.endswith("Classifier"):
            named = class_labels(node)
            of_scores = model.producers[tensor] in scores and len(named) == n_classes
            return LabelOutput(name, named, first=False) if of_scores else None
        else:
            return None
    return None


def computed_from(model: Model, name: str, tensor: str) -> bool:
    """Whether an output is computed from a tensor."""
    return model.producers.get(tensor) in model.ancestors(name) and bool(_path(model, name, tensor))


def _path(model: Model, name: str, tensor: str) -> list[int]:
    """Return the nodes between a tensor and an output that is computed from it, in order; empty where it is not."""
    return _spread(model, {tensor}, sorted(model.ancestors(name)), sizes=True)[0]


def _spread(
    model: Model, tensors: Iterable[str], nodes: Iterable[int], *, sizes: bool = False
) -> tuple[list[int], set[str]]:
    """Return which nodes compute something from tensors, in order, and these tensors with all that is computed.

    `sizes`: whether Shape and Size count, which say how many samples there are, and nothing of their scores.
    """
    computed = set(tensors)
    path = []
    for k in nodes:
        node = model.proto.graph.node[k]
        counts = sizes or node.op_type not in ("Shape", "Size")
        if counts and computed.intersection((*node.input, *subgraph_inputs(node))):
            computed.update(filter(None, node.output))
            path.append(k)
    return path, computed


def _results(model: Model, nodes: Iterable[int]) -> set[str]:
    return {name for k in nodes for name in model.proto.graph.node[k].output if name}


def _tail_nodes(model: Model, head: Head) -> list[int]:
    """Return the indices of the linear node, or nodes, and of all between them and the logits, in order."""
    nodes = model.proto.graph.node
    after, _ = _spread(model, _results(model, head.readers), range(len(nodes)), sizes=True)
    needed = {head.logits}
    tail = []
    for k in sorted({*head.readers, *after}, reverse=True):
        if needed.intersection(nodes[k].output):
            needed.update(nodes[k].input)
            tail.append(k)
    return tail[::-1]


@dataclass(frozen=True, eq=False)
class KeptPath:
    """The nodes that go on computing outputs from the raw scores."""

    copied: tuple[int, ...]  # nodes that others need too
    edited: tuple[int, ...]  # nodes that nothing but these outputs needs
    renamed: dict[str, str]  # tensor -> what takes its place for these nodes
    # output -> the new name of the tensor that others go on reading; the output's own name is that of a copy
    moved: dict[str, str]

    def copies(self, model: Model, block: str) -> list[onnx.NodeProto]:
        """Return the copies, in order."""
        nodes = []
        for k in self.copied:
            node = onnx.NodeProto.FromString(model.proto.graph.node[k].SerializeToString())
            node.name = f"{block}/label_{k}"
            node.output[:] = [self.renamed.get(name, name) for name in node.output]
            self.rename_reads(node)
            nodes.append(node)
        return nodes

    def rename_reads(self, node: onnx.NodeProto) -> None:
        """Let a node read the tensors under their new names, in graphs of its own too."""
        node.input[:] = [self.renamed.get(name, name) for name in node.input]
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                for inner in graph.node:
                    self.rename_reads(inner)
                for info in graph.output:
                    info.name = self.renamed.get(info.name, info.name)


def kept_path(model: Model, names: Collection[str], tensor: str, raw: str, block: str) -> KeptPath:
    """Return what keeps outputs as they are behind a map: their nodes read `raw` in place of the tensor of scores."""
    path = sorted({k for name in names for k in _path(model, name, tensor)})
    # what outputs of other names are computed from
    shared = {k for name in model.outputs if name not in names for k in model.ancestors(name)}
    nodes = model.proto.graph.node
    copied = [k for k in path if k in shared]
    results = [str(name) for k in copied for name in nodes[k].output if name]
    moved = {name: f"{block}/new/{name}" for name in results if name in names}
    renamed = {tensor: raw, **{new: name for name, new in moved.items()}}
    renamed |= {name: f"{block}/label/{name}" for name in results if name not in names}
    return KeptPath(tuple(copied), tuple(k for k in path if k not in shared), renamed, moved)


def write_likeliest(model: Model, change: OutputChange, ops: NodeOps, scores: str) -> None:
    """Write nodes that give labels the class of the largest of (N, C) scores, in the form that they had."""
    place = ops.first_class(scores)
    for name in change.likeliest:
        info = next(info for info in model.proto.graph.output if info.name == name)
        axes = len(model.sizes(name) or [None])
        shape = [-1, *[1] * (axes - 1)]
        ops.class_names(place, change.classes, info.type.tensor_type.elem_type, shape, name)


class CannotInsert(UnsupportedModel):
    """A map has no place behind the logits. `reason` says why, without the advice on other maps."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(f"{reason}; {advice}")
        self.reason = reason


def can_scale(model: Model, head: Head) -> bool:
    """Whether scaling weight and bias scales the logits, and nothing reads the scores in front of the bias."""
    if not head.homogeneous:
        return False
    tail = _tail_nodes(model, head)
    end = max(_added_at(model, tail, place.reader) for place in head.places)
    scores = _scores(model, [k for k in tail if k < end], head.readers)
    reads = _reads(model, tail, scores)
    return all(model.uses.get(name, 0) == reads[name] for name in scores)


def _added_at(model: Model, tail: Iterable[int], reader: int) -> int:
    """Return the index of the node that adds a bias; an Expand may come between the bias and that node."""
    nodes = model.proto.graph.node
    if nodes[reader].op_type != "Expand":
        return reader
    return next(k for k in tail if nodes[reader].output[0] in nodes[k].input)


def can_insert(model: Model, readout: Readout, *, keeps_order: bool, kept: Collection[str] = ()) -> bool:
    """Whether a map may go behind the logits: nothing reads the scores in front of it, but for outputs that stay."""
    try:
        require_no_other_readers(model, readout, keeps_order=keeps_order, kept=kept)
    except CannotInsert:
        return False
    return True


def require_no_other_readers(model: Model, readout: Readout, *, keeps_order: bool, kept: Collection[str] = ()) -> None:
    """Refuse a map behind tensors that others read too: they would see scores without the map.

    `keeps_order`: the map never changes which class comes first, so labels from in front of it stay right. `kept`:
    outputs that are to see scores without the map.
    """
    if readout.logits in model.inputs:
        return  # only those who read it on the way to the output will read the map
    tail, reads = _read_scores(model, readout)
    for name in sorted(reads.keys() - {readout.logits}):
        if model.uses.get(name, 0) <= reads[name]:
            continue  # nobody but the tail itself
        missed = _reached(model, {name}, tail) - {*kept}
        if not missed:
            continue
        labels = _argmaxes(model, name, readout)
        node = model.producer(name)
        # a classifier node has its scores as the last output, behind its labels
        classified = node is not None and node.domain == "ai.onnx.ml" and name != node.output[-1]
        if not classified and not missed <= _reached(model, labels, tail):
            fold = ""
            if isinstance(readout, Head) and can_scale(model, readout) and not kept:
                fold = ", or ts, which needs no new nodes"
            raise CannotInsert(
                f"{model.name}: '{name}', between the linear layer and '{readout.logits}', is read elsewhere too and "
                "would miss an appended map",
                f"use --map none{fold}",
            )
        if not keeps_order:
            raise CannotInsert(
                f"{model.name}: '{min(missed)}' is made of labels from '{name}', in front of an appended map, and "
                "would not follow it",
                "use --map ts, ets or none, which never change the order of the classes",
            )


def outputs_of_scores(model: Model, readout: Readout) -> list[str]:
    """Return the graph outputs that are computed from the scores, or hold them; none where these are an input."""
    if readout.logits in model.inputs:
        return []
    tail, reads = _read_scores(model, readout)
    reached = _reached(model, reads, tail)
    return [name for name in model.outputs if name in reached]


def _read_scores(model: Model, readout: Readout) -> tuple[Sequence[int], dict[str, int]]:
    """Return the nodes up to the logits, and of each tensor of scores that they make how often they read it."""
    tail = [model.producers[readout.logits]]
    first: tuple[int, ...] = (tail[0],)
    if isinstance(readout, Head):
        tail = _tail_nodes(model, readout)
        first = readout.readers
    reads = _reads(model, tail, _scores(model, tail, first))
    columns = _results(model, [k for k in tail if model.proto.graph.node[k].op_type == "Split"])
    # the other columns of a layer are no scores of this head
    other_columns = {name for name in columns if name != readout.logits and not reads.get(name)}
    return tail, {name: count for name, count in reads.items() if name not in other_columns}


def _reached(model: Model, tensors: Iterable[str], tail: Collection[int]) -> set[str]:
    """Return the graph outputs that are among some tensors, or that nodes besides those of the tail compute of them."""
    nodes = [k for k in range(len(model.proto.graph.node)) if k not in tail]
    return _spread(model, tensors, nodes)[1].intersection(model.outputs)


def _scores(model: Model, tail: Sequence[int], first: Collection[int]) -> set[str]:
    """Return the outputs of the tail that hold scores: those of the first nodes, and all computed from them."""
    return _spread(model, _results(model, {*first} & {*tail}), tail)[1]


def _reads(model: Model, tail: Iterable[int], scores: Iterable[str]) -> dict[str, int]:
    """Count how often the nodes of the tail read each of the tensors `scores`."""
    read = Counter(name for k in tail for name in model.proto.graph.node[k].input)
    return {name: read[name] for name in scores}


def _argmaxes(model: Model, name: str, readout: Readout) -> set[str]:
    """Return labels that are read off a tensor: the place of the largest score of each prediction."""
    readers = [node for node in model.proto.graph.node if node.op_type == "ArgMax" and name in node.input]
    axes = _class_axes(model, name, readout)
    return {str(node.output[0]) for node in readers if attribute_of(node, "axis", 0) in axes}


def _class_axes(model: Model, name: str, readout: Readout) -> set[int]:
    """Return the values of an `axis` attribute that mean the class axis of a tensor."""
    sizes = model.sizes(name) or []
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
