"""Texts of options -> values: numbers and lists of them, image sizes, batch sizes, lists of words."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import click


class Number(click.FloatRange):
    """A number in a range. NaN is refused, although every comparison with the ends of the range lets it pass."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        return number


def choice(words: Sequence[str]) -> click.Choice:  # type: ignore[type-arg]  # a generic only from click 8.2 on
    """Return the type of one of some words, in any case: NLL and nll are the same."""
    return click.Choice(words, case_sensitive=False)


class Words(click.Choice):  # type: ignore[type-arg]  # a generic only from click 8.2 on
    """One word of a choice, or several separated by commas; `flat` joins those of a repeated option."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse."""
        # click converts a default again, which is a tuple by then.
        words = value if isinstance(value, tuple) else value.split(",")
        return tuple(super(Words, self).convert(word, param, ctx) for word in words)


def names(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Parse names with commas between them; one that holds a comma stands in double quotes."""
    cells = [cell.strip() for row in csv.reader(texts, skipinitialspace=True) for cell in row]
    return tuple(cell for cell in cells if cell)


def flat(_ctx: click.Context, _param: click.Parameter, groups: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """Return the words of all groups, each once, in the order of their first occurrence."""
    # a dict keeps the order of the first occurrence, which a set does not
    return tuple(dict.fromkeys(word for group in groups for word in group))


def one_head(_ctx: click.Context, _param: click.Parameter, words: tuple[str, ...]) -> str | None:
    """Return the only word, None for none; of two, click would take the last without a word."""
    if len(words) > 1:
        raise click.BadParameter(
            f"expected one head, got {', '.join(words)}; calibrate one, and then the next on the file that this writes"
        )
    return words[0] if words else None


def numbers(_ctx: click.Context, _param: click.Parameter, text: str | None) -> tuple[float, ...] | None:
    """Parse comma-separated numbers, such as 0.485,0.456,0.406."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(
            f"expected numbers with commas between them, such as 0.485,0.456,0.406, got '{text}'"
        ) from None


def batch_size(_ctx: click.Context, _param: click.Parameter, text: str) -> int | str:
    """Parse a number of samples, or auto."""
    if text == "auto":
        return text
    if _is_positive(text):
        return int(text)
    raise click.BadParameter(f"expected a positive number or auto, got '{text}'")


def members(_ctx: click.Context, _param: click.Parameter, text: str) -> int | str:
    """Parse a number of ensemble members, inf or auto."""
    if text in ("inf", "auto"):
        return text
    if _is_positive(text):
        return int(text)
    raise click.BadParameter(f"expected a positive number, inf or auto, got '{text}'")


def temperature(_ctx: click.Context, _param: click.Parameter, text: str) -> float | str:
    """Parse a temperature, or auto."""
    if text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"expected a number or auto, got '{text}'") from None


def limits(kind: type, _ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> Any:
    """Parse limits, such as image-pixels=2e8: values of the dataclass `kind`."""
    return kind(**_limits(kind, texts))


def _limits(kind: Any, texts: tuple[str, ...]) -> dict[str, Any]:
    """Parse NAME=NUMBER, repeated or with commas between them; whole numbers may be written as 2e8."""
    names = [field.name.replace("_", "-") for field in dataclasses.fields(kind)]
    values = {}
    for part in ",".join(texts).split(",") if texts else ():
        name, separator, number = part.partition("=")
        try:
            if not separator or name.strip() not in names:
                raise ValueError
            values[name.strip().replace("-", "_")] = float(number)
        except ValueError:
            raise click.BadParameter(f"expected NAME=NUMBER with a name of {', '.join(names)}, got '{part}'") from None
    return values


def options(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    """Parse NAME=VALUE of words that are passed on: numbers, two of them with a comma between, or text."""
    values: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip() or not value.strip():
            raise click.BadParameter(f"expected NAME=VALUE, such as num_gpus=1, got '{text}'")
        parts = [_number(part) for part in value.split(",")]
        values[name.strip()] = parts[0] if len(parts) == 1 else tuple(parts)
    return values


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text.strip()


def size(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | tuple[int, int] | None:
    """Parse a size in pixels: 256, or height and width as 224,320."""
    if text is None:
        return None
    try:
        sides = [int(part) for part in text.split(",")]
    except ValueError:
        sides = []
    if len(sides) == 1:
        return sides[0]
    if len(sides) == 2:
        return sides[0], sides[1]
    raise click.BadParameter(f"expected pixels such as 224, or HEIGHT,WIDTH such as 224,320, got '{text}'")


def _is_positive(text: str) -> bool:
    # Not int(text): that also takes " 7", "1_0" and "+3".
    return text.isdecimal() and int(text) > 0
