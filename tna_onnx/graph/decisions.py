"""Decisions as further outputs of a model (`add_decisions`), and the scores that they compare (`Guarded`,
`add_scores`).

Two models have the same standard nodes behind the output that classifies: one gives the scores that thresholds come
from, the other compares, so both compute them equally to the last bit. Constants are Constant nodes, for IR version 3.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tna_onnx.errors import DataError, UnsupportedModel
from tna_onnx.graph.bounds import copy_model, names_in
from tna_onnx.graph.difference import WrittenValues
from tna_onnx.graph.load import PREFIX, Model
from tna_onnx.graph.nodes import NodeOps, constant_node
from tna_onnx.graph.readout import ClassOutput
from tna_onnx.numerics.conformal import rank_penalty
from tna_onnx.numerics.operating_points import DecisionRule
from tna_onnx.numerics.outliers import OutlierScore


@dataclass(frozen=True)
class SetScore:
    """How unlikely a class is: it is in the set where its score is at most the threshold.

    `lac` is 1 - p. `aps` is the sum of the larger probabilities and half of the class's own, which is the mean of the
    random score of its source; `raps` adds `weight` for each class behind the first `free` ones. The likeliest class
    has the score 0, which no threshold is below, unless sets may be empty.

    Source: M. Sadinle, J. Lei, L. Wasserman, JASA 114 (2019), section 3; Y. Romano, M. Sesia, E. Candes, NeurIPS 2020,
    equation 5, with 1/2 for its random number; A. Angelopoulos et al., ICLR 2021, equation 4.
    """

    name: str = "lac"  # `lac`, `aps` or `raps`
    free: int = 0  # classes without a penalty
    weight: float = 0.0  # penalty for each class behind them
    allow_empty: bool = False  # whether a set may leave out the likeliest class

    def __post_init__(self) -> None:
        """Refuse a score that there is not, and a penalty that is below 0 or not finite."""
        if self.name not in ("lac", "aps", "raps"):
            raise DataError(f"set score: expected lac, aps or raps, got {self.name}")
        if not 0 <= self.weight < np.inf:
            raise DataError(f"set score: expected a penalty of at least 0, got {self.weight}")


@dataclass(frozen=True, eq=False)
class OutlierInput:
    """An outlier score and the tensors that it reads."""

    formula: OutlierScore  # of the score
    logits: str  # tensor of (N, C) logits, or empty
    features: str  # tensor of (N, n) features, or empty
    width: int  # n


@dataclass(frozen=True, eq=False)
class Guarded:
    """What is to be added to a model."""

    output: ClassOutput  # the output that classifies
    set_score: SetScore | None  # of the prediction sets; None without sets
    outlier: OutlierInput | None  # the outlier score; None without one
    decision: DecisionRule | None = None  # how one decision is made of the probabilities; None without one


GUARD = f"{PREFIX}/guard"
"""How the names of the nodes begin."""

_MIN_OPSET = 9  # Less and Greater
_MIN_SORTING_OPSET = 11  # CumSum and ScatterElements

# Role of an output that is not BOOL -> the types that it may have: a decision is BOOL where it is one for each label.
_TYPES = {
    "confidence": (TensorProto.FLOAT,),
    "ood": (TensorProto.FLOAT,),
    "decision": (TensorProto.INT64, TensorProto.BOOL),
}


class DecisionOps(NodeOps):
    """The words of maps, and those that decisions need besides."""

    def cast(self, a: str) -> str:
        """Write a tensor as float32."""
        return self.node("Cast", [a], to=TensorProto.FLOAT)

    def largest(self, a: str) -> str:
        """Write the maximum over axis 1, (N,)."""
        return self.reshape(self._reduced("ReduceMax", a), [-1])

    def below_largest(self, a: str) -> str:
        """Write (N, C) with 0 where an entry is the largest of its row, and 1 elsewhere."""
        return self.cast(self.node("Less", [a, self._reduced("ReduceMax", a)]))

    def negated(self, op_type: str, a: str, b: str) -> str:
        """Write a comparison that does not hold: LessOrEqual and GreaterOrEqual are younger than Greater and Less."""
        return self.node("Not", [self.node(op_type, [a, b])])

    def both(self, p: str) -> str:
        """Write (1 - p, p) of the probability (N, 1) of the second class."""
        return self.node("Concat", [self.add(self.const(1.0), self.mul(p, self.const(-1.0))), p], axis=1)

    def summed_down(self, p: str, penalty: NDArray[Any]) -> str:
        """Write the sum of the probabilities above each class, half of its own, and a penalty by rank."""
        classes = len(penalty)
        name = f"{GUARD}/topk_{len(self.nodes)}"
        values, places = f"{name}_values", f"{name}_places"
        count = self.integers([classes])
        self.nodes.append(helper.make_node("TopK", [p, count], [values, places], name=name, axis=1))
        sums = self.node("CumSum", [values, self.integers(1)])
        sums = self.add(sums, self.mul(values, self.const(-0.5)))
        if penalty.any():
            sums = self.add(sums, self.const(penalty))
        # back to the order of the classes; every place of p is replaced
        return self.node("ScatterElements", [p, places, sums], axis=1)

    def reached(self, a: str, limit: str) -> str:
        """Write a >= limit, which does not hold for what is no number; no entry of a is below -1."""
        return self.node("And", [self.negated("Less", a, limit), self.node("Greater", [a, self.const(-1.0)])])

    def integers(self, value: Any) -> str:
        """Write whole numbers."""
        name = f"{GUARD}/integers_{len(self.initializers)}"
        self.initializers.append(self._tensor(np.array(value, np.int64), name))
        return name


def add_scores(model: Model, guarded: Guarded) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return a model that has the scores as outputs too, and their names: `confidence`, `set`, `ood`; for `decision`
    they are the probabilities (N, C).
    """
    ops, scores = _block(model, guarded)
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in scores.values()]
    return _extended(model, ops, outputs), scores


def add_decisions(
    model: Model,
    guarded: Guarded,
    thresholds: Mapping[str, NDArray[np.float32]],
    names: Mapping[str, str],
    from_file: Model | None = None,
) -> onnx.ModelProto:
    """Return a model that has the decisions as outputs too.

    `thresholds`: `accept` of the confidence, [] ; `set` of the set score, [] or [C]; `ood` of the outlier score, [];
    `decision` of the probabilities, [] or [C]. `names`: what each output is called, of `confidence`, `accept`, `set`,
    `ood`, `ood_alarm` and `decision`; those without a name are left out. `from_file`: a file that was written in this
    way, and is made again: large constants are taken from there.
    """
    if clash := {*names_in(model.proto.graph)} & {*names.values()}:
        raise UnsupportedModel(
            f"{model.name}: the model has a tensor called '{min(clash)}' already; choose another --prefix"
        )
    ops, results = _block(model, guarded, None if from_file is None else WrittenValues(from_file))
    if "accept" in names:
        # what is no number is not accepted; in a set it is, and it raises the alarm
        # above the number below t says the same as t or more, and is false where the confidence is no number
        limit = ops.const(np.nextafter(thresholds["accept"], np.float32(-np.inf)))
        results["accept"] = ops.node("Greater", [results["confidence"], limit])
    if "set" in names:
        results["set"] = ops.negated("Greater", results["set"], ops.const(thresholds["set"]))
    if "ood_alarm" in names:
        results["ood_alarm"] = ops.negated(
            "Less", results["ood"], ops.const(np.nextafter(thresholds["ood"], np.float32(np.inf)))
        )
    if "decision" in names:
        assert guarded.decision is not None  # noqa: S101 - a decision was asked for
        limit = ops.const(thresholds["decision"])
        results["decision"] = _decision(ops, guarded.decision, results, limit, guarded.output.n_classes)
    batch = _batch_axis(model, guarded.output.name)
    outputs = []
    for role, name in names.items():
        ops.nodes.append(helper.make_node("Identity", [results[role]], [name], name=f"{GUARD}/{role}"))
        of_labels = role == "decision" and guarded.output.multi_label
        shape = [batch]
        if of_labels or role == "set":
            shape.append(guarded.output.n_classes)
        kind = TensorProto.BOOL if of_labels else _TYPES.get(role, (TensorProto.BOOL,))[0]
        outputs.append(helper.make_tensor_value_info(name, kind, shape))
    return _extended(model, ops, outputs)


def without_decisions(model: Model, names: Iterable[str]) -> onnx.ModelProto:
    """Return a copy without the outputs of these names, which `add_decisions` has added."""
    gone = {*names}
    proto = copy_model(model.proto)
    graph = proto.graph
    nodes = [node for node in graph.node if not node.name.startswith(f"{GUARD}/") and not gone & {*node.output}]
    outputs = [output for output in graph.output if output.name not in gone]
    for values, remaining in ((graph.node, nodes), (graph.output, outputs)):
        copies = [value.__class__.FromString(value.SerializeToString()) for value in remaining]
        del values[:]
        values.extend(copies)
    return proto


def decision_outputs(model: Model, names: Mapping[str, str]) -> dict[str, str]:
    """Return those of the outputs, role -> name, that the graph has, with the type of a score or of a decision."""
    types = {info.name: info.type.tensor_type.elem_type for info in model.proto.graph.output}
    return {role: name for role, name in names.items() if types.get(name) in _TYPES.get(role, (TensorProto.BOOL,))}


def _block(
    model: Model, guarded: Guarded, from_file: WrittenValues | None = None
) -> tuple[DecisionOps, dict[str, str]]:
    """Write the nodes of the scores."""
    _require_opset(model, guarded)
    if any(node.name.startswith(f"{GUARD}/") for node in model.proto.graph.node):
        raise UnsupportedModel(f"{model.name}: the model has been guarded already; guard the one without these outputs")
    ops = DecisionOps("float32", model.opset, prefix=GUARD, from_file=from_file)
    name = guarded.output.name
    if guarded.output.mapped:
        # maps from label to probability are made of a matrix with the classes in the model's order
        name = next(n.input[0] for n in model.proto.graph.node if n.op_type == "ZipMap" and name in n.output)
    p = _probabilities(ops, _matrix(ops, name, guarded.output.width), guarded.output)
    scores = {"confidence": ops.largest(p)}
    if guarded.decision is not None:
        scores["decision"] = p
    if guarded.set_score is not None:
        scores["set"] = _set_score(ops, p, guarded.set_score, guarded.output.n_classes)
    if guarded.outlier is not None:
        outlier = guarded.outlier
        logits = _matrix(ops, outlier.logits, guarded.output.n_classes)
        features = _matrix(ops, outlier.features, outlier.width)
        scores["ood"] = ops.reshape(outlier.formula.score(ops, logits, features), [-1])
    return ops, scores


def _decision(ops: DecisionOps, rule: DecisionRule, scores: Mapping[str, str], limit: str, classes: int) -> str:
    """Write what `DecisionRule.decide` returns; what is no number is no label, and no class."""
    p = scores["decision"]
    if rule.kind == "labels":
        return ops.reached(p, limit)
    decides = p
    if rule.kind == "positive":
        column = ops.cast(ops.reached(ops.node("Gather", [p, ops.integers([rule.positive])], axis=1), limit))
        moves = ops.add(ops.mul(column, ops.const(4.0)), ops.const(-2.0))
        decides = ops.add(p, ops.mul(moves, ops.const(np.eye(classes)[rule.positive])))
    if rule.kind == "ratio":
        decides = ops.div(p, limit)
        if rule.cost.size:
            decides = ops.matmul(decides, ops.in_float(-rule.cost))
    first = ops.node("ArgMax", [decides], axis=1, keepdims=0)
    least = ops.node("Gather", [limit, first]) if rule.kind == "sure" else ops.const(0.0)
    if rule.cost.shape[1] > classes:
        first = ops.node("Gather", [ops.integers([*range(classes), -1]), first])
    holds = ops.reached(ops.largest(p), least)
    # (class + 1) where it holds, else 0; less 1
    counted = ops.mul(ops.add(first, ops.integers(1)), ops.node("Cast", [holds], to=TensorProto.INT64))
    return ops.add(counted, ops.integers(-1))


def _require_opset(model: Model, guarded: Guarded) -> None:
    """Refuse a model that is too old for the nodes."""
    needed = _MIN_OPSET
    if guarded.set_score is not None and guarded.set_score.name != "lac":
        needed = _MIN_SORTING_OPSET
    if model.opset < needed:
        raise UnsupportedModel(
            f"{model.name}: has opset {model.opset}, too old for these outputs; convert it to opset {needed} or newer"
        )


def _matrix(ops: DecisionOps, name: str, columns: int) -> str:
    """Write a tensor as float32 rows; nothing where there is none."""
    if not name:
        return ""
    return ops.reshape(ops.cast(name), [-1, columns])


def _probabilities(ops: DecisionOps, values: str, output: ClassOutput) -> str:
    """Write (N, C) probabilities from what an output gives."""
    kind = output.kind
    if kind == "positive_probability":
        return ops.both(values)
    if kind == "positive_logit":
        return ops.both(ops.sigmoid(values))
    if kind == "logits":
        return ops.softmax(values)
    if kind == "log_probabilities":
        values = ops.node("Exp", [values])
    # one entry that is no number makes all of its row none: a maximum may pass over such entries
    total = ops.matmul(values, ops.const(np.ones((output.n_classes, 1))))
    return ops.add(values, ops.mul(total, ops.const(0.0)))


def _set_score(ops: DecisionOps, p: str, score: SetScore, classes: int) -> str:
    if score.name == "lac":
        scores = ops.add(ops.const(1.0), ops.mul(p, ops.const(-1.0)))
    else:
        scores = ops.summed_down(p, rank_penalty(classes, score.free, score.weight))
    if score.allow_empty:
        return scores
    return ops.mul(scores, ops.below_largest(p))


def _extended(model: Model, ops: DecisionOps, outputs: Sequence[onnx.ValueInfoProto]) -> onnx.ModelProto:
    """Return a copy of a model with the block behind its nodes."""
    if clash := ops.names & {*names_in(model.proto.graph)}:
        raise UnsupportedModel(f"{model.name}: it has a tensor called '{min(clash)}'; start from the original model")
    proto = copy_model(model.proto)
    for tensor in ops.initializers:
        node = constant_node(tensor)
        node.attribute[0].t.name = ""
        proto.graph.node.append(node)
    proto.graph.node.extend(ops.nodes)
    proto.graph.output.extend(outputs)
    return proto


def _batch_axis(model: Model, output: str) -> str | int:
    """Return what the output's first axis is called, or how long it is."""
    info = next(info for info in model.proto.graph.output if info.name == output)
    dims = info.type.tensor_type.shape.dim
    if not dims or not info.type.HasField("tensor_type"):
        return "N"
    return dims[0].dim_value or dims[0].dim_param or "N"
