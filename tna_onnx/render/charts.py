"""The charts of results as data, which `html/svg.py` draws.

A line of rank k has the k-th colour and marker, and is dashed where it shares its colour. In a reliability diagram, bar
j stands for j/B < confidence <= (j+1)/B; its gap, mean confidence - accuracy, is above zero where confidence is too
high.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tna_onnx.numerics.conformal import consistent_range, wilson_interval
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Positive
from tna_onnx.numerics.reliability import Bins
from tna_onnx.results.details import Details, Scored, Step
from tna_onnx.results.report import Report
from tna_onnx.results.study import Chart, Line

RANKS = 5
"""Colours, and as many markers; a line of a higher rank is plain."""

MAX_DROP = 0.1
"""Accuracy that the charts show a loss of; beyond it, errors grow so much that nothing else can be seen."""

MAX_TIMES = 2
"""Objectives that are more than so many times the original weight's are cut off."""

# Paper between the highest point and the end of the axis.
_ROOM = 1.15
# Numbers that fit below a logarithmic axis.
_MAX_TICKS = 9


@dataclass(frozen=True)
class MarkedChart(Chart):
    """A chart with marked values."""

    x_range: tuple[float, float] | None = None  # ends of the horizontal axis; those of the lines where it is None
    vertical: tuple[float, str] | None = None  # a value of x to mark, and its text
    horizontal: tuple[tuple[float, str], ...] = ()  # values of y to mark, and their texts
    rings: tuple[tuple[float, float], ...] = ()  # points (x, y) to mark
    text_on_top: bool = False  # whether the text of `vertical` stands there, and not at the bottom


def log_ticks(chart: Chart) -> list[float]:
    """Return the values of x of the lines, less those that would overlap on a logarithmic axis."""
    values = sorted({value for line in chart.lines for value in line.x})
    spacing = max(1.5, (values[-1] / values[0]) ** (1 / (_MAX_TICKS - 1)))
    ticks: list[float] = []
    for value in values:
        if not ticks or value >= spacing * ticks[-1]:
            ticks.append(value)
    return ticks


def plain_line(name: str, x: Iterable[float], y: Iterable[float], rank: int, *, dashed: bool = False) -> Line:
    """Return a line without markers; x and y are shares and become per cent."""
    x, y = (tuple(100 * value for value in values) for values in (x, y))
    return Line(name, x, y, rank=rank, dashed=dashed, marked=False)


def risk_chart(details: Details) -> MarkedChart:
    """Return the errors among the most confident share of the samples, before and after."""
    before, after = details.risk_before, details.risk_after
    lines = (
        plain_line(f"before: mean error {100 * before.area:.2f} %", before.coverage, before.risk, 1, dashed=True),
        plain_line(f"after: mean error {100 * after.area:.2f} %", after.coverage, after.risk, 2),
    )
    return MarkedChart("Risk and coverage", "coverage, %", "errors among them, %", lines, x_range=(0, 100))


def search_charts(report: Report, details: Details) -> tuple[MarkedChart, MarkedChart]:
    """Return objective and accuracy of the candidates over the angle."""
    metric = METRICS[report.objective]
    values: tuple[Callable[[Scored], float], ...] = (
        lambda scored: metric.factor * scored.objective,
        lambda scored: 100 * scored.accuracy,
    )
    near = _near(details)
    choice = details.steps[details.chosen]
    accuracies = [values[1](score(step)) for step in near for _, score in _kinds(details)]
    # up to half a point above 100 %, so that a marker there is whole
    ranges = (_objective_range(details, values[0]), (min(accuracies) - 1, min(max(accuracies) + 1, 100.5)))
    allowed = 100 * details.steps[0].calibration.accuracy - float(str(report.settings["max_accuracy_drop"]))
    limits = ((), ((allowed, "allowed on calibration data"),))
    objective, accuracy = (
        MarkedChart(
            f"{axis.label} against angle",
            "angle, degrees",
            axis.title,
            tuple(_search_lines(details, value)),
            y_range=y_range,
            # 2 degrees of room for the last marker
            x_range=(0.0, max(step.angle for step in near) + 2),
            vertical=(choice.angle, f"chosen: {choice.angle:g}°"),
            horizontal=limit,
            rings=tuple((choice.angle, value(score(choice))) for _, score in _kinds(details)),
            text_on_top=not limit,
        )
        for axis, value, y_range, limit in zip((metric, METRICS["accuracy"]), values, ranges, limits, strict=True)
    )
    return objective, accuracy


def _near(details: Details) -> list[Step]:
    # on the calibration data, which every candidate has scores on
    lowest = details.steps[0].calibration.accuracy - MAX_DROP
    return [step for step in details.steps if step.calibration.accuracy >= lowest]


def _kinds(details: Details) -> list[tuple[str, Callable[[Step], Scored]]]:
    """Name the data that lines are drawn for, held-out data first, and what takes their scores from a candidate."""
    kinds: list[tuple[str, Callable[[Step], Scored]]] = [("calibration", lambda step: step.calibration)]
    if details.held_out:
        kinds.insert(0, ("held-out", lambda step: step.shown))
    return kinds


def _objective_range(details: Details, value: Callable[[Scored], float]) -> tuple[float, float]:
    """Return the ends of the axis: all that is near, but not what is much worse than the original; the choice is in."""
    kinds = [score for _, score in _kinds(details)]
    # the first step is the original weight
    limit = MAX_TIMES * max(value(score(details.steps[0])) for score in kinds)
    choice = [value(score(details.steps[details.chosen])) for score in kinds]
    values = [value(score(step)) for step in _near(details) for score in kinds]
    high = _ROOM * max(*choice, *(v for v in values if v <= limit)) or 1.0
    return max(0.0, min(values) - 0.1 * (high - min(values))), high


def _search_lines(details: Details, value: Callable[[Scored], float]) -> Iterable[Line]:
    """Yield a line for each number of members and each kind of data; the original weight begins the first."""
    ranks = _looks(details)
    # several numbers of members may have the last look
    shared = list(ranks.values()).count(RANKS - 1) > 1
    first = next(iter(ranks))
    near = _near(details)
    for kind, score in _kinds(details):
        for size, rank in sorted(ranks.items(), key=lambda item: item[1]):
            steps = sorted((step for step in near if step.angle and step.members == size), key=lambda step: step.angle)
            if size == first:
                steps.insert(0, details.steps[0])
            name = f"{members_text(size)} members"
            if shared and rank == RANKS - 1:
                name = "other numbers of members"
            angles = tuple(step.angle for step in steps)
            # solid lines are the data to judge by: held-out ones where there are any
            dashed = details.held_out and kind == "calibration"
            yield Line(f"{kind}, {name}", angles, tuple(value(score(step)) for step in steps), rank=rank, dashed=dashed)


def _looks(details: Details) -> dict[int, int]:
    """Return the rank of each number of members, from 0, the limit of many last; those of the last rank look alike."""
    sizes = sorted({step.members for step in details.steps[1:]}, key=lambda size: size or float("inf"))
    return {size: min(k, RANKS - 1) for k, size in enumerate(sizes)}


def members_text(size: int) -> str:
    """Write a number of members; 0 is the limit of many.

    >>> members_text(1024), members_text(0)
    ('1,024', 'infinitely many')
    """
    if size:
        return f"{size:,}"
    return "infinitely many"


FEW = 10
"""Bins with fewer samples are drawn pale: their interval is wider than half of the axis."""


@dataclass(frozen=True)
class DiagramWords:
    """What bins hold: their height, what it stands against, what is counted, and which of it is true and which not."""

    height: str
    against: str
    counted: str
    sides: tuple[str, str] = ("right", "wrong")


OF_CLASSES = DiagramWords("accuracy", "confidence", "samples")
"""The predicted class: whether it is right."""

OF_ONE_CLASS = DiagramWords("frequency", "probability", "samples")
"""One class or label: whether it holds, for each of its probabilities."""

# a label that rightly does not hold is no error
OF_LABELS = DiagramWords("frequency", "probability", "labels of samples", ("holds", "does not hold"))
"""All labels of samples that may have several, together."""


def words_of(multi_label: object, positive: Positive | None = None) -> DiagramWords:
    """Return the words for samples of several labels, for the positive one of two classes, or for classes."""
    if multi_label:
        return OF_LABELS
    if positive is not None:
        return replace(OF_ONE_CLASS, against=f"P({positive.name})")
    return OF_CLASSES


@dataclass(frozen=True)
class Bar:
    """One bar of a reliability diagram; all but the count are fractions."""

    left: float  # lower end of its confidences
    right: float  # upper end of its confidences
    count: int  # samples in it
    confidence: float  # their mean confidence; 0 without samples
    height: float  # their accuracy; 0 without samples

    @property
    def width(self) -> float:
        """Range of confidences."""
        return self.right - self.left

    @property
    def middle(self) -> float:
        """Centre of the bar."""
        return (self.left + self.right) / 2

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the accuracy; there is a sample."""
        return wilson_interval(self.height, self.count)

    @property
    def consistent(self) -> tuple[float, float]:
        """Where the accuracy is in 95 % of cases if confidences are right; there is a sample."""
        # a mean of rounded probabilities may end above 1
        return consistent_range(min(1.0, self.confidence), self.count)


def bars(bins: Bins) -> tuple[Bar, ...]:
    """Return the bars of a diagram from low to high confidence, those without samples too.

    >>> [(bar.left, bar.count, bar.height) for bar in bars(Bins((1, 3), (0.4, 0.8), (0.0, 1.0)))]
    [(0.0, 1, 0.0), (0.5, 3, 1.0)]
    """
    total = len(bins.count)
    rows = zip(bins.count, bins.confidence, bins.accuracy, strict=True)
    return tuple(Bar(j / total, (j + 1) / total, *row) for j, row in enumerate(rows))
