"""Walk from an output up to the linear layer that makes its scores."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tna_onnx.graph.constants import made_from_constants
from tna_onnx.graph.floats import FLOAT_TYPES
from tna_onnx.graph.linear import Linear, is_linear, is_quantized, read_linear
from tna_onnx.graph.load import Model, node_label, subgraph_inputs, type_name
from tna_onnx.graph.nodes import PREFIX
from tna_onnx.graph.readout import Head, Refusal
from tna_onnx.graph.stored import Refused, Stored, resolve

__all__ = ["MULTI_LABEL", "_MOST_FORKS", "Walk", "ancestors"]


_ACTIVATIONS = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Sigmoid": "sigmoid"}


_PASSED = {"Identity", "Cast", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze"}


_ALIGNED = {
    "Transpose",
    "Gather",
    "GatherND",
    "GatherElements",
    "Slice",
    "ReduceMean",
    "GlobalAveragePool",
    "AveragePool",
    "Split",
}


_HOMOGENEOUS = {"Relu", "LeakyRelu", "PRelu", "GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceSum", "Expand"}


_CURVED = {
    "BatchNormalization", "Clip", "Elu", "Selu", "Celu", "ThresholdedRelu", "Tanh", "Softplus", "Softsign",
    "HardSigmoid", "HardSwish", "Erf", "Gelu", "Mish", "Swish", "QuantizeLinear", "DequantizeLinear",
}  # fmt: skip


_TWO_SIDED = {"Add", "Sub", "Mul", "Div", "Sum"}


_STANDARD = ("", "ai.onnx")


_MOST_FORKS = 4


_LEAST = {"Gemm": 2, "MatMul": 2, "Add": 2, "Mul": 2, "Div": 2, "Sub": 2, "Conv": 2, "FusedGemm": 2, "FusedMatMul": 2,
    "BatchNormalization": 5,
}  # fmt: skip


@dataclass
class Walk:
    """State of one backward walk; `run` is the module's rules in order.

    `beside` collects the tensors that change the scores from the side; none may come from the linear layer itself.
    """

    model: Model
    output: str
    tensor: str = ""
    reader: int = -1
    where: str = "the output"
    logits: str = ""
    holds: str = "logits"
    activation: str = "none"
    paired: bool = False
    summed: bool = False
    aligned: bool = False
    logged: bool = False
    labels: tuple[int | str, ...] = ()
    follows: tuple[str, ...] = ()
    scale: NDArray[np.float64] = field(default_factory=lambda: np.ones(()))
    bias: Stored | None = None
    bias_scale: NDArray[np.float64] = field(default_factory=lambda: np.ones(()))
    linear: bool = True
    homogeneous: bool = True
    step: float = 0.0
    output_step: float = 0.0
    cast_to: str = ""
    beside: tuple[str, ...] = ()
    forks: int = 0

    @property
    def node(self) -> onnx.NodeProto | None:
        """The node that the walk has reached."""
        return self.model.producer(self.tensor)

    def attempt(self) -> Head | Refusal:
        """Walk; a refusal is returned, and the state tells how far it got."""
        try:
            return self.run()
        except Refused as refused:
            return Refusal(self.output, self.where, str(refused), self.activation)
        except RecursionError:
            return Refusal(
                self.output, self.where, "the chain of nodes before it is too long to follow", self.activation
            )

    def run(self) -> Head:
        """Walk to the linear layer.

        Raises:
            Refused: there is none.
        """
        if self.reader < 0:
            self.tensor, self.logits, self.reader = self.output, self.output, len(self.model.proto.graph.node)
        while True:
            index = self.model.producers.get(self.tensor)
            if index is None:
                self.where = f"tensor '{self.tensor}'"
                raise Refused("the walk ends here without passing a linear layer")
            node, self.where = self.model.proto.graph.node[index], node_label(self.model, index)
            if index >= self.reader:
                raise Refused(f"the nodes are not in topological order: '{self.tensor}' is read before it is computed")
            wanted = _LEAST.get(node.op_type, 0 if node.op_type == "Constant" else 1)
            if len(node.input) < wanted:
                raise Refused(f"{node.op_type} has {len(node.input)} inputs; expected at least {wanted}")
            self.reader = index
            if is_linear(node):
                return self._head(node, index)
            before = self._back(node, index)
            if isinstance(before, Head):
                return before
            self.tensor, self.follows = before, (node.op_type, *self.follows)

    def _back(self, node: onnx.NodeProto, index: int) -> str | Head:
        """Take one step back through a node that may follow a head: the tensor before it, or the head at a fork."""
        kind = node.op_type
        if is_quantized(node):
            raise Refused(
                f"{kind} computes with quantised numbers, and its weight cannot be replaced; calibrate the float model "
                "and quantise the result, or export it with QuantizeLinear and DequantizeLinear nodes (QDQ)"
            )
        if node.domain == "ai.onnx.ml" and kind in ("ZipMap", "Normalizer"):
            return self._zipmap(node) if kind == "ZipMap" else self._normalizer(node)
        if node.domain not in _STANDARD and not (node.domain == "com.microsoft" and kind in _CURVED):
            raise Refused(_not_linear(node))
        before: str | Head | None = None
        if kind in _ACTIVATIONS:
            before = self._activation(node)
        elif kind in _PASSED | _ALIGNED | _HOMOGENEOUS | _CURVED:
            before = self._passed(node, index)
        elif kind == "Neg":
            before, self.scale = str(node.input[0]), -self.scale
        elif kind in ("Log", "Exp"):
            before = self._log_or_exp(node)
        elif kind in _TWO_SIDED:
            before = self._two_sided(node, index)
        elif kind == "Concat":
            before = self._pair(node)
        if before is not None:
            return before
        ours = node.name.startswith(f"{PREFIX}/")
        raise Refused(
            f"{kind} is neither a linear layer nor one of the operators that may follow it"
            + ("; tna-onnx wrote this node: start from the original model" if ours else "")
        )

    # --- from the output to the logits

    def _zipmap(self, node: onnx.NodeProto) -> str:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        names = (label.decode(errors="replace") for label in attributes.get("classlabels_strings", ()))
        self.labels = tuple(attributes.get("classlabels_int64s", ())) or tuple(names)
        return self._before_output(node)

    def _normalizer(self, node: onnx.NodeProto) -> str:
        norm = next((a.s for a in node.attribute if a.name == "norm"), b"MAX")
        if norm != b"L1":
            raise Refused(
                f"Normalizer with norm {norm.decode(errors='replace')}; expected L1, which makes probabilities"
            )
        return self._normalized(str(node.input[0]))

    def _normalized(self, inner: str) -> str:
        """Pass the division of probabilities by their sum: what comes out of it is what can be calibrated."""
        self._plain("probabilities that are normalised")
        if self.activation != "none":
            raise Refused(f"normalised scores before {self.activation}")
        self.holds, self.summed, self.logits, self.cast_to = "probabilities", True, self.tensor, ""
        return inner

    def _pair(self, node: onnx.NodeProto) -> str | None:
        """Pass Concat(1 - p, p) of a binary model; None if it is not that."""
        if len(node.input) != 2 or self.paired:
            return None
        first = self.model.producer(node.input[0])
        if first is None or first.op_type != "Sub" or len(first.input) != 2 or first.input[1] != node.input[1]:
            return None
        one = self.model.constant_tensor(first.input[0])
        if one is None or not np.all(self.model.floats(one) == 1):
            return None
        self.paired = True
        return self._before_output(node, 1)

    def _before_output(self, node: onnx.NodeProto, position: int = 0) -> str:
        """Pass a node between the activation and the output."""
        self._plain(node.op_type)
        if self.activation != "none":
            raise Refused(f"{node.op_type} before {self.activation}")
        self.logits, self.cast_to = str(node.input[position]), ""
        return self.logits

    def _activation(self, node: onnx.NodeProto) -> str:
        kind = node.op_type
        if self.activation != "none":
            raise Refused(f"a second activation: {kind} before {self.activation}")
        self._plain(f"the result of {kind}")
        if kind != "Sigmoid":
            axis = next((a.i for a in node.attribute if a.name == "axis"), 1 if self.model.opset < 13 else -1)
            if axis not in (1, -1):
                raise Refused(f"{kind} over axis {axis}; expected the class axis, 1 of (N, C)")
        if self.paired and kind != "Sigmoid":
            raise Refused(f"1 - p beside the p of a {kind}")
        if self.summed:  # the sum is over this activation's results: there is no tensor of logits
            if kind == "LogSoftmax":
                raise Refused("the result of LogSoftmax is divided by its sum")
            if kind == "Sigmoid":
                self._graph_only(homogeneous=False)
            return str(node.input[0])
        if self.logged and kind != "Softmax":
            raise Refused(f"the log of {kind}")
        self.activation = "log_softmax" if self.logged else _ACTIVATIONS[kind]
        self.logits, self.cast_to = str(node.input[0]), ""
        return self.logits

    def _log_or_exp(self, node: onnx.NodeProto) -> str | None:
        """Pass the Log of a Softmax, or the Exp of a softmax that is written out; None if it is neither."""
        inner = self.model.producer(node.input[0])
        if node.op_type == "Log" and self.activation == "none" and inner is not None and inner.op_type == "Softmax":
            self._plain("the log of probabilities")
            self.logged = True
            return str(node.input[0])
        if node.op_type == "Exp" and self.summed:
            self.summed, self.holds, self.activation = False, "logits", "softmax"
            shifted = inner is not None and inner.op_type == "Sub" and self._subtracts_own_maximum(inner)
            self.logits = str(inner.input[0] if inner is not None and shifted else node.input[0])
            return self.logits
        return None

    def _subtracts_own_maximum(self, node: onnx.NodeProto) -> bool:
        if len(node.input) < 2:
            return False
        largest = self.model.producer(node.input[1])
        return largest is not None and largest.op_type == "ReduceMax" and largest.input[0] == node.input[0]

    def _plain(self, what: str) -> None:
        """Refuse what comes between probabilities and the output, other than a change of shape, type or resolution."""
        if self.scale.ndim or self.scale != 1 or self.bias is not None or not self.linear or self.aligned:
            raise Refused(f"{what} is scaled, shifted or changed in another way before the output")
        self.output_step, self.step = max(self.output_step, self.step), 0.0

    # --- from the logits to the linear layer

    def _passed(self, node: onnx.NodeProto, index: int) -> str:
        if self.tensor != node.output[0] and node.op_type != "Split":
            raise Refused(f"'{self.tensor}' is a side output of {node.op_type}")
        if node.op_type == "Cast":
            self._cast(node)
        self.beside = (*self.beside, *(name for name in node.input[1:] if name))
        self.aligned |= node.op_type in _ALIGNED
        if node.op_type == "QuantizeLinear":
            self._quantized(node)
        elif node.op_type == "BatchNormalization":
            self._batch_norm(node, index)
        elif node.op_type in _HOMOGENEOUS | _CURVED and node.op_type != "DequantizeLinear":
            self._graph_only(homogeneous=node.op_type in _HOMOGENEOUS)
        return str(node.input[0])

    def _quantized(self, node: onnx.NodeProto) -> None:
        scale = self.model.constant_tensor(node.input[1]) if len(node.input) > 1 else None
        if scale is None:
            raise Refused("QuantizeLinear with a scale that is not a constant")
        self.step = max(self.step, float(np.max(self.model.floats(scale), initial=0)))

    def _batch_norm(self, node: onnx.NodeProto, index: int) -> None:
        """Take in the factor per class; the offset stays with the graph."""
        gamma, _, _, variance = (resolve(self.model, name, index).value.astype(np.float64) for name in node.input[1:5])
        epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
        factor = gamma / np.sqrt(variance + epsilon)
        if not np.all(np.isfinite(factor)) or np.any(factor == 0):
            raise Refused("BatchNormalization with zero or non-finite factors")
        if factor.ndim != 1 or (self.scale.ndim and self.scale.shape != factor.shape):
            raise Refused(f"BatchNormalization of {factor.size} channels, and factors of {self.scale.size} behind it")
        self.scale = np.asarray(self.scale * factor)
        self._graph_only(homogeneous=False)

    def _graph_only(self, *, homogeneous: bool) -> None:
        self.linear = False
        self.homogeneous = self.homogeneous and homogeneous

    def _cast(self, node: onnx.NodeProto) -> None:
        to = next((a.i for a in node.attribute if a.name == "to"), 0)
        if to not in FLOAT_TYPES:
            raise Refused(f"Cast to {type_name(to)}, which is not {', '.join(FLOAT_TYPES.values())}")
        self.cast_to = self.cast_to or FLOAT_TYPES[to]

    def _two_sided(self, node: onnx.NodeProto, index: int) -> str | Head:
        """Pass Add, Sub, Sum, Mul or Div: with a constant, or with something that no linear layer makes."""
        if node.op_type == "Div" and self._divides_by_own_sum(node):
            return self._normalized(str(node.input[0]))
        operands = list(dict.fromkeys(node.input))
        constants = [name for name in operands if made_from_constants(self.model, name) is not None]
        if len(operands) == len(constants) + 1:
            data = str(next(name for name in operands if name not in constants))
            for name in constants:  # Sum may have several
                self._with_constant(node, data, resolve(self.model, name, index))
            return data
        return self._fork(node, operands)

    def _with_constant(self, node: onnx.NodeProto, data: str, constant: Stored) -> None:
        behind = node.input[0] != data
        if node.op_type == "Div" and behind:
            raise Refused(f"Div with the constant '{constant.read_as}' in front")
        if node.op_type in ("Mul", "Div"):
            self._scaled(node, constant)
            return
        minus = node.op_type == "Sub" and not behind
        if self.bias is None:
            self.bias, self.bias_scale = constant, -self.scale if minus else self.scale
        else:
            self._graph_only(homogeneous=False)
        if node.op_type == "Sub" and behind:
            self.scale = -self.scale

    def _scaled(self, node: onnx.NodeProto, constant: Stored) -> None:
        value = constant.value.astype(np.float64).reshape(-1)
        if constant.value.ndim and value.size not in constant.value.shape:
            raise Refused(
                f"{node.op_type} by a constant of shape {constant.value.shape}; expected one value, or one a class"
            )
        if not np.all(np.isfinite(value)) or np.any(value == 0):
            raise Refused(f"{node.op_type} by a constant with zero or non-finite values")
        factor = value[0] if value.size == 1 else value
        if np.ndim(factor) and self.scale.ndim and factor.shape != self.scale.shape:
            raise Refused(f"{node.op_type} by {value.size} values, and by {self.scale.size} values behind it")
        self.scale = np.asarray(self.scale * factor if node.op_type == "Mul" else self.scale / factor)

    def _divides_by_own_sum(self, node: onnx.NodeProto) -> bool:
        divisor = self.model.producer(node.input[1])
        while divisor is not None and divisor.op_type in ("Reshape", "Unsqueeze", "Clip", "Expand"):
            divisor = self.model.producer(divisor.input[0]) if divisor.input else None
        return (
            divisor is not None
            and divisor.op_type in ("ReduceSum", "ReduceL1")
            and len(divisor.input) > 0
            and divisor.input[0] == node.input[0]
        )

    def _fork(self, node: onnx.NodeProto, operands: list[str]) -> Head:
        """Follow two operands of Mul or Div: one comes from the linear layer, the other from none but the trunk's."""
        if len(operands) < 2:
            raise Refused(f"{node.op_type} of '{operands[0]}' with itself")
        if node.op_type not in ("Mul", "Div"):
            raise Refused(f"{node.op_type} of two tensors that are computed from data: {', '.join(operands)}")
        if self.forks >= _MOST_FORKS:
            raise Refused(f"more than {_MOST_FORKS} products of tensors that are computed from data")
        found: dict[str, Head] = {}
        reasons = []
        for name in operands:
            beside = (*self.beside, *(other for other in operands if other != name))
            branch = replace(
                self, tensor=name, beside=beside, follows=(node.op_type, *self.follows), forks=self.forks + 1
            )
            branch._graph_only(homogeneous=True)
            try:
                found[name] = branch.run()
            except Refused as refused:
                reasons.append(f"'{name}': {refused}" if name in self.model.producers else str(refused))
        if not found:
            raise Refused(f"{node.op_type} with no constant operand ({'; '.join(reasons)})")
        if len(found) > 1:
            raise Refused(f"{node.op_type} of two linear layers: {' and '.join(head.node for head in found.values())}")
        ((name, head),) = found.items()
        if node.op_type == "Div" and node.input[0] != name:
            raise Refused(f"Div with the linear layer {head.node} behind")
        trunk = ancestors(self.model, head.features)
        for other in operands:
            own = ancestors(self.model, other) - trunk if other != name else set()
            nodes = [self.model.proto.graph.node[k] for k in sorted(own)]
            if gate := next((n for n in nodes if is_linear(n) or is_quantized(n)), None):
                raise Refused(
                    f"{node.op_type} of the linear layer {head.node} and of another, {gate.name or gate.op_type}"
                )
        return head

    def _head(self, node: onnx.NodeProto, index: int) -> Head:
        if self.tensor != node.output[0] and node.op_type != "LinearClassifier":
            raise Refused(f"'{self.tensor}' is a side output of {node.op_type}")
        if dependent := next((name for name in self.beside if index in ancestors(self.model, name)), None):
            raise Refused(f"'{dependent}', which is computed from the scores of this layer, changes them")
        if node.name.startswith(f"{PREFIX}/"):
            raise Refused("tna-onnx wrote this node: start from the original model")
        layer = read_linear(self.model, index, self.tensor)
        if kind := self._normalized_features(layer.features):
            raise Refused(f"its features are the result of {kind}: a layer behind probabilities is no head")
        self._linked(layer)
        self._own_bias(layer)
        if self.step:
            self._graph_only(homogeneous=False)
        vectors = layer.vectors
        self._check(layer, vectors)
        single = len(vectors) == 1
        return Head(
            output=self.output,
            logits=self.logits,
            logits_type=self.cast_to or layer.weight.value.dtype.name,
            holds=self.holds,
            activation=self.activation,
            follows=self.follows,
            binary=single and node.op_type != "LinearClassifier",
            paired=self.paired,
            n_classes=layer.classes or max(2, len(vectors)),
            labels=self.labels or layer.labels,
            output_step=self.output_step,
            node=self.where,
            op_type=node.op_type,
            features=layer.features,
            features_transposed=layer.features_transposed,
            stored_weight=layer.weight,
            orient=layer.orient,
            stored_bias=self.bias,
            bias_orient=layer.bias_orient if self.bias is layer.bias else (),
            weight_scale=np.asarray(self.scale * layer.scale),
            bias_scale=np.asarray(self.bias_scale),
            linear=self.linear,
            homogeneous=self.homogeneous,
            step=self.step,
        )

    def _normalized_features(self, tensor: str) -> str:
        """Softmax, if that makes a tensor, through changes of shape or type; else an empty string."""
        node = self.model.producer(tensor)
        while node is not None and node.op_type in _PASSED and node.input:
            node = self.model.producer(node.input[0])
        return str(node.op_type) if node is not None and node.op_type in ("Softmax", "LogSoftmax") else ""

    def _own_bias(self, layer: Linear) -> None:
        if layer.bias is None:
            return
        if self.bias is None:
            self.bias, self.bias_scale = layer.bias, np.asarray(self.scale * layer.bias_scale)
        else:
            self._graph_only(homogeneous=False)

    def _linked(self, layer: Linear) -> None:
        """Take in what the linear node itself does to its scores."""
        if layer.link in ("none", "softmax", "sigmoid"):
            if layer.link == "none":
                return
            self._plain(f"the {layer.link} of the linear layer")
            if self.activation != "none":
                raise Refused(f"a second activation: {layer.link} in the linear layer before {self.activation}")
            self.holds = "probabilities"
            if layer.link == "sigmoid" and len(layer.vectors) > 1:
                if not self.summed:
                    raise Refused(f"{len(layer.vectors)} {MULTI_LABEL}")
                self._graph_only(homogeneous=False)
            return
        self._graph_only(homogeneous=layer.link in ("relu", "leakyrelu"))

    def _check(self, layer: Linear, vectors: NDArray[Any]) -> None:
        rows, weight = len(vectors), layer.weight
        sigmoid = self.activation == "sigmoid" or (layer.link == "sigmoid" and self.holds == "probabilities")
        if rows < 2 and not sigmoid:
            raise Refused(f"weight '{weight.name}' has {rows} class vector; a classifier has at least 2 logits")
        if self.paired and rows > 1:
            raise Refused(f"1 - p beside the p of {rows} scores")
        if rows > 1 and self.activation == "sigmoid":
            raise Refused(f"{rows} {MULTI_LABEL}")
        if not np.all(np.isfinite(vectors)):
            raise Refused(f"weight '{weight.name}' holds NaN or infinite values")
        if self.scale.ndim and self.scale.shape[0] not in (1, rows):
            raise Refused(f"logits are scaled by {self.scale.shape[0]} values, but there are {rows} classes")
        if self.bias is not None:
            if not np.all(np.isfinite(self.bias.value)):
                raise Refused(f"bias '{self.bias.name}' holds NaN or infinite values")
            shape = self.bias.value.shape
            size = self.bias.value.size
            along = size in shape[-3:] or not shape  # all on one axis: (C,), (1, C), or (C, 1, 1) behind a convolution
            if not (along and size in (1, rows)) and layer.bias_orient == ():
                raise Refused(f"bias '{self.bias.name}' has shape {shape}; expected ({rows},)")
        self._check_rank(rows)

    def _check_rank(self, rows: int) -> None:
        """Refuse logits and outputs that are declared with several predictions a sample, or with other classes."""
        graph = self.model.proto.graph
        for info in (*graph.output, *graph.value_info):
            if info.name not in (self.output, self.logits) or not info.type.tensor_type.HasField("shape"):
                continue
            sizes = info.type.tensor_type.shape.dim
            shape = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in sizes]
            text = f"'{info.name}' has shape ({', '.join(map(str, shape))})"
            if len(shape) > 2 and any(d != 1 for d in shape[1:-1]) and any(d != 1 for d in shape[2:]):
                raise Refused(
                    f"{text}: several predictions a sample (tokens, pixels, boxes) are not supported; expected "
                    f"(N, {rows})"
                )
            classes = {rows, 2} if rows == 1 else {rows}
            if len(shape) == 2 and isinstance(shape[1], int) and shape[1] not in classes:
                raise Refused(f"{text}, but the linear layer has {rows} class vectors")


MULTI_LABEL = (
    "logits with a Sigmoid: multi-label classifiers are not supported, expected one logit with a Sigmoid, or one "
    "per class with or without a Softmax"
)


def ancestors(model: Model, tensor: str) -> set[int]:
    """Return the indices of all nodes whose values a tensor is computed from; shapes are no values."""
    todo, seen = [tensor], set()
    while todo:
        k = model.producers.get(todo.pop())
        if k is not None and k not in seen:
            seen.add(k)
            node = model.proto.graph.node[k]
            if node.op_type not in ("Shape", "Size"):
                todo += [*node.input, *subgraph_inputs(node)]
    return seen


def _not_linear(node: onnx.NodeProto) -> str:
    return f"{node.op_type} of domain {node.domain} is not a linear layer that can be replaced"
