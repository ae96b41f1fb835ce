"""Small classifiers around one linear head, each with what it has to compute, and how to run them.

`CASES` is the table that the tests of head finding and of rewriting share. The oracle of a sample is NumPy's
`features @ weight.T + bias`, with the numbers that built the graph and none that the package read from it.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tests.builders import nodes_of, small_model, tensor_info
from tests.support import pairwise
from tna_onnx.graph.load import Model, load_model

FEATURES, CLASSES = 6, 3

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Sample:
    """A model and its oracle.

    Attributes:
        proto: the model; input `x`, (N, 6).
        weight: (C, n) float64, all constant factors in it.
        bias: (C,) float64, the same.
        outputs: graph outputs and what each must hold: logits, softmax, log_softmax, sigmoid or argmax.
        features: tensor that the head reads.
        logits: tensor that holds the logits.
        coarsest: dtype with the largest rounding on the way from the features to the logits.
        external: keep the tensors in a file beside the model.
    """

    proto: onnx.ModelProto
    weight: Array
    bias: Array
    outputs: dict[str, str]
    features: str = "features"
    logits: str = "y"
    coarsest: str = "float32"
    external: bool = False

    def inputs(self, count: int, seed: int = 0) -> Array:
        """Draw N inputs in the dtype of the model."""
        elem = self.proto.graph.input[0].type.tensor_type.elem_type
        dtype = helper.tensor_dtype_to_np_dtype(elem)
        return np.random.default_rng(seed).standard_normal((count, FEATURES)).astype(dtype)

    def write(self, folder: Path) -> Model:
        """Write the model into a folder, and load it."""
        path, copy = folder / "model.onnx", onnx.ModelProto()
        copy.CopyFrom(self.proto)
        onnx.save_model(copy, path, save_as_external_data=self.external, location="weights.bin", size_threshold=0)
        return load_model(path)


class Builder:
    """A graph in the making; `x` -> Relu(x @ trunk) -> `features` is there already."""

    def __init__(self, dtype: str = "float32", opset: int = 17, classes: int = CLASSES) -> None:
        self.dtype, self.opset = np.dtype(dtype), opset
        self._rng = np.random.default_rng(7)
        self.initializers: list[onnx.TensorProto] = []
        self.nodes: list[onnx.NodeProto] = []
        self.inputs = [helper.make_tensor_value_info("x", _element(self.dtype), ["N", FEATURES])]
        self.weight, self.bias = self.draw(classes, FEATURES), self.draw(classes)
        self.node("MatMul", "x", self.store("trunk", self.draw(FEATURES, FEATURES)), out="trunk_out")
        self.node("Relu", "trunk_out", out="features")

    def draw(self, *shape: int) -> Array:
        return np.asarray(self._rng.standard_normal(shape)).astype(self.dtype)

    def store(self, name: str, value: Any, dtype: Any = None) -> str:
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype or self.dtype), name))
        return name

    def node(self, op_type: str, *inputs: str, out: str, **attributes: Any) -> str:
        """Append a node called `OpType of out`."""
        name = attributes.pop("name", f"{op_type} of {out}")
        self.nodes.append(helper.make_node(op_type, inputs, [out], name=name, **attributes))
        return out

    def text(self, nodes: str, **stored: Any) -> None:
        """Append nodes as `nodes_of` reads them, and constants by name, of the builder's type if they are floats."""
        for name, value in stored.items():
            dtype = np.asarray(value).dtype
            self.store(name, value, dtype if dtype.kind in "biu" or dtype == np.float16 else None)
        self.nodes += nodes_of(nodes)

    def linear(self, out: str, data: str = "features") -> str:
        """Append a Gemm with the builder's weight and bias."""
        weight, bias = self.store("weight", self.weight), self.store("bias", self.bias)
        return self.node("Gemm", data, weight, bias, out=out, transB=1, name="head")

    def product(self, out: str, data: str = "features") -> str:
        """Append a MatMul with the builder's weight."""
        return self.node("MatMul", data, self.store("weight", self.weight.T), out=out, name="head")

    def proto(self, *outputs: str) -> onnx.ModelProto:
        types = {"argmax": onnx.TensorProto.INT64, "half": onnx.TensorProto.FLOAT16, "wide": onnx.TensorProto.FLOAT}
        infos = [helper.make_tensor_value_info(o, types.get(o, _element(self.dtype)), None) for o in outputs]
        proto = small_model(self.nodes, self.inputs, infos, self.initializers, opset=self.opset, producer_name="tests")
        proto.graph.doc_string = "a sample"
        helper.set_model_props(proto, {"team": "unchanged"})
        return proto

    def sample(
        self, outputs: Mapping[str, str] | None = None, scale: Any = 1.0, bias_scale: Any = 0.0, **fields: Any
    ) -> Sample:
        """Finish: the oracle is the builder's weight times `scale` and its bias times `bias_scale`."""
        outputs = dict(outputs or {"y": "logits"})
        scale = np.asarray(scale, np.float64)
        weight = self.weight.astype(np.float64) * (scale[:, None] if scale.ndim else scale)
        bias = self.bias.astype(np.float64) * bias_scale
        proto = self.proto(*outputs)
        inferred = onnx.shape_inference.infer_shapes(proto).graph.output
        for info, shaped in zip(proto.graph.output, inferred, strict=True):
            info.CopyFrom(shaped)  # the checker wants shapes
        return Sample(proto, weight, bias, outputs, **{"coarsest": self.dtype.name, **fields})


def branch(op_type: str, read: str, *stored: onnx.TensorProto, shape: list[int] | None = None) -> onnx.GraphProto:
    """Return a branch of an If: one node that reads a tensor of the graph around it, or one that the branch holds."""
    node = helper.make_node(op_type, [read], ["inner"])
    return helper.make_graph([node], "branch", [], [tensor_info("inner", shape)], stored)


def _element(dtype: np.dtype[Any]) -> int:
    return int(helper.np_dtype_to_tensor_dtype(dtype))


# --- the cases


def _gemm(
    trans_a: bool, trans_b: bool, alpha: float | None, beta: float | None, shape: tuple[int, ...] | None
) -> Sample:
    b = Builder()
    data = b.node("Transpose", "features", out="turned", perm=[1, 0]) if trans_a else "features"
    inputs = [data, b.store("weight", b.weight if trans_b else b.weight.T)]
    if shape is not None:
        b.bias = np.broadcast_to(b.draw(*shape).reshape(-1), (CLASSES,))
        inputs.append(b.store("bias", b.bias[: int(np.prod(shape))].reshape(shape)))
    flags = {"transA": int(trans_a), "transB": int(trans_b), "alpha": alpha, "beta": beta}
    b.node("Gemm", *inputs, out="y", name="head", **{k: v for k, v in flags.items() if v is not None})
    bias_scale = 0.0 if shape is None else 1.0 if beta is None else beta
    return b.sample(scale=1.0 if alpha is None else alpha, bias_scale=bias_scale, features=data)


def _gemm_empty_bias() -> Sample:
    b = Builder()
    b.node("Gemm", "features", b.store("weight", b.weight), "", out="y", transB=1, name="head")
    return b.sample()


def _matmul(bias_first: bool | None) -> Sample:
    b = Builder()
    if bias_first is None:
        b.product("y")
        return b.sample()
    pair = (b.store("bias", b.bias), b.product("product"))
    b.node("Add", *(pair if bias_first else pair[::-1]), out="y")
    return b.sample(bias_scale=1.0)


def _gemm_then_add() -> Sample:
    b = Builder()
    b.node("Gemm", "features", b.store("weight", b.weight.T), out="product", name="head")
    b.node("Add", "product", b.store("bias", b.bias[None]), out="y")
    return b.sample(bias_scale=1.0)


def _typed(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """Return the same tensor with its values in the field of its type, as old exporters store them."""
    values = numpy_helper.to_array(tensor).reshape(-1).tolist()
    typed = helper.make_tensor(tensor.name, tensor.data_type, tensor.dims, values)
    assert not typed.HasField("raw_data")
    return typed


def _weight_constant_node(b: Builder) -> str:
    value = numpy_helper.from_array(b.weight.T)
    b.nodes.append(helper.make_node("Constant", [], ["weight"], name="", value=value))
    return "weight"


def _weight_constant_floats(b: Builder) -> str:
    floats = b.weight.T.reshape(-1).tolist()
    b.nodes.append(helper.make_node("Constant", [], ["flat"], name="flat", value_floats=floats))
    return b.node("Reshape", "flat", b.store("shape", [FEATURES, CLASSES], np.int64), out="weight")


def _weight_identity(b: Builder) -> str:
    b.text("Identity stored > weight", stored=b.weight.T)
    return "weight"


def _weight_cast(b: Builder) -> str:
    b.weight = b.weight.astype(np.float16).astype(b.dtype)
    b.text("Cast stored > weight to=FLOAT", stored=b.weight.T.astype(np.float16))
    return "weight"


def _weight_transpose(b: Builder) -> str:
    b.text("Transpose stored > weight", stored=b.weight)
    return "weight"


def _weight_reshape(b: Builder) -> str:
    b.text("Reshape stored shape > weight", stored=b.weight.T.reshape(FEATURES, CLASSES, 1, 1), shape=[0, -1])
    return "weight"


def _weight_chain(b: Builder) -> str:
    """Half precision, (n, C, 1) flattened the other way round: every step at once."""
    b.weight = b.weight.astype(np.float16).astype(b.dtype)
    stored = b.weight.reshape(1, CLASSES, FEATURES).astype(np.float16)
    steps = "Transpose stored > turned perm=[2,0,1]; Cast turned > wide_weight to=FLOAT"
    b.text(f"{steps}; Reshape wide_weight shape > flat; Identity flat > weight", stored=stored, shape=[FEATURES, -1])
    return "weight"


def _weight_typed(b: Builder) -> str:
    b.store("weight", b.weight.T)
    b.initializers[-1] = _typed(b.initializers[-1])
    return "weight"


def _weight_also_input(b: Builder) -> str:
    b.inputs.append(helper.make_tensor_value_info("weight", _element(b.dtype), [FEATURES, CLASSES]))
    return b.store("weight", b.weight.T)


def _stored(dtype: str, how: Callable[[Builder], str]) -> Sample:
    b = Builder(dtype)
    b.node("MatMul", "features", how(b), out="product", name="head")
    b.node("Add", "product", b.store("bias", b.bias), out="y")
    coarsest = "float16" if how in (_weight_cast, _weight_chain) else dtype
    return b.sample(bias_scale=1.0, coarsest=coarsest)


def _bias_constant_node() -> Sample:
    b = Builder()
    b.nodes.append(helper.make_node("Constant", [], ["bias"], name="bias", value_floats=b.bias.tolist()))
    b.node("Add", b.product("product"), "bias", out="y")
    return b.sample(bias_scale=1.0)


def _followed(op_type: str, opset: int, axis: int | None) -> Sample:
    b = Builder(opset=opset)
    b.node(op_type, b.linear("scores"), out="y", **({} if axis is None else {"axis": axis}))
    kind = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}[op_type]
    return b.sample({"y": kind}, bias_scale=1.0, logits="scores")


def _passed(op_type: str, opset: int = 17, activation: str | None = None) -> Sample:
    """An operator that does not change the numbers, in front of a Softmax or at the end."""
    b = Builder(opset=opset)
    extra: list[str] = []
    flags: dict[str, Any] = {}
    data = "features"
    if op_type in ("Squeeze", "Flatten"):  # the head works on (N, 1, n)
        lift = b.store("lift", [-1, 1, FEATURES], np.int64)
        data = b.node("Reshape", "features", lift, out="lifted")
    if op_type == "Squeeze" and opset < 13:
        flags["axes"] = [1]
    elif op_type == "Squeeze":
        extra.append(b.store("axes", [1], np.int64))
    if op_type == "Reshape":
        extra.append(b.store("to", [-1, CLASSES], np.int64))
    product = b.node("MatMul", data, b.store("weight", b.weight.T), out="product", name="head")
    scores = b.node("Add", product, b.store("bias", b.bias), out="scores")
    b.node(op_type, scores, *extra, out="y" if activation is None else "passed", **flags)
    if activation is None:
        return b.sample(bias_scale=1.0, features=data)
    b.node("Softmax", "passed", out="y", axis=1)
    return b.sample({"y": "softmax"}, bias_scale=1.0, features=data, logits="passed")


def _unsqueezed_result() -> Sample:
    b = Builder()
    b.linear("scores")
    b.text("Softmax scores > p axis=-1; Unsqueeze p axes > y", axes=[1])
    return b.sample({"y": "softmax"}, bias_scale=1.0, logits="scores")


def _cast(stored: str, to: str, softmax_first: bool) -> Sample:
    """Softmax and Cast behind the head, in either order: the logits have the dtype in front of the Softmax."""
    b = Builder(stored)
    kind = {"float16": "half", "float32": "wide"}[to]
    element = {"float16": "FLOAT16", "float32": "FLOAT"}[to]
    b.linear("scores")
    text = f"Cast scores > cast to={element}; Softmax cast > {kind} axis=1"
    if softmax_first:
        text = f"Softmax scores > p axis=1; Cast p > {kind} to={element}"
    b.text(text)
    logits = "scores" if softmax_first else "cast"
    return b.sample({kind: "softmax"}, bias_scale=1.0, logits=logits, coarsest="float16")


def _cast_twice() -> Sample:
    """Down to half precision and back, before the Softmax."""
    b = Builder()
    b.linear("scores")
    b.text("Cast scores > down to=FLOAT16; Cast down > up to=FLOAT; Softmax up > y axis=1")
    return b.sample({"y": "softmax"}, bias_scale=1.0, logits="up", coarsest="float16")


def _precision(dtype: str, op_type: str) -> Sample:
    b = Builder(dtype)
    if op_type == "Gemm":
        b.linear("scores")
    else:
        b.node("Add", b.product("product"), b.store("bias", b.bias), out="scores")
    b.node("Softmax", "scores", out="y", axis=1)
    return b.sample({"y": "softmax"}, bias_scale=1.0, logits="scores")


_PER_CLASS = np.array([0.5, -2.0, 3.0])


def _scaled(op_type: str, factor: Any, before_bias: bool, constant_first: bool = False) -> Sample:
    b = Builder()
    constant = b.store("factor", factor)
    bias = b.store("bias", b.bias)
    before = b.product("product")
    if not before_bias:
        before = b.node("Add", before, bias, out="biased")
    pair = (constant, before) if constant_first else (before, constant)
    b.node(op_type, *pair, out="scaled" if before_bias else "y")
    if before_bias:
        b.node("Add", "scaled", bias, out="y")
    flat = np.asarray(factor, np.float32).astype(np.float64).reshape(-1)
    scale = (flat if op_type == "Mul" else 1 / flat) * np.ones(CLASSES)
    return b.sample(scale=scale, bias_scale=1.0 if before_bias else scale)


def _scaled_gemm() -> Sample:
    """Factors in every place: alpha, beta, per class, one number as a Constant's float."""
    b = Builder()
    head = "Gemm features weight bias > scores transB=1 alpha=0.5 beta=-2.0 name=head; Mul scores factor > scaled"
    behind = "Constant > quarter value_float=0.25; Div scaled quarter > divided; Softmax divided > y axis=1"
    b.text(f"{head}; {behind}", weight=b.weight, bias=b.bias, factor=_PER_CLASS)
    scale = _PER_CLASS * 4
    return b.sample({"y": "softmax"}, scale=scale * 0.5, bias_scale=scale * -2.0, logits="divided")


def _several(order: tuple[str, ...]) -> Sample:
    b = Builder()
    b.linear("scores")
    b.text("Softmax scores > p axis=1; LogSoftmax scores > lp axis=1; ArgMax scores > argmax axis=1 keepdims=0")
    kinds = {"scores": "logits", "p": "softmax", "lp": "log_softmax", "argmax": "argmax"}
    return b.sample({name: kinds[name] for name in order}, bias_scale=1.0, logits="scores")


def _on_input() -> Sample:
    b = Builder()
    b.nodes.clear()
    b.initializers.clear()
    b.linear("y", data="x")
    return b.sample(bias_scale=1.0, features="x")


def _unnamed() -> Sample:
    b = Builder()
    b.node("Softmax", b.linear("scores"), out="y")
    for node in b.nodes:
        node.name = ""
    return b.sample({"y": "softmax"}, bias_scale=1.0, logits="scores")


def _two_classes() -> Sample:
    b = Builder(classes=2)
    b.node("Softmax", b.linear("scores"), out="y")
    return b.sample({"y": "softmax"}, bias_scale=1.0, logits="scores")


def _external() -> Sample:
    b = Builder()
    b.node("Softmax", b.linear("scores"), out="y")
    return b.sample({"y": "softmax"}, bias_scale=1.0, logits="scores", external=True)


_WEIGHTS = {
    "initializer": lambda b: b.store("weight", b.weight.T),
    "constant node": _weight_constant_node,
    "constant floats": _weight_constant_floats,
    "identity": _weight_identity,
    "cast": _weight_cast,
    "transpose": _weight_transpose,
    "reshape": _weight_reshape,
    "chain": _weight_chain,
    "typed field": _weight_typed,
    "also a graph input": _weight_also_input,
}


Case = tuple[str, Callable[[], Sample]]


def _gemm_cases() -> Iterator[Case]:
    shapes = ((), (1,), (CLASSES,), (1, CLASSES))
    for a, b, alpha, beta, shape in pairwise((False, True), (False, True), (None, 0.5), (None, -1.5), shapes):
        yield f"gemm A{a:d} B{b:d} {alpha} {beta} {shape}", partial(_gemm, a, b, alpha, beta, shape)
    yield "gemm A0 B1 0.5 None None", partial(_gemm, False, True, 0.5, None, None)
    yield "gemm with an empty bias", _gemm_empty_bias
    yield "gemm then add", _gemm_then_add


def _constant_cases() -> Iterator[Case]:
    for name, how in _WEIGHTS.items():
        yield f"weight {name}", partial(_stored, "float32", how)
    for dtype in ("float16", "float64"):
        yield f"weight typed field {dtype}", partial(_stored, dtype, _weight_typed)
    yield "bias constant floats", _bias_constant_node
    yield "external data", _external


def _follower_cases() -> Iterator[Case]:
    for op_type, opset, axis in pairwise(("Softmax", "LogSoftmax"), (17, 11, 13), (1, None, -1)):
        yield f"{op_type} opset {opset} axis {axis}", partial(_followed, op_type, opset, axis)
    passed = {"Squeeze": "softmax", "Dropout": None, "Flatten": "softmax", "Reshape": None, "Identity": "softmax"}
    for op_type, activation in passed.items():
        yield f"{op_type} then {activation}", partial(_passed, op_type, activation=activation)
    yield "Squeeze opset 11", partial(_passed, "Squeeze", 11)
    yield "Dropout opset 11", partial(_passed, "Dropout", 11)
    yield "Unsqueeze of the probabilities", _unsqueezed_result
    for (stored, to), first in itertools.product((("float16", "float32"), ("float32", "float16")), (False, True)):
        yield f"{stored} cast to {to}, softmax first {first}", partial(_cast, stored, to, first)
    yield "cast twice", _cast_twice


def _factor_cases() -> Iterator[Case]:
    factors = {"scalar": 0.3, "one": [0.3], "classes": _PER_CLASS, "row": _PER_CLASS[None]}
    for op_type, (name, factor), before in pairwise(("Mul", "Div"), factors.items(), (False, True)):
        yield f"{op_type} {name}, before bias {before}", partial(_scaled, op_type, factor, before)
    yield "Mul, constant first", partial(_scaled, "Mul", _PER_CLASS, False, constant_first=True)
    yield "all factors", _scaled_gemm


def _other_cases() -> Iterator[Case]:
    for bias_first in (None, False, True):
        yield f"matmul, bias first {bias_first}", partial(_matmul, bias_first)
    for dtype, op_type in itertools.product(("float16", "float32", "float64"), ("Gemm", "MatMul")):
        yield f"{dtype} {op_type}", partial(_precision, dtype, op_type)
    for order in (("scores", "p"), ("p", "scores"), ("argmax", "lp", "p", "scores"), ("p", "argmax")):
        yield f"outputs {' '.join(order)}", partial(_several, order)
    yield "on the graph input", _on_input
    yield "unnamed nodes", _unnamed
    yield "two classes", _two_classes


CASES: dict[str, Callable[[], Sample]] = dict(
    [*_gemm_cases(), *_constant_cases(), *_follower_cases(), *_factor_cases(), *_other_cases()]
)


# --- running and comparing


def run(model: onnx.ModelProto | Path, outputs: list[str], x: Array) -> list[Array]:
    """Run a model with ONNX Runtime, and with nothing of this package."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    # at its default level the runtime would quantise the features in front of a quantised weight
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return [np.asarray(result) for result in session.run(outputs, {"x": x})]


def tensors(model: Model, names: list[str], x: Array) -> list[Array]:
    """Run a model with inner tensors as outputs."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model.proto)
    del probe.graph.output[:]
    made = [name for name in names if name != "x"]
    if not made:
        return [x for _ in names]
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    path = model.path.with_name("probe.onnx")
    path.write_bytes(probe.SerializeToString())
    found = dict(zip(made, run(path, made, x), strict=True))
    return [x if name == "x" else found[name] for name in names]


def features_of(sample: Sample, model: Model, x: Array) -> Array:
    """Run up to the features; (N, n) float64."""
    z = tensors(model, [sample.features], x)[0]
    return (z.T if sample.features == "turned" else z).reshape(len(x), FEATURES).astype(np.float64)


def softmax(logits: Array) -> Array:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


_KINDS: dict[str, Callable[[Array], Array]] = {
    "logits": lambda s: s,
    "softmax": softmax,
    "log_softmax": lambda s: np.log(softmax(s)),
    "sigmoid": lambda s: 1 / (1 + np.exp(-s)),
    "argmax": lambda s: s.argmax(axis=1),
}


def assert_gives(found: Array, kind: str, logits: Array, size: Array, coarsest: str) -> None:
    """Compare an output with what it must hold.

    Every rounding of the sum z @ w + b moves a logit by at most eps (|z||w| + |b|) = eps * size. The order of summation
    differs, weights are rounded once more to their stored dtype, factors are multiplied in another order: 16 roundings
    are room for all of them at n = 6. A softmax moves by less than its logits, a log-softmax by at most twice as much;
    either adds a few roundings of its own result.
    """
    expected = _KINDS[kind](logits)
    if kind == "argmax":
        np.testing.assert_array_equal(found, expected)
        return
    found = found.astype(np.float64)
    assert found.size == expected.size, f"{kind} of shape {found.shape}; expected {expected.shape}"
    eps = float(np.finfo(coarsest).eps)
    bound = 32 * eps * size.max(axis=1, keepdims=True) + 8 * eps * (1 + np.abs(expected))
    error = np.abs(found.reshape(expected.shape) - expected)
    assert np.all(error <= bound), f"{kind} off by {error.max():.3g}; expected at most {bound.flat[error.argmax()]:.3g}"
