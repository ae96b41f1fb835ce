"""What a model's output means: logits, log-probabilities or probabilities, and of how many classes.

The graph says so (what follows the head), or the provenance that this tool wrote; values are never looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.head import Head, choose_head, find_heads
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import PREFIX
from tna_onnx.graph.rewrite import provenance

__all__ = ["ClassOutput", "class_output", "output_of"]

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
    """

    name: str
    kind: str
    n_classes: int

    @property
    def width(self) -> int:
        """Numbers per sample."""
        return 1 if self.kind == "positive_probability" else self.n_classes

    def probabilities(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return (N, C) probabilities from what the output gives."""
        values = np.asarray(values, np.float64).reshape(len(values), self.width)
        if self.kind == "positive_probability":
            return np.concatenate([1 - values, values], axis=1)
        if self.kind == "probabilities":
            return values
        weights = np.exp(values - values.max(axis=1, keepdims=True))
        result: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
        return result

    @property
    def provenance(self) -> dict[str, str]:
        """The entries from which `class_output` reads this again."""
        return {"output": self.name, "classes": str(self.n_classes)}


def output_of(model: Model, head: Head) -> ClassOutput:
    """Return the output behind a head.

    Raises:
        UnsupportedModel: a Sigmoid follows several logits.
    """
    if head.activation == "sigmoid" and not head.binary:
        raise UnsupportedModel(
            f"{model.path}: head '{head.node}' has {head.n_classes} logits with a Sigmoid: multi-label classifiers are "
            "not supported, expected one logit with a Sigmoid, or one per class with or without a Softmax"
        )
    return ClassOutput(head.output, _KINDS[head.activation], head.n_classes)


def class_output(model: Model, head: str | None = None) -> ClassOutput:
    """Return the output that classifies.

    What it means is always read from the graph. Which output it is, and behind an appended map the number of classes,
    is read from this tool's provenance, if there is any.

    Raises:
        UnsupportedModel: the graph does not tell.
    """
    known = provenance(model)
    name, classes = known.get("output"), known.get("classes", "")
    heads, refusals = find_heads(model)
    if head is None and name is not None:
        for found in heads:
            if found.output == name:
                return output_of(model, found)
        for refusal in refusals:
            behind_map = refusal.output == name and refusal.node.startswith(f"{PREFIX}/")
            if behind_map and refusal.activation in _KINDS and classes.isdecimal():
                return ClassOutput(name, _KINDS[refusal.activation], int(classes))
    return output_of(model, choose_head(model, head))
