"""What a walk returns besides its outcome, whether or not it found a head."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import helper

from tests.builders import small_model, tensor_info
from tests.graph.samples import Builder
from tna_onnx.graph.cut import ancestors
from tna_onnx.graph.load import load_model
from tna_onnx.graph.readout import Head
from tna_onnx.graph.walk import walk_back
from tna_onnx.graph.walk.steps import Refusal


def test_a_walk_that_ends_at_an_operator_that_may_not_follow(tmp_path: Path) -> None:
    """What lies between the output and that operator is known all the same."""
    b = Builder()
    b.node("Softmax", b.node("CumSum", b.linear("scores"), b.store("axis", 1, int), out="sums"), out="y")
    walked = walk_back(b.sample({"y": "softmax"}).write(tmp_path), "y")
    assert isinstance(walked.outcome, Refusal)
    assert walked.outcome.node == walked.where == "CumSum of sums"
    assert (walked.logits, walked.activation, walked.follows) == ("sums", "softmax", ("Softmax",))


def test_ancestors_stop_at_shapes(tmp_path: Path) -> None:
    """A shape is computed from a tensor, but not from its values."""
    b = Builder()  # nodes 0 and 1 make the features
    b.node("Shape", "features", out="shape")
    b.node("Reshape", b.linear("scores"), "shape", out="y")
    model = b.sample().write(tmp_path)
    labels = {model.labels[k] for k in ancestors(model, "shape")}
    assert labels == {"Shape of shape"}
    assert {model.labels[k] for k in ancestors(model, "y")} == {
        "MatMul of trunk_out", "Relu of features", "Shape of shape", "head", "Reshape of y",
    }  # fmt: skip


def test_nodes_in_a_circle_before_a_layer_end_the_walk() -> None:
    """A damaged file: what was behind the features is asked of a Reshape that reads itself, and of two in a ring."""
    for inputs in (["a"], ["b", "a"]):
        names = dict(zip(["a", "b"], inputs, strict=False))
        nodes = [helper.make_node("Identity", [read], [name]) for name, read in names.items()]
        nodes.append(helper.make_node("MatMul", ["a", "w"], ["y"]))
        shapes = [tensor_info("x", [None, 4])], [tensor_info("y", [None, 3])]
        proto = small_model(nodes, *shapes, {"w": np.ones((4, 3), np.float32)})
        assert isinstance(walk_back(load_model(proto), "y").outcome, Refusal | Head)
