"""Preprocessing flags -> a recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tna_onnx.cli.options import take_recipe
from tna_onnx.data import PRESETS, Recipe
from tna_onnx.errors import UsageError

PARTS = ("resize", "crop", "crop_pct", "scale", "mean", "std", "layout", "color", "interpolation", "preprocessing")


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
    recipe = take_recipe(None, arguments(preprocessing=str(file), std=(0.125,)))
    assert recipe is not None
    assert (recipe.mean, recipe.std) == ((0.25,), (0.125,))


def test_a_preset_and_a_file_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="give one of them"):
        take_recipe("mnist", arguments(preprocessing="p.json"))
