"""Which files a command has written so far, for the message on an interruption."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

__all__ = ["interruption", "watch"]

_META = "tna_onnx.written"


def watch(paths: Iterable[str | Path | None], cache: str | None = None) -> None:
    """Remember how files look before the work of the current command.

    Args:
        paths: files that the command may write; None is none.
        cache: folder of its feature stores.
    """
    files = [path for path in paths if path is not None]
    click.get_current_context().meta[_META] = {str(path): _state(path) for path in files}, cache


def interruption(ctx: click.Context) -> str:
    """Say that a command was interrupted, what it has written and what it keeps."""
    files, cache = ctx.meta.get(_META, ({}, None))
    written = [path for path, state in files.items() if _state(path) != state]
    are = f"{', '.join(written)} {'is' if len(written) == 1 else 'are'} written" if written else "no file was written"
    kept = " The features computed so far are kept in the cache." if cache else ""
    return f"Interrupted; {are}.{kept}"


def _state(path: str | Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is written or replaced; None if there is none."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
