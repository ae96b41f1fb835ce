"""What settings can name: the options of the commands, and the values that these options take."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import click

from tna_onnx.errors import UsageError

__all__ = ["Setting", "check_value", "closest", "configurable_commands", "flag_of", "options_by_flag"]


@dataclass(frozen=True)
class Setting:
    """A value for an option as the command line would take it, and where it comes from.

    Attributes:
        value: a text, a truth value for a switch, or a list of texts for an option that may be repeated.
        source: file and table, or variable.
    """

    value: Any
    source: str


def configurable_commands(ctx: click.Context) -> dict[str, click.Command]:
    """Return the commands that read settings, by name."""
    group = ctx.find_root().command
    if not isinstance(group, click.Group):
        return {}
    return {
        name: command
        for name, command in group.commands.items()
        if any(param.name == "config" for param in command.params)
    }


def options_by_flag(command: click.Command) -> dict[str, click.Option]:
    """Return the options that settings can name, by their long flags without the dashes."""
    options = [param for param in command.params if isinstance(param, click.Option)]
    return {_long_flag(option): option for option in options if option.name not in ("config", "help")}


def flag_of(command: click.Command, name: str) -> str:
    """Return the long flag, without the dashes, of the parameter `name`."""
    return next(_long_flag(param) for param in command.params if param.name == name)


def check_value(ctx: click.Context, option: click.Option, value: Any, where: str) -> Any:
    """Return a value if the option takes it.

    Raises:
        UsageError: it does not take it.
    """
    try:
        # click's own conversion, so that a setting is checked like a flag; its result is not kept
        option.process_value(ctx, value)
    except click.BadParameter as error:
        raise UsageError(f"{where}: {error.message}") from error
    except ValueError as error:  # a path with a null byte in it, which TOML can hold and a command line cannot
        raise UsageError(f"{where}: {error}, got {value!r}") from error
    return value


def closest(word: str, known: Iterable[str], likeness: float) -> str | None:
    """Return the known word that is most like `word`; None if none has the `likeness`, from 0 to 1."""
    # sorted: of equally close words it is the same one on every run
    matches = difflib.get_close_matches(word, sorted(known), 1, likeness)
    return matches[0] if matches else None


def _long_flag(param: click.Parameter) -> str:
    # `-o, --output`: the long one is the name of the setting; `--data, --calib`: the first one
    return next((opt for opt in param.opts if opt.startswith("--")), param.opts[0]).lstrip("-")
