"""How far a run is, on standard error: bars on a terminal, else a line a stage and one every half minute."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from tna_onnx.files import printable
from tna_onnx.progress import Progress as Callback
from tna_onnx.progress import silent

_EVERY = 30.0  # seconds: a log tells that the run is alive, and stays short
_SHORT = 5.0  # seconds: a run that ends within them needs no lines


@contextlib.contextmanager
def progress_shown(visible: bool = True) -> Iterator[Callback]:
    """Give a progress callback for the block."""
    console = Console(stderr=True)  # standard output is for results
    if not visible:
        yield silent
    # without widgets, a notebook would show a warning of rich for each state of a bar
    elif console.is_terminal or (console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None):
        yield from _bars(console)
    else:
        yield Lines()


def _bars(console: Console) -> Iterator[Callback]:
    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        # two times side by side say nothing by themselves
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def advance(stage: str, done: int, total: int) -> None:
            # Stages are not known in advance: each gets its bar when it first reports.
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield advance


class Lines:
    """A progress callback that prints the end of each stage, and every half minute where the run is.

    A run prints nothing in its first seconds: a short one needs no lines.
    """

    def __init__(self, every: float = _EVERY, short: float = _SHORT) -> None:
        self._every = every
        self._start = self._began = time.monotonic()
        self._quiet_until = self._next = self._start + short
        self._stage = ""
        self._ended = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Print a line if it is time."""
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._began = stage, now
        text = f"{stage}: {done:,} of {total:,}, {now - self._start:.0f} s"
        if done >= total and stage != self._ended and now >= self._quiet_until:
            self._ended = stage
            self._print(text, now)
        elif done < total and now >= self._next:
            if done:  # the first report of a stage says nothing of how fast it is
                text += f", about {(now - self._began) / done * (total - done):.0f} s left"
            self._print(f"so far, {text}", now)

    def _print(self, line: str, now: float) -> None:
        self._next = now + self._every
        # a log that cannot be written does not end the work
        with contextlib.suppress(OSError, ValueError):
            print(printable(line), file=sys.stderr, flush=True)  # noqa: T201
