"""Scores that end in a distance or a cosine: what the graph tells about them, and what is left to a map."""

import numpy as np
import onnx
import pytest

from tests.builders import nodes_of, small_model
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
DIFFERENCES = "Unsqueeze x axis > u; Sub u rows3 > d"
SQUARES = f"{DIFFERENCES}; Pow d two > q; ReduceSum q last > r keepdims=0"
# |x|^2 - 2 x P^T + |P|^2
EXPANDED = (
    "Mul x x > xx; ReduceSum xx last > n keepdims=1; MatMul x turned > p; Mul p two > pp; Sub n pp > s; "
    "Add s lengths > e"
)


def of(*nodes: str, **tensors: np.ndarray) -> onnx.ModelProto:
    inputs, outputs = {"x": ["N", FEATURES]}, {"y": ["N", CLASSES]}
    return small_model(nodes_of("; ".join(nodes)), inputs, outputs, {**TENSORS, **tensors}, opset=17)


def outcome(model: onnx.ModelProto) -> Head | Refusal:
    heads, refusals = find_heads(load_model(model.SerializeToString()))
    (found,) = (*heads, *refusals)
    return found


@pytest.mark.parametrize(
    "nodes",
    [
        f"{SQUARES}; Neg r > y",
        f"{SQUARES}; Sqrt r > v; Neg v > y",
        f"{DIFFERENCES}; ReduceL1 d > r axes=[-1] keepdims=0; Neg r > y",
        f"{EXPANDED}; Max e zero > m; Sqrt m > v; Neg v > y",
    ],
)
def test_distances_from_prototypes_are_scores_where_the_user_says_logits(nodes: str) -> None:
    model = of(nodes)
    assert isinstance(outcome(model), Refusal)
    for kind in (None, "logits"):  # the run shows that they are no probabilities
        readout = find_readout(load_model(model.SerializeToString()), kind=kind)
        assert (readout.holds, readout.n_classes) == (kind or "probabilities", CLASSES)


@pytest.mark.parametrize("last", ["Neg e > y", "Sub zero e > y"])
def test_squared_distances_written_out_are_a_linear_layer(last: str) -> None:
    head = outcome(of(EXPANDED, last))
    assert isinstance(head, Head)
    np.testing.assert_allclose(head.weight, 2 * ROWS)
    if last.startswith("Neg"):  # in front of the other, the zero is the first constant that is added
        np.testing.assert_allclose(head.bias, -(ROWS**2).sum(axis=1), rtol=1e-6)
    # the length of the features is added by the graph alone, and does not grow with the scores
    assert not head.linear
    assert not head.homogeneous


@pytest.mark.parametrize(
    ("shift", "reason"),
    [
        ("ReduceSum p last > n keepdims=1", "are changed by"),  # made of the scores themselves
        ("ReduceSum x last > m keepdims=0; Unsqueeze m axis > n", "tensors that are computed from data"),
        ("Mul x x > o; ReduceSum o axis2 > n keepdims=1", "tensors that are computed from data"),
    ],
)
def test_what_is_added_to_scores_has_to_be_one_number_a_sample(shift: str, reason: str) -> None:
    found = outcome(of("MatMul x turned > p", shift, "Add p n > y", axis2=np.array([0])))
    assert isinstance(found, Refusal)
    assert reason in found.reason


def test_products_that_are_added_up_are_a_layer() -> None:
    """(N, 1, n) times (1, C, n), as torch writes a cosine similarity."""
    head = outcome(
        of("Unsqueeze x axis > u; Mul u rows3 > q name=at_q; ReduceSum q last > r keepdims=0; Mul r scale > y")
    )
    assert isinstance(head, Head)
    assert (head.op_type, head.node) == ("Mul", "at_q")
    np.testing.assert_allclose(head.weight, 16 * ROWS)


def test_constants_that_are_repeated_for_each_sample_leave_a_map() -> None:
    model = of(
        "Unsqueeze x axis > u; Shape x > size end=1; Concat size rest > shape axis=0; Expand rows3 shape > many; "
        "Mul u many > q; ReduceSum q last > y keepdims=0",
        rest=np.array([CLASSES, FEATURES]),
    )
    found = outcome(model)
    assert isinstance(found, Refusal)
    assert find_readout(load_model(model.SerializeToString()), kind="logits").holds == "logits"
