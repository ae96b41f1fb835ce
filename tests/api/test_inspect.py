"""`inspect`: what it says of heads is what the file holds, and nothing is run."""

from __future__ import annotations

import hashlib

import numpy as np
import onnx
import pytest
from onnx import helper

import tna_onnx
from tests.builders import tensor_info
from tests.conftest import Small
from tests.extraction.samples import dense
from tests.support import PLAIN
from tna_onnx.runtime import opening


def test_the_head_of_a_file(small: Small) -> None:
    found = tna_onnx.inspect(small.model)
    (head,) = found.heads
    assert found.sha256 == hashlib.sha256(small.model.read_bytes()).hexdigest()
    assert (found.ir_version, found.opset, found.refusals, found.provenance) == (8, 17, (), {})
    assert (head.node, head.op_type, head.weight, head.bias) == ("head", "Gemm", "weight", "bias")
    assert (head.classes, head.n_features, head.features, head.logits) == (5, 32, "features", "logits")
    assert (head.weight_type, head.activation, head.output) == ("float32", "none", "logits")
    (line,) = found.inputs
    assert line.startswith("x: ")
    assert "8" in line


def test_types_of_half_precision_and_no_bias() -> None:
    proto = dense(np.float16, softmax=True)
    del proto.graph.node[1].input[2]
    (head,) = tna_onnx.inspect(proto).heads
    assert (head.weight_type, head.bias, head.activation, head.follows) == ("float16", None, "softmax", ("Softmax",))


def test_two_outputs_of_one_head_are_one_head_by_its_first_output() -> None:
    proto = dense(softmax=True)
    proto.graph.output.append(tensor_info("logits", ["N", 3]))
    (head,) = tna_onnx.inspect(proto).heads
    assert head.output == "p"


def test_a_model_without_a_head_has_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a session was opened")

    monkeypatch.setattr(opening, "open_session", refuse)
    proto = dense()
    proto.graph.node.append(helper.make_node("Sin", ["logits"], ["y"], name="sine"))
    proto.graph.output[0].name = "y"
    found = tna_onnx.inspect(proto)
    assert found.heads == ()
    assert [(refusal.output, refusal.node) for refusal in found.refusals] == [("y", "sine")]


def test_what_was_written_is_read_back(small: Small) -> None:
    with np.load(small.calib) as arrays:
        data = {name: values[:200] for name, values in arrays.items()}
    report = tna_onnx.calibrate(onnx.load(small.model), data, **PLAIN)
    found = tna_onnx.inspect(report.recalibrated)
    assert (found.provenance["map"], found.provenance["search"]) == ("ts", "none")
    assert float(found.provenance["temperature"]) == report.parameters["temperature"]
