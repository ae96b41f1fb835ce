"""Everything about a metric besides its formula: one row a metric. Imports no arrays.

`numerics.metrics` has the formulas. Everything that names, prints, compares or limits a metric reads its row here.
"""

from dataclasses import dataclass
from typing import Literal

Objective = Literal["ece", "adaece", "nll", "brier"]
"""Metrics that a search can minimise; those whose row says so."""


@dataclass(frozen=True)
class Metric:
    """A metric of N samples. Values are kept as fractions or nats, and shown in their unit."""

    name: str  # field of `numerics.metrics.Metrics`, and key in JSON
    label: str  # what readers call it
    unit: str  # of a value as shown: `%`, `nats` or nothing
    change_unit: str  # of a difference as shown: `points`, `nats` or nothing
    factor: int  # from the stored value to the one shown
    digits: int  # after the decimal point, in that unit
    better: Literal[-1, 1]  # +1 if larger values are better, -1 if smaller ones are
    smallest_effect: float  # smallest change that counts, in the unit of a difference as shown
    objective: bool = False  # whether a search can minimise it
    debiased: bool = False  # whether a difference leaves out what noise adds: not quite after minus before

    @property
    def title(self) -> str:
        """Label and unit, as the head of a column or an axis.

        >>> METRICS["ece"].title, METRICS["brier"].title
        ('ECE, %', 'Brier')
        """
        if self.unit:
            return f"{self.label}, {self.unit}"
        return self.label

    def number(self, value: float) -> str:
        """Write a value in the metric's unit, without the unit.

        >>> METRICS["ece"].number(0.0123)
        '1.23'
        """
        return f"{self.factor * value:.{self.digits}f}"

    def value(self, value: float) -> str:
        """Write a value with label and unit.

        >>> METRICS["ece"].value(0.0123), METRICS["brier"].value(0.5)
        ('ECE 1.23 %', 'Brier 0.5000')
        """
        return f"{self.label} {self.number(value)} {self.unit}".rstrip()

    def change(self, difference: float) -> str:
        """Write a difference, with its sign.

        >>> METRICS["nll"].change(-0.5)
        '-0.5000'
        """
        return f"{self.factor * difference:+.{self.digits}f}"

    def ends(self, low: float, high: float) -> str:
        """Write the ends of an interval of a difference.

        >>> METRICS["ece"].ends(-0.02, 0.01)
        '-2.00 to +1.00'
        """
        return f"{self.change(low)} to {self.change(high)}"

    def standing(self, low: float, high: float) -> int:
        """Return 1 if a difference with this interval is significantly better, -1 if worse, 0 if it holds zero.

        >>> METRICS["ece"].standing(-0.02, -0.01), METRICS["accuracy"].standing(-0.02, 0.01)
        (1, 0)
        """
        side = (low > 0) - (high < 0)
        return self.better * side


# Smallest effects: accuracy, one sample in a thousand; NLL, a probability of the label that is 0.2 % larger or smaller
# in the geometric mean. On many samples an interval excludes zero for less, and nobody would notice it.
_ROWS = (
    Metric("accuracy", "accuracy", "%", "points", 100, 2, 1, 0.1),
    Metric("ece", "ECE", "%", "points", 100, 2, -1, 0.1, objective=True, debiased=True),
    Metric("adaece", "AdaECE", "%", "points", 100, 2, -1, 0.1, objective=True, debiased=True),
    Metric("nll", "NLL", "nats", "nats", 1, 4, -1, 0.002, objective=True),
    Metric("brier", "Brier", "", "", 1, 4, -1, 0.001, objective=True),
)

METRICS: dict[str, Metric] = {row.name: row for row in _ROWS}
"""Metrics by name, in the order of the report."""

POSITIVE_ECE = "positive.ece"
"""Name of the ECE of P(positive), of two classes and of labels: a metric of its own, without a field of `Metrics`."""

JUDGED: dict[str, Metric] = METRICS | {
    POSITIVE_ECE: Metric(POSITIVE_ECE, "ECE of P(positive)", "%", "points", 100, 2, -1, 0.1, debiased=True),
}
"""Metrics by name that differences may be of."""

OBJECTIVES: tuple[str, ...] = tuple(row.name for row in _ROWS if row.objective)
"""Names of the metrics that a search can minimise, as in `Objective`."""
