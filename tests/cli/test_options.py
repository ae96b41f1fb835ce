"""Groups of options: their order, and that defaults and choices are those of the functions behind them."""

from __future__ import annotations

import dataclasses
import inspect

import click
import pytest

import tna_onnx
from tna_onnx.cli.command import group
from tna_onnx.cli.options import together
from tna_onnx.data.options import Data
from tna_onnx.graph.options import ModelOptions
from tna_onnx.pipeline.settings import Settings
from tna_onnx.results.gates import Gates


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


@pytest.mark.parametrize("name", [name for name in group.commands if name not in ("card", "inspect")])
def test_defaults_are_those_of_the_function_and_its_values(name: str) -> None:
    parameters = inspect.signature(getattr(tna_onnx, name)).parameters
    expected = {
        field.name: field.default for value in (Gates, ModelOptions, Data) for field in dataclasses.fields(value)
    }
    expected["max_accuracy_drop"] = Settings.max_accuracy_drop
    expected |= {option: parameter.default for option, parameter in parameters.items()}
    # a path here and a truth value there; a text here and a number there; a word behind the models here
    # and no gate is an empty mapping here; guard edits a file without samples here
    other_types = ("details", "baseline", "data", "min_recall", *(("calib",) if name == "guard" else ()))
    shared = [option for option in defaults(name) if option in expected and option not in other_types]
    assert {option: defaults(name)[option] for option in shared} == {option: expected[option] for option in shared}


@pytest.mark.parametrize("name", ["features", "verify"])
def test_commands_that_bin_nothing_take_no_bins(name: str) -> None:
    assert "bins" not in defaults(name)
