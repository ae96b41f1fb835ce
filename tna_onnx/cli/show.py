"""Progress on stderr, results on stdout and in files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from tna_onnx.errors import UsageError
from tna_onnx.extraction import Progress as Callback
from tna_onnx.report.as_json import to_json
from tna_onnx.report.text import show

__all__ = ["finish", "progress_bars"]


@contextlib.contextmanager
def progress_bars(quiet: bool) -> Iterator[Callback]:
    """Give a progress callback; bars show on a terminal only."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def advance(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield advance


def finish(result: Any, text: RenderableType, json_file: str | None, quiet: bool) -> None:
    """Print a result, and write its JSON.

    Raises:
        UsageError: the JSON file cannot be written.
    """
    if not quiet:
        show(Console(), text)
    if json_file is not None:
        try:
            Path(json_file).write_text(to_json(result), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{json_file}: cannot be written: {error.strerror}") from error
