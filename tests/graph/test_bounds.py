"""What a model may hold: each rule refuses what breaks it, with the place, before anything is computed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from tests.graph.samples import Builder
from tna_onnx.errors import TnaError, UnsupportedModel, UsageError
from tna_onnx.extraction.classifier import OpenModel
from tna_onnx.graph.bounds import attribute_of
from tna_onnx.graph.load import Model, load_model, tells_damage
from tna_onnx.graph.options import ModelLimits
from tna_onnx.graph.readers import label_outputs
from tna_onnx.graph.scores import choose_head, find_heads, find_readout
from tna_onnx.runtime import Device


def sample() -> onnx.ModelProto:
    b = Builder()
    b.linear("y")
    return b.sample().proto


def head_of(proto: onnx.ModelProto) -> onnx.NodeProto:
    return next(node for node in proto.graph.node if node.name == "head")


def _typed(name: str, kind: int, **fields: object) -> Callable[[onnx.ModelProto], None]:
    def damage(proto: onnx.ModelProto) -> None:
        node = head_of(proto)
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, AttributeProto(name=name, type=kind, **fields)])

    return damage


def _axes(*dims: int) -> Callable[[onnx.ModelProto], None]:
    def damage(proto: onnx.ModelProto) -> None:
        tensor = next(t for t in proto.graph.initializer if t.name == "weight")
        del tensor.dims[:]
        tensor.dims.extend(dims)

    return damage


def _two_lines(proto: onnx.ModelProto) -> None:
    head_of(proto).name = "head\nError: all is well"


def _twice(list_of: Callable[[onnx.ModelProto], Any], **fields: Any) -> Callable[[onnx.ModelProto], None]:
    """Add a copy of the last item of a list, with other values in some of its fields."""

    def damage(proto: onnx.ModelProto) -> None:
        items = list_of(proto)
        copy = type(items[0])(**{field.name: value for field, value in items[-1].ListFields()} | fields)
        items.append(copy)

    return damage


def _made_again(proto: onnx.ModelProto) -> None:
    proto.graph.node.append(helper.make_node("Constant", [], ["weight"], value_float=1.0))


def _reference(proto: onnx.ModelProto) -> None:
    head_of(proto).attribute[0].ref_attr_name = "of a function"


DAMAGES = {
    "attribute of no function": (
        _reference,
        "Gemm 'head' takes attribute 'of a function' of a function, and is in none",
    ),
    "output twice": (_twice(lambda p: p.graph.output), "output 'y' is there twice"),
    "two versions": (_twice(lambda p: p.opset_import, domain="ai.onnx", version=6), "operator set 'ai.onnx' is there"),
    "initializer twice": (_twice(lambda p: p.graph.initializer, raw_data=b""), "is there twice"),
    "initializer that a node makes": (_made_again, "tensor 'weight' is there twice"),
    "many axes": (_axes(*[1] * 1000, 3, 6), "has more than 64 axes"),
    "name of two lines": (_two_lines, r"begins with 'head\nError: all is well'; expected one"),
}

# What ONNX Runtime refuses when the model is opened, if not what reads it before.
REFUSED_LATER = {
    "attribute twice": _twice(lambda p: head_of(p).attribute),
    "input twice": _twice(lambda p: p.graph.input),
    "alpha is a text": _typed("alpha", AttributeProto.STRING, s=b"2"),
    "alpha is a list": _typed("alpha", AttributeProto.FLOATS, floats=[1, 2]),
    "alpha has no type": _typed("alpha", AttributeProto.UNDEFINED, f=2),
    "transB is a tensor": _typed("transB", AttributeProto.TENSOR, t=TensorProto()),
    "negative axis": _axes(-3, 6),
}


@pytest.mark.parametrize("damage", REFUSED_LATER)
def test_what_onnx_runtime_refuses(damage: str) -> None:
    proto = sample()
    REFUSED_LATER[damage](proto)
    model = load_model(proto)
    with pytest.raises(UnsupportedModel):
        assert OpenModel(model, find_readout(model), Device("cpu")).session


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_breaks_a_rule_is_refused_when_it_is_loaded(damage: str, tmp_path: Path) -> None:
    change, message = DAMAGES[damage]
    proto = sample()
    change(proto)
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(UnsupportedModel) as caught:
        load_model(tmp_path / "model.onnx")
    assert str(caught.value).startswith(f"{tmp_path / 'model.onnx'}: ")
    assert message in str(caught.value)


def test_a_file_above_what_protobuf_can_hold_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with path.open("wb") as stream:
        stream.truncate(2**31)  # a hole: takes no room on the disk
    with pytest.raises(UnsupportedModel, match="has 2,147,483,648 bytes; an ONNX file has at most 2,147,483,647"):
        load_model(path)


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "model.onnx")
    with pytest.raises(UsageError, match="is not a regular file"):
        load_model(tmp_path / "model.onnx")


# --- functions


def function(name: str, *calls: str) -> onnx.FunctionProto:
    """A function that calls others one after another; without any, it is a Relu."""
    names = ["a", *(f"t{k}" for k in range(len(calls) - 1)), "b"]
    nodes = [helper.make_node(c, [names[k]], [names[k + 1]], domain="local") for k, c in enumerate(calls)]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, ["a"], ["b"], nodes or [helper.make_node("Relu", ["a"], ["b"])], opsets)


def placed(domain: str) -> onnx.FunctionProto:
    """A function called Gelu in a domain."""
    made = function("Gelu")
    made.domain = domain
    return made


def overloaded(made: onnx.FunctionProto) -> onnx.FunctionProto:
    if hasattr(made, "overload"):  # newer versions of onnx
        made.overload = "other"
    return made


def hiding(name: str) -> onnx.FunctionProto:
    """A function with a branch that has a tensor of its own under a name of the function."""
    output = helper.make_tensor_value_info(name, TensorProto.FLOAT, [])
    branch = helper.make_graph([], "branch", [], [output], [numpy_helper.from_array(np.float32(1), name)])
    made = function("F")
    made.node.append(helper.make_node("If", ["on"], ["either"], then_branch=branch, else_branch=branch))
    return made


def with_defaults(*values: float) -> onnx.FunctionProto:
    """A leaky ReLU whose slope has these defaults."""
    made = function("F")
    made.node[0].op_type = "LeakyRelu"
    made.node[0].attribute.add(name="alpha", ref_attr_name="slope", type=AttributeProto.FLOAT)
    made.attribute_proto.extend(helper.make_attribute("slope", value) for value in values)
    return made


def calling(*functions_: onnx.FunctionProto) -> onnx.ModelProto:
    """A classifier whose features pass the last function."""
    b = Builder()
    b.nodes.append(helper.make_node(functions_[-1].name, ["features"], ["passed"], domain="local"))
    b.linear("y", data="passed")
    proto = b.proto("y")
    proto.opset_import.append(helper.make_opsetid("local", 1))
    proto.functions.extend(functions_)
    return proto


def ladder(steps: int) -> onnx.ModelProto:
    """Each function calls the one before twice: 2^steps nodes."""
    return calling(function("F0"), *(function(f"F{k}", f"F{k - 1}", f"F{k - 1}") for k in range(1, steps + 1)))


def called_with(slope: list[Any]) -> onnx.ModelProto:
    """A classifier whose features pass a leaky ReLU of these slopes."""
    proto = calling(with_defaults(0.7))
    call = next(node for node in proto.graph.node if node.domain == "local")
    call.attribute.extend(helper.make_attribute("slope", value) for value in slope)
    return proto


def handed_on(steps: int, value: object) -> onnx.ModelProto:
    """Each function hands an attribute on to the one before twice."""
    proto = ladder(steps)
    given = helper.make_attribute("value", value)
    for made in proto.functions:
        made.attribute.append("value")
        for node in made.node:
            node.attribute.add(name="value", ref_attr_name="value", type=given.type)
    next(node for node in proto.graph.node if node.domain).attribute.append(given)
    return proto


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (calling(function("F", "F")), "functions call themselves: F -> F"),
        (calling(function("G", "F"), function("F", "G")), "functions call themselves: "),
        (calling(function("F"), function("F")), "function 'local.F' is there twice"),
        (calling(function("F"), overloaded(function("F"))), "function 'local.F' is there twice"),
        (calling(hiding("a")), "tensor 'a' is there twice"),
        (called_with(slope=[0.5, 0.25]), "attribute 'slope' is there twice"),
        (calling(with_defaults(0.7)), "leaves out attribute 'slope'"),
        (calling(with_defaults(0.7), function("Unused", "F"), function("G")), "leaves out attribute 'slope'"),
        (ladder(30), "nodes in "),
        (handed_on(12, numpy_helper.from_array(np.zeros(2**16))), "nodes in "),
        (handed_on(12, onnx.GraphProto()), "takes a graph as an attribute"),
        (calling(function("F0"), *(function(f"F{k}", f"F{k - 1}") for k in range(1, 300))), "300 calls deep"),
        *(
            (calling(placed(domain)), "an operator of its own")
            for domain in ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
        ),
    ],
)
def test_functions_that_cannot_be_inlined(proto: onnx.ModelProto, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        load_model(proto)


def test_a_function_that_is_left_keeps_those_that_it_calls() -> None:
    """One of another version is not inlined, and calls one that is."""
    outer = function("F", "G")
    outer.opset_import[0].version = 12
    model = load_model(calling(function("G"), outer))
    assert {made.name for made in model.proto.functions} == {"F", "G"}
    assert model.inlined == ()


def test_a_ladder_of_a_few_steps_is_counted_right() -> None:
    """The oracle is the inliner: the number of nodes that it makes is the largest that a limit refuses."""
    proto = ladder(4)
    made = len(load_model(proto).proto.graph.node) - 3  # without trunk, Relu and head
    assert made == 2**4
    # F4 stands for 2 calls, each of them for 2 more, ..., and 16 nodes: 2 + 4 + 8 + 16 + 16
    load_model(proto, ModelLimits(inlined_nodes=46))
    with pytest.raises(UnsupportedModel, match=r"stand for 46 nodes .*at most 45 .*--limit inlined-nodes="):
        load_model(proto, ModelLimits(inlined_nodes=45))


# --- constants that nodes compute


def computed(op_type: str, *inputs: object, **attributes: object) -> onnx.ModelProto:
    b = Builder()
    names = [b.store(f"in{k}", v, np.asarray(v).dtype) for k, v in enumerate(inputs)]
    b.node(op_type, *names, out="made", **attributes)
    b.node("MatMul", "features", "made", out="y", name="head")
    return b.proto("y")


def _loop() -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(n, t, s) for n, t, s in (("i", 7, []), ("go", 9, []), ("v", 1, None))]
    outs = [helper.make_tensor_value_info(n, t, s) for n, t, s in (("more", 9, []), ("w", 1, None))]
    nodes = [helper.make_node("Identity", ["go"], ["more"]), helper.make_node("Identity", ["v"], ["w"])]
    body = helper.make_graph(nodes, "body", infos, outs)
    return computed("Loop", np.int64(2**62), np.array(True), np.ones((6, 3), np.float32), body=body)


def _doubled(times: int, first: str = "Identity") -> onnx.ModelProto:
    """Nodes that each double what they get: a few hundred bytes stand for any size."""
    b = Builder()
    made = b.node(first, b.store("in0", np.ones((6, 3))), out="c")
    for k in range(times):
        made = b.node("Concat", made, made, out=f"c{k}", axis=1)
    b.node("MatMul", "features", made, out="y", name="head")
    return b.proto("y")


def _large() -> onnx.NodeProto:
    return helper.make_node("ConstantOfShape", ["in1"], ["inside"])


def _in_branch(node: onnx.NodeProto) -> onnx.ModelProto:
    """A weight from an If with a small result, in whose branches there is a node."""
    b = Builder()
    for name, value in (("in0", np.int64(2**62)), ("in1", np.int64([6, 2**40]) if node.op_type != "Loop" else True)):
        b.store(name, value, np.asarray(value).dtype)
    if node.op_type == "Loop":
        b.store("in2", np.ones((6, 3)))
    small = helper.make_node("Identity", ["weight0"], ["result"])
    out = [helper.make_tensor_value_info("result", 1, [6, 3])]
    body = helper.make_graph([node, small], "branch", [], out)
    b.store("weight0", np.ones((6, 3)))
    made = b.node("If", b.store("yes", True, bool), out="made", then_branch=body, else_branch=body)
    b.node("MatMul", "features", made, out="y", name="head")
    return b.proto("y")


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (
            computed("ConstantOfShape", np.int64([6, 2**40])),
            "a ConstantOfShape node with a result of 6,597,069,766,656 el",
        ),
        (computed("Tile", np.ones((6, 3), np.float32), np.int64([2**20, 2**20])), "a Tile node with a result of"),
        (computed("Expand", np.ones((6, 1), np.float32), np.int64([6, 2**40])), "an? Expand node with a result of"),
        (computed("Range", np.float32(0), np.float32(1e12), np.float32(1)), "a Range node with a result of"),
        (_loop(), "a Loop node, not a constant"),
        (_doubled(20), "a Concat node with a result of 18,874,368 elements; expected at most 33,554,432 in all"),
        (_doubled(40, "NonZero"), "a NonZero node with a result of unknown size"),
        (_in_branch(_large()), "an? If node, not a constant"),
        (_in_branch(_loop().graph.node[-2]), "an? If node, not a constant"),
    ],
)
def test_a_constant_of_any_size_is_not_computed(proto: onnx.ModelProto, message: str) -> None:
    _, (refusal,) = find_heads(load_model(proto))
    import re

    assert re.search(message, refusal.reason), refusal.reason


@pytest.mark.parametrize("error", [IndexError, MemoryError])
@pytest.mark.parametrize("damaged", [True, False])
def test_an_error_in_the_walk_is_a_refusal_of_a_damaged_file_only(
    error: type[Exception], damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error("something")

    monkeypatch.setattr("tna_onnx.graph.walk.loop.head_at", fail)
    proto = sample()
    if damaged:
        proto.graph.node.add(op_type="Relu", input=["no such tensor"], output=["unused"])
    model = load_model(proto)
    if not damaged:  # the checker has nothing against it: a bug
        with pytest.raises(error, match="something"):
            find_heads(model)
        return
    _, (refusal,) = find_heads(model)
    assert refusal.node == "head"
    assert f"{error.__name__}: something" in refusal.reason
    assert "no such tensor" in refusal.reason
    with pytest.raises(TnaError):
        choose_head(model)


def test_what_reads_a_damaged_model_says_what_is_damaged() -> None:
    proto = sample()
    proto.graph.node.add(op_type="ArgMax", output=["labels"])
    proto.graph.output.append(helper.make_tensor_value_info("labels", TensorProto.INT64, ["N"]))
    with pytest.raises(UnsupportedModel, match=r"damaged \(IndexError: .*\); the ONNX checker says: "):
        label_outputs(load_model(proto), "y", 3)


def test_what_a_call_hands_on_may_be_damaged(tmp_path: Path) -> None:
    onnx.save(called_with(slope=["steep"]), tmp_path / "model.onnx")
    model = load_model(tmp_path / "model.onnx")
    with pytest.raises(UnsupportedModel, match=r"TypeError: .*the ONNX checker says: "):
        tells_damage(_slope)(model)


def _slope(model: Model) -> float:
    node = next(node for node in model.proto.graph.node if node.op_type == "LeakyRelu")
    return attribute_of(node, "alpha", 0.0) + 1.0


# --- limits as settings


def test_constants_up_to_the_limit_are_computed() -> None:
    proto = computed("Expand", np.ones((6, 1), np.float32), np.int64([6, 30]))
    heads, _ = find_heads(load_model(proto, ModelLimits(constant_elements=180)))
    assert len(heads) == 1
    _, (refusal,) = find_heads(load_model(proto, ModelLimits(constant_elements=179)))
    assert "a result of 180 elements; expected at most 179 in all results" in refusal.reason
    small = computed("Expand", np.ones((6, 1), np.float32), np.int64([6, 3]))
    heads, _ = find_heads(load_model(small, ModelLimits(constant_elements=0)))
    assert len(heads) == 1, "sixteen times what is stored is always allowed"


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "1", True])
def test_limits_are_numbers(value: object) -> None:
    with pytest.raises(UsageError, match="model limit inlined_nodes must be a finite number"):
        ModelLimits(inlined_nodes=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["x", "features"])
def test_a_result_with_raised_limits_is_written_and_compared(given: str, tmp_path: Path) -> None:
    """Functions of another opset stay in the file, which is read again."""
    from tests.support import PLAIN, ok, refused, words_of

    padded = function("F")
    padded.opset_import[0].version = 16
    padded.node[0].CopyFrom(helper.make_node("Max", ["a", "least"], ["b"]))
    tensor = numpy_helper.from_array(np.zeros((1, 6, 2**18), np.float32))  # 45 of them are above the limit
    padded.node.insert(0, helper.make_node("Constant", [], ["many"], value=tensor))
    padded.node.insert(1, helper.make_node("ReduceMin", ["many"], ["least"], axes=[2], keepdims=0))
    proto = calling(padded)
    call = next(k for k, node in enumerate(proto.graph.node) if node.domain == "local")
    proto.graph.node[call].output[0] = "passed0"
    for k in range(45):
        names = f"passed{k}", f"passed{k + 1}" if k < 44 else "passed"
        proto.graph.node.insert(call + 1 + k, helper.make_node("F", names[:1], names[1:], domain="local"))
    model, data, out = tmp_path / "model.onnx", tmp_path / "data.npz", tmp_path / "new.onnx"
    model.write_bytes(proto.SerializeToString())
    rng = np.random.default_rng(0)
    np.savez(data, x=rng.standard_normal((60, 6)).astype(np.float32), labels=rng.integers(0, 3, 60))
    limit = ("--limit", "inlined-bytes=1e9")
    if given == "features":
        ok("features", model, "--data", data, "-o", tmp_path / "store", *limit)
        data = tmp_path / "store"
    words = ["calibrate", model, "--calib", data, "-o", out, *words_of(PLAIN), "--map", "ets", "--trust-labels"]
    refused(3, "inlined-bytes", *words)
    ok(*words, *limit)
    ok("verify", model, out, *limit)


# --- texts that are not UTF-8

TEXT = b"Xunusual"
NOT_UTF8 = b"\xe2unusual"


def _texts() -> dict[str, Callable[[onnx.ModelProto], None]]:
    """Places of a text, each of which gets one that is found again in the bytes of the file."""
    text = TEXT.decode()

    def in_function(proto: onnx.ModelProto) -> None:
        proto.CopyFrom(calling(function("F")))
        proto.functions[0].node[0].name = text

    def in_body(proto: onnx.ModelProto) -> None:
        proto.CopyFrom(_loop())
        (body,) = (a.g for node in proto.graph.node for a in node.attribute if a.name == "body")
        body.name = text

    def axis(proto: onnx.ModelProto) -> None:
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = text

    return {
        "graph": lambda proto: setattr(proto.graph, "name", text),
        "producer": lambda proto: setattr(proto, "producer_name", text),
        "value_info": lambda proto: proto.graph.value_info.append(onnx.ValueInfoProto(name=text)) or None,
        "axis": axis,
        "function": in_function,
        "body": in_body,
    }


@pytest.mark.parametrize("place", _texts())
def test_a_text_that_is_not_utf8(place: str) -> None:
    proto = sample()
    _texts()[place](proto)
    data = proto.SerializeToString()
    assert data.count(TEXT) >= 1
    with pytest.raises(UnsupportedModel, match="is not UTF-8 text"):
        load_model(data.replace(TEXT, NOT_UTF8))
