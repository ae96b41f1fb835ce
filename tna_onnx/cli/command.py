"""The click classes of the group and its commands, which turn errors into messages and exit codes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import click

from tna_onnx.cli.channels import complain, drop
from tna_onnx.cli.device import join_device
from tna_onnx.cli.help import help_all_option, write_options
from tna_onnx.cli.shortage import shortage
from tna_onnx.cli.signals import Stopped
from tna_onnx.cli.types import numbers, size
from tna_onnx.cli.words import joined_lists, meant_command, meant_flag
from tna_onnx.cli.written import interruption
from tna_onnx.errors import INTERRUPTED, TnaError

__all__ = ["Command", "Group"]

_FEW = 10  # options that one screen holds


class Command(click.Command):
    """A command whose help may be cut off, and whose unexpected errors reach `main`."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, and the option that shows all of them where there are many."""
        params = super().get_params(ctx)
        if len(params) > _FEW:
            params = [*params[:-1], help_all_option(), *params[-1:]]
        return params

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options that most people need, or all."""
        if len(self.params) > _FEW:
            write_options(self, ctx, formatter)
        else:
            super().format_options(ctx, formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what is meant, and say what could be."""
        lists = [opt for param in self.params if param.callback in (numbers, size) for opt in param.opts]
        try:
            rest = super().parse_args(ctx, joined_lists(args, lists))
        except click.NoSuchOption as error:
            raise meant_flag(self, error, ctx.info_name or "") from error
        join_device(ctx.params)
        return rest

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse."""
        with _help_may_be_cut_off():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (EOFError, ImportError, MemoryError, OSError, RuntimeError) as error:
            missing = shortage(error)
            if missing is not None:
                raise missing from error
            if isinstance(error, (ImportError, RuntimeError)):
                raise
            # click would end with 1 and no traceback, as if the user had closed an input or a pipe.
            raise RuntimeError(f"unexpected {type(error).__name__}") from error


class Group(click.Group):
    """Turns this package's errors into messages with their exit codes."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse."""
        with _help_may_be_cut_off():
            return super().make_context(*args, **kwargs)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, and say what an unknown one may stand for."""
        if self.get_command(ctx, args[0]) is None:
            meant = meant_command(args[0], args[1:])
            if meant is not None:
                raise click.UsageError(f"No such command '{args[0]}'. Did you mean '{meant}'?", ctx)
        return super().resolve_command(ctx, args)

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
