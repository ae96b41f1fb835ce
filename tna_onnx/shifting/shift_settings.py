"""Settings of `shift`. Light to import: the command line reads defaults and choices here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tna_onnx.data.choices import TRUST_LABELS, Frequencies
from tna_onnx.errors import UsageError
from tna_onnx.fields import LEVEL, MAX_LEVEL, check_settings, documented, setting

Estimator: TypeAlias = Literal["em", "bbse"]

_SECTION = "Class frequencies"


@documented
@dataclass(frozen=True)
class ShiftSettings:
    """Where the class frequencies come from, before and after.

    Raises:
        UsageError: a value that cannot be used.
    """

    target_prior: Frequencies | None = setting(
        None,
        "Class frequencies of the data that the model will see. Without this option, they are estimated.",
        section=_SECTION,
        unit="FILE|uniform",
        parse="text",
    )
    source_prior: Frequencies | None = setting(
        None,
        "Class frequencies of the data that MODEL was calibrated on.",
        section=_SECTION,
        unit="FILE|uniform",
        parse="text",
        note="those of --calib",
    )
    only: tuple[str, ...] = setting(
        (),
        "The only classes that can occur: all others get the probability 0.",
        section=_SECTION,
        unit="CLASS,...",
        parse="names",
    )
    estimator: Estimator = setting(
        "em",
        "em needs calibrated probabilities; bbse needs only a confusion matrix, and is less precise.",
        section=_SECTION,
    )
    draws: int = setting(200, "Number of bootstrap samples for intervals and tests.", low=100)
    trust_shift: bool = setting(
        False,
        "Write the model even if more than the class frequencies seems to have changed.",
        section=_SECTION,
    )
    seed: int = setting(0, "Seed of the bootstrap.", section="The search", low=0)
    trust_labels: bool = setting(False, TRUST_LABELS, section="Data")
    confidence_level: float = setting(95.0, LEVEL, section="Results", unit="PERCENT", low=50, high=MAX_LEVEL)

    def __post_init__(self) -> None:
        check_settings(self)
        only: object = self.only
        if isinstance(only, str) or not isinstance(only, Collection) or len({*only}) == 1:
            raise UsageError(f"only: expected two classes or more, got {self.only!r}")
