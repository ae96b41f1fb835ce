"""Settings from files: the one of `--config`, and the nearest pyproject.toml that has a table for tna-onnx."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from tna_onnx.cli.config.options import Setting, check_value, closest, configurable_commands, options_by_flag
from tna_onnx.errors import UsageError

__all__ = ["read_file", "read_pyproject"]

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
