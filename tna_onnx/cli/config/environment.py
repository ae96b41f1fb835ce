"""Settings from the environment: TNA_ONNX_MAP for every command, TNA_ONNX_CALIBRATE_MAP for one."""

from __future__ import annotations

import os

import click

from tna_onnx.cli.config.options import Setting, check_value, closest, configurable_commands, options_by_flag
from tna_onnx.errors import UsageError

__all__ = ["read_environment", "unknown_variables", "variable_value"]

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
