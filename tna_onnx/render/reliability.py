"""Reliability diagrams as bars: the values that every drawing uses.

Bar j of B stands for j/B < confidence <= (j+1)/B, as the bins do. Its height is the accuracy; its gap is mean
confidence - accuracy, above zero where confidence is too high.
"""

from __future__ import annotations

from dataclasses import dataclass

from tna_onnx.numerics.conformal import consistent_range, wilson_interval
from tna_onnx.numerics.reliability import Bins

FEW = 10
"""Bins with fewer samples are drawn pale: their interval is wider than half of the axis."""


@dataclass(frozen=True)
class DiagramWords:
    """What bins hold: their height, what it stands against, and what is counted."""

    what: str
    against: str
    counted: str


OF_CLASSES = DiagramWords("accuracy", "confidence", "samples")
"""The predicted class: whether it is right."""

OF_EACH = DiagramWords("frequency", "probability", "samples")
"""One class or label: whether it holds, for each of its probabilities."""

OF_LABELS = DiagramWords("frequency", "probability", "labels of samples")
"""All labels of samples that may have several, together."""


def words_of(several: object) -> DiagramWords:
    """Return the words for samples that may have several labels, if that is so, or for classes."""
    if several:
        return OF_LABELS
    return OF_CLASSES


@dataclass(frozen=True)
class Bar:
    """One bar of a reliability diagram; all but the count are fractions.

    Attributes:
        left: lower end of its confidences.
        right: upper end of its confidences.
        count: samples in it.
        confidence: their mean confidence; 0 without samples.
        height: their accuracy; 0 without samples.
    """

    left: float
    right: float
    count: int
    confidence: float
    height: float

    @property
    def width(self) -> float:
        """Range of confidences."""
        return self.right - self.left

    @property
    def middle(self) -> float:
        """Centre of the bar."""
        return (self.left + self.right) / 2

    @property
    def gap(self) -> float:
        """Mean confidence - accuracy."""
        return self.confidence - self.height

    @property
    def sign(self) -> int:
        """1 if confidence is too high, -1 if it is too low, 0 if it is the accuracy.

        >>> Bar(0.5, 1.0, 10, 0.9, 0.7).sign
        1
        """
        return (self.confidence > self.height) - (self.confidence < self.height)

    @property
    def weak(self) -> bool:
        """Whether there are few samples."""
        return self.count < FEW

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the accuracy; there is a sample."""
        return wilson_interval(self.height, self.count)

    @property
    def consistent(self) -> tuple[float, float]:
        """Where the accuracy is in 95 % of cases if confidences are right; there is a sample."""
        # a mean of rounded probabilities may end above 1
        return consistent_range(min(1.0, self.confidence), self.count)

    @property
    def span(self) -> tuple[float, float]:
        """Ends of the gap, the lower one first."""
        return min(self.confidence, self.height), max(self.confidence, self.height)


def bars(bins: Bins) -> tuple[Bar, ...]:
    """Return the bars of a diagram from low to high confidence, those without samples too.

    >>> [(bar.left, bar.count, bar.height) for bar in bars(Bins((1, 3), (0.4, 0.8), (0.0, 1.0)))]
    [(0.0, 1, 0.0), (0.5, 3, 1.0)]
    """
    total = len(bins.count)
    rows = zip(bins.count, bins.confidence, bins.accuracy, strict=True)
    return tuple(Bar(j / total, (j + 1) / total, *row) for j, row in enumerate(rows))


def short_count(number: int) -> str:
    """Write a count in at most four characters.

    >>> [short_count(n) for n in (999, 1_901, 9_999, 84_210, 1_234_567)]
    ['999', '1.9k', '10k', '84k', '1.2M']
    """
    for factor, suffix in ((1, ""), (1_000, "k"), (1_000_000, "M")):
        # 999.5 thousand is a million, not 1000 thousand
        if round(number / factor) < 1_000:
            return _short(number / factor) + suffix
    return f"{number:.0e}"


def _short(number: float) -> str:
    """Write a number below 1,000 with one digit behind the point where there is room: below 10, if it has one."""
    text = f"{number:.1f}"
    if len(text) > len("9.9") or text.endswith(".0"):
        return f"{number:.0f}"
    return text
