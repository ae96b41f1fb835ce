"""`inspect`: which node is the head, or why none is."""

from __future__ import annotations

from dataclasses import dataclass

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.head import find_heads
from tna_onnx.graph.load import Model, ModelSource, load_model, tensor_types
from tna_onnx.graph.readout import Head, Refusal
from tna_onnx.graph.rewrite import provenance

__all__ = ["HeadInfo", "Inspection", "inspect"]


@dataclass(frozen=True)
class HeadInfo:
    """A linear head as `inspect` shows it; tensors by name, dtypes by NumPy's names."""

    node: str
    op_type: str
    weight: str
    weight_type: str
    classes: int
    n_features: int
    bias: str | None
    features: str
    logits: str
    logits_type: str
    activation: str
    follows: tuple[str, ...]
    output: str


@dataclass(frozen=True)
class Inspection:
    """What `inspect` found.

    Attributes:
        model: path.
        sha256: digest of the file.
        ir_version: of the file.
        opset: version of the default operator set.
        inputs: name, dtype and shape of each input, as text.
        heads: heads found, one per node.
        refusals: outputs that lead to no head.
        provenance: what tna-onnx wrote into the file's metadata; empty for a file that it did not write.
    """

    model: str
    sha256: str
    ir_version: int
    opset: int
    inputs: tuple[str, ...]
    heads: tuple[HeadInfo, ...]
    refusals: tuple[Refusal, ...]
    provenance: dict[str, str]

    def require_head(self) -> HeadInfo:
        """Return the first head.

        Raises:
            UnsupportedModel: there is none.
        """
        if not self.heads:
            reasons = "; ".join(f"output '{r.output}', at {r.node}: {r.reason}" for r in self.refusals)
            raise UnsupportedModel(f"{self.model}: no linear head found ({reasons})")
        return self.heads[0]


def inspect(model: ModelSource) -> Inspection:
    """Find the heads of an ONNX file; nothing is run.

    Raises:
        UsageError: no such file.
        UnsupportedModel: not an ONNX file, or a damaged one.
    """
    loaded = load_model(model)
    heads, refusals = find_heads(loaded)
    by_node = {head.node: head for head in reversed(heads)}
    return Inspection(
        model=loaded.name,
        sha256=loaded.sha256,
        ir_version=loaded.proto.ir_version,
        opset=loaded.opset,
        inputs=tuple(_input_lines(loaded)),
        heads=tuple(_info(head) for head in by_node.values()),
        refusals=refusals,
        provenance=provenance(loaded),
    )


def _info(head: Head) -> HeadInfo:
    return HeadInfo(
        node=head.node,
        op_type=head.op_type,
        weight=head.stored_weight.name,
        weight_type=_type(head),
        classes=head.n_classes,
        n_features=head.n_features,
        bias=head.stored_bias.name if head.stored_bias else None,
        features=head.features,
        logits=head.logits,
        logits_type=head.logits_type,
        activation=head.activation,
        follows=head.follows,
        output=head.output,
    )


def _type(head: Head) -> str:
    """Element type in which the weight is stored."""
    quantized = head.stored_weight.quantized
    return quantized.dtype.name if quantized else head.stored_weight.float_type


def _input_lines(model: Model) -> list[str]:
    types = tensor_types(model)
    return [f"{name}: {types[name]}" for name in model.inputs]
