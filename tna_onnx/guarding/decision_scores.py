"""The output `decision` against the labels: recall and precision by class, levels of a roll-up, costs, curves
(`score_decision`), with what a file says of its costs and groups.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.guarding.thresholds import Values
from tna_onnx.numerics.conformal import share_interval
from tna_onnx.numerics.operating_points import DecisionRule, confusion, goal_value
from tna_onnx.numerics.roll_up import RollUp, Rule
from tna_onnx.results.outcomes import ClassDecision, DecisionCurve, DecisionScores, LevelDecision

Floats = NDArray[np.float32]

_MAX_CLASSES = 100  # of a confusion matrix in a result
_MAX_CURVES = 20
_CURVE_POINTS = 200


def cost_in_file(entries: Mapping[str, str]) -> Floats | None:
    """Return the costs that a file was made for; None where it says none."""
    try:
        cost = np.array(json.loads(entries["guard_decision"])["cost"], np.float32)
    except (LookupError, TypeError, ValueError, RecursionError):
        return None
    if not (cost.ndim == 2 and np.all(np.isfinite(cost))):
        return None
    return cost


def rule_in_file(entries: Mapping[str, str], classes: int) -> Rule | None:
    """Return the class that the decision of a file is about, or the groups that it answers with; None without any."""
    try:
        said = json.loads(entries["guard_decision"])
        if said["rule"] == "positive":
            return DecisionRule("positive", range(classes).index(said["positive"]), np.zeros((0, 0), np.float32))
        groups = np.array(said["groups"], np.int64)
        rule = RollUp(
            tuple(map(str, said["thresholds"])), np.vstack([np.arange(classes), groups]), tuple(map(str, said["names"]))
        )
        if rule.wrong:
            return None
        return rule
    except (LookupError, OverflowError, TypeError, ValueError, RecursionError):
        return None


def score_decision(
    values: Values, names: Sequence[str], level: float, rule: Rule | None = None, cost: Floats | None = None
) -> DecisionScores:
    """Hold decisions against labels.

    `values`: with the `decision` of each sample: a class, -1 for none, or from C on a group of classes; of several
    labels (C,) bool. `level`: of intervals, a fraction. `rule`: of the decision; without it there is no curve of one
    class, and there are no levels. `cost`: (C, A) costs, if the file was made for some.
    """
    decided, labels, clusters = values.values["decision"], values.labels, values.clusters
    classes = len(names)
    levels: tuple[LevelDecision, ...] = ()
    if isinstance(rule, RollUp):
        levels = tuple(_of_levels(rule, decided, labels, level, clusters))
        decided = np.where(decided < classes, decided, -1)
    counts = confusion(decided, labels, classes)
    several = counts.ndim == 3

    def column(values: NDArray[Any], c: int) -> NDArray[np.bool_]:
        return np.asarray(values[:, c] == 1 if several else values == c)

    probabilities: Iterable[Floats] = () if values.probabilities is None else values.probabilities.T
    pairs = [(column(labels, c), column(decided, c)) for c in range(classes)]
    return DecisionScores(
        classes=tuple(_of_class(name, *pair, level, clusters) for name, pair in zip(names, pairs, strict=True)),
        confusion=None if several or classes > _MAX_CLASSES else tuple(map(tuple, counts.tolist())),
        undecided=0.0 if several else float(np.mean(decided < 0)),
        macro_f1=float(np.mean(goal_value(counts, "f1" if several else "macro-f1"))),
        balanced_accuracy=float(np.mean(goal_value(counts, "balanced-accuracy"))),
        mcc=float(np.mean(goal_value(counts, "mcc"))),
        cost=None if cost is None or several else -float(goal_value(counts, "cost", cost)),
        curves=tuple(
            _curve(names[c], p, pairs[c][0]) for c, p in zip(drawn_classes(rule, classes), probabilities, strict=False)
        ),
        levels=levels,
    )


def drawn_classes(rule: Rule | None, classes: int) -> range:
    """Return the classes whose curves are drawn: the one that a rule is about, or the first ones."""
    if isinstance(rule, RollUp):
        return range(0)
    if rule is not None and rule.kind == "positive":
        return range(rule.positive, rule.positive + 1)
    return range(min(classes, _MAX_CURVES))


def _of_levels(
    rolled: RollUp,
    decided: NDArray[Any],
    labels: NDArray[np.int64],
    level: float,
    clusters: NDArray[np.int64] | None,
) -> Iterator[LevelDecision]:
    """Count the answers at each level, and the wrong ones among them."""
    for place, groups in enumerate(rolled.groups):
        answered = np.flatnonzero((decided >= groups.min()) & (decided <= groups.max()))
        wrong = decided[answered] != groups[labels[answered]]
        among = None if clusters is None else clusters[answered]
        yield LevelDecision(
            rolled.levels[place],
            len(answered) / len(decided),
            float(wrong.mean()) if len(wrong) else None,
            share_interval(wrong, level, among) if len(wrong) else None,
        )


def _of_class(
    name: str,
    holds: NDArray[np.bool_],
    chosen: NDArray[np.bool_],
    level: float,
    clusters: NDArray[np.int64] | None,
) -> ClassDecision:
    """Count one class: samples that hold it, and those that are decided to."""

    def share(of: NDArray[np.bool_], among: NDArray[np.bool_]) -> tuple[float | None, tuple[float, float] | None]:
        if not among.any():
            return None, None
        groups = None if clusters is None else clusters[among]
        return float(of[among].mean()), share_interval(of[among], level, groups)

    recall, recall_interval = share(chosen, holds)
    precision, precision_interval = share(holds, chosen)
    return ClassDecision(
        name=name,
        samples=int(holds.sum()),
        decided=int(chosen.sum()),
        recall=recall,
        recall_interval=recall_interval,
        precision=precision,
        precision_interval=precision_interval,
        false_positives=share(chosen, ~holds)[0],
    )


def _curve(name: str, scores: Floats, holds: NDArray[np.bool_]) -> DecisionCurve:
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(holds[order])
    at = np.unique(np.linspace(0, len(order) - 1, _CURVE_POINTS).astype(np.int64))
    recall = hits[at] / max(1, int(hits[-1]))
    return DecisionCurve(name, tuple(recall.tolist()), tuple((hits[at] / (at + 1)).tolist()))
