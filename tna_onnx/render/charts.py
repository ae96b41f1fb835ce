"""The charts of results as data, which `html/svg.py` draws.

A line of rank k has the k-th colour and marker, and is dashed where it shares its colour. In a reliability diagram, bar
j stands for j/B < confidence <= (j+1)/B; its gap, mean confidence - accuracy, is above zero where confidence is too
high.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tna_onnx.numerics.conformal import consistent_range, wilson_interval
from tna_onnx.numerics.metric import METRICS, Metric
from tna_onnx.numerics.metrics import Positive
from tna_onnx.numerics.reliability import Bins
from tna_onnx.results.details import Details, Step
from tna_onnx.results.report import Report
from tna_onnx.results.study import Chart, Line

MAX_DROP = 0.1
"""Accuracy that the charts show a loss of; beyond it, errors grow so much that nothing else can be seen."""

MAX_TIMES = 2
"""Objectives that are more than so many times the original weight's are cut off."""

# Ranks with a colour and a marker: a line of a higher one is plain, and a lone point of it would not be seen.
_RANKS = 5
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


def risk_chart(details: Details) -> MarkedChart:
    """Return the errors among the most confident share of the samples, before and after."""
    curves = {"before": details.risk_before, "after": details.risk_after}
    lines = tuple(
        Line(
            f"{side}: mean error {100 * curve.area:.2f} %",
            tuple(100 * share for share in curve.coverage),
            tuple(100 * share for share in curve.risk),
            rank=rank,
            dashed=side == "before",
            marked=False,
        )
        for rank, (side, curve) in enumerate(curves.items(), start=1)
    )
    return MarkedChart("Risk and coverage", "coverage, %", "errors among them, %", lines, x_range=(0, 100))


def search_charts(report: Report, details: Details) -> tuple[MarkedChart, MarkedChart]:
    """Return objective and accuracy of the candidates over the angle."""
    metric = METRICS[report.objective]
    objective = _search_chart(details, metric, "objective", _objective_range(details, metric))
    accuracies = [100 * getattr(step, kind).accuracy for step in _near(details) for kind in _kinds(details)]
    # up to half a point above 100 %, so that a marker there is whole
    y_range = (min(accuracies) - 1, min(max(accuracies) + 1, 100.5))
    allowed = 100 * details.steps[0].calibration.accuracy - float(str(report.settings["max_accuracy_drop"]))
    accuracy = _search_chart(details, METRICS["accuracy"], "accuracy", y_range)
    limit = ((allowed, "allowed on calibration data"),)
    return replace(objective, text_on_top=True), replace(accuracy, horizontal=limit)


def _search_chart(details: Details, metric: Metric, field: str, y_range: tuple[float, float]) -> MarkedChart:
    """Draw a field of the scores over the angle, with the choice marked."""
    choice = details.steps[details.chosen]
    return MarkedChart(
        f"{metric.label} against angle",
        "angle, degrees",
        metric.title,
        tuple(_search_lines(details, metric, field)),
        y_range=y_range,
        # 2 degrees of room for the last marker
        x_range=(0.0, max(step.angle for step in _near(details)) + 2),
        vertical=(choice.angle, f"chosen: {choice.angle:g}°"),
        rings=tuple((choice.angle, metric.factor * getattr(getattr(choice, kind), field)) for kind in _kinds(details)),
    )


def _near(details: Details) -> list[Step]:
    # on the calibration data, which every candidate has scores on
    lowest = details.steps[0].calibration.accuracy - MAX_DROP
    return [step for step in details.steps if step.calibration.accuracy >= lowest]


def _kinds(details: Details) -> dict[str, str]:
    """Name the fields of a candidate that lines are drawn of, held-out data first, with the word for the data."""
    if details.held_out:
        return {"shown": "held-out", "calibration": "calibration"}
    return {"calibration": "calibration"}


def _objective_range(details: Details, metric: Metric) -> tuple[float, float]:
    """Return the ends of the axis: all that is near, but not what is much worse than the original; the choice is in."""

    def values(*steps: Step) -> list[float]:
        return [metric.factor * getattr(step, kind).objective for step in steps for kind in _kinds(details)]

    near = values(*_near(details))
    # the first step is the original weight
    limit = MAX_TIMES * max(values(details.steps[0]))
    high = _ROOM * max(*values(details.steps[details.chosen]), *(v for v in near if v <= limit)) or 1.0
    return max(0.0, min(near) - 0.1 * (high - min(near))), high


def _search_lines(details: Details, metric: Metric, field: str) -> Iterable[Line]:
    """Yield a line for each number of members and each kind of data; the original weight begins the first."""
    # the limit of many, 0, is the last
    sizes = sorted({step.members for step in details.steps[1:]}, key=lambda size: size or float("inf"))
    near = _near(details)
    for kind, word in _kinds(details).items():
        for number, size in enumerate(sizes):
            steps = sorted((step for step in near if step.angle and step.members == size), key=lambda step: step.angle)
            if number == 0:
                steps.insert(0, details.steps[0])
            rank = min(number, _RANKS - 1)
            members = f"{members_text(size)} members"
            if rank == _RANKS - 1 and len(sizes) > _RANKS:  # several that look alike
                members = "other numbers of members"
            values = tuple(metric.factor * getattr(getattr(step, kind), field) for step in steps)
            # solid lines are the data to judge by: held-out ones where there are any
            dashed = details.held_out and kind == "calibration"
            angles = tuple(step.angle for step in steps)
            yield Line(f"{word}, {members}", angles, values, rank=rank, dashed=dashed)


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
