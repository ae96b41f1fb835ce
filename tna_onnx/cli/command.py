"""The click classes of the group and its commands, which turn errors into messages and exit codes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import click

from tna_onnx.cli.channels import complain, drop
from tna_onnx.cli.shortage import shortage
from tna_onnx.cli.signals import Stopped
from tna_onnx.cli.written import interruption
from tna_onnx.errors import INTERRUPTED, TnaError

__all__ = ["Command", "Group"]


class Command(click.Command):
    """A command whose help may be cut off, and whose unexpected errors reach `main`."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse."""
        with _help_may_be_cut_off():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (EOFError, MemoryError, OSError, RuntimeError) as error:
            missing = shortage(error)
            if missing is not None:
                raise missing from error
            if isinstance(error, RuntimeError):
                raise
            # click would end with 1 and no traceback, as if the user had closed an input or a pipe.
            raise RuntimeError(f"unexpected {type(error).__name__}") from error


class Group(click.Group):
    """Turns this package's errors into messages with their exit codes."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse."""
        with _help_may_be_cut_off():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except Stopped as stop:
            complain(interruption(ctx))
            ctx.exit(stop.exit_code)
        # only documented errors end here; any other is a bug, which `main` reports
        except TnaError as error:
            complain(f"Error: {error}")
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            complain(interruption(ctx))
            ctx.exit(INTERRUPTED)


@contextlib.contextmanager
def _help_may_be_cut_off() -> Iterator[None]:
    """End normally if the reader of `--help` goes away; click prints the help while it parses."""
    try:
        yield
    except BrokenPipeError:
        drop(sys.stdout)
        raise click.exceptions.Exit(0) from None
