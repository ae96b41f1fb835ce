"""Which tensors of a batch are kept, by the form of the head."""

from __future__ import annotations

from dataclasses import replace

from tests.extraction.samples import CPU, dense, divided, opened
from tna_onnx.extraction.collect import Tensors
from tna_onnx.extraction.sessions import OpenModel
from tna_onnx.graph.load import load_model
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.scores import find_readout


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
