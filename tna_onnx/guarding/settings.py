"""What `guard` adds and promises. Light to import: the command line reads defaults and choices here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from tna_onnx.errors import UsageError
from tna_onnx.numerics.checks import check_choice, check_level, check_numbers

__all__ = ["ADDITIONS", "OOD_SCORES", "SET_SCORES", "GuardSettings", "OodScore", "SetScoreName"]

Addition: TypeAlias = Literal["confidence", "accept", "set", "ood"]
SetScoreName: TypeAlias = Literal["lac", "aps", "raps"]
OodScore: TypeAlias = Literal["mahalanobis", "energy", "residual"]

ADDITIONS: tuple[Addition, ...] = get_args(Addition)
SET_SCORES: tuple[SetScoreName, ...] = get_args(SetScoreName)
OOD_SCORES: tuple[OodScore, ...] = get_args(OodScore)


MIN_TEMPERATURE = 0.01
MAX_TEMPERATURE = 100.0


@dataclass(frozen=True)
class GuardSettings:
    """What is added, and at which levels.

    Attributes:
        add: the outputs: `confidence`, `accept`, `set`, `ood`.
        coverage: how often the set holds the true class, at least, in per cent.
        set_score: what the sets are made of: `lac` (smallest sets), `aps` or `raps` (larger where the model is unsure).
        set_temperature: of the probabilities that sets are made of, p^(1/T); `auto` is chosen for small sets, on
            samples that the threshold does not come from.
        per_class: whether the coverage holds for the samples of each class.
        risk: largest error among accepted samples, in per cent.
        delta: probability with which that error may be larger, in per cent.
        ood_score: what is measured: `mahalanobis`, `energy` or `residual`.
        false_alarm: how often a sample like the calibration data raises the alarm, at most, in per cent.
        dials: whether coverage, risk and class frequencies are graph inputs too, with these levels and the
            frequencies of the samples as defaults.
        prefix: what the names of the new outputs and inputs begin with.
        seed: of the split where the data must serve two purposes.
        confidence_level: of the intervals of the report, in per cent.

    Raises:
        UsageError: a value that cannot be used.
    """

    add: tuple[str, ...] = ("confidence", "accept", "set")
    coverage: float = 95.0
    set_score: SetScoreName = "lac"
    set_temperature: float | Literal["auto"] = 1.0
    per_class: bool = False
    risk: float = 2.0
    delta: float = 5.0
    ood_score: OodScore = "mahalanobis"
    false_alarm: float = 5.0
    dials: bool = False
    prefix: str = ""
    seed: int = 0
    confidence_level: float = 95.0

    def __post_init__(self) -> None:
        if not self.add:
            raise UsageError(f"nothing to add; expected some of {', '.join(ADDITIONS)}")
        for name in self.add:
            check_choice("output", name, ADDITIONS)
        check_choice("set_score", self.set_score, SET_SCORES)
        check_choice("ood_score", self.ood_score, OOD_SCORES)
        levels = {name: getattr(self, name) for name in ("coverage", "risk", "delta", "false_alarm")}
        check_numbers("a number", **levels)
        for name, level in levels.items():
            if not 0 < level < 100:
                raise UsageError(f"{name} must lie between 0 and 100 per cent, both excluded; got {level!r}")
        if self.set_temperature != "auto":
            check_numbers("a number", set_temperature=self.set_temperature)
            if not MIN_TEMPERATURE <= self.set_temperature <= MAX_TEMPERATURE:
                raise UsageError(
                    f"set_temperature must lie between {MIN_TEMPERATURE:g} and {MAX_TEMPERATURE:g}, or be auto; got "
                    f"{self.set_temperature!r}"
                )
        check_numbers("a whole number", seed=self.seed)
        if self.seed < 0:
            raise UsageError(f"seed must be at least 0, got {self.seed}")
        check_level(self.confidence_level)

    @property
    def fits(self) -> bool:
        """Whether something is fitted to samples, which cannot give its threshold then."""
        tempered = "set" in self.add and self.set_temperature == "auto"
        return tempered or ("ood" in self.add and self.ood_score != "energy")

    @property
    def inputs(self) -> dict[str, str]:
        """Role -> name of each dial: `coverage` of the sets, `risk` of what is accepted, `class_prior` of both."""
        if not self.dials:
            return {}
        levels = {"set": "coverage", "accept": "risk"}
        found = [level for role, level in levels.items() if role in self.add]
        # sets with a coverage by class keep it whatever the frequencies are
        if self._moves or ("set" in self.add and not self.per_class):
            found.append("class_prior")
        return {level: f"{self.prefix}{level}" for level in found}

    @property
    def outputs(self) -> dict[str, str]:
        """Role -> name of each new output; an outlier score comes with its alarm, moved probabilities with a dial."""
        roles: list[str] = [name for name in ADDITIONS if name in self.add]
        if self.dials and self._moves:
            roles.append("posterior")
        if "ood" in roles:
            roles.append("ood_alarm")
        return {role: f"{self.prefix}{role}" for role in roles}

    @property
    def _moves(self) -> bool:
        """Whether an output is of probabilities that a dial of the class frequencies moves."""
        return bool({"confidence", "accept"} & {*self.add})
