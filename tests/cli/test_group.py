"""The table of commands is complete: each is a command of a file of `tna_onnx/cli`, and a function of the package."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import tna_onnx
import tna_onnx.cli
from tests.support import cli
from tna_onnx import errors
from tna_onnx.cli.command import Command, group


def test_every_command_of_the_folder_is_in_the_group() -> None:
    commands = {}
    for module in pkgutil.iter_modules(tna_onnx.cli.__path__):
        members = vars(importlib.import_module(f"tna_onnx.cli.{module.name}"))
        commands |= {name: member for name, member in members.items() if isinstance(member, Command)}
    assert commands == group.commands


@pytest.mark.parametrize("name", group.commands)
def test_every_command_is_a_function_of_the_package(name: str) -> None:
    assert callable(getattr(tna_onnx, name))


def test_the_help_names_every_exit_code() -> None:
    text = cli("--help").output
    codes = {value.exit_code for name in errors.__all__ if hasattr(value := getattr(errors, name), "exit_code")}
    for code in {0, errors.INTERNAL_ERROR, errors.INTERRUPTED} | codes:
        assert f"{code} " in " ".join(text.split())
