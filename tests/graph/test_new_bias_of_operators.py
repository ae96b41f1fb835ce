"""A new bias for each class where an operator has a place of its own for it: what comes out of ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.builders import tensor_info
from tests.graph.rewriting import drawn, sizes, write_both
from tests.graph.samples import (
    CLASSES,
    FEATURES,
    Array,
    Builder,
    assert_gives,
    features_of,
    run,
    softmax,
    tensors,
)
from tests.graph.test_quantized import X, head_of, saved
from tna_onnx.graph.head import choose_head
from tna_onnx.graph.load import load_model
from tna_onnx.graph.readout import requantized


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
@pytest.mark.parametrize("op_type", ["Gemm", "MatMul"])
def test_one_logit_and_a_sigmoid(op_type: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """The first class has the logit 0: what its row and its bias say is taken from those of the second."""
    b = Builder(classes=1)
    bias_name = b.store("bias", b.bias.reshape(shape))
    if op_type == "Gemm":
        b.node("Gemm", "features", b.store("weight", b.weight.T), bias_name, out="scores", name="head")
    else:
        b.node("Add", b.product("product"), bias_name, out="scores")
    b.node("Sigmoid", "scores", out="y")
    sample = b.sample({"y": "sigmoid"}, bias_scale=1.0, logits="scores")
    model, x = sample.write(tmp_path), sample.inputs(5)
    head = choose_head(model)
    assert head.holds_bias
    rng = np.random.default_rng(5)
    weight, bias = rng.standard_normal((2, FEATURES)).astype(np.float32), rng.standard_normal(2).astype(np.float32)
    anchored = head.anchored(weight), head.anchored(bias)
    path, _, _ = write_both(model, *anchored)
    z = features_of(sample, model, x)
    p = softmax(z @ weight.astype(np.float64).T + bias)
    # logits below 10: rounding by 2^-24 of 6 products and a difference
    np.testing.assert_allclose(run(path, ["y"], x)[0][:, 0], p[:, 1], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(choose_head(load_model(path)).bias, head.new_bias_as_written(anchored[1]))


def classifier(rows: Array, intercepts: Array, post: str, labels: int) -> onnx.ModelProto:
    """ai.onnx.ml's LinearClassifier on the features."""
    b = Builder(classes=len(rows))
    b.nodes.append(
        helper.make_node(
            "LinearClassifier",
            ["features"],
            ["label", "y"],
            name="head",
            domain="ai.onnx.ml",
            coefficients=rows.reshape(-1).tolist(),
            intercepts=intercepts.tolist(),
            classlabels_ints=list(range(labels)),
            multi_class=0,
            post_transform=post,
        )
    )
    proto = b.proto("y")
    del proto.graph.output[:]
    proto.graph.output.extend([tensor_info("y", ["N", len(rows)]), tensor_info("label", ["N"], np.int64)])
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return proto


@pytest.mark.parametrize("post", ["SOFTMAX", "NONE", "LOGISTIC"])
def test_attributes_of_a_linear_classifier(post: str, tmp_path: Path) -> None:
    """LOGISTIC stores the rows -w and w, and the intercepts -b and b."""
    rng = np.random.default_rng(6)
    rows, intercepts = rng.standard_normal((CLASSES, FEATURES)), rng.standard_normal(CLASSES)
    if post == "LOGISTIC":
        rows, intercepts = np.concatenate([-rows[:1], rows[:1]]), np.array([-0.3, 0.3])
    path = tmp_path / "model.onnx"
    onnx.save(classifier(rows.astype(np.float32), intercepts.astype(np.float32), post, len(rows)), path)
    model = load_model(path)
    head = choose_head(model, output="y")
    assert head.holds_bias
    weight, bias = drawn(head)
    result, _, _ = write_both(model, weight, bias, head)
    z = tensors(model, ["features"], X)[0].astype(np.float64)
    logits = z @ weight.astype(np.float64).T + bias
    y, label = run(result, ["y", "label"], X)
    expected = logits if post == "NONE" else softmax(logits)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5)  # as above
    np.testing.assert_array_equal(label, logits.argmax(axis=1))


@pytest.mark.parametrize("added", [False, True])
def test_a_convolution_of_one_pixel(added: bool, tmp_path: Path) -> None:
    """With its own bias, or with one of shape (1, C, 1, 1) behind it."""
    b = Builder()
    image = b.node("Reshape", "features", b.store("to", [-1, FEATURES, 1, 1], np.int64), out="image")
    kernel = b.store("weight", b.weight[:, :, None, None])
    if added:
        b.node("Conv", image, kernel, out="maps", name="head")
        b.node("Add", "maps", b.store("bias", b.bias[None, :, None, None]), out="biased")
        b.node("Flatten", "biased", out="y")
    else:
        b.node("Conv", image, kernel, b.store("bias", b.bias), out="maps", name="head")
        b.node("Flatten", "maps", out="y")
    sample = b.sample(bias_scale=1.0, features="image")
    model, x = sample.write(tmp_path), sample.inputs(5)
    head = choose_head(model)
    assert head.holds_bias
    weight, bias = drawn(head)
    path, changed, _ = write_both(model, weight, bias)
    assert changed == {"weight", "bias"}
    z = features_of(sample, model, x)
    logits = z @ weight.astype(np.float64).T + bias
    assert_gives(run(path, ["y"], x)[0], "logits", logits, sizes(z, weight, bias), "float32")


# --- quantised


@pytest.mark.parametrize("scale", ["tensor", "class"])
def test_a_quantised_bias_takes_the_scale_of_features_and_weight(scale: str, tmp_path: Path) -> None:
    model = saved(head_of("int8", None, scale, True, True, 19, bias="linked"), tmp_path, "y")
    head = requantized(model, choose_head(model))
    assert head.holds_bias
    weight, bias = drawn(head)
    path, _, _ = write_both(model, weight, bias, head)
    again = choose_head(load_model(path))
    assert again.stored_weight.quantized is not None
    assert again.stored_bias is not None
    assert again.stored_bias.quantized is not None
    steps = again.stored_bias.quantized.scale
    np.testing.assert_allclose(steps, np.float64(np.float32(0.03)) * again.stored_weight.quantized.scale, rtol=2e-7)
    assert np.all(np.abs(again.bias - bias) <= 0.5001 * steps)
    np.testing.assert_array_equal(again.weight, head.as_written(weight))
    z = tensors(load_model(path), ["rounded features"], X)[0].astype(np.float64)
    y = ReferenceEvaluator(onnx.load(path)).run(["y"], {"x": X})[0]
    # the features are steps of 0.03: the product is exact but for the float32 sums
    np.testing.assert_allclose(y, z @ again.weight.T.astype(np.float64) + again.bias, rtol=0, atol=1e-4)


def test_a_float_bias_beside_a_quantised_weight(tmp_path: Path) -> None:
    model = saved(head_of("int8", None, "class", True, True, 13), tmp_path, "y")
    head = requantized(model, choose_head(model))
    weight, bias = drawn(head)
    path, _, _ = write_both(model, weight, bias, head)
    np.testing.assert_array_equal(choose_head(load_model(path)).bias, bias)
    z = tensors(model, ["features"], X)[0].astype(np.float64)
    expected = z @ head.as_written(weight).T.astype(np.float64) + bias
    np.testing.assert_allclose(run(path, ["y"], X)[0], expected, rtol=0, atol=1e-5)
