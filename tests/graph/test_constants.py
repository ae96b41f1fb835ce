"""Constant folding: the value that ONNX Runtime gives, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.graph.samples import CLASSES, FEATURES, Builder, branch, run
from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.constants import NotConstant, constant_value, made_from_constants
from tna_onnx.graph.head import choose_head
from tna_onnx.graph.load import Model, load_model

X = np.random.default_rng(1).standard_normal((3, FEATURES)).astype(np.float32)


def saved(b: Builder, folder: Path, *outputs: str) -> Model:
    path = folder / "model.onnx"
    path.write_bytes(b.proto(*outputs).SerializeToString())
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


def _branch(b: Builder) -> None:
    """An If whose condition and branches are constant; the branches capture an initializer."""
    stored = b.store("stored", b.weight)
    yes = b.store("yes", True, bool)
    b.node("If", yes, out="c", then_branch=branch("Neg", stored), else_branch=branch("Abs", stored))


FOLDED = [
    _one_node, _constant_nodes, _normalized, _low_rank, _sliced, _concatenated, _side_output, _dequantized_and_more,
    _dequantized_per_channel, _branch,
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


def test_a_branch_that_captures_data_is_not_constant(tmp_path: Path) -> None:
    b = Builder()
    captures = branch("Neg", "features")
    b.node("If", b.store("yes", True, bool), out="c", then_branch=captures, else_branch=captures)
    model = saved(b, tmp_path, "c")
    assert made_from_constants(model, "c") is None
    with pytest.raises(NotConstant, match="'c' is computed by a If node, not a constant"):
        constant_value(model, "c", len(model.proto.graph.node))


def test_a_branch_that_captures_constants_is_constant(tmp_path: Path) -> None:
    """What the branch makes itself is none of the graph's tensors."""
    b = Builder()
    _branch(b)
    model = saved(b, tmp_path, "c")
    assert made_from_constants(model, "c") == [model.producers["c"]]


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


@pytest.mark.parametrize("build", [_normalized, _low_rank, _dequantized_and_more])
def test_a_head_with_such_a_weight(build: Callable[[Builder], None], tmp_path: Path) -> None:
    b = Builder()
    build(b)
    b.node("Gemm", "features", "c", b.store("bias", b.bias), out="y", name="head", transB=1)
    model = saved(b, tmp_path, "y")
    head = choose_head(model)
    assert head.stored_weight.shared  # there is no way back: a new weight is a tensor of its own
    features, y = run(with_outputs(model, "features", "y"), ["features", "y"], X)
    np.testing.assert_allclose(features @ head.weight.T + head.bias, y, rtol=0, atol=1e-4)


def with_outputs(model: Model, *names: str) -> onnx.ModelProto:
    probe = onnx.ModelProto()
    probe.CopyFrom(model.proto)
    del probe.graph.output[:]
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return probe
