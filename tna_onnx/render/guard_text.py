"""The result of `guard` as text."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from tna_onnx.results.guarding import Decisions, Guard

__all__ = ["guard_text"]

_FEW_CLASSES = 5  # with the lowest coverage, that are listed


def guard_text(result: Guard) -> RenderableType:
    """What was added, what it promises, and what it decides on samples."""
    lines = [f"model    {result.model}, output '{result.class_output}'"]
    source = f"data     {result.data}: thresholds from {result.samples:,} samples"
    if result.fitted_on:
        source += f"; the outlier score was fitted to {result.fitted_on:,} of them, its threshold comes from the others"
    lines.append(source)
    for each in result.outputs:
        limit = ""
        if len(each.threshold) == 1 and each.threshold[0] is not None:
            limit = f" (threshold {each.threshold[0]:.6g})"
        lines.append(f"added    {each.name}: {each.promise}{limit}")
    lines += [f"measured {line}" for line in _measured(result.decisions)]
    changed = "no value changed"
    if result.max_change:
        changed = f"values changed by {result.max_change:.1e} at most"
    lines.append(f"checked  {changed} in other outputs; {result.nodes} nodes, {result.bytes:,} bytes more")
    lines += [f"note     {note}" for note in result.notes]
    lines.append(f"wrote    {result.output or 'nothing'}")
    return Group(*(Text(line) for line in lines))


def _measured(found: Decisions) -> Iterator[str]:
    fresh = "held-out" if found.fresh else "the same samples, so no test of the promises; give --eval"
    yield f"on {found.data}, {fresh}"
    if found.accepted is not None:
        text = f"accepted {_per_cent(found.accepted)} of samples"
        if found.risk is not None and found.risk_interval is not None:
            text += f", of which {_per_cent(found.risk)} wrong {_between(found.risk_interval)}; without accept "
            text += f"{_per_cent(1 - found.accuracy)}"
        yield text
    if found.coverage is not None and found.coverage_interval is not None:
        yield (
            f"sets hold the true class of {_per_cent(found.coverage)} {_between(found.coverage_interval)}; "
            f"{found.mean_set_size:.2f} classes on average, one in {_per_cent(found.single_sets)}, "
            f"none in {_per_cent(found.empty_sets)}"
        )
    if found.class_coverage:
        known = [(share, k) for k, share in enumerate(found.class_coverage) if share is not None]
        lowest = ", ".join(f"{k}: {_per_cent(share)}" for share, k in sorted(known)[:_FEW_CLASSES])
        yield f"lowest coverage by class: {lowest}"
    if found.alarms is not None:
        yield f"alarm in {_per_cent(found.alarms)}"


def _per_cent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


def _between(interval: tuple[float, float]) -> str:
    return f"({100 * interval[0]:.2f} to {100 * interval[1]:.2f})"
