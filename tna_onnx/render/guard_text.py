"""The result of `guard` as text."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from tna_onnx.results.guarding import ConfidenceCalibration, Decisions, Guard, GuardInput

__all__ = ["between", "decision_lines", "guard_lines", "guard_text", "off", "per_cent"]

_FEW_CLASSES = 5  # with the lowest coverage, that are listed

# By whether no threshold was chosen on the samples.
_FRESH = {
    True: ", held-out",
    False: ", the same samples, so no test of the promises; give --eval",
    None: "",
}


def guard_text(result: Guard) -> RenderableType:
    """What was added, what it promises, and what it decides on samples."""
    lines = [f"model    {result.model}, output '{result.class_output}'", *guard_lines(result)]
    changed = "no value changed"
    if result.max_change:
        changed = f"values changed by {result.max_change:.1e} at most"
    lines.append(f"checked  {changed} in other outputs; {result.nodes} nodes, {result.bytes:,} bytes more")
    lines += [f"note     {note}" for note in result.notes]
    lines.append(f"wrote    {result.output or 'nothing'}")
    return Group(*(Text(line) for line in lines))


def guard_lines(result: Guard) -> list[str]:
    """What thresholds come from, what was added, and what it decides."""
    source = f"data     {result.data}: thresholds from {result.samples:,} samples"
    if result.fitted_on:
        source += f"; what is fitted for them saw {result.fitted_on:,} others"
    lines = [source]
    for each in result.outputs:
        limit = ""
        if len(each.threshold) == 1 and each.threshold[0] is not None:
            limit = f" (threshold {each.threshold[0]:.6g})"
        lines.append(f"added    {each.name}: {each.promise}{limit}")
    lines += [f"dial     {dial.name}: {_range(dial)}" for dial in result.inputs]
    return [*lines, *decision_lines(result.decisions)]


def _range(dial: GuardInput) -> str:
    if dial.lowest is None:
        return "an input that may be left out; a positive number for each class, by default how frequent it is here"
    return (
        f"an input that may be left out; {dial.default:g} by default, tells levels from {dial.lowest:.3g} to "
        f"{dial.highest:.4g} apart"
    )


def decision_lines(found: Decisions) -> list[str]:
    """What a file decides on samples."""
    return [f"measured {line}" for line in _measured(found)]


def _measured(found: Decisions) -> Iterator[str]:
    yield f"on {found.data}{_FRESH[found.fresh]}"
    if found.calibration is not None:
        yield f"confidence: {off(found.calibration)}"
    if found.accepted is not None:
        text = f"accepted {per_cent(found.accepted)} of samples"
        if found.risk is not None and found.risk_interval is not None:
            text += f", of which {per_cent(found.risk)} wrong {between(found.risk_interval)}; without accept "
            text += f"{per_cent(1 - found.accuracy)}"
        yield text
    if found.coverage is not None and found.coverage_interval is not None:
        yield (
            f"sets hold the true class of {per_cent(found.coverage)} {between(found.coverage_interval)}; "
            f"{found.mean_set_size:.2f} classes on average, one in {per_cent(found.single_sets)}, "
            f"none in {per_cent(found.empty_sets)}"
        )
        if found.full_sets:
            yield f"vacuous: {per_cent(found.full_sets)} of the sets hold all classes, which is true and says nothing"
    if found.class_coverage:
        known = [(share, k) for k, share in enumerate(found.class_coverage) if share is not None]
        lowest = ", ".join(f"{k}: {per_cent(share)}" for share, k in sorted(known)[:_FEW_CLASSES])
        yield f"lowest coverage by class: {lowest}"
    for group in found.by_confidence or ():
        yield (
            f"at a confidence of {group.low:.4f} to {group.high:.4f}, sets hold the true class of "
            f"{per_cent(group.coverage)}; {group.mean_set_size:.2f} classes on average"
        )
    if found.alarms is not None:
        yield f"alarm in {per_cent(found.alarms)}"
    if found.detection is not None:
        each = found.detection
        yield (
            f"unknown samples, {each.data}: alarm in {per_cent(each.detected)} {between(each.detected_interval)}; "
            f"AUROC {each.auroc:.4f}"
        )


def off(found: ConfidenceCalibration) -> str:
    """Say how far the confidence is off."""
    ece = "(one sample: no interval)"
    if found.ece_interval is not None:
        ece = between(found.ece_interval)
    nll = "(too few errors for an interval)"
    if found.nll_interval is not None:
        low, high = found.nll_interval
        nll = f"({low:.4f} to {high:.4f})"
    return f"ECE {per_cent(found.ece)} {ece}, NLL of being right {found.nll:.4f} {nll}"


def per_cent(share: float | None) -> str:
    """Write a share in per cent; a dash where there is none."""
    return "-" if share is None else f"{100 * share:.2f} %"


def between(interval: tuple[float, float]) -> str:
    """Write the ends of an interval in per cent."""
    return f"({100 * interval[0]:.2f} to {100 * interval[1]:.2f})"
