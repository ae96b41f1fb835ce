"""What the ablations measure: searches along a grid of angles, and where Algorithm 1 stops."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.averages import Average, averages
from tna_onnx.numerics.metrics import Metrics, objective_value
from tna_onnx.numerics.rotations import TiltParameters
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.search.settings import SearchSettings
from tna_onnx.studies.data import StudyData
from tna_onnx.studies.printed import MEMBERS, walk
from tna_onnx.studies.spread import mean

__all__ = ["NAMES", "TARGET", "Repeat", "Searches", "stopped"]

TARGET = 30.0
_GRID = tuple(float(angle) for angle in range(4, 85, 4))
NAMES = ("accuracy", "ece", "nll")
"""Metrics of each repeat."""

Repeat = dict[str, float]
"""Angle in degrees, rotations and metrics of one repeat."""


@dataclass(frozen=True, eq=False)
class Searches:
    """Averages along the grid, scored on both sets of samples; each is made once for all numbers of bins."""

    own: SearchSettings
    made: dict[tuple[TiltParameters, int], list[_Scored]] = field(default_factory=dict)

    def case(self, tilt: TiltParameters, bins: int) -> Callable[[StudyData, int], Repeat]:
        """Return what chooses the angle with the least objective, and gives its metrics."""

        def make(data: StudyData, seed: int) -> Repeat:
            along = self._along(data, tilt, seed)
            best = min(along, key=lambda each: objective_value(each.calibration, self.own.objective, bins))
            # the errors are shown over the bins that chose
            return {"angle": best.reached, "rotations": best.rotations} | _metrics(best.held_out, bins)

        return make

    def _along(self, data: StudyData, tilt: TiltParameters, seed: int) -> list[_Scored]:
        key = (tilt, seed)
        if key not in self.made:
            original = Average(0.0, data.weight, 0.0, 0.0)
            others = averages(data.weight, _GRID, MEMBERS, replace(self.own, seed=seed, tilt=tilt).draws)
            self.made[key] = [_Scored.of(data, average) for average in itertools.chain([original], others)]
        return self.made[key]


@dataclass(frozen=True, eq=False)
class _Scored:
    """An average: its angle, its rotations, and scores of both sets of samples."""

    reached: float
    rotations: float
    calibration: SampleScores
    held_out: SampleScores

    @classmethod
    def of(cls, data: StudyData, average: Average) -> _Scored:
        calibration = data.logits(data.calibration, average.weight).scores()
        return cls(average.reached, average.rotations, calibration, data.scores(average.weight))


def stopped(n_t: int, bins: int) -> Callable[[StudyData, int], Repeat]:
    """Stop where mRC, looked at every n_t rotations, has passed the target."""

    def make(data: StudyData, seed: int) -> Repeat:
        rng = np.random.default_rng([seed, n_t])
        tilt = TiltParameters(n_t=n_t)
        last = tilt.max_rotations(data.weight.shape[1]) + n_t
        weights: dict[int, tuple[NDArray[Any], float, int]] = {}
        for stop in walk(data.weight, MEMBERS, tilt, rng, last):
            mrc = stop.mrc
            for member in np.flatnonzero(mrc > TARGET):
                weights.setdefault(int(member), (stop.tilted[member].T.copy(), float(mrc[member]), stop.rotations))
            if len(weights) == MEMBERS:
                break
        average = np.mean([weight for weight, _, _ in weights.values()], axis=0, dtype=np.float64)
        return {
            "angle": mean([angle for _, angle, _ in weights.values()]),
            "rotations": mean([rotations for _, _, rotations in weights.values()]),
        } | _metrics(data.scores(average.astype(data.weight.dtype)), bins)

    return make


def _metrics(scores: SampleScores, bins: int) -> Repeat:
    metrics = Metrics.of(scores, bins)
    return {name: float(getattr(metrics, name)) for name in NAMES}
