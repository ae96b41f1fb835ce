"""Groups of options: their order, and that defaults and choices are those of the functions behind them."""

from __future__ import annotations

import dataclasses
import inspect

import click
import pytest

import tna_onnx
from tna_onnx.calibration.settings import Settings
from tna_onnx.cli.group import group
from tna_onnx.cli.options import FORMATS, together
from tna_onnx.cli.preprocessing import PRESETS
from tna_onnx.data import FORMATS as DATA_FORMATS
from tna_onnx.data import PRESETS as DATA_PRESETS


def defaults(name: str) -> dict[str, object]:
    """Return what a command hands to its function for options that are not given."""
    command = group.commands[name]
    required = [param for param in command.params if param.required]
    words = [word for param in required for word in ([param.opts[0], "x"] if param.opts[0].startswith("-") else ["x"])]
    params = command.make_context(name, words, parent=click.Context(group)).params
    return {option: value for option, value in params.items() if option not in {param.name for param in required}}


def test_options_are_in_the_order_of_the_help() -> None:
    @click.command
    @together(click.option("--a"), together(click.option("--b"), click.option("--c")))
    @click.option("--d")
    def command() -> None: ...

    assert [param.name for param in command.params] == ["a", "b", "c", "d"]


def test_words_that_are_written_twice_agree() -> None:
    assert tuple(FORMATS) == DATA_FORMATS
    assert set(PRESETS) == set(DATA_PRESETS)


def test_every_setting_is_an_option_with_its_default() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(Settings)}
    assert {name: value for name, value in defaults("calibrate").items() if name in fields} == fields


@pytest.mark.parametrize("name", [name for name in group.commands if name != "inspect"])
def test_defaults_are_those_of_the_function(name: str) -> None:
    parameters = inspect.signature(getattr(tna_onnx, name)).parameters
    other_types = ("details", "baseline")  # a path here and a truth value there; a text here and a number there
    shared = [option for option in defaults(name) if option in parameters and option not in other_types]
    options = {option: defaults(name)[option] for option in shared}
    assert options == {option: parameters[option].default for option in options}


@pytest.mark.parametrize("name", ["features", "verify"])
def test_commands_that_bin_nothing_take_no_bins(name: str) -> None:
    assert "bins" not in defaults(name)
