"""The output `decision` of `guard`: which rule serves a goal (`rule_of`), its thresholds on samples with the promise or
the interval that they have (`operate`), what the file says of it, and thresholds that are set by hand.

For these, a file is taken apart into the model before `guard` and what that added, which is proved, and written again.
"""

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.foreign import read_text
from tna_onnx.data.labels import class_called
from tna_onnx.errors import DataError, UnsupportedModel, UsageError, listed
from tna_onnx.fields import check_numbers
from tna_onnx.graph.difference import NotRebuilt
from tna_onnx.graph.load import Model
from tna_onnx.graph.readout import ClassOutput, Readout
from tna_onnx.guarding.guard_settings import GuardSettings
from tna_onnx.numerics.intervals import quantile
from tna_onnx.numerics.operating_points import (
    BOUNDS,
    DecisionRule,
    best_thresholds,
    bounded_threshold,
    crossfitted,
    goal_interval,
    needed_for,
    reachable_bound,
)
from tna_onnx.pipeline.record import DecisionStep, before_decisions, prove, write_decisions
from tna_onnx.results.outcomes import OperatingPoint

Floats = NDArray[np.float32]

ABSTAIN = "abstain"
"""What the column of a cost matrix is called that decides nothing."""

_NEVER = 2.0  # a threshold that no probability reaches
_ALWAYS = 0.0  # and one that every probability does
_MAX_CLASSES = 100  # whose thresholds the metadata hold


def rule_of(settings: GuardSettings, output: Readout | ClassOutput, names: Sequence[str]) -> DecisionRule:
    """Return the rule that serves the goal."""
    goal, _ = settings.goal
    kind: Literal["labels", "positive", "sure", "ratio"] = "ratio"
    positive = output.n_classes - 1
    if settings.positive:
        positive = class_called(settings.positive, names)
    if settings.positive and (goal == "cost" or settings.per_class):
        raise UsageError("--positive names one class; leave it out with --per-class and cost=, which decide on all")
    if output.multi_label:
        if settings.positive or goal == "cost":
            raise UsageError(
                "--positive and cost=FILE are for one class a sample; of several labels each has a threshold of its own"
            )
        kind = "labels"
    elif goal == "cost":
        return DecisionRule(kind, positive, _costs(settings.decide.removeprefix("cost="), names))
    elif settings.per_class and goal in BOUNDS:
        if goal == "recall":
            raise UsageError(
                "with one class a sample, the recall of all classes cannot be guaranteed at once; use --add set "
                "--per-class --coverage, or name one with --positive"
            )
        kind = "sure"
    elif not settings.per_class and (settings.positive or output.n_classes == 2):
        kind = "positive"
    elif goal in ("f1", *BOUNDS) and not settings.per_class:
        raise UsageError(
            f"{goal} is about one class: name it with --positive, or decide on each class with --per-class"
        )
    return DecisionRule(kind, positive, np.zeros((0, 0), np.float32))


def _costs(path: str, names: Sequence[str]) -> Floats:
    """Read costs (C, C) or (C, C + 1) in the order of the classes."""
    expected = (
        f"costs as CSV: the columns {listed(names)} behind the first one, {ABSTAIN} too, and a row for each class"
    )
    if not Path(path).is_file():
        raise UsageError(f"{path}: no such file; expected {expected}")
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(read_text(Path(path)).splitlines()) if row]
    except csv.Error as error:
        raise DataError(f"{path}: {error}; expected {expected}") from error
    header, *body = rows or [[]]
    columns = [*names]
    if ABSTAIN in header:
        columns.append(ABSTAIN)
    complete = all(len(row) == len(header) and all(row[1:]) for row in rows)
    if not complete or sorted(header[1:]) != sorted(columns) or sorted(row[0] for row in body) != sorted(names):
        raise DataError(f"{path}: expected {expected}")
    of_class = {row[0]: dict(zip(header, row, strict=True)) for row in body}
    try:
        costs = np.array([[float(of_class[name][column]) for column in columns] for name in names], np.float32)
    except ValueError as error:
        raise DataError(f"{path}: expected numbers; {error}") from error
    if not np.all(np.isfinite(costs)):
        raise DataError(f"{path}: expected finite costs")
    return costs


@dataclass(frozen=True, eq=False)
class FittedDecision:
    """Thresholds of a decision."""

    thresholds: Floats | None  # [] or (C,); None where no sample can promise the bound
    point: OperatingPoint  # for the report
    notes: tuple[str, ...] = ()  # what the user should know; why there are none, where that is so


def operate(
    rule: DecisionRule, p: Floats, labels: NDArray[np.int64], settings: GuardSettings, names: Sequence[str]
) -> FittedDecision:
    """Choose thresholds.

    `p`: (N, C) probabilities of the samples that decide. `labels`: (N,), or (N, C) of 0 and 1.
    """
    goal, _ = settings.goal
    if goal in BOUNDS:
        return _bounded(rule, p, labels, settings, names)
    if goal in ("f1", "macro-f1") and rule.kind in ("labels", "ratio"):
        # the mean over labels, or over classes
        goal = "f1" if rule.kind == "labels" else "macro-f1"
    holds = labels == rule.positive
    if rule.kind == "positive" and holds.all() == holds.any():
        share = "none"
        if holds.all():
            share = "all"
        why = f"{share} of these {len(p):,} samples are of the class {names[rule.positive]}"
        return FittedDecision(
            None, OperatingPoint(settings.decide), (f"{why}, so no threshold is better than another",)
        )
    level = settings.confidence_level / 100
    if goal == "cost":
        return _cheapest(rule, p, labels, settings.seed, level)
    decided = crossfitted(rule, p, labels, goal, settings.seed)
    value, *ends = goal_interval(rule, decided, labels, goal, level, p.shape[1])
    point = OperatingPoint(settings.decide, value, (ends[0], ends[1]))
    return FittedDecision(best_thresholds(rule, p, labels, goal), point)


def _bounded(
    rule: DecisionRule, p: Floats, labels: NDArray[np.int64], settings: GuardSettings, names: Sequence[str]
) -> FittedDecision:
    goal, level = settings.goal
    delta = settings.delta / 100
    point = OperatingPoint(settings.decide)
    trivial = _NEVER
    word = "never"
    if goal == "recall":
        trivial = _ALWAYS
        word = "always"
    thresholds: list[float] = []
    lost: list[int] = []
    for c in _deciding(rule, p.shape[1]):
        scores, holds = _tested(rule, p, labels, c, goal)
        threshold = bounded_threshold(scores, holds, goal, level, delta)
        if threshold is None:
            lost.append(c)
            thresholds.append(trivial)
        else:
            thresholds.append(min(max(float(threshold), _ALWAYS), _NEVER))
    notes: tuple[str, ...] = ()
    if lost:
        scores, holds = _tested(rule, p, labels, lost[0], goal)
        why = _unreached(goal, level, delta, scores, holds, listed(names[c] for c in lost))
        if len(lost) == len(thresholds):
            return FittedDecision(None, point, (why,))
        notes = (f"{word} decided, which keeps the promise and says nothing: {why}",)
    levels = np.array(thresholds, np.float32)
    if rule.kind == "positive":
        levels = levels.reshape(())  # an array still, whose type the record names
    return FittedDecision(levels, point, notes)


def _deciding(rule: DecisionRule, classes: int) -> Sequence[int]:
    """Return the classes that have a threshold."""
    if rule.kind == "positive":
        return [rule.positive]
    return range(classes)


# Goal -> the side of its bound, the samples that it is about, and the rounding to the side on which a bound is true.
_BOUNDS: dict[str, tuple[str, str, Callable[[float], int]]] = {
    "recall": ("at least", "samples of the class", math.floor),
    "fpr": ("at most", "samples without the class", math.ceil),
    "precision": ("at least", "samples that have it above", math.floor),
}


def _tested(
    rule: DecisionRule, p: Floats, labels: NDArray[np.int64], c: int, goal: str
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the scores of a class and whether samples have it, of those samples that a bound is about."""
    if rule.kind == "labels":
        return p[:, c], labels[:, c] == 1
    first = p.argmax(axis=1) == c
    if rule.kind == "positive":
        return p[:, c], labels == c
    if goal == "precision":
        return p[first, c], labels[first] == c
    # what is not the likeliest class is never decided
    return np.where(first, p[:, c], np.float32(-1)), labels == c


def _unreached(goal: str, level: float, delta: float, scores: Floats, holds: NDArray[np.bool_], who: str) -> str:
    """Say what a bound would take, what there is, and the best that can be had."""
    needed = needed_for(goal, level, delta)
    sign, whose, rounded = _BOUNDS[goal]
    available = int(np.count_nonzero(holds))
    if goal == "fpr":
        available = len(holds) - available
    best = reachable_bound(scores, holds, goal, delta)
    words = "none can be had"
    if best is not None:
        words = f"the best that these can promise is {rounded(1000 * best) / 1000:g}"
    text = f"{who}: {goal} of {sign} {level:g} with {100 * (1 - delta):g} % certainty takes {needed:,} {whose}"
    if goal == "precision":
        text += " the threshold, and no other above it, or more with few"
    elif needed > available > 0:
        text += f", about {math.ceil(needed * len(scores) / available):,} samples like these"
    return f"{text}; there are {available:,}; {words}"


def _cheapest(rule: DecisionRule, p: Floats, labels: NDArray[np.int64], seed: int, level: float) -> FittedDecision:
    """Return thresholds by probability; by counting, where that costs significantly less."""
    classes = p.shape[1]
    plain = np.ones(classes, np.float32)
    counted = best_thresholds(rule, p, labels, "cost")
    decided = rule.decide(p, plain)
    unseen = crossfitted(rule, p, labels, "cost", seed)
    costs = [
        rule.cost[labels, np.where(classes_of < 0, classes, classes_of)].astype(np.float64)
        for classes_of in (decided, unseen, rule.decide(p, counted))
    ]
    by_probability, by_counting, lowest = (float(cost.mean()) for cost in costs)
    gain = costs[0] - costs[1]
    # folds depend on one another
    reach = quantile((1 + level) / 2, None) * float(gain.std(ddof=1)) / math.sqrt(len(gain)) * math.sqrt(1.25)
    low = float(gain.mean()) - reach
    high = float(gain.mean()) + reach
    levels = plain
    notes: tuple[str, ...] = ()
    if low > 0:
        levels = counted
        decided = unseen
        notes = (
            f"the probabilities are not good enough for this decision: thresholds by counting cost {by_counting:.4g} a "
            f"sample, those by probability {by_probability:.4g} ({low:.3g} to {high:.3g} more), so the file has those "
            "by counting; recalibrate the model first",
        )
    value, *ends = goal_interval(rule, decided, labels, "cost", level, classes)
    of_two = _of_two(rule.cost, counted)
    point = OperatingPoint(
        "cost", -value, (-ends[1], -ends[0]), *of_two, by_counting, by_probability, lowest, (low, high)
    )
    return FittedDecision(levels, point, notes)


def _of_two(cost: Floats, counted: Floats) -> tuple[float | None, float | None]:
    """Return thresholds of the second class: by counting, and by probability; None where there are none."""
    false_alarm = float(cost[0, 1] - cost[0, 0])
    miss = float(cost[1, 0] - cost[1, 1])
    # of other costs there is no threshold; here one decision is never the cheaper one
    if cost.shape != (2, 2) or false_alarm <= 0 or miss <= 0:
        return None, None
    odds = false_alarm / miss
    moved = odds * float(counted[1] / counted[0])
    return moved / (1 + moved), odds / (1 + odds)


def promise_of(
    settings: GuardSettings, rule: DecisionRule, point: OperatingPoint, names: Sequence[str], whom: str
) -> str:
    """Say what the output is, and what it promises; `whom`: the samples that the promise is for."""
    goal, level = settings.goal
    of_all = {"labels": "of each label, taken by itself,", "sure": "of each class, taken by itself,", "ratio": ""}
    who = of_all.get(rule.kind, f"of {names[rule.positive]}")
    texts = {"labels": "which labels hold", "sure": "the class, or -1 where it is not sure enough"}
    text = texts.get(rule.kind, "the class")
    if rule.cost.shape[0] < rule.cost.shape[1]:
        text += ", or -1 to abstain"
    if goal in BOUNDS:
        side, *_ = _BOUNDS[goal]
        bound = f"the {goal.replace('fpr', 'false positive rate')} {who} is {side} {100 * level:g} %"
        return f"{text}; with a certainty of {100 - settings.delta:g} %, {bound}, {whom}"
    assert point.interval is not None  # noqa: S101 - of what is no bound
    low, high = point.interval
    return (
        f"{text}; {' '.join(filter(None, (goal, who)))} {point.value:.4g} ({low:.4g} to {high:.4g}) on samples that "
        "no threshold was chosen on"
    )


def decision_entry(settings: GuardSettings, rule: DecisionRule, thresholds: Floats, names: Sequence[str]) -> str:
    """Return what the file says of its decision: goal, thresholds by class, costs of a few classes."""
    called = [names[c] for c in _deciding(rule, len(names))]
    # without the path of a file, which is of the user's disk
    goal = settings.goal[0] if settings.reads_file else settings.decide
    entry: dict[str, Any] = {"goal": goal, "rule": rule.kind, "delta": settings.delta / 100}
    if rule.kind == "positive":
        entry["positive"] = rule.positive
    if len(called) <= _MAX_CLASSES:
        entry["thresholds"] = dict(zip(called, np.atleast_1d(thresholds).tolist(), strict=True))
        if rule.cost.size:
            entry["cost"] = rule.cost.tolist()
    return json.dumps(entry)


BY_HAND = "by hand"
"""The goal of a decision whose thresholds were set without samples: they promise nothing."""

_ADVICE = "start from the model without these outputs, and guard it again"


def with_thresholds(file: Model, levels: Mapping[str, float]) -> tuple[Model, Any]:
    """Return the model before `guard`, and the protobuf of the file whose decision has other thresholds.

    `levels`: class, by name or number -> what its probability has to reach.
    """
    before, decided = _taken_apart(file)
    rule = decided.guarded.decision
    assert rule is not None  # noqa: S101 - `_taken_apart` has refused others
    entries = file.provenance
    try:
        settings = {**json.loads(entries["guard"]), "decide": BY_HAND}
        words = dict(json.loads(entries["guard_decision"]))
        classes = [*words.get("thresholds", ())]
        by_hand = {*words.get("by_hand", ())}
        "".join((*classes, *by_hand))  # a TypeError, unless all of them are texts
    except (LookupError, RecursionError, TypeError, ValueError) as error:  # of entries that someone else wrote
        raise UnsupportedModel(f"{file.name}: its decision is not stated as guard does ({error}); {_ADVICE}") from error
    limits = np.array(decided.thresholds["decision"])
    if np.isnan(limits).any():
        raise UnsupportedModel(f"{file.name}: thresholds of so many classes, {limits.size:,}, cannot be set by hand")
    numbers = _deciding(rule, limits.size)
    if len(classes) != limits.size:
        classes = [str(number) for number in numbers]
    places = {**{str(number): k for k, number in enumerate(numbers)}, **{name: k for k, name in enumerate(classes)}}
    for name, value in levels.items():
        if name not in places:
            raise UsageError(
                f"--set-threshold {name}: no class of this name has a threshold; expected {listed(classes)}"
            )
        check_numbers("a number", **{f"set_threshold {name}": value})
        if rule.kind == "ratio" and not 0 < value < math.inf:
            raise UsageError(
                f"--set-threshold {name}={value:g}: expected a positive number, which probabilities are divided by"
            )
        if rule.kind != "ratio" and not 0 <= value <= 1:
            raise UsageError(f"--set-threshold {name}={value:g}: expected from 0 to 1")
        limits.reshape(-1)[places[name]] = value
        by_hand.add(classes[places[name]])
    words.pop("delta", None)  # nothing is promised any more
    words |= {"goal": BY_HAND, "by_hand": sorted(by_hand)}
    if "thresholds" in words:
        words["thresholds"] = dict(zip(classes, np.atleast_1d(limits).tolist(), strict=True))
    entries |= {"guard": json.dumps(settings), "guard_decision": json.dumps(words)}
    step = replace(decided, thresholds={**decided.thresholds, "decision": limits})
    return before, write_decisions(step, entries, file)


def _taken_apart(file: Model) -> tuple[Model, DecisionStep]:
    entries = file.provenance
    if "guard_decision" not in entries:
        raise UnsupportedModel(f"{file.name}: has no output decision; guard --decide GOAL adds it")
    output = {"output", "output_kind", "classes", "class_axis"}
    remaining = {key: value for key, value in entries.items() if not key.startswith("guard")}
    # `guard` says which output classifies, where nothing did so before
    if not {*remaining} - output - {"change", "seal"}:
        remaining = {}
    try:
        before = before_decisions(file, remaining)
    except NotRebuilt as reason:
        raise UnsupportedModel(f"{file.name}: is not as guard wrote it: {reason}; {_ADVICE}") from reason
    proof = prove(before, file)
    if not proof.intact or proof.decisions is None or proof.decisions.guarded.decision is None:
        wrong = "; ".join(f"{entry.part} {entry.name}: {entry.change}" for entry in proof.unexplained)
        raise UnsupportedModel(f"{file.name}: is not as guard wrote it: {proof.reason or wrong}; {_ADVICE}")
    return before, replace(proof.decisions, source=before.sha256, model=before)
