"""Ranges of charts: what matters is seen, and what runs away is cut off."""

from __future__ import annotations

from collections.abc import Sequence

from tna_onnx.numerics.metric import METRICS
from tna_onnx.results.study import Line

__all__ = ["shown_range"]

# Errors and losses are shown up to so many times those of the input, accuracies down to so many points below.
_TIMES = 2.5
_POINTS = 12.0
_ROOM = 0.06


def shown_range(name: str, level: float, lines: Sequence[Line]) -> tuple[float, float]:
    """Return the range of a metric's axis, in its shown unit.

    Args:
        name: of the metric.
        level: value of the input, in the shown unit; it is always in the range.
        lines: what is drawn.
    """
    values = [value for line in lines for value in (*line.y, *line.low, *line.high)]
    if METRICS[name].better > 0:
        low = max(min([level, *values]), level - _POINTS)
        high = max([level, *values])
        # one value would make a scale without length
        room = _ROOM * (high - low) or 0.5
        return low - room, high + room
    # a calibrated model has next to no error: then all is shown
    highest = max([level, *values])
    return 0.0, (1 + _ROOM) * (min(highest, _TIMES * level) if level > 0.05 * highest else highest) or 1.0
