"""Constant folding: the value that ONNX Runtime gives, or the reason why there is none."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.graph.samples import CLASSES, FEATURES, Builder, branch, run
from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.constants import NotConstant, constant_value, made_from_constants
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.scores import choose_head
from tna_onnx.graph.tensors import FLOAT_TYPES, byte_count, epsilon, float_tensor, numpy_type, rounded

X = np.random.default_rng(1).standard_normal((3, FEATURES)).astype(np.float32)


def saved(b: Builder, folder: Path, *outputs: str) -> Model:
    path = folder / "model.onnx"
    proto = b.proto(*outputs)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    path.write_bytes(proto.SerializeToString())
    return load_model(path)


_DRAW = Builder()
_CODES = np.arange(CLASSES * FEATURES).reshape(CLASSES, FEATURES) - 9
STORED = {
    "w": _DRAW.weight, "g": _DRAW.draw(CLASSES, 1), "down": _DRAW.draw(CLASSES, 2), "up": _DRAW.draw(2, FEATURES),
    "table": _DRAW.draw(5, FEATURES), "starts": [1], "ends": [3], "axes": [0], "sizes": [2, 3],
    "codes": _CODES.astype(np.int8), "codes16": _CODES.astype(np.int16), "one": np.int8(1), "one16": np.int16(1),
    "step": 0.125, "steps": [0.5, 0.25, 2], "two": 2.0,
}  # fmt: skip
FOLDED = {
    "one node": "Neg w > c",
    "constant nodes": "Constant > row value_floats=[1.0,2.0,3.0]; Constant > part value_float=0.25; Mul row part > c",
    "weight normalisation": "ReduceL2 w > norm axes=[1] keepdims=1; Div w norm > direction; Mul direction g > c",
    "LoRA": "MatMul down up > product; Add w product > c",
    "slice": "Slice table starts ends axes > c",
    "concatenation": "Concat table w > c axis=0",
    "side output": "Split table sizes > rest c axis=0",
    # the evaluator knows DequantizeLinear from opset 19 on only; here it is 17
    "dequantised": "DequantizeLinear codes step > weight; Neg weight > c",
    "dequantised per channel": "DequantizeLinear codes steps > weight axis=0; Neg weight > minus; Transpose minus > c",
    # ONNX Runtime's own DequantizeLinear, of 16 bits too
    **{
        f"dequantised by the runtime{bits}": f"DequantizeLinear codes{bits} step one{bits} > weight "
        "domain=com.microsoft; Transpose weight > turned; Mul turned two > c"
        for bits in ("", "16")
    },
}


@pytest.mark.parametrize("name", FOLDED)
def test_the_value_is_the_runtimes(name: str, tmp_path: Path) -> None:
    b = Builder()
    b.text(FOLDED[name], **STORED)
    model = saved(b, tmp_path, "c")
    before = model.proto.SerializeToString()
    found = constant_value(model, "c", len(model.proto.graph.node))
    np.testing.assert_allclose(found, run(model.path, ["c"], X)[0], rtol=1e-6, atol=1e-7, strict=True)
    assert model.proto.SerializeToString() == before


@pytest.mark.parametrize("opset", [10, 11, 13, 17, 18, 19])
@pytest.mark.parametrize("form", ["plain", "unsigned", "per channel", "last axis", "transposed", "dynamic"])
def test_a_weight_that_the_graph_quantises_itself_is_the_runtimes(form: str, opset: int, tmp_path: Path) -> None:
    """Quantisation-aware exports; `onnx.reference` has DequantizeLinear from opset 19 on."""
    channels = form in ("per channel", "last axis")
    if channels and opset < 13:
        pytest.skip("one scale a tensor before opset 13")
    b = Builder(opset=opset)
    stored = b.store("stored", b.weight)
    if form == "transposed":
        stored = b.node("Transpose", stored, out="turned", perm=[1, 0])
    if form == "dynamic" and opset >= 11:
        codes, scale, zero = (b.node("DynamicQuantizeLinear", stored, out="codes"), "scale", "zero")
        b.nodes[-1].output.extend([scale, zero])
        b.node("DequantizeLinear", codes, scale, zero, out="c")
    else:
        unsigned = form == "unsigned"
        axis = {"per channel": 0, "last axis": 1}.get(form)
        scales = [0.02, 0.05, 0.01] if axis == 0 else [0.02, 0.05, 0.01, 0.03, 0.04, 0.06]
        shape = () if axis is None else (len(scales),)
        scale = b.store("scale", np.resize(scales, shape) if channels else 0.02)
        zero = b.store("zero", np.full(shape, 128 if unsigned else 3), np.uint8 if unsigned else np.int8)
        flags = {} if axis is None else {"axis": axis}
        codes = b.node("QuantizeLinear", stored, scale, zero, out="codes", **flags)
        b.node("DequantizeLinear", codes, scale, zero, out="c", **flags)
    model = saved(b, tmp_path, "c")
    found = constant_value(model, "c", len(model.proto.graph.node))
    np.testing.assert_allclose(found, run(model.path, ["c"], X)[0], rtol=1e-6, atol=1e-7, strict=True)


def test_external_data_are_loaded(tmp_path: Path) -> None:
    b = Builder()
    b.text(FOLDED["LoRA"], **STORED)
    onnx.save_model(
        b.proto("c"), tmp_path / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    model = load_model(tmp_path / "model.onnx")
    found = constant_value(model, "c", len(model.proto.graph.node))
    np.testing.assert_allclose(found, run(model.path, ["c"], X)[0], rtol=1e-6)
    assert not model.initializers["down"].raw_data
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(UnsupportedModel, match=r"external data .weights\.bin. is missing"):
        constant_value(model, "c", len(model.proto.graph.node))


def test_what_branches_make_is_not_constant(tmp_path: Path) -> None:
    b = Builder()
    captures = branch("Neg", b.store("stored", b.weight))
    b.node("If", b.store("yes", True, bool), out="c", then_branch=captures, else_branch=captures)
    model = saved(b, tmp_path, "c")
    assert made_from_constants(model, "c") is None
    with pytest.raises(NotConstant, match="'c' is computed by a If node, not a constant"):
        constant_value(model, "c", len(model.proto.graph.node))


@pytest.mark.parametrize("op_type", ["RandomNormal", "RandomUniformLike"])
def test_random_numbers_are_no_constant(op_type: str, tmp_path: Path) -> None:
    """They are others every time."""
    b = Builder()
    like = op_type.endswith("Like")
    inputs, flags = ([b.store("like", b.weight.T)], {}) if like else ([], {"shape": [FEATURES, CLASSES]})
    b.node(op_type, *inputs, out="noise", **flags)
    b.node("MatMul", "features", b.node("Neg", "noise", out="minus"), out="y", name="head")
    model = saved(b, tmp_path, "y")
    with pytest.raises(UnsupportedModel, match="no linear head found"):
        choose_head(model)


@pytest.mark.parametrize(("length", "folded"), [(50, True), (51, False)])
def test_a_long_chain_is_no_weight(length: int, folded: bool, tmp_path: Path) -> None:
    b = Builder()
    tensor = b.store("stored", b.weight)
    for k in range(length):
        tensor = b.node("Neg", tensor, out=f"step {k}")
    model = saved(b, tmp_path, tensor)
    if folded:
        np.testing.assert_array_equal(constant_value(model, tensor, len(model.proto.graph.node)), b.weight)
        return
    with pytest.raises(NotConstant, match="computed by 51 nodes"):
        constant_value(model, tensor, len(model.proto.graph.node))


def test_broken_nodes_are_a_refusal_and_no_crash(tmp_path: Path) -> None:
    """Shapes that do not fit, whatever the evaluator raises then."""
    b = Builder()
    b.text("MatMul table table > c", **STORED)
    model = saved(b, tmp_path, "c")
    with pytest.raises(NotConstant, match=r"cannot be evaluated|of unknown size"):
        constant_value(model, "c", len(model.proto.graph.node))


# --- Element types: the table against onnx's, rounding as the type's own library does it, tensors that ONNX reads back


TYPES = {
    name: code
    for name, code in TensorProto.DataType.items()
    if name not in ("UNDEFINED", "STRING")  # which have no size
}


@pytest.mark.parametrize("name", TYPES)
def test_bytes_are_those_onnx_writes(name: str) -> None:
    """Five elements: packed types fill their last byte."""
    zeros = np.zeros(5, helper.tensor_dtype_to_np_dtype(TYPES[name]))
    tensor = onnx.numpy_helper.from_array(zeros, "zeros")
    tensor.data_type = TYPES[name]
    assert byte_count(tensor) == len(tensor.raw_data)


NAMES = tuple(FLOAT_TYPES.values())
SINGLE = st.floats(width=32)
# ties between two bfloat16 numbers, and the largest numbers that stay finite
EDGES = [
    0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 3.3895314e38, 3.3961775e38, 3.4028235e38, np.inf, -np.inf, np.nan,
    2**-133, 2**-134, 3 * 2**-134, 1.1754944e-38, 2.0**-149,
]  # fmt: skip


def bits(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, np.float32).view(np.uint32)


@pytest.mark.parametrize(
    "source", [np.float32(EDGES), np.arange(0, 2**32, 65521, np.uint64).astype(np.uint32).view(np.float32)]
)
def test_bfloat16_is_that_of_ml_dtypes(source: np.ndarray) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with np.errstate(invalid="ignore", over="ignore"):
        expected = source.astype(ml_dtypes.bfloat16).astype(np.float32)
    found = rounded(source, "bfloat16")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    there = ~np.isnan(expected)
    np.testing.assert_array_equal(bits(found[there]), bits(expected[there]))  # to the sign of zero


@pytest.mark.parametrize("name", NAMES)
@given(value=SINGLE)
def test_rounding_is_idempotent_and_odd(name: str, value: float) -> None:
    array = np.array([value])
    once = rounded(array, name)
    assert once.dtype == numpy_type(name)
    np.testing.assert_array_equal(rounded(once, name), once, strict=True)
    np.testing.assert_array_equal(rounded(-array, name), -once, strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_epsilon_is_the_step_at_one(name: str) -> None:
    eps = epsilon(name)
    assert rounded(np.array(1 + eps), name) == 1 + eps
    assert rounded(np.array(1 + eps / 2), name) == 1  # half way, to even


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 3), (2, 1, 0), (4, 1, 1)])
@pytest.mark.parametrize("name", NAMES)
def test_tensors_are_read_back(name: str, shape: tuple[int, ...]) -> None:
    value = np.random.default_rng(2).standard_normal(shape)
    tensor = float_tensor(value, name, "w")
    onnx.checker.check_tensor(tensor)
    assert (tensor.name, tuple(tensor.dims), FLOAT_TYPES[tensor.data_type]) == ("w", shape, name)
    assert len(tensor.raw_data) == value.size * (2 if name == "bfloat16" else numpy_type(name).itemsize)
    found = np.asarray(numpy_helper.to_array(tensor)).astype(numpy_type(name))
    np.testing.assert_array_equal(found, rounded(value, name), strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_views_are_rounded_in_their_own_order(name: str) -> None:
    value = np.random.default_rng(3).standard_normal((4, 6)).astype(np.float32)
    value.flags.writeable = False
    for view in (value.T, value[::2], value[:, ::-1], np.broadcast_to(value[:1], (3, 6)), value.astype(">f4")):
        expected = rounded(np.array(view, np.float32, order="C"), name)
        np.testing.assert_array_equal(rounded(view, name), expected)
        back = np.asarray(numpy_helper.to_array(float_tensor(view, name, "w"))).astype(numpy_type(name))
        np.testing.assert_array_equal(back, expected)
