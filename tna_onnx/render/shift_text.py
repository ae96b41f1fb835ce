"""The result of `shift` as text."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from tna_onnx.numerics.metrics import Interval
from tna_onnx.results.shifting import ClassFrequency, Shift, ShiftEffect, ShiftEvidence

__all__ = ["shift_text"]

_MAX_CLASSES = 20  # of more, those that change most

_METHODS = {
    "em": "estimated by EM",
    "bbse": "estimated by the black box",
    "given": "as given",
}

_PLACES = {"bias": "in the bias of the head; no node is new", "nodes": "in nodes behind the scores"}


def shift_text(result: Shift) -> RenderableType:
    """Which frequencies, how sure they are, and what they do."""
    lines = [f"model    {result.model}, output '{result.class_output}'", f"source   {result.data}"]
    if result.target_data:
        lines.append(f"target   {result.target_data}: class frequencies {_METHODS[result.method]}")
    else:
        lines.append(f"target   class frequencies {_METHODS[result.method]}")
    lines += [f"class    {line}" for line in _classes(result.classes)]
    if result.evidence is not None:
        lines += [f"tested   {line}" for line in _tested(result.evidence)]
    if result.effect is not None:
        lines += [f"measured {line}" for line in _measured(result.effect)]
    lines.append(f"checked  {_PLACES[result.placed]}; probabilities within {result.max_difference:.1e} of the formula")
    lines += [f"note     {note}" for note in result.notes]
    lines.append(f"wrote    {result.output or 'nothing'}")
    return Group(*(Text(line) for line in lines))


def _classes(found: tuple[ClassFrequency, ...]) -> Iterator[str]:
    shown = list(found)
    if len(found) > _MAX_CLASSES:
        shown = sorted(found, key=lambda each: -abs(each.target - each.source))[:_MAX_CLASSES]
        yield f"the {_MAX_CLASSES} of {len(found):,} that change most"
    width = max(len(each.name) for each in shown)
    for each in shown:
        text = f"{each.name:{width}}  {_per_cent(each.source)} -> {_per_cent(each.target)}"
        if each.interval is not None:
            text += f" ({100 * each.interval[0]:.2f} to {100 * each.interval[1]:.2f})"
        yield text


def _tested(found: ShiftEvidence) -> Iterator[str]:
    yield f"noise alone makes as large a change of frequencies with p = {found.changed_p:.2g}"
    if found.disagreement is not None and found.disagreement_p is not None:
        yield (
            f"EM and the black box differ by {100 * found.disagreement:.2f} points in all (p = "
            f"{found.disagreement_p:.2g})"
        )
    yield (
        f"mean confidence less what the classes explain: {100 * found.surprise:+.2f} points "
        f"(p = {found.surprise_p:.2g})"
    )


def _measured(found: ShiftEffect) -> Iterator[str]:
    yield f"on {found.data}, which must come from the target"
    yield (
        f"accuracy {_per_cent(found.before.accuracy)} -> {_per_cent(found.after.accuracy)} "
        f"({_between(found.accuracy, 100, 2)} points)"
    )
    yield f"NLL {found.before.nll:.4f} -> {found.after.nll:.4f} ({_between(found.nll, 1, 4)})"
    yield f"ECE {_per_cent(found.before.ece)} -> {_per_cent(found.after.ece)}"
    yield f"its labels have other frequencies than the ones written by {100 * found.distance:.2f} points in all"


def _per_cent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _between(interval: Interval, factor: float, digits: int) -> str:
    return f"{factor * interval.low:+.{digits}f} to {factor * interval.high:+.{digits}f}"
