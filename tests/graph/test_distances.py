"""Scores that end in a distance or a cosine: what the graph tells about them, and what is left to a map."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.builders import small_model
from tna_onnx.graph.load import load_model
from tna_onnx.graph.readout import Head
from tna_onnx.graph.scores import find_heads, find_readout
from tna_onnx.graph.walk.steps import Refusal

CLASSES, FEATURES = 4, 3
ROWS = np.random.default_rng(3).standard_normal((CLASSES, FEATURES)).astype(np.float32)
TENSORS = {
    "rows": ROWS,
    "rows3": ROWS[None],
    "turned": ROWS.T.copy(),
    "lengths": (ROWS**2).sum(axis=1),
    "axis": np.array([1]),
    "last": np.array([-1]),
    "two": np.float32(2),
    "zero": np.float32(0),
    "scale": np.float32(16),
}
Nodes = list[onnx.NodeProto]


def node(kind: str, inputs: str, output: str, **flags: object) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], name=f"at_{output}", **flags)


def squares() -> Nodes:
    """(N, C, n) squared differences, `q`."""
    return [*differences(), node("Pow", "d two", "q")]


def differences() -> Nodes:
    return [node("Unsqueeze", "x axis", "u"), node("Sub", "u rows3", "d")]


def expanded() -> Nodes:
    """|x|^2 - 2 x P^T + |P|^2 as `e`."""
    return [
        node("Mul", "x x", "xx"),
        node("ReduceSum", "xx last", "n", keepdims=1),
        node("MatMul", "x turned", "p"),
        node("Mul", "p two", "pp"),
        node("Sub", "n pp", "s"),
        node("Add", "s lengths", "e"),
    ]


def of(nodes: Nodes, *more: onnx.NodeProto) -> onnx.ModelProto:
    return small_model([*nodes, *more], {"x": ["N", FEATURES]}, {"y": ["N", CLASSES]}, TENSORS, opset=17)


def outcome(model: onnx.ModelProto) -> Head | Refusal:
    heads, refusals = find_heads(load_model(model.SerializeToString()))
    (found,) = (*heads, *refusals)
    return found


def summed(kind: str, tensor: str, output: str) -> onnx.NodeProto:
    """Return a reduction over the last axis, as opset 17 has it."""
    if kind == "ReduceSum":
        return node(kind, f"{tensor} last", output, keepdims=0)
    return node(kind, tensor, output, axes=[-1], keepdims=0)


@pytest.mark.parametrize(
    ("nodes", "more"),
    [
        (squares, [summed("ReduceSum", "q", "r"), node("Neg", "r", "y")]),
        (squares, [summed("ReduceSum", "q", "r"), node("Sqrt", "r", "v"), node("Neg", "v", "y")]),
        (differences, [summed("ReduceL1", "d", "r"), node("Neg", "r", "y")]),
        (expanded, [node("Max", "e zero", "m"), node("Sqrt", "m", "v"), node("Neg", "v", "y")]),
    ],
)
def test_distances_from_prototypes_are_scores_where_the_user_says_logits(
    nodes: Callable[[], Nodes], more: Nodes
) -> None:
    model = of(nodes(), *more)
    assert isinstance(outcome(model), Refusal)
    for kind in (None, "logits"):  # the run shows that they are no probabilities
        readout = find_readout(load_model(model.SerializeToString()), kind=kind)
        assert (readout.holds, readout.n_classes) == (kind or "probabilities", CLASSES)


def test_constants_that_are_repeated_for_each_sample_leave_a_map() -> None:
    nodes = [
        node("Unsqueeze", "x axis", "u"),
        node("Shape", "x", "size", end=1),
        node("Concat", "size rest", "shape", axis=0),
        node("Expand", "rows3 shape", "many"),
        node("Mul", "u many", "q"),
        summed("ReduceSum", "q", "y"),
    ]
    tensors = {**TENSORS, "rest": np.array([CLASSES, FEATURES])}
    model = small_model(nodes, {"x": ["N", FEATURES]}, {"y": ["N", CLASSES]}, tensors)
    found = outcome(model)
    assert isinstance(found, Refusal)
    assert find_readout(load_model(model.SerializeToString()), kind="logits").holds == "logits"
