"""Scores that a LinearClassifier hides behind a sigmoid of its own, as scikit-learn's binary classifiers come.

The sigmoid's p is known to one unit of rounding of 1 only, so that log p says nothing beyond a logit of 17. A map goes
between scores and sigmoid: the node is told to give its two scores (-s, s), and the map's block ends in a softmax,

    (-s, s) -> (0, s) -> map -> softmax
"""

from __future__ import annotations

import onnx

from tna_onnx.graph.load import Model
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.stored import Mirror

__all__ = ["TRANSFORM", "hides_scores", "show_scores"]

TRANSFORM = "post_transform"
"""The attribute that says what the node does to its scores."""


def show_scores(node: onnx.NodeProto) -> None:
    """Make the node give its scores."""
    next(a for a in node.attribute if a.name == TRANSFORM).s = b"NONE"


def hides_scores(model: Model, readout: Readout) -> bool:
    """Whether the tensor of probabilities comes from such a node, directly."""
    return (
        isinstance(readout, Head)
        and readout.op_type == "LinearClassifier"
        and readout.holds == "probabilities"
        and any(isinstance(step, Mirror) for step in readout.orient)
        and model.producers.get(readout.logits) == readout.stored_weight.reader
    )
