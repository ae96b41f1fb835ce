"""Preprocessing flags -> a recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from tna_onnx.cli.options import PresetPath, take_recipe
from tna_onnx.data import PRESETS, Recipe

PARTS = ("resize", "crop", "crop_pct", "scale", "mean", "std", "layout", "color", "interpolation")


def arguments(**values: object) -> dict[str, Any]:
    return {"model": "m.onnx", **dict.fromkeys(PARTS), **values}


def test_without_flags_there_is_no_recipe_and_the_rest_stays() -> None:
    rest = arguments()
    assert take_recipe(None, rest) is None
    assert rest == {"model": "m.onnx"}


def test_flags_override_a_preset_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text(json.dumps({"input_size": [1, 28, 28], "mean": [0.25], "std": [0.5]}))
    assert take_recipe("mnist", arguments()) == PRESETS["mnist"]
    assert take_recipe("mnist", arguments(crop=20)) == PRESETS["mnist"].override(crop=20)
    assert take_recipe(None, arguments(scale=1.0)) == Recipe().override(scale=1.0)
    recipe = take_recipe(str(file), arguments(std=(0.125,)))
    assert recipe is not None
    assert (recipe.mean, recipe.std) == ((0.25,), (0.125,))


@pytest.mark.parametrize("value", ["imagnet", "none.json"])
def test_a_preset_that_is_no_name_and_no_file_is_refused(value: str) -> None:
    with pytest.raises(click.BadParameter, match=f"'{value}' is no file, and none of imagenet"):
        PresetPath().convert(value, None, None)
