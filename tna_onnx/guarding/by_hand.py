"""Changes of the output `decision` without samples: other thresholds (`with_thresholds`), or none (`without_decision`).

The file is taken apart into the model before `guard` and what it added, which is proved, and written again. Nothing
is promised of thresholds that were set by hand, and the metadata say so: their goal is `by hand`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tna_onnx.data.labels import listed
from tna_onnx.errors import UnsupportedModel, UsageError
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import provenance
from tna_onnx.graph.written_values import NotRebuilt
from tna_onnx.guarding.stated import stated_by_hand, with_goal
from tna_onnx.numerics.checks import check_numbers
from tna_onnx.pipeline.change import before_decisions, write_decisions
from tna_onnx.pipeline.steps import DecisionStep

_ADVICE = "start from the model without these outputs, and guard it again"


def with_thresholds(file: Model, wanted: Mapping[str, float]) -> tuple[Model, Any]:
    """Return the model before `guard`, and the protobuf of the file whose decision has other thresholds.

    Args:
        file: with the output `decision`.
        wanted: class, by name or number -> what its probability has to reach.

    Raises:
        UnsupportedModel: the file has no such output, or is not as `guard` wrote it.
        UsageError: no such class, or no such threshold.
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
    for name, value in wanted.items():
        if name not in places:
            raise UsageError(f"--set-threshold {name}: no threshold of such a class; expected {listed(classes)}")
        _require_threshold(name, value, math.inf if words["rule"] == "ratio" else 1.0)
        limits.reshape(-1)[places[name]] = value
        by_hand.add(classes[places[name]])
    if "thresholds" in words:
        words["thresholds"] = dict(zip(classes, np.atleast_1d(limits).tolist(), strict=True))
    dials = decided.dials
    if dials.decision is not None:
        dials = replace(dials, decision=replace(dials.decision, default=limits))
    entries = stated_by_hand({**entries, "guard_decision": json.dumps(words)}, by_hand)
    thresholds = {**decided.thresholds, "decision": limits}
    return before, write_decisions(before, decided.guarded, thresholds, decided.names, entries, dials, file)


def _require_threshold(name: str, value: float, most: float) -> None:
    check_numbers("a number", **{f"set_threshold {name}": value})
    if not 0 <= value <= most or value == most == math.inf or (most == math.inf and value == 0):
        words = "a positive number, which probabilities are divided by" if most == math.inf else "from 0 to 1"
        raise UsageError(f"--set-threshold {name}={value:g}: expected {words}")


def without_decision(file: Model) -> tuple[Model, Any]:
    """Return the model before `guard`, and the protobuf of the file without the output `decision`.

    Raises:
        UnsupportedModel: the file has no such output, or is not as `guard` wrote it.
    """
    before, decided = _taken_apart(file)
    names = {role: name for role, name in decided.names.items() if role != "decision"}
    if not names:
        return before, before.proto
    thresholds = {role: limits for role, limits in decided.thresholds.items() if role != "decision"}
    entries = {key: value for key, value in with_goal(provenance(file), "").items() if key != "guard_decision"}
    guarded = replace(decided.guarded, decision=None)
    return before, write_decisions(
        before, guarded, thresholds, names, entries, replace(decided.dials, decision=None), file
    )


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
        return before_decisions(file, rest)
    except NotRebuilt as reason:
        raise UnsupportedModel(f"{file.name}: is not as guard wrote it: {reason}; {_ADVICE}") from reason
