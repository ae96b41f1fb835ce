"""How far a stage of the work has come."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total)."""


def silent(stage: str, done: int, total: int) -> None:
    """Show no progress."""
