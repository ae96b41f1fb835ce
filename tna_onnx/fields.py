"""A setting is one line: the field of a dataclass, with its type, default, meaning, section and unit.

    bins: int = setting(15, "Number of bins of ECE and AdaECE.", section="Results", low=1)

Options, keywords, keys of files, variables, tables of the reference and checks are made of it. A setting without a
section has no flag: it is for Python alone. Nothing heavy is imported here.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import math
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypeVar

from tna_onnx.errors import UsageError

T = TypeVar("T")

_KEY = "setting"


@dataclass(frozen=True)
class Setting:
    """What there is to say of a setting beside its name, type and default."""

    meaning: str  # one sentence or more, as the help shows it
    section: str = ""  # of the help; empty for a setting that has no flag
    unit: str = ""  # what stands for the value in the help, such as PERCENT
    flag: str = ""  # the flag, without dashes, where it is not the name
    low: float | None = None  # smallest number
    high: float | None = None  # largest number
    parse: str = ""  # how a text is read that the type does not tell: `path`, `names`, `words`, or of a type of its own
    note: str = ""  # what the help says of the default where the value does not


def setting(default: T, meaning: str, **more: Any) -> T:
    """Return the field of a setting; `more` are fields of `Setting`."""
    return dataclasses.field(default=default, metadata={_KEY: Setting(meaning, **more)})


def settings_of(cls: type) -> dict[str, tuple[Any, Setting]]:
    """Return default and `Setting` of each setting of a dataclass, by name, in order."""
    return {
        field.name: (field.default, field.metadata[_KEY]) for field in dataclasses.fields(cls) if _KEY in field.metadata
    }


class _Names(dict[str, Any]):
    """What annotations can name; what only a type checker imports is Any."""

    def __missing__(self, name: str) -> Any:
        return Any


def annotated(owner: Any, scope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the types in the annotations of a class or function, by the names of its module."""
    return typing.get_type_hints(owner, localns=_Names({**vars(builtins), **scope}))


@functools.cache
def hints_of(cls: type) -> dict[str, Any]:
    """Return the types of the fields of a dataclass, without loading what only a type checker imports."""
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        hints |= annotated(_only(base), vars(sys.modules[base.__module__]))
    return hints


def _only(cls: type) -> type:
    """Return a class with the annotations of this one alone, which are of one module."""
    return type(
        cls.__name__, (), {"__annotations__": vars(cls).get("__annotations__", {}), "__module__": cls.__module__}
    )


def plain_type(hint: Any) -> Any:
    """Return a type without None: that of `int | None` is int; of several others it stays a union."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = tuple(part for part in typing.get_args(hint) if part is not type(None))
        return parts[0] if len(parts) == 1 else typing.Union[parts]  # noqa: UP007 - made of a tuple
    return hint


_TYPES: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("True or False", lambda value: type(value).__name__ in ("bool", "bool_")),  # NumPy's too
    str: ("a text", lambda value: isinstance(value, str)),
    Path: ("a path", lambda value: isinstance(value, os.PathLike)),
    Sequence: ("a list", lambda value: isinstance(value, Iterable) and not isinstance(value, bytes)),
    Mapping: ("a mapping", lambda value: isinstance(value, Mapping)),
    Callable: ("a function", callable),
    types.NoneType: ("None", lambda value: value is None),
}


def check_type(name: str, value: Any, hint: Any) -> None:
    """Refuse a value that is of none of the types of a hint; numbers and choices have checks of their own.

    >>> check_type("classes", 3, Sequence[str] | None)
    Traceback (most recent call last):
    tna_onnx.errors.UsageError: classes must be a list or None, got 3 (int)
    """
    if name.endswith("_column") and isinstance(value, Integral):  # pandas calls columns 0, 1, 2, ...
        return
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    expected = []
    for part in typing.get_args(hint) if union else (hint,):
        kind = typing.get_origin(part) or part
        if not (kind in _TYPES or dataclasses.is_dataclass(kind)):
            return
        words, fits = _TYPES.get(kind) or (f"a {kind.__name__}", functools.partial(_is_one, kind))
        if fits(value):
            return
        expected.append(words)
    if expected:
        raise UsageError(f"{name} must be {' or '.join(expected)}, got {value!r} ({type(value).__name__})")


def _is_one(kind: type, value: Any) -> bool:
    return isinstance(value, kind)


def plain_value(value: Any) -> Any:
    """Return a scalar of NumPy as Python's own, in a mapping too; anything else as it is."""
    if isinstance(value, dict):
        return {key: plain_value(item) for key, item in value.items()}
    numpy = sys.modules.get("numpy")  # not imported here: without it there are no scalars of it
    return value if numpy is None or not isinstance(value, numpy.generic) else value.item()


def check_settings(value: Any) -> None:
    """Refuse settings of a wrong type or outside their range, and a word that is none of the choices of one.

    NumPy's scalars become numbers of Python, which a file can record.
    """
    cls: type = value.__class__
    for name, (_, about) in settings_of(cls).items():
        hint = hints_of(cls)[name]
        kind = plain_type(hint)
        item = plain_value(getattr(value, name))
        object.__setattr__(value, name, item)
        if item is None and kind is not hint:
            continue
        if typing.get_origin(kind) is Literal:
            check_choice(name, item, typing.get_args(kind))
        elif kind is int:
            check_numbers("a whole number", **{name: item})
            _check_range(name, item, about)
        elif kind is float:
            check_numbers("a number" if kind is hint else "a number or None", **{name: item})
            _check_range(name, item, about)
        else:
            check_type(name, item, hint)


_UNITS = {"PERCENT": ", in per cent", "POINTS": ", in percentage points", "NATS": ", in nats"}


def _check_range(name: str, number: float, about: Setting) -> None:
    low = -math.inf if about.low is None else about.low
    high = math.inf if about.high is None else about.high
    if low <= number <= high:
        return
    ends = f"from {low:g} to {high:g}"
    if about.high is None:
        ends = f"at least {low:g}"
    elif about.low is None:
        ends = f"at most {high:g}"
    raise UsageError(f"{name} must be {ends}{_UNITS.get(about.unit, '')}; got {number}")


def documented(cls: type[T]) -> type[T]:
    """Add the settings to the docstring of a dataclass, as `Attributes:`."""
    text, heading, raises = (cls.__doc__ or "").partition("\n\n    Raises:")
    lines = "".join(
        f"        {name}: {about.meaning} Default: {default!r}.\n"
        for name, (default, about) in settings_of(cls).items()
    )
    cls.__doc__ = f"{text.rstrip()}\n\n    Attributes:\n{lines}" + (heading + raises).removeprefix("\n")
    return cls


MAX_LEVEL = 99.9
"""Largest confidence level, per cent: a normal distribution does not tell what lies further out."""

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
