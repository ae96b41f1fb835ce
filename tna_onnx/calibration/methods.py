"""What a recalibration may be: a weight and a map, from the simplest on; and the choice among them.

A choice looks at samples that were scored by fits without them. With l the loss of a sample (`sample_losses`):

1. *Allowed* is what keeps every prediction, and what loses no accuracy; more, where the user asked for such a method.
2. Of the allowed ones, the *best* has the smallest mean loss.
3. *Chosen* is the simplest whose mean loss is within one standard error of the best, of the paired difference.
4. If it raises the calibration error of the input significantly, it is taken out, and rule 2 goes on without it.

Source of rule 3: Breiman, Friedman, Olshen & Stone (1984), *Classification and Regression Trees*, section 3.4.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tna_onnx.maps import MAPS
from tna_onnx.numerics.clusters import mean_and_error
from tna_onnx.numerics.losses import sample_losses
from tna_onnx.numerics.metric import Objective
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.search.candidates import ROUNDING

__all__ = ["INPUT", "Method", "Rule"]

# From the simplest on: numbers that are fitted, and what they may do.
_ORDER = (
    "none", "ts", "label-ts", "platt", "label-platt", "ets", "quadratic", "beta", "bias", "svs", "svs-mix", "irova",
    "label-isotonic", "aar", "sms", "refit",
)  # fmt: skip

# Standard errors beyond which an error of calibration is worse: 97.5 % on one side.
_SIGNIFICANT = 1.96
_SMALLEST_RISE = 0.001


@dataclass(frozen=True)
class Method:
    """A way to a last layer.

    Attributes:
        tilted: whether the weight is tilted and averaged.
        map: the map on top, or `none`.
        step: which strength of the map's path; 0 for maps without one.
    """

    tilted: bool
    map: str
    step: int = 0

    @property
    def label(self) -> str:
        """Its name in reports: `ts`, `tna`, `tna + ets`, `refit 0.05`."""
        name = self.map
        if self.has_path:
            name = f"{name} {self._strengths[self.step]:g}"
        if not self.tilted:
            return name
        if self.map == "none":
            return "tna"
        return f"tna + {name}"

    @property
    def has_path(self) -> bool:
        """Whether it is one strength of a map that has several."""
        return bool(self._strengths)

    @property
    def _strengths(self) -> tuple[float, ...]:
        if self.map not in MAPS:
            return ()
        return getattr(MAPS[self.map], "strengths", ())

    @property
    def keeps_order(self) -> bool:
        """Whether it never changes a prediction."""
        return not self.tilted and (self.map == "none" or MAPS[self.map].keeps_order)

    @property
    def rank(self) -> tuple[int, bool, int, int]:
        """Sorts methods from the simplest on."""
        # a tilt is no simpler than a temperature: both are one number that is searched
        place = _ORDER.index(self.map)
        return (max(place, int(self.tilted)), self.tilted, place, self.step)


INPUT = Method(tilted=False, map="none")
"""The model as it is."""


@dataclass(frozen=True)
class Rule:
    """How to choose.

    Attributes:
        objective: metric whose losses decide.
        bins: of ECE and AdaECE.
        max_accuracy_drop: accuracy that a method may lose which can change predictions, a fraction.
    """

    objective: Objective = "nll"
    bins: int = 15
    max_accuracy_drop: float = 0.0

    def choose(self, scores: Mapping[Method, SampleScores], before: SampleScores) -> Method:
        """Return the method to take.

        Args:
            scores: of samples that no fit has seen, in one order; not empty.
            before: of the same samples under the input model.
        """
        allowed = {method: scores[method] for method in self.allowed(scores, before)}
        # nothing is: the one that costs the least
        if not allowed:
            return min(scores, key=lambda method: (-np.mean(scores[method].hit), method.rank))
        first = self._simplest(allowed)
        while allowed:
            chosen = self._simplest(allowed)
            if not self._raises_error(before, allowed[chosen]):
                return chosen
            del allowed[chosen]  # rule 4
        # all that were asked for raise it: the best of them, as the user asked for one of these
        return first

    def allowed(self, scores: Mapping[Method, SampleScores], before: SampleScores) -> tuple[Method, ...]:
        """Return the methods that rule 1 leaves, of scores as in `choose`."""
        return tuple(method for method, after in scores.items() if self._allows(method, before, after))

    def losses(self, scores: SampleScores) -> NDArray[np.float64]:
        """Return (N,) losses of samples, whose mean is the objective."""
        return sample_losses(scores, self.objective, self.bins)

    def _allows(self, method: Method, before: SampleScores, after: SampleScores) -> bool:
        """Rule 1."""
        if method.keeps_order:
            return True
        drop = float(np.mean(before.hit)) - float(np.mean(after.hit))
        return drop <= self.max_accuracy_drop + ROUNDING

    def _simplest(self, scores: Mapping[Method, SampleScores]) -> Method:
        """Rules 2 and 3."""
        losses = {method: self.losses(after) for method, after in scores.items()}
        best = min(losses, key=lambda method: (float(np.mean(losses[method])), method.rank))
        for method in sorted(losses, key=lambda each: each.rank):
            worse, error = mean_and_error(losses[method] - losses[best], scores[method].clusters)
            if worse <= error:
                return method
        return best

    def _raises_error(self, before: SampleScores, after: SampleScores) -> bool:
        """Rule 4."""
        first, second = (sample_losses(each, "ece", self.bins) for each in (before, after))
        worse, error = mean_and_error(second - first, before.clusters)
        return worse > max(_SMALLEST_RISE, _SIGNIFICANT * error)
