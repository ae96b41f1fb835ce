"""Words for several predictions a sample; light, because the command line reads them before it loads NumPy."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

__all__ = ["IGNORED", "POSITION_WORDS", "Position"]

IGNORED = -100
"""What stands where there is no label, in transformers and torch."""

Position: TypeAlias = Literal["all", "last"]

POSITION_WORDS: tuple[str, ...] = get_args(Position)
