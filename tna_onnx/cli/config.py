"""Settings from a file and from the environment: each stands for a flag that was not given.

A flag wins over the environment (`envvar`), that over `--config` (`default_map`), that over the default; a setting for
one command wins over one for all. Both are checked as flags are. Paths are relative to the file.
"""

import contextlib
import difflib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tna_onnx.cli.process import print_error, show_log
from tna_onnx.data.choices import PRESET_FIELDS
from tna_onnx.errors import UsageError
from tna_onnx.files import is_url, open_regular, resolved

VERBOSE = "tna_onnx.verbose"
"""How often `--verbose` was given, in the `meta` of a command's context."""

_SETTINGS = "tna_onnx.settings"
_PREFIX = "TNA_ONNX_"

_MAX_BYTES = 2**20


@dataclass(frozen=True)
class ConfigEntry:
    """A value for an option as the command line would take it, and where it comes from."""

    value: Any  # a text, a truth value for a switch, or a list of texts for an option that may be repeated
    source: str  # file and table, or variable

    @property
    def text(self) -> str:
        """The value as one word."""
        if isinstance(self.value, list):
            return ",".join(self.value)
        return str(self.value)


@contextlib.contextmanager
def settings_shown(ctx: click.Context) -> Iterator[None]:
    """Say where settings come from, and log each stage while the command runs, as far as its options ask for that."""
    # no command's function takes it
    verbose = ctx.meta[VERBOSE] = ctx.params.pop("verbose", 0)
    quiet = ctx.params.get("quiet", False)
    if verbose:
        for option, setting in _applied(ctx):
            print_error(f"setting  {_flag(option)} = {setting.value}  ({setting.source})")
    with show_log(verbose) if verbose and not quiet else contextlib.nullcontext():
        yield


def read_from_environment(command: click.Command) -> None:
    """Let the options of a command read their variables, if it reads settings."""
    if not _reads_settings(command):
        return
    for option in command.params:
        if isinstance(option, click.Option):
            name = _flag(option).upper().replace("-", "_")
            # the stronger one first
            option.envvar = (f"{_PREFIX}{(command.name or '').upper()}_{name}", f"{_PREFIX}{name}")


def _reads_settings(command: click.Command) -> bool:
    return any(param.name == "config" for param in command.params)


@contextlib.contextmanager
def naming_settings(ctx: click.Context) -> Iterator[None]:
    """Name the file or the variable, and not the flag, where a setting has a value that its option does not take."""
    try:
        yield
    except click.BadParameter as error:
        option = error.param
        setting = isinstance(option, click.Option) and _setting_of(ctx, option)
        if not setting or not isinstance(option, click.Option):
            raise
        where = setting.source
        if _is_from(ctx, option, ParameterSource.DEFAULT_MAP):
            where += f": {_flag(option)}"
        raise UsageError(f"{where}: {error.message}") from error


def setting_flags() -> list[str]:
    """Return what files and the environment set for the current command, as words of a command line."""
    ctx = click.get_current_context()
    flags: list[str] = []
    for option, setting in _applied(ctx):
        if not option.is_flag:
            flags += [f"--{_flag(option)}", setting.text]
        elif click.BOOL.convert(setting.value, option, ctx):
            flags.append(f"--{_flag(option)}")
    return flags


def configurable_commands(ctx: click.Context) -> dict[str, click.Command]:
    """Return the commands that read settings, by name."""
    group = ctx.find_root().command
    if not isinstance(group, click.Group):
        return {}
    return {name: command for name, command in group.commands.items() if _reads_settings(command)}


def options_by_flag(command: click.Command) -> dict[str, click.Option]:
    """Return the options that files can name, by their long flags without the dashes."""
    options = [param for param in command.params if isinstance(param, click.Option) and param.name != "config"]
    return {_flag(option): option for option in options}


def _flag(option: click.Parameter) -> str:
    # `-o, --output`: the long one is the name of the setting; `--data, --calib`: the first one
    return next((opt for opt in option.opts if opt.startswith("--")), option.opts[0]).lstrip("-")


def load_settings(ctx: click.Context, _param: click.Parameter, path: str | None) -> None:
    """Make what a file says the defaults of a command's options."""
    settings = {}
    if path:
        settings = read_file(ctx, Path(path))
    _refuse_unknown_variables(ctx)
    ctx.meta[_SETTINGS] = settings
    ctx.default_map = {name: setting.value for name, setting in settings.items()}


def _setting_of(ctx: click.Context, option: click.Option) -> ConfigEntry | None:
    """Return what set an option, if that was a file or the environment."""
    if _is_from(ctx, option, ParameterSource.ENVIRONMENT):
        variable = next((name for name in option.envvar or () if os.environ.get(name)), "")
        return ConfigEntry(os.environ.get(variable, ""), variable)
    if _is_from(ctx, option, ParameterSource.DEFAULT_MAP):
        settings: dict[str, ConfigEntry] = ctx.meta.get(_SETTINGS, {})
        return settings.get(str(option.name))
    return None


def _is_from(ctx: click.Context, option: click.Parameter, source: ParameterSource) -> bool:
    return ctx.get_parameter_source(str(option.name)) is source


def _applied(ctx: click.Context) -> list[tuple[click.Option, ConfigEntry]]:
    """Return the settings that no flag has replaced, with their options."""
    options = [param for param in ctx.command.params if isinstance(param, click.Option)]
    settings = [(option, _setting_of(ctx, option)) for option in options]
    return [(option, setting) for option, setting in settings if setting is not None]


def _refuse_unknown_variables(ctx: click.Context) -> None:
    """Refuse variables with the prefix that name no setting: a gate that is misspelt would pass."""
    present = [name for name in sorted(os.environ) if name.startswith(_PREFIX)]
    # what could be meant are the options of all commands, and most runs need those of one
    if not present:
        return
    variables = {
        variable
        for command in configurable_commands(ctx).values()
        for option in command.params
        for variable in option.envvar or ()
    }
    for name in present:
        if name not in variables:
            raise UsageError(
                f"{name}: unknown setting; expected {_PREFIX} and the name of a flag, such as {_PREFIX}MAX_ECE"
            )


def read_file(ctx: click.Context, path: Path) -> dict[str, ConfigEntry]:
    """Return the settings for the current command, by its options' names."""
    import tomllib

    try:
        with open_regular(resolved(path)) as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise OSError(0, "it is over 1 MB", str(path))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}; expected a TOML file with settings") from error
    try:
        table = tomllib.loads(content.decode())  # TOML is UTF-8 in every locale
    # ValueError: bytes that are no text, and numbers of more digits than Python converts
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{path}: is not valid TOML: {error}") from error
    return _entries(ctx, path, _checked(ctx, path, table))


def _checked(ctx: click.Context, path: Path, table: dict[str, Any]) -> dict[str, tuple[Any, str]]:
    """Check all keys, and return flag -> value and source of those for the current command and for all."""
    commands = {name: options_by_flag(command) for name, command in configurable_commands(ctx).items()}
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    top = {key: value for key, value in table.items() if key not in tables}
    every_flag = {flag for options in commands.values() for flag in options}
    values = {flag: (value, str(path)) for flag, value in _by_flag(top, every_flag, path, "").items()}
    # Tables of other commands are checked too: a typing error there would go unnoticed until that command runs.
    for name, inner in tables.items():
        if name not in commands:
            raise UsageError(f"{path}: unknown table [{name}]; expected one of {', '.join(commands)}")
        checked = _by_flag(inner, commands[name].keys(), path, f" in [{name}]")
        # What is said for one command wins over what is said for all.
        if name == ctx.info_name:
            values |= {flag: (value, f"{path} [{name}]") for flag, value in checked.items()}
    return values


def _by_flag(table: dict[str, Any], flags: Collection[str], path: Path, where: str) -> dict[str, Any]:
    """Return a table with the flags' own names as keys."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        flag = key.replace("_", "-")  # Python and TOML writers prefer underscores
        if flag not in flags:
            near = [*difflib.get_close_matches(flag, flags, n=1), "bins"]
            raise UsageError(f"{path}: unknown key '{key}'{where}; expected the name of a flag, such as {near[0]}")
        if flag in values:
            raise UsageError(f"{path}: '{flag}'{where} is given twice, with a dash and with an underscore")
        values[flag] = value
    return values


def _entries(ctx: click.Context, path: Path, values: dict[str, tuple[Any, str]]) -> dict[str, ConfigEntry]:
    """Return TOML values as the command line would take them, by the names of the command's options."""
    entries = {}
    for flag, option in options_by_flag(ctx.command).items():
        if flag not in values:
            continue
        value, source = values[flag]
        if not (isinstance(value, bool) and option.is_flag):
            items = value if isinstance(value, list) else [value]
            if any("\0" in str(item) for item in items):
                raise UsageError(f"{source}: {flag}: embedded null byte, got {value!r}")
            words = [_word(option, str(item), path.parent) for item in items]
            value = words if option.multiple else ",".join(words)
        entries[str(option.name)] = ConfigEntry(value, source)
    return entries


def _word(option: click.Option, word: str, folder: Path) -> str:
    """Return a value as a word. A path is relative to the file: it means the same in every working folder."""
    is_name = option.name == "preset" and word.lower() in PRESET_FIELDS
    if isinstance(option.type, click.Path) and not is_url(word) and not is_name:
        return str(folder / Path(word).expanduser())
    return word
