"""What `guard` adds and promises. Light to import: the command line reads defaults and choices here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from tna_onnx.data.choices import TRUST_LABELS
from tna_onnx.errors import UsageError
from tna_onnx.fields import (
    LEVEL,
    MAX_LEVEL,
    check_choice,
    check_settings,
    check_share,
    documented,
    setting,
    settings_of,
)

Addition: TypeAlias = Literal["confidence", "accept", "set", "ood"]
SetScoreName: TypeAlias = Literal["lac", "aps", "raps"]
OodScore: TypeAlias = Literal["mahalanobis", "energy", "residual"]

ADDITIONS: tuple[Addition, ...] = get_args(Addition)

_DEFAULT_ADDITIONS: tuple[Addition, ...] = ("confidence", "accept", "set")

_GOAL = re.compile(r"(f1|macro-f1|balanced-accuracy|mcc)|(recall>|precision>|fpr<)=(0?\.\d*[1-9]\d*)|cost=.+")

_SECTION = "Decisions"


def _per_cent(default: float, meaning: str) -> float:
    return setting(default, meaning, section=_SECTION, unit="PERCENT", low=0, high=100)


@documented
@dataclass(frozen=True)
class GuardSettings:
    """What is added, and at which levels.

    Raises:
        UsageError: a value that cannot be used.
    """

    add: tuple[str, ...] = setting(
        (),
        f"Decisions to add as further outputs: {', '.join(ADDITIONS)}. Several with commas, or repeat the option.",
        section=_SECTION,
        unit="OUTPUT,...",
        parse="additions",
        note=f"{','.join(_DEFAULT_ADDITIONS)}; none beside --decide",
    )
    decide: str = setting(
        "",
        "Add the output decision: the class of a sample, or its labels, by thresholds that serve a goal. f1, "
        "macro-f1, balanced-accuracy and mcc are maximised; recall>=0.95, precision>=0.9 and fpr<=0.01 are "
        "guaranteed (see --delta). cost=FILE names a CSV of costs, with a row for each true class and a column for "
        "each decision.",
        section=_SECTION,
        unit="GOAL",
        note="none",
    )
    positive: str = setting(
        "",
        "decide: the class that the goal is about, by name or number.",
        section=_SECTION,
        unit="CLASS",
        note="the second of two",
    )
    coverage: float = _per_cent(95.0, "set: how often the set has to contain the true class.")
    set_score: SetScoreName = setting(
        "lac",
        "set: lac gives the smallest sets; aps and raps give larger sets where the model is unsure. raps gets the "
        "penalty with the smallest sets, on samples that are not used for the threshold.",
        section=_SECTION,
    )
    allow_empty: bool = setting(
        False, "set: a set may be empty, which leaves out even the likeliest class.", section=_SECTION
    )
    per_class: bool = setting(
        False,
        "set: reach the coverage in each class, not only on average. decide: a threshold for each class; if none is "
        "reached, the decision is -1.",
        section=_SECTION,
    )
    if_unreachable: Literal["omit", "fail"] = setting(
        "omit",
        "accept, decide: what to do if no threshold reaches the level. omit writes everything else; fail ends the run.",
        section=_SECTION,
    )
    risk: float = _per_cent(2.0, "accept: highest error rate among accepted samples.")
    delta: float = _per_cent(5.0, "accept, decide: probability that the guarantee does not hold.")
    ood_score: OodScore = setting(
        "mahalanobis", "ood: how to measure the distance from known samples.", section=_SECTION
    )
    false_alarm: float = _per_cent(5.0, "ood: highest share of known samples that raise the alarm.")
    prefix: str = setting("", "Prefix for the names of the new outputs.", section=_SECTION, unit="TEXT", note="none")
    seed: int = setting(
        0, "Seed for splitting the data, if they are used for two purposes.", section="The search", low=0
    )
    trust_labels: bool = setting(False, TRUST_LABELS, section="Data")
    confidence_level: float = setting(95.0, LEVEL, section="Results", unit="PERCENT", low=50, high=MAX_LEVEL)

    def __post_init__(self) -> None:
        check_settings(self)
        add: Any = self.add
        if isinstance(add, str):  # as behind the flag; it would be a sequence of letters
            add = add.split(",")
        object.__setattr__(self, "add", tuple(add))
        if not self.add and not self.decide:
            object.__setattr__(self, "add", _DEFAULT_ADDITIONS)
        if self.decide and _GOAL.fullmatch(self.decide) is None:
            raise UsageError(
                f"decide {self.decide!r} is no goal; expected f1, macro-f1, balanced-accuracy, mcc, recall>=0.95, "
                "precision>=0.9, fpr<=0.01, or cost=FILE, with a bound between 0 and 1"
            )
        if self.positive and not self.decide:
            raise UsageError("positive needs a decision; name its goal with --decide")
        for name in self.add:
            check_choice("output", name, ADDITIONS)
        levels = {name: getattr(self, name) for name in ("coverage", "risk", "delta", "false_alarm")}
        for name, level in levels.items():
            if not 0 < level < 100:
                raise UsageError(f"{name} must lie between 0 and 100 per cent, both excluded; got {level!r}")
        check_share(coverage=self.coverage)

    @property
    def goal(self) -> tuple[str, float]:
        """What the decision serves, without relation and path, and the bound; 0 where there is none."""
        name, _, bound = self.decide.partition("=")
        if name.endswith(("<", ">")):
            return name.rstrip("<>"), float(bound)
        return name, 0.0

    @property
    def reads_file(self) -> bool:
        """Whether the goal is in a file, whose path is of no use to others."""
        return self.goal[0] == "cost"

    @property
    def fits(self) -> bool:
        """Whether something is fitted to samples, which cannot give its threshold then."""
        return self.fits_sets or ("ood" in self.add and self.ood_score != "energy")

    @property
    def fits_sets(self) -> bool:
        """Whether the score of the sets is fitted: the penalty of `raps`."""
        return "set" in self.add and self.set_score == "raps"

    @property
    def outputs(self) -> dict[str, str]:
        """Role -> name of each new output; an outlier score comes with its alarm."""
        roles: list[str] = [name for name in ADDITIONS if name in self.add]
        if "ood" in roles:
            roles.append("ood_alarm")
        if self.decide:
            roles.append("decision")
        return {role: f"{self.prefix}{role}" for role in roles}


# Setting -> the outputs, or goals of the decision, that it is about.
_BOUNDED = ("accept", "recall", "precision", "fpr")
_SERVES: dict[str, tuple[str, ...]] = {
    "coverage": ("set",),
    "set_score": ("set",),
    "allow_empty": ("set",),
    "per_class": ("set", "decision"),
    "if_unreachable": _BOUNDED,
    "risk": ("accept",),
    "delta": _BOUNDED,
    "ood_score": ("ood",),
    "false_alarm": ("ood",),
}


def refuse_unused(settings: GuardSettings) -> None:
    """Refuse a setting of which nothing that is added makes use."""
    added = {*settings.outputs, settings.goal[0]}
    for name, (default, _) in settings_of(GuardSettings).items():
        serves = _SERVES.get(name, ())
        if serves and getattr(settings, name) != default and not added & {*serves}:
            raise UsageError(
                f"--{name.replace('_', '-')} belongs to {' or '.join(serves)}, and none is added; leave it out"
            )
