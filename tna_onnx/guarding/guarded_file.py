"""A file with decisions: what its metadata state of them (`guard_entries`, which also proves a file), and changes of
its output `decision` without samples: other thresholds (`with_thresholds`), or none (`without_decision`).

For such a change the file is taken apart into the model before `guard` and what that added, which is proved, and
written again. Nothing is promised of thresholds set by hand, and the metadata say so: their goal is `by hand`.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.labels import listed
from tna_onnx.data.options import Data
from tna_onnx.errors import TnaError, UnsupportedModel, UsageError
from tna_onnx.graph.cut import before_map
from tna_onnx.graph.decisions import Guarded, SetScore
from tna_onnx.graph.difference import NotRebuilt
from tna_onnx.graph.head import find_heads
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import PREFIX, provenance
from tna_onnx.graph.options import ModelOptions
from tna_onnx.graph.outputs import OUTPUT_KINDS, ClassOutput, class_output
from tna_onnx.graph.parts import Difference
from tna_onnx.graph.readout import Readout
from tna_onnx.graph.scores import find_readout
from tna_onnx.guarding.deciding import decision_entry, rule_of
from tna_onnx.guarding.guard_settings import MAX_TEMPERATURE, MIN_TEMPERATURE, GuardSettings
from tna_onnx.numerics.checks import check_numbers
from tna_onnx.numerics.operating_points import GOALS, DecisionRule, RuleKind
from tna_onnx.numerics.outliers import Energy
from tna_onnx.pipeline.change import Proof, before_decisions, prove, write_decisions
from tna_onnx.pipeline.steps import DecisionStep

BY_HAND = "by hand"
"""The goal of a decision whose thresholds were set without samples."""

_LARGEST = np.finfo(np.float32).max
_ROUNDING = 1e-5  # by which a float32 probability may be above 1


def guard_entries(
    settings: GuardSettings, guarded: Guarded, thresholds: Mapping[str, NDArray[np.float32]], names: Sequence[str]
) -> dict[str, str]:
    """Return what a file says of its decisions."""
    # without the path of a file, which is of the user's disk
    recorded = replace(settings, decide=f"{settings.goal[0]}=FILE") if settings.reads_file else settings
    entries = {"guard": json.dumps(dataclasses.asdict(recorded))}
    if guarded.decision is not None:
        entries["guard_decision"] = decision_entry(settings, guarded.decision, thresholds["decision"], names)
    score = guarded.set_score
    if score is not None and settings.set_temperature == "auto":
        entries["guard_set_temperature"] = f"{score.temperature!r}"
    if score is not None and score.name == "raps":
        entries["guard_set_penalty"] = f"{score.weight!r}"
        entries["guard_set_free_classes"] = str(score.free)
    return entries


def stated_by_hand(entries: Mapping[str, str], classes: Iterable[str]) -> dict[str, str]:
    """Return the entries of a file in which the thresholds of some classes were set by hand: nothing is promised."""
    words = {key: value for key, value in json.loads(entries["guard_decision"]).items() if key != "delta"}
    words |= {"goal": BY_HAND, "by_hand": sorted(classes)}
    settings = json.dumps({**json.loads(entries["guard"]), "decide": BY_HAND})
    return {**entries, "guard": settings, "guard_decision": json.dumps(words)}


# Entries on the samples that gave the thresholds.
_OF_RUN = ("guard_data_sha256", "guard_samples", "guard_sketch", "guard_form")


def prove_guarded(source: Model, file: Model) -> Proof:
    """Make a file again and compare it, and what it says of its decisions; see `prove`."""
    proof = prove(source, file)
    if proof.decisions is None:
        return proof
    try:
        wrong = tuple(_false_entries(proof.decisions, provenance(file)))
    # entries that someone else wrote may hold anything
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, TnaError) as error:
        return replace(proof, reason=f"what it says of its decisions cannot be ({type(error).__name__}: {error})")
    return replace(proof, unexplained=(*proof.unexplained, *wrong))


def _false_entries(step: DecisionStep, entries: Mapping[str, str]) -> Iterator[Difference]:
    stated = json.loads(entries["guard"])
    by_hand = stated["decide"] == BY_HAND
    # which goal there was before is not known any more
    decide = GOALS[0] if by_hand else stated["decide"]
    settings = GuardSettings(**{**stated, "add": tuple(stated["add"]), "decide": decide})
    recorded = json.loads(entries.get("guard_decision", "{}"))
    names = _class_names(step, [*recorded.get("thresholds", {})], settings)
    expected = guard_entries(settings, step.guarded, step.thresholds, names)
    if by_hand:
        expected = stated_by_hand(expected, set(recorded["by_hand"]) & {*names})
    expected |= {"guard_source_sha256": step.source, **{key: entries[key] for key in _OF_RUN}}
    for key in {*expected, *(key for key in entries if key.startswith("guard"))}:
        if entries.get(key) != expected.get(key):
            yield Difference("metadata", f"{PREFIX}.{key}", "changed", "not that of the decisions in the file")
    true = {
        "outputs": [*step.names.items()] == [*settings.outputs.items()],
        "scores of classes": step.guarded.output in _class_outputs(step.model, step.guarded.output),
        "score of the sets": _is_set_score(step.guarded.set_score, settings),
        "outlier score": _is_outlier_score(step, settings),
        "rule": _is_rule(step.guarded, settings, names, by_hand=by_hand),
        "thresholds": _are_thresholds(step, settings),
    }
    for what in (what for what, holds in true.items() if not holds):
        yield Difference("metadata", f"{PREFIX}.guard", "changed", f"{what}: not those of the decisions in the file")


def _class_names(step: DecisionStep, called: list[str], settings: GuardSettings) -> list[str]:
    """Return names of the classes with which a decision is stated as it is; where the model has some, those."""
    output, rule = step.guarded.output, step.guarded.decision
    names = [str(k) for k in range(output.n_classes)]
    if rule is None:
        return names
    if len(called) == output.n_classes:
        names = called
    elif rule.kind == "positive" and len(called) == 1:
        names[rule.positive] = called[0]
    elif settings.positive:
        names[rule.positive] = settings.positive
    theirs = Data(samples="").class_names(step.model.said_of_classes, output.labels, output.n_classes)
    theirs = theirs or tuple(str(k) for k in range(output.n_classes))
    # a caller may call classes by names of their own, but none by that of another class
    if sorted(called) == sorted(theirs) or (
        len(called) == 1 and called[0] in theirs and called[0] != settings.positive
    ):
        return list(theirs)
    return names


def _class_outputs(model: Model, output: ClassOutput) -> Iterator[ClassOutput]:
    """Yield what an output may hold: by the graph, or by a word on what that does not tell."""
    for kind in (None, OUTPUT_KINDS.get(output.kind)):
        try:
            yield class_output(model, None, output.name, kind)
        except TnaError:
            continue


def _is_set_score(score: SetScore | None, settings: GuardSettings) -> bool:
    if score is None or "set" not in settings.add:
        return score is None and "set" not in settings.add
    expected = SetScore(settings.set_score, allow_empty=settings.allow_empty, temperature=score.temperature)
    if score.name == "raps":
        expected = replace(expected, free=score.free, weight=score.weight)
    fits = score.temperature == settings.set_temperature
    if settings.set_temperature == "auto":
        fits = MIN_TEMPERATURE <= score.temperature <= MAX_TEMPERATURE
    return score == expected and fits and score.free >= 0 and 0 <= score.weight < np.inf


def _is_outlier_score(step: DecisionStep, settings: GuardSettings) -> bool:
    outlier = step.guarded.outlier
    if outlier is None or "ood" not in settings.add:
        return outlier is None and "ood" not in settings.add
    if type(outlier.formula).__name__.lower() != settings.ood_score:
        return False
    output = step.guarded.output
    model, options = before_map(step.model, output.name, ModelOptions(output_name=output.name))
    stated = (outlier.logits, outlier.features, outlier.width)
    if isinstance(outlier.formula, Energy):
        return any(stated == (readout.logits, "", 0) for readout in _scores(model, options, output))
    heads = (head for head in find_heads(model)[0] if head.output == output.name)
    return any(stated == ("", head.features, head.n_features) for head in heads)


def _scores(model: Model, options: ModelOptions, output: ClassOutput) -> Iterator[Readout]:
    for kind in (None, OUTPUT_KINDS.get(output.kind)):
        for name in (None, options.output_name):
            try:
                readout = find_readout(model, None, name, kind)
            except TnaError:
                continue
            if readout.holds == "logits" and not readout.binary:
                yield readout


def _is_rule(guarded: Guarded, settings: GuardSettings, names: Sequence[str], *, by_hand: bool) -> bool:
    rule, classes = guarded.decision, guarded.output.n_classes
    if rule is None or not settings.decide:
        return rule is None and not settings.decide
    if settings.goal[0] == "cost" or (by_hand and rule.cost.size):
        expected = DecisionRule("ratio", rule.positive, rule.cost)
        if rule.cost.shape not in ((classes, classes), (classes, classes + 1)) or np.isinf(rule.cost).any():
            return False
    elif by_hand:
        known = rule.kind in get_args(RuleKind) and 0 <= rule.positive < classes
        return known and (rule.kind == "labels") == guarded.output.multi_label
    else:
        expected = rule_of(settings, guarded.output, names)
    same = (rule.kind, rule.positive) == (expected.kind, expected.positive)
    return same and np.array_equal(rule.cost, expected.cost, equal_nan=True)


def _are_thresholds(step: DecisionStep, settings: GuardSettings) -> bool:
    """Whether there are those that the settings ask for, of which none is beyond what scores can be."""
    classes = step.guarded.output.n_classes
    rule = step.guarded.decision
    shapes: dict[str, tuple[int, ...]] = {role: () for role in ("accept", "ood") if role in settings.add}
    if "set" in settings.add:
        shapes["set"] = (classes,) if settings.per_class else ()
    if rule is not None:
        shapes["decision"] = () if rule.kind == "positive" else (classes,)
    found = step.thresholds
    if {role: values.shape for role, values in found.items()} != shapes:
        return False
    # of a class with too few samples, every set holds it
    least = {"accept": 0.0, "set": 0.0, "decision": 0.0}
    largest = {"accept": 1 + _ROUNDING, "set": np.inf}
    return not any(
        values.dtype != np.float32
        or np.any((values < least.get(role, -_LARGEST)) | (values > largest.get(role, _LARGEST)))
        for role, values in found.items()
    )


_ADVICE = "start from the model without these outputs, and guard it again"


def with_thresholds(file: Model, levels: Mapping[str, float]) -> tuple[Model, Any]:
    """Return the model before `guard`, and the protobuf of the file whose decision has other thresholds.

    `levels`: class, by name or number -> what its probability has to reach.
    """
    before, decided = _taken_apart(file)
    entries = provenance(file)
    words = json.loads(entries["guard_decision"])
    limits = np.array(decided.thresholds["decision"])
    if np.isnan(limits).any():
        raise UnsupportedModel(f"{file.name}: thresholds of so many classes, {limits.size:,}, cannot be set by hand")
    classes = [*words.get("thresholds", map(str, range(limits.size)))]
    numbers = [words["positive"]] if words["rule"] == "positive" else range(limits.size)
    places = {**{str(number): k for k, number in enumerate(numbers)}, **{name: k for k, name in enumerate(classes)}}
    by_hand = set(words.get("by_hand", []))
    for name, value in levels.items():
        if name not in places:
            raise UsageError(
                f"--set-threshold {name}: no class of this name has a threshold; expected {listed(classes)}"
            )
        check_numbers("a number", **{f"set_threshold {name}": value})
        if words["rule"] == "ratio" and not 0 < value < math.inf:
            raise UsageError(
                f"--set-threshold {name}={value:g}: expected a positive number, which probabilities are divided by"
            )
        if words["rule"] != "ratio" and not 0 <= value <= 1:
            raise UsageError(f"--set-threshold {name}={value:g}: expected from 0 to 1")
        limits.reshape(-1)[places[name]] = value
        by_hand.add(classes[places[name]])
    if "thresholds" in words:
        words["thresholds"] = dict(zip(classes, np.atleast_1d(limits).tolist(), strict=True))
    entries = stated_by_hand({**entries, "guard_decision": json.dumps(words)}, by_hand)
    thresholds = {**decided.thresholds, "decision": limits}
    return before, write_decisions(replace(decided, thresholds=thresholds), entries, file)


def _taken_apart(file: Model) -> tuple[Model, DecisionStep]:
    entries = provenance(file)
    if "guard_decision" not in entries:
        raise UnsupportedModel(f"{file.name}: has no output decision; guard --decide GOAL adds it")
    output = {"output", "output_kind", "classes", "class_axis"}
    rest = {key: value for key, value in entries.items() if not key.startswith("guard")}
    # `guard` says which output classifies, where nothing did so before
    if not {*rest} - output - {"change", "seal"}:
        rest = {}
    try:
        before = before_decisions(file, rest)
    except NotRebuilt as reason:
        raise UnsupportedModel(f"{file.name}: is not as guard wrote it: {reason}; {_ADVICE}") from reason
    proof = prove_guarded(before, file)
    if not proof.intact or proof.decisions is None:
        wrong = "; ".join(f"{entry.part} {entry.name}: {entry.change}" for entry in proof.unexplained)
        raise UnsupportedModel(f"{file.name}: is not as guard wrote it: {proof.reason or wrong}; {_ADVICE}")
    return before, replace(proof.decisions, source=before.sha256, model=before)
