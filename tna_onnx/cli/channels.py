"""Standard output and standard error, either of which may be closed or full."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

import click

from tna_onnx.errors import ResultError
from tna_onnx.printable import printable

__all__ = ["complain", "drop", "standard_output"]


@contextlib.contextmanager
def standard_output() -> Iterator[None]:
    """Print in this block. It is no error if the reader, such as `head`, has left early.

    Raises:
        ResultError: standard output cannot be written, for example because the disk is full.
    """
    try:
        yield
        # a full disk shows here and not at exit, where no message could follow
        if sys.stdout is not None:  # None where a program runs without a console
            sys.stdout.flush()
    except BrokenPipeError:
        drop(sys.stdout)
    except OSError as error:
        drop(sys.stdout)
        raise ResultError(f"standard output: cannot be written: {error.strerror}") from error


def complain(message: str) -> None:
    """Print a message on standard error, escaped. Where that is closed, only the exit code is left to tell."""
    try:
        click.echo(printable(message, lines=True), err=True)
    except OSError:
        drop(sys.stderr)


def drop(stream: TextIO) -> None:
    """Discard what a stream still holds.

    Without this Python would try to write it once more at exit, fail, and end with exit code 120.
    """
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
