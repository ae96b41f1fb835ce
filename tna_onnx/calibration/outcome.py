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
from tna_onnx.maps.refit import Refit
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
        anchor: the refit around which the weight was searched; None for the original weight.
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
    anchor: Refit | None = None

    @property
    def map(self) -> str:
        """Name of the map."""
        return self.method.map

    @property
    def label(self) -> str:
        """What was done in a word: `ts`, `tna + ets`, `refit 0.05 > tna + ts`; without a tilt that was no better."""
        own = dataclasses.replace(self.method, tilted=self.chosen.angle != 0).label
        if self.anchor is None:
            return own
        return f"{self.anchor.name} {self.anchor.strength:g} > {own}"

    @property
    def unchanged(self) -> bool:
        """Whether the result is the input."""
        return self.anchor is None and self.chosen.angle == 0 and self.fitted is None

    @property
    def parameters(self) -> dict[str, Any]:
        """What a reader wants to know of the anchor and the fitted map; empty for none."""
        found = {} if self.anchor is None else {f"anchor_{name}": value for name, value in self.anchor.brief.items()}
        if self.fitted:
            found |= self.fitted.brief
        return found

    @property
    def keeps_predictions(self) -> bool:
        """Whether no sample can change its predicted class."""
        if self.anchor is not None or self.chosen.angle != 0:
            return False
        return self.fitted is None or self.fitted.keeps_order
