"""What a search and a choice came to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from tna_onnx.calibration.crossfit import Scores
from tna_onnx.calibration.methods import Method
from tna_onnx.engine.logits import Logits
from tna_onnx.maps.base import CalibrationMap
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.search.candidates import Candidate

__all__ = ["Outcome"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What was chosen and fitted.

    Attributes:
        candidates: all weights that were scored, the original one first.
        chosen: the one that was chosen.
        weight: its (C, n) weight; None for a model without a head.
        method: weight and map in a word.
        fitted: the map, None for none.
        before: scores of the input model on the calibration data.
        logits: logits of the calibration data under `weight`, before the map.
        scores: cross-fitted scores of the methods that were compared; empty where nothing was `auto`.
        allowed: those of them that keep predictions, or cost no more accuracy than they may.
        failed: methods that could not be fitted without one of the folds, and why; a path by its first step.
    """

    candidates: tuple[Candidate, ...]
    chosen: Candidate
    weight: NDArray[Any] | None
    method: Method
    fitted: CalibrationMap | None
    before: SampleScores
    logits: Logits
    scores: Scores = field(default_factory=dict)
    allowed: tuple[Method, ...] = ()
    failed: Mapping[Method, str] = field(default_factory=dict)

    @property
    def map(self) -> str:
        """Name of the map."""
        return self.method.map

    @property
    def label(self) -> str:
        """What was done in a word: without the tilt where no tilted weight was better."""
        return dataclasses.replace(self.method, tilted=self.chosen.angle != 0).label

    @property
    def unchanged(self) -> bool:
        """Whether the result is the input."""
        return self.chosen.angle == 0 and self.fitted is None

    @property
    def parameters(self) -> dict[str, Any]:
        """What a reader wants to know of the fitted map; empty for none."""
        return self.fitted.brief if self.fitted else {}

    @property
    def keeps_predictions(self) -> bool:
        """Whether no sample can change its predicted class."""
        return self.chosen.angle == 0 and (self.fitted is None or self.fitted.keeps_order)
