"""What a model is that is no classifier (`purpose`), and which of its outputs holds boxes.

Names of outputs, operators and shapes tell; values are never looked at.
"""

import onnx

from tna_onnx.graph.bounds import attribute_of
from tna_onnx.graph.load import Model
from tna_onnx.graph.tensors import FLOAT_TYPES

BOXES = "holds boxes, or one prediction for each of them: no classes of a sample"

_COORDINATES = ("loc", "locs", "locations", "coords", "coordinates", "rects", "deltas")


def box_output(model: Model) -> str:
    """Return the output that holds boxes, as its name says: (N, 4) or (N, boxes, 4), beside others; empty if none does.

    The shape alone says too little: another task may have four classes.
    """
    return next((name for name in model.outputs if is_box_output(model, name)), "")


def is_box_output(model: Model, output: str) -> bool:
    """Whether an output holds boxes."""
    name = output.lower()
    if "box" not in name and name not in _COORDINATES:
        return False
    sizes = model.sizes(output) or [None]
    return len(sizes) in (2, 3) and sizes[-1] == 4 and len(model.outputs) > 1


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
        source = box or f"output '{boxed}'"
        return f"this is a detector ({source}): it gives boxes, and no one distribution over classes for a sample"
    box_name = box_output(model)
    if box_name and len(model.sizes(box_name) or ()) == 3:
        return f"this is a detector (boxes in '{box_name}' beside scores): it gives no one distribution for a sample"
    boxes = next((info.name for info in model.proto.graph.output if _boxes_beside_scores(model, info)), None)
    if boxes is not None:
        return f"this is a detector (boxes beside scores in '{boxes}'): it gives no one distribution for a sample"
    unit_vectors = (
        node for node in model.proto.graph.node if node.op_type == "LpNormalization" and attribute_of(node, "p", 2) == 2
    )
    if any(set(node.output) & set(outputs) for node in unit_vectors):
        return "this is an embedding model (LpNormalization): it gives unit vectors, and no scores of classes"
    regressor = next((kind for kind in operators if kind.endswith("Regressor")), None)
    classifier = any(kind.endswith("Classifier") or kind == "ZipMap" for kind in operators)
    # one number of another operator may be a logit, and the refusal asks for that
    if classifier or regressor is None or not _gives_one_number(model):
        return ""
    return f"this is a regressor ({regressor}): it gives one number a sample, and no classes with confidences"


# What changes the shape alone, and what takes a part.
_MOVED = frozenset({"Cast", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"})
_MAX_PARTS = 32  # YOLO joins three scales of three parts


def _boxes_beside_scores(model: Model, info: onnx.ValueInfoProto) -> bool:
    """Whether an output (N, 4 + C, A), or (N, A, 4 + C), puts sigmoids beside other numbers, as YOLO does."""
    if len(info.type.tensor_type.shape.dim) != 3:
        return False
    parts = [info.name]
    operators: set[str] = set()
    for part in parts:  # it grows
        node = model.maker(part, _MOVED)
        if node is None or len(parts) > _MAX_PARTS:
            return False
        if node.op_type == "Concat":
            parts += node.input
        operators.add(node.op_type)
    return {"Concat", "Sigmoid"} < operators


def _gives_one_number(model: Model) -> bool:
    """Whether every output is a float tensor with one number a sample."""
    for info in model.proto.graph.output:
        tensor = info.type.tensor_type
        if not info.type.HasField("tensor_type") or tensor.elem_type not in FLOAT_TYPES:
            return False
        # skl2onnx declares (N, 1), and other exporters (N,)
        if any(dim.dim_value != 1 for dim in tensor.shape.dim[1:]):
            return False
    return True
