"""Integer heads in QDQ form: the opened model computes what ONNX Runtime computes of the closed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tests.builders import small_model, tensor_info
from tna_onnx.graph.constants import unpacked
from tna_onnx.graph.head import choose_head, find_heads
from tna_onnx.graph.integers import opened_like, opened_up, quantizes_batches
from tna_onnx.graph.load import Model, load_model

Array = NDArray[Any]
N, FEATURES, CLASSES = 40, 12, 5
MICROSOFT = "com.microsoft"
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, FEATURES)).astype(np.float32)
# 7 bits: where a processor lacks products of bytes, ONNX Runtime adds pairs of them in 16 bits, which 8 would overflow
CODES = RNG.integers(-63, 64, (FEATURES, CLASSES)).astype(np.int8)
BIAS = RNG.standard_normal(CLASSES).astype(np.float32)
X_SCALE, Y_SCALE = np.float32(0.03), np.float32(0.25)
ZERO = np.uint8(120)


def saved(proto: onnx.ModelProto, folder: Path) -> Model:
    for domain in {node.domain for node in proto.graph.node} - {"", "ai.onnx"}:
        proto.opset_import.append(helper.make_opsetid(domain, 1))
    onnx.save(proto, folder / "model.onnx")
    return load_model(folder / "model.onnx")


def run(proto: onnx.ModelProto, x: Array = X) -> Array:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["logits"], {"x": x})[0])


def steps(values: Array, reference: Array, step: float) -> Array:
    """How many steps of the output's quantisation two results are apart."""
    return np.asarray(np.rint(np.abs(values - reference) / step))


def integer(kind: str, per_class: bool, node: dict[str, Any] | None = None, **also: Any) -> onnx.ModelProto:
    """A model with one integer operator as its head, scales for all classes or one each."""
    scale = np.linspace(0.01, 0.03, CLASSES, dtype=np.float32) if per_class else np.float32(0.02)
    zero = np.zeros(scale.shape, np.int8)
    tensors = {
        "codes": CODES,
        "scale": scale,
        "zero": zero,
        "xs": X_SCALE,
        "xz": ZERO,
        "ys": Y_SCALE,
        "yz": np.uint8(128),
        "bias": BIAS,
        "bias codes": np.rint(BIAS / (X_SCALE * scale)).astype(np.int32),
    }
    opset = also.pop("opset", 17)
    image = kind in ("QLinearConv", "ConvInteger")
    if image:
        tensors["codes"] = CODES.T[:, :, None, None].copy()
        tensors["scale"] = scale[:, None, None] if per_class and kind == "ConvInteger" else scale
    nodes = _nodes(kind, node or {})
    shape = ["N", FEATURES, 1, 1] if image else ["N", FEATURES]
    out = ["N", CLASSES, 1, 1] if image else ["N", CLASSES]
    read = {name for each in nodes for name in each.input}
    return small_model(
        nodes,
        inputs=[tensor_info("x", shape)],
        outputs=[tensor_info("logits", out)],
        tensors={name: np.asarray(value) for name, value in tensors.items() if name in read},
        opset=opset,
    )


def _nodes(kind: str, attributes: dict[str, Any]) -> list[onnx.NodeProto]:
    n = helper.make_node
    quantize = n("QuantizeLinear", ["x", "xs", "xz"], ["xq"])
    out = n("DequantizeLinear", ["yq", "ys", "yz"], ["logits"])
    q = ["xq", "xs", "xz", "codes", "scale", "zero"]
    y = ["ys", "yz"]
    static = {
        "QLinearMatMul": n(kind, [*q, *y], ["yq"], name="head"),
        "QLinearConv": n(kind, [*q, *y, "bias codes"], ["yq"], name="head"),
        "QGemm": n(kind, [*q, "bias codes", *y], ["yq"], name="head", domain=MICROSOFT, **attributes),
    }
    if kind in static:
        return [quantize, static[kind], out]
    if kind == "QGemm to float":
        return [quantize, n("QGemm", [*q, "bias codes"], ["logits"], name="head", domain=MICROSOFT)]
    if kind == "DynamicQuantizeMatMul":
        return [n(kind, ["x", "codes", "scale", "zero", "bias"], ["logits"], name="head", domain=MICROSOFT)]
    dynamic = n("DynamicQuantizeLinear", ["x"], ["xq", "dxs", "dxz"])
    if kind == "MatMulIntegerToFloat":
        read = ["xq", "codes", "dxs", "scale", "dxz", "zero", "bias"]
        return [dynamic, n(kind, read, ["logits"], name="head", domain=MICROSOFT)]
    zero = [] if kind == "ConvInteger" else ["zero"]
    return [
        dynamic,
        n(kind, ["xq", "codes", "dxz", *zero], ["sum"], name="head"),
        n("Mul", ["scale", "dxs"], ["scales"]),
        n("Cast", ["sum"], ["real"], to=1),
        n("Mul", ["real", "scales"], ["logits"]),
    ]


KINDS = (
    "QLinearMatMul", "QLinearConv", "QGemm", "QGemm to float", "DynamicQuantizeMatMul", "MatMulIntegerToFloat",
    "MatMulInteger", "ConvInteger",
)  # fmt: skip


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_opened_model_computes_the_same(kind: str, per_class: bool, tmp_path: Path) -> None:
    model = saved(integer(kind, per_class), tmp_path)
    opened = opened_up(model)
    onnx.checker.check_model(opened.proto)
    assert opened.opened == {"head": kind.removesuffix(" to float")}
    assert opened.closed is model
    x = X[:, :, None, None] if "Conv" in kind else X
    before, after = run(model.proto, x), run(opened.proto, x)
    if kind in ("QLinearMatMul", "QLinearConv", "QGemm"):
        apart = steps(after, before, float(Y_SCALE))
        # A sum in float may fall to the other side of a tie.
        assert apart.max() <= 1
        assert np.mean(apart) < 0.02
    else:
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_head_has_the_dequantised_weight(kind: str, per_class: bool, tmp_path: Path) -> None:
    model = saved(integer(kind, per_class), tmp_path)
    assert find_heads(model)[0] == ()
    head = choose_head(opened_up(model))
    scale = np.linspace(0.01, 0.03, CLASSES) if per_class else np.full(CLASSES, 0.02)
    np.testing.assert_allclose(head.weight, CODES.T * scale[:, None], rtol=1e-6)
    assert head.node == "head"
    assert head.stored_weight.quantized is not None
    assert head.stored_weight.name == "codes"


def test_what_only_the_integer_form_read_is_gone(tmp_path: Path) -> None:
    opened = opened_up(saved(integer("MatMulInteger", per_class=False), tmp_path))
    assert [node.op_type for node in opened.proto.graph.node] == [
        "DynamicQuantizeLinear", "DequantizeLinear", "DequantizeLinear", "MatMul",
    ]  # fmt: skip
    assert {t.name for t in opened.proto.graph.initializer} == {"codes", "scale", "zero"}


@pytest.mark.parametrize("kind", ["QLinearMatMul", "QGemm"])
def test_a_scale_per_class_needs_opset_13(kind: str, tmp_path: Path) -> None:
    model = saved(integer(kind, per_class=True, opset=11), tmp_path)
    assert opened_up(model) is model
    model = saved(integer(kind, per_class=False, opset=11), tmp_path)
    assert opened_up(model).opened


def test_an_unknown_form_stays_closed(tmp_path: Path) -> None:
    model = saved(integer("QGemm", per_class=False, node={"alpha": 0.5}), tmp_path)
    assert opened_up(model) is model
    assert "QGemm" in find_heads(model)[1][0].reason


def test_a_model_without_integers_is_itself(tmp_path: Path) -> None:
    proto = small_model(
        [helper.make_node("MatMul", ["x", "w"], ["logits"])],
        inputs=[tensor_info("x", ["N", FEATURES])],
        outputs=[tensor_info("logits", ["N", CLASSES])],
        tensors={"w": np.ones((FEATURES, CLASSES), np.float32)},
    )
    model = saved(proto, tmp_path)
    assert opened_up(model) is model
    assert not quantizes_batches(model)


def test_only_the_last_layer_is_opened(tmp_path: Path) -> None:
    """The layer in front, of integers too, and the weights that both read, stay as they are."""
    first = _nodes("DynamicQuantizeMatMul", {})[0]
    first.input[0], first.output[0], first.name = "x", "hidden", "first"
    second = onnx.NodeProto()
    second.CopyFrom(first)
    second.name, second.input[0], second.output[0] = "second", "hidden", "logits"
    square = RNG.integers(-63, 64, (CLASSES, CLASSES)).astype(np.int8)
    proto = small_model(
        [first, second],
        inputs=[tensor_info("x", ["N", CLASSES])],
        outputs=[tensor_info("logits", ["N", CLASSES])],
        tensors={"codes": square, "scale": np.float32(0.02), "zero": np.int8(0), "bias": BIAS},
    )
    model = saved(proto, tmp_path)
    opened = opened_up(model)
    assert opened.opened == {"second": "DynamicQuantizeMatMul"}
    assert opened.proto.graph.node[0].op_type == "DynamicQuantizeMatMul"
    assert quantizes_batches(model)
    assert choose_head(opened).stored_weight.shared  # the first layer reads the same integers
    x = X[:, :CLASSES]
    np.testing.assert_allclose(run(opened.proto, x), run(proto, x), rtol=1e-5, atol=1e-4)


def test_opening_twice_is_opening_once(tmp_path: Path) -> None:
    model = saved(integer("QLinearMatMul", per_class=True), tmp_path)
    opened = opened_up(model)
    assert opened_up(opened) is opened
    assert opened_like(model, model) is model  # a source that was not opened
    again = opened_like(opened, model)
    assert again.proto == opened.proto


# --- a few bits


def packed(bits: int, zero: bool, length: int, block: int = 16) -> tuple[dict[str, Array], dict[str, int]]:
    """Random packed weights as MatMulNBits has them."""
    rng, per_byte = np.random.default_rng(bits), 8 // bits
    blocks = -(-length // block)
    values = {
        "codes": rng.integers(0, 256, (CLASSES, blocks, block // per_byte)).astype(np.uint8),
        "scales": rng.uniform(0.01, 0.1, CLASSES * blocks).astype(np.float32),
    }
    if zero:
        values["zero"] = rng.integers(0, 256, CLASSES * -(-blocks // per_byte)).astype(np.uint8)
    return values, {"K": length, "N": CLASSES, "bits": bits, "block_size": block}


@pytest.mark.parametrize("length", [16, 20, 64])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_unpacked_numbers_are_those_of_the_runtime(bits: int, zero: bool, length: int) -> None:
    """Oracle: the operator itself, on the rows of the unit matrix."""
    tensors, attributes = packed(bits, zero, length)
    node = helper.make_node("MatMulNBits", ["x", *tensors], ["logits"], domain=MICROSOFT, **attributes)
    proto = small_model(
        [node],
        inputs=[tensor_info("x", ["N", length])],
        outputs=[tensor_info("logits", ["N", CLASSES])],
        tensors=tensors,
    )
    proto.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    weight = unpacked(tensors["codes"], tensors["scales"], tensors.get("zero"), attributes)
    assert weight is not None
    np.testing.assert_allclose(weight.T, run(proto, np.eye(length, dtype=np.float32)), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "wrong", [{"bits": 3}, {"block_size": 0}, {"N": 0}, {"K": 999}, {"N": 2**14, "K": 2**14}, {"block_size": 8}]
)
def test_another_layout_is_not_unpacked(wrong: dict[str, int]) -> None:
    tensors, attributes = packed(4, zero=False, length=16)
    assert unpacked(tensors["codes"], tensors["scales"], None, attributes | wrong) is None


def test_a_weight_of_a_few_bits_becomes_floats(tmp_path: Path) -> None:
    tensors, attributes = packed(4, zero=True, length=20)
    node = helper.make_node("MatMulNBits", ["x", *tensors], ["logits"], "head", domain=MICROSOFT, **attributes)
    proto = small_model(
        [node], inputs=[tensor_info("x", ["N", 20])], outputs=[tensor_info("logits", ["N", CLASSES])], tensors=tensors
    )
    model = saved(proto, tmp_path)
    head = choose_head(opened_up(model))
    np.testing.assert_array_equal(
        head.weight, unpacked(tensors["codes"], tensors["scales"], tensors["zero"], attributes)
    )
    assert [numpy_helper.to_array(t).shape for t in opened_up(model).proto.graph.initializer] == [(20, CLASSES)]
