"""Forms of JAX and TensorFlow: the only column of a Sigmoid's results, and a bias that is expanded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.graph.samples import CLASSES, Builder, Sample, run
from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.difference import unexpected_differences
from tna_onnx.graph.head import choose_head
from tna_onnx.graph.load import load_model
from tna_onnx.graph.readers import can_scale
from tna_onnx.graph.rewrite import rewrite

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
    column: object, opset: int, tmp_path: Path
) -> None:
    b = Builder(classes=1, opset=opset)
    column(b, b.node("Sigmoid", b.linear("scores"), out="p"))
    sample = b.sample({"y": "sigmoid"}, bias_scale=1.0, logits="scores")
    model = sample.write(tmp_path)
    head, x = choose_head(model), sample.inputs(9)
    assert (head.binary, head.activation, head.logits, head.linear) == (True, "sigmoid", "scores", True)
    np.testing.assert_allclose(head.weight[1] - head.weight[0], sample.weight[0], rtol=1e-6)

    twice = rewrite(model, head, head.weight * 2, bias_factor=2.0, metadata={})
    assert unexpected_differences(model, twice, twice.proto) == []
    p, sharper = run(model.path, ["y"], x)[0], run(twice.proto, ["y"], x)[0]
    assert p.shape == sharper.shape == (9,)
    odds = (p / (1 - p)).astype(np.float64)
    # odds of twice the logit are squared; their rounding is that of a float32 probability next to 1
    np.testing.assert_allclose(sharper, odds**2 / (1 + odds**2), rtol=0, atol=1e-5)


@pytest.mark.parametrize("column", [_gathered, _turned, _sliced])
def test_one_column_of_several_labels_is_no_classifier(column: object, tmp_path: Path) -> None:
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
def test_other_choices_of_probabilities_stay_refused(choice: object, tmp_path: Path) -> None:
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
    assert unexpected_differences(model, halved, halved.proto) == []
    np.testing.assert_array_equal(run(halved.proto, ["y"], x)[0], run(model.path, ["y"], x)[0] / 2)


def test_scores_that_are_read_in_front_of_an_expanded_bias_are_not_scaled(tmp_path: Path) -> None:
    sample = _expanded("x")
    model = sample.write(tmp_path)
    extra = model.proto.graph.output.add()
    extra.name = "product"
    model.path.write_bytes(model.proto.SerializeToString())
    model = load_model(model.path)
    assert not can_scale(model, choose_head(model, output="y"))
