"""The verdict on a change of metrics, as a word and as sentences; and recall by class (`Recall`) with intervals.

The verdict looks at accuracy, NLL and ECE (of P(positive), of the worst label). A change counts when its interval lies
on one side of zero, ten errors or more are behind it, and it is the smallest effect of its row in `numerics.metric`.

1. The NLL is worse: worse.
2. The accuracy is worse, and the NLL is not better: worse.
3. The ECE, or another objective, is worse, and neither NLL nor accuracy is better: worse.
4. Any of them is better: improved. Metrics that got worse are named too. 5. Else: no significant change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tna_onnx.errors import count_text
from tna_onnx.numerics.intervals import quantile
from tna_onnx.numerics.metric import JUDGED, METRICS, POSITIVE_ECE
from tna_onnx.numerics.metrics import MIN_EACH, MIN_GROUPS, Interval, Metrics, independent_count
from tna_onnx.numerics.operating_points import Recalls
from tna_onnx.numerics.scores import SampleScores

Word = Literal["improved", "no significant change", "worse", "still off"]
"""What a result comes to; `still off` where predictions were kept, and P(positive) is off by more than chance."""


def calibration_of(differences: Mapping[str, Interval]) -> str:
    """Return the calibration error that is judged: that of P(positive), where there is one."""
    if POSITIVE_ECE in differences:
        return POSITIVE_ECE
    return "ece"


def both_held(first: Mapping[str, Interval], second: Mapping[str, Interval]) -> dict[str, Interval]:
    """Return differences by metric, with intervals that hold those of a second comparison too."""
    return {name: interval.holding(second[name]) for name, interval in first.items()}


@dataclass(frozen=True)
class Standing:
    """The judged metrics by whether their change counts."""

    better: tuple[str, ...]  # names of those that are better
    worse: tuple[str, ...]  # names of those that are worse
    same: tuple[str, ...]  # names of the others
    few_errors: int | None = None  # the errors behind the NLL, where they are too few to tell

    @classmethod
    def of(cls, differences: Mapping[str, Interval], objective: str = "ece") -> Standing:
        """Judge the paired differences after - before.

        `differences`: per metric, as fractions and nats.

        >>> large = {"nll": -0.07, "ece": 0.02, "accuracy": 0.3}
        >>> d = {name: Interval(value, value - 0.01, value + 0.01, 0.95) for name, value in large.items()}
        >>> Standing.of(d).word, Standing.of(d).better, Standing.of(d).worse
        ('improved', ('nll', 'accuracy'), ('ece',))
        >>> Standing.of({name: Interval(0.0002, 0.0001, 0.0003, 0.95) for name in d}).word
        'no significant change'
        """
        # each once, in the order of a sentence
        judged = dict.fromkeys(["nll", calibration_of(differences), "accuracy"])
        if objective != "ece":
            judged[objective] = None
        sides = {name: changed(name, differences[name]) for name in judged}
        errors = differences["nll"].errors
        if errors is not None and errors >= MIN_EACH:
            errors = None
        better, worse, same = (tuple(name for name in judged if sides[name] == side) for side in (1, -1, 0))
        return cls(better, worse, same, errors)

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
        same = "no significant change"
        # where errors are few, nothing is said of these
        if self.few_errors is not None:
            same = f"too few errors to tell ({self.few_errors})"
        groups = [("improved", "improved", self.better), ("worse", "worse", self.worse)]
        groups.append(("no significant change", same, self.same))
        # the word that the metrics come to stands first: a reader may stop there
        groups.sort(key=lambda group: group[0] != self.word)
        return "; ".join(
            f"{opening}: {', '.join(_change(name, before, after, differences[name]) for name in names)}"
            for _, opening, names in groups
            if names
        )


def changed(name: str, d: Interval) -> int:
    """Return 1 if a metric's change counts and is for the better, -1 if for the worse, 0 if it does not count.

    >>> changed("ece", Interval(-0.02, -0.03, -0.01, 0.95)), changed("ece", Interval(-0.02, -0.05, 0.01, 0.95))
    (1, 0)
    >>> changed("accuracy", Interval(-0.0002, -0.0003, -0.0001, 0.95))
    0
    """
    metric = JUDGED[name]
    if metric.factor * abs(d.difference) < metric.smallest_effect:
        return 0
    return _side(name, d)


def _side(name: str, d: Interval) -> int:
    """Return the side of zero on which an interval lies, 1 for the better; 0 where too little is behind it.

    Of cross-fitted samples that are 100 times as likely after as before, too.
    """
    if not d.speaks:
        return 0
    if d.likelier:
        return 1
    return JUDGED[name].standing(d.low, d.high)


def _change(name: str, before: Metrics, after: Metrics, d: Interval) -> str:
    """Write values and interval of a metric: `ECE 4.65 % -> 1.51 % (debiased -4.78 to -2.19 points)`."""
    metric = JUDGED[name]
    # nats are left out: a sentence of four metrics has no room for them
    unit = points = ""
    if metric.unit == "%":
        unit, points = " %", " points"
    values = " -> ".join(f"{metric.number(metrics.value(name))}{unit}" for metrics in (before, after))
    ends = metric.ends(d.low, d.high)
    if metric.debiased:  # unlike the values
        ends = f"debiased {ends}"
    more = ""
    if d.likelier and d.high >= 0:
        more = ", labels 100 times as likely"
    return f"{metric.label} {values} ({ends}{points}{more})"


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
        return (
            f"{self.name}: recall {100 * self.before:.1f} % -> {100 * self.after:.1f} % ({ends} points, "
            f"{count_text(self.samples, 'sample')})"
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
        low, high = recalls.ends(z)
        # as many chances to lose by chance as there are classes
        strict = quantile(1 - (1 - level) / 2 / len(recalls.classes), before.clusters, before.weights)
        _, bound = recalls.ends(strict)
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

    def holding(self, second: Recall) -> Recall:
        """Return the same values with intervals that hold those of another comparison of these samples, too."""
        classes = tuple(
            replace(one, difference=one.difference.holding(also.difference), loses=one.loses and also.loses)
            for one, also in zip(self.classes, second.classes, strict=True)
        )
        return replace(self, balanced=self.balanced.holding(second.balanced), classes=classes)

    @property
    def worst(self) -> ClassRecall | None:
        """The class that loses most, of those that lose beyond chance; None where none does."""
        losing = [one for one in self.classes if one.loses]
        return min(losing, key=lambda one: one.difference.difference, default=None)

    @property
    def lowest(self) -> ClassRecall:
        """The class whose recall falls most, by chance or not."""
        return min(self.classes, key=lambda one: one.difference.difference)


_OPENINGS: dict[str, str] = {
    "improved": "The new model's probabilities are better",
    "no significant change": "On these samples the new model's probabilities are neither better nor worse",
    "worse": "The new model is worse than the original",
}


ENOUGH_SAMPLES = 200
"""Samples from which a calibrated model is told from one whose confidences are some points off."""


def samples_needed(metrics: Metrics, nll: Interval) -> int:
    """Return about how many samples would tell what `metrics.n` of them leave open.

    As many as have ten errors, at this share of them; else as many as narrow the interval of an NLL that falls to it.

    >>> samples_needed(Metrics(n=80, bins=15, accuracy=0.9, ece=0.1, adaece=0.1, nll=0.3, brier=0.1),
    ...                Interval(-0.02, -0.08, 0.04, 0.95, errors=12))
    800
    """
    needed = float(ENOUGH_SAMPLES)
    if nll.errors is not None and nll.errors < MIN_EACH:
        needed = max(needed, metrics.n * MIN_EACH / max(1, nll.errors))
    elif nll.difference < 0 < nll.high:
        # the width of an interval falls as the root of the number of samples
        needed = metrics.n * (1 - nll.high / nll.difference) ** 2
    unit = int(10 ** math.floor(math.log10(needed)))
    return math.ceil(needed / unit) * unit


def undecided_sentence(metrics: Metrics, nll: Interval, *, copied: bool) -> str:
    """Say that samples are too few to tell, and about how many are needed; `copied`: whether the original stays."""
    samples = f"{metrics.n:,} samples"
    if nll.errors is not None and nll.errors < MIN_EACH:
        samples += f" with {count_text(nll.errors, 'error')}"
    question = "the new model is better"
    if copied:
        question = "the model needs recalibration"
    return f"{samples} cannot tell whether {question}; about {samples_needed(metrics, nll):,} are needed"


def apart_text(metrics: Metrics, chance: float | None) -> str:
    """Say how far probabilities are off; `chance`: ECE that calibrated confidences have on as many, a fraction."""
    return f"{pair_text(metrics)} are {_points(_calibration(metrics))} apart on average{_by_chance(metrics, chance)}"


def result_sentence(
    word: Word,
    before: Metrics,
    after: Metrics,
    differences: Mapping[str, Interval],
    worst: ClassRecall | None = None,
    kind: str = "class",
    chance: float | None = None,
) -> str:
    """Say what a result comes to; the word is that of the verdict, so that both say the same.

    `worst` is the class, or label (`kind`), that loses most recall. `chance` is the ECE that calibrated confidences
    have on as many samples, a fraction. A metric that is worse by its whole interval is named, whatever the word.

    >>> rest = {"n": 100, "bins": 15, "accuracy": 0.9, "adaece": 0.1, "nll": 0.3, "brier": 0.1}
    >>> old, new = (Metrics(ece=ece, **rest) for ece in (0.05, 0.01))
    >>> same = Interval(0.0, -0.01, 0.01, 0.95)
    >>> d = {"accuracy": same, "nll": same, "ece": Interval(-0.04, -0.05, -0.03, 0.95)}
    >>> result_sentence("improved", old, new, d).partition(": ")[2]
    'confidence and accuracy were 5.0 points apart on average, now 1.0; accuracy stays at 90.0 %'
    """
    calibration = calibration_of(differences)
    gap = changed(calibration, differences[calibration])
    fit = changed("nll", differences["nll"])
    parts = [
        _gap(gap, before, after) + _by_chance(after, chance),
        _accuracy(before, after, differences["accuracy"]),
    ]
    # the distance alone would not explain the verdict
    if word == "improved" and fit == 1 and gap != 1:
        parts.insert(0, "they fit the labels more closely")
    if word == "worse" and fit == -1 and gap != -1:
        parts.insert(0, "its probabilities fit the labels less closely")
    if worst is not None:
        parts.append(f"recall of {kind} {worst.name} falls from {100 * worst.before:.1f} to {100 * worst.after:.1f} %")
    named = {"accuracy", calibration}
    if calibration == POSITIVE_ECE:
        named |= {"ece", "adaece"}
    if word == "worse":
        named.add("nll")
    worse = [name for name, d in differences.items() if name not in named and _side(name, d) < 0]
    parts += [f"{_change(name, before, after, differences[name])} is worse" for name in worse]
    return f"{_OPENINGS[word]}: {'; '.join(parts)}"


def _calibration(metrics: Metrics) -> float:
    """Return the calibration error that sentences speak of, a fraction."""
    return (metrics.positive or metrics).ece


def pair_text(metrics: Metrics) -> str:
    """Name what a calibration error sets against each other."""
    positive = metrics.positive
    if positive is None:
        return "confidence and accuracy"
    if positive.labels > 1:
        return "the worst label's probability and its frequency"
    return f"P({positive.name}) and the frequency of {positive.name}"


def _by_chance(metrics: Metrics, ece: float | None) -> str:
    if metrics.positive is not None:
        ece = metrics.positive.ece_expected
    if ece is None:
        return ""
    return f" (by chance alone {100 * ece:.1f})"


def _gap(side: int, before: Metrics, after: Metrics) -> str:
    pair = pair_text(before)
    old, new = (_calibration(metrics) for metrics in (before, after))
    if side == 1:
        return f"{pair} were {_points(old)} apart on average, now {100 * new:.1f}"
    if side == -1:
        return f"the average distance of {pair} grows from {100 * old:.1f} to {_points(new)}"
    return f"the average distance of {pair}, {_points(old)}, shows no clear change"


def _accuracy(before: Metrics, after: Metrics, difference: Interval) -> str:
    old = f"{100 * before.accuracy:.1f} %"
    new = f"{100 * after.accuracy:.1f} %"
    verb = {1: "rises", 0: "moves", -1: "falls"}[changed("accuracy", difference)]
    if old == new:
        return f"accuracy stays at {new}"
    sentence = f"accuracy {verb} from {old} to {new}"
    if verb == "moves":
        # a change that may be chance is neither praised nor blamed
        sentence += ", which may be chance"
    return sentence


def _points(fraction: float) -> str:
    return f"{100 * fraction:.1f} points"
