"""Standard output and standard error, either of which may be closed or full."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

import click

from tna_onnx.errors import TnaError

__all__ = ["ResultError", "complain", "drop", "standard_output"]


class ResultError(TnaError):
    """The work is done, but a result of it could not be written; the model is."""

    exit_code = 6


@contextlib.contextmanager
def standard_output() -> Iterator[None]:
    """Print in this block. A reader that left early, such as `head`, is no error.

    Raises:
        ResultError: standard output cannot be written, for example because the disk is full.
    """
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        drop(sys.stdout)
    except OSError as error:
        drop(sys.stdout)
        raise ResultError(f"standard output: cannot be written: {error.strerror}") from error


def complain(message: str) -> None:
    """Print a message on standard error; where that is closed, the exit code has to say it."""
    try:
        click.echo(message, err=True)
    except OSError:
        drop(sys.stderr)


def drop(stream: TextIO) -> None:
    """Send what is left in a stream nowhere, or Python would fail to write it once more, and exit with 120."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
