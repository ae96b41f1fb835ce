"""Forms of JAX and TensorFlow: the only column of a Sigmoid's results, an expanded bias, a checked maximum."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.data.samples import open_source
from tests.graph.rewriting import unexpected
from tests.graph.samples import CLASSES, FEATURES, Builder, Sample, run
from tna_onnx.errors import UnsupportedModel
from tna_onnx.extraction.classifier import OpenModel
from tna_onnx.extraction.head_check import check_readout
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.readers import can_scale, require_no_other_readers
from tna_onnx.graph.rewrite import rewrite
from tna_onnx.graph.scores import choose_head, find_readout
from tna_onnx.runtime import Device

_END = 2**31 - 1


def _gathered(b: Builder, p: str) -> str:
    return b.node("Gather", p, b.store("index", 0, np.int64), out="y", axis=1)


def _gathered_last(b: Builder, p: str) -> str:
    return b.node("Gather", p, b.store("index", -1, np.int64), out="y", axis=-1)


def _turned(b: Builder, p: str) -> str:
    """As jax2onnx writes it."""
    turned = b.node("Transpose", p, out="turned", perm=[1, 0])
    return b.node("Gather", turned, b.store("index", 0, np.int64), out="y", axis=0)


def _sliced(b: Builder, p: str, ends: tuple[int, int] = (_END, 1), starts: tuple[int, int] = (0, 0)) -> str:
    """As tf2onnx writes it."""
    bounds = [b.store("starts", starts, np.int64), b.store("ends", ends, np.int64), b.store("axes", [0, 1], np.int64)]
    column = b.node("Slice", p, *bounds, out="column")
    return b.node("Squeeze", column, b.store("dropped", [1], np.int64), out="y")


def _sliced_by_attributes(b: Builder, p: str) -> str:
    """The same, up to opset 9."""
    column = b.node("Slice", p, out="column", axes=[0, 1], starts=[0, 0], ends=[_END, 1])
    return b.node("Squeeze", column, out="y", axes=[1])


_COLUMNS = [(_gathered, 17), (_gathered_last, 17), (_turned, 17), (_sliced, 17), (_sliced_by_attributes, 9)]


@pytest.mark.parametrize(("column", "opset"), _COLUMNS)
def test_the_only_column_of_sigmoids_is_the_output_of_a_binary_model(
    column: Callable[[Builder, str], str], opset: int, tmp_path: Path
) -> None:
    b = Builder(classes=1, opset=opset)
    column(b, b.node("Sigmoid", b.linear("scores"), out="p"))
    sample = b.sample({"y": "sigmoid"}, bias_scale=1.0, logits="scores")
    model = sample.write(tmp_path)
    head, x = choose_head(model), sample.inputs(9)
    assert (head.binary, head.activation, head.logits, head.linear) == (True, "sigmoid", "scores", True)
    np.testing.assert_allclose(head.weight[1] - head.weight[0], sample.weight[0], rtol=1e-6)

    twice = rewrite(model, head, head.weight * 2, bias_factor=2.0, metadata={})
    assert unexpected(model, twice, twice.proto) == []
    p, sharper = run(model.path, ["y"], x)[0], run(twice.proto, ["y"], x)[0]
    assert p.shape == sharper.shape == (9,)
    odds = (p / (1 - p)).astype(np.float64)
    # odds of twice the logit are squared; their rounding is that of a float32 probability next to 1
    np.testing.assert_allclose(sharper, odds**2 / (1 + odds**2), rtol=0, atol=1e-5)


@pytest.mark.parametrize("column", [_gathered, _turned, _sliced])
def test_one_column_of_several_labels_is_no_classifier(column: Callable[[Builder, str], str], tmp_path: Path) -> None:
    b = Builder()
    column(b, b.node("Sigmoid", b.linear("scores"), out="p"))
    with pytest.raises(UnsupportedModel, match="the output is one column of 3 probabilities"):
        choose_head(b.sample({"y": "sigmoid"}).write(tmp_path))


def _second(b: Builder, p: str) -> str:
    return b.node("Gather", p, b.store("index", 1, np.int64), out="y", axis=1)


def _first_sample(b: Builder, p: str) -> str:
    return b.node("Gather", p, b.store("index", 0, np.int64), out="y", axis=0)


def _first_rows(b: Builder, p: str) -> str:
    return _sliced(b, p, ends=(1, 1))


def _later_rows(b: Builder, p: str) -> str:
    return _sliced(b, p, starts=(1, 0))


@pytest.mark.parametrize("choice", [_second, _first_sample, _first_rows, _later_rows])
def test_other_choices_of_probabilities_stay_refused(choice: Callable[[Builder, str], str], tmp_path: Path) -> None:
    b = Builder(classes=1)
    choice(b, b.node("Sigmoid", b.linear("scores"), out="p"))
    with pytest.raises(UnsupportedModel, match="result of Sigmoid is scaled, shifted or changed"):
        choose_head(b.sample({"y": "sigmoid"}).write(tmp_path))


def _expanded(shape_of: str, **outputs: str) -> Sample:
    """Scores, and a bias that is brought to the shape of a tensor of data, as jnp.broadcast_to is written."""
    b = Builder()
    b.product("product")
    b.node("Shape", shape_of, out="shape")
    b.node("Gather", "shape", b.store("first", [0], np.int64), out="samples", axis=0)
    b.node("Concat", "samples", b.store("classes", [CLASSES], np.int64), out="target", axis=0)
    row = b.node("Reshape", b.store("bias", b.bias), b.store("row", [1, CLASSES], np.int64), out="bias row")
    b.node("Expand", row, "target", out="expanded")
    b.node("Add", "product", "expanded", out="y")
    return b.sample({"y": "logits", **outputs}, bias_scale=1.0)


@pytest.mark.parametrize("shape_of", ["product", "x"])
def test_an_expanded_bias_is_a_bias(shape_of: str, tmp_path: Path) -> None:
    sample = _expanded(shape_of)
    model = sample.write(tmp_path)
    head, x = choose_head(model), sample.inputs(9)
    np.testing.assert_allclose(head.weight, sample.weight, rtol=1e-6)
    assert head.bias is not None
    np.testing.assert_allclose(head.bias, sample.bias, rtol=1e-6)
    assert head.linear
    assert can_scale(model, head)

    halved = rewrite(model, head, head.weight / 2, bias_factor=0.5, metadata={})
    assert unexpected(model, halved, halved.proto) == []
    np.testing.assert_array_equal(run(halved.proto, ["y"], x)[0], run(model.path, ["y"], x)[0] / 2)


def test_scores_that_are_read_in_front_of_an_expanded_bias_are_not_scaled(tmp_path: Path) -> None:
    sample = _expanded("x")
    model = sample.write(tmp_path)
    extra = model.proto.graph.output.add()
    extra.name = "product"
    model.path.write_bytes(model.proto.SerializeToString())
    model = load_model(model.path)
    assert not can_scale(model, choose_head(model, output="y"))


def _checked_maximum(b: Builder, scores: str) -> str:
    """The maximum, or 0 where it is infinite, as tf2onnx writes a choice: by factors of 0 and 1."""
    b.node("ReduceMax", scores, out="largest", axes=[1], keepdims=1)
    b.node("Not", b.node("IsInf", "largest", out="infinite"), out="finite")
    b.node("Mul", b.node("Cast", "finite", out="is finite", to=onnx.TensorProto.FLOAT), "largest", out="kept")
    b.node("Cast", "infinite", out="is infinite", to=onnx.TensorProto.FLOAT)
    b.node("Mul", b.store("zero", 0.0), "is infinite", out="in its place")
    return b.node("Add", "kept", "in its place", out="shift")


def _one_a_class(b: Builder, scores: str) -> str:
    """Not the same for all classes, so that what comes out is no log-softmax."""
    return b.node("Mul", scores, b.store("share", [0.5, 0.1, 0.9]), out="shift")


def _zero_so_far(b: Builder, scores: str) -> str:
    """Not the same for all classes where scores are above 100, and 0 on all data at hand."""
    return b.node("Relu", b.node("Sub", scores, b.store("limit", 100.0), out="beyond"), out="shift")


def _zero_so_far_for_one(b: Builder, scores: str) -> str:
    """Made of a maximum and a constant that differs by class."""
    largest = b.node("ReduceMax", scores, out="largest", axes=[1], keepdims=1)
    beyond = b.node("Relu", b.node("Sub", largest, b.store("limit", 100.0), out="less"), out="beyond")
    return b.node("Mul", beyond, b.store("share", [0.5, 0.1, 0.9]), out="shift")


def _log_softmax(shift: Callable[[Builder, str], str]) -> Sample:
    """s - (log |sum exp(s - a)| + a)."""
    b = Builder()
    a = shift(b, b.linear("scores"))
    b.node("Exp", b.node("Sub", "scores", a, out="shifted"), out="exponentials")
    b.node("ReduceSum", "exponentials", b.store("axes", [1], np.int64), out="sum", keepdims=1)
    b.node("Add", b.node("Log", b.node("Abs", "sum", out="absolute"), out="log"), a, out="summed")
    b.node("Sub", "scores", "summed", out="y")
    return b.sample({"y": "log_softmax"}, bias_scale=1.0, logits="scores")


def test_a_log_softmax_around_a_maximum_that_is_checked(tmp_path: Path) -> None:
    sample = _log_softmax(_checked_maximum)
    model = sample.write(tmp_path)
    head = choose_head(model)
    assert (head.activation, head.logits, head.linear) == ("log_softmax", "scores", True)
    np.testing.assert_allclose(head.weight, sample.weight, rtol=1e-6)
    _check_by_numbers(model, tmp_path)


@pytest.mark.parametrize("shift", [_one_a_class, _zero_so_far, _zero_so_far_for_one])
def test_what_need_not_be_the_same_for_all_classes_is_refused(
    shift: Callable[[Builder, str], str], tmp_path: Path
) -> None:
    model = _log_softmax(shift).write(tmp_path)
    with pytest.raises(UnsupportedModel):
        _check_by_numbers(model, tmp_path)


def _check_by_numbers(model: Model, folder: Path) -> None:
    head, x = choose_head(model), Builder().draw(30, FEATURES)
    np.savez(folder / "data.npz", x=x, labels=np.arange(30) % CLASSES)
    opened = OpenModel(model, head, Device("cpu"))
    source = open_source(folder / "data.npz", opened.inputs, CLASSES, None)
    check_readout(opened, head, opened.session, source, 30)


@pytest.mark.parametrize("other", ["output", "another head"])
def test_an_expanded_bias_that_others_read_stays_as_it_is(other: str, tmp_path: Path) -> None:
    outputs = {"expanded": "bias"}
    b = Builder()
    b.product("product")
    b.node("Shape", "product", out="target")
    b.node("Expand", b.store("bias", b.bias), "target", out="expanded")
    b.node("Add", "product", "expanded", out="y")
    if other == "another head":
        b.node("Mul", "expanded", b.store("two", [2.0]), out="doubled")
        outputs = {"doubled": "bias"}
    sample = b.sample({"y": "logits", **outputs}, bias_scale=1.0)
    model = sample.write(tmp_path)
    head, x = choose_head(model, output="y"), sample.inputs(9)
    assert can_scale(model, head)
    require_no_other_readers(model, head, keeps_order=False)

    halved = rewrite(model, head, head.weight / 2, bias_factor=0.5, metadata={})
    assert unexpected(model, halved, halved.proto) == []
    names = ["y", *outputs]
    y, kept = run(model.path, names, x)
    half, same = run(halved.proto, names, x)
    np.testing.assert_allclose(half, y / 2, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(same, kept)


def _clipped(b: Builder, scores: str) -> str:
    """As the modified Huber loss of scikit-learn has it."""
    one = b.store("one", 1.0)
    inner = b.node("Clip", scores, b.store("least", -1.0), one, out="clipped")
    return b.node("Div", b.node("Add", inner, one, out="raised"), b.store("two", 2.0), out="p")


def _averaged(b: Builder, scores: str) -> str:
    """Two networks whose probabilities are averaged."""
    first, second = (b.node("Sigmoid", scores, out="p1"), b.node("Sigmoid", b.node("Neg", scores, out="n"), out="p2"))
    return b.node("Mean", first, second, out="p")


def _linear(b: Builder, scores: str) -> str:
    return b.node("Identity", scores, out="p")


@pytest.mark.parametrize("made", [_clipped, _averaged, _linear])
def test_two_columns_that_no_sigmoid_makes_are_probabilities_as_they_are(made: Callable[[Builder, str], str]) -> None:
    """Concat(1 - p, p): p is no logit, whatever computes it."""
    b = Builder(classes=1)
    p = made(b, b.linear("scores"))
    b.node("Concat", b.node("Sub", b.store("whole", 1.0), p, out="other"), p, out="y", axis=1)
    readout = find_readout(load_model(b.sample().proto.SerializeToString()))
    assert (readout.logits, readout.holds, readout.n_classes) == ("y", "probabilities", 2)
    assert (readout.paired, readout.binary) == (False, False)
