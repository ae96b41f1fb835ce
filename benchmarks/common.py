"""What the benchmarks share: command line, clock, versions, Markdown.

The standard library only: scripts that measure start-up load it too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is the docstring of the script, lines as they are."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def timed(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def versions(*names: str) -> str:
    """Write the versions of installed distributions."""
    return ", ".join(f"{name} {version(name)}" for name in names)


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]], words: int = 1) -> str:
    """Write a table whose first columns hold words and whose others hold numbers."""
    titles = list(head)
    rule = ["---"] * words + ["---:"] * (len(titles) - words)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, rule, *rows))
