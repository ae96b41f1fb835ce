"""Probabilities of several labels that separate classifiers make, put side by side: one-vs-rest as skl2onnx writes it.

x -> classifier 1 -> (1 - p, p) -> p ]
x -> classifier 2 -> (1 - p, p) -> p ] -> Concat -> (N, C)
"""

from __future__ import annotations

import onnx

from tna_onnx.graph.load import Model

__all__ = ["stands_for_labels"]

# What takes the second column out of two, and what changes the shape alone.
_PASSED = frozenset(
    {"ArrayFeatureExtractor", "Cast", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"}
)
_CLASSIFIERS = ("LinearClassifier", "TreeEnsembleClassifier")

# More nodes between a classifier and its column are no mere change of shape.
_MAX_PASSED = 8


def stands_for_labels(model: Model, node: onnx.NodeProto | None) -> bool:
    """Whether a node puts side by side what several sigmoids give, each of a classifier of its own."""
    if node is None or node.op_type != "Concat" or len(node.input) < 2:
        return False
    if next((a.i for a in node.attribute if a.name == "axis"), 0) not in (1, -1):
        return False
    sources = [_sigmoid_behind(model, name) for name in node.input]
    # columns of one classifier are put together again elsewhere
    return None not in sources and len(set(sources)) == len(sources)


def _sigmoid_behind(model: Model, tensor: str) -> int | None:
    """Return the node whose sigmoid a column is; None if it is something else."""
    for _ in range(_MAX_PASSED):
        index = model.producers.get(tensor)
        if index is None:
            return None
        node = model.proto.graph.node[index]
        if node.op_type == "Sigmoid" or (node.op_type in _CLASSIFIERS and _is_logistic(node)):
            return index
        if node.op_type == "Concat" and len(node.input) == 2:
            tensor = node.input[1]  # (1 - p, p)
        elif node.op_type in _PASSED:
            tensor = node.input[0]
        else:
            return None
    return None


def _is_logistic(node: onnx.NodeProto) -> bool:
    return any(a.name == "post_transform" and a.s == b"LOGISTIC" for a in node.attribute)
