"""How far a run is, on standard error: bars on a terminal, else a line a stage and one every half minute."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
import time
from collections.abc import Iterator
from types import TracebackType

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
    elif console.is_terminal or (console.is_jupyter and _has_widgets()):
        yield from _bars(console)
    else:
        with Lines() as lines:
            yield lines


def _has_widgets() -> bool:
    """Tell whether a notebook can show bars; without widgets rich writes a warning for each of their states."""
    return importlib.util.find_spec("ipywidgets") is not None


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

    A short run prints nothing: lines wait until the run is no longer short.
    """

    def __init__(self, every: float = _EVERY, short: float = _SHORT) -> None:
        self._every = every
        self._short = short
        self._start = time.monotonic()
        self._latest = "starting"
        self._stage = ""
        self._began = self._start
        self._left = ""
        self._waiting: list[str] | None = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._clock = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Lines:
        self._clock.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._clock.join()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Take note of where a stage is."""
        ended = done >= total and self._latest != f"{stage}: {done:,} of {total:,}"
        self._latest = f"{stage}: {done:,} of {total:,}"
        now = time.monotonic()
        if stage != self._stage:
            self._stage = stage
            self._began = now
        # the first report of a stage says nothing of how fast it is
        self._left = ""
        if 0 < done < total and now > self._began:
            self._left = f", about {(now - self._began) / done * (total - done):.0f} s left"
        if ended:
            self._say()

    def _tick(self) -> None:
        # in a thread of its own: stages that report nothing take long too
        if self._ended.wait(self._short):
            return
        with self._lock:
            waiting = self._waiting or []
            self._waiting = None
            for line in waiting:
                _print(line)
        if self._left:
            self._say("so far, ")
        while not self._ended.wait(self._every):
            self._say("so far, ")

    def _say(self, before: str = "") -> None:
        seconds = time.monotonic() - self._start
        line = f"{before}{self._latest}, {seconds:.0f} s{self._left if before else ''}"
        with self._lock:
            if self._waiting is None:
                _print(line)
            else:
                self._waiting.append(line)


def _print(line: str) -> None:
    # a log that cannot be written does not end the work
    with contextlib.suppress(OSError, ValueError):
        print(printable(line), file=sys.stderr, flush=True)  # noqa: T201
