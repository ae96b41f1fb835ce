"""Recall by class and balanced accuracy before and after, with intervals of their paired differences.

Which class is predicted is a decision, whose costs a log loss does not know: better probabilities may silence a rare
class. So what the classes gain and lose stands beside the accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from tna_onnx.numerics.intervals import quantile
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import MIN_GROUPS, Interval, independent_count
from tna_onnx.numerics.operating_points import Recalls
from tna_onnx.numerics.scores import SampleScores


@dataclass(frozen=True)
class ClassRecall:
    """A class with a sample.

    Attributes:
        name: of the class, or of the label where a sample has several.
        samples: how many samples have it, at least 1.
        before: share of these samples that the input model predicts right, a fraction.
        after: share of these samples that the recalibrated model predicts right, a fraction.
        difference: after - before with its interval, a fraction.
        loses: whether it loses recall, beyond chance for the worst of as many classes.
    """

    name: str
    samples: int
    before: float
    after: float
    difference: Interval
    loses: bool

    def text(self) -> str:
        """Write what it loses: `class 4: recall 49.1 % -> 4.1 % (-52.00 to -38.00 points, 120 samples)`."""
        ends = METRICS["accuracy"].ends(self.difference.low, self.difference.high)
        noun = "sample" if self.samples == 1 else "samples"
        return (
            f"{self.name}: recall {100 * self.before:.1f} % -> {100 * self.after:.1f} % ({ends} points, "
            f"{self.samples:,} {noun})"
        )


@dataclass(frozen=True)
class Recall:
    """What the classes of the samples gain and lose.

    Attributes:
        balanced_before: balanced accuracy of the input model, a fraction: the mean recall of the classes with a sample;
            of several labels a sample, the mean over those with a label and those without it.
        balanced_after: balanced accuracy of the recalibrated model, a fraction.
        balanced: balanced_after - balanced_before with its interval, a fraction.
        classes: each class with a sample, in the model's order.
    """

    balanced_before: float
    balanced_after: float
    balanced: Interval
    classes: tuple[ClassRecall, ...]

    @classmethod
    def of(
        cls,
        before: SampleScores,
        after: SampleScores,
        names: Sequence[str],
        level: float = 0.95,
        *,
        same_predictions: bool = False,
    ) -> Recall:
        """Compare scores of the same samples; `before` has their labels.

        `level`: confidence level of the intervals, a fraction.
        """
        recalls = Recalls.of(before, after)
        groups = independent_count(before)
        z = quantile((1 + level) / 2, before.clusters, before.weights)
        # as many chances to lose by chance as there are classes
        strict = NormalDist().inv_cdf(1 - (1 - level) / 2 / len(recalls.classes))
        low, high = recalls.ends(z)
        _, bound = recalls.ends(max(z, strict))
        middle = recalls.balanced_ends(z)
        if same_predictions:
            low, high, bound = (np.zeros(len(bound)) for _ in range(3))
            middle = (0.0, 0.0)
        classes = tuple(
            ClassRecall(
                names[c],
                int(recalls.samples[k]),
                float(recalls.before[k]),
                float(recalls.after[k]),
                Interval(float(recalls.change[k]), float(low[k]), float(high[k]), level, groups),
                bool(bound[k] < 0 and (groups is None or groups >= MIN_GROUPS)),
            )
            for k, c in enumerate(recalls.classes.tolist())
            if c < len(names)
        )
        change = recalls.balanced_after - recalls.balanced_before
        return cls(recalls.balanced_before, recalls.balanced_after, Interval(change, *middle, level, groups), classes)

    def holding(self, other: Recall) -> Recall:
        """Return the same values with intervals that hold those of another comparison of these samples, too."""
        classes = tuple(
            replace(one, difference=one.difference.holding(also.difference), loses=one.loses and also.loses)
            for one, also in zip(self.classes, other.classes, strict=True)
        )
        return replace(self, balanced=self.balanced.holding(other.balanced), classes=classes)

    @property
    def worst(self) -> ClassRecall | None:
        """The class that loses most, of those that lose beyond chance; None where none does."""
        losing = [one for one in self.classes if one.loses]
        return min(losing, key=lambda one: one.difference.difference, default=None)

    @property
    def lowest(self) -> ClassRecall:
        """The class whose recall falls most, by chance or not."""
        return min(self.classes, key=lambda one: one.difference.difference)
