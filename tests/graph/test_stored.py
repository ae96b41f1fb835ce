"""Constants and the way to them: any chain of steps can be undone, and others who read on the way are seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tests.graph.samples import FEATURES, Builder, run
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.stored import Refused, Stored, resolve
from tna_onnx.graph.tensors import rounded

STEPS = st.lists(
    st.one_of(
        st.just(("Identity", None)),
        st.sampled_from([("Cast", "float16"), ("Cast", "float32"), ("Cast", "float64")]),
        st.permutations([0, 1, 2]).map(lambda perm: ("Transpose", perm)),
        st.just(("Transpose", None)),
        st.permutations([2, 3, 5]).map(lambda shape: ("Reshape", shape)),
        st.sampled_from([("Reshape", [0, -1, 1]), ("Reshape", [1, 0, -1]), ("Reshape", [-1, 1, 1])]),
    ),
    max_size=5,
)


@settings(deadline=None, max_examples=60)
@given(steps=STEPS, stored_type=st.sampled_from(["float16", "float32", "float64"]), node=st.booleans())
def test_any_chain_reads_what_the_runtime_reads_and_can_be_undone(
    steps: list[tuple[str, object]], stored_type: str, node: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    values = np.arange(30).reshape(5, 2, 3).astype(stored_type)  # exact in every type: a Cast loses nothing
    b = Builder()
    if node:
        tensor = "stored"
        b.nodes.append(helper.make_node("Constant", [], [tensor], value=onnx.numpy_helper.from_array(values)))
    else:
        tensor = b.store("stored", values, stored_type)
    kind, shape = stored_type, [5, 2, 3]
    for k, (op_type, argument) in enumerate(steps):
        inputs, flags = [tensor], {}
        if op_type == "Cast":
            flags["to"], kind = helper.np_dtype_to_tensor_dtype(np.dtype(argument)), argument
        elif op_type == "Transpose" and argument is not None:
            flags["perm"] = argument
        elif op_type == "Reshape":
            if argument == [0, -1, 1] and 30 % shape[0]:
                continue
            inputs.append(b.store(f"shape {k}", argument, np.int64))
        if op_type != "Reshape" or 0 not in argument or 30 % shape[argument.index(0)] == 0:
            tensor = b.node(op_type, *inputs, out=f"step {k}", **flags)
    b.node("Identity", tensor, out="read")
    model = _model(b, tmp_path_factory.mktemp("chain"), {"read": kind})
    place = resolve(model, tensor, len(b.nodes) - 1)
    read = run(model.path, ["read"], np.zeros((1, FEATURES), np.float32))[0]
    np.testing.assert_array_equal(place.value, read, strict=True)
    assert place.float_type == stored_type
    back = place.layout(place.value)
    assert back.flags.c_contiguous
    np.testing.assert_array_equal(rounded(back, stored_type), values, strict=True)
    twice = place.value.astype(np.float64) * 2
    np.testing.assert_array_equal(rounded(place.layout(twice), stored_type), values * 2, strict=True)
    np.testing.assert_array_equal(place.as_written(twice), read * 2, strict=True)


def _model(b: Builder, folder: Path, outputs: dict[str, str]) -> Model:
    proto = b.proto(*outputs)
    for info in proto.graph.output:
        info.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(outputs[info.name]))
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    return load_model(folder / "model.onnx")


def _resolve(model: Model, tensor: str) -> Stored:
    reader = next(k for k, node in enumerate(model.proto.graph.node) if tensor in node.input)
    return resolve(model, tensor, reader)


def test_a_missing_tensor_is_refused(tmp_path: Path) -> None:
    b = Builder()
    b.node("MatMul", "features", "nowhere", out="y")
    with pytest.raises(Refused, match="'nowhere' is not in the file, not a constant"):
        _resolve(_model(b, tmp_path, {"y": "float32"}), "nowhere")
