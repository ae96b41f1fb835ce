"""Texts of options -> values: lists of numbers, image sizes, batch sizes."""

from __future__ import annotations

import click

__all__ = ["batch_size", "members", "numbers", "size"]


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
    """Parse a number of samples or auto."""
    if text == "auto":
        return text
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise click.BadParameter(f"expected a positive number or auto, got '{text}'")


def members(_ctx: click.Context, _param: click.Parameter, text: str) -> int | str:
    """Parse a number of members, inf or auto."""
    if text in ("inf", "auto"):
        return text
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise click.BadParameter(f"expected a positive number, inf or auto, got '{text}'")


def size(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | tuple[int, int] | None:
    """Parse pixels: 256, or height and width as 224,320."""
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
