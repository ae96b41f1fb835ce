"""Print what rich renders, whatever the terminal can show."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

from tna_onnx.printable import printable

__all__ = ["show"]


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
