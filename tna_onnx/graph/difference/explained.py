"""What a recalibration may change in a model.

1. A new value of the same type and shape: of the head's weight or bias, where they lie (initializer, Constant,
   attribute), and of the scales and zero points they are quantised with; the axis of those scales.
2. An operand by which a node reads the weight, the bias or their scales, if it now reads a new tensor `tna_onnx/...`.
3. A new tensor `tna_onnx/...`, or a Constant node in front of all others that makes one.
4. New nodes `tna_onnx/...` that stand in one piece behind the node that made the logits, read nothing but each other,
   such tensors and the features, and make the logits.
5. The output of that node: the logits become `tna_onnx/logits`. If it hid its scores (`graph.hidden`), it gives them to
   the block.
6. Metadata `tna_onnx.*`, and functions that were inlined.
7. The import of the default operator set, for such nodes in a file that has no other node of it.
8. Decisions: nodes `tna_onnx/guard/...` behind all others, the new outputs that they make, and inputs with a default
   that nothing else reads (`difference.decisions`).

What the new values are, and what the block computes, is for numbers on data to tell.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tna_onnx.graph.hidden import TRANSFORM, hides_scores
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import PREFIX
from tna_onnx.graph.quantized import Quantized
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.stored import Stored

__all__ = ["OWN", "Explained", "explained_by"]

OWN = f"{PREFIX}/"
"""How the names of nodes and tensors that this tool adds begin."""


@dataclass(frozen=True)
class Explained:
    """What may change, each with what it is called.

    Attributes:
        values: constants, by name (rule 1).
        operands: (index of the node, position of the input) (rule 2).
        attributes: (index of the node, name) (rule 1).
        logits: tensor behind which the block goes (rules 4 and 5).
        producer: index of the node that makes it.
        features: tensor that the block may read.
        output: graph output behind it.
    """

    values: dict[str, str] = field(default_factory=dict)
    operands: dict[tuple[int, int], str] = field(default_factory=dict)
    attributes: dict[tuple[int, str], str] = field(default_factory=dict)
    logits: str = ""
    producer: int = -1
    features: str = ""
    output: str = ""


def explained_by(model: Model, readout: Readout | None) -> Explained:
    """Return what a recalibration of a model may change; without a readout, nothing of nodes and tensors."""
    if readout is None:
        return Explained()
    producer = model.producers.get(readout.logits, -1)
    if not isinstance(readout, Head):
        return Explained(logits=readout.logits, producer=producer, output=readout.output)
    explained = Explained(logits=readout.logits, producer=producer, features=readout.features, output=readout.output)
    _add_constant(explained, model, readout.stored_weight, "weight")
    if readout.stored_bias is not None:
        _add_constant(explained, model, readout.stored_bias, "bias")
    if hides_scores(model, readout):
        explained.attributes[producer, TRANSFORM] = "scores for the appended block"
    return explained


def _add_constant(explained: Explained, model: Model, place: Stored, role: str) -> None:
    """Add the weight or the bias: its value, and the operand that reads it."""
    if place.attribute:
        explained.attributes[place.reader, place.attribute] = role  # rule 1
        return
    inputs = list(model.proto.graph.node[place.reader].input)
    explained.operands[place.reader, inputs.index(place.read_as)] = role  # rule 2
    if not place.shared:  # a shared constant keeps its value: the node reads a new tensor in its place
        explained.values[place.name] = role
    if place.quantized is not None:
        _add_quantization(explained, model, place.quantized, role)


def _add_quantization(explained: Explained, model: Model, quantized: Quantized, role: str) -> None:
    explained.attributes[quantized.node, "axis"] = f"{role}, axis of the scale"
    for position, what in ((1, "scale"), (2, "zero point")):
        explained.operands[quantized.node, position] = f"{role}, {what}"
    inputs = model.proto.graph.node[quantized.node].input[1:]
    for name, what in zip(inputs, ("scale", "zero point"), strict=False):  # the zero point may be left out
        # A scale that other nodes read too is not overwritten.
        if name in model.initializers and model.uses.get(name, 0) == 1:
            explained.values[name] = f"{role}, {what}"
