"""The walk from a graph output back to the linear layer that makes its scores; `graph.head` has its rules."""

from tna_onnx.graph.walk.layer import LABELS_ONLY, MULTI_LABEL, ONE_NUMBER, SINGLE_ONLY
from tna_onnx.graph.walk.loop import Walked, walk_back
from tna_onnx.graph.walk.output_steps import require_little_slack

__all__ = ["LABELS_ONLY", "MULTI_LABEL", "ONE_NUMBER", "SINGLE_ONLY", "Walked", "require_little_slack", "walk_back"]
