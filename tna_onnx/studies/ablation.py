"""What the ablations measure: searches along a grid of angles, and where Algorithm 1 stops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tna_onnx.numerics.averages import Average, Draws, averages
from tna_onnx.numerics.metrics import Metrics, objective_value
from tna_onnx.numerics.rotations import TiltParameters
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.search.settings import SearchSettings
from tna_onnx.studies.data import StudyData
from tna_onnx.studies.printed import MEMBERS

__all__ = ["NAMES", "TARGET", "Repeat", "Searches", "stopped"]

TARGET = 30.0
_GRID = tuple(float(angle) for angle in range(4, 85, 4))
NAMES = ("accuracy", "ece", "nll")
"""Metrics of each repeat."""

Repeat = dict[str, float]
"""Angle in degrees, rotations and metrics of one repeat; NaN where the target was not reached."""


@dataclass(frozen=True, eq=False)
class Searches:
    """Searches along the grid; the averages of a distribution and a seed are made once for all numbers of bins.

    Attributes:
        own: settings of the search; its bins are those of the held-out scores.
        bins: numbers of bins that may choose.
    """

    own: SearchSettings
    bins: Sequence[int]
    made: dict[tuple[TiltParameters, int], dict[int, Repeat]] = field(default_factory=dict)

    def case(self, tilt: TiltParameters, bins: int) -> Callable[[StudyData, int], Repeat]:
        """Return what chooses the angle with the least objective over so many bins, and gives its metrics."""

        def make(data: StudyData, seed: int) -> Repeat:
            key = (tilt, seed)
            if key not in self.made:
                self.made[key] = self._searched(data, tilt, seed)
            return self.made[key][bins]

        return make

    def _searched(self, data: StudyData, tilt: TiltParameters, seed: int) -> dict[int, Repeat]:
        """Return what each number of bins chooses; scores of one average at a time are in memory."""
        original = Average(0.0, data.weight, 0.0, 0.0)
        others = averages(data.weight, _GRID, MEMBERS, replace(self.own, seed=seed, tilt=tilt).draws)
        least = dict.fromkeys(self.bins, math.inf)
        best: dict[int, Repeat] = {}
        for average in itertools.chain([original], others):
            scores = data.logits(data.calibration, average.weight).scores()
            values = {bins: objective_value(scores, self.own.objective, bins) for bins in self.bins}
            better = {bins: value for bins, value in values.items() if value < least[bins]}
            if better:
                # one measure for all: what differs is what was chosen
                least |= better
                best |= dict.fromkeys(better, _measured(data, average, self.own.bins))
        return best


def stopped(n_t: int, bins: int) -> Callable[[StudyData, int], Repeat]:
    """Stop each member where mRC, looked at every n_t rotations, has passed the target."""

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
