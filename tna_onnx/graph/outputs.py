"""What a model's output means: logits, log-probabilities or probabilities, and of how many classes.

The meaning comes from the nodes after the head, from this package's provenance, or from the user, never from values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.cut import mapped_logits
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import PREFIX, head_provenance
from tna_onnx.graph.readout import CLASSES_FIRST, CLASSES_LAST, ONE, OPEN_AXIS, Readout, class_axis_of, has_positions
from tna_onnx.graph.scores import AMBIGUOUS_SCORES, choose_head, find_heads, find_readout
from tna_onnx.graph.walk.loop import walk_back
from tna_onnx.numerics.ops import sigmoid, softmax
from tna_onnx.numerics.scores import NotProbabilities, are_shares, distributions, resolution_of

_KINDS = {
    "none": "logits",
    "softmax": "probabilities",
    "log_softmax": "log_probabilities",
    "sigmoid": "positive_probability",
}

KIND_WORDS = {
    "logits": "logits",
    "log_probabilities": "logits",
    "probabilities": "probabilities",
    "positive_probability": "probability",
    "positive_logit": "logit",
    "label_logits": "label-logits",
    "label_probabilities": "label-probabilities",
}
"""What an output holds (`ClassOutput.kind`) -> the word of `--output-kind` for it."""

# Kinds that the graph alone cannot tell.
STATED_KINDS = {kind: KIND_WORDS[kind] for kind in ("positive_logit", "label_logits")}
"""What an output holds that its graph does not show -> the word for it of `--output-kind`."""

_LABEL_KINDS = ("label_logits", "label_probabilities")


@dataclass(frozen=True)
class ClassOutput:
    """The graph output that classifies."""

    name: str  # of the graph output
    # `logits`, `log_probabilities` or `probabilities` of all classes; or one number a sample of a binary head,
    # `positive_probability` or `positive_logit`; or of several labels, each of which holds or does not by itself,
    # `label_probabilities` or `label_logits`
    kind: str
    n_classes: int  # number of classes C
    labels: tuple[int | str, ...] = ()  # what the model calls its classes, if it says so
    mapped: bool = False  # the output is a sequence of maps from label to probability (ZipMap)
    class_axis: int = ONE  # of several predictions a sample, 1 or -1; 0 for one prediction a sample
    quantum: float | None = 0.0  # see `Readout`

    @property
    def resolution(self) -> float:
        """See `Readout`."""
        return resolution_of(self.quantum, 2 if self.multi_label else self.n_classes)

    @property
    def several(self) -> bool:
        """Whether the output holds several predictions a sample."""
        return self.class_axis != ONE

    @property
    def multi_label(self) -> bool:
        """Whether each class is a label that holds or does not by itself."""
        return self.kind in _LABEL_KINDS

    @property
    def width(self) -> int:
        """Numbers per sample."""
        if self.kind in ("positive_probability", "positive_logit"):
            return 1
        return self.n_classes

    def in_order(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return (N, width) values with the classes in the model's order; those of maps come sorted by label.

        Raises UnsupportedModel: there are more or fewer than the file says.
        """
        values = np.asarray(values)
        expected = (len(values), self.width)
        if values.size != len(values) * self.width:
            raise UnsupportedModel(f"output '{self.name}' has shape {values.shape}; it declares {expected}")
        values = values.reshape(expected)
        if not self.mapped:
            return values
        # ONNX Runtime gives maps, whose keys the session sorts to make an array of them.
        position = {label: k for k, label in enumerate(sorted(self.labels))}
        return values[:, [position[label] for label in self.labels]]

    def probabilities(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return (N, C) probabilities from what the output gives.

        Raises NotProbabilities: the output should hold probabilities, and does not.
        """
        values = self.in_order(values)
        self.require_probabilities(values)
        values = values.astype(np.float64)
        if self.kind == "positive_probability":
            return np.concatenate([1 - values, values], axis=1)
        if self.kind in ("probabilities", "label_probabilities"):
            return self.normalized(values)
        if self.multi_label:
            return sigmoid(values)
        return softmax(self.class_logits(values))

    def normalized(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return (N, C) probabilities that add up to 1, where they come in steps: each was rounded by itself."""
        if self.kind == "probabilities" and self.quantum:
            return np.asarray(values / values.sum(axis=1, keepdims=True))
        return values

    def require_probabilities(self, values: NDArray[Any]) -> None:
        """Refuse (N, width) values that are no probabilities where the output should hold some; NaN passes.

        Raises NotProbabilities.
        """
        expected = f"output '{self.name}' should hold probabilities, but some values"
        if self.kind == "probabilities" and not distributions(values, self.quantum):
            raise NotProbabilities(f"{expected} are negative, or do not add up to 1; {AMBIGUOUS_SCORES}")
        if self.kind == "positive_probability" and not are_shares(values):
            raise NotProbabilities(f"{expected} lie outside of 0 to 1; {AMBIGUOUS_SCORES}")
        if self.kind == "label_probabilities" and not are_shares(values):
            raise NotProbabilities(
                f"{expected} lie outside of 0 to 1; if they are logits, say --output-kind label-logits"
            )

    def predicted(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return the predicted classes (N,) of what the output gives; of labels (N, C), 1 for each predicted."""
        p = self.probabilities(values)
        if self.multi_label:
            return (p > 0.5).astype(np.int64)
        classes: NDArray[np.int64] = np.argmax(p, axis=1)
        return classes

    def class_logits(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return (N, C) logits from (N, width) of them: the first class of a single logit has 0."""
        if self.kind == "positive_logit":
            return np.concatenate([np.zeros_like(values), values], axis=1)
        return values

    @property
    def provenance(self) -> dict[str, str]:
        """The entries from which `class_output` reads this again."""
        entries = {"output": self.name, "classes": str(self.n_classes)}
        if self.several:
            entries["class_axis"] = str(self.class_axis)
        return entries


def tensor_outputs(model: Model) -> list[str]:
    """Return the graph outputs that are tensors with at least one axis, as far as they are declared."""
    return [
        info.name
        for info in model.proto.graph.output
        if info.type.HasField("tensor_type")
        and (not info.type.tensor_type.HasField("shape") or len(info.type.tensor_type.shape.dim) > 0)
    ]


def decision_outputs(model: Model, names: Mapping[str, str]) -> dict[str, str]:
    """Return those of the outputs, role -> name, that the graph has, with the type of a score or of a decision."""
    types = {info.name: info.type.tensor_type.elem_type for info in model.proto.graph.output}
    scores: dict[str, tuple[int, ...]] = {"confidence": (TensorProto.FLOAT,), "ood": (TensorProto.FLOAT,)}
    scores["decision"] = (TensorProto.INT64, TensorProto.BOOL)
    return {role: name for role, name in names.items() if types.get(name) in scores.get(role, (TensorProto.BOOL,))}


def require_rows(values: NDArray[Any], samples: int, tensor: str) -> None:
    """Refuse what is not one row a sample. `tensor`: what messages call it."""
    rows = np.atleast_1d(values).shape[0]
    if rows != samples:
        noun = "row" if rows == 1 else "rows"
        raise UnsupportedModel(
            f"{tensor} gives {rows:,} {noun} for {samples:,} samples; expected a row for each: a model that drops, "
            "repeats or detects things (Compress, NonMaxSuppression) has no scores of samples"
        )


def output_of(readout: Readout) -> ClassOutput:
    """Return the output behind a head, or behind another tensor of logits or probabilities."""
    kind = _KINDS[readout.activation]
    if readout.multi_label:
        probabilities = readout.activation == "sigmoid" or readout.holds == "probabilities"
        kind = "label_probabilities" if probabilities else "label_logits"
    elif readout.holds == "probabilities":
        kind = "positive_probability" if readout.binary else "probabilities"
    elif readout.paired:
        kind = "probabilities"
    elif readout.binary and readout.activation == "none":
        kind = "positive_logit"
    mapped = "ZipMap" in readout.follows
    shared = (readout.n_classes, readout.labels, mapped, readout.class_axis, readout.quantum)
    return ClassOutput(readout.output, kind, *shared)


def class_output(
    model: Model, head: str | None = None, output: str | None = None, kind: str | None = None
) -> ClassOutput:
    """Return the output that classifies.

    What it means is always read from the graph. Which output it is, and behind an appended map the number of classes,
    is read from this tool's provenance, if there is any.
    """
    if output is None and head in model.outputs:
        head, output = None, head
    # what the tool wrote counts only where the graph bears it out.
    entries = head_provenance(model, output)
    name = entries.get("output")
    classes = entries.get("classes", "")
    kind_entry = STATED_KINDS.get(entries.get("output_kind", ""))
    if kind is None and kind_entry and output in (None, name):
        candidates = find_heads(model, kind_entry)[0]
        # another head holds something else
        if head is None or any((c.node, c.output) == (head, name) for c in candidates):
            kind = kind_entry
    if head is None and name is not None and output in (None, name):
        heads, refusals = find_heads(model, kind)
        if any(candidate.output == name for candidate in heads):
            return output_of(choose_head(model, None, name, kind))
        for refusal in refusals:
            behind_map = refusal.output == name and refusal.node.startswith(f"{PREFIX}/")
            if behind_map and refusal.activation in _KINDS and classes.isdecimal():
                return _behind_map(model, name, entries, int(classes))
    if kind in STATED_KINDS.values():
        output = output or name
    return output_of(find_readout(model, head, output, kind))


def _behind_map(model: Model, name: str, entries: dict[str, str], classes: int) -> ClassOutput:
    """Read an output behind a map that this tool appended."""
    walked = walk_back(model, name)
    kind = _KINDS[walked.activation]
    if walked.activation == "none":
        kind = entries.get("output_kind", "logits")
    if walked.paired:
        kind = "probabilities"
    if entries.get("output_kind") in _LABEL_KINDS:
        kind = "label_probabilities" if walked.activation == "sigmoid" else "label_logits"
    sizes = model.sizes(name)
    class_axis = ONE
    if sizes is not None and has_positions(sizes):
        # what our metadata say counts if the declared shape agrees with it
        fitting = (axis for axis in (CLASSES_FIRST, CLASSES_LAST) if sizes[axis] in (None, classes))
        recorded = next((axis for axis in fitting if entries.get("class_axis") == str(axis)), ONE)
        class_axis = walked.class_axis or recorded or class_axis_of(sizes)
        if class_axis == ONE:
            raise UnsupportedModel(f"{model.name}: output '{name}': {OPEN_AXIS}")
    labels = walked.labels
    if not labels:  # what the classifier node in front of the map calls them
        labels = walk_back(model, mapped_logits(model, name) or name).class_labels
        if len(labels) != classes:
            labels = ()
    return ClassOutput(name, kind, classes, labels, "ZipMap" in walked.follows, class_axis)


def require_one_prediction(model: Model, output: Readout | ClassOutput, why: str) -> None:
    """Refuse a model with several predictions a sample, or several labels."""
    if output.several:
        raise UnsupportedModel(f"{model.name}: gives several predictions a sample; {why}")
    if output.multi_label:
        raise UnsupportedModel(
            f"{model.name}: gives several labels a sample, each by itself; {why}. Multi-label models are for inspect, "
            "calibrate, evaluate, compare and verify"
        )
