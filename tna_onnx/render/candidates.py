"""Which candidates of a search its figures show, up to where, and how numbers of members are told apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tna_onnx.results.details import Details, Scored, Step

__all__ = ["MOST_TIMES", "SHOWN_DROP", "drawn_kinds", "highest", "looks", "near"]

SHOWN_DROP = 0.1
"""Accuracy that the figures show a loss of; beyond it, errors grow so much that nothing else can be seen."""

MOST_TIMES = 2
"""What is worse than so many times the original weight's objective is cut off."""


def near(details: Details) -> list[Step]:
    """Candidates that the figures show."""
    least = details.steps[0].calibration.accuracy - SHOWN_DROP
    return [s for s in details.steps if s.calibration.accuracy >= least]


def drawn_kinds(details: Details) -> list[tuple[str, Callable[[Step], Scored]]]:
    """Name the data that lines are drawn for, and what takes their scores from a candidate."""
    shown = [("held-out", lambda s: s.shown)] if details.held_out else []
    return [("calibration", lambda s: s.calibration), *shown]


def highest(details: Details, value: Callable[[Scored], float]) -> float:
    """Upper end of the objective's axis: all that is near, but not what is much worse than the original weight."""
    kinds = [of for _, of in drawn_kinds(details)]
    most = MOST_TIMES * max(value(of(details.steps[0])) for of in kinds)
    chosen = [value(of(details.steps[details.chosen])) for of in kinds]
    return 1.15 * max([*chosen, *(v for s in near(details) for of in kinds if (v := value(of(s))) <= most)]) or 1.0


def looks(details: Details, most: int) -> dict[int, int]:
    """Number of members -> colour and marker, from 0, the limit of many last.

    If there are more numbers than looks, that of the choice and those with the most candidates have their own; the rest
    share the last one.
    """
    found = Counter(s.members for s in details.steps[1:])
    chosen, sizes = details.steps[details.chosen].members, sorted(found, key=lambda m: m or 10**9)
    own = sizes if len(sizes) <= most else sorted(sizes, key=lambda m: (m != chosen, -found[m]))[: most - 1]
    ranks = {size: k for k, size in enumerate(m for m in sizes if m in own)}
    return {size: ranks.get(size, most - 1) for size in sizes}
