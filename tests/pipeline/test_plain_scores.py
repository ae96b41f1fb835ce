"""Scores that no linear layer makes: what a map behind them is written in, and what the report says of them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper
from scipy.special import expit, softmax

import tna_onnx
from tests.builders import nodes_of, small_model, tensor_info
from tests.pipeline.samples import nll, recalibrated
from tests.support import outputs_of, with_options

N, FEATURES, CLASSES = 600, 5, 3
QUICK: dict[str, Any] = {"search": "none", "device": "cpu"}


Arrays = tuple[NDArray[Any], NDArray[Any]]


def cubed(last: list[onnx.NodeProto], kind: Any) -> tuple[onnx.ModelProto, Arrays, NDArray[np.float64]]:
    """Return the model `x -> cubed scores s -> last -> y`, samples with labels, and their scores."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((FEATURES, CLASSES)).astype(np.float32)
    x = rng.standard_normal((N, FEATURES)).astype(np.float32)
    nodes = [*nodes_of("MatMul x w > products; Pow products three > s"), *last]
    outputs = [tensor_info("y", ["N", CLASSES], kind)]
    proto = small_model(nodes, {"x": ["N", FEATURES]}, outputs, {"w": weight, "three": np.float32(3)})
    scores = (x @ weight.astype(np.float64)) ** 3
    # labels of a model that is half as sure
    return proto, (x, np.argmax(scores / 2 + rng.gumbel(size=(N, CLASSES)), axis=1)), scores


@pytest.mark.parametrize(("activation", "kind"), [("Softmax", np.float64), ("LogSoftmax", np.float16)])
def test_a_cast_behind_the_activation_says_nothing_of_the_logits(activation: str, kind: Any, tmp_path: Path) -> None:
    last = [
        helper.make_node(activation, ["s"], ["p"], axis=1),
        helper.make_node("Cast", ["p"], ["y"], to=helper.np_dtype_to_tensor_dtype(np.dtype(kind))),
    ]
    proto, data, scores = cubed(last, kind)
    report, new = recalibrated(proto, data, tmp_path, map="ts")
    y = outputs_of(new, data[0])["y"]
    assert y.dtype == outputs_of(proto, data[0])["y"].dtype == kind
    p = np.exp(y.astype(np.float64)) if activation == "LogSoftmax" else y.astype(np.float64)
    # log-probabilities of float16 have steps of 2^-6 near -16, of which an exponential leaves little
    expected = softmax(scores / report.parameters["temperature"], axis=1)
    np.testing.assert_allclose(p, expected, rtol=0, atol=1e-3)


def test_labels_of_probability_0_are_named(tmp_path: Path) -> None:
    """A Hardmax gives classes, and no confidences: its log loss is that of the smallest number."""
    proto, data, _ = cubed([helper.make_node("Hardmax", ["s"], ["y"], axis=1)], np.float32)
    report, _ = recalibrated(proto, data, tmp_path, map="bias-floor")
    wrong = int(np.sum(outputs_of(proto, data[0])["y"].argmax(axis=1) != data[1]))
    notes = " ".join(report.notes)
    assert f"{wrong:,} of {N:,} labels have a probability of 0" in notes
    assert "every confidence is 1" in notes


@pytest.mark.parametrize("zeros", [0, 7])
def test_a_small_probability_of_float16_is_not_0(zeros: int) -> None:
    """exp -9 is above the least normal number of float16, 6e-5, and within 1 nat of it."""
    outputs = [tensor_info("y", ["N", 2], np.float16)]
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.FLOAT16)]
    proto = small_model(nodes, {"x": ["N", 2]}, outputs, {})
    rare = np.r_[np.zeros(zeros), np.full(20, np.exp(-9)), np.full(600, np.exp(-5))].astype(np.float32)
    data = np.stack([1 - rare, rare], axis=1), (np.arange(len(rare)) < zeros + 20).astype(int)
    words = {"map": "ts", "dry_run": True, "require": "nothing", "trust_labels": True, "output_kind": "probabilities"}
    report = with_options(tna_onnx.calibrate, proto, data, **words, **QUICK)
    found = [note for note in report.notes if "have a probability of 0" in note]
    assert [note.split(" ", 1)[0] for note in found] == ["7"] * bool(zeros)


def test_numbers_that_float16_does_not_have() -> None:
    last = nodes_of("Softmax s > p axis=1; Cast p > half to=FLOAT16; Identity half > y")
    proto, data, _ = cubed(last, np.float16)
    assert tna_onnx.calibrate(proto, data, map="irova", dry_run=True, gates=tna_onnx.Gates(require="nothing"), **QUICK)
    proto.graph.node[1].output[0] = "wide"
    proto.graph.node.insert(2, helper.make_node("Cast", ["wide"], ["s"], to=onnx.TensorProto.FLOAT16))
    del proto.graph.node[4]
    proto.graph.node[4].input[0] = "p"
    with pytest.raises(tna_onnx.UnsupportedModel, match="irova has numbers that are too small for float16"):
        tna_onnx.calibrate(proto, data, map="irova", dry_run=True, **QUICK)


@pytest.mark.parametrize(("head", "mask"), [(True, -1e4), (False, -3e38)])
def test_a_masked_class_does_not_blunt_the_check_of_the_file(head: bool, mask: float, tmp_path: Path) -> None:
    """Its probability is 0, however its logit is rounded: the others are still compared to some units of rounding."""
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((FEATURES, CLASSES)), np.array([0.5, mask, 0.0])
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"])]
    if not head:
        product = helper.make_node("Einsum", ["x", "x", "w"], ["p"], equation="ni,ni,ic->nc")
        nodes = [product, helper.make_node("Add", ["p", "b"], ["y"])]
    tensors = {"w": weight.astype(np.float32), "b": bias.astype(np.float32)}
    proto = small_model(nodes, {"x": ["N", FEATURES]}, {"y": ["N", CLASSES]}, tensors)
    x = rng.standard_normal((N, FEATURES)).astype(np.float32)
    scores = outputs_of(proto, x)["y"]
    data = x, np.argmax(scores / 2 + rng.gumbel(size=scores.shape), axis=1)
    kind = {} if head else {"output_kind": "logits"}
    report, _ = recalibrated(proto, data, tmp_path, map="ts", trust_labels=True, **kind)
    # 16 units of rounding of logits below 20, and 1e-6
    assert report.verification.max_difference <= report.verification.bound < 1e-4


@pytest.mark.parametrize(
    ("activation", "search_map"), [("LogSoftmax", "ts"), ("Softmax", "sms"), ("Softmax", "isotonic")]
)
def test_scores_that_are_the_graphs_input(activation: str, search_map: Any, tmp_path: Path) -> None:
    """A stage behind a network: the map goes between the input and its reader, and other readers keep the input."""
    rng = np.random.default_rng(1)
    x = (2 * rng.standard_normal((N, CLASSES))).astype(np.float32)
    labels = np.argmax(x / 2 + rng.gumbel(size=x.shape), axis=1)
    nodes = [helper.make_node(activation, ["x"], ["y"], axis=1), helper.make_node("Neg", ["x"], ["minus"])]
    outputs = [tensor_info(name, ["N", CLASSES], np.float32) for name in ("y", "minus")]
    proto = small_model(nodes, {"x": ["N", CLASSES]}, outputs, {})
    report, new = recalibrated(proto, (x, labels), tmp_path, map=search_map, output_name="y")
    y, minus = outputs_of(new, x).values()
    np.testing.assert_array_equal(minus, -x)
    p = np.exp(y) if activation == "LogSoftmax" else y
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-5)
    if search_map == "ts":
        expected = softmax(x.astype(np.float64) / report.parameters["temperature"], axis=1)
        np.testing.assert_allclose(p, expected, rtol=0, atol=1e-6)
    assert -np.log(p[np.arange(N), labels]).mean() < nll(x, labels)


def test_logits_far_apart_are_cut_in_the_file_as_in_its_check(tmp_path: Path) -> None:
    """Naive Bayes on heavy tails: log p of a class is -30,000, which float32 cuts at -87, and float64 at -708."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((N, 2)) * rng.choice([1, 1000], (N, 1), p=[0.9, 0.1])).astype(np.float32)
    nodes = [helper.make_node("Mul", ["x", "one"], ["s"]), helper.make_node("Softmax", ["s"], ["y"], axis=1)]
    proto = small_model(nodes, {"x": ["N", 2]}, [tensor_info("y", ["N", 2])], {"one": np.float32(1)})
    labels = (rng.random(N) < 1 / (1 + np.exp(-0.002 * (x[:, 1] - x[:, 0])))).astype(np.int64)
    report, _ = recalibrated(proto, (x, labels), tmp_path, map="beta", trust_labels=True)
    assert report.verification.max_difference < 1e-5


@pytest.mark.parametrize(("source", "kind"), [("leaves", "Softmax"), ("columns", "LogSoftmax"), ("leaves", "Sigmoid")])
def test_a_number_of_classes_that_has_only_a_name(source: str, kind: str, tmp_path: Path) -> None:
    """As Hummingbird declares the leaves of a tree: nodes tell how many classes there are."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 4)).astype(np.float32)
    leaves = (2 * rng.normal(size=(16, 3))).astype(np.float32)
    nodes = nodes_of("Sin x > f; Gather f first > z axis=1")
    if source == "leaves":
        nodes = nodes_of(
            "Greater x zero > g; Cast g > f to=FLOAT; MatMul f w > i; Cast i > k to=INT64; Gather leaves k > z"
        )
    nodes.append(helper.make_node(kind, ["z"], ["p"]))
    tensors = {"leaves": leaves, "w": np.array([1, 2, 4, 8], np.float32), "zero": np.float32(0), "first": np.arange(3)}
    used = {name: value for name, value in tensors.items() if any(name in node.input for node in nodes)}
    proto = small_model(nodes, {"x": ["N", 4]}, {"p": ["N", "classes"]}, used)
    z = leaves[(x > 0) @ np.array([1, 2, 4, 8])] if source == "leaves" else np.sin(x[:, :3])
    z = z.astype(np.float64)
    labels: Any = np.argmax(z / 2 + rng.gumbel(size=z.shape), axis=1)
    if kind == "Sigmoid":
        labels = (z / 2 > rng.logistic(size=z.shape)).astype(np.int64)
    _, new = recalibrated(proto, {"x": x, "labels": labels}, tmp_path, map="ts")
    scaled = z / float(tna_onnx.inspect(new).provenance["temperature"])
    p = expit(scaled) if kind == "Sigmoid" else softmax(scaled, axis=1)
    found = outputs_of(new, x)["p"]
    np.testing.assert_allclose(np.exp(found) if kind == "LogSoftmax" else found, p, atol=1e-5)


@pytest.mark.parametrize("shape", [["N", 1], ["N"]])
def test_one_column_may_be_the_probability_of_the_second_class(shape: list[str], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N, 1)).astype(np.float32)
    nodes = nodes_of("Erf x > e; Mul e half > h; Add h half > p; Reshape p shape > y")
    values = {"half": np.float32(0.5), "shape": np.array([-1, *[1] * (len(shape) - 1)])}
    proto = small_model(nodes, {"x": ["N", 1]}, [tensor_info("y", shape)], values)
    p = outputs_of(proto, x)["y"]
    odds = np.log(p / (1 - p)).ravel()
    labels = (rng.random(N) < 1 / (1 + np.exp(-odds / 2 - 1))).astype(np.int64)
    report, path = recalibrated(proto, (x, labels), tmp_path, map="platt", output_kind="probability")
    new = outputs_of(path, x)["y"]
    assert new.shape == p.shape
    slope, intercept = report.parameters["slope"], report.parameters["intercept"]
    np.testing.assert_allclose(new.ravel(), 1 / (1 + np.exp(-slope * odds - intercept)), atol=1e-5)
    assert tna_onnx.verify(proto, path, data=(x, labels)).intact
    after = tna_onnx.evaluate(path, (x, labels))
    assert after.metrics.nll == pytest.approx(report.calibration.after.nll, abs=1e-5)
