"""Gates: what a result has to keep, so that a pipeline can trust an exit code.

A missed gate ends `calibrate` and `evaluate` with exit code 1; `calibrate` then leaves no file. All of them are looked
at, and each that is missed gives one line. They read the honest numbers after the change, of N held-out samples or of N
cross-fitted ones; `evaluate` has the first three. d stands for a paired difference after - before, with its
interval from low to high.

    max_ece, max_nll        the value is above the limit
    min_accuracy            the value is below the limit
    max_accuracy_drop       high of the accuracy's d lies below minus the limit: the whole interval is beyond it
    require_improvement     accuracy, NLL, ECE and the objective do not come to "improved"; see `results.standing`
    fail_if_worse           they come to "worse"
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tna_onnx.errors import CheckFailed, UsageError
from tna_onnx.numerics.checks import check_numbers
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Interval, Metrics
from tna_onnx.results.standing import Standing

__all__ = ["GateMissed", "Gates", "difference_text", "differences_text"]


class GateMissed(CheckFailed):
    """A result missed gates; the message has a line for each.

    Attributes:
        result: the `Report` of `calibrate`, or the `Evaluation` of `evaluate`; its `missed` holds the same lines.
    """

    def __init__(self, result: Any, ending: str = "") -> None:
        super().__init__("\n".join(result.missed) + ending)
        self.result = result


@dataclass(frozen=True)
class Gates:
    """Limits on a result; None is no limit.

    Attributes:
        max_ece: largest ECE, per cent.
        max_nll: largest negative log-likelihood, nats.
        min_accuracy: smallest accuracy, per cent.
        max_accuracy_drop: largest loss of accuracy, percentage points.
        require_improvement: whether the result has to be significantly better.
        fail_if_worse: whether the result must not be significantly worse.

    Raises:
        UsageError: a limit that is not a number, or outside its range.
    """

    max_ece: float | None = None
    max_nll: float | None = None
    min_accuracy: float | None = None
    max_accuracy_drop: float | None = None
    require_improvement: bool = False
    fail_if_worse: bool = True

    def __post_init__(self) -> None:
        largest = {"max_ece": 100, "max_nll": math.inf, "min_accuracy": 100, "max_accuracy_drop": 100}
        for name, top in largest.items():
            limit = getattr(self, name)
            check_numbers("a number or None", **{name: limit})
            if limit is not None and not 0 <= limit <= top:
                unit = "nats, at least 0" if name == "max_nll" else "per cent, from 0 to 100"
                raise UsageError(f"{name} must be in {unit}, got {limit}")

    def limits_missed(self, metrics: Metrics, kind: str) -> tuple[str, ...]:
        """Lines on the limits that metrics miss.

        Args:
            metrics: of N samples.
            kind: of these samples: `held-out`, or empty.
        """
        limits = (
            ("--max-ece", self.max_ece, "ece", 1),
            ("--max-nll", self.max_nll, "nll", 1),
            ("--min-accuracy", self.min_accuracy, "accuracy", -1),
        )
        lines = []
        for flag, limit, name, sign in limits:
            metric = METRICS[name]
            value = getattr(metrics, name)
            # sign: an accuracy must not lie below its limit, the others not above
            if limit is not None and sign * value > sign * limit / metric.factor:
                text = f"{metric.label} is {metric.factor * value:.6g} {metric.unit}"
                lines.append(f"{flag} {limit:g} missed: {text} on {_n(metrics, kind)}")
        return tuple(lines)

    def changes_missed(
        self, differences: Mapping[str, Interval], objective: str, metrics: Metrics, kind: str
    ) -> tuple[str, ...]:
        """Lines on the gates that the paired differences after - before miss.

        Args:
            differences: per metric, as fractions and nats.
            objective: metric that the search minimised.
            metrics: after, for N.
            kind: of the samples.
        """
        lines = []
        drop = differences["accuracy"]
        # the whole interval: noise alone must not fail a pipeline
        if self.max_accuracy_drop is not None and drop.high < -self.max_accuracy_drop / 100:
            lines.append(
                f"--max-accuracy-drop {self.max_accuracy_drop:g} missed: {difference_text('accuracy', drop)} on "
                f"{_n(metrics, kind)}"
            )
        standing = Standing.of(differences, objective)
        if self.require_improvement and standing.word != "improved":
            # what got worse says more than an objective that may have improved at its expense
            named = standing.worse or (objective,)
            lines.append(
                f"--require-improvement missed: no significant improvement, {differences_text(differences, named)} on "
                f"{_n(metrics, kind)}"
            )
        if self.fail_if_worse and standing.word == "worse":
            lines.append(
                f"--fail-if-worse missed: the result is worse on {_n(metrics, kind)}: "
                f"{differences_text(differences, standing.worse)}; check that the calibration and evaluation data are "
                "alike, and enough"
            )
        return tuple(lines)


def difference_text(name: str, d: Interval) -> str:
    """Say by how much a metric changes.

    >>> difference_text("ece", Interval(-0.0303, -0.0461, -0.0215, 0.95))
    'ECE changes by -3.03 points (95% interval -4.61 to -2.15)'
    """
    metric = METRICS[name]
    change, low, high = (f"{metric.factor * value:+.4g}" for value in (d.difference, d.low, d.high))
    return f"{metric.label} changes by {change} {metric.change_unit} ({100 * d.level:g}% interval {low} to {high})"


def differences_text(differences: Mapping[str, Interval], names: Sequence[str]) -> str:
    """Say by how much each of several metrics changes."""
    return ", ".join(difference_text(name, differences[name]) for name in names)


def _n(metrics: Metrics, kind: str) -> str:
    return f"{metrics.n:,} {kind} samples" if kind else f"{metrics.n:,} samples"
