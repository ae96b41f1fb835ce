"""Functions of a model are inlined, where that is possible."""

from __future__ import annotations

import onnx
from onnx import helper

from tests.builders import small_model, tensor_info
from tna_onnx.graph.load import inlined


def with_function(*, name: str = "Twice") -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 17)]
    add = helper.make_node("Add", ["a", "a"], ["b"])
    function = helper.make_function("local", name, ["a"], ["b"], [add], opsets)
    call = helper.make_node(name, ["x"], ["y"], domain="local")
    return small_model(
        [call], [tensor_info("x", [2])], [tensor_info("y", [2])], domains={"local": 1}, functions=[function]
    )


def test_the_call_becomes_its_nodes() -> None:
    flat, names = inlined(with_function())
    assert [node.op_type for node in flat.graph.node] == ["Add"]
    assert names == ("Twice",)
    assert not flat.functions


def test_a_model_without_functions_stays_as_it_is() -> None:
    model = small_model([helper.make_node("Relu", ["x"], ["y"])], [tensor_info("x", [2])], [tensor_info("y", [2])])
    assert inlined(model) == (model, ())
