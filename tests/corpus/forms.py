"""Every form of a linear head that we know of, as small graphs made with `onnx.helper`, and graphs without one.

The truth is the class vectors that built the graph, never what the package reads from it. All graphs run in ONNX
Runtime; those without `feeds` do not, and say why.

Decisions where the truth is a matter of definition:

- A function after the layer that has no weights of its own (Relu, Tanh, pooling over tokens, division by the norm of
  the features) leaves the layer a head: its class vectors can be replaced and the rest of the graph run as it is.
- A sum, difference or mean of linear layers is one layer over their features side by side. Other products and sums with
  data in both terms are refused: no layer makes them. This holds for the residual x @ W + x too. It could be read as
  x @ (W + I), but W alone is then not the class vectors.
- The classes of the output must have vectors of the layer of their own: some of its classes may be chosen, but a layer
  whose scores are grouped or pooled into fewer classes is refused.
- A constant weight that is computed by nodes counts with the value that the layer reads.
- Class vectors are meant up to one positive factor: constant - logits has the class vectors -W.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.builders import small_model, stumps
from tests.corpus.case import Case, class_vectors

Array = NDArray[Any]

FEATURES, CLASSES, TOKENS, SIDE, VOCABULARY = 8, 5, 4, 3, 11
MICROSOFT, ML, LOCAL = "com.microsoft", "ai.onnx.ml", "local"


class Graph:
    """A graph in the making. `vector`, `tokens`, `image` and `ids` add an input and a trunk, and return the features.

    Attributes:
        weight: (C, n) in the dtype of the graph; the truth, unless the function that fills the graph returns another.
        bias: (C,).
    """

    def __init__(
        self,
        dtype: str = "float32",
        *,
        classes: int = CLASSES,
        features: int = FEATURES,
        opset: int = 17,
        ir_version: int = 8,
    ) -> None:
        self.dtype, self.opset, self.ir_version, self.classes = np.dtype(dtype), opset, ir_version, classes
        self.n_features = features
        self._rng = np.random.default_rng(23)
        self.initializers: list[TensorProto] = []
        self.nodes: list[onnx.NodeProto] = []
        self.functions: list[onnx.FunctionProto] = []
        self.input_infos: list[onnx.ValueInfoProto] = []
        self.output_infos: list[onnx.ValueInfoProto] = []
        self.inputs: dict[str, tuple[np.dtype[Any], tuple[int | str, ...]]] = {}
        self.weight, self.bias = self.draw(classes, features), self.draw(classes)

    def draw(self, *shape: int) -> Array:
        return np.asarray(self._rng.standard_normal(shape)).astype(self.dtype)

    def const(self, value: Any, dtype: Any = None, name: str = "") -> str:
        """Add an initializer."""
        name = name or f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype or self.dtype), name))
        return name

    def ints(self, *values: int) -> str:
        return self.const(values, np.int64)

    def node(self, op_type: str, *inputs: str, domain: str = "", name: str = "", n_out: int = 1, **flags: Any) -> Any:
        """Append a node; returns its output, or a list of them."""
        number = len(self.nodes)
        outputs = [f"t{number}" if k == 0 else f"t{number}_{k}" for k in range(n_out)]
        node = helper.make_node(op_type, inputs, outputs, name=name or f"{op_type}_{number}", domain=domain, **flags)
        self.nodes.append(node)
        return outputs if n_out > 1 else outputs[0]

    def input(self, name: str, *shape: int | str, dtype: Any = None) -> str:
        dtype = np.dtype(dtype or self.dtype)
        self.inputs[name] = (dtype, shape)
        self.input_infos.append(helper.make_tensor_value_info(name, _element(dtype), shape))
        return name

    def output(self, tensor: str, *shape: int | str, name: str = "y", dtype: Any = None) -> None:
        """Make a tensor a graph output of that name; shape (N, C) unless told otherwise."""
        self.node("Identity", tensor)
        self.nodes[-1].output[0] = name
        self.output_infos.append(
            helper.make_tensor_value_info(name, _element(np.dtype(dtype or self.dtype)), shape or ("N", self.classes))
        )

    def raw_output(self, info: onnx.ValueInfoProto) -> None:
        """Make a tensor that exists already a graph output."""
        self.output_infos.append(info)

    # --- features

    def vector(self) -> str:
        """(N, n) features."""
        x = self.input("x", "N", self.n_features)
        return str(self.node("Relu", self.node("MatMul", x, self.const(self.draw(self.n_features, self.n_features)))))

    def tokens(self, count: int | str = TOKENS) -> str:
        """(N, T, n) features."""
        x = self.input("x", "N", count, self.n_features)
        return str(self.node("Relu", self.node("MatMul", x, self.const(self.draw(self.n_features, self.n_features)))))

    def image(self, dimensions: int = 2) -> str:
        """(N, n, side, ...) features."""
        x = self.input("x", "N", 2, *[SIDE] * dimensions)
        kernel = self.const(self.draw(self.n_features, 2, *[3] * dimensions))
        return str(self.node("Relu", self.node("Conv", x, kernel, pads=[1] * 2 * dimensions)))

    def ids(self) -> tuple[str, str]:
        """(N, T) token ids, and (N, T, n) features from an embedding."""
        ids = self.input("ids", "N", TOKENS, dtype=np.int64)
        embedded = self.node("Gather", self.const(self.draw(VOCABULARY, self.n_features)), ids)
        trunk = self.const(self.draw(self.n_features, self.n_features))
        return ids, str(self.node("Relu", self.node("MatMul", embedded, trunk)))

    # --- pieces of heads

    def gemm(self, data: str, weight: str | None = None) -> str:
        return str(self.node("Gemm", data, weight or self.const(self.weight), self.const(self.bias), transB=1))

    def product(self, data: str, weight: str | None = None) -> str:
        return str(self.node("MatMul", data, weight or self.const(self.weight.T)))

    def linear(self, data: str) -> str:
        return str(self.node("Add", self.product(data), self.const(self.bias)))

    def conv(self, data: str, dimensions: int = 2, **flags: Any) -> str:
        kernel = self.weight.reshape(*self.weight.shape, *[1] * dimensions)
        return str(self.node("Conv", data, self.const(kernel), self.const(self.bias), **flags))

    def flat(self, data: str) -> str:
        return str(self.node("Flatten", data))

    # --- the end

    def proto(self) -> onnx.ModelProto:
        domains = {node.domain for node in self.nodes} | {f.domain for f in self.functions}
        return small_model(
            self.nodes,
            self.input_infos,
            self.output_infos,
            self.initializers,
            opset=self.opset,
            domains=dict.fromkeys(sorted(domains - {""}), 1),
            ir_version=self.ir_version,
            functions=self.functions,
            producer_name="forms",
        )

    def feeds(self, count: int, rng: np.random.Generator) -> dict[str, Array]:
        """Draw N samples for every input."""
        feeds: dict[str, Array] = {}
        for name, (dtype, shape) in self.inputs.items():
            sizes = [count if size == "N" else TOKENS if isinstance(size, str) else size for size in shape]
            if dtype.kind in "iu":
                feeds[name] = rng.integers(0, VOCABULARY, sizes).astype(dtype)
            else:
                feeds[name] = np.asarray(rng.standard_normal(sizes)).astype(dtype)
        return feeds


def _element(dtype: np.dtype[Any]) -> int:
    return int(helper.np_dtype_to_tensor_dtype(dtype))


# --- the table

Fill = Callable[..., Any]
"""Fills a graph; returns the class vectors where they are not `graph.weight`."""

_CASES: list[Case] = []


def _add(
    name: str,
    route: str,
    fill: Callable[[Graph], Any],
    settings: dict[str, Any],
    *,
    reason: str = "",
    found: bool = True,
    runs: bool = True,
    choose: dict[str, str] | None = None,
) -> None:
    @cache
    def made() -> tuple[Graph, Any]:
        graph = Graph(**settings)
        truth = fill(graph)
        return graph, graph.weight if truth is None else truth

    def build(folder: Path) -> Path:
        path = folder / "model.onnx"
        path.write_bytes(made()[0].proto().SerializeToString())
        return path

    _CASES.append(
        Case(
            name=f"{route}/{name}",
            route=route,
            build=build,
            weight=(lambda: np.asarray(made()[1]).astype(np.float64)) if found else None,
            reason=reason,
            feeds=(lambda count, rng: made()[0].feeds(count, rng)) if runs else None,  # noqa: PLW0108 - not built yet
            choose=choose or {},
        )
    )


def form(name: str, *args: Any, route: str = "form", choose: dict[str, str] | None = None, **settings: Any) -> Any:
    """Register a function that fills a graph with a head; several times with different arguments."""

    def register(fill: Fill) -> Fill:
        _add(name, route, lambda graph: fill(graph, *args), settings, choose=choose)
        return fill

    return register


def refused(name: str, reason: str, *args: Any, route: str = "refused", runs: bool = True, **settings: Any) -> Any:
    """Register a function that fills a graph without a head that can be replaced."""

    def register(fill: Fill) -> Fill:
        _add(name, route, lambda graph: fill(graph, *args), settings, found=False, reason=reason, runs=runs)
        return fill

    return register


# --- Einsum


@form("einsum nd,cd->nc", "nd,cd->nc", False)
@form("einsum nd,dc->nc", "nd,dc->nc", True)
@form("einsum implicit output", "ij,jk", True)
@form("einsum ellipsis", "...d,dc->...c", True)
def _einsum(g: Graph, equation: str, turned: bool) -> None:
    weight = g.const(g.weight.T if turned else g.weight)
    g.output(g.node("Add", g.node("Einsum", g.vector(), weight, equation=equation), g.const(g.bias)))


@form("einsum weight first")
def _einsum_weight_first(g: Graph) -> None:
    g.output(g.node("Einsum", g.const(g.weight), g.vector(), equation="cd,nd->nc"))


@form("einsum class axis first, then Transpose")
def _einsum_turned(g: Graph) -> None:
    scores = g.node("Einsum", g.const(g.weight), g.vector(), equation="cd,nd->cn")
    g.output(g.node("Transpose", scores, perm=[1, 0]))


@form("einsum ntd,dc->ntc then token 0", "ntd,dc->ntc")
@form("einsum ellipsis then token 0", "...d,dc->...c")
def _einsum_tokens(g: Graph, equation: str) -> None:
    scores = g.node("Einsum", g.tokens(), g.const(g.weight.T), equation=equation)
    g.output(g.node("Gather", scores, g.const(0, np.int64), axis=1))


@refused("einsum two axes of features", "not a product of features and a weight")
def _einsum_two_axes(g: Graph) -> Array:
    """Heads x size of head as two axes of the weight, as JAX exports do: its rows are the class vectors flattened."""
    lifted = g.node("Reshape", g.vector(), g.ints(-1, 2, g.n_features // 2))
    weight = g.const(g.weight.T.reshape(2, g.n_features // 2, g.classes))
    g.output(g.node("Einsum", lifted, weight, equation="nhd,hdc->nc"))


# --- Gemm as JAX writes it


@form("Gemm with beta zero, Add behind it")
@form("Gemm with beta zero, without bias", "none")
@form("Gemm with beta zero, NaN where the bias would be", "nan")
def _plain_product(g: Graph, how: str = "add") -> None:
    """As JAX writes a product: a bias of zeros with a beta of zero, which is not read."""
    unread = g.const(np.full((), np.nan if how == "nan" else 0.0))
    scores = g.node("Gemm", g.vector(), g.const(g.weight.T), unread, beta=0.0)
    g.output(scores if how == "none" else g.node("Add", scores, g.const(g.bias[None])))


# --- the weight as left operand


@form("weight first, MatMul", "matmul")
@form("weight first, MatMul, features transposed by their trunk", "matmul", "trunk")
@form("weight first, MatMul, bias in front of the Transpose", "matmul", "bias")
@form("weight first, MatMul, scaled in front of the Transpose", "matmul", "scale")
@form("weight first, Gemm", "gemm")
@form("weight first, Gemm transA", "gemm", "transA")
@form("weight first, Gemm transB", "gemm", "transB")
@form("weight first, Gemm with a bias", "gemm", "bias")
@form("weight first, softmax", "matmul", "softmax")
def _weight_first(g: Graph, kind: str, how: str = "") -> Array:
    z = g.vector()
    weight = g.weight.T if how == "transA" else g.weight
    truth = g.weight
    features = z if how == "transB" else g.node("Transpose", z, perm=[1, 0])
    operands = [g.const(np.ascontiguousarray(weight)), features]
    if kind == "gemm":
        if how == "bias":
            operands.append(g.const(g.bias[:, None]))
        flags = {how: 1} if how in ("transA", "transB") else {}
        scores = g.node("Gemm", *operands, alpha=0.5, beta=2.0, **flags)
    else:
        scores = g.node("MatMul", *operands)
    if kind == "matmul" and how == "bias":
        scores = g.node("Add", scores, g.const(g.bias[:, None]))
    if how == "scale":
        factors = np.linspace(0.5, 2, g.classes, dtype=np.float32)[:, None]
        scores = g.node("Mul", scores, g.const(factors))
        truth = g.weight * factors
    logits = g.node("Transpose", scores, perm=[1, 0])
    if how == "":
        logits = g.node("Add", logits, g.const(g.bias))
    g.output(g.node("Softmax", logits) if how == "softmax" else logits)
    return truth


@refused("weight first, result not transposed", "no Transpose", "plain")
@refused("weight first, one number a sample added", "one number a sample", "vector", runs=False)
def _weight_first_refused(g: Graph, how: str) -> None:
    scores = g.node("MatMul", g.const(g.weight), g.node("Transpose", g.vector(), perm=[1, 0]))
    if how == "plain":
        g.output(scores, g.classes, "N")
    else:
        g.output(g.node("Transpose", g.node("Add", scores, g.const(g.bias)), perm=[1, 0]))


# --- fused operators of ONNX Runtime


@form("FusedGemm Relu", {"transB": 1, "activation": "Relu"})
@form("FusedGemm alpha beta", {"transB": 1, "alpha": 0.5, "beta": 2.0, "activation": "Relu"})
@form("FusedGemm LeakyRelu", {"transB": 1, "activation": "LeakyRelu", "activation_alpha": 0.1})
def _fused_gemm(g: Graph, flags: dict[str, Any]) -> None:
    inputs = g.vector(), g.const(g.weight), g.const(g.bias)
    g.output(g.node("FusedGemm", *inputs, domain=MICROSOFT, **flags))  # ONNX Runtime refuses one without an activation


@form("FusedMatMul", 0, 0, 1.0)
@form("FusedMatMul transB", 0, 1, 1.0)
@form("FusedMatMul transA transB alpha", 1, 1, 2.0)
@form("FusedMatMul negative alpha", 0, 1, -3.0)
def _fused_matmul(g: Graph, trans_a: int, trans_b: int, alpha: float) -> Array:
    data = g.vector()
    if trans_a:
        data = g.node("Transpose", data, perm=[1, 0])
    weight = g.const(g.weight if trans_b else g.weight.T)
    flags = {"transA": trans_a, "transB": trans_b, "alpha": alpha}
    product = g.node("FusedMatMul", data, weight, domain=MICROSOFT, **flags)
    g.output(g.node("Softmax", g.node("Add", product, g.const(g.bias)), axis=-1))
    return g.weight * np.sign(alpha)


@form("FusedConv Relu, then pooling")
def _fused_conv(g: Graph) -> None:
    kernel = g.const(g.weight[:, :, None, None])
    flags = {"activation": "Relu", "kernel_shape": [1, 1]}
    scores = g.node("FusedConv", g.image(), kernel, g.const(g.bias), domain=MICROSOFT, **flags)
    g.output(g.flat(g.node("GlobalAveragePool", scores)))


# --- convolutions


def _without_space(g: Graph, data: str, how: str, dimensions: int = 2) -> str:
    """(N, C, 1, ...) -> (N, C)."""
    if how == "Squeeze":
        return str(g.node("Squeeze", data, g.ints(*range(2, 2 + dimensions))))
    if how == "Reshape":
        return str(g.node("Reshape", data, g.ints(0, -1)))
    if how == "Gathers":
        for _ in range(dimensions):
            data = g.node("Gather", data, g.const(0, np.int64), axis=2)
        return data
    return g.flat(data)


@form("pooling, Conv 1x1, Flatten", "Flatten")
@form("pooling, Conv 1x1, Squeeze", "Squeeze")
@form("pooling, Conv 1x1, Reshape", "Reshape")
@form("pooling, Conv 1x1, Gather twice", "Gathers")
def _conv_after_pooling(g: Graph, how: str) -> None:
    g.output(_without_space(g, g.conv(g.node("GlobalAveragePool", g.image())), how))


@form("pooling, Conv 1x1 without a bias, Add")
def _conv_then_add(g: Graph) -> None:
    pooled = g.node("ReduceMean", g.image(), axes=[2, 3], keepdims=1)
    scores = g.node("Conv", pooled, g.const(g.weight[:, :, None, None]))
    g.output(g.flat(g.node("Add", scores, g.const(g.bias[:, None, None]))))


@form("pooling, Conv 1x1, output (N, C, 1, 1)")
def _conv_output(g: Graph) -> None:
    g.output(g.conv(g.node("GlobalAveragePool", g.image())), "N", CLASSES, 1, 1)


@form("Conv 1x1, GlobalAveragePool, Flatten", "GlobalAveragePool", False, False)
@form("Conv 1x1, ReduceMean", "ReduceMean", False, False)
@form("Conv 1x1, Relu, GlobalAveragePool, Flatten, Softmax", "GlobalAveragePool", True, True)
@form("Conv 1x1, Relu, AveragePool, Flatten, Softmax", "AveragePool", True, True)
def _conv_then_pooling(g: Graph, pooling: str, relu: bool, softmax: bool) -> None:
    scores = g.conv(g.node("Dropout", g.image()))
    if relu:
        scores = g.node("Relu", scores)
    if pooling == "ReduceMean":
        scores = g.node("ReduceMean", scores, axes=[2, 3], keepdims=0)
    else:
        scores = g.flat(g.node(pooling, scores, **({"kernel_shape": [SIDE] * 2} if pooling == "AveragePool" else {})))
    g.output(g.node("Softmax", scores) if softmax else scores)


@form("Conv 1x1, reshaped to positions, ReduceMean")
def _conv_positions(g: Graph) -> None:
    scores = g.node("Reshape", g.conv(g.image()), g.ints(0, CLASSES, -1))
    g.output(g.node("ReduceMean", scores, axes=[-1], keepdims=0))


@form("Conv 1x1, factors of shape (C, 1, 1), GlobalAveragePool", True)
@form("Conv 1x1, factor of one number, GlobalAveragePool", False)
def _conv_scaled(g: Graph, per_class: bool) -> Array:
    factors = np.linspace(0.5, 2.0, CLASSES)[:, None] if per_class else np.full((1, 1), 0.7)
    scores = g.node("Mul", g.conv(g.image()), g.const(factors[:, :, None]))
    g.output(g.flat(g.node("GlobalAveragePool", scores)))
    return g.weight * factors


@form("1-D Conv, GlobalAveragePool", 1, False)
@form("3-D Conv, GlobalAveragePool", 3, False)
@form("pooling, 1-D Conv, Squeeze", 1, True)
@form("pooling, 3-D Conv, Flatten", 3, True)
def _conv_of_other_dimensions(g: Graph, dimensions: int, pool_first: bool) -> None:
    data = g.image(dimensions)
    if pool_first:
        scores = g.conv(g.node("GlobalAveragePool", data), dimensions)
    else:
        scores = g.node("GlobalAveragePool", g.conv(data, dimensions))
    g.output(_without_space(g, scores, "Squeeze" if dimensions == 1 else "Flatten", dimensions))


@form("Conv over all of its input", "flat")
@form("Conv over all of its input, Squeeze, Softmax", "squeeze")
def _conv_over_all(g: Graph, how: str) -> Array:
    kernel = g.draw(g.classes, FEATURES, SIDE, SIDE)
    scores = g.node("Conv", g.image(), g.const(kernel), g.const(g.bias))
    if how == "flat":
        g.output(g.flat(scores))
    else:
        g.output(g.node("Softmax", g.node("Squeeze", scores, g.ints(2, 3))))
    return kernel.reshape(g.classes, -1)


@refused("Conv over an image of any size, pooling", "at several positions come together")
def _conv_of_any_size(g: Graph) -> None:
    """A kernel that may be as large as the image, or smaller."""
    scores = g.node("Conv", g.input("x", "N", FEATURES, "H", "W"), g.const(g.draw(CLASSES, FEATURES, 3, 3)))
    g.output(g.flat(g.node("GlobalAveragePool", scores)))


# --- an axis of tokens


@form("tokens, MatMul, Gather token 0", "gather")
@form("tokens, MatMul, Gather token -1", "gather last")
@form("tokens, MatMul, Slice token 0, Squeeze", "slice")
@form("tokens, MatMul, Split, token 0, Squeeze", "split")
@form("tokens, MatMul, ReduceMean", "mean")
@form("tokens, MatMul, ReduceSum", "sum")
@form("tokens, MatMul, Transpose, GlobalAveragePool, Flatten", "transpose pool")
@refused("tokens, MatMul, Softmax, Gather token 0", "the result of Softmax", "softmax first")
def _tokens_after(g: Graph, how: str) -> None:
    scores, zero = g.linear(g.tokens()), g.ints(0)
    if how == "gather":
        scores = g.node("Gather", scores, g.const(0, np.int64), axis=1)
    elif how == "gather last":
        scores = g.node("Gather", scores, g.const(-1, np.int64), axis=1)
    elif how == "slice":
        scores = g.node("Squeeze", g.node("Slice", scores, zero, g.ints(1), g.ints(1), g.ints(1)), g.ints(1))
    elif how == "split":
        first = g.node("Split", scores, g.ints(1, TOKENS - 1), axis=1, n_out=2)[0]
        scores = g.node("Squeeze", first, g.ints(1))
    elif how.startswith("mean"):
        scores = g.node("ReduceMean", scores, axes=[1], keepdims=0)
        scores = g.node("Softmax", scores) if "softmax" in how else scores
    elif how == "sum":
        scores = g.node("ReduceSum", scores, g.ints(1), keepdims=0)
    elif how == "transpose pool":
        scores = g.flat(g.node("GlobalAveragePool", g.node("Transpose", scores, perm=[0, 2, 1])))
    else:
        scores = g.node("Gather", g.node("Softmax", scores, axis=-1), g.const(0, np.int64), axis=1)
    g.output(scores)


@form("tokens selected before the layer", "gather")
@form("tokens averaged before the layer", "mean")
@form("one token, layer, Gather", "one gather")
@form("one token, layer, Reshape", "one reshape")
@form("tokens flattened to rows, Gemm, Reshape, Gather", "rows")
def _tokens_before(g: Graph, how: str) -> None:
    data = g.tokens(1 if how.startswith("one") else TOKENS)
    if how == "gather":
        g.output(g.gemm(g.node("Gather", data, g.const(0, np.int64), axis=1)))
    elif how == "mean":
        g.output(g.gemm(g.node("ReduceMean", data, axes=[1], keepdims=0)))
    elif how == "one gather":
        g.output(g.node("Gather", g.linear(data), g.const(0, np.int64), axis=1))
    elif how == "one reshape":
        g.output(g.node("Reshape", g.linear(data), g.ints(-1, CLASSES)))
    else:
        rows = g.gemm(g.node("Reshape", data, g.ints(-1, FEATURES)))
        scores = g.node("Reshape", rows, g.ints(-1, TOKENS, CLASSES))
        g.output(g.node("Gather", scores, g.const(0, np.int64), axis=1))


def _last_token(g: Graph, ids: str) -> tuple[str, str]:
    """0 .. N - 1, and the position in front of the first pad token (id 0) of each row, as GPT-2 computes it."""
    padded = g.node("Cast", g.node("Equal", ids, g.const(0, np.int64)), to=TensorProto.INT32)
    position = g.node("Sub", g.node("ArgMax", padded, axis=1, keepdims=0), g.const(1, np.int64))
    position = g.node("Mod", position, g.const(TOKENS, np.int64))
    count = g.node("Gather", g.node("Shape", ids), g.const(0, np.int64), axis=0)
    return g.node("Range", g.const(0, np.int64), count, g.const(1, np.int64)), position


@form("last token, GatherND", "nd", False)
@form("last token, rows and Gather", "rows", False)
@form("last token, GatherElements", "elements", False)
@form("last token, selected before the layer", "nd", True)
def _last_token_of(g: Graph, how: str, before: bool) -> None:
    ids, data = g.ids()
    scores = data if before else g.product(data)
    rows, position = _last_token(g, ids)
    width = FEATURES if before else CLASSES
    if how == "nd":
        pair = [g.node("Unsqueeze", index, g.ints(-1)) for index in (rows, position)]
        scores = g.node("GatherND", scores, g.node("Concat", *pair, axis=-1))
    elif how == "rows":
        flat = g.node("Reshape", scores, g.ints(-1, width))
        scores = g.node("Gather", flat, g.node("Add", g.node("Mul", rows, g.const(TOKENS, np.int64)), position), axis=0)
    else:
        index = g.node("Unsqueeze", position, g.ints(1, 2))
        index = g.node("Expand", index, g.ints(1, 1, width))
        scores = g.node("Squeeze", g.node("GatherElements", scores, index, axis=1), g.ints(1))
    g.output(g.product(scores) if before else scores)


# --- a function behind the layer


@form("then Relu", ["Relu"])
@form("then LeakyRelu", [("LeakyRelu", {"alpha": 0.2})])
@form("then Tanh", ["Tanh"])
@form("then Softsign", ["Softsign"])
@form("then HardSigmoid, Softmax", ["HardSigmoid", "Softmax"])
@form("then Relu, Softmax", ["Relu", "Softmax"])
@form("then Tanh, LogSoftmax", ["Tanh", "LogSoftmax"])
def _then(g: Graph, ops: list[Any]) -> None:
    scores = g.gemm(g.vector())
    for op in ops:
        op_type, flags = op if isinstance(op, tuple) else (op, {})
        scores = g.node(op_type, scores, **flags)
    g.output(scores)


@form("then Clip")
def _then_clip(g: Graph) -> None:
    g.output(g.node("Clip", g.gemm(g.vector()), g.const(-3.0), g.const(3.0)))


@form("then Softmax, Clip", 1e-7)
@form("then Softmax, Clip, log", 1e-7, "Log")
def _then_clip_probabilities(g: Graph, least: float, *more: str) -> None:
    p = g.node("Clip", g.node("Softmax", g.gemm(g.vector())), g.const(least), g.const(1 - least))
    g.output(g.node(*more, p) if more else p)


@refused("then Softmax, Clip to a hundredth", "changes them by up to 0.01", 0.01)
def _then_clip_far(g: Graph, least: float) -> None:
    _then_clip_probabilities(g, least)


@form("then Softmax, plus a millionth, log", "Add")
@form("then Softmax, a millionth at least, log", "Max")
def _then_slack(g: Graph, op_type: str) -> None:
    p = g.node("Softmax", g.gemm(g.vector()))
    g.output(g.node("Log", g.node(op_type, p, g.const(1e-6))))


@refused("then Softmax, plus half a thousandth, log", "changes them by up to 0.0025 in the log", 5e-4)
def _then_far_slack(g: Graph, added: float) -> None:
    """Each of five numbers moves little; what they add up to does not."""
    g.output(g.node("Log", g.node("Add", g.node("Softmax", g.gemm(g.vector())), g.const(added))))


@form("then a soft cap")
def _then_soft_cap(g: Graph) -> None:
    cap = g.const(30.0)
    g.output(g.node("Mul", g.node("Tanh", g.node("Div", g.gemm(g.vector()), cap)), cap))


@form("then Softmax, Log")
def _then_log(g: Graph) -> None:
    g.output(g.node("Log", g.node("Softmax", g.gemm(g.vector()))))


@form("then Exp, divided by their sum")
def _then_exp(g: Graph) -> None:
    """A softmax written out."""
    scores = g.gemm(g.vector())
    top = g.node("ReduceMax", scores, axes=[1], keepdims=1)
    weights = g.node("Exp", g.node("Sub", scores, top))
    g.output(g.node("Div", weights, g.node("ReduceSum", weights, g.ints(1), keepdims=1)))


def _top(g: Graph, scores: str, how: str) -> str:
    """Return the largest score of each sample, in the ways of several exporters."""
    if how == "plain":
        return str(g.node("ReduceMax", scores, axes=[1], keepdims=1))
    top = g.node("ReduceMax", scores, axes=[1], keepdims=0)
    if how == "unsqueeze":
        return str(g.node("Unsqueeze", top, g.ints(1)))
    # JAX by way of TensorFlow: kept above -inf, a gradient stopped, brought to the shape of the scores
    top = g.node("Identity", g.node("Max", g.const(-np.inf), top))
    return str(g.node("Expand", g.node("Reshape", top, g.ints(-1, 1)), g.node("Shape", scores)))


def _shifted(g: Graph, scores: str, how: str) -> str:
    return scores if how == "none" else str(g.node("Sub", scores, _top(g, scores, how)))


@form("softmax written out, maximum unsqueezed", "unsqueeze")
@form("softmax written out, as JAX by TensorFlow", "expand")
@form("softmax written out, exponential twice", "expand", "twice")
@form("softmax written out, times the reciprocal", "plain", "reciprocal")
@form("softmax written out, Normalizer", "plain", "normalizer")
@form("softmax written out, log of it", "expand", "log")
@form("softmax written out, exp of the log", "expand", "exp")
def _softmax_written_out(g: Graph, top: str, how: str = "") -> None:
    scores = g.gemm(g.vector())
    weights = g.node("Exp", _shifted(g, scores, top))
    again = g.node("Exp", _shifted(g, scores, top)) if how == "twice" else weights
    total = g.node("ReduceSum", again, g.ints(1), keepdims=1)
    if top == "expand":
        total = g.node("Expand", total, g.node("Shape", weights))
    if how == "reciprocal":
        g.output(g.node("Mul", weights, g.node("Reciprocal", total)))
    elif how == "normalizer":
        g.output(g.node("Normalizer", weights, domain=ML, norm="L1"))
    elif how == "exp":
        g.output(g.node("Exp", g.node("Sub", _shifted(g, scores, top), g.node("Log", total))))
    else:
        p = g.node("Div", weights, total)
        g.output(g.node("Log", p) if how == "log" else p)


@form("log-softmax written out", "none")
@form("log-softmax written out, maximum", "plain")
@form("log-softmax written out, as JAX by TensorFlow", "expand")
@form("log-softmax written out, maximum added again", "unsqueeze", "lifted")
@form("log-softmax written out, finite maximum", "plain", "finite")
@form("log-softmax written out, ReduceLogSumExp", "none", "lse")
@form("log-softmax written out, ReduceLogSumExp of what is shifted", "plain", "lse")
@form("log-softmax written out, ReduceLogSum", "plain", "log sum")
def _log_softmax_written_out(g: Graph, top: str, how: str = "") -> None:
    scores = g.gemm(g.vector())
    shifted = _shifted(g, scores, top)
    if how == "finite":  # as in a logsumexp that minds infinite scores
        largest = _top(g, scores, top)
        finite = g.node("Where", g.node("IsInf", largest), g.const([[0.0]]), largest)
        shifted = g.node("Sub", scores, finite)
    if how == "lse":
        log = g.node("ReduceLogSumExp", shifted, axes=[1], keepdims=1)
    elif how == "log sum":
        log = g.node("ReduceLogSum", g.node("Exp", shifted), axes=[1], keepdims=1)
    else:
        log = g.node("Log", g.node("ReduceSum", g.node("Exp", shifted), g.ints(1), keepdims=1))
    if how == "lifted":
        g.output(g.node("Sub", scores, g.node("Add", log, _top(g, scores, top))))
    else:
        g.output(g.node("Sub", shifted, log))


@form("then LogSoftmax, Exp")
def _exp_of_log_softmax(g: Graph) -> None:
    g.output(g.node("Exp", g.node("LogSoftmax", g.gemm(g.vector()))))


@form("sigmoid written out, Neg", "neg", classes=1)
@form("sigmoid written out, 0 - s", "minus", classes=1)
@form("sigmoid written out, Reciprocal", "reciprocal", classes=1)
@form("sigmoid written out, exp over 1 + exp", "exp", classes=1)
@form("sigmoid written out, tanh", "tanh", classes=1)
@form("sigmoid written out, tanh of a quotient", "quotient", classes=1)
@form("sigmoid written out, clipped", "clip", classes=1)
def _sigmoid_written_out(g: Graph, how: str) -> Array:
    s = g.gemm(g.vector())
    one = g.const(1.0)
    half = g.const(0.5)
    if how == "tanh":
        p = g.node("Add", g.node("Mul", g.node("Tanh", g.node("Mul", s, half)), half), half)
    elif how == "quotient":
        p = g.node("Div", g.node("Add", one, g.node("Tanh", g.node("Div", s, g.const(2.0)))), g.const(2.0))
    elif how == "exp":
        p = g.node("Div", g.node("Exp", s), g.node("Add", one, g.node("Exp", s)))
    else:
        minus = g.node("Sub", g.const(0.0), s) if how == "minus" else g.node("Neg", s)
        below = g.node("Add", one, g.node("Exp", minus))
        p = g.node("Reciprocal", below) if how == "reciprocal" else g.node("Div", one, below)
    g.output(g.node("Clip", p, g.const(1e-6), g.const(1 - 1e-6)) if how == "clip" else p)
    return class_vectors(g.weight)


@refused("exponentials of other scores over the sum", "", "other")
@refused("exponentials over another maximum's sum", "", "maximum")
@refused("half a sigmoid", "", "half")
@refused("exponential of scores", "Exp", "exp")
def _almost_written_out(g: Graph, how: str) -> None:
    z = g.vector()
    scores = g.gemm(z)
    if how == "exp":
        g.output(g.node("Exp", scores))
        return
    if how == "half":
        g.output(g.node("Div", g.const(0.5), g.node("Add", g.const(1.0), g.node("Exp", g.node("Neg", scores)))))
        return
    shifted = _shifted(g, scores, "plain")
    other = g.node("Mul", scores, g.const(2.0)) if how == "other" else scores
    total = g.node("ReduceSum", g.node("Exp", other), g.ints(1), keepdims=1)
    g.output(g.node("Div", g.node("Exp", shifted), total))


# --- constants behind nodes

_WEIGHTS: dict[str, Callable[[Graph], tuple[str, Array]]] = {}
"""Ways to make a (n, C) constant with nodes: the tensor that a MatMul reads, and its class vectors."""


def _weight(name: str) -> Any:
    def register(make: Callable[[Graph], tuple[str, Array]]) -> Any:
        _WEIGHTS[name] = make
        return make

    return register


def _turned(g: Graph, tensor: str) -> str:
    return str(g.node("Transpose", tensor, perm=[1, 0]))


def _lengths(weight: Array) -> Array:
    """(C, 1) lengths of the class vectors."""
    return np.asarray(np.linalg.norm(weight.astype(np.float64), axis=1, keepdims=True))


@_weight("dequantize transpose")
def _dequantize_transpose(g: Graph) -> tuple[str, Array]:
    wide, values = _dequantized(g, g.weight, np.int8, axis=0)
    return _turned(g, wide), values


@_weight("dequantize reshape cast")
def _dequantize_reshape(g: Graph) -> tuple[str, Array]:
    wide, values = _dequantized(g, g.weight.T.reshape(-1), np.uint8)
    read = g.node("Cast", g.node("Reshape", wide, g.ints(g.n_features, -1)), to=TensorProto.FLOAT)
    return read, values.reshape(g.n_features, -1).T


@_weight("normalised")
def _normalised(g: Graph) -> tuple[str, Array]:
    stored = g.const(g.weight)
    unit = g.node("Div", stored, g.node("ReduceL2", stored, axes=[1], keepdims=1))
    return _turned(g, unit), g.weight / _lengths(g.weight)


@_weight("LpNormalization")
def _lp_normalised(g: Graph) -> tuple[str, Array]:
    unit = g.node("LpNormalization", g.const(g.weight), axis=1, p=2)
    return _turned(g, unit), g.weight / _lengths(g.weight)


@_weight("torch normalize")
def _torch_normalised(g: Graph) -> tuple[str, Array]:
    stored = g.const(g.weight)
    length = g.node("Clip", g.node("ReduceL2", stored, axes=[1], keepdims=1), g.const(1e-12))
    unit = g.node("Div", stored, g.node("Expand", length, g.node("Shape", stored)))
    return _turned(g, unit), g.weight / _lengths(g.weight)


@_weight("one vector and its negative")
def _mirrored(g: Graph) -> tuple[str, Array]:
    one = g.const(g.weight[:1].T)
    return g.node("Concat", g.node("Neg", one), one, axis=1), np.concatenate([-g.weight[:1], g.weight[:1]])


def _weight_from_nodes(g: Graph, how: str) -> Array:
    data = g.vector()
    read, truth = _WEIGHTS[how](g)
    g.output(g.node("Add", g.product(data, read), g.const(g.bias)))
    return truth


for _how in _WEIGHTS:
    form(f"weight, {_how}", _how, classes=2 if "one vector" in _how else CLASSES)(_weight_from_nodes)


@form("tied to an embedding", False)
@form("tied to an embedding, transposed", True)
def _tied(g: Graph, transpose: bool) -> Array:
    embedding = g.const(g.draw(VOCABULARY, FEATURES), name="embedding")
    ids = g.input("ids", "N", TOKENS, dtype=np.int64)
    data = g.node("ReduceMean", g.node("Gather", embedding, ids), axes=[1], keepdims=0)
    data = g.node("Tanh", g.node("MatMul", data, g.const(g.draw(FEATURES, FEATURES))))
    if transpose:
        scores = g.node("MatMul", data, g.node("Transpose", embedding, perm=[1, 0]))
    else:
        scores = g.node("Gemm", data, embedding, transB=1)
    g.output(scores, "N", VOCABULARY)
    return numpy_helper.to_array(next(t for t in g.initializers if t.name == "embedding"))


@form("tied to the layer before it", features=CLASSES)
def _tied_layer(g: Graph) -> None:
    """A square weight that two layers read: only the last one is the head."""
    x, weight = g.input("x", "N", CLASSES), g.const(g.weight)
    g.output(g.gemm(g.node("Relu", g.node("MatMul", x, weight)), weight))


@form("all initializers are graph inputs", opset=8, ir_version=3)
def _also_inputs(g: Graph) -> None:
    """Models from before IR version 4 list their initializers as graph inputs."""
    g.output(g.node("Softmax", g.gemm(g.vector()), axis=1))
    g.input_infos += [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in g.initializers]


# --- cosine classifiers


@form("cosine, features and weight normalised", "both")
@form("cosine, LpNormalization", "lp")
@form("cosine, torch", "torch")
@form("cosine, divided by the length of the features behind the layer", "after")
@form("cosine, scaled by a learned constant", "learned")
def _cosine(g: Graph, how: str) -> Array:
    z = g.vector()
    length = g.node("ReduceL2", z, axes=[1], keepdims=1)
    if how == "lp":
        data, read = g.node("LpNormalization", z, axis=1, p=2), _WEIGHTS["LpNormalization"](g)[0]
    elif how == "torch":
        wide = g.node("Expand", g.node("Clip", length, g.const(1e-12)), g.node("Shape", z))
        data, read = g.node("Div", z, wide), _WEIGHTS["torch normalize"](g)[0]
    else:
        data = z if how == "after" else g.node("Div", z, length)
        read = _WEIGHTS["normalised"](g)[0]
    scores = g.node("MatMul", data, read)
    if how == "after":
        scores = g.node("Div", scores, length)
    scale = g.node("Exp", g.const(2.5)) if how == "learned" else g.const(16.0)
    g.output(g.node("Softmax", g.node("Mul", scores, scale)))
    return np.asarray(g.weight / _lengths(g.weight))


# --- biases and temperatures

Tail = Callable[[Graph, str], str]


def _constant(g: Graph) -> str:
    return g.const(g.draw(g.classes))


_TAILS: dict[str, Tail] = {
    "bias, Sum of three": lambda g, s: g.node("Sum", _constant(g), s, _constant(g)),
    "bias, behind a Reshape": lambda g, s: g.node(
        "Add", g.node("Reshape", g.node("Unsqueeze", s, g.ints(1)), g.ints(-1, g.classes)), _constant(g)
    ),
    "temperature, computed": lambda g, s: g.node(
        "Div", g.node("Add", s, _constant(g)), g.node("Sqrt", g.const(float(FEATURES)))
    ),
}
_REVERSED: dict[str, Tail] = {
    "constant minus logits": lambda g, s: g.node("Sub", _constant(g), s),
    "Neg behind the bias": lambda g, s: g.node("Neg", g.node("Add", s, _constant(g))),
}


def _tail(g: Graph, tail: Tail, sign: int) -> Array:
    g.output(g.node("Softmax", tail(g, g.product(g.vector())), axis=-1))
    return sign * g.weight


for _sign, _tails in ((1, _TAILS), (-1, _REVERSED)):
    for _name, _each in _tails.items():
        form(_name, _each, _sign)(_tail)


# --- two classes


@form("binary, one logit, Squeeze, Sigmoid", "squeeze", classes=1)
@form("binary, one logit, Sigmoid, Squeeze", "squeeze last", classes=1)
@form("binary, Gemm, Sigmoid", "plain", classes=1)
@form("binary, temperature, Sigmoid", "temperature", classes=1)
@form("binary, Sigmoid, Concat of 1 - p and p", "concat", classes=1)
@form("binary, Conv 1x1, Flatten, Sigmoid", "conv", classes=1)
@form("binary, Conv 1x1, pooling, Sigmoid", "conv pool", classes=1)
@form("binary, (n,) weight, Sigmoid", "vector", classes=1)
def _binary(g: Graph, how: str) -> Array:
    if how == "conv":
        scores = g.flat(g.conv(g.node("GlobalAveragePool", g.image())))
    elif how == "conv pool":
        scores = g.flat(g.node("GlobalAveragePool", g.conv(g.image())))
    elif how == "vector":
        scores = g.node("Add", g.node("MatMul", g.vector(), g.const(g.weight[0])), g.const(g.bias))
    else:
        scores = g.gemm(g.vector())
    if how == "squeeze":
        scores = g.node("Squeeze", scores, g.ints(1))
    if how == "temperature":
        scores = g.node("Div", scores, g.const(1.5))
    p = g.node("Sigmoid", scores)
    if how == "squeeze last":
        p = g.node("Squeeze", p, g.ints(1))
    if how == "concat":
        p = g.node("Concat", g.node("Sub", g.const(1.0), p), p, axis=1)
        g.output(p, "N", 2)
    elif how in ("squeeze", "squeeze last", "vector"):
        g.output(p, "N")
    else:
        g.output(p)
    return class_vectors(g.weight)


# --- ai.onnx.ml


def _ml_outputs(g: Graph, label: str, scores: str, *, strings: bool, zipmap: bool, width: int) -> None:
    """Outputs as skl2onnx has them: the label, and the scores, in maps or not."""
    kind = TensorProto.STRING if strings else TensorProto.INT64
    g.raw_output(helper.make_tensor_value_info(label, kind, ["N"]))
    if not zipmap:
        g.output(scores, "N", width, name="probabilities")
        return
    labels = {"classlabels_strings": _names(width)} if strings else {"classlabels_int64s": list(range(width))}
    maps = g.node("ZipMap", scores, domain=ML, **labels)
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    sequence = helper.make_sequence_type_proto(helper.make_map_type_proto(kind, value))
    g.raw_output(helper.make_value_info(maps, sequence))


def _names(count: int) -> list[str]:
    return [f"class {k}" for k in range(count)]


def _classifier(g: Graph, data: str, post: str, strings: bool, weight: Array, bias: Array, width: int) -> list[str]:
    labels = {"classlabels_strings": _names(width)} if strings else {"classlabels_ints": list(range(width))}
    flags = {"coefficients": weight.reshape(-1).tolist(), "intercepts": bias.tolist(), "post_transform": post}
    result: list[str] = g.node("LinearClassifier", data, domain=ML, n_out=2, multi_class=1, **flags, **labels)
    return result


@form("LinearClassifier, NONE", "NONE", False, False, "", route="ml")
@form("LinearClassifier, SOFTMAX", "SOFTMAX", False, False, "", route="ml")
@form("LinearClassifier, SOFTMAX, strings", "SOFTMAX", True, False, "", route="ml")
@form("LinearClassifier, SOFTMAX, ZipMap", "SOFTMAX", False, True, "", route="ml")
@form("LinearClassifier, LOGISTIC, Normalizer L1", "LOGISTIC", False, False, "", route="ml")
@form("LinearClassifier, LOGISTIC, Normalizer L1, ZipMap", "LOGISTIC", True, True, "", route="ml")
@form("Scaler, LinearClassifier", "SOFTMAX", False, False, "Scaler", route="ml")
@form("Normalizer, LinearClassifier", "SOFTMAX", False, False, "Normalizer", route="ml")
@form("Imputer, LinearClassifier", "SOFTMAX", False, True, "Imputer", route="ml")
@form("LinearClassifier, SOFTMAX, two classes", "SOFTMAX", False, False, "", route="ml", classes=2)
@form("LinearClassifier, double input", "SOFTMAX", False, False, "", "float64", route="ml")
def _linear_classifier(g: Graph, post: str, strings: bool, zipmap: bool, before: str, kind: str = "float32") -> None:
    data = g.input("x", "N", FEATURES, dtype=kind)
    if before == "Scaler":
        scale, offset = np.linspace(0.5, 2, FEATURES).tolist(), np.linspace(-1, 1, FEATURES).tolist()
        data = g.node("Scaler", data, domain=ML, scale=scale, offset=offset)
    elif before == "Normalizer":
        data = g.node("Normalizer", data, domain=ML, norm="L2")
    elif before == "Imputer":
        data = g.node("Imputer", data, domain=ML, imputed_value_floats=[0.0], replaced_value_float=float("nan"))
    label, scores = _classifier(g, data, post, strings, g.weight, g.bias, g.classes)
    if post == "LOGISTIC":
        scores = g.node("Normalizer", scores, domain=ML, norm="L1")
    _ml_outputs(g, label, scores, strings=strings, zipmap=zipmap, width=g.classes)


@form("LinearClassifier, binary, LOGISTIC", False, False, route="ml", classes=1)
@form("LinearClassifier, binary, LOGISTIC, ZipMap", False, True, route="ml", classes=1)
@form("LinearClassifier, binary, LOGISTIC, Normalizer, strings, ZipMap", True, True, route="ml", classes=1)
def _binary_classifier(g: Graph, strings: bool, zipmap: bool) -> Array:
    """Mirrored coefficients, as skl2onnx writes them."""
    weight, bias = np.concatenate([-g.weight, g.weight]), np.concatenate([-g.bias, g.bias])
    label, scores = _classifier(g, g.input("x", "N", FEATURES), "LOGISTIC", strings, weight, bias, 2)
    if strings:
        scores = g.node("Normalizer", scores, domain=ML, norm="L1")
    _ml_outputs(g, label, scores, strings=strings, zipmap=zipmap, width=2)
    return class_vectors(g.weight)


@form("Gemm, Softmax, ArrayFeatureExtractor of the label, ZipMap", route="ml")
def _neural_with_labels(g: Graph) -> None:
    """A neural head whose labels come from a table, as skl2onnx writes MLPClassifier."""
    p = g.node("Softmax", g.linear(g.vector()), axis=-1)
    best = g.node("ArgMax", p, axis=1, keepdims=0)
    table = g.const(np.arange(10, 10 + CLASSES), np.int64)
    label = g.node("Reshape", g.node("ArrayFeatureExtractor", table, best, domain=ML), g.ints(-1))
    _ml_outputs(g, label, p, strings=False, zipmap=True, width=CLASSES)


@refused("TreeEnsembleClassifier", "tree")
def _trees(g: Graph) -> None:
    stump = stumps(([1, 0, 0], [0, 0, 1]))
    label, scores = g.node("TreeEnsembleClassifier", g.input("x", "N", FEATURES), domain=ML, n_out=2, **stump)
    _ml_outputs(g, label, scores, strings=False, zipmap=False, width=3)


@refused("SVMClassifier", "svm")
def _svm(g: Graph) -> None:
    flags = {
        "classlabels_ints": [0, 1, 2],
        "vectors_per_class": [2, 2, 2],
        "support_vectors": g.draw(6 * FEATURES).tolist(),
        "coefficients": g.draw(2 * 6).tolist(),
        "rho": [0.1, -0.2, 0.3],
        "kernel_type": "RBF",
        "kernel_params": [0.5, 0.0, 3.0],
        "post_transform": "NONE",
    }
    label, scores = g.node("SVMClassifier", g.input("x", "N", FEATURES), domain=ML, n_out=2, **flags)
    _ml_outputs(g, label, scores, strings=False, zipmap=False, width=3)


# --- quantised


def _quantized(value: Array, dtype: Any, axis: int | None = None) -> tuple[Array, Array, Array, Array]:
    """Codes, scale, zero point and the values that they stand for; per tensor, or per index of `axis`."""
    bounds = np.iinfo(dtype)
    axes = None if axis is None else tuple(k for k in range(value.ndim) if k != axis)
    low, high = (np.asarray(f(value, axis=axes, keepdims=True)) for f in (np.min, np.max))
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    if bounds.min < 0:
        scale = np.maximum(-low, high) / bounds.max
        zero = np.zeros_like(scale)
    else:
        scale = (high - low) / bounds.max
        zero = np.round(-low / scale)
    scale = scale.astype(np.float32)
    codes = np.clip(np.round(value / scale) + zero, bounds.min, bounds.max)
    values = ((codes - zero) * scale).astype(np.float32)
    shape = () if axis is None else (-1,)
    return codes.astype(dtype), scale.reshape(shape), zero.reshape(shape).astype(dtype), values


def _qdq(g: Graph, data: str, scale: float = 0.05) -> str:
    """QuantizeLinear and DequantizeLinear of an activation."""
    pair = g.const(scale), g.const(128, np.uint8)
    return str(g.node("DequantizeLinear", g.node("QuantizeLinear", data, *pair), *pair))


def _dequantized(g: Graph, value: Array, dtype: Any, axis: int | None = None) -> tuple[str, Array]:
    codes, scale, zero, values = _quantized(value, dtype, axis)
    inputs = g.const(codes, dtype), g.const(scale), g.const(zero, dtype)
    return g.node("DequantizeLinear", *inputs, **({} if axis is None else {"axis": axis})), values


@form("QDQ weight, int8", np.int8, None, "", route="quantized")
@form("QDQ weight, int8, per channel", np.int8, 1, "", route="quantized")
@form("QDQ weight, int8, per feature", np.int8, 0, "", route="quantized")
@form("QDQ weight, activations and output", np.int8, 1, "in out", route="quantized")
@form("QDQ weight, activations and output, Softmax", np.uint8, None, "in out softmax", route="quantized")
def _qdq_matmul(g: Graph, dtype: Any, axis: int | None, around: str) -> Array:
    data = g.vector()
    if "in" in around:
        data = _qdq(g, data)
    weight, values = _dequantized(g, g.weight.T, dtype, axis)
    scores = g.node("Add", g.node("MatMul", data, weight), g.const(g.bias))
    if "out" in around:
        scores = _qdq(g, scores, 0.1)
    g.output(g.node("Softmax", scores) if "softmax" in around else scores)
    return values.T


@form("QDQ Gemm, int32 bias", None, route="quantized")
@form("QDQ Gemm, int32 bias, per channel", 0, route="quantized")
def _qdq_gemm(g: Graph, axis: int | None) -> Array:
    data = _qdq(g, g.vector())
    codes, scale, zero, values = _quantized(g.weight, np.int8, axis)
    flags = {} if axis is None else {"axis": axis}
    weight = g.node("DequantizeLinear", g.const(codes, np.int8), g.const(scale), g.const(zero, np.int8), **flags)
    bias_scale = (scale * np.float32(0.05)).astype(np.float32)
    bias_codes = np.round(g.bias / bias_scale)
    bias_zero = g.const(np.zeros_like(bias_scale), np.int32)
    bias = g.node("DequantizeLinear", g.const(bias_codes, np.int32), g.const(bias_scale), bias_zero, **flags)
    g.output(_qdq(g, g.node("Gemm", data, weight, bias, transB=1), 0.1))
    return values


@form("QDQ Conv 1x1, pooling", False, route="quantized")
@form("pooling, QDQ Conv 1x1", True, route="quantized")
def _qdq_conv(g: Graph, pool_first: bool) -> Array:
    data = g.image()
    if pool_first:
        data = g.node("GlobalAveragePool", data)
    kernel, values = _dequantized(g, g.weight[:, :, None, None], np.int8, 0)
    scores = _qdq(g, g.node("Conv", _qdq(g, data), kernel, g.const(g.bias)), 0.1)
    g.output(g.flat(scores if pool_first else g.node("GlobalAveragePool", scores)))
    return values[:, :, 0, 0]


@form("QDQ weight, Squeeze", "squeeze", route="quantized", opset=13)
@form("QDQ weight, Concat of two", "concat", route="quantized", opset=13)
@form("QDQ weight, times a number", "mul", route="quantized", opset=13)
def _qdq_computed(g: Graph, how: str) -> Array:
    """Nodes between DequantizeLinear and the layer."""
    data, w = g.vector(), g.weight.T
    if how == "concat":
        parts = [_dequantized(g, part, np.int8) for part in (w[:3], w[3:])]
        read, values = g.node("Concat", *(name for name, _ in parts), axis=0), np.concatenate([v for _, v in parts])
    else:
        wide, values = _dequantized(g, w[None] if how == "squeeze" else w, np.int8)
        read = g.node("Squeeze", wide, g.ints(0)) if how == "squeeze" else g.node("Mul", wide, g.const(0.5))
    g.output(g.product(data, read))
    return values.reshape(w.shape).T


@form("QDQ weight, int4 in blocks", route="quantized", opset=21, ir_version=10)
def _qdq_blocks(g: Graph) -> Array:
    blocks, size = 2, FEATURES // 2
    lifted = g.weight.T.reshape(blocks, size, CLASSES)
    scale = (np.abs(lifted).max(axis=1) / 7).astype(np.float32)
    codes = np.clip(np.round(lifted / scale[:, None]), -8, 7)
    values = (codes * scale[:, None]).astype(np.float32).reshape(FEATURES, CLASSES)
    stored = helper.make_tensor("codes", TensorProto.INT4, values.shape, codes.reshape(-1).astype(int).tolist())
    g.initializers.append(stored)
    weight = g.node("DequantizeLinear", "codes", g.const(scale), axis=0, block_size=size)
    g.output(g.product(g.vector(), weight))
    return values.T


# --- types


@form("float16, Gemm, Cast to float32, Softmax", "gemm", dtype="float16")
@form("float16, Conv 1x1, pooling", "conv", dtype="float16")
def _types(g: Graph, how: str) -> None:
    if how == "gemm":
        wide = g.node("Cast", g.gemm(g.vector()), to=TensorProto.FLOAT)
        g.output(g.node("Softmax", wide), "N", CLASSES, dtype=np.float32)
    else:
        g.output(g.flat(g.node("GlobalAveragePool", g.conv(g.image()))))


@form("float16 weight, features cast to float16, logits cast back")
def _half_head(g: Graph) -> Array:
    """A float32 graph whose head alone runs in half precision."""
    data = g.node("Cast", g.vector(), to=TensorProto.FLOAT16)
    scores = g.node("MatMul", data, g.const(g.weight.T, np.float16))
    g.output(g.node("Cast", scores, to=TensorProto.FLOAT))
    return g.weight.astype(np.float16)


# --- functions and sub-graphs


def _function(
    g: Graph, name: str, inputs: Sequence[str], nodes: Sequence[onnx.NodeProto], own: int = 1, **flags: Any
) -> None:
    """Add a model-local function whose output is `out`; it says that its own domain is of version `own`."""
    versions = [helper.make_opsetid("", g.opset), helper.make_opsetid(LOCAL, own)]
    g.functions.append(helper.make_function(LOCAL, name, inputs, ["out"], nodes, versions, **flags))


@form("function, weight handed in")
@form("function, its own domain at another version", 17)
def _function_of_weight(g: Graph, own: int = 1) -> None:
    nodes = [
        helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        helper.make_node("MatMul", ["z", "wt"], ["s"]),
        helper.make_node("Add", ["s", "b"], ["out"]),
    ]
    _function(g, "Linear", ["z", "w", "b"], nodes, own)
    g.output(g.node("Linear", g.vector(), g.const(g.weight), g.const(g.bias), domain=LOCAL))


@form("function, weight inside")
def _function_with_weight(g: Graph) -> None:
    nodes = [
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(np.ascontiguousarray(g.weight.T))),
        helper.make_node("MatMul", ["z", "w"], ["s"]),
        helper.make_node("Softmax", ["s"], ["out"], axis=-1),
    ]
    _function(g, "Classifier", ["z"], nodes)
    g.output(g.node("Classifier", g.vector(), domain=LOCAL))


@form("functions in functions")
def _nested_functions(g: Graph) -> None:
    product = [
        helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        helper.make_node("MatMul", ["z", "wt"], ["out"]),
    ]
    linear = [
        helper.make_node("Product", ["z", "w"], ["s"], domain=LOCAL),
        helper.make_node("Add", ["s", "b"], ["out"]),
    ]
    classifier = [
        helper.make_node("Linear", ["z", "w", "b"], ["s"], domain=LOCAL),
        helper.make_node("Softmax", ["s"], ["out"], axis=-1),
    ]
    _function(g, "Product", ["z", "w"], product)
    _function(g, "Linear", ["z", "w", "b"], linear)
    _function(g, "Classifier", ["z", "w", "b"], classifier)
    g.output(g.node("Classifier", g.vector(), g.const(g.weight), g.const(g.bias), domain=LOCAL))


@form("function used twice, trunk and head", features=CLASSES)
def _function_twice(g: Graph) -> None:
    nodes = [helper.make_node("MatMul", ["z", "w"], ["s"]), helper.make_node("Add", ["s", "b"], ["out"])]
    _function(g, "Linear", ["z", "w", "b"], nodes)
    square, bias = g.const(g.draw(CLASSES, CLASSES)), g.const(g.draw(CLASSES))
    hidden = g.node("Linear", g.input("x", "N", CLASSES), square, bias, domain=LOCAL)
    g.output(g.node("Linear", g.node("Relu", hidden), g.const(g.weight.T), g.const(g.bias), domain=LOCAL))


def _sub_graph(nodes: Sequence[onnx.NodeProto], inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> Any:
    typed = {"go": TensorProto.BOOL, "again": TensorProto.BOOL, "step": TensorProto.INT64}
    infos = [
        [
            helper.make_tensor_value_info(name, typed.get(name, TensorProto.FLOAT), [] if name in typed else None)
            for name in names
        ]
        for names in (inputs, outputs)
    ]
    return helper.make_graph(list(nodes), "inner", *infos)


@form("If in the trunk only")
def _if_in_trunk(g: Graph) -> None:
    z = g.vector()
    positive = g.node("Greater", g.node("ReduceSum", z, keepdims=0), g.const(0.0))
    branches = {
        f"{key}_branch": _sub_graph([helper.make_node(op, [z], [f"{key}_out"])], [], [f"{key}_out"])
        for key, op in (("then", "Tanh"), ("else", "Sigmoid"))
    }
    g.output(g.gemm(g.node("If", positive, **branches)))


@refused("head inside If", r"\bif\b")
def _inside_if(g: Graph) -> None:
    z, weights = g.vector(), (g.const(g.weight.T), g.const(g.draw(FEATURES, CLASSES)))
    positive = g.node("Greater", g.node("ReduceSum", z, keepdims=0), g.const(0.0))
    branches = {
        f"{key}_branch": _sub_graph([helper.make_node("MatMul", [z, w], [f"{key}_out"])], [], [f"{key}_out"])
        for key, w in zip(("then", "else"), weights, strict=True)
    }
    g.output(g.node("If", positive, **branches))


@refused("head inside Loop", "loop")
def _inside_loop(g: Graph) -> None:
    z, weight = g.vector(), g.const(g.weight.T)
    body = [helper.make_node("Identity", ["go"], ["again"]), helper.make_node("MatMul", [z, weight], ["scores"])]
    inner = _sub_graph(body, ["step", "go"], ["again", "scores"])
    stacked = g.node("Loop", g.const(1, np.int64), g.const(True, bool), body=inner)
    g.output(g.node("Squeeze", stacked, g.ints(0)))


@refused("head inside Scan", "scan")
def _inside_scan(g: Graph) -> None:
    z, weight = g.tokens(), g.const(g.weight.T)
    inner = _sub_graph([helper.make_node("MatMul", ["token", weight], ["scores"])], ["token"], ["scores"])
    flags = {"num_scan_inputs": 1, "scan_input_axes": [1], "scan_output_axes": [1]}
    scores = g.node("Scan", z, body=inner, **flags)
    g.output(g.node("ReduceMean", scores, axes=[1], keepdims=0))


# --- several heads


def _two_heads(g: Graph, truth: str) -> Array:
    z, other = g.vector(), g.draw(CLASSES + 2, FEATURES)
    first = g.node("Gemm", z, g.const(g.weight), g.const(g.bias), transB=1, name="coarse")
    second = g.node("Gemm", z, g.const(other), transB=1, name="fine")
    g.output(first, name="first")
    g.output(g.node("Softmax", second), "N", CLASSES + 2, name="second")
    return {"coarse": g.weight, "fine": other}[truth]


for _node, _output in (("coarse", "first"), ("fine", "second")):
    form(f"two heads, the one at node {_node}", _node, choose={"node": _node}, route="several")(_two_heads)
    form(f"two heads, the one of output {_output}", _node, choose={"output": _output}, route="several")(_two_heads)
refused("two heads without a choice", "--head", "coarse", route="several")(_two_heads)


@form("a head and an embedding as outputs", choose={"output": "y"}, route="several")
def _head_and_features(g: Graph) -> None:
    z = g.vector()
    g.output(z, "N", FEATURES, name="embedding")
    g.output(g.gemm(z))


@form("a head and an auxiliary head in training", "y", choose={"output": "y"}, route="several")
@form("a head, and the auxiliary one by its output", "aux", choose={"output": "aux"}, route="several")
def _auxiliary(g: Graph, truth: str) -> Array:
    """Both of the same size, the auxiliary one in front of the last block, as Inception has it."""
    z, other = g.vector(), g.draw(CLASSES, FEATURES)
    last = g.node("Relu", g.node("MatMul", z, g.const(g.draw(FEATURES, FEATURES))))
    g.output(g.gemm(last))
    g.output(g.node("MatMul", z, g.const(other.T)), name="aux")
    return g.weight if truth == "y" else other


# --- refused: more than one layer makes the logits

_SUMS = "sum|add|linear|head|constant"


@refused("mean of the probabilities of two heads", "mean|" + _SUMS, "mean softmax")
@refused("sum of the probabilities of two heads", "holds probabilities", "sum softmax")
@refused("sum of the probabilities of two heads, divided by its sum", "holds probabilities", "shares softmax")
@refused("scores, and a Sigmoid of others, summed", "holds probabilities", "sum sigmoid")
@refused("Max of two heads", "max|linear|head", "max")
@refused("layer on the scores of another, summed", "computed from the scores", "behind")
@refused("heads summed, one with a Relu", "non-linear", "relu")
@refused("two heads concatenated", "concat|linear|head", "concat")
def _several_layers(g: Graph, how: str) -> None:
    z, other = g.vector(), g.draw(g.classes, FEATURES)
    first = g.gemm(z)
    if how == "behind":
        g.output(g.node("Add", first, g.node("MatMul", g.node("Relu", first), g.const(g.draw(CLASSES, CLASSES)))))
    else:
        second = g.node("Gemm", z, g.const(other), transB=1)
        if how == "mean softmax":
            g.output(g.node("Mean", g.node("Softmax", first), g.node("Softmax", second)))
        elif how == "sum sigmoid":
            g.output(g.node("Add", first, g.node("Sigmoid", second)))
        elif how.endswith("softmax"):
            total = g.node("Add", g.node("Softmax", first), g.node("Softmax", second))
            g.output(total if how == "sum softmax" else g.node("Div", total, g.node("ReduceL1", total, axes=[1])))
        elif how == "max":
            g.output(g.node("Max", first, second))
        elif how == "relu":
            g.output(g.node("Add", first, g.node("Relu", second)))
        else:
            g.output(g.node("Concat", first, second, axis=1), "N", 2 * CLASSES)


@form("heads summed", "sum", route="summed")
@form("heads subtracted", "difference", route="summed")
@form("mean of two heads, Add and Mul", "mean", route="summed")
@form("mean of two heads, Mean, Softmax", "Mean", route="summed")
@form("mean of two heads, stacked", "stack", route="summed")
@form("heads summed, constant behind", "behind", route="summed")
@form("heads summed, float16", "sum", dtype="float16", route="summed")
@form("three heads summed", "three", route="summed")
def _summed(g: Graph, how: str) -> Array:
    """Heads on two tokens, as DeiT has them, or two branches, as CrossViT has."""
    tokens, other = g.tokens(), g.draw(g.classes, FEATURES)
    z = [g.node("Gather", tokens, g.const(k, np.int64), axis=1) for k in range(3)]
    first = g.product(z[0]) if how == "behind" else g.gemm(z[0])
    second = g.node("MatMul", z[1], g.const(other.T))
    truth = np.concatenate([g.weight, other], axis=1)
    if how == "difference":
        g.output(g.node("Sub", first, second))
        return np.concatenate([g.weight, -other], axis=1)
    if how == "stack":
        lifted = [g.node("Unsqueeze", scores, g.ints(0)) for scores in (first, second)]
        stacked = g.node("Concat", *lifted, axis=0)
        g.output(g.node("ReduceMean", stacked, axes=[0], keepdims=0))
    elif how == "mean":
        g.output(g.node("Mul", g.node("Add", first, second), g.const(0.5)))
    elif how == "Mean":
        g.output(g.node("Softmax", g.node("Mean", first, second)))
    elif how == "behind":
        g.output(g.node("Add", g.node("Add", first, second), g.const(g.bias)))
    elif how == "three":
        third = g.draw(g.classes, FEATURES)
        g.output(g.node("Sum", first, second, g.node("MatMul", z[2], g.const(third.T))))
        return np.concatenate([truth, third], axis=1)
    else:
        g.output(g.node("Add", first, second))
    return truth


@form("heads on the same features summed", "same", route="summed")
@form("LoRA beside the weight", "lora", route="summed")
@form("wide and deep, one logit", "logit", classes=1, route="summed")
def _summed_branches(g: Graph, how: str) -> Array:
    z, other = g.vector(), g.draw(g.classes, FEATURES)
    first = g.gemm(z)
    if how == "lora":
        narrow = g.draw(g.classes, 2)
        change = g.node("MatMul", g.node("MatMul", z, g.const(g.draw(FEATURES, 2))), g.const(narrow.T))
        g.output(g.node("Add", first, g.node("Mul", change, g.const(0.5))))
        return np.concatenate([g.weight, 0.5 * narrow], axis=1)
    if how == "same":
        g.output(g.node("Div", g.node("Add", first, g.node("MatMul", z, g.const(other.T))), g.const(2.0)))
        return g.weight + other
    second = g.node("Gemm", g.node("Tanh", z), g.const(other), transB=1)
    g.output(g.node("Sigmoid", g.node("Add", first, second)))
    both = np.concatenate([g.weight, other], axis=1)
    return np.concatenate([np.zeros_like(both), both])


@form("difference of one layer on two inputs", route="summed")
def _siamese(g: Graph) -> Array:
    """Each node is given a tensor of its own."""
    weight = g.const(g.weight.T)
    pair = [g.node("MatMul", g.input(name, "N", FEATURES), weight) for name in ("left", "right")]
    g.output(g.node("Sub", *pair))
    return np.concatenate([g.weight, -g.weight], axis=1)


@refused("mixture of softmaxes", "")
def _mixture(g: Graph) -> None:
    """Two softmaxes of two layers, weighted by a third."""
    z = g.vector()
    shares = g.node("Softmax", g.node("MatMul", z, g.const(g.draw(FEATURES, 2))))
    parts = []
    for k in range(2):
        p = g.node("Softmax", g.node("MatMul", z, g.const(g.draw(FEATURES, CLASSES))))
        share = g.node("Slice", shares, g.ints(k), g.ints(k + 1), g.ints(1))
        parts.append(g.node("Mul", p, share))
    g.output(g.node("Add", *parts))


@refused("bilinear", "")
def _bilinear(g: Graph) -> None:
    z = g.vector()
    g.output(g.node("Einsum", z, g.const(g.draw(CLASSES, FEATURES, FEATURES)), z, equation="nd,cde,ne->nc"))


@form("multi-label", "vector")
@form("multi-label, Conv 1x1 and pooling", "conv")
def _multi_label(g: Graph, how: str) -> None:
    scores = g.gemm(g.vector()) if how == "vector" else g.flat(g.node("GlobalAveragePool", g.conv(g.image())))
    g.output(g.node("Sigmoid", scores))


# --- refused: the outputs are no classes of one sample


@refused("several labels a token", "several positions")
def _token_labels(g: Graph) -> None:
    g.output(g.node("Sigmoid", g.linear(g.tokens(TOKENS))), "N", TOKENS, CLASSES)


@form("one class a token", TOKENS, "", route="several")
@form("one class a token, any number of tokens", "T", "", route="several")
@form("one class a token, Softmax", TOKENS, "Softmax", route="several")
def _token_classes(g: Graph, count: int | str, activation: str) -> None:
    scores = g.linear(g.tokens(count))
    g.output(g.node(activation, scores, axis=-1) if activation else scores, "N", count, CLASSES)


@form("one class a pixel", "plain", route="several")
@form("one class a pixel, resized", "resize", route="several")
@form("one class a pixel, Softmax over channels", "softmax", route="several")
@form("one class a pixel, Softmax between Transposes", "turned", route="several", opset=11)
def _segmentation(g: Graph, how: str) -> None:
    scores, side = g.conv(g.image()), SIDE
    if how == "resize":
        scores, side = g.node("Resize", scores, "", g.const([1, 1, 2, 2]), mode="nearest"), 2 * SIDE
    elif how == "softmax":
        scores = g.node("Softmax", scores, axis=1)
    elif how == "turned":  # torch, below opset 13
        p = g.node("Softmax", g.node("Transpose", scores, perm=[0, 3, 2, 1]), axis=3)
        scores = g.node("Transpose", p, perm=[0, 3, 2, 1])
    g.output(scores, "N", CLASSES, side, side)


@refused("boxes and scores", "", False)
@refused("boxes after NonMaxSuppression", "", True)
def _detection(g: Graph, suppress: bool) -> None:
    z = g.tokens()
    boxes = g.node("Sigmoid", g.node("MatMul", z, g.const(g.draw(FEATURES, 4))))
    scores = g.node("Sigmoid", g.linear(z))
    if not suppress:
        g.output(boxes, "N", TOKENS, 4, name="boxes")
        g.output(scores, "N", TOKENS, CLASSES, name="scores")
        return
    limits = g.ints(2), g.const([0.5], np.float32), g.const([0.1], np.float32)
    kept = g.node("NonMaxSuppression", boxes, g.node("Transpose", scores, perm=[0, 2, 1]), *limits)
    g.output(kept, "K", 3, dtype=np.int64)


@refused("SSD: boxes beside scores of each", "detector|boxes")
def _detector_heads(g: Graph) -> None:
    z = g.tokens()
    g.output(g.linear(z), "N", TOKENS, CLASSES, name="cls")
    g.output(g.node("MatMul", z, g.const(g.draw(FEATURES, 4))), "N", TOKENS, 4, name="loc")


@form("a class beside one box", "bbox", 4, route="several")
@form("a class beside a regression", "age", 1, choose={"output": "label"}, route="several")
def _class_beside(g: Graph, name: str, numbers: int) -> None:
    z = g.vector()
    g.output(g.gemm(z), name="label")
    g.output(g.node("MatMul", z, g.const(g.draw(FEATURES, numbers))), "N", numbers, name=name)


@refused("one vector for each of several choices", "choice", TOKENS)
@refused("one vector for each of any number of choices", "how many", "choices")
def _choices(g: Graph, choices: int | str) -> None:
    """As BERT answers multiple choice."""
    rows = g.node("Reshape", g.tokens(), g.ints(-1, FEATURES))
    scores = g.node("MatMul", rows, g.const(g.draw(FEATURES, 1)))
    g.output(g.node("Reshape", scores, g.ints(-1, TOKENS)), "N", choices)


@refused("sequence of tensors", "")
def _sequence(g: Graph) -> None:
    pair = g.node("SequenceConstruct", g.linear(g.vector()))
    g.raw_output(helper.make_tensor_sequence_value_info(pair, TensorProto.FLOAT, None))


@refused("regression", "", "plain", classes=1)
@refused("regression, squeezed", "", "squeeze", classes=1)
@refused("regression, Relu", "", "relu", classes=1)
def _regression(g: Graph, how: str) -> None:
    value = g.gemm(g.vector())
    if how == "squeeze":
        g.output(g.node("Squeeze", value, g.ints(1)), "N")
    else:
        g.output(g.node("Relu", value) if how == "relu" else value)


@refused("LinearRegressor", "")
def _regressor(g: Graph) -> None:
    flags = {"coefficients": g.weight[0].tolist(), "intercepts": [0.5]}
    g.output(g.node("LinearRegressor", g.input("x", "N", FEATURES), domain=ML, **flags), "N", 1)


@form("classes in another order", "add")
@form("classes in another order, Gemm", "gemm")
@form("classes in another order, bias behind", "behind")
@form("classes in another order, scaled in front and behind", "scaled")
@form("classes in another order, twice", "twice")
@form("classes in another order, Softmax", "softmax")
def _permuted(g: Graph, how: str) -> Array:
    order = [3, 0, 4, 1, 2]
    factors = np.linspace(1, 3, g.classes, dtype=np.float32)
    z = g.vector()
    truth = g.weight[order]
    scores = g.gemm(z) if how == "gemm" else g.node("MatMul", z, g.const(g.weight.T))
    if how in ("add", "twice", "softmax"):
        scores = g.node("Add", scores, g.const(g.bias))
    if how == "scaled":
        scores = g.node("Mul", scores, g.const(factors))
        truth = (g.weight * factors[:, None])[order] / factors[:, None]
    logits = g.node("Gather", scores, g.ints(*order), axis=1)
    if how == "twice":
        logits = g.node("Gather", logits, g.ints(*order), axis=-1)
        truth = truth[order]
    if how == "behind":
        logits = g.node("Add", logits, g.const(g.bias))
    if how == "scaled":
        logits = g.node("Div", logits, g.const(factors))
    g.output(g.node("Softmax", logits) if how == "softmax" else logits)
    return truth


@refused("embedding divided by its own length", "", "l2")
@refused("embedding, LpNormalization", "", "lp")
def _embedding(g: Graph, how: str) -> None:
    e = g.linear(g.vector())
    if how == "lp":
        g.output(g.node("LpNormalization", e, axis=1, p=2))
    else:
        g.output(g.node("Div", e, g.node("ReduceL2", e, axes=[1], keepdims=1)))


@refused("several softmaxes of one layer", "", "fields", classes=6)
@refused("averaged over the classes", "", "mean", classes=6)
@refused("largest of several vectors a class", "", "maxout", classes=6)
def _other_classes(g: Graph, how: str) -> None:
    """The classes of the output are not the vectors of the layer."""
    scores = g.gemm(g.vector())
    pairs = g.node("Reshape", scores, g.ints(-1, 2, 3))
    if how == "fields":
        g.output(g.node("Softmax", pairs, axis=-1), "N", 2, 3)
    elif how == "mean":
        g.output(g.node("ReduceMean", scores, axes=[1], keepdims=1), "N", 1)
    else:
        g.output(g.node("ReduceMax", pairs, axes=[1], keepdims=0), "N", 3)


@form("some of the layer's classes", "subset", classes=6)
@form("some of the layer's classes, from the end, scaled", "scaled", classes=6)
@form("all but the first of the layer's classes", "background", classes=6)
@form("all but the first of the layer's classes, MatMul and Add", "add", classes=6)
@form("all but the first of the layer's classes, Softmax", "softmax", classes=6)
@form("every other of the layer's classes", "step", classes=6)
@form("some of the layer's classes, Split", "split", classes=6)
@form("classes in another order, as torch's newer exporter writes it", "nd")
def _selected(g: Graph, how: str) -> Array:
    """The others keep their vectors."""
    scores = g.linear(g.vector()) if how in ("add", "scaled") else g.gemm(g.vector())
    if how == "subset":
        g.output(g.node("Gather", scores, g.ints(4, 0, 2), axis=1), "N", 3)
        return g.weight[[4, 0, 2]]
    if how == "scaled":
        factors = np.linspace(1, 3, 6, dtype=np.float32)
        scores = g.node("Mul", scores, g.const(factors))
        g.output(g.node("Gather", scores, g.ints(-1, 0), axis=-1), "N", 2)
        return (g.weight * factors[:, None])[[-1, 0]]
    if how == "nd":
        turned = g.node("Transpose", scores, perm=[1, 0])
        turned = g.node("GatherND", turned, g.const([[3], [0], [4], [1], [2]], np.int64))
        g.output(g.node("Transpose", turned, perm=[1, 0]))
        return g.weight[[3, 0, 4, 1, 2]]
    if how == "split":
        g.output(g.node("Split", scores, g.ints(2, 4), n_out=2, axis=1)[1], "N", 4)
        return g.weight[2:]
    if how == "step":
        g.output(g.node("Slice", scores, g.ints(0), g.ints(2**63 - 1), g.ints(1), g.ints(2)), "N", 3)
        return g.weight[::2]
    end = g.ints(6) if how == "background" else g.ints(2**31 - 1)
    logits = g.node("Slice", scores, g.ints(1), end, g.ints(-1 if how == "add" else 1))
    g.output(g.node("Softmax", logits) if how == "softmax" else logits, "N", 5)
    return g.weight[1:]


@refused("Softmax over the tokens, then token 0", "")
def _softmax_over_tokens(g: Graph) -> None:
    shares = g.node("Softmax", g.linear(g.tokens()), axis=1)
    g.output(g.node("Gather", shares, g.const(0, np.int64), axis=1))


# --- refused: the weight is no finite dense constant


@form("scores of some classes masked", "classes")
@form("scores masked by the input", "input")
def _masked(g: Graph, how: str) -> None:
    z = g.vector()
    if how == "classes":
        g.output(g.node("Where", g.const([True, True, False, True, True], np.bool_), g.gemm(z), g.const(-1e4)))
    else:
        masked = g.node("Greater", g.node("Slice", "x", g.ints(0), g.ints(1), g.ints(1)), g.const(2.0))
        g.output(g.node("Where", masked, g.const(0.0), g.gemm(z)))


# --- where the numbers lie


CASES: tuple[Case, ...] = tuple(_CASES)
