"""Constant folding: the value that ONNX Runtime gives, or the reason why there is none."""

from collections.abc import Callable
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


def _one_node(b: Builder) -> None:
    b.node("Neg", b.store("stored", b.weight), out="c")


def _constant_nodes(b: Builder) -> None:
    value = numpy_helper.from_array(b.weight)
    b.nodes.append(helper.make_node("Constant", [], ["one"], value=value))
    b.nodes.append(helper.make_node("Constant", [], ["two"], value_float=0.25))
    b.node("Mul", "one", "two", out="c")


def _normalized(b: Builder) -> None:
    """Weight normalisation: g v / |v|, as torch.nn.utils exports it."""
    norm = b.node("ReduceL2", b.store("v", b.weight), out="norm", axes=[1], keepdims=1)
    b.node("Mul", b.node("Div", "v", norm, out="direction"), b.store("g", b.draw(CLASSES, 1)), out="c")


def _low_rank(b: Builder) -> None:
    """LoRA: w + B A."""
    product = b.node("MatMul", b.store("B", b.draw(CLASSES, 2)), b.store("A", b.draw(2, FEATURES)), out="BA")
    b.node("Add", b.store("base", b.weight), product, out="c")


def _sliced(b: Builder) -> None:
    names = (b.store(n, v, np.int64) for n, v in {"starts": [1], "ends": [3], "axes": [0]}.items())
    b.node("Slice", b.store("table", b.draw(5, FEATURES)), *names, out="c")


def _concatenated(b: Builder) -> None:
    b.node("Concat", b.store("one", b.draw(1, FEATURES)), b.store("two", b.draw(2, FEATURES)), out="c", axis=0)


def _side_output(b: Builder) -> None:
    names = [b.store("table", b.draw(4, FEATURES)), b.store("sizes", [1, 3], np.int64)]
    b.nodes.append(helper.make_node("Split", names, ["rest", "c"], axis=0))


def _dequantized_and_more(b: Builder) -> None:
    """The evaluator knows DequantizeLinear from opset 19 on only; here it is 17."""
    codes = b.store("codes", np.arange(CLASSES * FEATURES).reshape(CLASSES, FEATURES) - 9, np.int8)
    weight = b.node("DequantizeLinear", codes, b.store("step", 0.125), out="weight")
    b.node("Neg", weight, out="c")


def _dequantized_per_channel(b: Builder) -> None:
    codes = b.store("codes", np.arange(CLASSES * FEATURES).reshape(CLASSES, FEATURES) - 9, np.int8)
    weight = b.node("DequantizeLinear", codes, b.store("step", [0.5, 0.25, 2]), out="weight", axis=0)
    b.node("Transpose", b.node("Neg", weight, out="minus"), out="c")


def _dequantized_by_the_runtime(b: Builder, dtype: type[np.generic]) -> None:
    """ONNX Runtime's own DequantizeLinear, of 16 bits too."""
    codes = b.store("codes", np.arange(CLASSES * FEATURES).reshape(CLASSES, FEATURES) - 9, dtype)
    inputs = (codes, b.store("step", 0.125), b.store("zero", 1, dtype))
    weight = b.node("DequantizeLinear", *inputs, out="weight", domain="com.microsoft")
    b.node("Mul", b.node("Transpose", weight, out="turned"), b.store("two", 2.0), out="c")


def _dequantized_8_bits(b: Builder) -> None:
    _dequantized_by_the_runtime(b, np.int8)


def _dequantized_16_bits(b: Builder) -> None:
    _dequantized_by_the_runtime(b, np.int16)


FOLDED = [
    _one_node, _constant_nodes, _normalized, _low_rank, _sliced, _concatenated, _side_output, _dequantized_and_more,
    _dequantized_per_channel, _dequantized_8_bits, _dequantized_16_bits,
]  # fmt: skip


@pytest.mark.parametrize("build", FOLDED, ids=lambda f: f.__name__.strip("_").replace("_", " "))
def test_the_value_is_the_runtimes(build: Callable[[Builder], None], tmp_path: Path) -> None:
    b = Builder()
    build(b)
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
    _low_rank(b)
    onnx.save_model(
        b.proto("c"), tmp_path / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    model = load_model(tmp_path / "model.onnx")
    found = constant_value(model, "c", len(model.proto.graph.node))
    np.testing.assert_allclose(found, run(model.path, ["c"], X)[0], rtol=1e-6)
    assert not model.initializers["B"].raw_data
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
    b.node("MatMul", b.store("one", b.draw(2, 3)), b.store("two", b.draw(2, 3)), out="c")
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
