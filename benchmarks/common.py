"""What the benchmarks share: command line, clock, memory, Markdown.

The standard library only: scripts that measure start-up and memory load it too.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path

__all__ = ["arguments", "markdown", "memory_gb", "peak_memory_gb", "timed", "versions"]


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is the docstring of the script, lines as they are."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def timed(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def memory_gb(names: Iterable[str]) -> list[float]:
    """Return fields of this process's memory by their names in Linux: `RssAnon`, `RssFile`; 1 GB is 2^30 bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return [int(fields[name].split()[0]) / 2**20 for name in names]


def peak_memory_gb(run: Callable[[], object]) -> tuple[float, float]:
    """Run, and return the largest anonymous memory and the largest mapped part of files, looked at every 5 ms."""
    names = ("RssAnon", "RssFile")
    peaks = [0.0, 0.0]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.005):
            peaks[:] = map(max, peaks, memory_gb(names))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run()
    finally:
        ended.set()
        watcher.join()
    return peaks[0], peaks[1]


def versions(*names: str) -> str:
    """Write the versions of installed distributions."""
    return ", ".join(f"{name} {version(name)}" for name in names)


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]], words: int = 1) -> str:
    """Write a table whose first columns hold words and whose others hold numbers."""
    titles = list(head)
    rule = ["---"] * words + ["---:"] * (len(titles) - words)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, rule, *rows))
