"""A model -> its linear head, or the reason why a graph output has none.

From a graph output the walk goes backwards, and every step keeps the identity

    logits = (features @ weight.T) * weight_scale + bias * bias_scale          (N, C)

1. Softmax and LogSoftmax over the last axis end the logits; Sigmoid too. At most one of them.
2. Identity, Cast, Dropout, Reshape, Flatten, Squeeze and Unsqueeze pass (the numbers are checked at run time).
3. Mul and Div by a constant of one element, or one per class, multiply both scales that lie behind them.
4. Add of a constant is the bias, once, and only in front of a MatMul.
5. Gemm (any flags) or MatMul with a constant right operand is the head.

Anything else is a refusal with the node and the reason. A refusal is a value; `choose_head` raises.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.load import Model, node_label, type_name
from tna_onnx.graph.nodes import PREFIX
from tna_onnx.graph.stored import FLOAT_TYPES, Refused, Stored, resolve

__all__ = ["Head", "Refusal", "choose_head", "find_heads"]

_PASSED = ("Identity", "Cast", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze")
_BINARY = ("Gemm", "MatMul", "Add", "Mul", "Div")
_ACTIVATIONS = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Sigmoid": "sigmoid"}


@dataclass(frozen=True)
class Refusal:
    """Why the walk from a graph output found no head: at which node, and what followed that node."""

    output: str
    node: str
    reason: str
    activation: str = "none"


@dataclass(frozen=True, eq=False)
class Head:
    """The last linear layer, seen from one graph output.

    Attributes:
        node: label of the Gemm or MatMul node.
        op_type: its operator.
        output: the graph output that the walk started from.
        logits: tensor that holds the logits: input of the Softmax, or the output itself.
        activation: what follows the logits: none, softmax, log_softmax or sigmoid.
        follows: operators between the linear layer and the graph output, in the order of execution.
        features: tensor that holds the features, (N, n).
        features_transposed: the tensor is (n, N) instead (Gemm with transA).
        stored_weight: the constant behind the weight, read as (C, n), or as (n, C) if `weight_transposed`.
        weight_transposed: the node reads (n, C): MatMul, or Gemm without transB.
        stored_bias: the constant behind the bias, if there is one; it broadcasts to (C,).
        weight_scale: constant factor on features @ weight.T, float64, shape () or (C,).
        bias_scale: the same for the bias.
        logits_type: NumPy name of the logits' dtype.
    """

    node: str
    op_type: str
    output: str
    logits: str
    activation: str
    follows: tuple[str, ...]
    features: str
    features_transposed: bool
    stored_weight: Stored
    weight_transposed: bool
    stored_bias: Stored | None
    weight_scale: NDArray[np.float64]
    bias_scale: NDArray[np.float64]
    logits_type: str

    @property
    def binary(self) -> bool:
        """One logit with a Sigmoid: its two classes have the logits 0 and s, so the first class vector is zero."""
        return self.activation == "sigmoid" and self._class_vectors.shape[0] == 1

    @property
    def n_classes(self) -> int:
        """Number of classes C; 2 for a binary head."""
        return 2 if self.binary else int(self._class_vectors.shape[0])

    @property
    def n_features(self) -> int:
        """Length n of the features."""
        return int(self._class_vectors.shape[1])

    @property
    def _class_vectors(self) -> NDArray[Any]:
        return self.stored_weight.value.T if self.weight_transposed else self.stored_weight.value

    @cached_property
    def weight(self) -> NDArray[Any]:
        """(C, n) class vectors with the constant scale in them; float32, or float64 where the file has that."""
        value = self._class_vectors.astype(np.float64) * _column(self.weight_scale)
        if self.binary:
            value = np.concatenate([np.zeros_like(value), value])
        return np.ascontiguousarray(value, self.working_type)

    @cached_property
    def bias(self) -> NDArray[Any]:
        """(C,) bias with the constant scale in it, zeros where the head has none."""
        if self.stored_bias is None:
            return np.zeros(self.n_classes, self.working_type)
        flat = self.stored_bias.value.astype(np.float64).reshape(-1) * self.bias_scale
        if self.binary:
            flat = np.append(0.0, flat)
        return np.array(np.broadcast_to(flat, (self.n_classes,)), self.working_type)

    def class_logits(self, raw: NDArray[Any]) -> NDArray[Any]:
        """Return the logits tensor as (N, C): (N,) or (N, 1) of a binary head gets its zero column.

        Raises:
            ValueError: another shape.
        """
        if self.binary:
            column = raw.reshape(len(raw), 1)
            return np.concatenate([np.zeros_like(column), column], axis=1)
        if raw.ndim != 2 or raw.shape[1] != self.n_classes:
            raise ValueError(f"logits have shape {raw.shape}")
        return raw

    @property
    def working_type(self) -> type[np.floating[Any]]:
        """Dtype of the numerics for this head: float64 for a float64 head, else float32."""
        return np.float64 if self.stored_weight.value.dtype == np.float64 else np.float32

    def as_read(self, weight: NDArray[Any]) -> NDArray[np.float64]:
        """Return a (C, n) weight, in the scale of `weight`, as the node reads it."""
        own = weight[1:] if self.binary else weight
        value: NDArray[np.float64] = own.astype(np.float64) / _column(self.weight_scale)
        return value.T if self.weight_transposed else value


def _column(scale: NDArray[np.float64]) -> NDArray[np.float64]:
    return scale[:, None] if scale.ndim else scale


def find_heads(model: Model) -> tuple[tuple[Head, ...], tuple[Refusal, ...]]:
    """Walk back from every graph output. Outputs that lead to no head give a refusal."""
    heads, refusals = [], []
    for output in model.outputs:
        walk = _Walk(model, output)
        try:
            heads.append(walk.run())
        except Refused as refused:
            refusals.append(Refusal(output, walk.where, str(refused), walk.activation))
    return tuple(heads), tuple(refusals)


def choose_head(model: Model, node: str | None = None) -> Head:
    """Return the one head of a model; of several outputs behind it, the first (logits before probabilities).

    Args:
        model: the model.
        node: label of the linear node, where there are several.

    Raises:
        UnsupportedModel: no head, several heads, or `node` is not one of them.
    """
    heads, refusals = find_heads(model)
    found = {head.node: head for head in reversed(heads)}
    reasons = "".join(f"\n  output '{r.output}', at {r.node}: {r.reason}" for r in refusals)
    if node is not None:
        if node in found:
            return found[node]
        known = f"; heads found: {', '.join(found)}" if found else "; no head was found"
        raise UnsupportedModel(f"{model.path}: node '{node}' is not a linear head that can be replaced{known}{reasons}")
    if not found:
        raise UnsupportedModel(f"{model.path}: no linear head found (`tna-onnx inspect` shows the same){reasons}")
    if len(found) > 1:
        listing = ", ".join(f"{head.node} (output '{head.output}')" for head in found.values())
        raise UnsupportedModel(f"{model.path}: {len(found)} heads found: {listing}; choose one with --head NODE")
    return next(iter(found.values()))


@dataclass(eq=False)
class _Walk:
    """State of one backward walk; `run` is the module's rules in order."""

    model: Model
    output: str
    where: str = "the output"
    logits: str = ""
    activation: str = "none"
    follows: list[str] = field(default_factory=list)
    scale: NDArray[np.float64] = field(default_factory=lambda: np.ones(()))
    bias: Stored | None = None
    bias_scale: NDArray[np.float64] = field(default_factory=lambda: np.ones(()))
    cast_to: str | None = None

    def run(self) -> Head:
        tensor, self.logits, reader = self.output, self.output, len(self.model.proto.graph.node)
        while True:
            index = self.model.producers.get(tensor)
            if index is None:
                self.where = f"tensor '{tensor}'"
                raise Refused("the walk ends here without passing a linear layer")
            node, self.where = self.model.proto.graph.node[index], node_label(self.model, index)
            if index >= reader:
                raise Refused(f"the nodes are not in topological order: '{tensor}' is read before it is computed")
            reader, wanted = index, 2 if node.op_type in _BINARY else 1
            if len(node.input) < wanted:
                raise Refused(f"{node.op_type} has {len(node.input)} inputs; expected at least {wanted}")
            if node.domain not in ("", "ai.onnx"):
                raise Refused(f"{node.op_type} of domain {node.domain} is not a linear layer that can be replaced")
            if node.op_type in ("Gemm", "MatMul"):
                return self._head(node, index)
            tensor = self._back(node, tensor, index)
            self.follows.insert(0, node.op_type)

    def _back(self, node: onnx.NodeProto, tensor: str, index: int) -> str:
        """Take one step back through a node that may follow a head; returns the tensor before it."""
        if node.op_type in _ACTIVATIONS:
            return self._activation(node)
        if node.op_type in _PASSED:
            if tensor != node.output[0]:
                raise Refused(f"'{tensor}' is a side output of {node.op_type}")
            if node.op_type == "Cast":
                self._cast(node)
            return str(node.input[0])
        if node.op_type in ("Mul", "Div"):
            return self._scaled(node, index)
        if node.op_type == "Add":
            return self._added(node, index)
        ours = node.name.startswith(f"{PREFIX}/")
        raise Refused(
            f"{node.op_type} is neither a linear layer nor one of the operators that may follow it"
            + ("; tna-onnx wrote this node: start from the original model" if ours else "")
        )

    def _activation(self, node: onnx.NodeProto) -> str:
        if self.activation != "none":
            raise Refused(f"a second activation: {node.op_type} before {self.activation}")
        if self.scale.ndim or self.scale != 1 or self.bias is not None:
            raise Refused(f"the result of {node.op_type} is scaled or shifted before the output")
        if node.op_type != "Sigmoid":
            axis = next((a.i for a in node.attribute if a.name == "axis"), 1 if self.model.opset < 13 else -1)
            if axis not in (1, -1):
                raise Refused(f"{node.op_type} over axis {axis}; expected the class axis, 1 of (N, C)")
        self.activation, self.logits = _ACTIVATIONS[node.op_type], str(node.input[0])
        self.cast_to = None
        return self.logits

    def _cast(self, node: onnx.NodeProto) -> None:
        to = next((a.i for a in node.attribute if a.name == "to"), 0)
        if to not in FLOAT_TYPES:
            raise Refused(f"Cast to {type_name(to)}, which is not float32, float16 or float64")
        self.cast_to = self.cast_to or FLOAT_TYPES[to]

    def _scaled(self, node: onnx.NodeProto, index: int) -> str:
        data, constant = self._constant_operand(node, index)
        value = constant.value.astype(np.float64).reshape(-1)
        if constant.value.ndim and constant.value.shape[-1] != value.size:
            raise Refused(
                f"{node.op_type} by a constant of shape {constant.value.shape}; expected one value, or one a class"
            )
        if not np.all(np.isfinite(value)) or np.any(value == 0):
            raise Refused(f"{node.op_type} by a constant with zero or non-finite values")
        factor = value[0] if value.size == 1 else value
        if np.ndim(factor) and self.scale.ndim and factor.shape != self.scale.shape:
            raise Refused(f"{node.op_type} by {value.size} values, and by {self.scale.size} values behind it")
        self.scale = np.asarray(self.scale * factor if node.op_type == "Mul" else self.scale / factor)
        return data

    def _added(self, node: onnx.NodeProto, index: int) -> str:
        if self.bias is not None:
            raise Refused("a second bias is added")
        data, constant = self._constant_operand(node, index)
        self.bias, self.bias_scale = constant, self.scale
        return data

    def _constant_operand(self, node: onnx.NodeProto, index: int) -> tuple[str, Stored]:
        """Split the operands of Mul, Div or Add into (data, constant)."""
        reasons = []
        for data, constant in ((0, 1), (1, 0)):
            if node.op_type == "Div" and constant == 0:
                continue
            try:
                return str(node.input[data]), resolve(self.model, node.input[constant], index)
            except Refused as refused:
                reasons.append(str(refused))
        raise Refused(f"{node.op_type} with no constant operand ({'; '.join(reasons)})")

    def _head(self, node: onnx.NodeProto, index: int) -> Head:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        weight = resolve(self.model, node.input[1], index)
        if weight.value.ndim != 2:
            raise Refused(f"weight '{weight.name}' is {weight.value.ndim}-dimensional; expected a matrix")
        transposed = not attributes.get("transB", 0)
        if node.op_type == "Gemm":
            self._gemm_bias(node, index, float(attributes.get("beta", 1.0)))
            alpha = float(attributes.get("alpha", 1.0))
            if alpha == 0 or (self.bias is not None and not np.all(self.bias_scale)):
                raise Refused("Gemm with alpha or beta of zero")
            self.scale = self.scale * alpha
        classes = weight.value.shape[1 if transposed else 0]
        self._check(weight, classes)
        return Head(
            node=self.where,
            op_type=node.op_type,
            output=self.output,
            logits=self.logits,
            activation=self.activation,
            follows=tuple(self.follows),
            features=node.input[0],
            features_transposed=bool(attributes.get("transA", 0)),
            stored_weight=weight,
            weight_transposed=transposed,
            stored_bias=self.bias,
            weight_scale=np.asarray(self.scale),
            bias_scale=np.asarray(self.bias_scale),
            logits_type=self.cast_to or weight.value.dtype.name,
        )

    def _gemm_bias(self, node: onnx.NodeProto, index: int, beta: float) -> None:
        if len(node.input) < 3 or not node.input[2]:
            return
        if self.bias is not None:
            raise Refused("a second bias is added to the Gemm's own")
        self.bias, self.bias_scale = resolve(self.model, node.input[2], index), np.asarray(self.scale * beta)

    def _check(self, weight: Stored, classes: int) -> None:
        if classes < 2 and self.activation != "sigmoid":
            raise Refused(f"weight '{weight.name}' has {classes} class vector; a classifier has at least 2 logits")
        if not np.all(np.isfinite(weight.value)):
            raise Refused(f"weight '{weight.name}' holds NaN or infinite values")
        if self.scale.ndim and self.scale.shape[0] not in (1, classes):
            raise Refused(f"logits are scaled by {self.scale.shape[0]} values, but there are {classes} classes")
        if self.bias is not None:
            if not np.all(np.isfinite(self.bias.value)):
                raise Refused(f"bias '{self.bias.name}' holds NaN or infinite values")
            size = self.bias.value.size
            if size not in (1, classes) or (self.bias.value.ndim and self.bias.value.shape[-1] != size):
                raise Refused(f"bias '{self.bias.name}' has shape {self.bias.value.shape}; expected ({classes},)")
