"""What a model is that gives no class scores, so that its owner is told that and not sent to flags that cannot help.

Only asked about a model that was refused: the operators and outputs of its file tell regressors, detectors and
embedding models apart.
"""

from __future__ import annotations

from tna_onnx.graph.dtypes import FLOAT_TYPES
from tna_onnx.graph.load import Model

__all__ = ["purpose"]

_BOXES = ("NonMaxSuppression", "RoiAlign", "MaxRoiPool")
_SEARCHED = ("boxes", "bboxes", "dets", "detection_boxes", "pred_boxes")


def purpose(model: Model) -> str:
    """Return what a refused model is, and what follows from that; empty if its file does not tell."""
    operators = [node.op_type for node in model.proto.graph.node]
    outputs = [info.name for info in model.proto.graph.output]
    names = [name.lower() for name in outputs]
    box = next((kind for kind in operators if kind in _BOXES), None)
    boxed = next((name for name in names if name in _SEARCHED), None)
    if box or boxed:
        found = box or f"output '{boxed}'"
        return f"this is a detector ({found}): it gives boxes, and no one distribution over classes for a sample"
    if any(node.op_type == "LpNormalization" and set(node.output) & set(outputs) for node in model.proto.graph.node):
        return "this is an embedding model (LpNormalization): it gives unit vectors, and no scores of classes"
    regressor = next((kind for kind in operators if kind.endswith("Regressor")), None)
    classifier = any(kind.endswith("Classifier") or kind == "ZipMap" for kind in operators)
    # one number of another operator may be a logit, and the refusal asks for that
    if classifier or regressor is None or not _gives_one_number(model):
        return ""
    return f"this is a regressor ({regressor}): it gives one number a sample, and no classes with confidences"


def _gives_one_number(model: Model) -> bool:
    """Tell whether each output holds one number a sample, and all are numbers with a point."""
    for info in model.proto.graph.output:
        tensor = info.type.tensor_type
        if not info.type.HasField("tensor_type") or tensor.elem_type not in FLOAT_TYPES:
            return False
        # skl2onnx declares (N, 1), and other exporters (N,)
        if any(dim.dim_value != 1 for dim in tensor.shape.dim[1:]):
            return False
    return True
