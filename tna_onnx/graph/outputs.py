"""What a model's output means: logits, log-probabilities or probabilities, and of how many classes.

The graph says so (what follows the head), the provenance that this tool wrote, or the user; values are never looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.dtypes import FLOAT_TYPES
from tna_onnx.graph.head import choose_head, find_heads
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import PREFIX
from tna_onnx.graph.readout import Readout
from tna_onnx.graph.rewrite import provenance
from tna_onnx.graph.stored import Refused
from tna_onnx.graph.walk import Walked, walk_back
from tna_onnx.numerics.ops import softmax

__all__ = [
    "ClassOutput",
    "choose_readout",
    "class_output",
    "find_readout",
    "output_of",
    "tensor_outputs",
]

_KINDS = {
    "none": "logits",
    "softmax": "probabilities",
    "log_softmax": "log_probabilities",
    "sigmoid": "positive_probability",
}


@dataclass(frozen=True)
class ClassOutput:
    """The graph output that classifies.

    Attributes:
        name: of the graph output.
        kind: `logits`, `log_probabilities` or `probabilities` of all classes, or `positive_probability`, one number a
            sample, of a binary head.
        n_classes: number of classes C.
        labels: what the model calls its classes, if it says so.
        mapped: the output is a sequence of maps from label to probability (ZipMap).
    """

    name: str
    kind: str
    n_classes: int
    labels: tuple[int | str, ...] = ()
    mapped: bool = False

    @property
    def width(self) -> int:
        """Numbers per sample."""
        if self.kind == "positive_probability":
            return 1
        return self.n_classes

    def in_order(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return (N, width) values with the classes in the model's order; those of maps come sorted by label."""
        values = np.asarray(values).reshape(len(values), self.width)
        if not self.mapped:
            return values
        # ONNX Runtime gives maps, whose keys the session sorts to make an array of them.
        position = {label: k for k, label in enumerate(sorted(self.labels))}
        return values[:, [position[label] for label in self.labels]]

    def probabilities(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return (N, C) probabilities from what the output gives."""
        values = np.asarray(self.in_order(values), np.float64)
        if self.kind == "positive_probability":
            return np.concatenate([1 - values, values], axis=1)
        if self.kind == "probabilities":
            return values
        return softmax(values)

    @property
    def provenance(self) -> dict[str, str]:
        """The entries from which `class_output` reads this again."""
        return {"output": self.name, "classes": str(self.n_classes)}


def tensor_outputs(model: Model) -> list[str]:
    """Return the graph outputs that are tensors with at least one axis, as far as they are declared."""
    return [
        info.name
        for info in model.proto.graph.output
        if info.type.HasField("tensor_type")
        and (not info.type.tensor_type.HasField("shape") or len(info.type.tensor_type.shape.dim) > 0)
    ]


def output_of(readout: Readout) -> ClassOutput:
    """Return the output behind a head, or behind another tensor of logits or probabilities."""
    kind = _KINDS[readout.activation]
    if readout.holds == "probabilities":
        kind = "positive_probability" if readout.binary else "probabilities"
    elif readout.paired:
        kind = "probabilities"
    return ClassOutput(readout.output, kind, readout.n_classes, readout.labels, "ZipMap" in readout.follows)


def class_output(
    model: Model, head: str | None = None, output: str | None = None, kind: str | None = None
) -> ClassOutput:
    """Return the output that classifies.

    What it means is always read from the graph. Which output it is, and behind an appended map the number of classes,
    is read from this tool's provenance, if there is any.

    Args:
        model: the model.
        head: label of the linear node, where there are several.
        output: graph output, where there are several.
        kind: `logits` or `probabilities`, where the graph does not tell.

    Raises:
        UnsupportedModel: the graph does not tell.
    """
    # What the tool wrote counts only where the graph bears it out.
    known = provenance(model)
    name = known.get("output")
    classes = known.get("classes", "")
    heads, refusals = find_heads(model)
    if head is None and name is not None and output in (None, name):
        for candidate in heads:
            if candidate.output == name:
                return output_of(candidate)
        for refusal in refusals:
            behind_map = refusal.output == name and refusal.node.startswith(f"{PREFIX}/")
            if behind_map and refusal.activation in _KINDS and classes.isdecimal():
                return _behind_map(model, name, known, int(classes))
    if head is not None or (kind is None and any(output in (None, candidate.output) for candidate in heads)):
        return output_of(choose_head(model, head, output))
    return output_of(choose_readout(model, output, kind))


def _behind_map(model: Model, name: str, known: dict[str, str], classes: int) -> ClassOutput:
    """Read an output behind a map that this tool appended."""
    walked = walk_back(model, name)
    kind = _KINDS[walked.activation]
    if walked.activation == "none":
        kind = known.get("output_kind", "logits")
    if walked.paired:
        kind = "probabilities"
    return ClassOutput(name, kind, classes, walked.labels, "ZipMap" in walked.follows)


def find_readout(model: Model, head: str | None = None, output: str | None = None, kind: str | None = None) -> Readout:
    """Return the head if there is one, else the tensor of logits or probabilities behind an output.

    Args:
        model: the model.
        head: label of the linear node; then nothing else will do.
        output: graph output, where there are several.
        kind: `logits` or `probabilities`: what that output holds, whatever computes it.

    Raises:
        UnsupportedModel: neither.
    """
    if head is None and kind is None:
        try:
            return choose_head(model, None, output)
        except UnsupportedModel:  # a map alone needs no head
            return choose_readout(model, output)
    if head is not None:
        return choose_head(model, head, output)
    return choose_readout(model, output, kind)


def choose_readout(model: Model, output: str | None = None, kind: str | None = None) -> Readout:
    """Return the tensor of logits or probabilities behind an output, whatever computes it.

    Args:
        model: the model.
        output: graph output, where there are several that may hold scores.
        kind: `logits` or `probabilities`, where the graph does not tell.

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
        raise UnsupportedModel(f"{model.name}: no output that can be calibrated{''.join(reasons)}")
    if len({readout.logits for readout in readouts}) > 1:
        names = ", ".join(readout.output for readout in readouts)
        raise UnsupportedModel(f"{model.name}: several outputs can be calibrated: {names}; choose one: --output-name")
    return readouts[0]


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
    walked = walk_back(model, info.name)
    holds = _holds(walked, kind)
    labels = walked.labels or _node_labels(walked.node)
    columns = _columns(info, walked, labels)
    if columns < 2:
        raise Refused("the number of classes is unknown: the output's last dimension is not declared")
    return Readout(
        output=info.name,
        logits=walked.logits,
        logits_type=FLOAT_TYPES.get(tensor.elem_type, "float32"),
        holds=holds,
        activation=walked.activation,
        follows=walked.follows,
        binary=walked.activation == "sigmoid",
        paired=walked.paired,
        n_classes=columns,
        labels=labels,
        output_step=walked.output_step,
        output_slack=walked.output_slack,
    )


def _holds(walked: Walked, kind: str | None) -> str:
    """Return whether a tensor holds logits or probabilities; only where the graph does not tell, the user may."""
    if walked.activation != "none" or walked.holds != "logits":
        return walked.holds
    holds = kind or _known_kind(walked.node)
    if not holds:
        raise Refused(
            f"the graph does not tell whether it holds logits or probabilities (it comes from {walked.where}); say "
            "so with --output-kind logits or --output-kind probabilities"
        )
    return holds


def _columns(info: onnx.ValueInfoProto, walked: Walked, labels: tuple[int | str, ...]) -> int:
    """Return the number of classes that an output declares; 0 if it declares none."""
    sizes = [d.dim_value for d in info.type.tensor_type.shape.dim]
    if len(sizes) > 2 and any(size != 1 for size in sizes[1:-1]):
        raise Refused(f"has {len(sizes)} axes: several predictions a sample are not supported; expected (N, C)")
    columns = len(labels) or next(reversed(sizes), 0)
    if walked.paired:
        return 2
    if walked.activation != "sigmoid":
        return columns
    one_axis = len(sizes) == 1 and not labels  # (N,): one number a sample
    if columns != 1 and not one_axis:
        raise Refused(
            f"{columns or 'several'} logits with a Sigmoid: multi-label classifiers are not supported, expected "
            "one logit with a Sigmoid"
        )
    return 2


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
