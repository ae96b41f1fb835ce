"""The walk from a graph output back to the linear layer that makes its scores; `graph.head` has its rules."""

from tna_onnx.graph.walk.layer import LABELS_ONLY, MULTI_LABEL, ONE_NUMBER, SINGLE_ONLY
from tna_onnx.graph.walk.loop import walk_back
from tna_onnx.graph.walk.output_steps import require_little_slack
from tna_onnx.graph.walk.steps import Refusal, State

__all__ = [
    "LABELS_ONLY", "MULTI_LABEL", "ONE_NUMBER", "SINGLE_ONLY", "Refusal", "State", "require_little_slack", "walk_back",
]  # fmt: skip
