"""Which files a command has written so far, for the message on an interruption."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

__all__ = ["interruption", "watch"]

_META = "tna_onnx.written"


def watch(paths: Iterable[str | Path | None], cache: str | None = None) -> None:
    """Remember the state of files before the work of the current command.

    Args:
        paths: files that the command may write; None stands for no file.
        cache: folder of its feature stores.
    """
    states = {str(path): _state(path) for path in paths if path is not None}
    click.get_current_context().meta[_META] = (states, cache)


def interruption(ctx: click.Context) -> str:
    """Say that a command was interrupted, what it has written and what it keeps."""
    states, cache = ctx.meta.get(_META, ({}, None))
    # A file that looks as it did before is an older one, so only changed files count as written.
    written = [path for path, before in states.items() if _state(path) != before]
    message = f"Interrupted; {_listed(written)}."
    if cache:
        message += " The features computed so far are kept in the cache."
    return message


def _listed(written: list[str]) -> str:
    if not written:
        return "no file was written"
    verb = "is" if len(written) == 1 else "are"
    return f"{', '.join(written)} {verb} written"


def _state(path: str | Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is written or replaced; None if there is no file."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    # the inode too: a file that is renamed into place may keep size and, on coarse clocks, time
    return status.st_ino, status.st_mtime_ns, status.st_size
