"""The cut: the same numbers from less of the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tna_onnx.graph.cut import cut_at
from tna_onnx.graph.head import choose_head

from .samples import CASES, Builder, Sample, run, tensors

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
