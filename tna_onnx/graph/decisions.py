"""Decisions as further outputs of a model: standard nodes behind what classifies, and nothing else is touched.

Two models are written with the same nodes. The first has the scores as outputs: ONNX Runtime computes them for the
samples that the thresholds come from. The second compares them with the thresholds. So a threshold is compared with
numbers that were computed in the same way, to the last bit.

Constants are Constant nodes: initializers would have to be inputs in models of IR version 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import PREFIX, NodeOps
from tna_onnx.graph.outputs import ClassOutput
from tna_onnx.graph.rewrite import METADATA_PREFIX
from tna_onnx.numerics.outliers import OutlierScore

__all__ = ["GUARD", "Guarded", "OutlierInput", "SetScore", "add_decisions", "add_scores"]

GUARD = f"{PREFIX}/guard"
"""How the names of the nodes begin."""

_MIN_OPSET = 9  # Less and Greater
_MIN_SORTING_OPSET = 11  # CumSum and ScatterElements


@dataclass(frozen=True)
class SetScore:
    """How unlikely a class is: it is in the set where its score is at most the threshold.

    `lac` is 1 - p. `aps` is the sum of the probabilities down to the class, itself included; `raps` adds `weight` for
    each class behind the first `free` ones.

    Source: M. Sadinle, J. Lei, L. Wasserman, JASA 114 (2019), section 3; Y. Romano, M. Sesia, E. Candes, NeurIPS 2020,
    equation 5, without its random part; A. Angelopoulos et al., ICLR 2021, equation 4.

    Attributes:
        name: `lac`, `aps` or `raps`.
        free: classes without a penalty.
        weight: penalty for each class behind them.
    """

    name: str = "lac"
    free: int = 0
    weight: float = 0.0


@dataclass(frozen=True, eq=False)
class OutlierInput:
    """An outlier score and the tensors that it reads.

    Attributes:
        formula: of the score.
        logits: tensor of (N, C) logits, or empty.
        features: tensor of (N, n) features, or empty.
        width: n.
    """

    formula: OutlierScore
    logits: str
    features: str
    width: int


@dataclass(frozen=True, eq=False)
class Guarded:
    """What is to be added to a model.

    Attributes:
        output: the output that classifies.
        set_score: of the prediction sets; None without sets.
        outlier: the outlier score; None without one.
    """

    output: ClassOutput
    set_score: SetScore | None
    outlier: OutlierInput | None


def add_scores(model: Model, guarded: Guarded) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return a model that has the scores as outputs too, and their names: `confidence`, `set`, `ood`.

    Raises:
        UnsupportedModel: the opset is too old, or the model has such nodes already.
    """
    ops, scores = _block(model, guarded)
    renamed = {role: _ours(name) for role, name in scores.items()}
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in renamed.values()]
    return _extended(model, ops, outputs), renamed


def add_decisions(
    model: Model,
    guarded: Guarded,
    thresholds: Mapping[str, NDArray[np.float32]],
    names: Mapping[str, str],
    metadata: Mapping[str, str],
) -> onnx.ModelProto:
    """Return a model that has the decisions as outputs too.

    Args:
        model: the source; not modified.
        guarded: what is to be added.
        thresholds: `accept` of the confidence, [] ; `set` of the set score, [] or
            [C]; `ood` of the outlier score, [].
        names: what each output is called, of `confidence`, `accept`, `set`, `ood` and `ood_alarm`; those without a
            name are left out.
        metadata: written into metadata_props under `tna_onnx.`, beside what is there.

    Raises:
        UnsupportedModel: as `add_scores`; or an output has such a name already.
    """
    ops, scores = _block(model, guarded)
    _refuse_names(model, names)
    made = {"confidence": scores["confidence"], "ood": scores.get("ood", "")}
    if "accept" in names:
        made["accept"] = ops.negated("Less", scores["confidence"], ops.const(thresholds["accept"]))
    if "set" in names:
        made["set"] = ops.negated("Greater", scores["set"], ops.const(thresholds["set"]))
    if "ood_alarm" in names:
        made["ood_alarm"] = ops.compared("Greater", scores["ood"], ops.const(thresholds["ood"]))
    batch = _batch_axis(model, guarded.output.name)
    outputs = []
    for role, name in names.items():
        ops.nodes.append(helper.make_node("Identity", [made[role]], [name], name=f"{PREFIX}/{role}"))
        shape = [batch, guarded.output.n_classes] if role == "set" else [batch]
        kind = TensorProto.FLOAT if role in ("confidence", "ood") else TensorProto.BOOL
        outputs.append(helper.make_tensor_value_info(name, kind, shape))
    proto = _extended(model, ops, outputs)
    for key, value in metadata.items():
        proto.metadata_props.add(key=f"{METADATA_PREFIX}{key}", value=value)
    return proto


class _DecisionOps(NodeOps):
    """The words of maps, and those that decisions need besides."""

    def cast(self, a: str) -> str:
        return self._node("Cast", [a], to=TensorProto.FLOAT)

    def largest(self, a: str) -> str:
        """Write the maximum over axis 1, (N,)."""
        return self.reshape(self._reduced("ReduceMax", a), [-1])

    def compared(self, op_type: str, a: str, b: str) -> str:
        return self._node(op_type, [a, b])

    def negated(self, op_type: str, a: str, b: str) -> str:
        """Write a comparison that does not hold: LessOrEqual and GreaterOrEqual are younger than Greater and Less."""
        return self._node("Not", [self._node(op_type, [a, b])])

    def both(self, p: str) -> str:
        """Write (1 - p, p) of the probability (N, 1) of the second class."""
        return self._node("Concat", [self.add(self.const(1.0), self.mul(p, self.const(-1.0))), p], axis=1)

    def sigmoid(self, a: str) -> str:
        return self._node("Sigmoid", [a])

    def exp(self, a: str) -> str:
        return self._node("Exp", [a])

    def summed_down(self, p: str, penalty: NDArray[Any]) -> str:
        """Write the sum of the probabilities from the largest down to each class, and a penalty by rank."""
        classes = len(penalty)
        name = f"{PREFIX}/topk_{len(self.nodes)}"
        values, places = f"{name}_values", f"{name}_places"
        count = self._integers([classes])
        self.nodes.append(helper.make_node("TopK", [p, count], [values, places], name=name, axis=1))
        sums = self._node("CumSum", [values, self._integers(1)])
        if penalty.any():
            sums = self.add(sums, self.const(penalty))
        # back to the order of the classes; every place of p is replaced
        return self._node("ScatterElements", [p, places, sums], axis=1)

    def _integers(self, value: int | list[int]) -> str:
        name = f"{PREFIX}/integers_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.array(value, np.int64), name))
        return name


def _block(model: Model, guarded: Guarded) -> tuple[_DecisionOps, dict[str, str]]:
    """Write the nodes of the scores.

    Raises:
        UnsupportedModel: the opset is too old, or the model has such nodes already.
    """
    needed = _MIN_OPSET
    if guarded.set_score is not None and guarded.set_score.name != "lac":
        needed = _MIN_SORTING_OPSET
    if model.opset < needed:
        raise UnsupportedModel(
            f"{model.name}: has opset {model.opset}, too old for these outputs; convert it to opset {needed} or newer"
        )
    if any(node.name.startswith(f"{GUARD}/") for node in model.proto.graph.node):
        raise UnsupportedModel(f"{model.name}: has been guarded already; guard the model without these outputs")
    ops = _DecisionOps("float32", model.opset)
    p = _probabilities(ops, model, guarded.output)
    scores = {"confidence": ops.largest(p)}
    if guarded.set_score is not None:
        scores["set"] = _set_score(ops, p, guarded.set_score, guarded.output.n_classes)
    if guarded.outlier is not None:
        outlier = guarded.outlier
        logits = _matrix(ops, outlier.logits, guarded.output.n_classes)
        features = _matrix(ops, outlier.features, outlier.width)
        scores["ood"] = ops.reshape(outlier.formula.score(ops, logits, features), [-1])
    return ops, scores


def _matrix(ops: _DecisionOps, name: str, columns: int) -> str:
    """Write a tensor as float32 rows; nothing where there is none."""
    return ops.reshape(ops.cast(name), [-1, columns]) if name else ""


def _probabilities(ops: _DecisionOps, model: Model, output: ClassOutput) -> str:
    """Write (N, C) probabilities in float32 from what the output gives."""
    name = output.name
    if output.mapped:
        # maps from label to probability are made of a matrix with the classes in the model's order
        name = next(n.input[0] for n in model.proto.graph.node if n.op_type == "ZipMap" and name in n.output)
    values = _matrix(ops, name, output.width)
    if output.kind == "positive_probability":
        return ops.both(values)
    if output.kind == "positive_logit":
        return ops.both(ops.sigmoid(values))
    if output.kind == "logits":
        return ops.softmax(values)
    if output.kind == "log_probabilities":
        return ops.exp(values)
    return values


def _set_score(ops: _DecisionOps, p: str, score: SetScore, classes: int) -> str:
    if score.name == "lac":
        return ops.add(ops.const(1.0), ops.mul(p, ops.const(-1.0)))
    ranks = np.arange(1, classes + 1)
    return ops.summed_down(p, score.weight * np.maximum(ranks - score.free, 0))


def _ours(name: str) -> str:
    """Return the name under which a tensor of the block goes into the model; a map there may have the same words."""
    return name.replace(f"{PREFIX}/", f"{GUARD}/", 1) if name.startswith(f"{PREFIX}/") else name


def _extended(model: Model, ops: _DecisionOps, outputs: Sequence[onnx.ValueInfoProto]) -> onnx.ModelProto:
    """Return a copy of a model with the block behind its nodes."""
    own = {name for node in ops.nodes for name in (node.name, *node.output)}
    own |= {tensor.name for tensor in ops.initializers}
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for tensor in ops.initializers:
        name = _ours(tensor.name)
        tensor.name = ""
        proto.graph.node.append(helper.make_node("Constant", [], [name], name=name, value=tensor))
    for node in ops.nodes:
        copy = proto.graph.node.add()
        copy.CopyFrom(node)
        copy.name = _ours(node.name)
        copy.input[:] = [_ours(name) if name in own else name for name in node.input]
        copy.output[:] = [_ours(name) if name in own else name for name in node.output]
    proto.graph.output.extend(outputs)
    return proto


def _refuse_names(model: Model, names: Mapping[str, str]) -> None:
    taken = {*model.producers, *model.initializers, *model.inputs, *model.outputs}
    clash = sorted(taken & set(names.values()))
    if clash:
        raise UnsupportedModel(
            f"{model.name}: has a tensor called '{clash[0]}' already; give the new outputs another --prefix"
        )


def _batch_axis(model: Model, output: str) -> str | int:
    """Return what the output's first axis is called, or how long it is."""
    info = next(info for info in model.proto.graph.output if info.name == output)
    dims = info.type.tensor_type.shape.dim
    if not dims or not info.type.HasField("tensor_type"):
        return "N"
    return dims[0].dim_value or dims[0].dim_param or "N"
