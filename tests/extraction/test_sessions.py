"""One session for everything that a run reads, and sessions on parts of a model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.extraction.samples import BIAS, CPU, WEIGHT, dense, divided, inputs, opened
from tna_onnx.extraction.collect import Tensors
from tna_onnx.extraction.sessions import OpenModel
from tna_onnx.graph.load import load_model
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.scores import find_readout


def test_the_session_is_opened_once_and_gives_all_that_a_run_reads() -> None:
    model = opened(divided())
    session = model.session
    assert model.session is session
    assert model.is_whole(session)
    assert set(session.outputs) == {"z", "scale", "logits"}
    x = inputs(4)
    z, scale, logits = session.run(["z", "scale", "logits"], {"x": x})
    np.testing.assert_array_equal(z, np.maximum(x, 0))
    np.testing.assert_allclose(scale, 1 + np.abs(x).mean(axis=1, keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(logits, (z @ WEIGHT.T + BIAS) / scale, atol=1e-5)


def test_a_session_starts_where_the_samples_enter() -> None:
    model = opened(dense())
    float32 = np.dtype(np.float32)
    part = model.session_from({"z": float32})
    assert part is not None
    assert [each.name for each in part.inputs] == ["z"]
    z = inputs(3)  # of any sign: nothing in front of the head is run
    np.testing.assert_allclose(part.run(["logits"], {"z": z})[0], z @ WEIGHT.T + BIAS, atol=1e-5)
    assert not model.is_whole(part)
    assert model.session_from({"logits": float32}) is None
    assert model.session_from({}) is model.session_from({"x": float32}) is model.session


def test_only_what_nodes_compute_is_asked_for_and_once() -> None:
    assert opened(dense()).computed(["logits", "x", "weight", "z", "logits", "nowhere"]) == ["logits", "z"]


# ---- Which tensors of a batch are kept, by the form of the head


def of(model: OpenModel, readout: Readout | None = None, *given: str, keep_logits: bool = False) -> Tensors:
    return Tensors.of(model, readout or model.readout, given, keep_logits=keep_logits)


def test_a_linear_head_needs_its_features_alone() -> None:
    model = opened(dense())
    assert of(model) == Tensors("z", (), None, ("z",))
    assert of(model, None, keep_logits=True) == Tensors("z", (), "logits", ("z", "logits"))


def test_a_tail_needs_what_it_reads_beside_the_features() -> None:
    model = opened(divided())
    assert isinstance(model.readout, Head)
    assert not model.readout.linear
    assert of(model) == Tensors("z", ("scale",), None, ("z", "scale"))
    assert of(model, replace(model.readout, linear=True)).beside == ()


def test_without_a_head_the_logits_are_all() -> None:
    proto = dense()
    del proto.graph.node[1:]
    proto.graph.node[0].output[0] = "logits"
    model = load_model(proto)
    model_opened = OpenModel(model, find_readout(model, None, None, "logits"), CPU)
    assert of(model_opened, keep_logits=True) == Tensors("logits", (), "logits", ("logits",))
