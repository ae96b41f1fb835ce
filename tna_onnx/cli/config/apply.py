"""Settings become the defaults of a command's options, in the order of the package's docstring."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from tna_onnx.cli.channels import complain
from tna_onnx.cli.config.environment import read_environment, unknown_variables, variable_value
from tna_onnx.cli.config.files import read_file, read_pyproject
from tna_onnx.cli.config.options import Setting, flag_of
from tna_onnx.cli.log import show_log

__all__ = ["config_options", "setting_flags", "setting_sources"]

F = TypeVar("F", bound=Callable[..., Any])

_SETTINGS = "tna_onnx.settings"
_UNKNOWN = "tna_onnx.unknown"

# Options that say the same thing. One that is set by a stronger source removes the others, which would contradict it.
_EXCLUSIVE = ({"preset", "preprocessing"},)


def config_options(command: F) -> F:
    """Add `--config` and `--verbose`, which make the options of a command read files and the environment."""

    @functools.wraps(command)  # click takes the help from the docstring
    def run(*args: Any, verbose: int, **arguments: Any) -> Any:
        ctx = click.get_current_context()
        for name in _outranked(ctx):
            arguments[name] = None  # the weaker one of two options that exclude each other
        quiet = arguments.get("quiet", False)
        if not quiet:
            for variable in ctx.meta.get(_UNKNOWN, ()):
                complain(f"{variable}: unknown setting, ignored")
        if verbose:
            for name, setting in _applied(ctx).items():
                complain(f"setting  {flag_of(ctx.command, name)} = {setting.value}  ({setting.source})")
        with show_log(verbose) if verbose and not quiet else contextlib.nullcontext():
            return command(*args, **arguments)

    for option in (
        click.option(
            "-v",
            "--verbose",
            count=True,
            help="Show where each setting comes from, and log each stage; -vv also logs every candidate and "
            "method. --quiet turns the log off.",
        ),
        click.option(
            "--config",
            type=click.Path(),
            is_eager=True,  # before the options whose defaults it sets
            expose_value=False,
            callback=_load,
            help="TOML file with settings, named like the flags. Flags and TNA_ONNX_* variables take precedence.",
        ),
    ):
        run = option(run)
    return run  # type: ignore[return-value]


def setting_sources() -> dict[str, str]:
    """Return what files and the environment set for the current command: flag -> value and source."""
    ctx = click.get_current_context()
    applied = _applied(ctx)
    sources = {}
    for param in ctx.command.params:
        setting = applied.get(str(param.name))
        if setting is not None:
            value = ",".join(setting.value) if isinstance(setting.value, list) else setting.value
            sources[flag_of(ctx.command, str(param.name))] = f"{value} ({setting.source})"
    return sources


def setting_flags() -> list[str]:
    """Return what files and the environment set for the current command, as words of a command line."""
    ctx = click.get_current_context()
    applied = _applied(ctx)
    words: list[str] = []
    for param in ctx.command.params:
        setting = applied.get(str(param.name))
        if setting is None:
            continue
        flag = f"--{flag_of(ctx.command, str(param.name))}"
        if not getattr(param, "is_flag", False):
            words += [flag, ",".join(setting.value) if isinstance(setting.value, list) else str(setting.value)]
        elif click.BOOL.convert(setting.value, param, ctx):
            words.append(flag)
        else:
            # a flag that is off and has no opposite is off anyway
            words += param.secondary_opts[-1:]
    return words


def _load(ctx: click.Context, _param: click.Parameter, path: str | None) -> None:
    """Make the settings the defaults of a command's options.

    Raises:
        UsageError: a file that cannot be read, an unknown key, or a value that its option does not take.
    """
    path = path or variable_value(ctx, "config")
    # rules 2 to 4 of the package's docstring, in reverse: later layers replace earlier ones
    layers = [read_pyproject(ctx)]  # the weakest first
    if path:
        layers.append(read_file(ctx, Path(path)))
    # Shown only once the command runs, since --quiet may itself come from a setting.
    ctx.meta[_UNKNOWN] = unknown_variables(ctx)
    layers.append(read_environment(ctx))
    settings: dict[str, Setting] = {}
    for layer in layers:
        for names in _EXCLUSIVE:
            if names & layer.keys():
                settings = {name: setting for name, setting in settings.items() if name not in names}
        settings |= layer
    ctx.meta[_SETTINGS] = settings
    # click converts and checks these as if they had been typed.
    ctx.default_map = {name: setting.value for name, setting in settings.items()}


def _applied(ctx: click.Context) -> dict[str, Setting]:
    """Return the settings that no flag has replaced."""
    settings: dict[str, Setting] = ctx.meta.get(_SETTINGS, {})
    outranked = _outranked(ctx)
    return {name: s for name, s in settings.items() if _is_from_setting(ctx, name) and name not in outranked}


def _outranked(ctx: click.Context) -> list[str]:
    """Return the settings that another option of their exclusive group replaces, because it was given as a flag."""
    flags = {name for name in ctx.params if ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE}
    settings = ctx.meta.get(_SETTINGS, {})
    replaced = [names for names in _EXCLUSIVE if names & flags]
    return [name for names in replaced for name in names if name in settings and _is_from_setting(ctx, name)]


def _is_from_setting(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) == ParameterSource.DEFAULT_MAP
