"""Loading a model: files and models in memory, what the checker says of them, and what their inputs are."""

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tests.builders import small_model
from tests.graph.samples import CASES, Builder
from tna_onnx.errors import UnsupportedModel, UsageError
from tna_onnx.graph.load import checker_complaint, load_model, tensor_types
from tna_onnx.graph.scores import choose_head, find_heads


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file that every example writes anew."""
    return tmp_path_factory.mktemp("load") / "model.onnx"


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("missing.onnx", UsageError, "no such file"),
        ("folder", UsageError, "is a directory"),
        ("folder/missing/model.onnx", UsageError, "no such file"),
        ("text/under-a-file.onnx", UsageError, "no such file"),
        ("empty", UnsupportedModel, "no graph in it (0 bytes)"),
        ("text", UnsupportedModel, "not an ONNX file"),
        ("page", UnsupportedModel, "not an ONNX file"),
        ("zip", UnsupportedModel, "not an ONNX file"),
        ("pickle", UnsupportedModel, "not an ONNX file"),
        ("no nodes", UnsupportedModel, "no graph in it"),
        ("no outputs", UnsupportedModel, "no graph in it"),
        ("no opset", UnsupportedModel, "no graph in it"),
        ("tensor", UnsupportedModel, ""),
    ],
)
def test_files_that_are_not_models(name: str, error: type[Exception], says: str, tmp_path: Path) -> None:
    whole = CASES["matmul, bias first True"]().proto
    (tmp_path / "folder").mkdir()
    bare = {field: onnx.ModelProto.FromString(whole.SerializeToString()) for field in ("nodes", "outputs", "opset")}
    del bare["nodes"].graph.node[:]
    del bare["outputs"].graph.output[:]
    del bare["opset"].opset_import[:]
    files = {
        "empty": b"",
        "text": b"weights: see the wiki\n",
        "page": b"<!DOCTYPE html>\n<html><head><title>404</title></head></html>",
        "zip": b"PK\x03\x04\x14\x00\x00\x00\x08\x00model/data.pkl",
        "pickle": b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x06weight\x94",
        "tensor": whole.graph.initializer[0].SerializeToString(),
        **{f"no {field}": model.SerializeToString() for field, model in bare.items()},
    }
    for file, data in files.items():
        (tmp_path / file).write_bytes(data)
    with pytest.raises(error) as caught:
        load_model(tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path / name}: ")
    assert says in str(caught.value)


@settings(max_examples=60)
@given(data=st.binary(max_size=300))
@example(data=b"\x08\x07")
@example(data=b"\x3a\x00\x42\x00")
def test_random_bytes(data: bytes, scratch: Path) -> None:
    scratch.write_bytes(data)
    with pytest.raises(UnsupportedModel):
        load_model(scratch)


@settings(max_examples=80)
@given(places=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4))
def test_damaged_bytes(places: list[tuple[float, int]], scratch: Path) -> None:
    """A model with a few wrong bytes loads, or is refused as one that does not."""
    data = bytearray(_SMALL)
    for place, flip in places:
        data[int(place * len(data))] ^= flip
    scratch.write_bytes(bytes(data))
    try:
        model = load_model(scratch)
    except UnsupportedModel:
        return
    assert model.sha256 == hashlib.sha256(bytes(data)).hexdigest()
    assert isinstance(model.opset, int)


_SMALL = CASES["weight chain"]().proto.SerializeToString()


@pytest.mark.parametrize("in_memory", [False, True])
def test_what_it_says(in_memory: bool, tmp_path: Path) -> None:
    model = CASES["Softmax opset 17 axis 1"]().write(tmp_path)
    assert checker_complaint(model.proto if in_memory else model.path) == ""
    broken = onnx.ModelProto()
    broken.CopyFrom(model.proto)
    broken.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(broken, tmp_path / "broken.onnx")
    assert "NoSuchOperator" in checker_complaint(broken if in_memory else tmp_path / "broken.onnx")


def test_dimensions_without_a_name_and_other_types(tmp_path: Path) -> None:
    b = Builder()
    b.inputs.append(helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [1, None, 3]))
    b.inputs.append(helper.make_tensor_sequence_value_info("list", onnx.TensorProto.FLOAT, None))
    b.linear("y")
    model = b.sample(bias_scale=1.0).write(tmp_path)
    assert tensor_types(model) == {"x": "float32 (N, 6)", "ids": "int64 (1, ?, 3)", "list": "sequence"}
    assert find_heads(model)[0]


def test_a_tensor_that_two_nodes_make_is_refused() -> None:
    """ONNX Runtime takes the last of two constants of one name, others the first."""
    constants = [
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(np.full((4, 3), value, np.float32)))
        for value in (1, 2)
    ]
    nodes = [constants[0], helper.make_node("MatMul", ["x", "w"], ["y"]), constants[1]]
    model = small_model(nodes, {"x": ["N", 4]}, {"y": ["N", 3]}, {})
    with pytest.raises(UnsupportedModel, match="'w' is there twice"):
        choose_head(load_model(model))
