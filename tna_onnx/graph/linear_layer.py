"""A linear layer as one node has it, whatever its operator.

scores = features @ vectors.T * scale + bias * bias_scale
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from tna_onnx.graph.stored import Step, Stored

__all__ = ["Linear", "oriented"]


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear layer as one node has it.

    Attributes:
        features: tensor that goes in.
        features_transposed: the tensor is (n, N).
        classes_first: the weight is the left operand, and the result is (C, N).
        weight: the constant behind the weight.
        orient: steps from the weight as read to `vectors`.
        bias: the constant behind the bias, if the node has one; it broadcasts to (C,) after `bias_orient`.
        bias_orient: steps from the bias as read to one value per vector.
        scale: factor on features @ vectors.T.
        bias_scale: factor on the bias.
        classes: number of classes, where the node says so itself.
        link: what the node does to the scores: none, softmax, sigmoid, or another activation by name.
        labels: what the node calls its classes, if it says so.
    """

    features: str
    weight: Stored
    orient: tuple[Step, ...]
    features_transposed: bool = False
    classes_first: bool = False
    bias: Stored | None = None
    bias_orient: tuple[Step, ...] = ()
    scale: float = 1.0
    bias_scale: float = 1.0
    classes: int | None = None
    link: str = "none"
    labels: tuple[int | str, ...] = ()

    @property
    def vectors(self) -> NDArray[Any]:
        """(C, n) class vectors, or (1, n) for one score."""
        return oriented(self.weight.value, self.orient)


def oriented(value: NDArray[Any], steps: tuple[Step, ...]) -> NDArray[Any]:
    """Apply steps in order."""
    for step in steps:
        value = step.apply(value)
    return value
