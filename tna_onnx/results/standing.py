"""Whether a result is better than its input, worse, or neither: accuracy, NLL and ECE judged together.

A change of a metric counts when its whole interval lies on one side of zero and the change is at least the smallest
effect of the metric's row in `numerics.metric`: on many samples an interval excludes zero for changes that nobody
would notice. The rules, in their order:

1. The NLL is worse: the result is worse, whatever the others say. It is a proper score of all probabilities.
2. The accuracy is worse, and the NLL is not better: worse.
3. The ECE is worse, or an objective outside of these three, and neither NLL nor accuracy is better: worse.
4. Any of them is better: improved. What got worse is named beside it.
5. Nothing counts: no significant change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Interval, Metrics

__all__ = ["Standing", "Word", "changed"]

Word = Literal["improved", "no significant change", "worse"]

# In the order in which a sentence names them.
_JUDGED = ("nll", "ece", "accuracy")


@dataclass(frozen=True)
class Standing:
    """The judged metrics by whether their change counts.

    Attributes:
        better: names of those that are better.
        worse: names of those that are worse.
        same: names of the others.
    """

    better: tuple[str, ...]
    worse: tuple[str, ...]
    same: tuple[str, ...]

    @classmethod
    def of(cls, differences: Mapping[str, Interval], objective: str = "ece") -> Standing:
        """Judge the paired differences after - before.

        Args:
            differences: per metric, as fractions and nats.
            objective: metric that was minimised; judged as the ECE is.

        >>> large = {"nll": -0.07, "ece": 0.02, "accuracy": 0.3}
        >>> d = {name: Interval(value, value - 0.01, value + 0.01, 0.95) for name, value in large.items()}
        >>> Standing.of(d).word, Standing.of(d).better, Standing.of(d).worse
        ('improved', ('nll', 'accuracy'), ('ece',))
        >>> Standing.of({name: Interval(0.0002, 0.0001, 0.0003, 0.95) for name in d}).word
        'no significant change'
        """
        # each once, in the order of a sentence
        judged = tuple(dict.fromkeys([*_JUDGED, objective]))
        sides = {name: changed(name, differences[name]) for name in judged}
        return cls(*(tuple(name for name in judged if sides[name] == side) for side in (1, -1, 0)))

    @property
    def word(self) -> Word:
        """What the metrics come to."""
        outweighed = {"nll", "accuracy"} & set(self.better)
        # rules 1, 2 and 3
        if "nll" in self.worse:
            return "worse"
        if "accuracy" in self.worse and "nll" not in self.better:
            return "worse"
        if self.worse and not outweighed:
            return "worse"
        # rules 4 and 5
        if self.better:
            return "improved"
        return "no significant change"

    def sentence(self, before: Metrics, after: Metrics, differences: Mapping[str, Interval]) -> str:
        """Say what the metrics come to, then each with its values and its interval; the samples are not named."""
        groups: dict[Word, tuple[str, ...]] = {
            "improved": self.better,
            "worse": self.worse,
            "no significant change": self.same,
        }
        # the word that the metrics come to stands first: a reader may stop there
        words = sorted(groups, key=lambda word: word != self.word)
        parts = [
            f"{word}: {', '.join(_change(name, before, after, differences[name]) for name in groups[word])}"
            for word in words
            if groups[word]
        ]
        return "; ".join(parts)


def changed(name: str, d: Interval) -> int:
    """Return 1 if a metric's change counts and is for the better, -1 if for the worse, 0 if it does not count.

    >>> changed("ece", Interval(-0.02, -0.03, -0.01, 0.95)), changed("ece", Interval(-0.02, -0.05, 0.01, 0.95))
    (1, 0)
    >>> changed("accuracy", Interval(-0.0002, -0.0003, -0.0001, 0.95))
    0
    """
    metric = METRICS[name]
    if metric.factor * abs(d.difference) < metric.smallest_effect:
        return 0
    return metric.standing(d.low, d.high)


def _change(name: str, before: Metrics, after: Metrics, d: Interval) -> str:
    """Write values and interval of a metric: `ECE 4.65 % -> 1.51 % (-4.78 to -2.19 points)`."""
    metric = METRICS[name]
    # nats are left out: a sentence of four metrics has no room for them
    percent = metric.unit == "%"
    unit = " %" if percent else ""
    points = " points" if percent else ""
    values = " -> ".join(f"{metric.number(getattr(metrics, name))}{unit}" for metrics in (before, after))
    return f"{metric.label} {values} ({metric.change(d.low)} to {metric.change(d.high)}{points})"
