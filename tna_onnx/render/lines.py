"""Lines of text that several results share."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from tna_onnx.printable import printable
from tna_onnx.results.verification import Verification

__all__ = ["count_text", "lines_text", "note_lines", "tied"]


def lines_text(lines: Sequence[str]) -> Text:
    """Join lines; a break inside one of them came out of a file, and must not look like one of ours."""
    return Text("\n".join(map(printable, lines)))


def note_lines(notes: Sequence[str]) -> list[str]:
    """Write notes, a line each."""
    return [f"note     {note}" for note in notes]


def tied(checked: Verification) -> str:
    """Say how many samples the file gives another first class than the numerics, within the bound."""
    if not checked.other_class:
        return ""
    return f"; {count_text(checked.other_class, 'sample')} with another first class, tied to within the bound,"


def count_text(number: int, noun: str) -> str:
    """Write a number with its noun, in the plural where it has one."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
