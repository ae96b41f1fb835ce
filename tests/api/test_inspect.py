"""`inspect`: what it says of heads is what the file holds, and nothing is run."""

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import tna_onnx
from tests.builders import small_model, tensor_info
from tests.conftest import Small
from tests.extraction.samples import dense
from tests.pipeline.samples import few
from tests.support import PLAIN, cli, ok
from tna_onnx.runtime import providers


def test_the_head_of_a_file(small: Small) -> None:
    found = tna_onnx.inspect(small.model)
    (head,) = found.heads
    assert found.sha256 == hashlib.sha256(small.model.read_bytes()).hexdigest()
    assert (found.ir_version, found.opset, found.refusals, found.provenance) == (8, 17, (), {})
    assert (head.node, head.op_type, head.weight, head.bias) == ("head", "Gemm", "weight", "bias")
    assert (head.classes, head.n_features, head.features, head.logits) == (5, 32, "features", "logits")
    assert (head.weight_type, head.activation, head.output) == ("float32", "none", "logits")
    (line,) = found.inputs
    assert line.startswith("x: ")
    assert "8" in line


def test_types_of_half_precision_and_no_bias() -> None:
    proto = dense(np.float16, softmax=True)
    del proto.graph.node[1].input[2]
    (head,) = tna_onnx.inspect(proto).heads
    assert (head.weight_type, head.bias, head.activation, head.follows) == ("float16", None, "softmax", ("Softmax",))


def test_two_outputs_of_one_head_are_one_head_by_its_first_output() -> None:
    proto = dense(softmax=True)
    proto.graph.output.append(tensor_info("logits", ["N", 3]))
    (head,) = tna_onnx.inspect(proto).heads
    assert head.output == "p"


def test_a_model_without_a_head_has_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a session was opened")

    monkeypatch.setattr(providers, "open_session", refuse)
    proto = dense()
    proto.graph.node.append(helper.make_node("Sin", ["logits"], ["y"], name="sine"))
    proto.graph.output[0].name = "y"
    found = tna_onnx.inspect(proto)
    assert found.heads == ()
    assert [(refusal.output, refusal.node) for refusal in found.refusals] == [("y", "sine")]


def test_what_was_written_is_read_back(small: Small) -> None:
    report = tna_onnx.calibrate(onnx.load(small.model), few(small.calib, 200), **PLAIN)
    found = tna_onnx.inspect(report.recalibrated)
    assert (found.provenance["map"], found.provenance["search"]) == ("ts", "none")
    assert float(found.provenance["temperature"]) == report.parameters["temperature"]


def test_labels_beside_the_scores_are_no_refusal(tmp_path: Path) -> None:
    """An output of integers is what a scikit-learn pipeline gives besides its probabilities."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"], name="head"),
        helper.make_node("Softmax", ["scores"], ["p"]),
        helper.make_node("ArgMax", ["p"], ["label"], axis=1, keepdims=0, name="labels"),
    ]
    outputs = [helper.make_tensor_value_info("label", onnx.TensorProto.INT64, ["N"]), tensor_info("p", ["N", 3])]
    proto = small_model(nodes, {"x": ["N", 2]}, outputs, {"w": np.eye(2, 3, dtype=np.float32)})
    onnx.save(proto, tmp_path / "m.onnx")
    result = tna_onnx.inspect(tmp_path / "m.onnx")
    assert [head.output for head in result.heads] == ["p"]
    assert [refusal.reason for refusal in result.refusals] == ["holds class labels, not scores"]
    shown = ok("inspect", tmp_path / "m.onnx")
    assert "labels   output 'label', from labels" in shown.output
    assert "refused" not in shown.output


def test_what_works_comes_before_what_was_refused(tmp_path: Path) -> None:
    """Scores that stop the walk: a map can go behind them as soon as someone says what they are."""
    proto = dense()
    proto.graph.node.append(helper.make_node("Sin", ["logits"], ["y"], name="sine"))
    proto.graph.output[0].name = "y"
    onnx.save(proto, tmp_path / "m.onnx")
    found = tna_onnx.inspect(tmp_path / "m.onnx")
    assert [(scores.output, scores.holds, scores.classes) for scores in found.scores] == [("y", "", 3)]
    shown = ok("inspect", tmp_path / "m.onnx")  # rows that add up to 1 can be calibrated as they are
    works = shown.output.index("where rows add up to 1; else say what it is")
    assert works < shown.output.index("no head  output 'y', at sine: Sin is neither")


def test_grids_of_one_width_may_be_those_of_a_detector(tmp_path: Path) -> None:
    """The scales of a YOLO end in convolutions of one width, as the outputs of a segmentation may."""
    grids = {"large": ["N", 24, 8, 8], "small": ["N", 24, 4, 4]}
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["large"]),
        helper.make_node("MaxPool", ["x"], ["half"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["half", "b"], ["small"]),
    ]
    weights = np.random.default_rng(0).normal(size=(2, 24, 3, 1, 1)).astype(np.float32)
    proto = small_model(nodes, {"x": ["N", 3, 8, 8]}, grids, {"a": weights[0], "b": weights[1]})
    onnx.save(proto, tmp_path / "m.onnx")
    text = cli("inspect", tmp_path / "m.onnx").output
    assert "--head large" in text
    assert "detector" in text
