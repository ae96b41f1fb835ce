"""A new bias for each class, with a new weight: what comes out of ONNX Runtime, through every way a file holds one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.builders import tensor_info
from tests.graph.samples import (
    CASES,
    CLASSES,
    FEATURES,
    Array,
    Builder,
    Sample,
    assert_gives,
    features_of,
    run,
    softmax,
    tensors,
)
from tests.graph.test_quantized import X, head_of, saved
from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.difference import unexpected_differences
from tna_onnx.graph.head import Head, choose_head
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.requantize import requantized
from tna_onnx.graph.rewrite import rewrite

# heads without a bias, or with one number for all classes
WITHOUT = {
    *(name for name in CASES if re.fullmatch(r"gemm .* (None|\(\)|\(1,\))", name)),
    "gemm with an empty bias",
    "matmul, bias first None",
}
HOLDING = {name: build for name, build in CASES.items() if name not in WITHOUT}


def drawn(head: Head) -> tuple[Array, Array]:
    """A weight and a bias of random numbers, as the head takes them."""
    rng = np.random.default_rng(12)
    weight = rng.standard_normal((head.n_classes, head.n_features))
    return head.anchored(weight).astype(head.working_type), head.anchored(rng.standard_normal(head.n_classes)).astype(
        head.working_type
    )


def write(model: Model, weight: Array, bias: Array, head: Head | None = None) -> tuple[Path, set[str], set[str]]:
    """Write the result beside its source; return what changed and what is new."""
    rewritten = rewrite(model, head or choose_head(model), weight, bias=bias, metadata={})
    path = model.path.with_name("result.onnx")
    path.write_bytes(rewritten.proto.SerializeToString())
    written = onnx.load_model(path, load_external_data=False)
    assert unexpected_differences(model, rewritten, written) == []
    onnx.checker.check_model(str(path), full_check=True)
    assert not rewritten.nodes
    return path, rewritten.changed, rewritten.added


def sizes(z: Array, weight: Array, bias: Array) -> Array:
    return np.abs(z) @ np.abs(weight.astype(np.float64)).T + np.abs(bias)


@pytest.mark.parametrize("name", CASES)
def test_a_head_holds_a_bias_where_there_is_one_a_class(name: str, tmp_path: Path) -> None:
    model = CASES[name]().write(tmp_path)
    head = choose_head(model)
    assert head.holds_bias == (name in HOLDING)
    if not head.holds_bias:
        with pytest.raises(ValueError, match="no place for one bias a class"):
            head.bias_as_read(head.bias)


@pytest.mark.parametrize("build", HOLDING.values(), ids=HOLDING)
def test_weight_and_bias_of_every_model(build: Callable[[], Sample], tmp_path: Path) -> None:
    sample = build()
    model = sample.write(tmp_path)
    head = choose_head(model)
    weight, bias = drawn(head)
    path, changed, added = write(model, weight, bias)
    assert head.stored_bias is not None
    assert changed == {head.stored_weight.name, head.stored_bias.name}
    assert not added

    again = choose_head(load_model(path))
    np.testing.assert_array_equal(again.bias, head.new_bias_as_written(bias))
    np.testing.assert_array_equal(again.weight, head.as_written(weight))
    x = sample.inputs(7)
    z = features_of(sample, model, x)
    logits, size = z @ weight.astype(np.float64).T + bias, sizes(z, weight, bias)
    names = list(sample.outputs)
    evaluator = ReferenceEvaluator(onnx.load(path))
    for found in (run(path, names, x), evaluator.run(names, {"x": x})):
        for array, kind in zip(found, sample.outputs.values(), strict=True):
            assert_gives(np.asarray(array), kind, logits, size, sample.coarsest)


# --- further places for a bias


def _row(b: Builder) -> str:
    return b.store("bias", b.bias[None])


def _turned(b: Builder) -> str:
    return b.node("Transpose", b.store("stored", b.bias[:, None]), out="bias")


def _half(b: Builder) -> str:
    b.bias = b.bias.astype(np.float16).astype(b.dtype)
    return b.node("Cast", b.store("stored", b.bias, np.float16), out="bias", to=1)


def _reshaped(b: Builder) -> str:
    return b.node("Reshape", b.store("stored", b.bias[:, None]), b.store("flat", [1, -1], np.int64), out="bias")


def _constant(b: Builder) -> str:
    b.nodes.append(helper.make_node("Constant", [], ["bias"], name="", value=numpy_helper.from_array(b.bias)))
    return "bias"


def _identity(b: Builder) -> str:
    return b.node("Identity", b.store("stored", b.bias), out="bias")


@pytest.mark.parametrize("how", [_row, _turned, _half, _reshaped, _constant, _identity])
def test_a_bias_behind_steps(how: Callable[[Builder], str], tmp_path: Path) -> None:
    b = Builder()
    bias_name = how(b)
    b.node("Add", b.product("product"), bias_name, out="y")
    sample = b.sample(bias_scale=1.0, coarsest="float16" if how is _half else "float32")
    model, x = sample.write(tmp_path), sample.inputs(5)
    head = choose_head(model)
    weight, bias = drawn(head)
    path, _, added = write(model, weight, bias)
    assert not added
    shipped = head.new_bias_as_written(bias)
    np.testing.assert_array_equal(shipped, bias.astype(np.float16) if how is _half else bias)
    z = features_of(sample, model, x)
    logits = z @ weight.astype(np.float64).T + shipped
    assert_gives(run(path, ["y"], x)[0], "logits", logits, sizes(z, weight, bias), "float32")


def test_a_bias_that_others_read_stays_and_the_head_gets_its_own(tmp_path: Path) -> None:
    b = Builder()
    b.linear("y")
    b.node("Neg", "bias", out="other")
    b.node("Neg", "weight", out="third")
    sample = b.sample({"y": "logits", "other": "the bias", "third": "the weight"}, bias_scale=1.0)
    model, x = sample.write(tmp_path), sample.inputs(5)
    weight, bias = drawn(choose_head(model))
    path, changed, added = write(model, weight, bias)
    assert (changed, added) == (set(), {"tna_onnx/weight", "tna_onnx/bias"})
    y, other, third = run(path, ["y", "other", "third"], x)
    np.testing.assert_array_equal(other, -b.bias)
    np.testing.assert_array_equal(third, -b.weight)
    z = features_of(sample, model, x)
    assert_gives(y, "logits", z @ weight.astype(np.float64).T + bias, sizes(z, weight, bias), "float32")


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
    path, _, _ = write(model, *anchored)
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
    result, _, _ = write(model, weight, bias, head)
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
    path, changed, _ = write(model, weight, bias)
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
    path, _, _ = write(model, weight, bias, head)
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
    path, _, _ = write(model, weight, bias, head)
    np.testing.assert_array_equal(choose_head(load_model(path)).bias, bias)
    z = tensors(model, ["features"], X)[0].astype(np.float64)
    expected = z @ head.as_written(weight).T.astype(np.float64) + bias
    np.testing.assert_allclose(run(path, ["y"], X)[0], expected, rtol=0, atol=1e-5)


# --- what does not fit


@pytest.mark.parametrize(("dtype", "value"), [("float16", 1e6), ("float32", np.inf), ("float32", np.nan)])
def test_a_bias_that_does_not_fit_its_dtype(dtype: str, value: float, tmp_path: Path) -> None:
    model = CASES[f"{dtype} Gemm"]().write(tmp_path)
    head = choose_head(model)
    bias = head.bias.copy()
    bias[1] = value
    with pytest.raises(UnsupportedModel, match="a new value for 'bias' does not fit its dtype"):
        rewrite(model, head, head.weight, bias=bias, metadata={})


def test_the_old_bias_gives_the_old_bytes(tmp_path: Path) -> None:
    model = CASES["all factors"]().write(tmp_path)  # powers of two lose nothing
    head = choose_head(model)
    assert head.stored_bias is not None
    path, _, _ = write(model, head.weight, head.bias)
    name = head.stored_bias.name
    assert load_model(path).initializers[name].raw_data == model.initializers[name].raw_data
