"""Parameter types: lists of numbers, image sizes."""

from __future__ import annotations

from typing import Any

import click

__all__ = ["NUMBERS", "SIZE"]


class Numbers(click.ParamType):
    """Comma-separated numbers, such as 0.485,0.456,0.406."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """Parse."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(float(part) for part in str(value).split(","))
        except ValueError:
            self.fail(
                f"expected numbers with commas between them, such as 0.485,0.456,0.406, got '{value}'", param, ctx
            )


class Size(click.ParamType):
    """Pixels: 256, or height and width as 224,320."""

    name = "pixels"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | tuple[int, int]:
        """Parse."""
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        try:
            sides = [int(part) for part in value.replace("x", ",").split(",")]
        except ValueError:
            sides = []
        if len(sides) == 1:
            return sides[0]
        if len(sides) == 2:
            return sides[0], sides[1]
        self.fail(f"expected pixels such as 224, or HEIGHT,WIDTH such as 224,320, got '{value}'", param, ctx)


NUMBERS = Numbers()
SIZE = Size()
