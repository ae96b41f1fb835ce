"""Finding the head: every model of the table, every refusal, and the choice between several heads."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.builders import nodes_of
from tests.data.samples import open_source
from tests.graph.samples import (
    CASES,
    CLASSES,
    FEATURES,
    Array,
    Builder,
    Sample,
    assert_gives,
    features_of,
    run,
    tensors,
)
from tna_onnx.errors import DataError, UnsupportedModel
from tna_onnx.extraction.classifier import OpenModel
from tna_onnx.extraction.head_check import check_readout
from tna_onnx.graph.load import load_model
from tna_onnx.graph.readout import ClassOutput, requantized
from tna_onnx.graph.rewrite import rewrite
from tna_onnx.graph.scores import choose_head, class_output, find_heads
from tna_onnx.graph.tensors import float_tensor, rounded
from tna_onnx.runtime import Device

ACTIVATION = {"logits": "none", "softmax": "softmax", "log_softmax": "log_softmax", "sigmoid": "sigmoid"}


@pytest.mark.parametrize("build", CASES.values(), ids=CASES)
def test_features_times_weight_plus_bias_are_the_logits(build: Callable[[], Sample], tmp_path: Path) -> None:
    sample = build()
    model = sample.write(tmp_path)
    head = choose_head(model)
    x = sample.inputs(7)
    z, logits = features_of(sample, model, x), tensors(model, [sample.logits], x)[0]
    size = np.abs(z) @ np.abs(sample.weight).T + np.abs(sample.bias)
    assert_gives(logits, "logits", z @ sample.weight.T + sample.bias, size, sample.coarsest)
    assert_gives(logits, "logits", z @ head.weight.T + head.bias, size, sample.coarsest)
    assert logits.dtype == head.logits_type
    eps = np.finfo(head.working_type).eps  # products of a few constants, each rounded to this dtype once
    np.testing.assert_allclose(head.weight, sample.weight, rtol=4 * eps, atol=0)
    np.testing.assert_allclose(head.bias, sample.bias, rtol=4 * eps, atol=0)
    heads, refusals = find_heads(model)
    of_scores = {name: kind for name, kind in sample.outputs.items() if kind != "argmax"}
    assert [head.output for head in heads] == list(of_scores)
    assert [refusal.output for refusal in refusals] == [name for name in sample.outputs if name not in of_scores]
    for head in heads:
        assert head.activation == ACTIVATION[of_scores[head.output]]
        assert (head.n_classes, head.n_features) == sample.weight.shape
        assert (head.features, head.logits) == (sample.features, sample.logits)
        assert head.features_transposed == (sample.features == "turned")
        assert head.weight.dtype == head.bias.dtype == head.working_type
        # A power of two survives every factor: what the node would read of a doubled weight is twice what it reads.
        np.testing.assert_allclose(
            head.as_read(head.weight * 2), head.stored_weight.value.astype(np.float64) * 2, rtol=1e-6
        )


# --- refusals


HEAD = "Gemm features w b > scores name=head; "
SOFTMAX = f"{HEAD} Softmax scores > p name=soft; "
PRODUCT = " > weight; MatMul features weight > y name=head"
_CONSTANTS = {
    "hundred": 100.0, "tenth": 0.1, "zero": 0.0, "two": 2.0, "infinite": [0.0, -np.inf, 0.0],
    "three by three": np.ones((3, 3)) * 2, "four": np.ones(4) * 2, "matrix": np.ones((2, CLASSES)),
    "each sample": [[1.0], [2.0], [3.0]],
    "one vector": np.ones((FEATURES, 1)), "one bias": [0.5], "cube": np.ones((2, FEATURES, CLASSES)),
    "nan": np.full((FEATURES, CLASSES), np.nan), "square": np.eye(FEATURES),
    "codes": np.ones((FEATURES, CLASSES), "i1"),
    "kernel": np.ones((CLASSES, FEATURES, 2, 2)), "image shape": np.array([-1, FEATURES, 1, 1]),
    "other shape": np.array([5, 5]),
}  # fmt: skip


def _graph(text: str, *, out: str = "y", opset: int = 17) -> onnx.ModelProto:
    """The nodes of a text behind the features: `w` and `b` are weight and bias, other constants those above."""
    b = Builder(opset=opset)
    b.inputs.append(helper.make_tensor_value_info("given", onnx.TensorProto.FLOAT, [FEATURES, CLASSES]))
    for name, value in ({"w": b.weight.T, "b": b.bias} | _CONSTANTS).items():
        dtype = np.asarray(value).dtype
        b.store(name.replace(" ", "_"), value, dtype if dtype.kind == "i" else np.float32)
    b.nodes += nodes_of(text)
    proto = b.proto(out)
    proto.opset_import.append(helper.make_opsetid("com.example", 1))
    return proto


# nodes in front of the output, and the one at which the walk ends
REFUSED: dict[str, tuple[str, str]] = {
    "sine behind": (f"{HEAD} Sin scores > y name=behind", "behind"),
    "argmax": (f"{HEAD} ArgMax scores > argmax name=behind", "behind"),
    "softmax over samples": (f"{HEAD} Softmax scores > y name=behind axis=0", "behind"),
    "softmax over axis 2": (f"{HEAD} Softmax scores > y name=behind axis=2", "behind"),
    "cast to int": (f"{HEAD} Cast scores > argmax name=behind to=INT64", "behind"),
    "second softmax": (f"{SOFTMAX} Softmax p > y name=behind", "soft"),
    "scaled probabilities": (f"{SOFTMAX} Mul p hundred > y name=behind", "soft"),
    "shifted probabilities": (f"{SOFTMAX} Add p tenth > y name=behind", "behind"),
    "log of a sigmoid": ("Gemm features one_vector one_bias > s; Sigmoid s > p; Log p > y name=behind", "behind"),
    "weight from data": (
        "Transpose features > turned perm=[1,0]; MatMul turned features > gram; MatMul features gram > y name=head",
        "head",
    ),
    "weight is a graph input": ("MatMul features given > y name=head", "head"),
    "int8 weight": ("MatMul features codes > y name=head", "head"),
    "weight shaped by data": (f"Shape features > shape; Reshape w shape {PRODUCT}", "head"),
    "3-D weight": ("MatMul features cube > y name=head", "head"),
    "one class vector": ("MatMul features one_vector > y name=head", "head"),
    "NaN weight": ("MatMul features nan > y name=head", "head"),
    "infinite bias": ("Gemm features w infinite > y name=head", "head"),
    "residual": ("MatMul features square > product; Add product x > y name=add", "add"),
    "bias matrix": ("MatMul features w > product name=head; Add product matrix > y", "head"),
    "zero scale": (f"{HEAD} Mul scores zero > y name=scale", "scale"),
    "scores added to themselves": (f"{HEAD} Add scores scores > y name=twice", "twice"),
    "square of the scores": (f"{HEAD} Mul scores scores > y name=twice", "twice"),
    "bias that is added twice": ("MatMul features w > product; Sum product b b > y name=twice", "twice"),
    "factor that is missing": (f"{HEAD} Mul scores > y name=scale", "scale"),
    "matrix of scales": (f"{HEAD} Mul scores three_by_three > y name=scale", "scale"),
    "wrong number of scales": (f"{HEAD} Mul scores four > y name=scale", "head"),
    "constant over logits": (f"{HEAD} Div two scores > y name=scale", "scale"),
    "alpha of zero": ("Gemm features w b > y name=head alpha=0.0", "head"),
    "custom operator": ("Linear features w > y name=fused domain=com.example", "fused"),
    "convolution of several pixels": (
        "Reshape features image_shape > image; Conv image kernel > maps name=conv pads=[0,0,1,1]; Flatten maps > y",
        "conv",
    ),
    "no layer at all": ("Softmax x > y", "tensor 'x'"),
    "dropout mask": (f"{HEAD} Dropout scores > kept y name=drop", "drop"),
    "cyclic graph": ("Identity second > y name=one; Identity y > second name=two", "two"),
    "Gemm with one input": ("Gemm features > y name=head", "head"),
    "Reshape to a wrong size": (f"Reshape w other_shape {PRODUCT}", "head"),
    "Transpose of other axes": (f"Transpose w > weight perm=[0,2,1]; {PRODUCT.partition('; ')[2]}", "head"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_node(name: str) -> None:
    text, node = REFUSED[name]
    opset = 11 if name == "softmax over axis 2" else 17
    model = load_model(_graph(text, out="argmax" if "argmax" in text else "y", opset=opset))
    heads, refusals = find_heads(model)
    assert not heads
    assert [refusal.node for refusal in refusals] == [node]
    with pytest.raises(UnsupportedModel) as caught:
        choose_head(model)
    assert f"output '{model.outputs[0]}', at {node}: {refusals[0].reason}" in str(caught.value)


# --- further forms; those that exporters write are in the corpus

Oracle = Callable[[Array, Array], Array]


def _weight_from(how: Callable[[Builder], tuple[str, Array]]) -> tuple[Sample, Oracle]:
    b = Builder()
    name, value = how(b)
    b.weight = value.T.astype(np.float32)
    b.node("MatMul", "features", name, out="y", name="head")
    return b.sample(), lambda z, w: z @ w.T


def _dequantized(b: Builder) -> tuple[str, Array]:
    codes = b._rng.integers(-127, 128, (FEATURES, CLASSES))
    inputs = b.store("codes", codes, np.int8), b.store("step", 0.125)
    return b.node("DequantizeLinear", *inputs, out="weight"), codes * 0.125


def _bfloat16(b: Builder) -> tuple[str, Array]:
    value = rounded(b.weight.T, "bfloat16")
    b.initializers.append(float_tensor(value, "bfloat16", "stored"))
    return b.node("Cast", "stored", out="weight", to=onnx.TensorProto.FLOAT), value


def _two_biases(own: bool) -> tuple[Sample, Oracle]:
    """A bias of the layer's own, or added first, and one more."""
    b = Builder()
    first = b.linear("first") if own else b.node("Add", b.product("product"), b.store("bias", b.bias), out="first")
    second = np.float32([1, -2, 3])
    b.node("Add", first, b.store("second", second), out="y")
    bias = b.bias + second
    return b.sample(), lambda z, w: z @ w.T + bias


# name -> (sample with the weight, oracle of the output); linear: logits = z @ w.T + b by the package's own sums
FORMS: dict[str, tuple[Callable[[], tuple[Sample, Oracle]], bool]] = {
    "two biases": (lambda: _two_biases(False), False),
    "bias behind a Gemm's own": (lambda: _two_biases(True), False),
    "dequantised weight": (lambda: _weight_from(_dequantized), True),
    "bfloat16 weight": (lambda: _weight_from(_bfloat16), True),
}


@pytest.mark.parametrize("name", FORMS)
def test_other_forms_give_their_weight_and_take_a_new_one(name: str, tmp_path: Path) -> None:
    build, linear = FORMS[name]
    sample, oracle = build()
    model = sample.write(tmp_path)
    head, x = requantized(model, choose_head(model)), sample.inputs(9)
    assert (head.linear, head.logits) == (linear, sample.logits)
    np.testing.assert_allclose(head.weight, sample.weight, rtol=1e-6)
    z = features_of(sample, model, x)
    # twenty roundings of sums of six products, at most about 40 together, and of a function that is no steeper than 1
    bound = 20 * np.finfo(np.float32).eps * 40
    np.testing.assert_allclose(run(model.path, ["y"], x)[0], oracle(z, sample.weight), rtol=0, atol=bound)

    weight = np.random.default_rng(3).standard_normal(head.weight.shape).astype(np.float32)
    rewritten = rewrite(model, head, weight, metadata={})
    found = run(rewritten.proto, ["y"], x)[0]
    np.testing.assert_allclose(found, oracle(z, head.as_written(weight).astype(np.float64)), rtol=0, atol=bound)


@pytest.mark.parametrize(
    "text",
    [
        "MatMul features w > product; Add product each_sample > y",
        "Gemm features w each_sample > y",
        f"{HEAD} Mul scores each_sample > y",
    ],
    ids=["bias", "bias of a Gemm", "scale"],
)
@pytest.mark.parametrize("samples", [3, 4])
def test_a_constant_per_sample_is_refused_by_numbers(text: str, samples: int, tmp_path: Path) -> None:
    """(C, 1) is what one value a class looks like behind a convolution; behind (N, C) it broadcasts along N."""
    proto = _graph(text)
    del proto.graph.input[1]
    model = load_model(proto)
    head = choose_head(model)
    x = Builder().draw(samples, FEATURES)
    np.savez(tmp_path / "data.npz", x=x, labels=np.arange(samples) % CLASSES)
    opened = OpenModel(model, head, Device("cpu"))
    source = open_source(tmp_path / "data.npz", opened.inputs, CLASSES, None)
    refused = (UnsupportedModel, "does not give|scores of a sample depend on what it is run with")
    expected = refused if samples == CLASSES else (DataError, "could not run a batch of 4")
    with pytest.raises(expected[0], match=expected[1]):
        check_readout(opened, head, opened.session, source, samples)


# --- functions and hidden layers


def _referring(op_type: str, name: str, outer: str, domain: str = "") -> onnx.NodeProto:
    """A node whose attribute is one of the function around it."""
    node = helper.make_node(op_type, ["a"], ["b"], domain=domain)
    node.attribute.add(name=name, ref_attr_name=outer, type=onnx.AttributeProto.FLOAT)
    return node


@pytest.mark.parametrize("how", ["given", "handed on", "in a branch"])
def test_attributes_of_functions(how: str) -> None:
    """ONNX Runtime is the oracle: it inlines the functions itself."""
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    nodes = [_referring("LeakyRelu", "alpha", "slope")]
    if how == "in a branch":
        branch = helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info("b", 1, None)])
        yes = helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True)))
        nodes = [yes, helper.make_node("If", ["yes"], ["b"], then_branch=branch, else_branch=branch)]
    leaky = helper.make_function("local", "Leaky", ["a"], ["b"], nodes, versions)
    leaky.attribute_proto.append(helper.make_attribute("slope", -1.0))
    outer = helper.make_function(
        "local", "Outer", ["a"], ["b"], [_referring("Leaky", "slope", "own", "local")], versions
    )
    outer.attribute.append("own")
    b = Builder()
    name, flag = ("Outer", "own") if how == "handed on" else ("Leaky", "slope")
    b.node(name, "trunk_out", out="z", domain="local", **{flag: 0.5})
    b.linear("y", "z")
    proto = b.proto("y")
    proto.functions.extend([leaky, outer])
    proto.opset_import.append(versions[1])
    model = load_model(proto)
    assert not model.proto.functions
    x = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
    np.testing.assert_array_equal(run(model.proto, ["y"], x)[0], run(proto, ["y"], x)[0])


def test_a_head_inside_a_function_is_found(tmp_path: Path) -> None:
    """The function is inlined; what is written needs no function, and gives what the model gave."""
    b = Builder()
    b.node("Classify", "features", b.store("weight", b.weight), b.store("bias", b.bias), out="y", domain="local")
    proto, opsets = b.proto("y"), [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    body = [
        helper.make_node("Transpose", ["w"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["z", "turned"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["s"]),
    ]
    proto.functions.append(helper.make_function("local", "Classify", ["z", "w", "b"], ["s"], body, opsets[:1]))
    proto.opset_import.append(opsets[1])
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", CLASSES]))
    sample = Sample(proto, b.weight.astype(np.float64), b.bias.astype(np.float64), {"y": "logits"})
    model, x = sample.write(tmp_path), sample.inputs(5)
    assert model.inlined == ("Classify",)
    assert not model.proto.functions
    head = choose_head(model)
    assert (head.op_type, head.stored_weight.name, head.features) == ("MatMul", "weight", "features")
    np.testing.assert_array_equal(head.weight, b.weight)
    np.testing.assert_array_equal(head.bias, b.bias)
    old = run(model.path, ["y"], x)[0]
    np.testing.assert_array_equal(run(model.proto, ["y"], x)[0], old)
    z = features_of(sample, model, x)
    new = run(rewrite(model, head, 2 * head.weight, metadata={}).proto, ["y"], x)[0]
    np.testing.assert_allclose(new, 2 * z @ sample.weight.T + sample.bias, rtol=0, atol=1e-4)


def test_an_output_that_is_not_there(tmp_path: Path) -> None:
    model = CASES["Softmax opset 17 axis 1"]().write(tmp_path)
    with pytest.raises(UnsupportedModel, match="no output 'scores'; the model has y"):
        choose_head(model, output="scores")


# --- the choice


def _two_heads(names: tuple[str, str] = ("coarse", "fine")) -> onnx.ModelProto:
    b = Builder()
    for out, name in zip(("first", "second"), names, strict=True):
        weight, bias = b.store(f"{out} weight", b.draw(CLASSES, FEATURES)), b.store(f"{out} bias", b.draw(CLASSES))
        b.node("Gemm", "features", weight, bias, out=f"{out}_scores", transB=1, name=name)
        b.node("Softmax", f"{out}_scores", out=out)
    return b.proto("first", "second")


@pytest.mark.parametrize("names", [("twin", "twin"), ("", "")])
def test_heads_with_the_same_name_are_told_apart(names: tuple[str, str]) -> None:
    model = load_model(_two_heads(names))
    labels = [head.node for head in find_heads(model)[0]]
    assert len(set(labels)) == 2
    with pytest.raises(UnsupportedModel, match="2 heads found"):
        choose_head(model)
    assert [choose_head(model, label).stored_weight.name for label in labels] == ["first weight", "second weight"]


@pytest.mark.parametrize(("node", "says"), [("Softmax of y", "the model has head"), ("nowhere", "the model has head")])
def test_a_node_that_is_no_head(node: str, says: str, tmp_path: Path) -> None:
    model = CASES["Softmax opset 17 axis 1"]().write(tmp_path)
    with pytest.raises(UnsupportedModel, match="no linear head is called") as caught:
        choose_head(model, node)
    assert f"'{node}'" in str(caught.value)
    assert says in str(caught.value)


def test_a_head_by_name_comes_before_the_provenance() -> None:
    """A written file says which output classifies; who names another head means that one."""
    proto = _two_heads()
    helper.set_model_props(
        proto, {f"tna_onnx.{k}": v for k, v in ClassOutput("second", "logits", 9).provenance.items()}
    )
    model = load_model(proto)
    assert class_output(model) == ClassOutput("second", "probabilities", CLASSES)  # what it means, the graph says
    assert class_output(model, "coarse").name == "first"
    assert class_output(model, "fine") == ClassOutput("second", "probabilities", CLASSES)


@pytest.mark.parametrize("name", ["gone", "argmax", "attention", "hidden"])
def test_provenance_of_another_output_is_not_followed(name: str) -> None:
    b = Builder()
    b.node("Softmax", b.linear("z"), out="y")
    b.node("ArgMax", "z", out="argmax", axis=1)
    b.node("Softmax", "x", out="attention")
    b.node("Relu", "x", out="hidden")
    proto = b.sample({"y": "softmax", "argmax": "argmax", "attention": "softmax", "hidden": "logits"}).proto
    helper.set_model_props(proto, {f"tna_onnx.{k}": v for k, v in ClassOutput(name, "logits", 9).provenance.items()})
    assert class_output(load_model(proto)) == ClassOutput("y", "probabilities", CLASSES)
