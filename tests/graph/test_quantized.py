"""Quantised constants: read as ONNX Runtime reads them, and what is promised of a new value is what the file gives."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.graph.rewriting import unexpected, write
from tests.graph.samples import CLASSES, FEATURES, Array, Builder, run, tensors
from tests.support import pairwise
from tna_onnx.graph.constants import Quantized, read_quantized
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.readout import Head, requantized
from tna_onnx.graph.rewrite import rewrite
from tna_onnx.graph.scores import choose_head
from tna_onnx.graph.stored import resolve

X = np.random.default_rng(1).standard_normal((5, FEATURES)).astype(np.float32)


def saved(b: Builder, folder: Path, *outputs: str) -> Model:
    path = folder / "model.onnx"
    path.write_bytes(onnx.shape_inference.infer_shapes(b.proto(*outputs)).SerializeToString())
    return load_model(path)


def dequantize(b: Builder, out: str, codes: Array, scale: Array, zero: Array | None, **flags: Any) -> str:
    """Append a DequantizeLinear of stored integers."""
    inputs = [b.store(f"{out} codes", codes, codes.dtype), b.store(f"{out} scale", scale)]
    if zero is not None:
        inputs.append(b.store(f"{out} zero", zero, codes.dtype))
    return b.node("DequantizeLinear", *inputs, out=out, **flags)


def codes_of(dtype: str, shape: tuple[int, ...], limit: int | None = None) -> Array:
    info, rng = np.iinfo(dtype), np.random.default_rng(4)
    middle = 128 if dtype == "uint8" else 0
    low, high = (info.min, info.max) if limit is None else (middle - limit, middle + limit)
    return rng.integers(max(low, -(2**20)), min(high, 2**20), shape, endpoint=True).astype(dtype)


# --- reading


def test_what_is_no_quantised_constant(tmp_path: Path) -> None:
    b = Builder()
    step = b.store("step", 0.1)
    b.node("QuantizeLinear", "features", step, out="codes")
    b.node("DequantizeLinear", "codes", step, out="of data")
    b.node("Relu", "features", out="other")
    model = saved(b, tmp_path, "of data", "other")
    for name in ("of data", "other", "codes"):
        assert read_quantized(model, model.producers[name]) is None


def test_a_scale_per_block_is_computed_but_has_no_way_back(tmp_path: Path) -> None:
    """From opset 21 on a scale may belong to a block of rows. The value is right; a new one is written as floats."""
    b, codes = Builder(opset=21), codes_of("int8", (4, 3))
    scale = (np.arange(6).reshape(2, 3) + 1).astype(np.float32) / 8
    dequantize(b, "weight", codes, scale, None, axis=0, block_size=2)
    b.node("Identity", "weight", out="y")
    model = saved(b, tmp_path, "y")
    assert read_quantized(model, model.producers["weight"]) is None
    place = resolve(model, "weight", model.producers["y"])
    assert (place.shared, place.quantized) == (True, None)
    np.testing.assert_array_equal(place.value, codes * np.repeat(scale, 2, axis=0))


# --- a new value

# below 2^-100 a step may be no normal number
NUMBERS = st.floats(-100, 100, width=32).map(lambda v: v if abs(v) > 2.0**-100 else 0.0)
VALUES = arrays(np.float32, (3, 4), elements=NUMBERS)


def quantized(dtype: str, limit: int, axis: int | None) -> Quantized:
    return Quantized(0, np.dtype(dtype), np.float32(0.1), "", limit, axis)


@given(
    value=VALUES,
    dtype=st.sampled_from(["int8", "uint8"]),
    limit=st.sampled_from([64, 127]),
    axis=st.sampled_from([None, 0, 1]),
)
def test_quantising_is_symmetric_and_within_half_a_step(value: Array, dtype: str, limit: int, axis: int | None) -> None:
    how = quantized(dtype, limit, axis)
    integers, scale, zero = how.quantize(value)
    assert integers.dtype == zero.dtype == np.dtype(dtype)
    assert scale.dtype == np.float32
    assert scale.shape == zero.shape == (() if axis is None else (value.shape[axis],))
    middle = 128 if dtype == "uint8" else 0
    assert np.all(zero == middle)
    assert np.all(np.abs(integers.astype(int) - middle) <= limit)

    spread = scale if axis is None else np.expand_dims(scale, 1 - axis)
    read = how.as_written(value)
    # the scale is rounded to float32, which moves the largest value by limit * eps / 2 steps, and so may the result
    tiny = limit * np.finfo(np.float32).eps
    assert np.all(np.abs(read.astype(np.float64) - value) <= (0.5 + tiny) * spread)
    np.testing.assert_array_equal(how.as_written(-value), -read)  # no direction is preferred
    top = np.max(np.abs(value), axis=None if axis is None else 1 - axis)
    np.testing.assert_allclose(np.where(top > 0, top, 1), np.where(top > 0, scale * limit, 1), rtol=1e-6)


@given(value=VALUES, axis=st.sampled_from([None, 0, 1]))
def test_a_value_that_was_written_is_written_as_it_is(value: Array, axis: int | None) -> None:
    how = quantized("int8", 127, axis)
    once = how.as_written(value)
    np.testing.assert_allclose(how.as_written(once), once, rtol=2e-7)


# --- heads


def head_of(
    dtype: str, limit: int | None, scale: str, zero: bool, transposed: bool, opset: int, *, bias: str = "none"
) -> Builder:
    """A classifier with a quantised weight (C, n) or (n, C), and a float, quantised or no bias."""
    b = Builder(opset=opset)
    shape = (CLASSES, FEATURES) if transposed else (FEATURES, CLASSES)
    axis = 0 if transposed else 1
    steps = np.float32(0.05) * (np.arange(1, CLASSES + 1) if scale == "class" else 1)
    zeros = np.full(steps.shape, 128 if dtype == "uint8" else 0) if zero or dtype == "uint8" else None
    codes = codes_of(dtype, shape, limit)
    codes.flat[0] = (128 if dtype == "uint8" else 0) + (limit or 127)
    flags = {"axis": axis} if opset >= 13 and scale == "class" else {}
    weight = dequantize(b, "weight", codes, steps, zeros, **flags)
    data = "features"
    if bias == "linked":  # as quantisers write it: features quantised too, bias in the product of the scales
        step = b.store("features step", 0.03)
        b.node("QuantizeLinear", "features", step, b.store("features zero", 0, np.uint8), out="features codes")
        data = b.node("DequantizeLinear", "features codes", step, "features zero", out="rounded features")
        steps = np.broadcast_to(steps * np.float32(0.03), (CLASSES,)).astype(np.float32)
        dequantize(b, "bias", np.array([300, -200, 55], np.int32), steps if scale == "class" else steps[0], None,
                   **({"axis": 0} if scale == "class" else {}))  # fmt: skip
    inputs = [data, weight, "bias" if bias != "none" else b.store("bias", np.zeros(CLASSES))]
    b.node("Gemm", *inputs, out="y", name="head", transB=int(transposed))
    return b


def new_weight(head: Head) -> Array:
    return np.random.default_rng(8).standard_normal(head.weight.shape).astype(np.float32)


@pytest.mark.parametrize(
    ("dtype", "limit", "scale", "zero", "transposed", "opset"),
    [
        *pairwise(["int8", "uint8"], [None, 64], ["tensor", "class"], [False, True], [False, True], [13, 19]),
        *pairwise(["int8", "uint8"], [None, 64], ["tensor"], [False, True], [False, True], [10]),
    ],
)
def test_a_new_weight_is_read_as_promised(
    dtype: str, limit: int | None, scale: str, zero: bool, transposed: bool, opset: int, tmp_path: Path
) -> None:
    model = saved(head_of(dtype, limit, scale, zero, transposed, opset), tmp_path, "y")
    head = requantized(model, choose_head(model))
    turned = (lambda w: w) if transposed else np.transpose
    np.testing.assert_array_equal(head.weight, turned(tensors(model, ["weight"], X)[0]))

    weight = new_weight(head)
    rewritten = rewrite(model, head, weight, metadata={})
    assert unexpected(model, rewritten, rewritten.proto) == []
    path = write(model, rewritten)
    onnx.checker.check_model(str(path), full_check=True)
    written = load_model(path)
    found = turned(tensors(written, ["weight"], X)[0])
    np.testing.assert_array_equal(found, head.as_written(weight))

    again = choose_head(written)
    np.testing.assert_array_equal(again.weight, found)
    how = again.stored_weight.quantized
    assert how is not None
    assert how.dtype == np.dtype(dtype)  # the weight stays in its integers,
    assert how.limit == (limit or 127)  # and in 7 bits where it was
    assert how.axis == ((0 if transposed else 1) if opset >= 13 else None)  # with a scale a class where ONNX has that
    codes = np.asarray(onnx.numpy_helper.to_array(written.initializers["weight codes"])).astype(int)
    assert np.max(np.abs(codes - (128 if dtype == "uint8" else 0))) == (limit or 127)
    # a step of each class's own is at most its largest weight / limit
    step = np.abs(weight).max(axis=1, keepdims=True) if opset >= 13 else np.abs(weight).max()
    assert np.all(np.abs(found - weight) <= 0.5001 * step / (limit or 127))


@given(weight=arrays(np.float32, (CLASSES, FEATURES), elements=NUMBERS))
def test_any_new_weight_is_read_as_promised(weight: Array, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("promised")
    model = saved(head_of("int8", None, "tensor", False, False, 13), folder, "y")
    head = requantized(model, choose_head(model))
    path = write(model, rewrite(model, head, weight, metadata={}))
    np.testing.assert_array_equal(tensors(load_model(path), ["weight"], X)[0].T, head.as_written(weight))


@pytest.mark.parametrize("scale", ["tensor", "class"])
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_bias_in_the_scale_of_features_and_weight_follows(scale: str, factor: float, tmp_path: Path) -> None:
    """Integer kernels add it before they scale, and assume that its scale is the product of the others'."""
    model = saved(head_of("int8", None, scale, True, True, 19, bias="linked"), tmp_path, "y")
    head = requantized(model, choose_head(model))
    assert head.bias_step == np.float32(0.03)
    weight, old = new_weight(head), head.bias.astype(np.float64)
    rewritten = rewrite(model, head, weight, bias_factor=factor, metadata={})
    assert unexpected(model, rewritten, rewritten.proto) == []
    path = write(model, rewritten)
    onnx.checker.check_model(str(path), full_check=True)
    again = choose_head(load_model(path))
    steps, bias_steps = again.stored_weight.quantized.scale, again.stored_bias.quantized.scale
    np.testing.assert_allclose(bias_steps, np.float64(np.float32(0.03)) * steps, rtol=2e-7)
    assert np.all(np.abs(again.bias - factor * old) <= 0.5001 * bias_steps)
    np.testing.assert_array_equal(again.weight, head.as_written(weight))

    # the features are steps of 0.03: the product is exact but for the float32 sums
    z = tensors(load_model(path), ["rounded features"], X)[0].astype(np.float64)
    expected = z @ again.weight.T.astype(np.float64) + again.bias
    y = ReferenceEvaluator(rewritten.proto).run(["y"], {"x": X})[0]
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-4)


def test_kept_in_float_the_head_gets_a_tensor_of_its_own(tmp_path: Path) -> None:
    model = saved(head_of("int8", None, "class", True, True, 13), tmp_path, "y")
    head = choose_head(model).kept_in_float()
    weight = new_weight(head)
    np.testing.assert_array_equal(head.as_written(weight), weight)
    rewritten = rewrite(model, head, weight, metadata={})
    assert (rewritten.changed, rewritten.added) == (set(), {"tna_onnx/weight"})
    path = write(model, rewritten)
    written = load_model(path)
    np.testing.assert_array_equal(choose_head(written).weight, weight)
    z = tensors(written, ["features"], X)[0].astype(np.float64)
    np.testing.assert_allclose(run(path, ["y"], X)[0], z @ weight.T, rtol=0, atol=1e-5)


def test_a_weight_that_two_heads_read_is_not_requantised(tmp_path: Path) -> None:
    b = head_of("int8", None, "class", True, True, 13)
    b.node("Transpose", "weight", out="other")
    model = saved(b, tmp_path, "y", "other")
    head = choose_head(model, output="y")
    assert head.stored_weight.shared
    assert head.stored_weight.quantized is None
    assert requantized(model, head) is head
    path = write(model, rewrite(model, head, 2 * head.weight, metadata={}))
    old, new = (run(p, ["y", "other"], X) for p in (model.path, path))
    np.testing.assert_allclose(new[0], 2 * old[0], rtol=1e-6)
    np.testing.assert_array_equal(new[1], old[1])


def test_types_of_four_bits_are_written_as_floats() -> None:
    b = Builder(opset=21)
    values = np.arange(FEATURES * CLASSES) % 15 - 7
    b.initializers.append(helper.make_tensor("codes", onnx.TensorProto.INT4, [FEATURES, CLASSES], values.tolist()))
    b.node("DequantizeLinear", "codes", b.store("step", 0.25), out="weight")
    b.node("MatMul", "features", "weight", out="y", name="head")
    proto = b.proto("y")
    proto.ir_version = 10
    head = choose_head(load_model(proto))
    np.testing.assert_array_equal(head.weight, (values.reshape(FEATURES, CLASSES) * np.float32(0.25)).T)
    assert (head.stored_weight.shared, head.stored_weight.quantized) == (True, None)
