"""A file with decisions: what its metadata state of them (`guard_entries`), and changes of `decision` without samples.

The file is taken apart into the model before `guard` and what that added, which is proved, and written again.
Thresholds that are set by hand promise nothing; their goal is `by hand`.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.labels import listed
from tna_onnx.errors import TnaError, UnsupportedModel, UsageError
from tna_onnx.graph.decisions import Guarded
from tna_onnx.graph.difference import NotRebuilt
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import PREFIX, provenance
from tna_onnx.graph.options import Difference
from tna_onnx.guarding.deciding import decision_entry
from tna_onnx.guarding.guard_settings import GuardSettings
from tna_onnx.numerics.checks import check_numbers
from tna_onnx.numerics.operating_points import GOALS
from tna_onnx.pipeline.record import DecisionStep, Proof, before_decisions, prove, write_decisions

BY_HAND = "by hand"
"""The goal of a decision whose thresholds were set without samples."""


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
    if [*step.names.items()] != [*settings.outputs.items()]:
        yield Difference("metadata", f"{PREFIX}.guard", "changed", "outputs: not those of the decisions in the file")
    recorded = json.loads(entries.get("guard_decision", "{}"))
    names = _class_names(step, [*recorded.get("thresholds", {})], settings)
    expected = guard_entries(settings, step.guarded, step.thresholds, names)
    if by_hand:
        expected = stated_by_hand(expected, set(recorded["by_hand"]) & {*names})
    expected |= {"guard_source_sha256": step.source, **{key: entries[key] for key in _OF_RUN}}
    for key in {*expected, *(key for key in entries if key.startswith("guard"))}:
        if entries.get(key) != expected.get(key):
            yield Difference("metadata", f"{PREFIX}.{key}", "changed", "not that of the decisions in the file")


def _class_names(step: DecisionStep, called: list[str], settings: GuardSettings) -> list[str]:
    """Return the names of classes with which a file states its decision; they are words, and not checked."""
    output = step.guarded.output
    rule = step.guarded.decision
    names = [str(k) for k in range(output.n_classes)]
    if rule is None:
        return names
    if len(called) == output.n_classes:
        names = called
    elif rule.kind == "positive" and len(called) == 1:
        names[rule.positive] = called[0]
    elif settings.positive:
        names[rule.positive] = settings.positive
    return names


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
    remaining = {key: value for key, value in entries.items() if not key.startswith("guard")}
    # `guard` says which output classifies, where nothing did so before
    if not {*remaining} - output - {"change", "seal"}:
        remaining = {}
    try:
        before = before_decisions(file, remaining)
    except NotRebuilt as reason:
        raise UnsupportedModel(f"{file.name}: is not as guard wrote it: {reason}; {_ADVICE}") from reason
    proof = prove_guarded(before, file)
    if not proof.intact or proof.decisions is None:
        wrong = "; ".join(f"{entry.part} {entry.name}: {entry.change}" for entry in proof.unexplained)
        raise UnsupportedModel(f"{file.name}: is not as guard wrote it: {proof.reason or wrong}; {_ADVICE}")
    return before, replace(proof.decisions, source=before.sha256, model=before)
