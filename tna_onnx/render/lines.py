"""Lines of text, and how they are printed, whatever the terminal can show. Light to import: every command prints."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from tna_onnx.files import printable


def lines_text(lines: Sequence[str]) -> Text:
    """Join lines; a break inside one of them came out of a file, and must not look like one of ours."""
    return Text("\n".join(map(printable, lines)))


def note_lines(notes: Sequence[str]) -> list[str]:
    """Write notes, a line each."""
    return [f"note     {note}" for note in notes]


def count_text(number: int, noun: str) -> str:
    """Write a number with its noun, in the plural where it has one."""
    if number == 1:
        return f"{number:,} {noun}"
    return f"{number:,} {noun}s"


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
