"""A file with decisions: what its metadata state of them (`guard_entries`), and changes of `decision` without samples.

The file is taken apart into the model before `guard` and what that added, which is proved, and written again.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.labels import listed
from tna_onnx.errors import UnsupportedModel, UsageError
from tna_onnx.graph.decisions import Guarded
from tna_onnx.graph.difference import NotRebuilt
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import provenance
from tna_onnx.guarding.deciding import decision_entry
from tna_onnx.guarding.guard_settings import GuardSettings
from tna_onnx.numerics.checks import check_numbers
from tna_onnx.pipeline.record import DecisionStep, before_decisions, prove, write_decisions

BY_HAND = "by hand"
"""The goal of a decision whose thresholds were set without samples: they promise nothing."""


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
    if score is not None and score.name == "raps":
        entries["guard_set_penalty"] = f"{score.weight!r}"
        entries["guard_set_free_classes"] = str(score.free)
    return entries


_ADVICE = "start from the model without these outputs, and guard it again"


def with_thresholds(file: Model, levels: Mapping[str, float]) -> tuple[Model, Any]:
    """Return the model before `guard`, and the protobuf of the file whose decision has other thresholds.

    `levels`: class, by name or number -> what its probability has to reach.
    """
    before, decided = _taken_apart(file)
    rule = decided.guarded.decision
    assert rule is not None  # noqa: S101 - `_taken_apart` has refused others
    entries = provenance(file)
    try:
        settings = {**json.loads(entries["guard"]), "decide": BY_HAND}
        words = dict(json.loads(entries["guard_decision"]))
        classes = [*words.get("thresholds", ())]
        by_hand = {*words.get("by_hand", ())}
    except (LookupError, RecursionError, TypeError, ValueError) as error:  # of entries that someone else wrote
        raise UnsupportedModel(f"{file.name}: its decision is not stated as guard does ({error}); {_ADVICE}") from error
    limits = np.array(decided.thresholds["decision"])
    if np.isnan(limits).any():
        raise UnsupportedModel(f"{file.name}: thresholds of so many classes, {limits.size:,}, cannot be set by hand")
    numbers = [rule.positive] if rule.kind == "positive" else range(limits.size)
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
    proof = prove(before, file)
    if not proof.intact or proof.decisions is None or proof.decisions.guarded.decision is None:
        wrong = "; ".join(f"{entry.part} {entry.name}: {entry.change}" for entry in proof.unexplained)
        raise UnsupportedModel(f"{file.name}: is not as guard wrote it: {proof.reason or wrong}; {_ADVICE}")
    return before, replace(proof.decisions, source=before.sha256, model=before)
