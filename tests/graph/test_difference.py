"""Two models are the same where their encodings are, wherever the bytes of tensors lie."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import helper, numpy_helper

from tests.graph.samples import Builder, branch
from tna_onnx.graph.difference import differences, same_models
from tna_onnx.graph.load import Model

Change = Callable[[onnx.ModelProto], None]


def _typed_values(proto: onnx.ModelProto) -> None:
    stored = proto.graph.initializer[0]
    values = numpy_helper.to_array(stored).reshape(-1).tolist()
    stored.CopyFrom(helper.make_tensor(stored.name, stored.data_type, stored.dims, values))


def _empty_text(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].doc_string = ""


def _empty_model_text(proto: onnx.ModelProto) -> None:
    proto.domain = ""


def _order_of_attributes(proto: onnx.ModelProto) -> None:
    node = next(node for node in proto.graph.node if node.op_type == "If")
    turned = list(node.attribute)[::-1]
    copies = [onnx.AttributeProto.FromString(attribute.SerializeToString()) for attribute in turned]
    del node.attribute[:]
    node.attribute.extend(copies)


def _entry_twice(proto: onnx.ModelProto) -> None:
    proto.metadata_props.add(key="team", value="unchanged")


def _opset_twice(proto: onnx.ModelProto) -> None:
    proto.opset_import.add(domain="", version=proto.opset_import[0].version)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    b = Builder()
    b.linear("y")
    b.node(
        "If", b.store("yes", True, bool), out="other", then_branch=branch("Neg", "y"), else_branch=branch("Abs", "y")
    )
    return b.sample({"y": "logits", "other": "logits"}, bias_scale=1.0).write(tmp_path)


def changed(model: Model, change: Change) -> Model:
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    change(proto)
    return replace(model, proto=proto)


OTHER_BYTES: list[Change] = [
    _typed_values, _empty_text, _empty_model_text, _order_of_attributes, _entry_twice, _opset_twice,
]  # fmt: skip


@pytest.mark.parametrize("change", OTHER_BYTES, ids=lambda change: change.__name__.strip("_").replace("_", " "))
def test_the_same_in_other_bytes_is_another_model(model: Model, change: Change) -> None:
    other = changed(model, change)
    assert differences(model, other)
    assert not same_models(model, other)


def test_a_new_input_behind_a_long_one_is_told(model: Model) -> None:
    proto = model.proto
    proto.graph.node[-2].input[:] = ["/bert/pooler/dropout/Identity_output_0", "classifier.weight", "b"]

    def rename(other: onnx.ModelProto) -> None:
        other.graph.node[-2].input[1] = "classifier.weight2"

    (found,) = differences(model, changed(model, rename))
    assert (found.change, found.detail) == ("input", "classifier.weight -> classifier.weight2")
