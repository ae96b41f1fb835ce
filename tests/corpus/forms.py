"""Every form of a linear head that we know of, as small graphs, and graphs without one.

`form("then Tanh", "Tanh gemm > y")` adds one: its nodes up to the scores `y`. `_TENSORS` lists what nodes may read.
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

from collections.abc import Callable
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.builders import nodes_of, small_model, stumps, tensor_info
from tests.corpus.case import Case, class_vectors

Array = NDArray[Any]

FEATURES, CLASSES, TOKENS, SIDE, VOCABULARY = 8, 5, 4, 3, 11
ML, LOCAL = "ai.onnx.ml", "local"


def quantize(value: Array, axis: int | None = None, dtype: Any = np.int8) -> tuple[Array, Array, Array, Array]:
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


class Graph:
    """A graph in the making: its nodes are written as texts, see `text`.

    Attributes:
        weight: (C, n) in the dtype of the graph; the truth, unless the form states another.
        bias: (C,).
        other: (C, n), the weight of a second layer.
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
        self._names: dict[str, str] = {}
        self.initializers: list[TensorProto] = []
        self.nodes: list[onnx.NodeProto] = []
        self.functions: list[onnx.FunctionProto] = []
        self.input_infos: list[onnx.ValueInfoProto] = []
        self.output_infos: list[onnx.ValueInfoProto] = []
        self.inputs: dict[str, tuple[np.dtype[Any], tuple[int | str, ...]]] = {}
        self.weight, self.bias = self.draw(classes, features), self.draw(classes)

    @cached_property
    def other(self) -> Array:
        return self.draw(self.classes, self.n_features)

    def draw(self, *shape: int) -> Array:
        return np.asarray(self._rng.standard_normal(shape)).astype(self.dtype)

    def array(self, expression: str) -> Array:
        """Return the value of a Python expression.

        Its names: W and V (both (C, n)), b (C,), K (W as a 1x1 kernel), n, np, draw, class_vectors, and q (`quantize`).
        """
        arrays = {"W": self.weight, "b": self.bias, "K": self.weight[:, :, None, None], "n": self.n_features}
        if "V" in expression:
            arrays["V"] = self.other
        functions = {"np": np, "draw": self.draw, "class_vectors": class_vectors, "q": quantize}
        return np.asarray(eval(expression, functions | arrays))

    def const(self, value: Any) -> str:
        """Add an initializer: of the dtype of the graph if it holds floats, unless they are half precision already."""
        name = f"c{len(self.initializers)}"
        if not isinstance(value, TensorProto):
            array = np.asarray(value)
            plain = array.dtype.kind == "f" and array.dtype != np.float16
            value = numpy_helper.from_array(array.astype(self.dtype) if plain else array)
        value.name = name
        self.initializers.append(value)
        return self._called(name, name)

    def _called(self, name: str, tensor: str) -> str:
        self._names[name] = self._names[tensor] = tensor
        return tensor

    def read(self, name: str) -> str:
        """Return the tensor that a text calls by this name, or a new constant of an expression."""
        if name in _TENSORS and name not in self._names:
            before = dict(self._names)
            self._called(name, _TENSORS[name](self))
            self._names |= before
        return name and (self._names.get(name) or self.const(self.array(name)))

    def text(self, nodes: str, **constants: Any) -> str:
        """Append nodes as `nodes_of` reads them; returns the last output.

        Each name of a node's input is that of an output before it, of a constant, or of `_TENSORS`; any other is an
        expression, see `array`. A later output may have the name of an earlier one.
        """
        for name, value in constants.items():
            self._called(name, self.const(value))
        return [self._append(node)[-1] for node in nodes_of(nodes)][-1]

    def node(self, op_type: str, *inputs: str, n_out: int = 1, **flags: Any) -> Any:
        """Append a node with attributes that a text cannot state; returns its output, or a list of them."""
        outputs = self._append(helper.make_node(op_type, inputs, [f"{op_type} {k}" for k in range(n_out)], **flags))
        return outputs if n_out > 1 else outputs[0]

    def _append(self, node: onnx.NodeProto) -> list[str]:
        node.input[:] = [self.read(name) for name in node.input]
        number, names = len(self.nodes), list(node.output)
        node.output[:] = [f"t{number}_{k}" if k else f"t{number}" for k in range(len(names))]
        node.name = node.name or f"{node.op_type}_{number}"
        self.nodes.append(node)
        return [self._called(name, tensor) for name, tensor in zip(names, node.output, strict=True)]

    def input(self, name: str, *shape: int | str, dtype: Any = None) -> str:
        dtype = np.dtype(dtype or self.dtype)
        self.inputs[name] = (dtype, shape)
        self.input_infos.append(tensor_info(name, shape, dtype))
        return self._called(name, name)

    def output(self, tensor: str, *shape: int | str, name: str = "y", dtype: Any = None) -> None:
        """Make a tensor a graph output of that name; shape (N, C) unless told otherwise."""
        self.text(f"Identity {tensor} > y")
        self.nodes[-1].output[0] = name
        self.output_infos.append(tensor_info(name, shape or ("N", self.classes), dtype or self.dtype))

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


def _tokens(g: Graph, count: int | str) -> str:
    """(N, T, n) features."""
    g.input("x", "N", count, g.n_features)
    return g.text("MatMul x draw(n,n) > trunk; Relu trunk > tokens")


def _image(g: Graph, dimensions: int) -> str:
    """(N, n, side, ...) features."""
    g.input("x", "N", 2, *[SIDE] * dimensions)
    kernel, pads = g.draw(g.n_features, 2, *[3] * dimensions), ",".join("1" * 2 * dimensions)
    return g.text(f"Conv x kernel > maps pads=[{pads}]; Relu maps > image", kernel=kernel)


_TENSORS: dict[str, Callable[[Graph], str]] = {
    "x": lambda g: g.input("x", "N", g.n_features),
    "z": lambda g: g.text("MatMul x draw(n,n) > trunk; Relu trunk > z"),
    "tokens": lambda g: _tokens(g, TOKENS),
    "one_token": lambda g: _tokens(g, 1),
    "any_tokens": lambda g: _tokens(g, "T"),
    "line": lambda g: _image(g, 1),
    "image": lambda g: _image(g, 2),
    "volume": lambda g: _image(g, 3),
    "ids": lambda g: g.input("ids", "N", TOKENS, dtype=np.int64),
    "words": lambda g: g.text("Gather draw(11,n) ids > rows; MatMul rows draw(n,n) > trunk; Relu trunk > words"),
    "W": lambda g: g.const(g.weight),
    "V": lambda g: g.const(g.other),
    "b": lambda g: g.const(g.bias),
    "one": lambda g: g.const(1.0),
    "half": lambda g: g.const(0.5),
    "in_scale": lambda g: g.const(0.05),
    "out_scale": lambda g: g.const(0.1),
    "in_zero": lambda g: g.const(np.uint8(128)),
    "out_zero": lambda g: g.const(np.uint8(128)),
    "gemm": lambda g: g.text("Gemm z W b > gemm transB=1"),
    "linear": lambda g: g.text("MatMul z W.T > product; Add product b > linear"),
    "token_scores": lambda g: g.text("MatMul tokens W.T > product; Add product b > token_scores"),
    "conv": lambda g: g.text("Conv image K b > conv"),
}
"""What a text may read without making it: inputs, features behind a trunk, weights, and the scores of whole layers."""


# --- the table

Fill = str | Callable[..., Any]
"""The text of the nodes up to `y`; or what fills a graph, and returns its class vectors if they are not its weight."""

_CASES: list[Case] = []


def form(
    name: str,
    fill: Fill,
    *,
    route: str = "form",
    shape: tuple[int | str, ...] = (),
    truth: str = "W",
    reason: str | None = None,
    runs: bool = True,
    choose: dict[str, str] | None = None,
    **settings: Any,
) -> None:
    """Add a graph with a head, or one that must be refused for a reason.

    Args:
        name: of the case, behind its route.
        fill: see `Fill`.
        route: first part of the case's name.
        shape: of the output, where it is not (N, C).
        truth: class vectors of a text, as an expression, see `Graph.array`.
        reason: see `Case`.
        runs: in ONNX Runtime.
        choose: see `Case`.
        settings: of the graph.
    """

    @cache
    def made() -> tuple[Graph, Any]:
        graph = Graph(**settings)
        if isinstance(fill, str):
            graph.output(graph.text(fill), *shape)
            return graph, graph.array(truth)
        vectors = fill(graph)
        return graph, graph.weight if vectors is None else vectors

    def build(folder: Path) -> Path:
        path = folder / "model.onnx"
        path.write_bytes(made()[0].proto().SerializeToString())
        return path

    _CASES.append(
        Case(
            name=f"{route}/{name}",
            route=route,
            build=build,
            weight=(lambda: np.asarray(made()[1]).astype(np.float64)) if reason is None else None,
            reason=reason or "",
            feeds=(lambda count, rng: made()[0].feeds(count, rng)) if runs else None,  # noqa: PLW0108 - not built yet
            choose=choose or {},
        )
    )


def refused(name: str, reason: str, fill: Fill, route: str = "refused", **more: Any) -> None:
    """Add a graph without a head that can be replaced."""
    form(name, fill, route=route, reason=reason, **more)


# --- Einsum

form("einsum nd,cd->nc", "Einsum z W > s equation=nd,cd->nc; Add s b > y")
form("einsum nd,dc->nc", "Einsum z W.T > s equation=nd,dc->nc; Add s b > y")
form("einsum implicit output", "Einsum z W.T > s equation=ij,jk; Add s b > y")
form("einsum ellipsis", "Einsum z W.T > s equation=...d,dc->...c; Add s b > y")
form("einsum weight first", "Einsum W z > y equation=cd,nd->nc")
form("einsum class axis first, then Transpose", "Einsum W z > s equation=cd,nd->cn; Transpose s > y perm=[1,0]")
form("einsum ntd,dc->ntc then token 0", "Einsum tokens W.T > s equation=ntd,dc->ntc; Gather s 0 > y axis=1")
form("einsum ellipsis then token 0", "Einsum tokens W.T > s equation=...d,dc->...c; Gather s 0 > y axis=1")
# heads x size of head as two axes of the weight, as JAX exports do: its rows are the class vectors flattened
refused(
    "einsum two axes of features",
    "not a product of features and a weight",
    "Reshape z [-1,2,4] > heads; Einsum heads W.T.reshape(2,4,5) > y equation=nhd,hdc->nc",
)

# --- Gemm as JAX writes a product: a bias with a beta of zero, which is not read

form("Gemm with beta zero, Add behind it", "Gemm z W.T 0.0 > s beta=0.0; Add s b[None] > y")
form("Gemm with beta zero, without bias", "Gemm z W.T 0.0 > y beta=0.0")
form("Gemm with beta zero, NaN where the bias would be", "Gemm z W.T np.nan > s beta=0.0; Add s b[None] > y")

# --- the weight as left operand: scores (C, N)


def _weight_first(name: str, product: str, behind: str = "", truth: str = "W") -> None:
    turn = "" if "transB" in name else "Transpose z > turned perm=[1,0]; "
    form(f"weight first, {name}", f"{turn}{product}; Transpose s > y perm=[1,0]{behind}", truth=truth)


_GEMM = "alpha=0.5 beta=2.0"
_weight_first("MatMul", "MatMul W turned > s", "; Add y b > y")
_weight_first("MatMul, features transposed by their trunk", "MatMul W turned > s")
_weight_first("MatMul, bias in front of the Transpose", "MatMul W turned > p; Add p b[:,None] > s")
_weight_first(
    "MatMul, scaled in front of the Transpose",
    "MatMul W turned > p; Mul p np.linspace(.5,2,5)[:,None] > s",
    truth="W*np.linspace(.5,2,5)[:,None]",
)
_weight_first("Gemm", f"Gemm W turned > s {_GEMM}", "; Add y b > y")
_weight_first("Gemm transA", f"Gemm W.T turned > s {_GEMM} transA=1")
_weight_first("Gemm transB", f"Gemm W z > s {_GEMM} transB=1")
_weight_first("Gemm with a bias", f"Gemm W turned b[:,None] > s {_GEMM}")
_weight_first("softmax", "MatMul W turned > s", "; Softmax y > y")
_TURNED = "Transpose z > turned perm=[1,0]; MatMul W turned > s"
refused("weight first, result not transposed", "no Transpose", _TURNED, shape=(CLASSES, "N"))
refused(
    "weight first, one number a sample added",
    "one number a sample",
    f"{_TURNED}; Add s b > p; Transpose p > y perm=[1,0]",
    runs=False,
)

# --- fused operators of ONNX Runtime, which refuses a FusedGemm without an activation

_FUSED = "domain=com.microsoft"
form("FusedGemm Relu", f"FusedGemm z W b > y {_FUSED} transB=1 activation=Relu")
form("FusedGemm alpha beta", f"FusedGemm z W b > y {_FUSED} transB=1 alpha=0.5 beta=2.0 activation=Relu")
form("FusedGemm LeakyRelu", f"FusedGemm z W b > y {_FUSED} transB=1 activation=LeakyRelu activation_alpha=0.1")
_FLAGS = {
    "FusedMatMul": "z W.T > s transA=0 transB=0 alpha=1.0",
    "FusedMatMul transB": "z W > s transA=0 transB=1 alpha=1.0",
    "FusedMatMul transA transB alpha": "turned W > s transA=1 transB=1 alpha=2.0",
    "FusedMatMul negative alpha": "z W > s transA=0 transB=1 alpha=-3.0",
}
for _name, _product in _FLAGS.items():
    _turn = "Transpose z > turned perm=[1,0]; " if "turned" in _product else ""
    _text = f"{_turn}FusedMatMul {_product} {_FUSED}; Add s b > l; Softmax l > y axis=-1"
    form(_name, _text, truth="-W" if "negative" in _name else "W")
form(
    "FusedConv Relu, then pooling",
    f"FusedConv image K b > s {_FUSED} activation=Relu kernel_shape=[1,1]; GlobalAveragePool s > p; Flatten p > y",
)

# --- convolutions

for _name, _end in {
    "Flatten": "Flatten s > y",
    "Squeeze": "Squeeze s [2,3] > y",
    "Reshape": "Reshape s [0,-1] > y",
    "Gather twice": "Gather s 0 > row axis=2; Gather row 0 > y axis=2",
}.items():
    form(f"pooling, Conv 1x1, {_name}", f"GlobalAveragePool image > p; Conv p K b > s; {_end}")
form(
    "pooling, Conv 1x1 without a bias, Add",
    "ReduceMean image > p axes=[2,3] keepdims=1; Conv p K > s; Add s b[:,None,None] > l; Flatten l > y",
)
form("pooling, Conv 1x1, output (N, C, 1, 1)", "GlobalAveragePool image > p; Conv p K b > y", shape=("N", 5, 1, 1))
for _name, _end in {
    "GlobalAveragePool, Flatten": "GlobalAveragePool s > p; Flatten p > y",
    "ReduceMean": "ReduceMean s > y axes=[2,3] keepdims=0",
    "Relu, GlobalAveragePool, Flatten, Softmax": "Relu s > r; GlobalAveragePool r > p; Flatten p > l; Softmax l > y",
    "Relu, AveragePool, Flatten, Softmax": (
        "Relu s > r; AveragePool r > p kernel_shape=[3,3]; Flatten p > l; Softmax l > y"
    ),
}.items():
    form(f"Conv 1x1, {_name}", f"Dropout image > d; Conv d K b > s; {_end}")
form("Conv 1x1, reshaped to positions, ReduceMean", "Reshape conv [0,5,-1] > s; ReduceMean s > y axes=[-1] keepdims=0")
form(
    "Conv 1x1, factors of shape (C, 1, 1), GlobalAveragePool",
    "Mul conv np.linspace(.5,2,5)[:,None,None] > s; GlobalAveragePool s > p; Flatten p > y",
    truth="W*np.linspace(.5,2,5)[:,None]",
)
form(
    "Conv 1x1, factor of one number, GlobalAveragePool", "Mul conv [[[.7]]] > s; GlobalAveragePool s > p; Flatten p > y"
)
form("1-D Conv, GlobalAveragePool", "Conv line K[...,0] b > s; GlobalAveragePool s > p; Squeeze p [2] > y")
form("3-D Conv, GlobalAveragePool", "Conv volume K[...,None] b > s; GlobalAveragePool s > p; Flatten p > y")
form("pooling, 1-D Conv, Squeeze", "GlobalAveragePool line > p; Conv p K[...,0] b > s; Squeeze s [2] > y")
form("pooling, 3-D Conv, Flatten", "GlobalAveragePool volume > p; Conv p K[...,None] b > s; Flatten s > y")


def _conv_over_all(g: Graph, end: str) -> Array:
    kernel = g.draw(g.classes, FEATURES, SIDE, SIDE)
    g.output(g.text(f"Conv image kernel b > s; {end}", kernel=kernel))
    return kernel.reshape(g.classes, -1)


form("Conv over all of its input", partial(_conv_over_all, end="Flatten s > y"))
form("Conv over all of its input, Squeeze, Softmax", partial(_conv_over_all, end="Squeeze s [2,3] > l; Softmax l > y"))


def _conv_of_any_size(g: Graph) -> None:
    """A kernel that may be as large as the image, or smaller."""
    g.input("x", "N", FEATURES, "H", "W")
    g.output(g.text("Conv x draw(5,8,3,3) > s; GlobalAveragePool s > p; Flatten p > y"))


refused("Conv over an image of any size, pooling", "at several positions come together", _conv_of_any_size)

# --- an axis of tokens

form("tokens, MatMul, Gather token 0", "Gather token_scores 0 > y axis=1")
form("tokens, MatMul, Gather token -1", "Gather token_scores -1 > y axis=1")
form("tokens, MatMul, Slice token 0, Squeeze", "Slice token_scores [0] [1] [1] [1] > s; Squeeze s [1] > y")
form("tokens, MatMul, Split, token 0, Squeeze", "Split token_scores [1,3] > s rest axis=1; Squeeze s [1] > y")
form("tokens, MatMul, ReduceMean", "ReduceMean token_scores > y axes=[1] keepdims=0")
form("tokens, MatMul, ReduceSum", "ReduceSum token_scores [1] > y keepdims=0")
form(
    "tokens, MatMul, Transpose, GlobalAveragePool, Flatten",
    "Transpose token_scores > t perm=[0,2,1]; GlobalAveragePool t > p; Flatten p > y",
)
refused(
    "tokens, MatMul, Softmax, Gather token 0",
    "the result of Softmax",
    "Softmax token_scores > p axis=-1; Gather p 0 > y axis=1",
)
form("tokens selected before the layer", "Gather tokens 0 > t axis=1; Gemm t W b > y transB=1")
form("tokens averaged before the layer", "ReduceMean tokens > t axes=[1] keepdims=0; Gemm t W b > y transB=1")
form("one token, layer, Gather", "MatMul one_token W.T > p; Add p b > s; Gather s 0 > y axis=1")
form("one token, layer, Reshape", "MatMul one_token W.T > p; Add p b > s; Reshape s [-1,5] > y")
form(
    "tokens flattened to rows, Gemm, Reshape, Gather",
    "Reshape tokens [-1,8] > rows; Gemm rows W b > p transB=1; Reshape p [-1,4,5] > s; Gather s 0 > y axis=1",
)

# 0 .. N - 1, and the position in front of the first pad token (id 0) of each row, as GPT-2 computes it
_LAST = (
    "Equal ids 0 > pad; Cast pad > pads to=INT32; ArgMax pads > first axis=1 keepdims=0; Sub first 1 > before; "
    "Mod before 4 > position; Shape ids > shape; Gather shape 0 > count axis=0; Range 0 count 1 > rows; "
)
_PAIRS = f"{_LAST}Unsqueeze rows [-1] > r; Unsqueeze position [-1] > p; Concat r p > pairs axis=-1; "
form("last token, GatherND", f"{_PAIRS}MatMul words W.T > s; GatherND s pairs > y")
form(
    "last token, rows and Gather",
    f"{_LAST}MatMul words W.T > s; Reshape s [-1,5] > flat; Mul rows 4 > start; Add start position > at; "
    "Gather flat at > y axis=0",
)
form(
    "last token, GatherElements",
    f"{_LAST}MatMul words W.T > s; Unsqueeze position [1,2] > p; Expand p [1,1,5] > at; "
    "GatherElements s at > t axis=1; Squeeze t [1] > y",
)
form("last token, selected before the layer", f"{_PAIRS}GatherND words pairs > t; MatMul t W.T > y")

# --- a function behind the layer

form("then Relu", "Relu gemm > y")
form("then LeakyRelu", "LeakyRelu gemm > y alpha=0.2")
form("then Tanh", "Tanh gemm > y")
form("then Softsign", "Softsign gemm > y")
form("then HardSigmoid, Softmax", "HardSigmoid gemm > s; Softmax s > y")
form("then Relu, Softmax", "Relu gemm > s; Softmax s > y")
form("then Tanh, LogSoftmax", "Tanh gemm > s; LogSoftmax s > y")
form("then Clip", "Clip gemm -3.0 3.0 > y")
form("then Softmax, Clip", "Softmax gemm > p; Clip p 1e-7 1-1e-7 > y")
form("then Softmax, Clip, log", "Softmax gemm > p; Clip p 1e-7 1-1e-7 > c; Log c > y")
refused("then Softmax, Clip to a hundredth", "changes them by up to 0.01", "Softmax gemm > p; Clip p 1e-2 1-1e-2 > y")
form("then Softmax, plus a millionth, log", "Softmax gemm > p; Add p 1e-6 > q; Log q > y")
form("then Softmax, a millionth at least, log", "Softmax gemm > p; Max p 1e-6 > q; Log q > y")
# each of five numbers moves little; what they add up to does not
refused(
    "then Softmax, plus half a thousandth, log",
    "changes them by up to 0.0025 in the log",
    "Softmax gemm > p; Add p 5e-4 > q; Log q > y",
)
form("then a soft cap", lambda g: g.output(g.text("Div gemm cap > d; Tanh d > t; Mul t cap > y", cap=30.0)))
form("then Softmax, Log", "Softmax gemm > p; Log p > y")

# the largest score of each sample, in the ways of several exporters
_TOP = "ReduceMax gemm > top axes=[1] keepdims=1; "
_TOP_UNSQUEEZED = "ReduceMax gemm > m axes=[1] keepdims=0; Unsqueeze m [1] > top; "
# JAX by way of TensorFlow: kept above -inf, a gradient stopped, brought to the shape of the scores
_TOP_JAX = (
    "ReduceMax gemm > m axes=[1] keepdims=0; Max -np.inf m > k; Identity k > i; Reshape i [-1,1] > column; "
    "Shape gemm > shape; Expand column shape > top; "
)
_SHIFTED = "Sub gemm top > s; "
_TOTAL = "ReduceSum e [1] > total keepdims=1; "
_EXP = f"Exp s > e; {_TOTAL}"
_PLAIN = f"{_TOP}{_SHIFTED}{_EXP}"
_JAX = f"{_TOP_JAX}{_SHIFTED}{_EXP}"
_WIDE = "Shape e > shape; Expand total shape > wide; "
form("then Exp, divided by their sum", f"{_PLAIN}Div e total > y")
form("softmax written out, maximum unsqueezed", f"{_TOP_UNSQUEEZED}{_SHIFTED}{_EXP}Div e total > y")
form("softmax written out, as JAX by TensorFlow", f"{_JAX}{_WIDE}Div e wide > y")
form(
    "softmax written out, exponential twice",
    f"{_TOP_JAX}{_SHIFTED}Exp s > above; {_JAX}Shape above > shape; Expand total shape > wide; Div above wide > y",
)
form("softmax written out, times the reciprocal", f"{_PLAIN}Reciprocal total > r; Mul e r > y")
form("softmax written out, Normalizer", f"{_TOP}{_SHIFTED}Exp s > e; Normalizer e > y domain=ai.onnx.ml norm=L1")
form("softmax written out, log of it", f"{_JAX}{_WIDE}Div e wide > p; Log p > y")
form("softmax written out, exp of the log", f"{_JAX}{_WIDE}{_TOP_JAX}{_SHIFTED}Log wide > l; Sub s l > p; Exp p > y")

_LOG = f"{_EXP}Log total > log; "
form("log-softmax written out", f"Exp gemm > e; {_TOTAL}Log total > log; Sub gemm log > y")
form("log-softmax written out, maximum", f"{_TOP}{_SHIFTED}{_LOG}Sub s log > y")
form("log-softmax written out, as JAX by TensorFlow", f"{_TOP_JAX}{_SHIFTED}{_LOG}Sub s log > y")
form(
    "log-softmax written out, maximum added again",
    f"{_TOP_UNSQUEEZED}{_SHIFTED}{_LOG}{_TOP_UNSQUEEZED}Add log top > all; Sub gemm all > y",
)
# as in a logsumexp that minds infinite scores
form(
    "log-softmax written out, finite maximum",
    f"{_TOP}IsInf top > inf; Where inf [[0.0]] top > top; {_SHIFTED}{_LOG}Sub s log > y",
)
_LSE = "axes=[1] keepdims=1; "
form("log-softmax written out, ReduceLogSumExp", f"ReduceLogSumExp gemm > log {_LSE}Sub gemm log > y")
form(
    "log-softmax written out, ReduceLogSumExp of what is shifted",
    f"{_TOP}{_SHIFTED}ReduceLogSumExp s > log {_LSE}Sub s log > y",
)
form("log-softmax written out, ReduceLogSum", f"{_TOP}{_SHIFTED}Exp s > e; ReduceLogSum e > log {_LSE}Sub s log > y")
form("then LogSoftmax, Exp", "LogSoftmax gemm > l; Exp l > y")

_ONE_LOGIT = "class_vectors(W)"
_BELOW = "Exp m > e; Add one e > below; "
for _name, _text in {
    "Neg": f"Neg gemm > m; {_BELOW}Div one below > y",
    "0 - s": f"Sub 0.0 gemm > m; {_BELOW}Div one below > y",
    "Reciprocal": f"Neg gemm > m; {_BELOW}Reciprocal below > y",
    "exp over 1 + exp": "Exp gemm > above; Exp gemm > e; Add one e > below; Div above below > y",
    "tanh": "Mul gemm half > h; Tanh h > t; Mul t half > u; Add u half > y",
    "tanh of a quotient": "Div gemm 2.0 > h; Tanh h > t; Add one t > u; Div u 2.0 > y",
    "clipped": f"Neg gemm > m; {_BELOW}Div one below > p; Clip p 1e-6 1-1e-6 > y",
}.items():
    form(f"sigmoid written out, {_name}", _text, truth=_ONE_LOGIT, classes=1)

refused(
    "exponentials of other scores over the sum",
    "",
    f"{_TOP}{_SHIFTED}Exp s > above; Mul gemm 2.0 > s; {_EXP}Div above total > y",
)
refused(
    "exponentials over another maximum's sum",
    "",
    f"{_TOP}{_SHIFTED}Exp s > above; Exp gemm > e; {_TOTAL}Div above total > y",
)
refused("half a sigmoid", "", "Neg gemm > m; Exp m > e; Add 1.0 e > below; Div 0.5 below > y")
refused("exponential of scores", "Exp", "Exp gemm > y")

# --- constants behind nodes

_UNIT = "W/np.linalg.norm(W,axis=1,keepdims=True)"
_LENGTHS = "ReduceL2 W > lengths axes=[1] keepdims=1; "
_UNIT_WEIGHTS = {
    "normalised": f"{_LENGTHS}Div W lengths > u; Transpose u > w perm=[1,0]; ",
    "LpNormalization": "LpNormalization W > u axis=1 p=2; Transpose u > w perm=[1,0]; ",
    "torch normalize": (
        f"{_LENGTHS}Clip lengths 1e-12 > l; Shape W > shape; Expand l shape > wide; Div W wide > u; "
        "Transpose u > w perm=[1,0]; "
    ),
}
_LAYER = "MatMul z w > s; Add s b > y"


def _dequantized(weight: str, result: str = "w", axis: str = "") -> str:
    """Return the node that reads whole numbers as a weight; `weight` is an expression of `q`, see `quantize`."""
    return f"DequantizeLinear {weight}[0] {weight}[1] {weight}[2] > {result} {axis}"


def _mirrored(g: Graph) -> Array:
    g.output(g.text(f"Neg v > minus; Concat minus v > w axis=1; {_LAYER}", v=g.weight[:1].T))
    return np.concatenate([-g.weight[:1], g.weight[:1]])


_rows = _dequantized("q(W,0)", "u", "axis=0")
form("weight, dequantize transpose", f"{_rows}; Transpose u > w perm=[1,0]; {_LAYER}", truth="q(W,0)[3]")
_flat = _dequantized("q(W.T.ravel(),dtype=np.uint8)", "u")
_text = f"{_flat}; Reshape u [8,-1] > v; Cast v > w to=FLOAT; {_LAYER}"
form("weight, dequantize reshape cast", _text, truth="q(W.T,dtype=np.uint8)[3].T")
for _name, _text in _UNIT_WEIGHTS.items():
    form(f"weight, {_name}", f"{_text}{_LAYER}", truth=_UNIT)
form("weight, one vector and its negative", _mirrored, classes=2)


def _tied(g: Graph, layer: str) -> Array:
    embedding = g.draw(VOCABULARY, FEATURES)
    trunk = "Gather table ids > e; ReduceMean e > m axes=[1] keepdims=0; MatMul m draw(8,8) > h; Tanh h > t"
    g.output(g.text(f"{trunk}; {layer}", table=embedding), "N", VOCABULARY)
    return embedding


form("tied to an embedding", partial(_tied, layer="Gemm t table > y transB=1"))
form("tied to an embedding, transposed", partial(_tied, layer="Transpose table > w perm=[1,0]; MatMul t w > y"))
# a square weight that two layers read: only the last one is the head
form("tied to the layer before it", "MatMul x W > h; Relu h > r; Gemm r W b > y transB=1", features=CLASSES)


def _also_inputs(g: Graph) -> None:
    """Models from before IR version 4 list their initializers as graph inputs."""
    g.output(g.text("Softmax gemm > y axis=1"))
    g.input_infos += [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in g.initializers]


form("all initializers are graph inputs", _also_inputs, opset=8, ir_version=3)

# --- cosine classifiers

_LENGTH = "ReduceL2 z > length axes=[1] keepdims=1; "


def _cosine(name: str, features: str, weight: str, scores: str = "MatMul unit w > s; Mul s 16.0 > l") -> None:
    form(f"cosine, {name}", f"{features}{_UNIT_WEIGHTS[weight]}{scores}; Softmax l > y", truth=_UNIT)


_DIVIDED = f"{_LENGTH}Div z length > unit; "
_cosine("features and weight normalised", _DIVIDED, "normalised")
_cosine("LpNormalization", "LpNormalization z > unit axis=1 p=2; ", "LpNormalization")
_cosine(
    "torch",
    f"{_LENGTH}Clip length 1e-12 > l; Shape z > shape; Expand l shape > wide; Div z wide > unit; ",
    "torch normalize",
)
_cosine(
    "divided by the length of the features behind the layer",
    _LENGTH,
    "normalised",
    "MatMul z w > p; Div p length > s; Mul s 16.0 > l",
)
_cosine("scaled by a learned constant", _DIVIDED, "normalised", "MatMul unit w > s; Exp 2.5 > scale; Mul s scale > l")

# --- biases and temperatures

for _name, _text, _truth in (
    ("bias, Sum of three", "Sum draw(5) s draw(5) > l", "W"),
    ("bias, behind a Reshape", "Unsqueeze s [1] > u; Reshape u [-1,5] > r; Add r draw(5) > l", "W"),
    ("temperature, computed", "Add s draw(5) > a; Sqrt 8.0 > t; Div a t > l", "W"),
    ("constant minus logits", "Sub draw(5) s > l", "-W"),
    ("Neg behind the bias", "Add s draw(5) > a; Neg a > l", "-W"),
):
    form(_name, f"MatMul z W.T > s; {_text}; Softmax l > y axis=-1", truth=_truth)

# --- two classes

for _name, _text, _shape in (
    ("one logit, Squeeze, Sigmoid", "Squeeze gemm [1] > s; Sigmoid s > y", ("N",)),
    ("one logit, Sigmoid, Squeeze", "Sigmoid gemm > p; Squeeze p [1] > y", ("N",)),
    ("Gemm, Sigmoid", "Sigmoid gemm > y", ()),
    ("temperature, Sigmoid", "Div gemm 1.5 > s; Sigmoid s > y", ()),
    ("Sigmoid, Concat of 1 - p and p", "Sigmoid gemm > p; Sub 1.0 p > q; Concat q p > y axis=1", ("N", 2)),
    ("Conv 1x1, Flatten, Sigmoid", "GlobalAveragePool image > m; Conv m K b > s; Flatten s > f; Sigmoid f > y", ()),
    ("Conv 1x1, pooling, Sigmoid", "GlobalAveragePool conv > s; Flatten s > f; Sigmoid f > y", ()),
    ("(n,) weight, Sigmoid", "MatMul z W[0] > p; Add p b > s; Sigmoid s > y", ("N",)),
):
    form(f"binary, {_name}", _text, shape=_shape, truth=_ONE_LOGIT, classes=1)

# --- ai.onnx.ml


def _ml_outputs(g: Graph, label: str, scores: str, width: int, strings: bool = False, zipmap: bool = False) -> None:
    """Outputs as skl2onnx has them: the label, and the scores, in maps or not."""
    kind = TensorProto.STRING if strings else TensorProto.INT64
    g.output_infos.append(helper.make_tensor_value_info(label, kind, ["N"]))
    if not zipmap:
        g.output(scores, "N", width, name="probabilities")
        return
    labels = {"classlabels_strings": _names(width)} if strings else {"classlabels_int64s": list(range(width))}
    maps = g.node("ZipMap", scores, domain=ML, **labels)
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    sequence = helper.make_sequence_type_proto(helper.make_map_type_proto(kind, value))
    g.output_infos.append(helper.make_value_info(maps, sequence))


def _names(count: int) -> list[str]:
    return [f"class {k}" for k in range(count)]


_BEFORE: dict[str, dict[str, Any]] = {
    "Scaler": {"scale": np.linspace(0.5, 2, FEATURES).tolist(), "offset": np.linspace(-1, 1, FEATURES).tolist()},
    "Normalizer": {"norm": "L2"},
    "Imputer": {"imputed_value_floats": [0.0], "replaced_value_float": float("nan")},
}


def _linear_classifier(
    g: Graph,
    post: str = "SOFTMAX",
    before: str = "",
    kind: str = "float32",
    normalizer: bool = False,
    strings: bool = False,
    zipmap: bool = False,
) -> Array:
    """With a single class, mirrored coefficients of two, as skl2onnx writes them."""
    data = g.input("x", "N", FEATURES, dtype=kind)
    if before:
        data = g.node(before, data, domain=ML, **_BEFORE[before])
    weight, bias = g.weight, g.bias
    if g.classes == 1:
        weight, bias = np.concatenate([-weight, weight]), np.concatenate([-bias, bias])
    width = len(weight)
    labels = {"classlabels_strings": _names(width)} if strings else {"classlabels_ints": list(range(width))}
    flags = {"coefficients": weight.reshape(-1).tolist(), "intercepts": bias.tolist(), "post_transform": post}
    label, scores = g.node("LinearClassifier", data, domain=ML, n_out=2, multi_class=1, **flags, **labels)
    if normalizer:
        scores = g.text(f"Normalizer {scores} > n domain=ai.onnx.ml norm=L1")
    _ml_outputs(g, label, scores, width, strings, zipmap)
    return class_vectors(g.weight)


_LOGISTIC = {"post": "LOGISTIC", "normalizer": True}
_NAMED_MAPS = {"strings": True, "zipmap": True}
for _name, _classes, _flags in (
    ("LinearClassifier, NONE", CLASSES, {"post": "NONE"}),
    ("LinearClassifier, SOFTMAX", CLASSES, {}),
    ("LinearClassifier, SOFTMAX, strings", CLASSES, {"strings": True}),
    ("LinearClassifier, SOFTMAX, ZipMap", CLASSES, {"zipmap": True}),
    ("LinearClassifier, LOGISTIC, Normalizer L1", CLASSES, _LOGISTIC),
    ("LinearClassifier, LOGISTIC, Normalizer L1, ZipMap", CLASSES, _LOGISTIC | _NAMED_MAPS),
    ("Scaler, LinearClassifier", CLASSES, {"before": "Scaler"}),
    ("Normalizer, LinearClassifier", CLASSES, {"before": "Normalizer"}),
    ("Imputer, LinearClassifier", CLASSES, {"before": "Imputer", "zipmap": True}),
    ("LinearClassifier, SOFTMAX, two classes", 2, {}),
    ("LinearClassifier, double input", CLASSES, {"kind": "float64"}),
    ("LinearClassifier, binary, LOGISTIC", 1, {"post": "LOGISTIC"}),
    ("LinearClassifier, binary, LOGISTIC, ZipMap", 1, {"post": "LOGISTIC", "zipmap": True}),
    ("LinearClassifier, binary, LOGISTIC, Normalizer, strings, ZipMap", 1, _LOGISTIC | _NAMED_MAPS),
):
    form(_name, partial(_linear_classifier, **_flags), route="ml", classes=_classes)


def _neural_with_labels(g: Graph) -> None:
    """A neural head whose labels come from a table, as skl2onnx writes MLPClassifier."""
    p = g.text("Softmax linear > p axis=-1")
    label = g.text(
        "ArgMax p > best axis=1 keepdims=0; ArrayFeatureExtractor np.arange(10,15) best > l domain=ai.onnx.ml; "
        "Reshape l [-1] > label"
    )
    _ml_outputs(g, label, p, CLASSES, zipmap=True)


form("Gemm, Softmax, ArrayFeatureExtractor of the label, ZipMap", _neural_with_labels, route="ml")


def _trees(g: Graph) -> None:
    label, scores = g.node("TreeEnsembleClassifier", "x", domain=ML, n_out=2, **stumps(([1, 0, 0], [0, 0, 1])))
    _ml_outputs(g, label, scores, 3)


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
    label, scores = g.node("SVMClassifier", "x", domain=ML, n_out=2, **flags)
    _ml_outputs(g, label, scores, 3)


refused("TreeEnsembleClassifier", "tree", _trees)
refused("SVMClassifier", "svm", _svm)

# --- quantised


quantized = partial(form, route="quantized")


def _rounded(data: str, place: str, result: str) -> str:
    """Return QuantizeLinear and DequantizeLinear of an activation, in front of the layer or behind it."""
    pair = f"{place}_scale {place}_zero"
    return f"QuantizeLinear {data} {pair} > codes; DequantizeLinear codes {pair} > {result}"


_COLUMNS = _dequantized("q(W.T,1)", axis="axis=1")
_AROUND = f"MatMul v w > p; Add p b > s; {_rounded('s', 'out', 'y')}"
_READ, _TRUTH = _rounded("z", "in", "v"), "q(W.T,1)[3].T"
quantized("QDQ weight, int8", f"{_dequantized('q(W.T)')}; {_LAYER}", truth="q(W.T)[3].T")
quantized("QDQ weight, int8, per channel", f"{_COLUMNS}; {_LAYER}", truth=_TRUTH)
_rows = f"{_dequantized('q(W.T,0)', axis='axis=0')}; {_LAYER}"
quantized("QDQ weight, int8, per feature", _rows, truth="q(W.T,0)[3].T")
quantized("QDQ weight, activations and output", f"{_READ}; {_COLUMNS}; {_AROUND}", truth=_TRUTH)
_unsigned = f"{_READ}; {_dequantized('q(W.T,dtype=np.uint8)')}; {_AROUND}; Softmax y > y"
quantized("QDQ weight, activations and output, Softmax", _unsigned, truth="q(W.T,dtype=np.uint8)[3].T")
for _name, _weight, _axis in (("", "q(W)", ""), (", per channel", "q(W,0)", "axis=0")):
    _scale = f"({_weight}[1]*np.float32(.05))"
    _codes = f"np.round(b/{_scale}).astype(np.int32) {_scale} np.zeros_like({_scale},np.int32)"
    _weights = f"{_dequantized(_weight, axis=_axis)}; DequantizeLinear {_codes} > bias {_axis}"
    _text = f"{_READ}; {_weights}; Gemm v w bias > s transB=1; {_rounded('s', 'out', 'y')}"
    quantized(f"QDQ Gemm, int32 bias{_name}", _text, truth=f"{_weight}[3]")
_KERNEL = f"{_dequantized('q(K,0)', axis='axis=0')}; Conv v w b > s; {_rounded('s', 'out', 't')}"
_text = f"{_rounded('image', 'in', 'v')}; {_KERNEL}; GlobalAveragePool t > p; Flatten p > y"
quantized("QDQ Conv 1x1, pooling", _text, truth="q(K,0)[3][:,:,0,0]")
_text = f"GlobalAveragePool image > p; {_rounded('p', 'in', 'v')}; {_KERNEL}; Flatten t > y"
quantized("pooling, QDQ Conv 1x1", _text, truth="q(K,0)[3][:,:,0,0]")
# nodes between DequantizeLinear and the layer
_text = f"{_dequantized('q(W.T[None])')}; Squeeze w [0] > v; MatMul z v > y"
quantized("QDQ weight, Squeeze", _text, truth="q(W.T)[3].T", opset=13)
_halves = f"{_dequantized('q(W.T[:3])', 'first')}; {_dequantized('q(W.T[3:])', 'second')}"
_text = f"{_halves}; Concat first second > w axis=0; MatMul z w > y"
_truth = "np.vstack([q(W.T[:3])[3],q(W.T[3:])[3]]).T"
quantized("QDQ weight, Concat of two", _text, truth=_truth, opset=13)
_text = f"{_dequantized('q(W.T)')}; Mul w 0.5 > h; MatMul z h > y"
quantized("QDQ weight, times a number", _text, truth="q(W.T)[3].T", opset=13)


def _qdq_blocks(g: Graph) -> Array:
    blocks, size = 2, FEATURES // 2
    lifted = g.weight.T.reshape(blocks, size, CLASSES)
    scale = (np.abs(lifted).max(axis=1) / 7).astype(np.float32)
    codes = np.clip(np.round(lifted / scale[:, None]), -8, 7)
    values = (codes * scale[:, None]).astype(np.float32).reshape(FEATURES, CLASSES)
    stored = helper.make_tensor("codes", TensorProto.INT4, values.shape, codes.reshape(-1).astype(int).tolist())
    text = f"DequantizeLinear codes scale > w axis=0 block_size={size}; MatMul z w > y"
    g.output(g.text(text, codes=stored, scale=scale))
    return values.T


quantized("QDQ weight, int4 in blocks", _qdq_blocks, opset=21, ir_version=10)

# --- types


def _half_with_wide_softmax(g: Graph) -> None:
    g.output(g.text("Cast gemm > s to=FLOAT; Softmax s > y"), dtype=np.float32)


form("float16, Gemm, Cast to float32, Softmax", _half_with_wide_softmax, dtype="float16")
form("float16, Conv 1x1, pooling", "GlobalAveragePool conv > p; Flatten p > y", dtype="float16")
# a float32 graph whose head alone runs in half precision
form(
    "float16 weight, features cast to float16, logits cast back",
    "Cast z > h to=FLOAT16; MatMul h W.T.astype(np.float16) > s; Cast s > y to=FLOAT",
    truth="W.astype(np.float16)",
)

# --- functions and sub-graphs


def _function(g: Graph, name: str, inputs: str, nodes: list[onnx.NodeProto], own: int = 1) -> None:
    """Add a model-local function whose output is `out`; it says that its own domain is of version `own`."""
    versions = [helper.make_opsetid("", g.opset), helper.make_opsetid(LOCAL, own)]
    g.functions.append(helper.make_function(LOCAL, name, inputs.split(), ["out"], nodes, versions))


def _function_of_weight(g: Graph, own: int = 1) -> None:
    _function(g, "Linear", "z w b", nodes_of("Transpose w > wt perm=[1,0]; MatMul z wt > s; Add s b > out"), own)
    g.output(g.text("Linear z W b > y domain=local"))


def _function_with_weight(g: Graph) -> None:
    weight = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(np.ascontiguousarray(g.weight.T)))
    _function(g, "Classifier", "z", [weight, *nodes_of("MatMul z w > s; Softmax s > out axis=-1")])
    g.output(g.text("Classifier z > y domain=local"))


def _nested_functions(g: Graph) -> None:
    for name, inputs, nodes in (
        ("Product", "z w", "Transpose w > wt perm=[1,0]; MatMul z wt > out"),
        ("Linear", "z w b", "Product z w > s domain=local; Add s b > out"),
        ("Classifier", "z w b", "Linear z w b > s domain=local; Softmax s > out axis=-1"),
    ):
        _function(g, name, inputs, nodes_of(nodes))
    g.output(g.text("Classifier z W b > y domain=local"))


def _function_twice(g: Graph) -> None:
    _function(g, "Linear", "z w b", nodes_of("MatMul z w > s; Add s b > out"))
    trunk = "Linear x draw(5,5) draw(5) > h domain=local; Relu h > r"
    g.output(g.text(f"{trunk}; Linear r W.T b > y domain=local"))


form("function, weight handed in", _function_of_weight)
form("function, its own domain at another version", partial(_function_of_weight, own=17))
form("function, weight inside", _function_with_weight)
form("functions in functions", _nested_functions)
form("function used twice, trunk and head", _function_twice, features=CLASSES)

_SCALARS = {"go": np.bool_, "again": np.bool_, "step": np.int64}


def _sub_graph(nodes: str, inputs: str, outputs: str) -> onnx.GraphProto:
    infos = [
        [tensor_info(name, [] if name in _SCALARS else None, _SCALARS.get(name, np.float32)) for name in names.split()]
        for names in (inputs, outputs)
    ]
    return helper.make_graph(nodes_of(nodes), "inner", *infos)


def _if_positive(g: Graph, then: str, otherwise: str) -> str:
    """Return the result of an If on the sum of the features, with a node in each branch."""
    branches = {
        "then_branch": _sub_graph(f"{then} > then_out", "", "then_out"),
        "else_branch": _sub_graph(f"{otherwise} > else_out", "", "else_out"),
    }
    return g.node("If", g.text("ReduceSum z > total keepdims=0; Greater total 0.0 > positive"), **branches)


def _if_in_trunk(g: Graph) -> None:
    z = g.read("z")
    g.output(g.text(f"Gemm {_if_positive(g, f'Tanh {z}', f'Sigmoid {z}')} W b > y transB=1"))


def _inside_if(g: Graph) -> None:
    z, weight, other = (g.read(name) for name in ("z", "W.T", "draw(8,5)"))
    g.output(_if_positive(g, f"MatMul {z} {weight}", f"MatMul {z} {other}"))


def _inside_loop(g: Graph) -> None:
    body = f"Identity go > again; MatMul {g.read('z')} {g.read('W.T')} > scores"
    stacked = g.node("Loop", "1", "True", body=_sub_graph(body, "step go", "again scores"))
    g.output(g.text(f"Squeeze {stacked} [0] > y"))


def _inside_scan(g: Graph) -> None:
    inner = _sub_graph(f"MatMul token {g.read('W.T')} > scores", "token", "scores")
    flags = {"num_scan_inputs": 1, "scan_input_axes": [1], "scan_output_axes": [1]}
    g.output(g.text(f"ReduceMean {g.node('Scan', 'tokens', body=inner, **flags)} > y axes=[1] keepdims=0"))


form("If in the trunk only", _if_in_trunk)
refused("head inside If", r"\bif\b", _inside_if)
refused("head inside Loop", "loop", _inside_loop)
refused("head inside Scan", "scan", _inside_scan)

# --- several heads


def _two_heads(g: Graph, truth: str) -> Array:
    first = g.text("Gemm z W b > s transB=1 name=coarse")
    other = g.draw(CLASSES + 2, FEATURES)
    second = g.text("Gemm z other > s transB=1 name=fine; Softmax s > p", other=other)
    g.output(first, name="first")
    g.output(second, "N", CLASSES + 2, name="second")
    return {"coarse": g.weight, "fine": other}[truth]


for _node, _output in (("coarse", "first"), ("fine", "second")):
    _fill = partial(_two_heads, truth=_node)
    form(f"two heads, the one at node {_node}", _fill, choose={"node": _node}, route="several")
    form(f"two heads, the one of output {_output}", _fill, choose={"output": _output}, route="several")
refused("two heads without a choice", "--head", partial(_two_heads, truth="coarse"), route="several")


def _head_and_features(g: Graph) -> None:
    g.output("z", "N", FEATURES, name="embedding")
    g.output("gemm")


def _auxiliary(g: Graph, truth: str) -> Array:
    """Both of the same size, the auxiliary one in front of the last block, as Inception has it."""
    auxiliary = g.text("MatMul z V.T > aux")
    g.output(g.text("MatMul z draw(8,8) > p; Relu p > last; Gemm last W b > y transB=1"))
    g.output(auxiliary, name="aux")
    return g.weight if truth == "y" else g.other


_OF_Y = {"choose": {"output": "y"}, "route": "several"}
form("a head and an embedding as outputs", _head_and_features, **_OF_Y)
form("a head and an auxiliary head in training", partial(_auxiliary, truth="y"), **_OF_Y)
_aux = partial(_auxiliary, truth="aux")
form("a head, and the auxiliary one by its output", _aux, choose={"output": "aux"}, route="several")

# --- refused: more than one layer makes the logits

_OTHER = "Gemm z V > other transB=1; "
_SHARES = f"{_OTHER}Softmax gemm > p; Softmax other > q; "
refused("mean of the probabilities of two heads", "mean|sum|add|linear|head|constant", f"{_SHARES}Mean p q > y")
refused("sum of the probabilities of two heads", "holds probabilities", f"{_SHARES}Add p q > y")
refused(
    "sum of the probabilities of two heads, divided by its sum",
    "holds probabilities",
    f"{_SHARES}Add p q > both; ReduceL1 both > total axes=[1]; Div both total > y",
)
refused("scores, and a Sigmoid of others, summed", "holds probabilities", f"{_OTHER}Sigmoid other > p; Add gemm p > y")
refused("Max of two heads", "max|linear|head", f"{_OTHER}Max gemm other > y")
refused(
    "layer on the scores of another, summed",
    "computed from the scores",
    "Relu gemm > r; MatMul r draw(5,5) > p; Add gemm p > y",
)
refused("heads summed, one with a Relu", "non-linear", f"{_OTHER}Relu other > r; Add gemm r > y")
refused(
    "two heads concatenated", "concat|linear|head", f"{_OTHER}Concat gemm other > y axis=1", shape=("N", 2 * CLASSES)
)

# heads on two tokens, as DeiT has them, or two branches, as CrossViT has
_BOTH = "np.hstack([W,V])"


def _summed(name: str, text: str, head: str = "Gemm t W b > first transB=1", truth: str = _BOTH, **more: Any) -> None:
    heads = f"Gather tokens 0 > t axis=1; Gather tokens 1 > u axis=1; {head}; MatMul u V.T > second"
    form(name, f"{heads}; {text}", route="summed", truth=truth, **more)


_summed("heads summed", "Add first second > y")
_summed("heads subtracted", "Sub first second > y", truth="np.hstack([W,-V])")
_summed("mean of two heads, Add and Mul", "Add first second > s; Mul s 0.5 > y")
_summed("mean of two heads, Mean, Softmax", "Mean first second > s; Softmax s > y")
_summed(
    "mean of two heads, stacked",
    "Unsqueeze first [0] > p; Unsqueeze second [0] > q; Concat p q > s axis=0; ReduceMean s > y axes=[0] keepdims=0",
)
_summed("heads summed, constant behind", "Add first second > s; Add s b > y", head="MatMul t W.T > first")
_summed("heads summed, float16", "Add first second > y", dtype="float16")


def _three_summed(g: Graph) -> Array:
    g.text("Gather tokens 0 > t axis=1; Gemm t W b > first transB=1")
    g.text("Gather tokens 1 > t axis=1; MatMul t V.T > second")
    third = g.draw(g.classes, FEATURES)
    g.output(g.text("Gather tokens 2 > t axis=1; MatMul t w > third; Sum first second third > y", w=third.T))
    return np.concatenate([g.weight, g.other, third], axis=1)


def _adapted(g: Graph) -> Array:
    scores = g.read("gemm")
    narrow = g.draw(g.classes, 2)
    low_rank = "MatMul z draw(8,2) > p; MatMul p narrow > q; Mul q 0.5 > change"
    g.output(g.text(f"{low_rank}; Add {scores} change > y", narrow=narrow.T))
    return np.concatenate([g.weight, 0.5 * narrow], axis=1)


form("three heads summed", _three_summed, route="summed")
form("heads on the same features summed", "MatMul z V.T > p; Add gemm p > s; Div s 2. > y", route="summed", truth="W+V")
form("LoRA beside the weight", _adapted, route="summed")
form(
    "wide and deep, one logit",
    "Tanh z > deep; Gemm deep V > p transB=1; Add gemm p > s; Sigmoid s > y",
    route="summed",
    truth=f"class_vectors({_BOTH})",
    classes=1,
)


def _siamese(g: Graph) -> Array:
    """Each node is given a tensor of its own."""
    for name in ("left", "right"):
        g.input(name, "N", FEATURES)
    g.output(g.text("MatMul left w > p; MatMul right w > q; Sub p q > y", w=g.weight.T))
    return np.concatenate([g.weight, -g.weight], axis=1)


form("difference of one layer on two inputs", _siamese, route="summed")
# two softmaxes of two layers, weighted by a third
_SHARE = "MatMul z draw(8,5) > s; Softmax s > p; Slice shares [{}] [{}] [1] > share; Mul p share > {}; "
refused(
    "mixture of softmaxes",
    "",
    f"MatMul z draw(8,2) > s; Softmax s > shares; {_SHARE.format(0, 1, 'first')}{_SHARE.format(1, 2, 'second')}"
    "Add first second > y",
)
refused("bilinear", "", "Einsum z draw(5,8,8) z > y equation=nd,cde,ne->nc")
form("multi-label", "Sigmoid gemm > y")
form("multi-label, Conv 1x1 and pooling", "GlobalAveragePool conv > p; Flatten p > s; Sigmoid s > y")

# --- refused: the outputs are no classes of one sample

_PER_TOKEN = ("N", TOKENS, CLASSES)
refused("several labels a token", "several positions", "Sigmoid token_scores > y", shape=_PER_TOKEN)
form("one class a token", "MatMul tokens W.T > p; Add p b > y", route="several", shape=_PER_TOKEN)
form(
    "one class a token, any number of tokens",
    "MatMul any_tokens W.T > p; Add p b > y",
    route="several",
    shape=("N", "T", CLASSES),
)
form("one class a token, Softmax", "Softmax token_scores > y axis=-1", route="several", shape=_PER_TOKEN)


def _pixels(name: str, text: str, side: int = SIDE, **more: Any) -> None:
    form(f"one class a pixel{name}", text, route="several", shape=("N", CLASSES, side, side), **more)


_pixels("", "Conv image K b > y")
_pixels(", resized", "Resize conv _ [1.,1.,2.,2.] > y mode=nearest", 2 * SIDE)
_pixels(", Softmax over channels", "Softmax conv > y axis=1")
# torch, below opset 13
_TURN = "perm=[0,3,2,1]"
_turned = f"Transpose conv > t {_TURN}; Softmax t > p axis=3; Transpose p > y {_TURN}"
_pixels(", Softmax between Transposes", _turned, opset=11)


def _detection(g: Graph, suppress: bool) -> None:
    boxes = g.text("MatMul tokens draw(8,4) > p; Sigmoid p > boxes")
    scores = g.text("Sigmoid token_scores > scores")
    if not suppress:
        g.output(boxes, "N", TOKENS, 4, name="boxes")
        g.output(scores, "N", TOKENS, CLASSES, name="scores")
        return
    kept = g.text(f"Transpose {scores} > t perm=[0,2,1]; NonMaxSuppression {boxes} t [2] [.5] [.1] > kept")
    g.output(kept, "K", 3, dtype=np.int64)


def _detector_heads(g: Graph) -> None:
    g.output("token_scores", "N", TOKENS, CLASSES, name="cls")
    g.output(g.text("MatMul tokens draw(8,4) > loc"), "N", TOKENS, 4, name="loc")


refused("boxes and scores", "", partial(_detection, suppress=False))
refused("boxes after NonMaxSuppression", "", partial(_detection, suppress=True))
refused("SSD: boxes beside scores of each", "detector|boxes", _detector_heads)


def _class_beside(g: Graph, name: str, numbers: int) -> None:
    g.output("gemm", name="label")
    g.output(g.text(f"MatMul z draw(8,{numbers}) > numbers"), "N", numbers, name=name)


form("a class beside one box", partial(_class_beside, name="bbox", numbers=4), route="several")
_age = partial(_class_beside, name="age", numbers=1)
form("a class beside a regression", _age, choose={"output": "label"}, route="several")

# as BERT answers multiple choice
_CHOICES = "Reshape tokens [-1,8] > rows; MatMul rows draw(8,1) > s; Reshape s [-1,4] > y"
refused("one vector for each of several choices", "choice", _CHOICES, shape=("N", TOKENS))
refused("one vector for each of any number of choices", "how many", _CHOICES, shape=("N", "choices"))


def _sequence(g: Graph) -> None:
    pair = g.text("SequenceConstruct linear > pair")
    g.output_infos.append(helper.make_tensor_sequence_value_info(pair, TensorProto.FLOAT, None))


def _regressor(g: Graph) -> None:
    flags = {"coefficients": g.weight[0].tolist(), "intercepts": [0.5]}
    g.output(g.node("LinearRegressor", "x", domain=ML, **flags), "N", 1)


refused("sequence of tensors", "", _sequence)
refused("regression", "", lambda g: g.output("gemm"), classes=1)
refused("regression, squeezed", "", "Squeeze gemm [1] > y", shape=("N",), classes=1)
refused("regression, Relu", "", "Relu gemm > y", classes=1)
refused("LinearRegressor", "", _regressor)

_ORDER = "[3,0,4,1,2]"


def _permuted(name: str, text: str, truth: str = f"W[{_ORDER}]") -> None:
    form(f"classes in another order{name}", text, truth=truth)


_permuted("", f"Gather linear {_ORDER} > y axis=1")
_permuted(", Gemm", f"Gather gemm {_ORDER} > y axis=1")
_permuted(", bias behind", f"MatMul z W.T > p; Gather p {_ORDER} > s axis=1; Add s b > y")
_permuted(
    ", scaled in front and behind",
    f"MatMul z W.T > p; Mul p [1.,1.5,2.,2.5,3.] > q; Gather q {_ORDER} > r axis=1; Div r [1.,1.5,2.,2.5,3.] > y",
    "(W*np.linspace(1,3,5)[:,None])[[3,0,4,1,2]]/np.linspace(1,3,5)[:,None]",
)
_permuted(", twice", f"Gather linear {_ORDER} > s axis=1; Gather s {_ORDER} > y axis=-1", f"W[{_ORDER}][{_ORDER}]")
_permuted(", Softmax", f"Gather linear {_ORDER} > s axis=1; Softmax s > y")

refused("embedding divided by its own length", "", "ReduceL2 linear > n axes=[1] keepdims=1; Div linear n > y")
refused("embedding, LpNormalization", "", "LpNormalization linear > y axis=1 p=2")
# the classes of the output are not the vectors of the layer
_FIELDS = "Reshape gemm [-1,2,3] > fields"
refused("several softmaxes of one layer", "", f"{_FIELDS}; Softmax fields > y axis=-1", shape=("N", 2, 3), classes=6)
refused("averaged over the classes", "", "ReduceMean gemm > y axes=[1] keepdims=1", shape=("N", 1), classes=6)
refused(
    "largest of several vectors a class",
    "",
    f"{_FIELDS}; ReduceMax fields > y axes=[1] keepdims=0",
    shape=("N", 3),
    classes=6,
)

# the classes that are not chosen keep their vectors
_SOME, _REST = "some of the layer's classes", "all but the first of the layer's classes"
for _name, _text, _width, _truth in (
    (_SOME, "Gather gemm [4,0,2] > y axis=1", 3, "W[[4,0,2]]"),
    (
        f"{_SOME}, from the end, scaled",
        "Mul linear np.linspace(1,3,6) > s; Gather s [-1,0] > y axis=-1",
        2,
        "(W*np.linspace(1,3,6)[:,None])[[-1,0]]",
    ),
    (_REST, "Slice gemm [1] [6] [1] > y", 5, "W[1:]"),
    (f"{_REST}, MatMul and Add", "Slice linear [1] [2**31-1] [-1] > y", 5, "W[1:]"),
    (f"{_REST}, Softmax", "Slice gemm [1] [2**31-1] [1] > s; Softmax s > y", 5, "W[1:]"),
    ("every other of the layer's classes", "Slice gemm [0] [2**63-1] [1] [2] > y", 3, "W[::2]"),
    (f"{_SOME}, Split", "Split gemm [2,4] > first y axis=1", 4, "W[2:]"),
):
    form(_name, _text, shape=("N", _width), truth=_truth, classes=6)
_permuted(
    ", as torch's newer exporter writes it",
    "Transpose gemm > t perm=[1,0]; GatherND t [[3],[0],[4],[1],[2]] > s; Transpose s > y perm=[1,0]",
)
refused("Softmax over the tokens, then token 0", "", "Softmax token_scores > p axis=1; Gather p 0 > y axis=1")

# --- scores that are masked

form("scores of some classes masked", "Where [True,True,False,True,True] gemm -1e4 > y")
form("scores masked by the input", "Slice x [0] [1] [1] > first; Greater first 2.0 > mask; Where mask 0.0 gemm > y")


CASES: tuple[Case, ...] = tuple(_CASES)
