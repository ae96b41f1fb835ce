"""Settings from a file and from the environment: what the flags would say, if they were given.

Order, the first wins: flag, environment, `--config` file, `[tool.tna-onnx]` of a pyproject.toml, default. In a file the
keys are the names of the flags, with dashes or underscores: at the top for every command that has the flag, in a table
such as `[calibrate]` for one command. In the environment `TNA_ONNX_MAP` is for every command, `TNA_ONNX_CALIBRATE_MAP`
for one. What is said for one command wins over what is said for all. Paths in a file are relative to that file.

The pyproject.toml is the nearest one with such a table, in the working folder or above it, up to the root of the
repository (the folder with `.git`) or the home folder, whichever comes first; in the working folder only, if neither
lies above it.
"""

from __future__ import annotations

import difflib
import functools
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from tna_onnx.cli.channels import complain
from tna_onnx.errors import UsageError

__all__ = ["config_options"]

F = TypeVar("F", bound=Callable[..., Any])

_PREFIX = "TNA_ONNX_"
_TABLE = "tna-onnx"
# In the text of every pyproject.toml that concerns us: the table, and the table with a wrong name.
_OURS = (b"tna-onnx", b"tool.tna_onnx")
_META = "tna_onnx.settings"
_UNKNOWN = "tna_onnx.unknown"
# Likeness, from 0 to 1, from which on an unknown variable is a misspelt one.
_CLOSE = 0.85
# Options that say the same thing: one that is set nearer to the command line takes the others away.
_EXCLUSIVE = ({"preset", "preprocessing"},)


@dataclass(frozen=True)
class _Setting:
    """A value for an option as the command line would take it, and where it comes from."""

    value: Any
    source: str


def config_options(command: F) -> F:
    """Add `--config` and `--verbose`, which make the options of a command look into files and the environment."""

    @functools.wraps(command)
    def run(*args: Any, verbose: bool, **given: Any) -> Any:
        ctx = click.get_current_context()
        settings = {name: s for name, s in ctx.meta.get(_META, {}).items() if _is_used(ctx, name)}
        for name in _outranked(ctx, settings):
            given[name] = None
            del settings[name]
        if not given.get("quiet"):
            for variable in ctx.meta.get(_UNKNOWN, ()):
                complain(f"{variable}: is no setting; ignored")
        if verbose:
            for name, setting in settings.items():
                complain(f"setting  {_flag_names(ctx.command)[name]} = {setting.value}  ({setting.source})")
        return command(*args, **given)

    for option in (
        click.option("-v", "--verbose", is_flag=True, help="Say which settings come from a file or the environment."),
        click.option(
            "--config",
            type=click.Path(),
            is_eager=True,
            expose_value=False,
            callback=_load,
            help="TOML file with settings, named like the flags; flags and TNA_ONNX_* variables win.",
        ),
    ):
        run = option(run)
    return run  # type: ignore[return-value]


def _load(ctx: click.Context, _param: click.Parameter, path: str | None) -> None:
    """Make the settings the defaults of a command's options.

    Raises:
        UsageError: a file that cannot be read, an unknown key, or a value that its option does not take.
    """
    settings: dict[str, _Setting] = {}
    path = path or _from_environment(ctx, "config")
    layers = [_pyproject(ctx), _file(ctx, Path(path)) if path else {}, _environment(ctx)]
    for layer in layers:
        for group in _EXCLUSIVE:
            if group & layer.keys():
                settings = {name: setting for name, setting in settings.items() if name not in group}
        settings |= layer
    ctx.meta[_META] = settings
    ctx.default_map = {name: setting.value for name, setting in settings.items()}


def _is_used(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) == ParameterSource.DEFAULT_MAP


def _outranked(ctx: click.Context, settings: Iterable[str]) -> list[str]:
    """Options from files or the environment that a flag takes the place of."""
    given = {name for name in ctx.params if ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE}
    return [name for name in settings for group in _EXCLUSIVE if name in group and group & given]


# Files


def _pyproject(ctx: click.Context) -> dict[str, _Setting]:
    for folder in _folders():
        path = folder / "pyproject.toml"
        try:
            text = path.read_bytes()
        except OSError:
            continue
        if not any(word in text for word in _OURS):  # so that TOML which is not for us need not even be valid
            continue
        tools = _parse(path, text).get("tool", {})
        if _TABLE.replace("-", "_") in tools:
            raise UsageError(f"{path}: [tool.tna_onnx] is not read; write [tool.{_TABLE}]")
        table = tools.get(_TABLE)
        if table is not None:
            return _settings(ctx, path, table, f"tool.{_TABLE}")
    return {}


def _folders() -> list[Path]:
    """Return the folders in which a pyproject.toml counts, nearest first."""
    try:
        start = Path.cwd()
    except OSError:  # deleted meanwhile
        return []
    home, folders = Path("~").expanduser().resolve() if _has_home() else None, [start, *start.parents]
    for k, folder in enumerate(folders):
        if folder == home or os.access(folder / ".git", os.F_OK):
            return folders[: k + 1]
    return [start]


def _has_home() -> bool:
    """Whether the user has a home folder; in a container there may be none."""
    try:
        Path.home()
    except RuntimeError:
        return False
    return True


def _file(ctx: click.Context, path: Path) -> dict[str, _Setting]:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}; expected a TOML file with settings") from error
    return _settings(ctx, path, _parse(path, text), "")


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415 - most commands run without a file
    else:
        import tomli as tomllib  # noqa: PLC0415
    try:
        return tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: is not TOML: {error}") from error


def _settings(ctx: click.Context, path: Path, table: Any, place: str) -> dict[str, _Setting]:
    """Check the keys of a whole file, and take the values that are for this command.

    Raises:
        UsageError: an unknown table or key, or a value that its option does not take.
    """
    commands = _commands(ctx)
    if not isinstance(table, dict):
        raise UsageError(f"{path}: {place} must be a table")
    general: dict[str, Any] = {}
    own: dict[str, tuple[Any, str]] = {}
    for key, value in table.items():
        if not isinstance(value, dict):
            general[key] = value
        elif key in commands:
            inside = ".".join(part for part in (place, key) if part)
            found = _checked_keys(value, set(_options(commands[key])), path, f" in [{inside}]")
            if key == ctx.info_name:
                own = {flag: (v, f"{path} [{inside}]") for flag, v in found.items()}
        else:
            raise UsageError(f"{path}: unknown table [{key}]{_nearest(key, commands, '[{}]')}")
    everywhere = {name for command in commands.values() for name in _options(command)}
    general = _checked_keys(general, everywhere, path, f" in [{place}]" if place else "")
    settings = {}
    for flag, option in _options(ctx.command).items():
        if flag in own or flag in general:
            value, source = own.get(flag) or (general[flag], str(path))
            text = _from_toml(option, value, f"{source}: {flag}", path.parent)
            settings[_name(option)] = _Setting(_checked(ctx, option, text, f"{source}: {flag}"), source)
    return settings


def _checked_keys(table: dict[str, Any], known: set[str], path: Path, where: str) -> dict[str, Any]:
    """Return a table with the flags' own names as keys.

    Raises:
        UsageError: a key that is no flag, or one that is there in two spellings.
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        flag = key.replace("_", "-")
        if flag not in known:
            raise UsageError(f"{path}: unknown key '{key}'{where}{_nearest(flag, known, chr(39) + '{}' + chr(39))}")
        if flag in found:
            raise UsageError(f"{path}: '{flag}'{where} is there twice, with a dash and with an underscore")
        found[flag] = value
    return found


def _nearest(word: str, known: Iterable[str], form: str) -> str:
    close = difflib.get_close_matches(word, sorted(known), 1, 0.4)
    return f"; did you mean {form.format(close[0])}?" if close else ""


def _from_toml(option: click.Option, value: Any, where: str, folder: Path) -> Any:
    """Return what the command line would hold in place of a TOML value.

    Raises:
        UsageError: a value of another type than the option's.
    """
    if option.multiple and isinstance(value, list):
        return [_from_toml_item(option, item, where, folder) for item in value]
    item = _from_toml_item(option, value, where, folder)
    return [item] if option.multiple else item


def _from_toml_item(option: click.Option, value: Any, where: str, folder: Path) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if option.is_flag:
        expected, fits = "true or false", isinstance(value, bool)
    elif isinstance(option.type, click.types.IntParamType):
        expected, fits = "a whole number", number and isinstance(value, int)
    elif isinstance(option.type, click.types.FloatParamType):
        expected, fits = "a number", number
    elif option.callback is not None:  # which parses texts, such as numbers with commas between them
        expected, fits = "a string, a number or a list of numbers", isinstance(value, (str, list)) or number
    else:
        expected, fits = "a string", isinstance(value, str)
    if not fits:
        raise UsageError(f"{where} must be {expected}, got {value!r}")
    if isinstance(option.type, click.Path) and "://" not in value:
        return str(folder / Path(value).expanduser())
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value if option.is_flag else str(value)


# Environment


def _environment(ctx: click.Context) -> dict[str, _Setting]:
    settings = {}
    ctx.meta[_UNKNOWN] = _unknown_variables(ctx)
    for flag, option in _options(ctx.command).items():
        for variable in _variables(ctx.info_name or "", flag):
            if value := os.environ.get(variable):
                text = value.split(",") if option.multiple else value
                settings[_name(option)] = _Setting(_checked(ctx, option, text, variable), variable)
                break
    return settings


def _from_environment(ctx: click.Context, flag: str) -> str | None:
    return next((value for name in _variables(ctx.info_name or "", flag) if (value := os.environ.get(name))), None)


def _variables(command: str, flag: str) -> tuple[str, str]:
    name = flag.upper().replace("-", "_")
    return f"{_PREFIX}{command.upper()}_{name}", f"{_PREFIX}{name}"


def _unknown_variables(ctx: click.Context) -> list[str]:
    """Return variables that look like settings and are none; refuse a misspelt one: its gate would be missing.

    Raises:
        UsageError: a variable that is almost the name of a setting.
    """
    flags = [(name, flag) for name, command in _commands(ctx).items() for flag in ("config", *_options(command))]
    known = {variable for pair in flags for variable in _variables(*pair)}
    unknown = []
    for variable in sorted(os.environ):
        if variable.startswith(_PREFIX) and variable not in known:
            name, names = variable.removeprefix(_PREFIX), [other.removeprefix(_PREFIX) for other in sorted(known)]
            positive = name.replace("NO_", "", 1)  # NO_FOLD=1 is FOLD=0
            if close := [positive] if positive in names else difflib.get_close_matches(name, names, 1, _CLOSE):
                raise UsageError(f"{variable}: is no setting; did you mean {_PREFIX}{close[0]}?")
            unknown.append(variable)
    return unknown


# Options


def _commands(ctx: click.Context) -> dict[str, click.Command]:
    """Return the commands that read settings, by name."""
    group = ctx.find_root().command
    commands = group.commands if isinstance(group, click.Group) else {}
    return {name: c for name, c in commands.items() if any(p.name == "config" for p in c.params)}


def _options(command: click.Command) -> dict[str, click.Option]:
    """Return the options that settings can name, by their long flags without the dashes."""
    options = (p for p in command.params if isinstance(p, click.Option) and p.name not in ("config", "help"))
    return {max(option.opts, key=len).lstrip("-"): option for option in options}


def _flag_names(command: click.Command) -> dict[str, str]:
    return {_name(option): flag for flag, option in _options(command).items()}


def _name(option: click.Option) -> str:
    return str(option.name)


def _checked(ctx: click.Context, option: click.Option, value: Any, where: str) -> Any:
    """Return a value that the option takes.

    Raises:
        UsageError: it does not take it.
    """
    try:
        option.process_value(ctx, value)
    except click.BadParameter as error:
        raise UsageError(f"{where}: {error.message}") from error
    return value
