"""The step in which a graph's probabilities come, where it has no tensor of logits: that of a quantiser, 1/T of T trees
that vote, 1/k of k neighbours, the rounding of 1 where 1 - p is stored beside p.
"""

import numpy as np

from tna_onnx.graph.bounds import attribute_of, input_at
from tna_onnx.graph.cut import ancestors
from tna_onnx.graph.load import Model
from tna_onnx.graph.readout import quantization_step
from tna_onnx.graph.tensors import epsilon

# What changes shape or type alone, or takes columns.
_PASSED = (
    "ArrayFeatureExtractor", "Cast", "Flatten", "Gather", "Identity", "Normalizer", "Reshape", "Slice", "Squeeze",
    "Transpose", "Unsqueeze",
)  # fmt: skip


def quantum(model: Model, tensor: str, n_classes: int) -> float | None:
    """Return the step of a tensor of probabilities; None where the graph does not tell."""
    node = model.maker(tensor, _PASSED)
    if node is None:
        return None
    if node.op_type == "DequantizeLinear":
        return quantization_step(model, node.output[0]) or None
    if node.op_type == "TreeEnsembleClassifier" and attribute_of(node, "post_transform", b"NONE") == b"NONE":
        return 1 / max(1, len(np.unique(attribute_of(node, "class_treeids", ()))))
    if node.domain == "ai.onnx.ml" and node.op_type.endswith("Classifier"):
        return n_classes * epsilon("float32") if n_classes == 2 else 0.0
    return _share_of_neighbours(model, tensor)


def _share_of_neighbours(model: Model, tensor: str) -> float | None:
    """Return 1/k where the k nearest of stored samples are on the way to a tensor; else None."""
    for k in ancestors(model, tensor):
        node = model.proto.graph.node[k]
        count = model.constant_tensor(input_at(node, 1)) if node.op_type == "TopK" else None
        if count is not None:
            return 1 / max(1, int(model.array(count).item()))
    return None
