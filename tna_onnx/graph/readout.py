"""Where a model's logits are (`Readout`), the linear layer that computes them (`Head`), and what the graph output that
comes from them holds (`ClassOutput`).

A LinearClassifier that applies a sigmoid itself knows p to one rounding of 1 only, so the map goes in front of the
sigmoid: the node outputs its scores (-s, s) instead, and (0, s) -> map -> softmax follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import UnsupportedModel, count_text
from tna_onnx.graph.constants import Quantized, dequantized_with, read_quantized
from tna_onnx.graph.load import Model
from tna_onnx.graph.stored import Mirror, Step, Stored, oriented, undone
from tna_onnx.numerics import scores
from tna_onnx.numerics.ops import sigmoid, softmax

# Kinds of NumPy's types that are no numbers: objects, and texts of both sorts.
_NO_NUMBERS = "OSU"

# Where several predictions a sample lie: one for each token, pixel or other position.
#
#     classes last     (N, T, C), (N, H, W, C): tokens; images of TensorFlow
#     classes first    (N, C, H, W): images, behind a convolution
#
# What is declared tells such a tensor from one prediction a sample, (N, C). A convolution's (N, C, 1, 1) and the
# (N, 1, C) of a sequence of one hold one prediction.
ONE = 0
"""In place of a class axis: one prediction a sample."""

CLASSES_FIRST = 1
CLASSES_LAST = -1

OPEN_AXIS = (
    "neither the nodes nor the shape tell which axis holds the classes, since all are as long; export the model with "
    "another number of positions, or with one that is left open (a dynamic axis)"
)
"""Why an output of several predictions is refused."""


@dataclass(frozen=True)
class Layout:
    """How a tensor holds several predictions a sample, as a run showed it."""

    axes: int  # number of axes, the samples' included
    class_axis: int  # 1 or -1; 0 where each position has one number, without an axis for it

    def __post_init__(self) -> None:
        """Refuse more axes than an array of NumPy can have: a record may say any number."""
        if not 2 <= self.axes <= 64:
            raise ValueError(f"a tensor of {self.axes} axes")


def has_positions(sizes: list[int | None] | None) -> bool:
    """Whether lengths of axes are those of several predictions a sample."""
    if sizes is None or len(sizes) < 3:
        return False
    return any(size != 1 for size in sizes[1:-1]) and any(size != 1 for size in sizes[2:])


def class_axis_of(sizes: list[int | None]) -> int:
    """Return the class axis of a tensor of several predictions, where its nodes do not tell it; 0 if it stays open.

    A model declares how many classes it has, and may leave the number of positions open. Where it declares both, custom
    decides: of tokens (three axes) the last, of images (four and more) the first behind the samples. Where all lengths
    are equal, labels of the other kind would fit as well, and nothing would notice.
    """
    declared = [axis for axis in (CLASSES_FIRST, CLASSES_LAST) if sizes[axis] is not None]
    if len(declared) == 1:
        return declared[0]
    if declared and len(set(sizes[1:])) == 1:
        return ONE
    if len(sizes) == 3:
        return CLASSES_LAST
    return CLASSES_FIRST


AMBIGUOUS_SCORES = (
    "the graph does not tell what they are: if they are logits, say so with --output-kind logits. If they are no "
    "scores of classes (but an image, say), the model is no classifier"
)
"""What a message says of an output that was taken for probabilities, and holds none."""


KINDS = {
    "none": "logits",
    "softmax": "probabilities",
    "log_softmax": "log_probabilities",
    "sigmoid": "positive_probability",
}
"""Activation that follows the logits -> what the output holds."""

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

STATED_KINDS = {kind: KIND_WORDS[kind] for kind in ("positive_logit", "label_logits")}
"""What an output holds that its graph does not show -> the word for it of `--output-kind`."""


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
        return scores.resolution_of(self.quantum, 2 if self.multi_label else self.n_classes)

    @property
    def several(self) -> bool:
        """Whether the output holds several predictions a sample."""
        return self.class_axis != ONE

    @property
    def multi_label(self) -> bool:
        """Whether each class is a label that holds or does not by itself."""
        return self.kind.startswith("label_")

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
        if self.kind == "probabilities" and not scores.distributions(values, self.quantum):
            raise scores.NotProbabilities(f"{expected} are negative, or do not add up to 1; {AMBIGUOUS_SCORES}")
        if self.kind == "positive_probability" and not scores.are_shares(values):
            raise scores.NotProbabilities(f"{expected} lie outside of 0 to 1; {AMBIGUOUS_SCORES}")
        if self.kind == "label_probabilities" and not scores.are_shares(values):
            raise scores.NotProbabilities(
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


@dataclass(frozen=True, eq=False)
class Readout:
    """The tensor behind which a calibration map goes, and how a graph output comes from it."""

    output: str  # the graph output
    logits: str  # the tensor: input of the Softmax, or the output itself
    logits_type: str  # its element type, by NumPy's name
    holds: str  # what is in it: `logits`, or `probabilities` where the graph has no tensor of logits
    activation: str  # what follows it: none, softmax, log_softmax or sigmoid
    # operators between the linear layer, or else the tensor, and the graph output, in order of execution
    follows: tuple[str, ...]
    binary: bool  # the tensor holds one number a sample, the second class's; the logit of the first is 0
    paired: bool  # the sigmoid's p of a binary model is put beside 1 - p on the way to the output
    n_classes: int  # number of classes C
    labels: tuple[int | str, ...]  # what the model calls its classes, if it says so
    output_step: float  # step of the quantisation of what follows the activation; 0 if there is none
    # largest change of a probability by a Clip or an added constant behind the activation; of a logarithm's, before
    # the probabilities are made to add up to 1 again
    output_slack: float
    class_axis: int  # of several predictions a sample (`Layout`), 1 or -1; 0 for one prediction a sample
    multi_label: bool  # each of the C classes is a label that holds or does not by itself, with a logit of its own
    # step in which probabilities without logits come (`graph.purpose`); None where the graph does not tell
    quantum: float | None = field(default=0.0, kw_only=True)
    node: str = field(default="", kw_only=True)  # label of the linear node; empty without one

    @property
    def resolution(self) -> float:
        """The d of p' = (p + d) / (1 + C d), which stands for p where its logarithm is taken; 0 for p itself."""
        return scores.resolution_of(self.quantum, 2 if self.multi_label else self.n_classes)

    @property
    def several(self) -> bool:
        """Whether the tensor holds several predictions a sample."""
        return self.class_axis != 0

    @property
    def main(self) -> str:
        """The tensor that is collected: the features of a head, or the logits where there is none."""
        return self.logits

    @property
    def class_output(self) -> ClassOutput:
        """The graph output, as what it gives is read."""
        kind = KINDS[self.activation]
        if self.multi_label:
            kind = "label_logits"
            if self.activation == "sigmoid" or self.holds == "probabilities":
                kind = "label_probabilities"
        elif self.holds == "probabilities" and self.binary:
            kind = "positive_probability"
        elif self.holds == "probabilities" or self.paired:
            kind = "probabilities"
        elif self.binary and self.activation == "none":
            kind = "positive_logit"
        mapped = "ZipMap" in self.follows
        shared = (self.n_classes, self.labels, mapped, self.class_axis, self.quantum)
        return ClassOutput(self.output, kind, *shared)

    def without_head(self) -> Readout:
        """Return the tensor alone, without the linear layer that makes it."""
        return Readout(**{field.name: getattr(self, field.name) for field in fields(Readout) if field.name != "node"})

    @property
    def parts(self) -> dict[str, int]:
        """Tensors that the features consist of, where these are several side by side, with the length of each."""
        return {}

    @property
    def joined(self) -> dict[str, dict[str, int]]:
        """The features by name, where they are several tensors: these."""
        return {self.main: self.parts} if self.parts else {}

    @property
    def slack(self) -> float:
        """Largest difference between a probability of the output and the softmax of the logits, rounding apart."""
        # (p + e) / (1 + C e) differs from p by C e at most
        return self.output_slack * (self.n_classes if self.activation == "log_softmax" else 1)

    def class_logits(self, raw: NDArray[Any]) -> NDArray[Any]:
        """Return the tensor as (N, C) logits: log p of probabilities; (N,) or (N, 1) of a binary head get their zeros.

        Raises NotProbabilities: no probabilities where there should be.
        """
        if raw.dtype.kind in _NO_NUMBERS:
            raise UnsupportedModel(f"the logits are of type {raw.dtype}; expected numbers")
        if self.binary:
            if raw.size != len(raw):
                raise UnsupportedModel(f"the logits have shape {raw.shape}; expected one number a sample")
            column = raw.reshape(len(raw), 1)
            if self.holds == "logits":  # sigmoid(s) is the second of softmax(0, s)
                return np.concatenate([np.zeros_like(column), column], axis=1)
            raw = np.concatenate([1 - column, column], axis=1)
        if raw.size != len(raw) * self.n_classes or self.n_classes not in raw.shape[1:]:
            raise UnsupportedModel(f"the logits have shape {raw.shape}; expected {self.n_classes} numbers a sample")
        raw = raw.reshape(len(raw), self.n_classes)  # of a convolution: (N, C, 1, 1)
        if self.holds == "logits":
            return raw
        if self.multi_label:
            return scores.label_logits(raw)
        return scores.log_probabilities(raw, self.quantum)

    def probabilities(self, logits: NDArray[Any]) -> NDArray[np.float64]:
        """Return (N, C) probabilities of (N, C) logits: they add up to 1, or are each label's own."""
        if self.multi_label:
            return sigmoid(logits)
        return softmax(logits)


@dataclass(frozen=True, eq=False)
class Head(Readout):
    """The last linear layer, seen from one graph output.

    Where `linear` holds, logits = features @ weight.T + bias, (N, C), with the constants below. Elsewhere the nodes
    after the linear layer do something else with its scores (pooling over positions, ReLU, quantisation), and only
    the graph itself computes the logits.
    """

    op_type: str  # its operator
    features: str  # tensor that holds the features
    features_transposed: bool  # the tensor is (n, N) instead of (N, n)
    stored_weight: Stored  # the constant behind the weight
    orient: tuple[Step, ...]  # steps from the weight as read to one class vector a row
    stored_bias: Stored | None  # the constant behind the bias, if there is one; it broadcasts to (C,)
    bias_orient: tuple[Step, ...]  # steps from the bias as read
    weight_scale: NDArray[np.float64]  # constant factor on features @ weight.T, float64, shape () or (C,)
    bias_scale: NDArray[np.float64]  # the same for the bias
    linear: bool  # see above
    homogeneous: bool  # scaling weight and bias scales the logits
    step: float  # largest step of a quantisation on the way to the logits; 0 if there is none
    # scale of the features, where a quantised bias must be in that scale times the weight's
    bias_step: float | None = None

    @property
    def main(self) -> str:
        return self.features

    @property
    def n_features(self) -> int:
        """Length n of the features."""
        return int(self._class_vectors.shape[1])

    @property
    def features_type(self) -> str:
        """Element type of the features, that of the weight; empty where the operator does not tell it."""
        if self.op_type == "LinearClassifier" or self.stored_weight.float_type == "bfloat16":
            return ""
        return str(self.stored_weight.value.dtype.name)

    @property
    def rows(self) -> int:
        """Number of class vectors that are stored: C, or one of two classes."""
        return len(self._class_vectors)

    @property
    def readers(self) -> tuple[int, ...]:
        """The index of the linear node; of several, where their scores are added up (`graph.walk.layer`)."""
        return (self.stored_weight.reader,)

    @property
    def places(self) -> tuple[Stored, ...]:
        """The constants behind weight and bias."""
        return tuple(place for place in (self.stored_weight, self.stored_bias) if place is not None)

    def written(
        self, weight: NDArray[Any] | None, bias: NDArray[Any] | None
    ) -> Iterator[tuple[Head, NDArray[Any] | None, NDArray[Any] | None]]:
        """Yield each linear layer with its part of a (C, n) weight and a (C,) bias; None stays as it is."""
        yield self, weight, bias

    @cached_property
    def _class_vectors(self) -> NDArray[Any]:
        return oriented(self.stored_weight.value, self.orient)

    @property
    def _single(self) -> bool:
        """One class vector: the first class has the logit 0, so its vector is zero."""
        return len(self._class_vectors) == 1

    @cached_property
    def weight(self) -> NDArray[Any]:
        """(C, n) class vectors with the constant scale in them; float32, or float64 where the file has that."""
        return self._scaled(self._class_vectors)

    @cached_property
    def bias(self) -> NDArray[Any]:
        """(C,) bias with the constant scale in it, zeros where the head has none."""
        if self.stored_bias is None:
            return np.zeros(self.n_classes, self.working_type)
        return self._flat_bias(self.stored_bias.value)

    def _flat_bias(self, value: NDArray[Any]) -> NDArray[Any]:
        flat = oriented(value, self.bias_orient).astype(np.float64).reshape(-1) * self.bias_scale
        if self._single:
            flat = np.append(0.0, flat)
        return np.array(np.broadcast_to(flat, (self.n_classes,)), self.working_type)

    @property
    def working_type(self) -> np.dtype[Any]:
        """Dtype of the numerics for this head: float64 for a float64 head, else float32."""
        if self.stored_weight.value.dtype == np.float64:
            return np.dtype(np.float64)
        return np.dtype(np.float32)

    @property
    def holds_bias(self) -> bool:
        """Whether the file has a place for one bias a class."""
        return self.stored_bias is not None and self.stored_bias.value.size == self.stored_weight.value.size // (
            self.n_features
        )

    def anchored(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return a (C, n) weight or (C,) bias that the file can hold and that gives the same probabilities.

        A head with one class vector has the logit 0 for the first class: its row is taken from both.
        """
        if not self._single:
            return values
        anchored: NDArray[Any] = values - values[:1]
        return anchored

    def bias_as_read(self, bias: NDArray[Any]) -> NDArray[np.float64]:
        """Return a (C,) bias, in the scale of `bias`, as the node reads it."""
        if self.stored_bias is None or not self.holds_bias:
            raise ValueError("the head has no place for one bias a class")
        value: NDArray[np.float64] = bias[-self.rows :].astype(np.float64) / self.bias_scale
        value = value.reshape(oriented(self.stored_bias.value, self.bias_orient).shape)
        return undone(value, self.bias_orient)

    def new_bias_as_written(self, bias: NDArray[Any]) -> NDArray[Any]:
        """Return what becomes of a new (C,) bias in the file, without quantisation."""
        stored = self.stored_bias
        if stored is None or stored.quantized is not None:
            return bias
        return self._flat_bias(stored.as_written(self.bias_as_read(bias)))

    def as_read(self, weight: NDArray[Any]) -> NDArray[Any]:
        """Return a (C, n) weight, in the scale of `weight`, as the node reads it; float64 where that is another one."""
        stored_weight = weight[-self.rows :]  # of one class vector, the first class's zeros are not stored
        if self.stored_weight.quantized is None and np.all(self.weight_scale == 1):
            return undone(stored_weight, self.orient)
        # In float64: a division in float32 would round a second time.
        return undone(stored_weight.astype(np.float64) / self.weight_scale.reshape(-1, 1), self.orient)

    def marked_as_read(self) -> NDArray[np.float64]:
        """Return, as the node reads it, a weight that holds the number of its class in every place."""
        rows, length = self._class_vectors.shape
        return undone(np.repeat(np.arange(rows, dtype=np.float64)[:, None], length, axis=1), self.orient)

    def as_written(self, weight: NDArray[Any]) -> NDArray[Any]:
        """Return what becomes of a (C, n) weight in the file, with its rounding or quantisation: what ships."""
        stored = self.stored_weight
        # in most heads nothing is rounded on the way, so nothing needs to be computed
        if stored.quantized is None and stored.float_type == self.working_type and np.all(self.weight_scale == 1):
            return weight
        read = stored.as_written(self.as_read(weight))
        return self._scaled(oriented(read, self.orient))

    def bias_as_written(self, factor: float) -> NDArray[Any]:
        """Return what becomes of the (C,) bias times a factor in the file, without quantisation."""
        stored = self.stored_bias
        if stored is None or stored.quantized is not None:
            scaled: NDArray[Any] = self.bias * np.asarray(factor, self.working_type)
            return scaled
        return self._flat_bias(stored.as_written(self.scaled_bias(stored, factor)))

    def scaled_bias(self, stored: Stored, factor: float) -> NDArray[np.float64]:
        """Return the bias of the head's classes times a factor, as the node reads it; that of other classes stays."""
        value: NDArray[np.float64] = oriented(stored.value.astype(np.float64), self.bias_orient) * factor
        return undone(value, self.bias_orient)

    def kept_in_float(self) -> Head:
        """Return the same head, with a quantised weight replaced by a float one when it is written."""
        stored = replace(self.stored_weight, shared=True, quantized=None, packed=False)
        return replace(self, stored_weight=stored)

    def _scaled(self, vectors: NDArray[Any]) -> NDArray[Any]:
        # most heads: a copy of a large weight would be all that is gained
        if vectors.dtype == self.working_type and not self._single and np.all(self.weight_scale == 1):
            return np.ascontiguousarray(vectors)
        value = vectors.astype(np.float64) * self.weight_scale.reshape(-1, 1)
        if self._single:
            value = np.concatenate([np.zeros_like(value), value])
        return np.ascontiguousarray(value, self.working_type)


# The stored scale is a product that was rounded to float32 or float16; a scale of its own is further off.
_SCALE_TOLERANCE = 1e-4


def requantized(model: Model, head: Head) -> Head:
    """Return the head as it will be requantised; one whose weight is not quantised comes back as it is."""
    stored = head.stored_weight
    quantized = stored.quantized
    if quantized is None:
        return head
    if quantized.axis is None and model.opset >= 13:  # DequantizeLinear has an axis from opset 13 on
        head = replace(head, stored_weight=_per_class(head, stored, quantized))
    features_scale = _features_scale(model, head)
    bias = head.stored_bias
    if bias is None or bias.quantized is None or features_scale is None:
        return head
    product = features_scale * np.asarray(quantized.scale, np.float64)
    if bias.quantized.dtype != np.int32 or not np.allclose(bias.quantized.scale, product, rtol=_SCALE_TOLERANCE):
        return head
    # A 7-bit weight has the largest step.
    max_step = float(features_scale * np.max(np.abs(head.weight)) / 64)
    return replace(head, bias_step=features_scale, step=max(head.step, max_step))


def _per_class(head: Head, stored: Stored, quantized: Quantized) -> Stored:
    """Give the weight a scale per class, where one axis of the stored tensor counts the classes."""
    marks = stored.layout(head.marked_as_read())
    # The number of the class changes along an axis of its own, or along several if a Reshape has mixed them.
    along = [k for k in range(marks.ndim) if np.any(np.diff(marks, axis=k))]
    if len(along) != 1:
        return stored
    return replace(stored, quantized=replace(quantized, axis=along[0]))


def _features_scale(model: Model, head: Head) -> float | None:
    """Scale of quantised features; None if they are not quantised, or per channel."""
    scale = dequantized_with(model, head.features)
    if scale.size != 1 or read_quantized(model, model.producers[head.features]) is not None:
        return None
    return float(scale.item())


def hides_scores(model: Model, readout: Readout) -> bool:
    """Whether a LinearClassifier makes the tensor of probabilities from scores (-s, s) that only it knows."""
    return (
        isinstance(readout, Head)
        and readout.op_type == "LinearClassifier"
        and readout.holds == "probabilities"
        and any(isinstance(step, Mirror) for step in readout.orient)
        and model.producers.get(readout.logits) == readout.stored_weight.reader
    )


def require_rows(values: NDArray[Any], samples: int, tensor: str) -> None:
    """Refuse what is not one row a sample. `tensor`: what messages call it."""
    rows = np.atleast_1d(values).shape[0]
    if rows != samples:
        raise UnsupportedModel(
            f"{tensor} gives {count_text(rows, 'row')} for {samples:,} samples; expected a row for each: a model that "
            "drops, repeats or detects things (Compress, NonMaxSuppression) has no scores of samples"
        )


def require_one_prediction(model: Model, output: Readout | ClassOutput, why: str) -> None:
    """Refuse a model with several predictions a sample, or several labels."""
    if output.several:
        raise UnsupportedModel(f"{model.name}: gives several predictions a sample; {why}")
    if output.multi_label:
        raise UnsupportedModel(
            f"{model.name}: gives several labels a sample, each by itself; {why}. Multi-label models are for inspect, "
            "calibrate, evaluate, compare and verify"
        )
