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


@pytest.mark.parametrize("last", ["Neg", "minus first"])
def test_squared_distances_written_out_are_a_linear_layer(last: str) -> None:
    more = [node("Neg", "e", "y")] if last == "Neg" else [node("Sub", "zero e", "y")]
    head = outcome(of(expanded(), *more))
    assert isinstance(head, Head)
    np.testing.assert_allclose(head.weight, 2 * ROWS)
    if last == "Neg":  # in front of the other, the zero is the first constant that is added
        np.testing.assert_allclose(head.bias, -(ROWS**2).sum(axis=1), rtol=1e-6)
    # the length of the features is added by the graph alone, and does not grow with the scores
    assert not head.linear
    assert not head.homogeneous


@pytest.mark.parametrize(
    ("shift", "reason"),
    [
        ([node("ReduceSum", "p last", "n", keepdims=1)], "are changed by"),  # made of the scores themselves
        (
            [node("ReduceSum", "x last", "m", keepdims=0), node("Unsqueeze", "m axis", "n")],
            "tensors that are computed from data",
        ),
        (
            [node("Mul", "x x", "o"), node("ReduceSum", "o axis2", "n", keepdims=1)],
            "tensors that are computed from data",
        ),
    ],
)
def test_what_is_added_to_scores_has_to_be_one_number_a_sample(shift: Nodes, reason: str) -> None:
    nodes = [node("MatMul", "x turned", "p"), *shift, node("Add", "p n", "y")]
    model = small_model(nodes, {"x": ["N", FEATURES]}, {"y": ["N", CLASSES]}, {**TENSORS, "axis2": np.array([0])})
    found = outcome(model)
    assert isinstance(found, Refusal)
    assert reason in found.reason


def test_products_that_are_added_up_are_a_layer() -> None:
    """(N, 1, n) times (1, C, n), as torch writes a cosine similarity."""
    nodes = [
        node("Unsqueeze", "x axis", "u"),
        node("Mul", "u rows3", "q"),
        summed("ReduceSum", "q", "r"),
        node("Mul", "r scale", "y"),
    ]
    head = outcome(of(nodes))
    assert isinstance(head, Head)
    assert (head.op_type, head.node) == ("Mul", "at_q")
    np.testing.assert_allclose(head.weight, 16 * ROWS)


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
