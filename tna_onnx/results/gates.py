"""Gates: what a result has to keep. A missed one ends `calibrate`, without a file, or `evaluate` with exit code 1.

    max_ece, max_nll, min_accuracy, min_recall    a value beyond its limit
    max_accuracy_drop    the whole interval of the paired difference lies beyond the limit
    require              improvement: accuracy, NLL, ECE and the objective are not "improved" (`verdict.Standing`), or
                         predictions are protected and P(positive) is still off; not-worse: they are "worse"

Numbers are those of held-out or cross-fitted samples; of two classes and of labels the ECE is `positive.ece`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tna_onnx.errors import CheckFailed, UsageError
from tna_onnx.fields import check_numbers, check_settings, check_share, documented, setting, settings_of
from tna_onnx.numerics.metric import JUDGED, METRICS, POSITIVE_ECE, Metric

if TYPE_CHECKING:
    from tna_onnx.numerics.metrics import Interval, Metrics
    from tna_onnx.results.measured import Evaluation


class GateMissed(CheckFailed):
    """A result missed one or more gates; the message has a line for each.

    Attributes:
        result: the `Report` of `calibrate`, or the `Evaluation` of `evaluate`; its `missed` holds the same lines.
    """

    def __init__(self, result: Any, ending: str = "") -> None:
        super().__init__("\n".join(result.missed) + ending)
        self.result = result


Requirement: TypeAlias = Literal["improvement", "not-worse", "nothing"]

_SECTION = "Gates"


@documented
@dataclass(frozen=True)
class Gates:
    """Limits on a result; None is no limit.

    Raises:
        UsageError: a limit that is not a number, or outside its range.
    """

    max_ece: float | None = setting(
        None,
        "Fail if the ECE (expected calibration error) is above this, per cent. With two classes it is the ECE of "
        "P(positive), with several labels that of the worst label, otherwise that of the confidence.",
        section=_SECTION,
        unit="PERCENT",
        low=0,
        high=100,
    )
    max_nll: float | None = setting(
        None,
        "Fail if the NLL (negative log-likelihood) is above this, nats.",
        section=_SECTION,
        unit="NATS",
        low=0,
    )
    min_accuracy: float | None = setting(
        None, "Fail if the accuracy is below this, per cent.", section=_SECTION, unit="PERCENT", low=0, high=100
    )
    # the flag is that of `Settings`: a limit of the search, and a gate on its result
    max_accuracy_drop: float | None = setting(
        None, "Largest loss of accuracy, percentage points.", unit="POINTS", low=0, high=100
    )
    min_recall: Mapping[str, float] | None = setting(
        None,
        "Fail if the recall of a class is below this fraction. It is the recall of the output decision if the "
        "file has it, otherwise that of the likeliest class.",
        section=_SECTION,
        unit="CLASS=SHARE",
        parse="options",
    )
    require: Requirement = setting(
        "not-worse",
        "Fail unless the result is this. improvement: significantly better; with two classes and predictions "
        "kept, P(positive) must also be off by no more than chance. not-worse: not significantly worse. nothing: any "
        "result passes. Accuracy, NLL, ECE and the objective are judged together, each by its whole interval, the NLL "
        "first.",
        section=_SECTION,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        check_share(min_accuracy=self.min_accuracy)
        for name, limit in (self.min_recall or {}).items():
            check_numbers("a number", **{f"min_recall {name}": limit})
            if not 0 <= limit <= 1:
                raise UsageError(f"min_recall {name} must be a fraction, from 0 to 1; got {limit}")
        named = {str(name): limit for name, limit in (self.min_recall or {}).items()}
        object.__setattr__(self, "min_recall", named or None)

    def limits_missed(self, metrics: Metrics, kind: str) -> tuple[str, ...]:
        """Lines on the limits that metrics miss. `kind`: of these samples: `held-out`, or empty."""
        lines = []
        for gate in LIMITS:
            limit = getattr(self, gate)
            side, _, name = gate.partition("_")
            if name == "ece" and metrics.positive is not None:
                name = POSITIVE_ECE
            metric = JUDGED[name]
            value = metrics.value(name)
            sign = {"min": -1, "max": 1}[side]  # an accuracy must not lie below its limit, the others not above
            if limit is not None and sign * value > sign * limit / metric.factor:
                text = f"{_label(name, metrics)} is {_missing(metric, sign, value, limit)} {metric.unit}".rstrip()
                flag = f"--{gate.replace('_', '-')}"
                lines.append(f"{flag} {limit:g} missed: {text} on {samples_text(metrics, kind)}")
        return tuple(lines)

    def expected_missed(self, evaluation: Evaluation) -> tuple[str, ...]:
        """Say whether samples without labels miss the least accuracy: by the lower end, or by an alarm."""
        limit = self.min_accuracy
        expected = evaluation.without_labels
        if limit is None or expected is None or (expected.accuracy and 100 * (expected.accuracy.low or 0) >= limit):
            return ()
        return (f"--min-accuracy {limit:g} missed; the lower end of the interval has to reach it. {expected.sentence}",)

    def classes_missed(self, recall: Mapping[str, float | None], where: str) -> tuple[str, ...]:
        """Lines on the classes whose recall is below its limit.

        `recall`: class -> share of its samples that are found; None without samples.
        """
        shares = {name: share for name, share in recall.items() if share is not None}
        self.require_classes(shares)
        return tuple(
            f"--min-recall {name}={limit:g} missed: recall of {name} is {shares[name]:.4g} on {where}"
            for name, limit in (self.min_recall or {}).items()
            if shares[name] < limit
        )

    def require_classes(self, names: Collection[str]) -> None:
        """Refuse a limit on the recall of a class that is none of those with samples."""
        for name in self.min_recall or {}:
            if name not in names:
                raise UsageError(
                    f"--min-recall {name}: no class of this name has a sample; expected one of {', '.join(names)}"
                )

    def changes_missed(
        self,
        differences: Mapping[str, Interval],
        objective: str,
        metrics: Metrics,
        kind: str,
        *,
        still_off: bool = False,
    ) -> tuple[str, ...]:
        """Lines on the gates that the paired differences after - before miss.

        `differences`: per metric, as fractions and nats. `still_off`: whether predictions were protected, and
        P(positive) is off.
        """
        from tna_onnx.results.verdict import Standing  # noqa: PLC0415 - the command line reads the gates' fields first

        lines = []
        where = samples_text(metrics, kind)
        # the whole interval: noise alone must not fail a pipeline
        if self.max_accuracy_drop is not None and differences["accuracy"].high < -self.max_accuracy_drop / 100:
            drop = differences_text(differences, ["accuracy"])
            lines.append(f"--max-accuracy-drop {self.max_accuracy_drop:g} missed: {drop} on {where}")
        standing = Standing.of(differences, objective)
        positive = metrics.positive
        if self.require == "improvement" and standing.word != "improved":
            # what got worse says more than an objective that may have improved at its expense
            named = differences_text(differences, standing.worse or (objective,))
            lines.append(f"--require improvement missed: no significant improvement, {named} on {where}")
        elif self.require == "improvement" and still_off and positive is not None:
            lines.append(
                f"--require improvement missed: {_label(POSITIVE_ECE, metrics)} is {100 * positive.ece:.2f} % on "
                f"{where}, by chance alone {100 * positive.ece_expected:.2f} %, with predictions kept; --predictions "
                "change lets them follow the probabilities"
            )
        if self.require == "not-worse" and standing.word == "worse":
            lines.append(
                f"the result is worse than the input on {where}: {differences_text(differences, standing.worse)}; "
                "check that the calibration and evaluation data are alike and large enough, or pass --require nothing"
            )
        return tuple(lines)


LIMITS = tuple(name for name in settings_of(Gates) if name.partition("_")[2] in METRICS)
"""Gates on the values of one model, `max_METRIC` and `min_METRIC`; others are about a change or single classes."""


def _missing(metric: Metric, sign: int, value: float, limit: float) -> str:
    """Write a value that misses its limit, in more digits than elsewhere only where these would hide that it does."""
    text = metric.number(value)
    if sign * float(text) > sign * limit:
        return text
    return f"{metric.factor * value:.6g}"


def differences_text(differences: Mapping[str, Interval], names: Sequence[str]) -> str:
    """Say by how much each of some metrics changes.

    >>> from tna_onnx.numerics.metrics import Interval
    >>> differences_text({"ece": Interval(-0.0303, -0.0461, -0.0215, 0.95)}, ["ece"])
    'ECE changes by -3.03 points (95 % interval -4.61 to -2.15)'
    """
    texts = []
    for name in names:
        metric, d = JUDGED[name], differences[name]
        change = f"{metric.change(d.difference)} {metric.change_unit}".rstrip()
        texts.append(f"{metric.label} changes by {change} ({100 * d.level:g} % interval {metric.ends(d.low, d.high)})")
    return ", ".join(texts)


def _label(name: str, metrics: Metrics) -> str:
    """Return what a limit is on: of several labels, the ECE of the worst."""
    if name != POSITIVE_ECE or metrics.positive is None:
        return JUDGED[name].label
    if metrics.positive.labels > 1:
        return f"ECE of the worst label, {metrics.positive.name},"
    return f"ECE of P({metrics.positive.name})"


def samples_text(metrics: Metrics, kind: str) -> str:
    """Return how many samples were measured, such as `1,500 held-out samples`."""
    if kind:
        return f"{metrics.n:,} {kind} samples"
    return f"{metrics.n:,} samples"
