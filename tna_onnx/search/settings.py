"""Settings of the search, and its grid of angles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from tna_onnx.errors import UsageError
from tna_onnx.numerics.averages import Draws, Ensemble
from tna_onnx.numerics.metric import OBJECTIVES, Objective
from tna_onnx.numerics.rotations import TiltParameters

__all__ = ["QUARTERS", "SearchSettings"]


# Largest distance in degrees of the angles that an adaptive search looks at first: the curves are smooth at that scale.
_MAX_COARSE = 8.0


# Angles are whole numbers of a quarter of the grid step.
QUARTERS = 4


@dataclass(frozen=True)
class SearchSettings:
    """Settings of the search; defaults are the paper's where it has one.

    Attributes:
        ensemble_size: members n_e averaged for each candidate at first; 0 (`LIMIT`) for the limit of many.
        max_ensemble_size: cap on the members when accuracy asks for more, 0 in the limit of many; large heads stop
            earlier, at 2^30 turned class vectors (rotations x classes x members) a candidate.
        grows: whether accuracy may ask for more members, and beyond the cap for the limit of many.
        angle_step: step of the grid of angles, degrees.
        adaptive: whether the grid is searched from coarse to fine.
        objective: metric that the choice minimises.
        bins: bins of ECE and AdaECE, at least 1.
        max_accuracy_drop: accuracy that a candidate may lose on the calibration data, a fraction (0.003 = 0.3 points).
        seed: seed of all random draws.
        antithetic: whether members come in pairs of a rotation and its transpose, whose antisymmetric noise cancels.
        tilt: how rotations are drawn.
        tilt_bias: whether whoever scores a weight scales the bias by what is left of the weight (`kept_part`).
    """

    ensemble_size: int = 10
    max_ensemble_size: int = 32
    grows: bool = True
    angle_step: float = 2.0
    adaptive: bool = True
    objective: Objective = "ece"
    bins: int = 15
    max_accuracy_drop: float = 0.003
    seed: int = 0
    antithetic: bool = False
    tilt: TiltParameters = field(default_factory=TiltParameters)
    tilt_bias: bool = False

    def __post_init__(self) -> None:
        for name, good in (
            ("ensemble_size", self.ensemble_size >= 0),
            ("max_ensemble_size", self.max_ensemble_size >= self.ensemble_size),
            ("angle_step", 0 < self.angle_step < 90),
            ("objective", self.objective in OBJECTIVES),
            ("bins", self.bins >= 1),
            ("max_accuracy_drop", 0 <= self.max_accuracy_drop <= 1),
            ("seed", self.seed >= 0),
        ):
            if not good:
                raise UsageError(f"{name} is out of its range: {getattr(self, name)}")

    @property
    def grid(self) -> list[float]:
        """Angles in degrees, 0 left out."""
        return self.angles(self.steps(QUARTERS))

    @property
    def coarse(self) -> int:
        """Distance of the angles looked at first, in quarters of the grid step: a power of two."""
        stride = QUARTERS
        # powers of two, so that halving ends at a quarter of the step
        while self.adaptive and 2 * stride * self.angle_step / QUARTERS <= _MAX_COARSE:
            stride *= 2
        return stride

    @property
    def draws(self) -> Draws:
        """Where rotations come from."""
        return Draws(self.seed, self.antithetic, self.tilt)

    def ensemble(self, weight: NDArray[Any]) -> Ensemble:
        """Return the members of a (C, n) weight, for all angles of the search."""
        return Ensemble(weight, self.draws, self.angles(self.steps(1)))

    def steps(self, stride: int) -> list[int]:
        """Multiples of `stride` that give angles between 0 and 90 degrees, in quarters of the grid step."""
        end = math.ceil(90 * QUARTERS / self.angle_step)
        return [q for q in range(stride, end, stride) if q * self.angle_step / QUARTERS < 90]

    def angles(self, quarters: Sequence[int]) -> list[float]:
        """Return the angles in degrees of whole numbers of quarters of the grid step."""
        return [q * self.angle_step / QUARTERS for q in quarters]
