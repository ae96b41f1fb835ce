"""Samples that decided on something in a file, thresholds or class frequencies: the file looks better on them."""

from __future__ import annotations

import json
from typing import Any

from tna_onnx.calibration.leaks import MIN_TOLD, SKETCH_MARGIN, Told
from tna_onnx.data.digest import sample_digests, sample_form
from tna_onnx.data.leaks import read_sketch, sketch_of, sketch_overlap
from tna_onnx.data.limits import Limits
from tna_onnx.data.source import Source
from tna_onnx.graph.load import Model
from tna_onnx.graph.own_names import provenance

__all__ = ["decided_on", "decided_thresholds", "sources_between", "told_in_file"]


def told_in_file(source: Source, prefix: str) -> dict[str, str]:
    """Return what a file says of samples that decided on something in it: a few digests, and what they are of."""
    return {f"{prefix}_sketch": sketch_of(sample_digests(source)), f"{prefix}_form": sample_form(source)}


def decided_thresholds(model: Model, each: Told, limits: Limits) -> bool | None:
    """Return whether samples gave the thresholds of a guarded model; None where nothing tells."""
    return _among(provenance(model), "guard", each, limits)


def decided_on(model: Model, each: Told, limits: Limits) -> tuple[str, ...]:
    """Say which decisions of a file came from some of these samples, so that they are no test of them."""
    notes = []
    if decided_thresholds(model, each, limits):
        notes.append(
            f"{each.name}: the thresholds of {model.name} come from these samples, or from some of them: they are no "
            "test of its promises; give others"
        )
    shifted = _shift_of(model)
    for prefix in ("calib", "target"):
        if _among(shifted, prefix, each, limits):
            what = "--calib" if prefix == "calib" else "--target-data"
            notes.append(
                f"{each.name}: {model.name} was shifted with these samples, or with some of them ({what}): they are no "
                "test of its class frequencies; give others"
            )
    return tuple(notes)


def sources_between(model: Model) -> tuple[str, ...]:
    """Return the SHA-256 of the files that were shifted or guarded on the way to this one, as far as it tells."""
    found = (_shift_of(model).get("source_sha256"), provenance(model).get("guard_source_sha256"))
    return tuple(each for each in found if isinstance(each, str))


def _shift_of(model: Model) -> dict[str, Any]:
    try:
        found = json.loads(provenance(model).get("shift", "{}"))
    except (ValueError, RecursionError):  # not written by this tool
        return {}
    if not isinstance(found, dict):
        return {}
    return found


def _among(entries: dict[str, Any], prefix: str, each: Told, limits: Limits) -> bool | None:
    text = entries.get(f"{prefix}_sketch")
    if not isinstance(text, str) or entries.get(f"{prefix}_form") != each.form:
        return None
    overlap = sketch_overlap(each.digests, read_sketch(text))
    if overlap.n < MIN_TOLD:  # a full sketch tells only of digests below its largest
        return None
    return overlap.shared >= MIN_TOLD and 100 * overlap.share > limits.overlap + 100 * SKETCH_MARGIN
