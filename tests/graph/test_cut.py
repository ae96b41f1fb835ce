"""The cut: the same numbers from less of the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tna_onnx.graph.cut import cut_at
from tna_onnx.graph.head import choose_head
from tna_onnx.graph.load import load_model

from .samples import CASES, FEATURES, Builder, Sample, run, tensors

INNER = {name: build for name, build in CASES.items() if name not in ("on the graph input", "external data")}


@pytest.mark.parametrize("build", INNER.values(), ids=INNER)
def test_cut_tensors_are_those_of_the_whole_model(build: Callable[[], Sample], tmp_path: Path) -> None:
    sample = build()
    model = sample.write(tmp_path)
    head, x, before = choose_head(model), sample.inputs(4), model.path.read_bytes()
    names = [head.features, head.logits]
    for found, expected in zip(run(cut_at(model, names), names, x), tensors(model, names, x), strict=True):
        np.testing.assert_array_equal(found, expected, strict=True)
    assert model.proto.SerializeToString() == before


def test_only_what_the_tensors_need_is_kept(tmp_path: Path) -> None:
    b = Builder()
    b.node("Softmax", b.linear("scores"), out="y")
    model = b.sample(bias_scale=1.0).write(tmp_path)
    cut = cut_at(model, ["features"])
    assert [node.op_type for node in cut.graph.node] == ["MatMul", "Relu"]
    assert [tensor.name for tensor in cut.graph.initializer] == ["trunk"]
    assert [info.name for info in cut.graph.input] == ["x"]
    assert (cut.opset_import, cut.ir_version) == (model.proto.opset_import, model.proto.ir_version)


def test_what_a_branch_captures_is_kept(tmp_path: Path) -> None:
    b = Builder()
    b.node("Mul", "features", b.store("two", 2.0), out="doubled")
    info = helper.make_tensor_value_info("inner", onnx.TensorProto.FLOAT, None)
    branch = helper.make_graph([helper.make_node("Neg", ["doubled"], ["inner"])], "branch", [], [info])
    b.node("If", b.store("yes", True, bool), out="chosen", then_branch=branch, else_branch=branch)
    b.linear("y", data="chosen")
    sample = b.sample(bias_scale=1.0, features="chosen")
    model, x = sample.write(tmp_path), sample.inputs(3)
    np.testing.assert_array_equal(run(cut_at(model, ["chosen"]), ["chosen"], x), tensors(model, ["chosen"], x))


def test_functions_of_the_model_are_kept(tmp_path: Path) -> None:
    b = Builder()
    b.node("Twice", "features", out="doubled", domain="local")
    b.linear("y", data="doubled")
    proto, opsets = b.proto("y"), [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    body = [helper.make_node("Add", ["value", "value"], ["sum"])]
    proto.functions.append(helper.make_function("local", "Twice", ["value"], ["sum"], body, opsets[:1]))
    proto.opset_import.append(opsets[1])
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    model, x = load_model(tmp_path / "model.onnx"), np.ones((3, FEATURES), np.float32)
    head = choose_head(model)
    assert head.features == "doubled"
    names = ["features", "doubled"]
    features, doubled = run(cut_at(model, names), names, x)
    np.testing.assert_array_equal(doubled, 2 * features)
