"""What a walk returns besides its outcome, whether or not it found a head."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tests.builders import nodes_of, small_model, tensor_info
from tests.graph.samples import FEATURES, Builder, run
from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.readers import can_insert, require_no_other_readers
from tna_onnx.graph.readout import Head
from tna_onnx.graph.scores import choose_head, class_output, find_heads, find_readout
from tna_onnx.graph.stored import Refused, Stored, resolve
from tna_onnx.graph.tensors import rounded
from tna_onnx.graph.walk.loop import walk_back
from tna_onnx.graph.walk.steps import Refusal


def test_a_walk_that_ends_at_an_operator_that_may_not_follow(tmp_path: Path) -> None:
    """What lies between the output and that operator is known all the same."""
    b = Builder()
    b.node("Softmax", b.node("CumSum", b.linear("scores"), b.store("axis", 1, int), out="sums"), out="y")
    walked = walk_back(b.sample({"y": "softmax"}).write(tmp_path), "y")
    assert isinstance(walked.outcome, Refusal)
    assert walked.outcome.node == walked.where == "CumSum of sums"
    assert (walked.logits, walked.activation, walked.follows) == ("sums", "softmax", ("Softmax",))


def test_an_unknown_number_of_classes_is_refused() -> None:
    """No layer, and an output that may hold logits or probabilities."""
    graph = helper.make_graph(
        [helper.make_node("Abs", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", "D"])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", "C"])],
    )
    with pytest.raises(UnsupportedModel, match="the number of classes, is not declared"):
        find_readout(load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)))


def test_nodes_in_a_circle_before_a_layer_end_the_walk() -> None:
    """A damaged file: what was behind the features is asked of a Reshape that reads itself, and of two in a ring."""
    for inputs in (["a"], ["b", "a"]):
        names = dict(zip(["a", "b"], inputs, strict=False))
        nodes = [helper.make_node("Identity", [read], [name]) for name, read in names.items()]
        nodes.append(helper.make_node("MatMul", ["a", "w"], ["y"]))
        shapes = [tensor_info("x", [None, 4])], [tensor_info("y", [None, 3])]
        proto = small_model(nodes, *shapes, {"w": np.ones((4, 3), np.float32)})
        assert isinstance(walk_back(load_model(proto), "y").outcome, Refusal | Head)


# --- Labels that are read in front of a map: only the place of the largest score of each sample stays right


CLASSES = 5


def labelled(kind: str, axis: int, *, declared: bool = True) -> onnx.ModelProto:
    """Scores (N, 4, C), (N, C, 1, 1) or (N, C), of which labels are read in front of what makes the logits."""
    weight = np.random.default_rng(0).standard_normal((3, CLASSES)).astype(np.float32)
    shapes = {"tokens": ["N", 4, CLASSES], "image": ["N", CLASSES, 1, 1], "matrix": ["N", CLASSES]}
    inputs = {"tokens": ["N", 4, 3], "image": ["N", 3, 1, 1], "matrix": ["N", 3]}
    first = helper.make_node("MatMul", ["x", "w"], ["s"], name="head")
    after = [helper.make_node("Identity", ["s"], ["logits"])]
    if kind == "image":
        first = helper.make_node("Conv", ["x", "w"], ["s"], name="head")
        weight = weight.T[:, :, None, None].copy()
        after = [helper.make_node("Flatten", ["s"], ["logits"])]
    if kind == "tokens":
        after = [helper.make_node("ReduceMean", ["s"], ["logits"], axes=[1], keepdims=0)]
    labels = helper.make_node("ArgMax", ["s"], ["labels"], axis=axis, keepdims=0)
    proto = small_model(
        [first, labels, *after],
        inputs=[tensor_info("x", inputs[kind])],
        outputs=[
            tensor_info("logits", ["N", CLASSES]),
            helper.make_tensor_value_info("labels", onnx.TensorProto.INT64, None),
        ],
        tensors={"w": weight},
    )
    if declared:
        proto.graph.value_info.append(tensor_info("s", shapes[kind]))
    return proto


@pytest.mark.parametrize(
    ("kind", "axis", "is_label"),
    [
        ("matrix", 1, True),
        ("matrix", -1, True),
        ("matrix", 0, False),
        ("tokens", -1, True),
        ("tokens", 2, True),
        ("tokens", 1, False),
        ("image", 1, True),
        ("image", -3, True),
        ("image", -1, False),
    ],
)
def test_an_argmax_gives_labels_over_the_axis_of_the_classes(kind: str, axis: int, is_label: bool) -> None:
    model = load_model(labelled(kind, axis))
    head = choose_head(model, output="logits")
    if is_label:
        require_no_other_readers(model, head, keeps_order=True)
        with pytest.raises(UnsupportedModel, match="use --map ts, ets or none"):
            require_no_other_readers(model, head, keeps_order=False)
        return
    with pytest.raises(UnsupportedModel, match="is read elsewhere too"):
        require_no_other_readers(model, head, keeps_order=True)


def test_what_is_made_of_labels_follows_them() -> None:
    proto = labelled("matrix", 1)
    proto.graph.node.append(helper.make_node("Equal", ["labels", "one"], ["positive"]))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.int64(1), "one"))
    proto.graph.output.append(tensor_info("positive", None, bool))
    model = load_model(proto)
    head = choose_head(model, output="logits")
    require_no_other_readers(model, head, keeps_order=True)
    assert not can_insert(model, head, keeps_order=False)


def test_a_shape_that_is_not_declared_is_taken_as_a_matrix() -> None:
    model = load_model(labelled("matrix", 1, declared=False))
    require_no_other_readers(model, choose_head(model, output="logits"), keeps_order=True)


# --- What the graph says of several predictions a sample


def loaded(nodes: list[Any], shape: list[Any], tensors: dict[str, Any], source: list[Any]) -> Model:
    return load_model(small_model(nodes, {"x": source}, {"y": shape}, tensors))


@pytest.mark.parametrize(
    ("axis", "shape", "expected"), [(1, ["N", 5, 7], 1), (-1, ["N", 7, 5], -1), (2, ["N", 7, 5], -1)]
)
def test_a_softmax_says_where_the_classes_are(axis: int, shape: list[Any], expected: int) -> None:
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=axis)]
    readout = find_readout(loaded(nodes, shape, {}, shape))
    assert (readout.class_axis, readout.n_classes) == (expected, 5)
    assert class_output(loaded(nodes, shape, {}, shape)).several


def test_the_operator_says_it_for_a_head() -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(5, 5)).astype(np.float32)
    product = loaded([helper.make_node("MatMul", ["x", "w"], ["y"])], ["N", 5, 5], {"w": weight}, ["N", 5, 5])
    assert choose_head(product).class_axis == -1
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"])]
    convolution = loaded(nodes, ["N", 5, 5], {"w": weight[:, :, None]}, ["N", 5, 5])
    assert choose_head(convolution).class_axis == 1


def test_the_keys_of_an_attention_are_no_head() -> None:
    """(N, heads, T, d): neither axis has the layer's 12 rows."""
    weight = np.random.default_rng(0).normal(size=(8, 12)).astype(np.float32)
    nodes = nodes_of("MatMul x w > a; Reshape a shape > b; Transpose b > y perm=[0,2,1,3]")
    tensors = {"w": weight, "shape": np.array([0, 0, 3, 4])}
    model = loaded(nodes, ["N", 3, "T", 4], tensors, ["N", "T", 8])
    heads, refusals = find_heads(model)
    assert not heads
    assert "neither axis 1 nor the last one has the 12 classes" in refusals[0].reason


def test_a_softmax_over_positions_is_refused() -> None:
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=2)]
    model = loaded(nodes, ["N", 5, 6, 7], {}, ["N", 5, 6, 7])
    _, (refusal,) = find_heads(model)
    assert "Softmax over axis 2 of 4" in refusal.reason
    with pytest.raises(UnsupportedModel):
        find_readout(model)


# --- Constants and the way to them: any chain of steps can be undone, and others who read on the way are seen


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


@settings(max_examples=40)
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
