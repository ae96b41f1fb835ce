"""What a model's output means: logits, log-probabilities or probabilities, and of how many classes.

The graph says so (what follows the head), or the provenance that this tool wrote; values are never looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.head import Head, choose_head
from tna_onnx.graph.load import Model
from tna_onnx.graph.rewrite import provenance

__all__ = ["ClassOutput", "class_output", "output_of"]

_KINDS = {"none": "logits", "softmax": "probabilities", "log_softmax": "log_probabilities"}


@dataclass(frozen=True)
class ClassOutput:
    """The graph output that classifies: its name, `logits`, `log_probabilities` or `probabilities`, and C."""

    name: str
    kind: str
    n_classes: int

    @property
    def provenance(self) -> dict[str, str]:
        """The entries from which `class_output` reads this again."""
        return {"output": self.name, "output_kind": self.kind, "classes": str(self.n_classes)}


def output_of(model: Model, head: Head) -> ClassOutput:
    """Return the output behind a head.

    Raises:
        UnsupportedModel: a Sigmoid follows the head.
    """
    if head.activation not in _KINDS:
        raise UnsupportedModel(
            f"{model.path}: head '{head.node}' is followed by a Sigmoid; binary heads with one logit and multi-label "
            "heads are not supported, expected one logit per class with or without a Softmax"
        )
    return ClassOutput(head.output, _KINDS[head.activation], head.n_classes)


def class_output(model: Model, head: str | None = None) -> ClassOutput:
    """Return the output that classifies, from the graph or from this tool's provenance.

    Raises:
        UnsupportedModel: neither tells.
    """
    known = provenance(model)
    if known.get("output") in model.outputs and head is None:
        return ClassOutput(known["output"], known["output_kind"], int(known["classes"]))
    return output_of(model, choose_head(model, head))
