"""Options: their order, defaults and choices are those of the functions behind them; their texts become values."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import click
import pytest

import tna_onnx
from tna_onnx.api.arguments import holders_of
from tna_onnx.cli.command import group
from tna_onnx.cli.options import Number, PresetPath, Words, flat, members, numbers, size
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


@pytest.mark.parametrize("name", [name for name in group.commands if name not in ("card", "inspect")])
def test_defaults_are_those_of_the_function_and_its_values(name: str) -> None:
    function = getattr(tna_onnx, name)
    holders = (Gates, ModelOptions, Data, *holders_of(function).values())
    expected = {field.name: field.default for holder in holders for field in dataclasses.fields(holder)}
    expected["max_accuracy_drop"] = Settings.max_accuracy_drop
    for option, parameter in inspect.signature(function).parameters.items():
        # None is a keyword that was not given: the field of a dataclass has the default
        if parameter.default is not None or option not in expected:
            expected[option] = parameter.default
    # a path here and a truth value there; a text here and a number there; a word behind the models here
    # and none of some is an empty mapping here; guard edits a file without samples here
    other_types = ("details", "baseline", "data", "min_recall", "ray_options", *(("calib",) if name == "guard" else ()))
    shared = [option for option in defaults(name) if option in expected and option not in other_types]
    assert {option: defaults(name)[option] for option in shared} == {option: expected[option] for option in shared}


# ---- Preprocessing flags -> a recipe


@pytest.mark.parametrize("value", ["imagnet", "none.json"])
def test_a_preset_that_is_no_name_and_no_file_is_refused(value: str) -> None:
    with pytest.raises(click.BadParameter, match=f"'{value}' is no file, and none of imagenet"):
        PresetPath().convert(value, None, None)


# ---- Texts of options -> values, and what is refused


CTX, OPTION = click.Context(click.Command("test")), click.Option(["--option"])


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (members, "inf", "inf"),
        (members, "12", 12),
        (numbers, "0.5,1,2e-1", (0.5, 1.0, 0.2)),
        (numbers, None, None),
        (size, "224", 224),
        (size, "224,320", (224, 320)),
        (size, None, None),
    ],
)
def test_values(parse: Callable[..., Any], text: str | None, value: object) -> None:
    assert parse(CTX, OPTION, text) == value


@pytest.mark.parametrize(
    ("parse", "text"), [(members, "-1"), (members, "many"), (numbers, "1;2"), (size, "1,2,3"), (size, "wide")]
)
def test_what_is_refused_is_in_the_message(parse: Callable[..., Any], text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected") as caught:
        parse(CTX, OPTION, text)
    assert f"got '{text}'" in caught.value.message


def test_a_number_is_in_its_range_and_is_a_number() -> None:
    assert Number(0, 100).convert("12.5", OPTION, CTX) == 12.5
    for text in ("101", "nan", "x"):
        with pytest.raises(click.BadParameter):
            Number(0, 100).convert(text, OPTION, CTX)


def test_words_are_joined_without_repetition() -> None:
    kind = Words(("a", "b", "c"))
    groups = tuple(kind.convert(text, OPTION, CTX) for text in ("c,a", "a,b"))
    assert flat(CTX, OPTION, groups) == ("c", "a", "b")
    with pytest.raises(click.BadParameter, match="'d' is not one of"):
        kind.convert("a,d", OPTION, CTX)
