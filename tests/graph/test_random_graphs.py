"""Random small graphs around one linear head: the class vectors found are those that built the graph.

A `Plan` says what the graph consists of. Weights and biases are multiples of 1/32 below 3, and every step of their
storage is exact on them in float16, float32 and int8, so the truth needs no tolerance for it.

    scores = (features @ W.T * before + b) * behind,   logits = pool(curve(scores)),   output = activation(logits)

is computed by NumPy in float64 from the features that ONNX Runtime gives. It has to agree with ONNX Runtime in every
example, which checks the generator and not the package.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.builders import small_model
from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.load import load_model
from tna_onnx.graph.scores import choose_head

Array = NDArray[Any]

FEATURES, TOKENS, SIDE, SAMPLES = 6, 4, 3, 5

DECOYS = ("logits", "argmax", "shape", "curve of the input", "shared weight", "dead", "unused")
"""Further outputs, and nodes and constants that nothing reads."""

SPOILERS = ("product of heads", "gate", "NaN", "weight from data", "weight as input", "groups")
"""What makes a graph one that must be refused."""


@dataclass(frozen=True)
class Scale:
    """Mul or Div by a constant, one number or one per class."""

    op_type: str
    per_class: bool
    constant_first: bool
    value: float

    def factors(self, classes: int) -> Array:
        """(C,) values of the constant; powers of two times the value, so that the classes differ."""
        return self.value * (2.0 ** (np.arange(classes) % 3) if self.per_class else np.ones(classes))

    def effect(self, classes: int) -> Array:
        """(C,) factors on the scores."""
        return self.factors(classes) if self.op_type == "Mul" else 1 / self.factors(classes)


@dataclass(frozen=True)
class Plan:
    """What a graph consists of; see the module's formula."""

    seed: int
    dtype: str
    opset: int
    classes: int
    layout: str
    pool: str
    pool_first: bool
    trunk: tuple[str, ...]
    form: str
    flags: tuple[bool, bool, float, float]
    steps: tuple[str, ...]
    stored: str
    bias: str
    bias_steps: tuple[str, ...]
    before: tuple[Scale, ...]
    behind: tuple[Scale, ...]
    curve: str
    passed: tuple[str, ...]
    activation: str
    decoys: tuple[str, ...]
    spoiler: str

    @property
    def reads(self) -> str:
        """Layout of what the linear layer reads."""
        if self.layout == "image" and self.pool_first and self.form == "conv":
            return "pixel"
        return "vector" if self.pool_first else self.layout


def scales() -> st.SearchStrategy[tuple[Scale, ...]]:
    one = st.builds(
        Scale, st.sampled_from(("Mul", "Div")), st.booleans(), st.booleans(), st.sampled_from((0.5, 2.0, 1.5, -1.0))
    )
    return st.lists(one, max_size=2).map(tuple)


@st.composite
def plans(draw: st.DrawFn, spoiled: bool = False) -> Plan:
    def some(values: tuple[str, ...], most: int) -> tuple[str, ...]:
        return tuple(draw(st.lists(st.sampled_from(values), max_size=most)))

    def one(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    spoiler = one(*SPOILERS) if spoiled else ""
    dtype, opset = one("float32", "float32", "float64"), draw(st.integers(11, 21))
    layout = one("vector", "tokens", "image") if dtype == "float32" else one("vector", "tokens")
    if spoiler == "groups":
        dtype, layout = "float32", "image"
    pool_first = layout == "vector" or draw(st.booleans())
    forms = ["gemm", "matmul"] if pool_first else [] if layout == "image" else ["matmul"]
    if dtype == "float32":  # ONNX Runtime has no Conv and no FusedMatMul for float64
        forms += ["conv"] if layout == "image" and not pool_first else ["conv", "fused"]
    if opset >= 12 and forms != ["conv"]:
        forms.append("einsum")
    activation = one("", "Softmax", "LogSoftmax", "Sigmoid")
    curve = one("", "", "", "Relu", "Tanh", "LeakyRelu", "Clip", "Softplus")
    if dtype == "float64" and (curve in ("LeakyRelu", "Softplus") or (curve == "Clip" and opset < 12)):
        curve = "Relu"  # ONNX Runtime has no kernel for these
    return Plan(
        seed=draw(st.integers(0, 2**16)),
        dtype=dtype,
        opset=opset,
        classes=1 if activation == "Sigmoid" and spoiler != "groups" else one(2, 3, 5, FEATURES),
        layout=layout,
        pool={"vector": "", "tokens": one("gather", "slice", "mean"), "image": one("global", "mean")}[layout],
        pool_first=pool_first,
        trunk=some(("Relu", "Tanh", "Sigmoid", "MatMul", "Identity"), 3),
        form="conv" if spoiler == "groups" else one(*forms),
        flags=(draw(st.booleans()), draw(st.booleans()), one(1.0, 0.5, -2.0), one(1.0, 0.25, 3.0)),
        steps=some(tuple(STEPS), 3),
        stored=one("initializer", "constant", "half", *(("codes",) if dtype == "float32" else ())),
        bias=one("", "own", "add", "add first", "sub", "sum", "number", "two"),
        bias_steps=some(("identity", "reshape", "squeeze", "mul", "concat"), 2),
        before=draw(scales()),
        behind=draw(scales()),
        curve=curve,
        passed=some(("Identity", "Dropout", "Reshape", "Unsqueeze and Squeeze", "Flatten", "Casts"), 2),
        activation="" if spoiler == "groups" and activation == "Sigmoid" else activation,
        decoys=tuple(dict.fromkeys(some(DECOYS, 3))),
        spoiler=spoiler,
    )


@dataclass
class Made:
    """A graph in the making, and its truth.

    Attributes:
        weight: (C, n) float64, all factors in it.
        bias: (C,) float64, the same.
        features, logits: tensors; the features are those that the linear node reads.
    """

    plan: Plan
    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    weight: Array = field(default_factory=lambda: np.zeros(0))
    bias: Array = field(default_factory=lambda: np.zeros(0))
    features: str = ""
    logits: str = ""
    read_weight: str = ""

    @property
    def activation(self) -> str:
        """What follows the logits, by the package's name: of several outputs, logits come first."""
        if self.plan.activation == "" or ("logits" in self.plan.decoys and self.plan.activation != "Sigmoid"):
            return "none"
        return {"LogSoftmax": "log_softmax"}.get(self.plan.activation, self.plan.activation.lower())

    def grid(self, *shape: int) -> Array:
        """Multiples of 1/32 in -3 .. 3."""
        return self.rng.integers(-96, 97, shape) / 32

    def const(self, value: Any, dtype: Any = None) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype or self.plan.dtype), name))
        return name

    def node(self, op_type: str, *inputs: str, **flags: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=f"{op_type} {name}", **flags))
        return name

    def axes(self, op_type: str, since: int, data: str, *axes: int, **flags: Any) -> str:
        """Append a node whose axes are an input from opset `since` on."""
        if self.plan.opset < since:
            return self.node(op_type, data, axes=axes, **flags)
        return self.node(op_type, data, self.const(axes, np.int64), **flags)

    def kept(self, value: Array, steps: tuple[str, ...], stored: str) -> str:
        """Store a constant behind steps, the last one first; returns the tensor that holds the value."""
        if not steps:
            return self._stored(value, stored)
        undo, append = STEPS[steps[-1]]
        return append(self, self.kept(undo(value), steps[:-1], stored), value)

    def _stored(self, value: Array, stored: str) -> str:
        if stored == "constant":
            return self.node("Constant", value=numpy_helper.from_array(np.ascontiguousarray(value, self.plan.dtype)))
        if stored == "half":
            return self.node("Cast", self.const(value, np.float16), to=_element(self.plan.dtype))
        codes = value * 32
        if stored == "codes" and np.array_equal(codes, np.round(codes)) and np.abs(codes).max() <= 127:
            scale, zero = self.const(1 / 32, np.float32), self.const(0, np.int8)
            return self.node("DequantizeLinear", self.const(codes, np.int8), scale, zero)
        return self.const(value)

    # --- the parts, in the order of the computation

    def trunk(self) -> str:
        shape = {"vector": (FEATURES,), "tokens": (TOKENS, FEATURES), "image": (2, SIDE, SIDE)}[self.plan.layout]
        self.inputs.append(helper.make_tensor_value_info("x", _element(self.plan.dtype), ["N", *shape]))
        if self.plan.layout == "image":
            data = self.node("Conv", "x", self.const(self.grid(FEATURES, 2, 3, 3)), pads=[1, 1, 1, 1])
        else:
            data = self.node("MatMul", "x", self.const(self.grid(FEATURES, FEATURES)))
        for op_type in self.plan.trunk:
            if op_type != "MatMul":
                data = self.node(op_type, data)
            elif self.plan.layout != "image":
                data = self.node("MatMul", data, self.const(self.grid(FEATURES, FEATURES)))
        return data

    def pooled(self, data: str, width: int) -> str:
        """Tokens or pixels away; (N, width) comes out, or (N, width, 1, 1) in front of a Conv."""
        how = self.plan.pool
        if how == "gather":
            return self.node("Gather", data, self.const(1, np.int64), axis=1)
        if how == "slice":
            first = self.node("Slice", data, *(self.const([v], np.int64) for v in (0, 1, 1)))
            return self.node("Reshape", first, self.const([-1, width], np.int64))
        if self.plan.layout == "tokens":
            return self.axes("ReduceMean", 18, data, 1, keepdims=0)
        pixel = self.node("GlobalAveragePool", data) if how == "global" else ""
        pixel = pixel or self.axes("ReduceMean", 18, data, 2, 3, keepdims=1)
        if self.plan.reads == "pixel" and not self.logits:
            return pixel
        return self.node("Flatten", pixel)

    def linear(self, data: str, weight: Array, bias: Array) -> tuple[str, Array, Array]:
        """Append the linear layer, and its bias if it has one of its own: the scores, and (C, n) and (C,) as scaled."""
        plan, own = self.plan, self.plan.bias == "own"
        trans_a, trans_b, alpha, beta = plan.flags
        self.features = data
        if plan.form == "gemm":
            if trans_a:
                self.features = data = self.node("Transpose", data, perm=[1, 0])
            inputs = [data, self._weight(weight if trans_b else weight.T)]
            if own:
                inputs.append(self.kept(bias, plan.bias_steps, "initializer"))
            flags = {"transA": int(trans_a), "transB": int(trans_b), "alpha": alpha, "beta": beta}
            return self.node("Gemm", *inputs, **flags), weight * alpha, bias * (beta if own else 0)
        if plan.form == "conv":
            return self._conv(data, weight, bias if own else None), weight, bias * own
        if plan.form == "einsum":
            positions = "nt" if plan.reads == "tokens" else "n"
            equation = f"{positions}d,{'cd' if trans_b else 'dc'}->{positions}c"
            scores = self.node("Einsum", data, self._weight(weight if trans_b else weight.T), equation=equation)
        elif plan.form == "fused":
            flags = {"transB": int(trans_b), "alpha": alpha}
            read = self._weight(weight if trans_b else weight.T)
            scores = self.node("FusedMatMul", data, read, domain="com.microsoft", **flags)
            weight = weight * alpha
        else:
            scores = self.node("MatMul", data, self._weight(weight.T))
        if own:
            scores = self.node("Add", scores, self.kept(bias, plan.bias_steps, "initializer"))
        return scores, weight, bias * own

    def _weight(self, value: Array) -> str:
        spoiler = self.plan.spoiler
        if spoiler == "NaN":
            value = value.copy()
            value.flat[1] = np.nan
            self.read_weight = self.const(value)
        elif spoiler == "weight as input":
            self.inputs.append(helper.make_tensor_value_info("w", _element(self.plan.dtype), value.shape))
            self.read_weight = "w"
        else:
            self.read_weight = self.kept(value, self.plan.steps, self.plan.stored)
        if spoiler == "weight from data":
            first = self.node("ReduceMax", "x", keepdims=0)
            self.read_weight = self.node("Mul", self.read_weight, first)
        return self.read_weight

    def _conv(self, data: str, weight: Array, bias: Array | None) -> str:
        reads = self.plan.reads
        if reads == "vector":
            self.features = data = self.axes("Unsqueeze", 13, data, 2, 3)
        elif reads == "tokens":
            self.features = data = self.node("Transpose", data, perm=[0, 2, 1])
        kernel = weight.reshape(*weight.shape, *[1] * (1 if reads == "tokens" else 2))
        group = 1
        if self.plan.spoiler == "groups":
            kernel, group = np.concatenate([kernel[:, :3], kernel[:, :3]]), 2
        inputs = [data, self._weight(kernel)]
        if bias is not None:
            bias = np.tile(bias, group)
            inputs.append(self.kept(bias, self.plan.bias_steps, "initializer"))
        scores = self.node("Conv", *inputs, group=group)
        if group == 2:
            scores = self.node("Slice", scores, *(self.const([v], np.int64) for v in (0, len(weight), 1)))
        if reads == "vector":
            return self.axes("Squeeze", 13, scores, 2, 3)
        return self.node("Transpose", scores, perm=[0, 2, 1]) if reads == "tokens" else scores

    def wide(self, value: Array) -> Array:
        """(C,) as it broadcasts to the scores."""
        return value[:, None, None] if self.plan.reads in ("image", "pixel") else value

    def scaled(self, scores: str, scale: Scale) -> str:
        factors = scale.factors(self.plan.classes)
        constant = self.const(self.wide(factors) if scale.per_class else factors[0])
        first = scale.constant_first and scale.op_type == "Mul"
        return self.node(scale.op_type, *((constant, scores) if first else (scores, constant)))

    def biased(self, scores: str, bias: Array) -> tuple[str, Array]:
        how = self.plan.bias
        if how in ("", "own"):
            return scores, np.zeros_like(bias)
        if how == "number":
            return self.node("Add", scores, self.const(0.75)), np.full_like(bias, 0.75)
        constant = self.kept(self.wide(bias), self.plan.bias_steps, "initializer")
        if how == "sub":
            return self.node("Sub", scores, constant), -bias
        if how == "two":
            second = self.node("Add", self.node("Add", scores, constant), self.const(self.wide(bias / 2)))
            return second, bias * 1.5
        pair = (constant, scores) if how == "add first" else (scores, constant)
        return self.node("Sum" if how == "sum" else "Add", *pair), bias

    def passing(self, data: str, how: str) -> str:
        if how == "Reshape":
            return self.node("Reshape", data, self.const([-1, self.plan.classes], np.int64))
        if how == "Unsqueeze and Squeeze":
            return self.axes("Squeeze", 13, self.axes("Unsqueeze", 13, data, 1), 1)
        if how == "Casts":
            return self.node("Cast", self.node("Cast", data, to=TensorProto.DOUBLE), to=_element(self.plan.dtype))
        return self.node(how, data)

    def curved(self, data: str) -> str:
        curve = self.plan.curve
        if curve == "Clip":
            return self.node("Clip", data, self.const(-4.0), self.const(6.0))
        return self.node(curve, data, **({"alpha": 0.25} if curve == "LeakyRelu" else {}))

    def proto(self) -> onnx.ModelProto:
        return small_model(
            self.nodes,
            self.inputs,
            self.outputs,
            self.initializers,
            opset=self.plan.opset,
            domains={"com.microsoft": 1},
            ir_version=10,
        )


STEPS: dict[str, tuple[Callable[[Array], Array], Callable[[Made, str, Array], str]]] = {
    "identity": (lambda v: v, lambda m, t, v: m.node("Identity", t)),
    "transpose": (
        lambda v: np.moveaxis(v, 0, -1),
        lambda m, t, v: m.node("Transpose", t, perm=[v.ndim - 1, *range(v.ndim - 1)]),
    ),
    "reshape": (lambda v: v.reshape(-1), lambda m, t, v: m.node("Reshape", t, m.const(v.shape, np.int64))),
    "squeeze": (lambda v: v[None], lambda m, t, v: m.axes("Squeeze", 13, t, 0)),
    "mul": (lambda v: v * 2, lambda m, t, v: m.node("Mul", m.const(0.5), t)),
    "div": (lambda v: v / 2, lambda m, t, v: m.node("Div", t, m.const(0.5))),
    "neg": (lambda v: -v, lambda m, t, v: m.node("Neg", t)),
    "add": (lambda v: v - 1, lambda m, t, v: m.node("Add", t, m.const(1.0))),
    "concat": (lambda v: v[:1], lambda m, t, v: m.node("Concat", t, m.const(v[1:]), axis=0)),
    "slice": (
        lambda v: np.concatenate([v, v[:1]]),
        lambda m, t, v: m.node("Slice", t, m.const([0], np.int64), m.const([len(v)], np.int64)),
    ),
}
"""What a constant may pass on its way to the layer: the value in front of the step, and the node."""


def _element(dtype: Any) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def make(plan: Plan) -> Made:
    """Build the graph of a plan."""
    made = Made(plan, np.random.default_rng(plan.seed))
    weight, bias = made.grid(plan.classes, FEATURES), made.grid(plan.classes)
    weight[0, 0] = 1.5  # a weight of zeros has no direction
    data = made.trunk()
    if plan.pool_first and plan.layout != "vector":
        data = made.pooled(data, FEATURES)
    scores, weight, bias_inside = made.linear(data, weight, bias)
    for scale in plan.before:
        scores = made.scaled(scores, scale)
    before = np.prod([np.ones(plan.classes), *(s.effect(plan.classes) for s in plan.before)], axis=0)
    scores, bias_outside = made.biased(scores, bias)
    for scale in plan.behind:
        scores = made.scaled(scores, scale)
    behind = np.prod([np.ones(plan.classes), *(s.effect(plan.classes) for s in plan.behind)], axis=0)
    made.weight = weight * (before * behind)[:, None]
    made.bias = (bias_inside * before + bias_outside) * behind
    if plan.curve:
        scores = made.curved(scores)
    made.logits = scores
    if not plan.pool_first:
        made.logits = made.pooled(scores, plan.classes)
    elif plan.reads == "pixel":
        made.logits = made.node("Flatten", scores)
    for how in plan.passed:
        made.logits = made.passing(made.logits, how)
    finish(made)
    return made


def other_layer(made: Made) -> str:
    """A second linear layer, on the input: (N, C)."""
    size = {"vector": FEATURES, "tokens": TOKENS * FEATURES, "image": 2 * SIDE * SIDE}[made.plan.layout]
    return made.node("MatMul", made.node("Flatten", "x"), made.const(made.grid(size, made.plan.classes)))


def finish(made: Made) -> None:
    """Append the activation, the outputs, and what has nothing to do with the head."""
    plan, extra = made.plan, []
    if plan.spoiler in ("product of heads", "gate"):
        other = other_layer(made)
        other = made.node("Sigmoid", other) if plan.spoiler == "gate" else other
        made.logits = made.node("Mul", made.logits, other)
    if "dead" in plan.decoys:
        other_layer(made)
    if "unused" in plan.decoys:
        made.const(made.grid(plan.classes, FEATURES))
    if "argmax" in plan.decoys:
        extra.append((made.node("ArgMax", made.logits, axis=1), TensorProto.INT64))
    if "shape" in plan.decoys:
        extra.append((made.node("Shape", made.features), TensorProto.INT64))
    if "curve of the input" in plan.decoys:
        extra.append((made.node("Tanh", "x"), _element(plan.dtype)))
    if "shared weight" in plan.decoys:
        extra.append((made.node("ReduceMax", made.read_weight, keepdims=0), _element(plan.dtype)))
    if "logits" in plan.decoys and plan.activation:
        extra.append((made.logits, _element(plan.dtype)))
    result = made.logits
    if plan.activation:
        result = made.node(plan.activation, made.logits, **({} if plan.activation == "Sigmoid" else {"axis": 1}))
    for tensor, element in (*extra, (result, _element(plan.dtype))):
        made.outputs.append(helper.make_tensor_value_info(tensor, element, None))


# --- the oracle


def run(made: Made) -> tuple[Array, Array]:
    """Run a graph with ONNX Runtime: the features as the layer reads them, and the logits."""
    proto, names = made.proto(), [made.features, made.logits]
    there = {info.name for info in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names) if name not in there)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # inner tensors are outputs
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    sizes = {i.name: [SAMPLES if size == "N" else size for size in i.shape] for i in session.get_inputs()}
    feeds = {name: made.rng.standard_normal(shape).astype(made.plan.dtype) for name, shape in sizes.items()}
    features, logits = session.run(names, feeds)
    return features.astype(np.float64), logits.astype(np.float64)


def positions(made: Made, features: Array) -> Array:
    """Features with the vector on the last axis: (N, n), (N, T, n) or (N, height, width, n)."""
    plan = made.plan
    if plan.form == "gemm":
        return features.T if plan.flags[0] else features
    if plan.form == "conv":
        features = np.moveaxis(features, 1, -1)
        return features[:, 0, 0] if plan.reads in ("vector", "pixel") else features
    return features


def pool(made: Made, scores: Array) -> Array:
    """Take tokens or pixels away as the graph does: (N, C)."""
    plan = made.plan
    if plan.pool_first:
        return scores
    if plan.layout == "image":
        return np.asarray(scores.mean(axis=(1, 2)))
    return np.asarray({"gather": scores[:, 1], "slice": scores[:, 0], "mean": scores.mean(axis=1)}[plan.pool])


CURVES: dict[str, Callable[[Array], Array]] = {
    "": lambda s: s,
    "Relu": lambda s: np.maximum(s, 0),
    "Tanh": np.tanh,
    "LeakyRelu": lambda s: np.where(s < 0, s / 4, s),
    "Clip": lambda s: np.clip(s, -4, 6),
    "Softplus": lambda s: np.logaddexp(s, 0),
}


def assert_close(found: Array, expected: Array, size: Array, dtype: str, what: str) -> None:
    """Compare logits.

    `size` is |z||W| + |b|: each of at most 32 roundings (6 products, sums over 9 pixels, 4 factors) moves a logit by
    eps * size. The curves have slopes of at most 1; Tanh and Softplus round their own result, by up to 8 eps.
    """
    bound = np.finfo(dtype).eps * (32 * size.max(axis=1, keepdims=True) + 8)
    error = np.abs(found - expected)
    assert found.shape == expected.shape, f"{what}: shape {found.shape}; expected {expected.shape}"
    assert np.all(error <= bound), f"{what}: off by {error.max():.3g}; expected at most {bound.min():.3g}"


def assert_same_vectors(found: Array, truth: Array, dtype: str) -> None:
    """Compare class vectors up to one positive factor: a few factors are multiplied in, each rounded once."""
    assert found.shape == truth.shape
    found = found.astype(np.float64)
    factor = float(np.sum(found * truth) / np.sum(truth * truth))
    assert factor > 0
    np.testing.assert_allclose(found / factor, truth, rtol=16 * np.finfo(dtype).eps, atol=0)


# --- the properties

RUNS = settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])


@RUNS
@given(plan=plans())
def test_the_class_vectors_are_those_that_built_the_graph(plan: Plan) -> None:
    made = make(plan)
    features, logits = run(made)
    z = positions(made, features)
    size = pool(made, np.abs(z) @ np.abs(made.weight).T + np.abs(made.bias))
    assert_close(logits, pool(made, CURVES[plan.curve](z @ made.weight.T + made.bias)), size, plan.dtype, "generator")
    head = choose_head(load_model(made.proto()))
    binary = plan.activation == "Sigmoid"
    truth = np.concatenate([np.zeros_like(made.weight), made.weight]) if binary else made.weight
    assert_same_vectors(head.weight, truth, plan.dtype)
    assert head.features == made.features
    assert head.activation == made.activation
    if head.linear:
        found = (pool(made, z) @ head.weight.astype(np.float64).T + head.bias)[:, binary:]
        assert_close(found, logits, size, plan.dtype, "head")


@settings(RUNS, max_examples=40)
@given(plan=plans(spoiled=True))
def test_spoiled_graphs_are_refused(plan: Plan) -> None:
    made = make(plan)
    run(made)
    event(plan.spoiler)
    with pytest.raises(UnsupportedModel):
        choose_head(load_model(made.proto()))
