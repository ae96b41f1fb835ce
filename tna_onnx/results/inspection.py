"""The result of `inspect`."""

from __future__ import annotations

from dataclasses import dataclass

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.readout import Refusal

__all__ = ["HeadInfo", "Inspection"]


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
