"""Checks of arguments that the command line's types do not see on the way through Python."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Literal

from tna_onnx.errors import UsageError

__all__ = ["HIGHEST_LEVEL", "check_level", "check_numbers"]


HIGHEST_LEVEL = 99.9
"""Per cent; beyond it the bootstrap has too few resamples for the ends of an interval."""


_NUMBERS = {"a whole number": (Integral,), "a number": (Real,), "a number or None": (Real, type(None))}


def check_numbers(expected: Literal["a whole number", "a number", "a number or None"], **given: object) -> None:
    """Refuse arguments of a wrong type, which the command line's types do not see on the way through Python.

    Raises:
        UsageError: one is something else; truth values and texts are no numbers.

    >>> check_numbers("a whole number", bins=15, seed=1.5)
    Traceback (most recent call last):
    tna_onnx.errors.UsageError: seed must be a whole number, got 1.5 (float)
    """
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, _NUMBERS[expected]):
            raise UsageError(f"{name} must be {expected}, got {value!r} ({type(value).__name__})")


def check_level(per_cent: float) -> float:
    """Return a confidence level as a fraction.

    Raises:
        UsageError: not a number, or outside of 50 to 99.9 per cent.
    """
    check_numbers("a number", confidence_level=per_cent)
    if not 50 <= per_cent <= HIGHEST_LEVEL:
        raise UsageError(f"confidence_level must be in 50 to {HIGHEST_LEVEL} per cent, got {per_cent}")
    return per_cent / 100
