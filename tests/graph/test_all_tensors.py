"""Every tensor that the format allows a model to hold is reached: found, checked, compared and copied."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from google.protobuf.descriptor import Descriptor
from onnx import TensorProto, helper, numpy_helper

import tna_onnx
from tests.builders import tensor_info
from tests.conftest import Small
from tests.support import PLAIN
from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.bounds import all_tensors
from tna_onnx.graph.load import load_model
from tna_onnx.runtime import Device, open_session

Way = tuple[str, ...]


def _paths(message: Descriptor, goal: str, seen: tuple[str, ...] = ()) -> Iterator[Way]:
    """Yield the fields on each way from a kind of message to another; no kind stands in a way more than twice."""
    if message.full_name == goal:
        yield ()
        return
    if seen.count(message.full_name) == 2:
        return
    for field in message.fields:
        if field.message_type is not None:
            for rest in _paths(field.message_type, goal, (*seen, message.full_name)):
                yield (field.name, *rest)


def _put(message: Any, path: Way) -> Any:
    """Return the message at the end of a path, made anew; what is on the way is valid."""
    for name in path:
        made = getattr(message, name)
        if hasattr(made, "add"):
            made = made.add()
        made.SetInParent()
        message = made
        if isinstance(message, onnx.NodeProto):
            message.op_type, message.domain = "Held", "other"
        elif isinstance(message, onnx.AttributeProto):
            message.name = "held"
        elif isinstance(message, onnx.FunctionProto):
            message.name, message.domain = "Nobody", "other"
    return message


ALL = [*_paths(onnx.ModelProto.DESCRIPTOR, TensorProto.DESCRIPTOR.full_name)]
SPARSE = [*_paths(onnx.ModelProto.DESCRIPTOR, onnx.SparseTensorProto.DESCRIPTOR.full_name)]
DENSE = [path for path in ALL if not {"sparse_initializer", "sparse_tensor", "sparse_tensors"} & {*path}]
# what runs, and what is a part of the file only; functions that nobody calls go
KEPT = [path for path in DENSE if path[0] != "functions" and len(path) <= 8]


def test_the_definition_has_the_places_that_are_known() -> None:
    assert {
        ("graph", "node", "attribute", "g", "initializer"),
        ("training_info", "algorithm", "initializer"),
        ("functions", "attribute_proto", "t"),
    } <= {*ALL}


def test_tensors_come_once_each() -> None:
    model = onnx.ModelProto()
    for path in ALL:
        _put(model, path).name = ".".join(path)
    assert sorted(tensor.name for tensor in all_tensors(model)) == sorted(map(".".join, ALL))


@pytest.mark.parametrize("path", KEPT, ids=".".join)
def test_external_data_anywhere_are_a_part_of_the_model(small: Small, path: Way, tmp_path: Path) -> None:
    model = onnx.load(small.model)
    external(_put(model, path), np.arange(4, dtype=np.float32))
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "held.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
        onnx.save(model, tmp_path / name / "m.onnx")
    old, new = (tmp_path / name / "m.onnx" for name in ("old", "new"))
    assert load_model(old).external_files == ("held.bin",)
    assert tna_onnx.verify(old, new).differences == ()
    (new.parent / "held.bin").write_bytes(np.arange(4, dtype=np.float32)[::-1].tobytes())
    found = tna_onnx.verify(old, new)
    assert not found.intact
    assert found.differences
    (new.parent / "held.bin").write_bytes(bytes(15))
    with pytest.raises(UnsupportedModel, match="has 15 bytes"):
        load_model(new)
    (new.parent / "held.bin").unlink()
    with pytest.raises(UnsupportedModel, match="is missing"):
        load_model(new)


@pytest.mark.parametrize("path", [path for path in DENSE if path[0] == "functions" and len(path) <= 6], ids=".".join)
def test_external_data_in_functions_are_looked_at(small: Small, path: Way, tmp_path: Path) -> None:
    model = onnx.load(small.model)
    external(_put(model, path), np.arange(4, dtype=np.float32), "../held.bin")
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UnsupportedModel, match="outside the model's folder"):
        load_model(tmp_path / "m.onnx")
    with pytest.raises(tna_onnx.UsageError, match="in memory refers to external data"):
        load_model(model.SerializeToString())


def test_sparse_tensors_are_refused_anywhere(small: Small) -> None:
    for path in SPARSE:
        model = onnx.load(small.model)
        _put(model, path).values.name = "s"
        with pytest.raises(UnsupportedModel, match="is sparse; export"):
            load_model(model.SerializeToString())


def external(tensor: TensorProto, values: np.ndarray, location: str = "held.bin") -> TensorProto:
    """Let a tensor have its data in a file."""
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(values, name))
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": str(values.nbytes)}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


# --- models that compute with them


def _held(kind: str) -> onnx.ModelProto:
    """Return a model that adds 8 numbers, held in one way, to its input."""
    dense = external(TensorProto(name="held"), np.zeros(8, np.float32))
    constant = helper.make_node("Constant", [], ["held"], name="held", value=dense)
    ops = [helper.make_opsetid("", 17)]
    add = helper.make_node("Add", ["x", "held"], ["sum"], name="add")
    graph = helper.make_graph([add], "held", [tensor_info("x", ["N", 8])], [tensor_info("sum", ["N", 8])])
    functions = []
    if kind == "constant":
        graph.node.insert(0, constant)
    elif kind == "function":
        functions = [helper.make_function("own", "Plus", ["x"], ["sum"], [constant, add], ops)]
        ops = [*ops, helper.make_opsetid("own", 1)]
        graph.node[0].CopyFrom(helper.make_node("Plus", ["x"], ["sum"], domain="own"))
    elif kind == "branch":
        branch = helper.make_graph([constant, add], "branch", [], [tensor_info("sum", ["N", 8])])
        nodes = {"then_branch": branch, "else_branch": branch}
        graph.node[0].CopyFrom(helper.make_node("If", ["yes"], ["sum"], name="if", **nodes))
        graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    else:
        graph.initializer.append(dense)
    return helper.make_model(graph, opset_imports=ops, ir_version=8, functions=functions)


KINDS = ["initializer", "constant", "branch", "function"]


def _in_front(small: Small, kind: str, folder: Path) -> Path:
    """Write the classifier with numbers added to its input, which lie in a file."""
    held, model = _held(kind), onnx.load(small.model)
    for node in model.graph.node:
        node.input[:] = ["sum" if name == "x" else name for name in node.input]
    for k, node in enumerate(held.graph.node):
        model.graph.node.insert(k, node)
    model.graph.initializer.extend(held.graph.initializer)
    model.functions.extend(held.functions)
    model.opset_import.extend(entry for entry in held.opset_import if entry.domain)
    folder.mkdir()
    (folder / "held.bin").write_bytes(np.random.default_rng(2).standard_normal(8).astype(np.float32).tobytes())
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_file_has_all_data_of_its_source(small: Small, kind: str, tmp_path: Path) -> None:
    source, output = _in_front(small, kind, tmp_path / "old"), tmp_path / "new" / "o.onnx"
    output.parent.mkdir()
    tna_onnx.calibrate(source, small.calib, output=output, **PLAIN)
    (data,) = output.parent.glob("o.onnx.*.data")
    assert (source.parent / "held.bin").read_bytes() in data.read_bytes()
    assert tna_onnx.verify(source, output).passed
    moved = shutil.copytree(output.parent, tmp_path / "elsewhere") / "o.onnx"
    onnxruntime.InferenceSession(moved, providers=["CPUExecutionProvider"])
    content = bytearray(data.read_bytes())
    at = content.index((source.parent / "held.bin").read_bytes())
    content[at : at + 32] = np.full(8, 9, np.float32).tobytes()
    data.write_bytes(content)
    assert not tna_onnx.verify(source, output).intact


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_the_working_folder_are_not_read(
    small: Small, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _in_front(small, kind, tmp_path / "old")
    with np.load(small.calib) as data:
        x = data["x"][:50]
    (tmp_path / "here").mkdir()
    found = []
    for values in (np.zeros(8, np.float32), np.full(8, 50, np.float32), None):
        monkeypatch.chdir(tmp_path / "here")
        if values is None:
            Path("held.bin").unlink()
        else:
            Path("held.bin").write_bytes(values.tobytes())
        found.append(tna_onnx.FeatureExtractor(source, device="cpu")({"x": x})["features"])
        with pytest.raises((tna_onnx.UnsupportedModel, tna_onnx.UsageError)):
            open_session(source.read_bytes(), "model", Device("cpu"))
        with pytest.raises(tna_onnx.UsageError, match="in memory refers to external data"):
            tna_onnx.evaluate(source.read_bytes(), small.calib, device="cpu")
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
