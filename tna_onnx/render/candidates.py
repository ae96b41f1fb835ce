"""Which candidates of a search the figures draw, on which axes, and with which colour and marker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from tna_onnx.results.details import Details, Scored, Step

__all__ = [
    "MAX_DROP",
    "MAX_TIMES",
    "allowed_accuracy",
    "drawn_kinds",
    "highest",
    "looks",
    "near",
    "objective_range",
    "shares_last_look",
    "steps_of",
]

MAX_DROP = 0.1
"""Accuracy that the figures show a loss of; beyond it, errors grow so much that nothing else can be seen."""

MAX_TIMES = 2
"""Objectives that are more than so many times the original weight's are cut off."""

# Paper between the highest point and the end of the axis.
_ROOM = 1.15


def near(details: Details) -> list[Step]:
    """Return the candidates that the figures show."""
    # on the calibration data, which every candidate has scores on
    lowest = details.steps[0].calibration.accuracy - MAX_DROP
    return [step for step in details.steps if step.calibration.accuracy >= lowest]


def drawn_kinds(details: Details) -> list[tuple[str, Callable[[Step], Scored]]]:
    """Name the data that lines are drawn for, and what takes their scores from a candidate."""
    kinds: list[tuple[str, Callable[[Step], Scored]]] = [("calibration", lambda step: step.calibration)]
    if details.held_out:
        kinds.append(("held-out", lambda step: step.shown))
    return kinds


def highest(details: Details, value: Callable[[Scored], float]) -> float:
    """Return the upper end of the objective's axis: all that is near, but not what is much worse than the original.

    The choice is always inside; 1 if all of it is zero.
    """
    kinds = [scored_of for _, scored_of in drawn_kinds(details)]
    # the first step is the original weight
    limit = MAX_TIMES * max(value(scored_of(details.steps[0])) for scored_of in kinds)
    choice = [value(scored_of(details.steps[details.chosen])) for scored_of in kinds]
    values = [value(scored_of(step)) for step in near(details) for scored_of in kinds]
    return _ROOM * max(*choice, *(v for v in values if v <= limit)) or 1.0


def objective_range(details: Details, value: Callable[[Scored], float]) -> tuple[float, float]:
    """Return the ends of the objective's axis: from a little below the lowest candidate to `highest`."""
    high = highest(details, value)
    values = [value(scored_of(step)) for step in near(details) for _, scored_of in drawn_kinds(details)]
    low = min(values)
    return max(0.0, low - 0.1 * (high - low)), high


def allowed_accuracy(details: Details, settings: dict[str, object]) -> float:
    """Return the lowest accuracy on the calibration data that the search allowed, in per cent."""
    return 100 * details.steps[0].calibration.accuracy - float(str(settings["max_accuracy_drop"]))


def looks(details: Details, max_looks: int) -> dict[int, int]:
    """Return the colour and marker of each number of members, from 0; the limit of many comes last.

    If there are more numbers than looks, that of the choice and those with the most candidates have their own; the rest
    share the last one.
    """
    counts = Counter(step.members for step in details.steps[1:])
    choice = details.steps[details.chosen].members
    sizes = sorted(counts, key=_many_last)
    # With a look to spare for each, none is shared.
    distinct = sizes
    if len(sizes) > max_looks:
        distinct = sorted(sizes, key=lambda size: (size != choice, -counts[size]))[: max_looks - 1]
    ranks = {size: k for k, size in enumerate(size for size in sizes if size in distinct)}
    return {size: ranks.get(size, max_looks - 1) for size in sizes}


def shares_last_look(ranks: dict[int, int], max_looks: int) -> bool:
    """Return whether several numbers of members have the last look."""
    return list(ranks.values()).count(max_looks - 1) > 1


def steps_of(details: Details, candidates: Sequence[Step], size: int, *, first: bool) -> list[Step]:
    """Return the candidates of one line over the angle, in its order.

    Args:
        details: of the search.
        candidates: to choose from.
        size: members of the line.
        first: the line begins at angle 0, the original weight, which belongs to all lines.
    """
    steps = sorted((step for step in candidates if step.angle and step.members == size), key=lambda step: step.angle)
    if first:
        steps.insert(0, details.steps[0])
    return steps


def _many_last(size: int) -> float:
    """Sort numbers of members; 0 is the limit of many."""
    return size or float("inf")
