"""Graphs as exporters write them, end to end: what calibrate writes verifies, and holds nothing else that is new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

import tna_onnx
from tests.builders import nodes_of, small_model, stumps, tensor_info
from tests.conftest import Small
from tests.pipeline.samples import few, opened, recalibrated
from tests.support import loaded, outputs_of, with_options
from tna_onnx.errors import CheckFailed, UnsupportedModel, UsageError
from tna_onnx.pipeline.checking import checked_samples

Array = NDArray[Any]
CLASSES = 3
FEATURES = 6


def softened(p: Array) -> Array:
    """Draw labels from the square roots of probabilities: the model is too sure of itself."""
    weights = np.sqrt(np.maximum(np.asarray(p, np.float64), 1e-9))
    edges = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
    labels: Array = np.argmax(edges > np.random.default_rng(2).random((len(p), 1)), axis=1)
    return labels


X = np.random.default_rng(1).standard_normal((400, FEATURES)).astype(np.float32)


def softly(proto: onnx.ModelProto, folder: Path, p: Array | None = None, **options: Any) -> tuple[Any, Path]:
    """Calibrate a model on samples of which it gives the probabilities `p`; by default its output of that name."""
    labels = softened(outputs_of(proto, X)["p"] if p is None else p)
    return recalibrated(proto, {"x": X, "labels": labels}, folder, require="nothing", **options)


def trees(*, opset: int | None = None, cast: bool = False) -> onnx.ModelProto:
    """Two stumps as XGBoost's converter writes them, in a file that imports no standard operator set."""
    made = stumps(([2, 0, 0], [0, 1.5, 0]), ([0, 0, 3], [1, 0, 0]), post_transform="SOFTMAX")
    nodes = [helper.make_node("TreeEnsembleClassifier", ["x"], ["label", "p"], domain="ai.onnx.ml", **made)]
    if cast:
        nodes.append(helper.make_node("Cast", ["p"], ["p64"], to=onnx.TensorProto.DOUBLE))
    opsets = [helper.make_opsetid("ai.onnx.ml", 1)]
    if opset is not None:
        opsets.append(helper.make_opsetid("", opset))
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", FEATURES])
    outputs = [
        helper.make_tensor_value_info("label", onnx.TensorProto.INT64, ["N"]),
        helper.make_tensor_value_info("p", onnx.TensorProto.FLOAT, ["N", CLASSES]),
    ]
    return helper.make_model(helper.make_graph(nodes, "g", [x], outputs), ir_version=8, opset_imports=opsets)


@pytest.mark.parametrize("opset", [None, 1])
def test_a_file_without_standard_nodes_gets_the_opset_of_its_ir_version(opset: int | None, tmp_path: Path) -> None:
    p = outputs_of(trees(), X)["p"]
    report, new = softly(trees(opset=opset), tmp_path, p, map="ts")
    assert report.map == "ts"
    written = onnx.load(new)
    assert [(entry.domain, entry.version) for entry in written.opset_import] == [("ai.onnx.ml", 1), ("", 15)]
    assert np.abs(outputs_of(new, X)["p"] - p).max() > 0.01


@pytest.mark.parametrize("names", [[-1, 3, 7], [2, 0, 1]])
def test_classes_keep_their_names_behind_a_map(tmp_path: Path, names: list[int]) -> None:
    proto = trees(opset=15)
    labels = next(field for field in proto.graph.node[0].attribute if field.name == "classlabels_int64s")
    labels.ints[:] = names
    data = X, np.array(names)[softened(outputs_of(proto, X)["p"])].astype(str)
    report, new = recalibrated(proto, data, tmp_path, map="ts", require="nothing")
    after = tna_onnx.evaluate(new, data).metrics
    # a temperature keeps the order of the classes
    assert after.accuracy == tna_onnx.evaluate(proto, data).metrics.accuracy
    assert after.nll == pytest.approx(report.calibration.after.nll, rel=1e-5)


def test_shares_of_a_sum_are_no_unit_vectors() -> None:
    """One-vs-rest as scikit-learn's converter writes it: the sum of absolute values is one, not the length."""
    weight = 2 * np.random.default_rng(0).standard_normal((FEATURES, CLASSES)).astype(np.float32)
    nodes = nodes_of("MatMul x w > scores; Sigmoid scores > each; LpNormalization each > p axis=1 p=1")
    proto = small_model(nodes, [tensor_info("x", ["N", FEATURES])], [tensor_info("p", ["N", CLASSES])], {"w": weight})
    p = outputs_of(proto, X)["p"]
    labels = softened(p)
    metrics = tna_onnx.evaluate(proto, (X, labels)).metrics
    assert metrics.nll == pytest.approx(-np.log(p[np.arange(len(X)), labels]).mean(), rel=1e-5)


def test_standard_nodes_of_no_known_version_get_none_beside_them(tmp_path: Path) -> None:
    """Each runtime takes them for another version; an import would change what they mean."""
    p = outputs_of(trees(), X)["p"]
    with pytest.raises(UnsupportedModel, match=r"without an opset for them.*convert it to opset 7 or newer$"):
        softly(trees(cast=True), tmp_path, p, map="ts", output_name="p")


def old_file(*, tied: bool = False, opset: int = 8) -> onnx.ModelProto:
    """A head in a file of IR version 3, where every initializer is a graph input."""
    rng = np.random.default_rng(0)
    weight = 2 * rng.standard_normal((CLASSES, FEATURES)).astype(np.float32)
    nodes = nodes_of("Gemm x w b > logits name=head transB=1; Softmax logits > p axis=1")
    outputs = [tensor_info("p", ["N", CLASSES])]
    if tied:  # the weight is read elsewhere too: the head gets one of its own
        nodes.append(helper.make_node("Identity", ["w"], ["class vectors"]))
        outputs.append(tensor_info("class vectors", [CLASSES, FEATURES]))
    inputs = {"x": ["N", FEATURES], "w": [CLASSES, FEATURES], "b": [CLASSES]}
    tensors = {"w": weight, "b": rng.standard_normal(CLASSES).astype(np.float32)}
    return small_model(nodes, inputs, outputs, tensors, opset=opset, ir_version=3)


@pytest.mark.parametrize(("opset", "name"), [(7, "ets"), (8, "isotonic"), (18, "aar")])
def test_constants_of_a_map_are_nodes_where_initializers_must_be_inputs(tmp_path: Path, name: str, opset: int) -> None:
    proto = old_file(opset=opset)
    report, new = softly(proto, tmp_path, map=name)
    written = onnx.load(new)
    assert report.verification.checker
    assert written.graph.input == proto.graph.input
    assert [t.name for t in written.graph.initializer] == ["w", "b"]
    assert {node.op_type for node in written.graph.node if not node.input} == {"Constant"}


def test_a_weight_of_its_own_is_a_node_too(tmp_path: Path) -> None:
    proto = old_file(tied=True)
    _, path = softly(proto, tmp_path, map="ts")
    written = onnx.load(path)
    assert written.graph.input == proto.graph.input
    assert (written.graph.node[0].op_type, written.graph.node[0].output[0]) == ("Constant", "tna_onnx/weight")
    old, new = (outputs_of(model, X)["class vectors"] for model in (proto, path))
    np.testing.assert_array_equal(new, old)


def one_logit(how: str) -> onnx.ModelProto:
    """As BCEWithLogitsLoss leaves a network: the Sigmoid is not in the graph."""
    rng = np.random.default_rng(0)
    tensors: dict[str, Array] = {"w": 2 * rng.standard_normal((FEATURES, 1)).astype(np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["s" if how == "flat" else "y"], name="head")]
    if how == "flat":
        tensors["shape"] = np.array([-1], np.int64)
        nodes.append(helper.make_node("Reshape", ["s", "shape"], ["y"]))
    shape = {"flat": ["N"], "column": ["N", 1], "unknown": None}[how]
    return small_model(nodes, {"x": ["N", FEATURES]}, {"y": shape}, tensors)


def both(logit: Array) -> Array:
    p = 1 / (1 + np.exp(-np.asarray(logit, np.float64).reshape(-1, 1)))
    return np.concatenate([1 - p, p], axis=1)


@pytest.mark.parametrize(
    ("how", "search", "name"), [("flat", "sparse", "isotonic"), ("column", "none", "platt"), ("unknown", "none", "ts")]
)
def test_one_logit_without_a_sigmoid(tmp_path: Path, how: str, search: str, name: str) -> None:
    proto = one_logit(how)
    logit = outputs_of(proto, X)["y"]
    options: dict[str, Any] = {"search": search, "map": name, "output_kind": "logit", "ensemble_size": 4}
    report, path = softly(proto, tmp_path, both(logit), **options)
    new = outputs_of(path, X)["y"]
    assert new.shape == logit.shape
    # what the file says of itself is enough for the other commands
    data = X, softened(both(logit))
    evaluated = tna_onnx.evaluate(path, data, device="cpu")
    expected = -np.log(both(new)[np.arange(len(X)), data[1]]).mean()
    assert evaluated.metrics.nll == pytest.approx(expected, rel=1e-5)
    assert evaluated.output_kind == "positive_logit"
    moved = tna_onnx.verify(proto, path, data=data, device="cpu")
    assert moved.outputs.largest == pytest.approx(np.abs(both(new) - both(logit)).max(), abs=1e-6)
    assert report.classes == 2


def logistic(sharpness: float, *, normalizer: bool) -> onnx.ModelProto:
    """A binary logistic regression as scikit-learn's converter writes it; many of its probabilities are 1."""
    w = sharpness * np.random.default_rng(0).standard_normal(FEATURES).astype(np.float32)
    made = ["label", "scores" if normalizer else "p"]
    nodes = [
        helper.make_node(
            "LinearClassifier", ["x"], made, domain="ai.onnx.ml", coefficients=[*-w, *w],
            intercepts=[-0.5, 0.5], classlabels_ints=[0, 1], post_transform="LOGISTIC",
        )
    ]  # fmt: skip
    if normalizer:  # older versions of the converter
        nodes.append(helper.make_node("Normalizer", ["scores"], ["p"], domain="ai.onnx.ml", norm="L1"))
    outputs = {"label": (["N"], np.int64), "p": ["N", 2]}
    return small_model(nodes, {"x": ["N", FEATURES]}, outputs, domains={"ai.onnx.ml": 3})


@pytest.mark.parametrize(("normalizer", "name"), [(False, "ts"), (True, "ets")])
def test_a_map_goes_in_front_of_a_sigmoid_that_saturates(tmp_path: Path, name: str, normalizer: bool) -> None:
    proto = logistic(30, normalizer=normalizer)
    old = outputs_of(proto, X)
    saturated = old["p"] == 1
    assert np.mean(saturated) > 0.1
    report, path = softly(proto, tmp_path, map=name)
    new = outputs_of(path, X)
    assert report.verification.max_difference < 1e-6
    np.testing.assert_array_equal(new["label"], old["label"])
    assert len(np.unique(new["p"][saturated[:, 1]])) > 10  # what was one number has its order again


def test_hidden_scores_without_a_block_are_no_recalibration() -> None:
    proto = logistic(1, normalizer=False)
    next(a for a in proto.graph.node[0].attribute if a.name == "post_transform").s = b"NONE"
    assert not tna_onnx.verify(logistic(1, normalizer=False), proto).intact


def with_labels() -> onnx.ModelProto:
    """The labels are read off the layer itself; the logits are what a Reshape makes of its result."""
    weight = 2 * np.random.default_rng(0).standard_normal((FEATURES, CLASSES)).astype(np.float32)
    nodes = nodes_of(
        "MatMul x w > s name=head; ArgMax s > label axis=1 keepdims=0; Reshape s shape > logits; "
        "Softmax logits > p axis=1"
    )
    outputs = {"label": (["N"], np.int64), "p": ["N", CLASSES]}
    tensors = {"w": weight, "shape": np.array([-1, CLASSES], np.int64)}
    return small_model(nodes, {"x": ["N", FEATURES]}, outputs, tensors)


@pytest.mark.parametrize("name", ["ts", "ets"])
def test_labels_that_read_the_layer_stay_right_under_maps_that_keep_the_order(tmp_path: Path, name: str) -> None:
    _, path = softly(with_labels(), tmp_path, map=name)
    new = outputs_of(path, X)
    np.testing.assert_array_equal(new["label"], new["p"].argmax(axis=1))


def test_logits_behind_which_an_input_is_read_are_refused_by_its_name(tmp_path: Path) -> None:
    """The softmax is brought into the shape that the input says."""
    nodes = nodes_of(
        "MatMul x w > logits name=head; Softmax logits > q axis=1; Shape x > shape end=1; "
        "Concat shape classes > wanted axis=0; Reshape q wanted > p"
    )
    weight = np.random.default_rng(0).standard_normal((FEATURES, CLASSES)).astype(np.float32)
    tensors = {"w": weight, "classes": np.array([CLASSES], np.int64)}
    proto = small_model(nodes, {"x": ["N", FEATURES]}, {"p": ["N", CLASSES]}, tensors)
    data = {"logits": X @ weight, "labels": softened(outputs_of(proto, X)["p"])}
    with pytest.raises(UnsupportedModel, match="read the model's input 'x' too; give samples for the inputs"):
        recalibrated(proto, data, tmp_path, map="ts")


# ---- Calibration and held-out data in different forms: what goes together, and what each `Data` says of itself


MAP_ONLY: dict[str, Any] = {"search": "none", "device": "cpu", "dry_run": True, "require": "nothing"}


def test_held_out_logits_beside_data_are_refused(small: Small) -> None:
    test = few(small.test)
    logits = {"logits": outputs_of(small.model, test["x"])["logits"], "labels": test["labels"]}
    with pytest.raises(UsageError, match="give both as logits, or both as data or features"):
        with_options(tna_onnx.calibrate, small.model, few(small.calib), eval=logits, **MAP_ONLY)


def test_samples_that_run_the_whole_file_are_checked_first(small: Small) -> None:
    """Features do not reach outputs that are computed around the head."""
    data = loaded(small.test)
    features = {"features": np.array(opened(small, calib=data).calibration.table.features), "labels": data["labels"]}
    task = opened(small, calib=few(small.calib), held_out=features)
    assert len(features["labels"]) >= 512
    assert checked_samples(task) is task.calibration
    task = opened(small, calib=features, held_out=few(small.calib))
    assert checked_samples(task) is task.held_out


def test_held_out_data_speak_for_themselves(small: Small) -> None:
    held_out = tna_onnx.Data(few(small.test), classes=["a", "b", "c", "d", "e"])
    with pytest.raises(UsageError, match="other class names than calib"):
        with_options(tna_onnx.calibrate, small.model, few(small.calib), eval=held_out, **MAP_ONLY)
    held_out = tna_onnx.Data(few(small.test), expect_accuracy=99.9)
    with pytest.raises(CheckFailed, match=r"99\.9"):
        with_options(tna_onnx.calibrate, small.model, few(small.calib), eval=held_out, **MAP_ONLY)
