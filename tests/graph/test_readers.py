"""Labels that are read in front of a map: only the place of the largest score of each sample stays right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.builders import small_model, tensor_info
from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.head import choose_head
from tna_onnx.graph.load import load_model
from tna_onnx.graph.scores import require_no_other_readers

CLASSES = 5


def labelled(folder: Path, kind: str, axis: int, *, declared: bool = True) -> Path:
    """Scores (N, 4, C), (N, C, 1, 1) or (N, C), of which labels are read in front of what makes the logits."""
    weight = np.random.default_rng(0).standard_normal((3, CLASSES)).astype(np.float32)
    shapes = {"tokens": ["N", 4, CLASSES], "image": ["N", CLASSES, 1, 1], "matrix": ["N", CLASSES]}
    inputs = {"tokens": ["N", 4, 3], "image": ["N", 3, 1, 1], "matrix": ["N", 3]}
    first = helper.make_node("MatMul", ["x", "w"], ["s"], name="head")
    after = [helper.make_node("Identity", ["s"], ["logits"])]
    if kind == "image":
        first = helper.make_node("Conv", ["x", "w"], ["s"], name="head")
        weight = weight.T[:, :, None, None].copy()
        after = [helper.make_node("Flatten", ["s"], ["logits"])]
    if kind == "tokens":
        after = [helper.make_node("ReduceMean", ["s"], ["logits"], axes=[1], keepdims=0)]
    labels = helper.make_node("ArgMax", ["s"], ["labels"], axis=axis, keepdims=0)
    proto = small_model(
        [first, labels, *after],
        inputs=[tensor_info("x", inputs[kind])],
        outputs=[
            tensor_info("logits", ["N", CLASSES]),
            helper.make_tensor_value_info("labels", onnx.TensorProto.INT64, None),
        ],
        tensors={"w": weight},
    )
    if declared:
        proto.graph.value_info.append(tensor_info("s", shapes[kind]))
    onnx.save(proto, folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize(
    ("kind", "axis", "is_label"),
    [
        ("matrix", 1, True),
        ("matrix", -1, True),
        ("matrix", 0, False),
        ("tokens", -1, True),
        ("tokens", 2, True),
        ("tokens", 1, False),
        ("image", 1, True),
        ("image", -3, True),
        ("image", -1, False),
    ],
)
def test_an_argmax_gives_labels_over_the_axis_of_the_classes(
    kind: str, axis: int, is_label: bool, tmp_path: Path
) -> None:
    model = load_model(labelled(tmp_path, kind, axis))
    head = choose_head(model, output="logits")
    if is_label:
        require_no_other_readers(model, head, keeps_order=True)
        with pytest.raises(UnsupportedModel, match="use --map ts, ets or none"):
            require_no_other_readers(model, head, keeps_order=False)
        return
    with pytest.raises(UnsupportedModel, match="is read elsewhere too"):
        require_no_other_readers(model, head, keeps_order=True)


def test_a_shape_that_is_not_declared_is_taken_as_a_matrix(tmp_path: Path) -> None:
    model = load_model(labelled(tmp_path, "matrix", 1, declared=False))
    require_no_other_readers(model, choose_head(model, output="logits"), keeps_order=True)
