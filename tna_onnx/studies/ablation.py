"""Shared parts of the ablations: searches along a grid of angles, where Algorithm 1 stops, and the ranges of charts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tna_onnx.numerics.averages import Average, Draws, averages
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Metrics, objective_value
from tna_onnx.numerics.rotations import TiltParameters
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.results.study import Line
from tna_onnx.search.settings import SearchSettings
from tna_onnx.studies.methods import MEMBERS
from tna_onnx.studies.run import StudyData

__all__ = ["NAMES", "TARGET", "Repeat", "Searches", "shown_range", "stopped"]


TARGET = 30.0
_GRID = tuple(float(angle) for angle in range(4, 85, 4))
NAMES = ("accuracy", "ece", "nll")
"""Metrics of each repeat."""

Repeat = dict[str, float]
"""Angle in degrees, rotations and metrics of one repeat; NaN where the target was not reached."""


@dataclass(frozen=True, eq=False)
class Searches:
    """Searches along the grid; the averages of one distribution and seed serve all numbers of bins.

    Attributes:
        settings: settings of the search; its bins are those of the held-out scores.
        bins: numbers of bins that may choose.
    """

    settings: SearchSettings
    bins: Sequence[int]
    cached: dict[tuple[TiltParameters, int], dict[int, Repeat]] = field(default_factory=dict)

    def case(self, tilt: TiltParameters, bins: int) -> Callable[[StudyData, int], Repeat]:
        """Return a function that chooses the angle with the smallest objective over `bins` and measures it."""

        def make(data: StudyData, seed: int) -> Repeat:
            key = (tilt, seed)
            if key not in self.cached:
                self.cached[key] = self._searched(data, tilt, seed)
            return self.cached[key][bins]

        return make

    def _searched(self, data: StudyData, tilt: TiltParameters, seed: int) -> dict[int, Repeat]:
        """Return the choice for each number of bins; the scores of only one average at a time are in memory."""
        original = Average(0.0, data.weight, 0.0, 0.0)
        tilted = averages(data.weight, _GRID, MEMBERS, replace(self.settings, seed=seed, tilt=tilt).draws)
        least = dict.fromkeys(self.bins, math.inf)
        best: dict[int, Repeat] = {}
        for average in itertools.chain([original], tilted):
            scores = data.logits(data.calibration, average.weight).scores()
            values = {bins: objective_value(scores, self.settings.objective, bins) for bins in self.bins}
            better = {bins: value for bins, value in values.items() if value < least[bins]}
            if better:
                # one measure for all: what differs is what was chosen
                least |= better
                best |= dict.fromkeys(better, _measured(data, average, self.settings.bins))
        return best


def stopped(n_t: int, bins: int) -> Callable[[StudyData, int], Repeat]:
    """Stop each member once mRC, measured every n_t rotations, has passed the target."""

    def make(data: StudyData, seed: int) -> Repeat:
        draws = Draws(seed, tilt=TiltParameters(n_t=n_t))
        for average in averages(data.weight, [TARGET], MEMBERS, draws):
            return _measured(data, average, bins)
        # two or three features go round and round: a look may never find them past the target
        return dict.fromkeys(("angle", "rotations", *NAMES), math.nan)

    return make


def _measured(data: StudyData, average: Average, bins: int) -> Repeat:
    scores: SampleScores = data.scores(average.weight)
    metrics = Metrics.of(scores, bins)
    values = {name: float(getattr(metrics, name)) for name in NAMES}
    return {"angle": average.reached, "rotations": average.rotations} | values


# Errors and losses are shown up to so many times those of the input, accuracies down to so many points below.
_TIMES = 2.5
_POINTS = 12.0
_ROOM = 0.06


def shown_range(name: str, level: float, lines: Sequence[Line]) -> tuple[float, float]:
    """Return the range of a metric's axis, in its displayed unit: values that matter fit in, outliers are cut off.

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
