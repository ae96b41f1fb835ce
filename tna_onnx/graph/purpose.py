"""What operators, shapes and names tell of outputs: no scores (`other_purpose`), boxes, or probabilities.

Values are never looked at. `is_one_vs_rest` recognises separate binary classifiers side by side, as skl2onnx writes
them.
"""

import numpy as np
import onnx

from tna_onnx.graph.bounds import attribute_of, input_at
from tna_onnx.graph.constants import quantization_step
from tna_onnx.graph.load import SHAPE_OR_TYPE, Model, tells_damage
from tna_onnx.graph.tensors import FLOAT_TYPES, epsilon

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


@tells_damage
def other_purpose(model: Model) -> str:
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


_MOVED = SHAPE_OR_TYPE | {"Slice", "Split", "Transpose"}
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


_CLASSIFIERS = ("LinearClassifier", "TreeEnsembleClassifier")


def gives_probabilities(node: onnx.NodeProto | None) -> bool:
    """Whether an operator's attributes say that its scores are probabilities."""
    if node is None:
        return False
    if node.domain == "ai.onnx.ml" and node.op_type in _CLASSIFIERS:
        transform = attribute_of(node, "post_transform", b"NONE")
        return transform in (b"SOFTMAX", b"LOGISTIC") or _adds_up_to_one(node)
    if node.domain == "ai.onnx.ml" and node.op_type == "SVMClassifier":
        return any(a.name == "prob_a" for a in node.attribute)
    return node.op_type == "QLinearSoftmax"


def _adds_up_to_one(node: onnx.NodeProto) -> bool:
    """Tell whether a node is a forest in which every leaf gives its classes shares of 1 / (number of trees).

    Of two classes the second one's share alone may be stored: then no leaf gives more, and one gives all of it.
    """
    if not holds_shares(node):
        return False
    if attribute_of(node, "base_values", ()) or attribute_of(node, "post_transform", b"NONE") != b"NONE":
        return False
    names = ("class_treeids", "class_nodeids", "class_weights", "class_ids")
    trees, places, weights, classes = (np.array(attribute_of(node, name, ())) for name in names)
    if not len(trees) == len(places) == len(weights):
        return False
    _, leaf = np.unique(np.stack([trees, places]), axis=1, return_inverse=True)
    share = np.bincount(np.ravel(leaf), weights) * len(np.unique(trees))
    one_class = len(np.unique(classes)) == 1
    return bool(np.allclose(share.max(), 1, atol=1e-3) and (one_class or np.allclose(share, 1, atol=1e-3)))


def holds_shares(node: onnx.NodeProto | None) -> bool:
    """Whether a node is a forest whose leaves hold shares of samples, as in scikit-learn."""
    if node is None or node.op_type != "TreeEnsembleClassifier":
        return False
    weights = attribute_of(node, "class_weights", ())
    return bool(weights) and min(weights) >= 0 and max(weights) <= 1


# What takes columns.
_TAKERS = {"ArrayFeatureExtractor", "Gather", "Slice"}


def step_of_probabilities(model: Model, tensor: str, n_classes: int) -> float | None:
    """Return the step in which probabilities come that have no tensor of logits; None where the graph does not tell.

    It is that of a quantiser, 1/T of T trees that vote, 1/k of k neighbours, or the rounding of 1 where 1 - p is stored
    beside p.
    """
    node = model.maker(tensor, SHAPE_OR_TYPE | _TAKERS | {"Normalizer", "Transpose"})
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
    for k in model.ancestors(tensor):
        node = model.proto.graph.node[k]
        count = model.constant_tensor(input_at(node, 1))
        if node.op_type == "TopK" and count is not None:
            return 1 / max(1, int(model.array(count).item()))
    return None


# What takes the second column out of two, and what changes the form alone.
_PASSED = SHAPE_OR_TYPE | _TAKERS | {"DequantizeLinear", "QuantizeLinear"}


def is_one_vs_rest(model: Model, node: onnx.NodeProto | None) -> bool:
    """Whether a node puts side by side what several sigmoids give, each of a classifier of its own.

    A sigmoid of integers is one too: logits are no float tensor there, so that its output is calibrated as it is.
    """
    if node is None or node.op_type not in ("Concat", "QLinearConcat") or len(node.input) < 2:
        return node is not None and node.op_type == "QLinearSigmoid"
    if attribute_of(node, "axis", 0) not in (1, -1):
        return False
    names = node.input[2::3] if node.op_type == "QLinearConcat" else node.input  # each with scale and zero point
    sources = [_sigmoid_behind(model, name) for name in names]
    # columns of one classifier are put together again elsewhere
    return "" not in sources and len(set(sources)) == len(sources)


def _sigmoid_behind(model: Model, tensor: str) -> str:
    """Return the result of the sigmoid that makes a column; empty if none does."""
    node = model.maker(tensor, _PASSED)
    if node is not None and node.op_type == "Concat" and len(node.input) == 2:
        node = model.maker(node.input[1], _PASSED)  # (1 - p, p)
    if node is None:
        return ""
    logistic = node.op_type in _CLASSIFIERS and attribute_of(node, "post_transform", b"") == b"LOGISTIC"
    if node.op_type in ("Sigmoid", "QLinearSigmoid") or logistic:
        return str(node.output[0])
    return ""
