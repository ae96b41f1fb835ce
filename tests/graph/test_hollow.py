"""A copy without the values of some initializers: all else is there, and the values take no room."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tna_onnx.graph.rewrite import hollow_copy

_STATUS = Path("/proc/self/status")


def _model(rows: int = 4, **words: str) -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.arange(rows * 1024, dtype=np.float32).reshape(rows, 1024), "weight")
    weight.doc_string = "of the head"
    weight.metadata_props.add(key="from", value="training")
    bias = numpy_helper.from_array(np.ones(rows, np.float32), "bias")
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "weight", "bias"], ["logits"], name="head", transB=1)],
        "hollow",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1024])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", rows])],
        [bias, weight],
        value_info=[helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1024])],
        **words,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="tests")
    helper.set_model_props(model, {"team": "a"})
    return model


def test_all_but_the_values_is_there() -> None:
    model = _model(doc_string="a graph")
    before = model.SerializeToString(deterministic=True)
    copy = hollow_copy(model, ["weight"])
    assert model.SerializeToString(deterministic=True) == before
    weight = copy.graph.initializer[1]
    assert (weight.name, weight.doc_string, len(weight.raw_data), len(weight.dims)) == ("weight", "of the head", 0, 0)
    weight.CopyFrom(model.graph.initializer[1])
    assert copy.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("of_the_graph", [False, True])
def test_fields_that_this_version_does_not_know_stay(*, of_the_graph: bool) -> None:
    model = _model()
    unknown = bytes([0xFA, 0xFF, 0x03, 0x03]) + b"new"  # field 8191, three bytes
    (model.graph if of_the_graph else model).MergeFromString(unknown)
    copy = hollow_copy(model, ["weight"])
    copy.graph.initializer[1].CopyFrom(model.graph.initializer[1])
    assert unknown in copy.SerializeToString(deterministic=True)
    assert copy.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)


def test_a_text_that_is_not_utf8_stays() -> None:
    model = _model(doc_string="WORDS")
    damaged = onnx.ModelProto()
    damaged.ParseFromString(model.SerializeToString(deterministic=True).replace(b"WORDS", b"W\xff\xfeRD"))
    copy = hollow_copy(damaged, ["weight"])
    assert b"W\xff\xfeRD" in copy.SerializeToString(deterministic=True)


@pytest.mark.skipif(not _STATUS.exists(), reason="the system does not tell the memory of a process")
def test_a_replaced_value_takes_no_room() -> None:
    """64 MB, which the C library takes from the system by itself and gives back at once."""
    model = _model(rows=2**14)
    size = len(model.graph.initializer[1].raw_data)
    start = _anonymous()
    copy = hollow_copy(model, ["weight"])
    assert _anonymous() - start < size / 4
    copy.graph.initializer[1].CopyFrom(model.graph.initializer[1])
    assert _anonymous() - start < 1.5 * size


def _anonymous() -> int:
    lines = _STATUS.read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def test_a_name_that_stands_twice_leaves_nothing_out() -> None:
    model = _model()
    model.graph.initializer.add().CopyFrom(model.graph.initializer[1])
    assert hollow_copy(model, ["weight"]) == model
