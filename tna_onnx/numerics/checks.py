"""Checks of arguments of the Python interface, which no command line has validated."""

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Literal

from tna_onnx.errors import UsageError

MAX_N_T = 10_000
"""Most rotations between two looks at mRC: with fewer than 1,000 features, so many turn a weight past any angle."""

MAX_LEVEL = 99.9
"""Largest confidence level, per cent: a normal distribution does not tell what lies further out."""

_MIN_LEVEL = 50

LEVEL = "Level of the intervals in the report. At 95, about 95 of 100 such intervals contain the true value."
"""What a confidence level is, in the help."""

_NUMBERS: dict[str, tuple[type, ...]] = {
    # abstract types: NumPy's scalars count too
    "a whole number": (Integral,),
    "a number": (Real,),
    "a number or None": (Real, type(None)),
}


def check_numbers(expected: Literal["a whole number", "a number", "a number or None"], **values: object) -> None:
    """Refuse arguments that are not numbers; truth values and texts are not.

    >>> check_numbers("a whole number", bins=15, seed=1.5)
    Traceback (most recent call last):
    tna_onnx.errors.UsageError: seed must be a whole number, got 1.5 (float)
    """
    for name, value in values.items():
        # bool is a subclass of int
        if isinstance(value, bool) or not isinstance(value, _NUMBERS[expected]):
            raise UsageError(f"{name} must be {expected}, got {value!r} ({type(value).__name__})")


def check_choice(name: str, word: object, choices: Iterable[str]) -> None:
    """Refuse a word that is none of the choices.

    >>> check_choice("map", "tss", ("none", "ts"))
    Traceback (most recent call last):
    tna_onnx.errors.UsageError: map 'tss' is not known; expected none, ts
    """
    allowed = tuple(choices)
    if word not in allowed:
        raise UsageError(f"{name} '{word}' is not known; expected {', '.join(allowed)}")


def check_limits(kind: str, limits: Mapping[str, object]) -> None:
    """Refuse limits that are not finite numbers of at least 0.

    >>> check_limits("data", {"overlap": -1})
    Traceback (most recent call last):
    tna_onnx.errors.UsageError: data limit overlap must be a finite number of at least 0, got -1
    """
    for name, value in limits.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            raise UsageError(f"{kind} limit {name} must be a finite number of at least 0, got {value!r}")


def check_share(**per_cent: float | None) -> None:
    """Refuse a share below 1 %, where nobody means one: it is a fraction, which would be met by anything.

    >>> check_share(coverage=0.9)
    Traceback (most recent call last):
    tna_onnx.errors.UsageError: --coverage 0.9 is less than 1 %, and its unit is per cent; for 90 %: --coverage 90
    """
    for name, value in per_cent.items():
        if value is not None and 0 < value < 1:
            flag = f"--{name.replace('_', '-')}"
            meant = f"{100 * value:g}"
            raise UsageError(
                f"{flag} {value:g} is less than 1 %, and its unit is per cent; for {meant} %: {flag} {meant}"
            )


def check_batch_size(size: object) -> None:
    """Refuse a number of samples per run that is not a whole number of at least 1.

    >>> check_batch_size(0)
    Traceback (most recent call last):
    tna_onnx.errors.UsageError: batch_size must be at least 1, got 0
    """
    check_numbers("a whole number", batch_size=size)
    if not size >= 1:  # type: ignore[operator]  # a whole number
        raise UsageError(f"batch_size must be at least 1, got {size}")


def check_level(per_cent: float) -> float:
    """Return a confidence level as a fraction."""
    check_numbers("a number", confidence_level=per_cent)
    if not _MIN_LEVEL <= per_cent <= MAX_LEVEL:
        raise UsageError(f"confidence_level must be from {_MIN_LEVEL} to {MAX_LEVEL}, in per cent; got {per_cent}")
    return per_cent / 100
