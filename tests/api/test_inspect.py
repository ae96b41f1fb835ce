"""`inspect`: what it says of heads is what the file holds, and nothing is run."""

import hashlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tna_onnx
from tests.builders import nodes_of, small_model, tensor_info
from tests.conftest import Small
from tests.extraction.samples import dense
from tests.pipeline.samples import few
from tests.support import PLAIN, cli, ok
from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.scores import LABELS


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


def test_a_head_by_an_output_is_refused_for_what_that_output_is() -> None:
    proto = dense()
    for kind in ("Sin", "Cos"):
        proto.graph.node.append(helper.make_node(kind, ["logits"], [f"y{kind}"], name=f"node{kind}"))
        proto.graph.output.append(tensor_info(f"y{kind}", ["N", 3]))
    options = tna_onnx.ModelOptions(head="ySin")
    with pytest.raises(UnsupportedModel, match="nodeSin") as told:
        tna_onnx.calibrate(proto, {"x": np.zeros((30, 8)), "labels": np.arange(30) % 2}, model_options=options)
    assert "Cos" not in str(told.value)


def test_what_was_written_is_read_back(small: Small) -> None:
    report = tna_onnx.calibrate(onnx.load(small.model), few(small.calib, 200), **PLAIN)
    found = tna_onnx.inspect(report.recalibrated)
    assert (found.provenance["map"], found.provenance["search"]) == ("ts", "none")
    assert float(found.provenance["temperature"]) == report.parameters["temperature"]


def test_labels_beside_the_scores_are_no_refusal(tmp_path: Path) -> None:
    """An output of integers is what a scikit-learn pipeline gives besides its probabilities."""
    nodes = nodes_of(
        "MatMul x w > scores name=head; Softmax scores > p; ArgMax p > label axis=1 keepdims=0 name=labels"
    )
    outputs = [helper.make_tensor_value_info("label", onnx.TensorProto.INT64, ["N"]), tensor_info("p", ["N", 3])]
    proto = small_model(nodes, {"x": ["N", 2]}, outputs, {"w": np.eye(2, 3, dtype=np.float32)})
    onnx.save(proto, tmp_path / "m.onnx")
    result = tna_onnx.inspect(tmp_path / "m.onnx")
    assert [head.output for head in result.heads] == ["p"]
    assert [refusal.reason for refusal in result.refusals] == [LABELS]
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
    assert (found.heads, [(each.output, each.node) for each in found.refusals]) == ((), [("y", "sine")])
    assert [(scores.output, scores.holds, scores.classes) for scores in found.scores] == [("y", "", 3)]
    shown = ok("inspect", tmp_path / "m.onnx")  # rows that add up to 1 can be calibrated as they are
    works = shown.output.index("where rows add up to 1; else say what it is")
    assert works < shown.output.index("no head  output 'y', at sine: Sin is neither")


def test_grids_of_one_width_may_be_those_of_a_detector(tmp_path: Path) -> None:
    """The scales of a YOLO end in convolutions of one width, as the outputs of a segmentation may."""
    grids = {"large": ["N", 24, 8, 8], "small": ["N", 24, 4, 4]}
    nodes = nodes_of("Conv x a > large; MaxPool x > half kernel_shape=[2,2] strides=[2,2]; Conv half b > small")
    weights = np.random.default_rng(0).normal(size=(2, 24, 3, 1, 1)).astype(np.float32)
    proto = small_model(nodes, {"x": ["N", 3, 8, 8]}, grids, {"a": weights[0], "b": weights[1]})
    onnx.save(proto, tmp_path / "m.onnx")
    text = cli("inspect", tmp_path / "m.onnx").output
    assert "--head large" in text
    assert len([line for line in text.splitlines() if "(24, 3)" in line]) == 2  # a line each
    assert "detector" in text


# ---- What `calibrate` refuses by the graph is refused here, in the same words


# x -> features f (N, 8)
FRONTS: dict[str, tuple[list[onnx.NodeProto], list[Any]]] = {
    "nothing": (nodes_of("Identity x > f"), ["N", 8]),
    "a layer": (nodes_of("MatMul x square > f1; Relu f1 > f"), ["N", 8]),
    "Flatten": (nodes_of("Flatten x > f"), ["N", 2, 4]),
    "a state": (nodes_of("Unsqueeze x first > f1; GRU f1 gw gr > f2 hidden_size=8; Squeeze f2 two > f"), ["N", 8]),
    "a batch of 4": (nodes_of("Relu x > f"), [4, 8]),
}
# f -> what is no score of classes
ENDS: dict[str, tuple[list[onnx.NodeProto], dict[str, Any]]] = {
    "one number": (nodes_of("MatMul f one > y"), {"y": ["N", 1]}),
    "numbers in a row": (nodes_of("MatMul f vector > y"), {"y": ["N"]}),
    "a mean of probabilities": (
        nodes_of("MatMul f w > z; Sigmoid z > p; ReduceMean p > y axes=[1] keepdims=1"), {"y": ["N", 1]},
    ),
    "labels": (nodes_of("MatMul f w > z; ArgMax z > y axis=1 keepdims=0"), {"y": (["N"], np.int64)}),
    "yes or no": (nodes_of("MatMul f w > z; Greater z half > y"), {"y": (["N", 5], np.bool_)}),
    "the largest three": (nodes_of("MatMul f w > z; TopK z three > y places axis=1"), {"y": ["N", 3]}),
    "states": (nodes_of("Unsqueeze f first > u; GRU u gw gr > all y hidden_size=8"), {"y": [1, "N", 8]}),
    "an image": (nodes_of("Reshape f image > i; Tanh i > y"), {"y": ["N", 2, 2, 2]}),
    "probabilities of places": (nodes_of("Reshape f image > i; Sigmoid i > y"), {"y": ["N", 2, 2, 2]}),
    "unit vectors": (nodes_of("MatMul f w > z; LpNormalization z > y axis=1 p=2"), {"y": ["N", 5]}),
    "one number, and labels": (
        nodes_of("MatMul f one > o; ArgMax f > y axis=1 keepdims=0"), {"o": ["N", 1], "y": (["N"], np.int64)},
    ),
}  # fmt: skip
_RNG = np.random.default_rng(0)
TENSORS = {
    **{name: _RNG.standard_normal(shape).astype(np.float32) for name, shape in (
        ("square", (8, 8)), ("w", (8, 5)), ("one", (8, 1)), ("vector", 8), ("gw", (1, 24, 8)), ("gr", (1, 24, 8)),
        ("turned", (5, 8)), ("column", (5, 1)), ("b", 5), ("words", (20, 8)),
    )},
    **{name: np.array(value) for name, value in (
        ("first", [0]), ("two", [0, 1]), ("three", [3]), ("image", [-1, 2, 2, 2]), ("wide", [1, 8]), ("any", [1, -1]),
    )},
    "half": np.float32(0.5),
}  # fmt: skip
# files for one sample: input and output share no axis of samples
SINGLE: dict[str, tuple[list[onnx.NodeProto], Any, list[Any]]] = {
    "x W": (nodes_of("MatMul x w > y"), [8], [5]),
    "W x + b": (nodes_of("MatMul square x > a; Relu a > f; MatMul turned f > g; Add g b > y"), [8], [5]),
    "softmax over axis 0": (nodes_of("MatMul x w > s; Softmax s > y axis=0"), [8], [5]),
    "places": (nodes_of("ReduceMean x > m axes=[1] keepdims=0; MatMul m w > y"), [8, 4], [5]),
    "words": (
        nodes_of("Gather words x > e; ReduceMean e > m axes=[0] keepdims=0; MatMul m w > y"),
        (["T"], np.int64), [5],
    ),
    "a column": (nodes_of("MatMul turned x > g; Add g column > y"), [8, 1], [5, 1]),
    "one sigmoid": (nodes_of("MatMul x one > s; Sigmoid s > y"), [8], [1]),
}  # fmt: skip


def _require_refusal(nodes: list[onnx.NodeProto], shape: Any, outputs: dict[str, Any], folder: Path) -> None:
    used = {name: value for name, value in TENSORS.items() if any(name in node.input for node in nodes)}
    model = small_model(nodes, {"x": shape}, outputs, used, opset=13)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, folder / "m.onnx")
    np.savez(folder / "d.npz", x=np.zeros((30, 8), np.float32), labels=np.arange(30) % 2)
    found = tna_onnx.inspect(model)
    assert (found.heads, found.scores) == ((), ())
    told = [cli("inspect", folder / "m.onnx"), cli("calibrate", folder / "m.onnx", folder / "d.npz", "--dry-run")]
    assert [result.exit_code for result in told] == [3, 3]
    assert told[0].stderr == told[1].stderr


@pytest.mark.parametrize(
    ("end", "front"), [*zip([*ENDS] * 2, itertools.cycle(FRONTS), strict=False)], ids=lambda name: name
)
def test_what_is_refused_is_refused_in_the_words_of_calibrate(end: str, front: str, tmp_path: Path) -> None:
    nodes, outputs = ENDS[end]
    in_front, shape = FRONTS[front]
    declared = {}
    for name, each in outputs.items():
        sizes, kind = each if isinstance(each, tuple) else (each, np.float32)
        declared[name] = ([shape[0] if size == "N" else size for size in sizes], kind)
    _require_refusal([*in_front, *nodes], shape, declared, tmp_path)


@pytest.mark.parametrize("form", SINGLE)
def test_a_file_for_one_sample_is_refused_by_its_shapes(form: str, tmp_path: Path) -> None:
    nodes, shape, output = SINGLE[form]
    _require_refusal(nodes, (shape if isinstance(shape, tuple) else (shape, np.float32)), {"y": output}, tmp_path)
