"""The part of a graph behind the features, under any weight: against NumPy."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.builders import tensor_info
from tests.extraction.samples import BIAS, CPU, WEIGHT, inputs, opened, tokens
from tna_onnx.data import Batch
from tna_onnx.extraction import head_check as tails
from tna_onnx.extraction.head_check import Tail
from tna_onnx.graph.readout import Head

ATOL = 1e-5  # of logits up to about 10 in float32


def tail_of(proto: onnx.ModelProto, sample: Batch, fixed_batch: int | None = None) -> tuple[Tail, Head]:
    model = opened(proto)
    assert isinstance(model.readout, Head)
    return Tail(model.model, model.readout, CPU, sample, fixed_batch), model.readout


def test_one_number_of_a_binary_head_gets_its_zero_beside_it() -> None:
    proto = tokens()
    del proto.graph.initializer[:]
    arrays = {"weight": np.ascontiguousarray(WEIGHT[:1].T), "bias": BIAS[:1]}
    proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in arrays.items())
    proto.graph.node.append(helper.make_node("Sigmoid", ["logits"], ["y"]))
    del proto.graph.output[:]
    proto.graph.output.append(tensor_info("y", ["N", 1]))
    z = np.maximum(inputs(7, 4, 6), 0)
    tail, _ = tail_of(proto, {"z": z})
    own = (z @ WEIGHT[:1].T + BIAS[:1]).max(axis=1)
    np.testing.assert_allclose(tail.logits(None)({"z": z}), np.hstack([np.zeros((7, 1)), own]), atol=ATOL)


def test_in_float_leaves_the_tail_it_came_from_as_it_is() -> None:
    tail, head = tail_of(tokens(), {"z": inputs(2, 4, 6)})
    other = tail.in_float()
    assert tail._head is head
    assert other._head is not head


def test_a_candidate_is_a_copy_of_the_head_alone() -> None:
    """The weights of the network in front are not copied for each weight that is tried."""
    proto = tokens()
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(10_000, np.float32), "trunk"))
    proto.graph.node.insert(0, helper.make_node("Identity", ["trunk"], ["unused"]))
    z = np.maximum(inputs(7, 4, 6), 0)
    tail, head = tail_of(proto, {"z": z})
    assert "trunk" not in tail._model.initializers
    assert head.stored_weight.name in tail._model.initializers
    np.testing.assert_allclose(tail.logits(head.weight)({"z": z}), (z @ WEIGHT.T + BIAS).max(axis=1), atol=ATOL)


def test_one_session_serves_all_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA: the weight is an input, and logits are those of a session of its own for each."""
    z = np.maximum(inputs(7, 4, 6), 0)
    each, head = tail_of(tokens(), {"z": z})
    opens: list[object] = []
    real = tails.open_part
    monkeypatch.setattr(tails, "open_part", lambda *words: (opens.append(1), real(*words))[1])
    shared = Tail(opened(tokens()).model, head, CPU, {"z": z}, None, one_session=True)
    found = [shared.logits(head.weight * np.float32(factor)) for factor in (1, 2, -3)]
    assert len(opens) == 1
    for factor, run in zip((1, 2, -3), found, strict=True):  # all at once, each with its own weight
        own = each.logits(head.weight * np.float32(factor))({"z": z})
        np.testing.assert_allclose(run({"z": z}), own, rtol=0, atol=ATOL)
    np.testing.assert_allclose(shared.logits(None)({"z": z}), each.logits(None)({"z": z}), rtol=0, atol=ATOL)
