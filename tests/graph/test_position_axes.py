"""What the graph says of several predictions a sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.builders import small_model, tensor_info
from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.head import choose_head, find_heads
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.outputs import class_output
from tna_onnx.graph.readout import has_positions
from tna_onnx.graph.scores import find_readout


def loaded(path: Path, nodes: list[Any], shape: list[Any], tensors: dict[str, Any], source: list[Any]) -> Model:
    model = small_model(nodes, [tensor_info("x", source)], [tensor_info("y", shape)], tensors)
    (path / "m.onnx").write_bytes(model.SerializeToString())
    return load_model(path / "m.onnx")


@pytest.mark.parametrize(
    ("sizes", "several"),
    [
        ([None, 9, 5], True),
        ([None, None, 5], True),
        ([None, 5, 32, 32], True),
        ([None, 5, None, None], True),
        ([None, 1, 5], False),  # a sequence of one
        ([None, 5, 1, 1], False),  # a convolution's
        ([None, 5, 1], False),
        ([None, 5], False),
        (None, False),
    ],
)
def test_declared_shapes(sizes: list[int | None] | None, several: bool) -> None:
    assert has_positions(sizes) is several


@pytest.mark.parametrize(
    ("axis", "shape", "expected"), [(1, ["N", 5, 7], 1), (-1, ["N", 7, 5], -1), (2, ["N", 7, 5], -1)]
)
def test_a_softmax_says_where_the_classes_are(axis: int, shape: list[Any], expected: int, tmp_path: Path) -> None:
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=axis)]
    readout = find_readout(loaded(tmp_path, nodes, shape, {}, shape))
    assert (readout.class_axis, readout.n_classes) == (expected, 5)
    assert class_output(loaded(tmp_path, nodes, shape, {}, shape)).several


def test_the_operator_says_it_for_a_head(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(5, 5)).astype(np.float32)
    product = loaded(tmp_path, [helper.make_node("MatMul", ["x", "w"], ["y"])], ["N", 5, 5], {"w": weight}, ["N", 5, 5])
    assert choose_head(product).class_axis == -1
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"])]
    convolution = loaded(tmp_path, nodes, ["N", 5, 5], {"w": weight[:, :, None]}, ["N", 5, 5])
    assert choose_head(convolution).class_axis == 1


def test_the_keys_of_an_attention_are_no_head(tmp_path: Path) -> None:
    """(N, heads, T, d): neither axis has the layer's 12 rows."""
    weight = np.random.default_rng(0).normal(size=(8, 12)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Reshape", ["a", "shape"], ["b"]),
        helper.make_node("Transpose", ["b"], ["y"], perm=[0, 2, 1, 3]),
    ]
    tensors = {"w": weight, "shape": np.array([0, 0, 3, 4])}
    model = loaded(tmp_path, nodes, ["N", 3, "T", 4], tensors, ["N", "T", 8])
    heads, refusals = find_heads(model)
    assert not heads
    assert "neither axis 1 nor the last one has the 12 classes" in refusals[0].reason


def test_a_softmax_over_positions_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=2)]
    model = loaded(tmp_path, nodes, ["N", 5, 6, 7], {}, ["N", 5, 6, 7])
    _, (refusal,) = find_heads(model)
    assert "Softmax over axis 2 of 4" in refusal.reason
    with pytest.raises(UnsupportedModel):
        find_readout(model)
