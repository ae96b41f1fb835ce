"""What `shift` estimates, and how. Light to import: the command line reads defaults and choices here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from tna_onnx.errors import UsageError
from tna_onnx.numerics.checks import check_choice, check_level, check_numbers

__all__ = ["ESTIMATORS", "Estimator", "Frequencies", "ShiftSettings"]

Estimator: TypeAlias = Literal["em", "bbse"]
ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)

Frequencies: TypeAlias = "str | Path | Sequence[float] | Mapping[str, float]"
"""Class frequencies: the path of a file, C numbers in the model's order, or a number for each class by name."""

_MIN_DRAWS = 100


@dataclass(frozen=True)
class ShiftSettings:
    """Where the class frequencies come from, before and after.

    Attributes:
        target_prior: frequencies that the model is to expect: `uniform`, a file or numbers; None estimates them.
        source_prior: frequencies of the data that the model was calibrated on, likewise; None counts labels.
        estimator: `em` (maximum likelihood; needs calibrated probabilities) or `bbse` (from the confusion matrix).
        draws: bootstrap samples behind intervals and tests.
        trust_shift: write also where the data look as if more than class frequencies had changed.
        seed: of the draws.
        confidence_level: of the intervals, in per cent.

    Raises:
        UsageError: a value that cannot be used.
    """

    target_prior: Frequencies | None = None
    source_prior: Frequencies | None = None
    estimator: Estimator = "em"
    draws: int = 200
    trust_shift: bool = False
    seed: int = 0
    confidence_level: float = 95.0

    def __post_init__(self) -> None:
        check_choice("estimator", self.estimator, ESTIMATORS)
        check_numbers("a whole number", draws=self.draws, seed=self.seed)
        if self.draws < _MIN_DRAWS:
            raise UsageError(f"draws must be at least {_MIN_DRAWS}, got {self.draws}")
        if self.seed < 0:
            raise UsageError(f"seed must be at least 0, got {self.seed}")
        check_level(self.confidence_level)
