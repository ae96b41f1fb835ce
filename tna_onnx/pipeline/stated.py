"""What the entries of a file state of its change: written again of the steps, by the words of who writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.graph.nodes import PREFIX, head_key
from tna_onnx.graph.outputs import output_of
from tna_onnx.graph.parts import Difference
from tna_onnx.graph.written_values import NotRebuilt
from tna_onnx.maps import MAPS
from tna_onnx.numerics.prior_shift import log_ratio
from tna_onnx.pipeline.methods import Method
from tna_onnx.pipeline.steps import MAX_ARRAY, Added, DecisionStep, HeadStep, OriginalClass

_SHIFT = "shift"
_OF_STEPS = ("change", "seal")


def require_order(steps: Sequence[HeadStep | DecisionStep]) -> None:
    """Refuse steps that no commands make: heads are calibrated, then the file is shifted once, and guarded once.

    Raises:
        NotRebuilt: such steps.
    """
    rank = [2 if isinstance(each, DecisionStep) else int(each.shifts) for each in steps]
    if rank != sorted(rank) or max(rank.count(1), rank.count(2)) > 1:
        raise NotRebuilt("it says that it was made in an order that this tool refuses")
    if not all(map(_is_calibration, _calibrations(steps))):
        raise NotRebuilt("it states a change that no calibration makes")


def _is_calibration(step: HeadStep) -> bool:
    """Whether a calibration writes this: one map at most, and a bias beside a new weight alone."""
    change = step.change
    maps = [each for each in change.maps if not isinstance(each, OriginalClass)]
    if change.weight is None and change.bias is not None:
        return False
    if change.folded is not None:
        return (
            change.weight is None and change.bias_factor == 1 and not (change.maps or isinstance(change.folded, Added))
        )
    if maps and isinstance(maps[0], Added):  # what is left of a bias, where the file has no place for it
        maps = maps[1:] if change.weight is not None and not step.holds_bias else maps
    return len(maps) <= 1 and not any(isinstance(each, Added) for each in maps)


def _calibrations(steps: Sequence[HeadStep | DecisionStep]) -> list[HeadStep]:
    return [each for each in steps if isinstance(each, HeadStep) and not each.shifts]


def false_entries(
    carried: Mapping[str, str], steps: Sequence[HeadStep | DecisionStep], entries: Mapping[str, str]
) -> Iterator[Difference]:
    """Yield the entries of a file that are not what its steps, and its source, would have written.

    Args:
        carried: entries of the source.
        steps: from there to the file.
        entries: of the file.
    """
    if not {*entries} - {*_OF_STEPS}:
        return  # who states nothing states nothing false
    calibrations = _calibrations(steps)
    # of a head that was calibrated again, only the last time counts
    last = {each.readout.output: each for each in calibrations}
    expected: dict[str, str] = {}
    if not calibrations:
        expected = {key: value for key, value in carried.items() if key not in _OF_STEPS}
    for output, step in last.items():
        start = head_key(output)
        if len(calibrations) == 1 and not any(key.startswith(start) for key in entries):
            start = ""
        words = {key.removeprefix(start): value for key, value in entries.items() if key.startswith(start)}
        expected |= {start + key: value for key, value in _of_calibration(step, words).items()}
    for each in steps:
        if isinstance(each, DecisionStep):
            expected = {**each.guarded.output.provenance, **expected}
        elif each.shifts:
            expected |= _of_shift(each, entries)
    for key, value in expected.items():
        if entries.get(key) != value:
            yield Difference("metadata", f"{PREFIX}.{key}", "changed", "not that of the change in the file")


def _of_calibration(step: HeadStep, words: Mapping[str, str]) -> dict[str, str]:
    """Return what a calibration states: which source, output and map, and the numbers of the map."""
    fitted, weight = step.fitted, step.change.weight is not None
    tilted = json.loads(words["angle_degrees"]) != 0
    stated: dict[str, Any] = {
        "source_sha256": step.source,
        **output_of(step.readout).provenance,
        "output_kind": output_of(step.readout).kind,
        **(fitted.brief if fitted is not None and step.known else {}),
    }
    if fitted is not None:
        stated["map"] = fitted.name
    elif not weight:
        stated["map"] = "none"
    # without a map of its own, what was fitted is in the weight
    elif not _is_in_weight(words["map"], tilted=tilted or step.readout.n_classes > MAX_ARRAY):
        stated["map"] = ""
    if tilted and not weight:
        stated["angle_degrees"] = 0.0
    if weight and fitted is not None and not tilted:
        stated["angle_degrees"] = ""  # of a weight as it is, a map is in it, or behind it
    labels = _labels(stated.get("map", words["map"]), words, tilted=tilted)
    if words["method"] not in labels:
        stated["method"] = labels[0]
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in stated.items()}


def _is_in_weight(name: str, *, tilted: bool) -> bool:
    """Whether a map may be in a weight with numbers of its own: of the old one, one of few numbers is computed."""
    if name not in MAPS:
        return tilted and name == "none"
    return MAPS[name].foldable and (tilted or not MAPS[name].few_parameters)


def _labels(name: str, words: Mapping[str, str], *, tilted: bool) -> list[str]:
    """Return what methods with a map are called: one of each strength, or the one that is stated."""
    strengths = getattr(MAPS.get(name), "strengths", (0.0,))
    stated = json.loads(words.get("strength", "0")) or strengths
    return [Method(tilted, name, step).label for step, each in enumerate(strengths) if each in np.ravel(stated)] or [""]


def _of_shift(step: HeadStep, words: Mapping[str, str]) -> dict[str, str]:
    """Return what a shift states; its frequencies as they are where the numbers in the file are theirs."""
    output = output_of(step.readout)
    shift = json.loads(words[_SHIFT])
    true = shift["source_sha256"] == step.source
    if step.known:
        (added,) = (each for each in (step.change.folded, *step.change.maps) if isinstance(each, Added))
        true = true and _is_ratio(shift, added.bias)
    return {**output.provenance, "output_kind": output.kind, _SHIFT: words[_SHIFT] if true else ""}


def _is_ratio(shift: Mapping[str, Any], bias: NDArray[np.floating]) -> bool:
    source, target = (np.array(shift[name], np.float64) for name in ("source", "target"))
    with np.errstate(all="ignore"):
        ratio = log_ratio(source, target)
    # a logarithm may differ by a rounding from one machine to another
    return bias.shape == ratio.shape and bool(np.allclose(bias, ratio, rtol=1e-9, atol=1e-12))
