"""Settings from a file and from the environment: each stands for a flag that was not given.

The first of these that has a setting wins:

    1. flag
    2. environment
    3. `--config` file
    4. `[tool.tna-onnx]` of a pyproject.toml
    5. default

In a file the keys are the names of the flags, with dashes or underscores. At the top of the file a key applies to every
command that has the flag, in a table such as `[calibrate]` to one command. In the environment `TNA_ONNX_MAP` applies to
every command, `TNA_ONNX_CALIBRATE_MAP` to one. A setting for one command wins over a setting for all. Paths in a file
are relative to that file.

The pyproject.toml is the nearest one with such a table, in the working folder or above it, up to the root of the
repository (the folder with `.git`) or the home folder, whichever comes first. If neither lies above the working folder,
only the working folder counts.

Settings become the defaults of a command's options, in the order of the package's docstring.

Settings from the environment: TNA_ONNX_MAP for every command, TNA_ONNX_CALIBRATE_MAP for one.

Settings from files: the one of `--config`, and the nearest pyproject.toml that has a table for tna-onnx.

What settings can name: the options of the commands, and the values that these options take.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import stat
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from tna_onnx.cli.terminal import complain, show_log
from tna_onnx.errors import UsageError

__all__ = [
    "Setting",
    "check_value",
    "closest",
    "config_options",
    "configurable_commands",
    "flag_of",
    "options_by_flag",
    "read_environment",
    "read_file",
    "read_pyproject",
    "setting_flags",
    "setting_sources",
    "unknown_variables",
    "variable_value",
]


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


_PREFIX = "TNA_ONNX_"

# Likeness, from 0 to 1, above which an unknown variable counts as a typing error. High, because other programs may use
# the prefix too: their variables must not stop the command.
_TYPO = 0.85


def read_environment(ctx: click.Context) -> dict[str, Setting]:
    """Return the settings of a command's options, by the options' names.

    Raises:
        UsageError: a value that its option does not take.
    """
    settings = {}
    for flag, option in options_by_flag(ctx.command).items():
        # a setting for one command wins over one for all: the first that is set ends the loop
        for variable in _variables(ctx.info_name or "", flag):
            value = os.environ.get(variable)
            if value:  # an empty variable is not set: some CI systems cannot remove one
                text = value.split(",") if option.multiple else value
                # Checked here and not by click, whose message would name the flag and not the variable.
                settings[str(option.name)] = Setting(check_value(ctx, option, text, variable), variable)
                break
    return settings


def variable_value(ctx: click.Context, flag: str) -> str | None:
    """Return what the environment says for one flag; None if it says nothing. An empty variable is not set."""
    values = [os.environ.get(variable) for variable in _variables(ctx.info_name or "", flag)]
    return next((value for value in values if value), None)


def unknown_variables(ctx: click.Context) -> list[str]:
    """Return the variables with the prefix that name no setting.

    Raises:
        UsageError: a variable that looks like a typing error. It is refused because the gate it was meant to set
            would be missing.
    """
    present = [name for name in sorted(os.environ) if name.startswith(_PREFIX)]
    # what could be meant are the options of all commands, and most runs need those of one
    if not present:
        return []
    known = {
        variable
        for name, command in configurable_commands(ctx).items()
        for flag in ("config", *options_by_flag(command))
        for variable in _variables(name, flag)
    }
    unknown = [name for name in present if name not in known]
    for variable in unknown:
        meant = _meant(variable, known)
        if meant is not None:
            raise UsageError(f"{variable}: unknown setting; did you mean {meant}?")
    return unknown


def _variables(command: str, flag: str) -> tuple[str, str]:
    """Return the variables for a flag, the stronger one first."""
    name = flag.upper().replace("-", "_")
    return f"{_PREFIX}{command.upper()}_{name}", f"{_PREFIX}{name}"


def _meant(variable: str, known: set[str]) -> str | None:
    # A switch is turned off by its value: NO_FOLD=1 is FOLD=0.
    positive = _PREFIX + variable.removeprefix(_PREFIX).replace("NO_", "", 1)
    if positive in known:
        return positive
    # Without the prefix, which would make every two names look alike.
    name = closest(variable.removeprefix(_PREFIX), [other.removeprefix(_PREFIX) for other in known], _TYPO)
    return None if name is None else _PREFIX + name


_TABLE = "tna-onnx"
# In the text of every pyproject.toml that concerns us: the table, and the table with a wrong name.
_MARKS = (b"tna-onnx", b"tool.tna_onnx")
_MAX_BYTES = 2**20
# Likeness, from 0 to 1, above which an error names the key that may have been meant. Low: it is only a hint.
_SIMILAR = 0.4


def read_file(ctx: click.Context, path: Path) -> dict[str, Setting]:
    """Return the settings for the current command, by its options' names.

    Raises:
        UsageError: a file that cannot be read, an unknown table or key, or a value that its option does not take.
    """
    try:
        text = _content(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}; expected a TOML file with settings") from error
    if text is None:
        raise UsageError(f"{path}: cannot be read: it is no file, or over 1 MB; expected a TOML file with settings")
    return _settings(ctx, path, _parse(path, text), "")


def read_pyproject(ctx: click.Context) -> dict[str, Setting]:
    """Return the settings of the nearest pyproject.toml with a `[tool.tna-onnx]`, if there is one.

    Raises:
        UsageError: as for `read_file`; or the table has an underscore in its name.
    """
    # the nearest table wins alone: tables further up are not merged in
    for folder in _searched_folders():
        path = folder / "pyproject.toml"
        try:
            text = _content(path)
        except OSError:
            continue
        # A pyproject.toml that does not concern us need not even be valid.
        if text is None or not any(mark in text for mark in _MARKS):
            continue
        tools = _parse(path, text).get("tool", {})
        if not isinstance(tools, dict):
            raise UsageError(f"{path}: tool must be a table")
        if _TABLE.replace("-", "_") in tools:
            raise UsageError(f"{path}: [tool.tna_onnx] is not read; write [tool.{_TABLE}]")
        table = tools.get(_TABLE)
        if table is not None:
            return _settings(ctx, path, table, f"tool.{_TABLE}")
    return {}


def _content(path: Path) -> bytes | None:
    """Return the bytes of a file; None if it is a pipe or a device, or far too large for settings.

    Raises:
        OSError: it cannot be read.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        return None
    with path.open("rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        return None
    return content


def _searched_folders() -> list[Path]:
    """Return the folders in which a pyproject.toml counts, nearest first."""
    try:
        start = Path.cwd()
    except OSError:  # the working folder was deleted
        return []
    home = _home()
    folders = [start, *start.parents]
    # A table above the repository or the home folder belongs to another project or another user.
    for k, folder in enumerate(folders):
        if folder == home or os.access(folder / ".git", os.F_OK):
            return folders[: k + 1]
    return [start]


def _home() -> Path | None:
    """Return the home folder; None where the user has none, as in some containers."""
    try:
        return Path.home().resolve()
    except RuntimeError:
        return None


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415 - most commands run without a file
    else:
        import tomli as tomllib  # noqa: PLC0415
    try:
        return tomllib.loads(text.decode())  # TOML is UTF-8 in every locale
    # ValueError: bytes that are no text, and numbers of more digits than Python converts
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{path}: is not valid TOML: {error}") from error


def _settings(ctx: click.Context, path: Path, table: Any, place: str) -> dict[str, Setting]:
    """Check the keys of a whole file, and take the values for the current command.

    Args:
        ctx: of the command.
        path: of the file.
        table: what the file says.
        place: name of the table in the file; empty for the whole file.
    """
    # TOML takes any value under a name: `tna-onnx = 3` too
    if not isinstance(table, dict):
        raise UsageError(f"{path}: {place} must be a table")
    commands = configurable_commands(ctx)
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    every_flag = {flag for command in commands.values() for flag in options_by_flag(command)}
    # Tables of other commands are checked too: a typing error there would go unnoticed until that command runs.
    own: dict[str, Any] = {}
    own_source = ""
    for name, inner in tables.items():
        if name not in commands:
            raise UsageError(f"{path}: unknown table [{name}]{_hint(name, commands, '[{}]')}")
        inner_place = f"{place}.{name}" if place else name
        checked = _checked_keys(inner, set(options_by_flag(commands[name])), path, f" in [{inner_place}]")
        if name == ctx.info_name:
            own = checked
            own_source = f"{path} [{inner_place}]"
    top = {key: value for key, value in table.items() if key not in tables}
    general = _checked_keys(top, every_flag, path, f" in [{place}]" if place else "")
    # What is said for one command wins over what is said for all.
    values = {flag: (value, str(path)) for flag, value in general.items()}
    values |= {flag: (value, own_source) for flag, value in own.items()}
    return _converted(ctx, values, path.parent)


def _checked_keys(table: dict[str, Any], known: set[str], path: Path, where: str) -> dict[str, Any]:
    """Return a table with the flags' own names as keys.

    Raises:
        UsageError: a key that names no flag, or one that is given in two spellings.
    """
    values: dict[str, Any] = {}
    for key, value in table.items():
        flag = key.replace("_", "-")  # Python and TOML writers prefer underscores
        if flag not in known:
            raise UsageError(f"{path}: unknown key '{key}'{where}{_hint(flag, known, repr('{}'))}")
        if flag in values:
            raise UsageError(f"{path}: '{flag}'{where} is given twice, with a dash and with an underscore")
        values[flag] = value
    return values


def _hint(word: str, known: Iterable[str], form: str) -> str:
    match = closest(word, known, _SIMILAR)
    if match is None:
        return ""
    return f"; did you mean {form.format(match)}?"


def _converted(ctx: click.Context, values: dict[str, tuple[Any, str]], folder: Path) -> dict[str, Setting]:
    """Return the settings for the options of a command, from flag -> TOML value and source."""
    settings = {}
    for flag, option in options_by_flag(ctx.command).items():
        if flag in values:
            value, source = values[flag]
            where = f"{source}: {flag}"
            text = _from_toml(option, value, where, folder)
            # Checked here and not by click, whose message would name the flag and not the file.
            settings[str(option.name)] = Setting(check_value(ctx, option, text, where), source)
    return settings


def _from_toml(option: click.Option, value: Any, where: str, folder: Path) -> Any:
    """Return what the command line would hold in place of a TOML value.

    Raises:
        UsageError: a value of another type than the option's.
    """
    if option.multiple and isinstance(value, list):
        return [_item_from_toml(option, item, where, folder) for item in value]
    item = _item_from_toml(option, value, where, folder)
    return [item] if option.multiple else item


def _item_from_toml(option: click.Option, value: Any, where: str, folder: Path) -> Any:
    expected, types = _toml_types(option)
    fits = isinstance(value, types)
    if isinstance(value, bool):  # a truth value is an int in Python, but no number in TOML
        fits = bool in types
    if not fits:
        raise UsageError(f"{where} must be {expected}, got {value!r}")
    if option.is_flag:
        return value
    # Relative to the file, so that it means the same in every working folder; a URL is not relative.
    if isinstance(option.type, click.Path) and "://" not in value:
        return str(folder / Path(value).expanduser())
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value)


def _toml_types(option: click.Option) -> tuple[str, tuple[type, ...]]:
    """Return the types of TOML values that an option takes, in words and for `isinstance`."""
    if option.is_flag:
        return "true or false", (bool,)
    if isinstance(option.type, click.types.IntParamType):
        return "a whole number", (int,)
    if isinstance(option.type, click.types.FloatParamType):
        return "a number", (int, float)
    if option.callback is not None:  # it parses a text, such as numbers separated by commas
        return "a string, a number or a list of numbers", (str, list, int, float)
    return "a string", (str,)


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
