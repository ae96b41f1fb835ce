"""Lines of text that several results share, and how they are printed, whatever the terminal can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from tna_onnx.files import printable

if TYPE_CHECKING:
    from tna_onnx.numerics.metrics import Metrics
    from tna_onnx.results.report import Verification


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


def size_text(metrics: Metrics) -> str:
    """Write what metrics are made of, samples, groups, bins: `N = 200 in 40 groups (design effect 3.1), 15 bins`."""
    groups = "" if metrics.groups is None else f" in {count_text(metrics.groups, 'group')}"
    if metrics.design_effect is not None:
        groups += f" (design effect {metrics.design_effect:.2g})"
    if metrics.effective_n is not None:
        groups += f", by weight worth {metrics.effective_n:,.0f}"
    return f"N = {metrics.n:,}{groups}, {metrics.bins} bins"


def count_text(number: int, noun: str) -> str:
    """Write a number with its noun, in the plural where it has one."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def show(console: Console, content: RenderableType) -> None:
    """Print without wrapping sentences at the width of a pipe.

    What the encoding cannot hold is escaped, and so is what would act on a terminal.
    """
    # A name with letters that the terminal's encoding lacks must not end a run that has written its files.
    if hasattr(console.file, "reconfigure"):
        console.file.reconfigure(errors="backslashreplace")
    console.print(_Escaped(content), soft_wrap=not console.is_terminal, highlight=False, crop=False)


@dataclass(frozen=True)
class _Escaped:
    """Anything, with the characters escaped that would act on a terminal; styles are applied behind this."""

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.content, options):
            yield segment._replace(text=printable(segment.text, lines=True))
