"""What a walk returns besides its outcome, whether or not it found a head."""

from __future__ import annotations

from pathlib import Path

from tests.graph.samples import Builder
from tna_onnx.graph.cut import ancestors
from tna_onnx.graph.readout import Head
from tna_onnx.graph.walk import walk_back
from tna_onnx.graph.walk.steps import Refusal


def test_a_walk_to_a_head(tmp_path: Path) -> None:
    b = Builder()
    b.node("Softmax", b.linear("scores"), out="y")
    walked = walk_back(b.sample({"y": "softmax"}, bias_scale=1.0).write(tmp_path), "y")
    assert isinstance(walked.outcome, Head)
    assert (walked.where, walked.logits, walked.activation) == ("head", "scores", "softmax")
    assert walked.follows == ("Softmax",)
    assert walked.node is not None
    assert walked.node.op_type == "Gemm"


def test_a_walk_that_ends_at_an_operator_that_may_not_follow(tmp_path: Path) -> None:
    """What lies between the output and that operator is known all the same."""
    b = Builder()
    b.node("Softmax", b.node("CumSum", b.linear("scores"), b.store("axis", 1, int), out="sums"), out="y")
    walked = walk_back(b.sample({"y": "softmax"}).write(tmp_path), "y")
    assert isinstance(walked.outcome, Refusal)
    assert walked.outcome.node == walked.where == "CumSum of sums"
    assert (walked.logits, walked.activation, walked.follows) == ("sums", "softmax", ("Softmax",))


def test_a_walk_that_ends_at_an_input(tmp_path: Path) -> None:
    b = Builder()
    b.node("Identity", "x", out="y")
    walked = walk_back(b.sample().write(tmp_path), "y")
    assert isinstance(walked.outcome, Refusal)
    assert walked.where == "tensor 'x'"
    assert walked.node is None
    assert walked.follows == ("Identity",)


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
