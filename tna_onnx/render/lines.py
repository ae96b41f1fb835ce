"""Lines of text that several results share."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from tna_onnx.printable import printable

__all__ = ["count_text", "lines_text", "note_lines"]


def lines_text(lines: Sequence[str]) -> Text:
    """Join lines; a break inside one of them came out of a file, and must not look like one of ours."""
    return Text("\n".join(map(printable, lines)))


def note_lines(notes: Sequence[str]) -> list[str]:
    """Write notes, a line each."""
    return [f"note     {note}" for note in notes]


def count_text(number: int, noun: str) -> str:
    """Write a number with its noun, in the plural where it has one."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
