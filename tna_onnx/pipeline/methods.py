"""What a recalibration may be, from the simplest on, and the choice among them, by losses of fits without the sample.

1. Allowed is what keeps every prediction, and what loses no accuracy; more, where the user asked for such a method.
2. The best has the smallest mean loss (`sample_losses`).
3. The input stays within one standard error of the best (Breiman et al. 1984, 3.4.3), or 0.002 nats. Else the simplest
   is chosen that loses less than a nat in all (Kass & Raftery 1995); by another objective, within a standard error.
4. If it raises the calibration error of the input significantly, it goes, and the choice is made again without it.
5. `auto`: what changes predictions needs a balanced accuracy no lower than the input's, and a recall no more than 10
   points lower in each class of ten samples; and ten samples, groups counting as one, in every class (`scarce`).
6. If that keeps predictions, clamped maps (`maps.clamp`) join where each class has five samples and 4 holds against it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tna_onnx.maps import CLAMPED, MAPS
from tna_onnx.numerics.metric import METRICS, Objective
from tna_onnx.numerics.metrics import independent_count, sample_losses
from tna_onnx.numerics.operating_points import Recalls
from tna_onnx.numerics.positive import positive_scores
from tna_onnx.numerics.scores import SampleScores, mean_and_error, weighted_mean
from tna_onnx.search.candidates import ROUNDING

# More folds would fit on more samples and cost as many more fits; five leave 80 %.
FOLDS = 5

# Standard errors beyond which an error of calibration is worse: 97.5 % on one side.
_SIGNIFICANT = 1.96
_SMALLEST_RISE = 0.001

# Folds share their training samples, which widens the error of a cross-fitted difference: K folds make it
# (1 + K / (K - 1))^(1/2) times as large where fitting gains nothing (Nadeau & Bengio 2003).
_GAIN = _SIGNIFICANT * math.sqrt(1 + FOLDS / (FOLDS - 1))

ENOUGH = 10
"""Independent samples of a class that show what happens to its recall."""

_MOST_LOST = 0.10

ENOUGH_TO_CLAMP = 5
"""Independent samples of each class from which a map with predictions kept is looked at."""

# What keeping predictions may cost in calibration error: confidences of classes that the map would not predict are low.
_MOST_RISE = 0.005


@dataclass(frozen=True)
class Method:
    """A weight and a map that a recalibration may choose."""

    tilted: bool  # whether the weight is tilted and averaged
    map: str  # the map on top, or `none`
    step: int = 0  # which strength of the map's path; 0 for maps without one

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
    def words(self) -> str:
        """What it does, for readers who do not know its label: `last layer fitted again (refit, strength 0.0005)`."""
        if self.map == "none":
            if self.tilted:
                return "class vectors tilted and averaged (tna)"
            return "the input model"
        strength = ""
        if self.has_path:
            strength = f", strength {self._strengths[self.step]:g}"
        title = MAPS[self.map].title or self.map
        text = f"{title} ({self.map}{strength})"
        if self.tilted:
            return f"class vectors tilted and averaged, {text}"
        return text

    @property
    def folds(self) -> bool:
        """Whether it goes into weight and bias, without nodes of its own."""
        return self.map == "none" or MAPS[self.map].foldable

    @property
    def has_path(self) -> bool:
        """Whether its map is fitted at several strengths, of which this is one."""
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
    def clamped(self) -> bool:
        """Whether its map would change predictions, and is kept from it."""
        return self.map.startswith(CLAMPED)

    @property
    def rank(self) -> tuple[int, bool, int, str, int]:
        """Sorts methods from the simplest on."""
        rank = 0
        if self.map != "none":
            rank = MAPS[self.map].rank
        # a tilt moves every class vector: no simpler than a scale and a bias for each class
        rank_of_weight = 0
        if self.tilted:
            rank_of_weight = MAPS["svs"].rank
        return (max(rank, rank_of_weight), self.tilted, rank, self.map, self.step)


INPUT = Method(tilted=False, map="none")
"""The model as it is."""

Reason = Literal["accuracy", "predictions", "error"]
"""Why a method is left out."""


@dataclass(frozen=True)
class Choice:
    """The method that is taken, and those that were left out before it was, with the reason."""

    method: Method
    left_out: Mapping[Method, Reason]


@dataclass(frozen=True)
class Rule:
    """How to choose."""

    objective: Objective = "nll"  # metric whose losses decide
    bins: int = 15  # of ECE and AdaECE
    max_accuracy_drop: float = 0.0  # accuracy that a method may lose which can change predictions, a fraction
    careful: bool = False  # whether rule 5 holds
    two_classes: bool = False  # whether a calibration error is that of P(positive); of several labels it always is

    def choose(self, scores: Mapping[Method, SampleScores], before: SampleScores) -> Method:
        """Return the method to take. `scores`: of samples that no fit has seen, in one order; not empty."""
        return self.choice(scores, before).method

    def choice(self, scores: Mapping[Method, SampleScores], before: SampleScores) -> Choice:
        """Return the method to take, and why others were left out; of scores as in `choose`."""
        plain = {method: after for method, after in scores.items() if not method.clamped}
        if not plain:
            return self._choice(scores, before)
        choice = self._choice(plain, before)
        if len(plain) == len(scores) or not choice.method.keeps_order:
            return choice
        return self._with_clamps(choice, scores, before)

    def _with_clamps(self, choice: Choice, scores: Mapping[Method, SampleScores], before: SampleScores) -> Choice:
        """Let clamped maps take part, too."""
        unclamped = scores[choice.method]
        left_out = dict(choice.left_out)
        allowed = {}
        for method, after in scores.items():
            if method.clamped and self._raises_error(before, unclamped, after, _MOST_RISE):
                left_out[method] = "error"
            elif method.keeps_order and method not in left_out:
                allowed[method] = after
        among = self._among(allowed, before)
        return Choice(among.method, left_out | dict(among.left_out))

    def _choice(self, scores: Mapping[Method, SampleScores], before: SampleScores) -> Choice:
        """Choose among methods that are not clamped."""
        careful = self.careful and any(method.keeps_order for method in scores)
        left_out: dict[Method, Reason] = {}
        allowed = {}
        for method, after in scores.items():
            reason = self._refusal(method, before, after, careful=careful)
            if reason is None:
                allowed[method] = after
            else:
                left_out[method] = reason
        # nothing is: the one that costs the least
        if not allowed:
            least = min(scores, key=lambda method: (-scores[method].mean("hit"), method.rank))
            return Choice(least, {method: reason for method, reason in left_out.items() if method != least})
        among = self._among(allowed, before)
        return Choice(among.method, left_out | dict(among.left_out))

    def _among(self, allowed: Mapping[Method, SampleScores], before: SampleScores) -> Choice:
        """Choose among the allowed ones."""
        remaining = dict(allowed)
        left_out: dict[Method, Reason] = {}
        while remaining:
            simplest = self._simplest(remaining)
            if not self._raises_error(before, before, remaining[simplest], _SMALLEST_RISE):
                return Choice(simplest, left_out)
            left_out[simplest] = "error"
            del remaining[simplest]
        # all that were asked for raise it: the best of them, as the user asked for one of these
        return Choice(next(iter(left_out)), {})

    def losses(self, scores: SampleScores) -> NDArray[np.float64]:
        """Return (N,) losses of samples, whose mean is the objective."""
        return sample_losses(scores, self.objective, self.bins)

    def gains(self, before: SampleScores, after: SampleScores) -> bool:
        """Whether the NLL of cross-fitted scores is significantly below the input's, by an effect that counts."""
        worse, error = mean_and_error(sample_losses(after) - sample_losses(before), before.clusters, before.weights)
        return -worse > max(METRICS["nll"].smallest_effect, _GAIN * error)

    def _as_positive(self, before: SampleScores, *stages: SampleScores) -> list[SampleScores]:
        """Return scores of P(positive) of two classes; of others as they are. `before` has the labels."""
        if not self.two_classes or before.labels is None:
            return [before, *stages]
        labels = before.labels
        return [positive_scores(scores.labelled(labels), 2)[0] for scores in (before, *stages)]

    def _refusal(self, method: Method, before: SampleScores, after: SampleScores, *, careful: bool) -> Reason | None:
        """Return why rule 1 leaves a method out, if it does."""
        if method.keeps_order:
            return None
        drop = before.mean("hit") - after.mean("hit")
        if drop > self.max_accuracy_drop + ROUNDING:
            return "accuracy"
        if careful and not _is_worth_it(before, after):
            return "predictions"
        return None

    def _simplest(self, scores: Mapping[Method, SampleScores]) -> Method:
        """Return the input, or else the simplest method, where the best is hardly better."""
        metric = METRICS[self.objective]
        least = metric.smallest_effect / metric.factor
        losses = {method: self.losses(after) for method, after in scores.items()}
        best = min(losses, key=lambda method: (weighted_mean(losses[method], scores[method].weights), method.rank))
        for method in sorted(losses, key=lambda candidate: candidate.rank):
            after = scores[method]
            worse, error = mean_and_error(losses[method] - losses[best], after.clusters, after.weights)
            tie = self.tie(after, error)
            if method == INPUT:
                tie = max(error, least)
            if worse <= tie:
                return method
        return best

    def tie(self, scores: SampleScores, error: float) -> float:
        """Return the difference of mean losses, with its standard error, up to which the simpler method is taken."""
        if self.objective == "nll":
            return 1 / (independent_count(scores) or len(scores))
        metric = METRICS[self.objective]
        return max(error, metric.smallest_effect / metric.factor)

    def always_allows(self, method: Method) -> bool:
        """Whether rules 1 and 5 never leave a method out."""
        return method.keeps_order or (self.max_accuracy_drop >= 1 and not self.careful)

    def _raises_error(self, before: SampleScores, rival: SampleScores, after: SampleScores, smallest: float) -> bool:
        """Whether a method raises the calibration error of another one significantly, and by more than `smallest`."""
        _, *sides = self._as_positive(before, rival, after)
        first, second = (sample_losses(scores, "ece", self.bins) for scores in sides)
        worse, error = mean_and_error(second - first, before.clusters, before.weights)
        return worse > max(smallest, _SIGNIFICANT * error)


def scarce(before: SampleScores, enough: int = ENOUGH) -> bool:
    """Whether a class has too few samples to show what a change of predictions, or of probabilities, does to it.

    A rare label of several a sample is what these are for: fits of labels have rules of their own (`maps.two_classes`).
    """
    return before.predicted is None and float(np.min(Recalls.of(before, before).independent)) < enough


def _is_worth_it(before: SampleScores, after: SampleScores) -> bool:
    """Whether a change of predictions costs no balanced accuracy and no recall of a class; scarce classes apart."""
    recalls = Recalls.of(before, after)
    if recalls.balanced_after < recalls.balanced_before - ROUNDING:
        return False
    lost = -recalls.change[recalls.independent >= ENOUGH]
    return float(np.max(lost, initial=0)) <= _MOST_LOST + ROUNDING
