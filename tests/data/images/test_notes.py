"""What is said about preprocessing, in each command that reads images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.samples import spec, write_folder
from tna_onnx.data import PRESETS, Recipe, open_source
from tna_onnx.data.suspicion import preprocessing_notes

IMAGE = spec("image", (None, 3, 16, 16))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "calib", ["0/a.png", "1/b.png"], 16, 16)


def said(folder: Path, recipe: Recipe | None, inputs: Any = IMAGE) -> list[str]:
    source = open_source(folder, [inputs], 2, recipe)
    notes = preprocessing_notes(source, [inputs], recipe)
    assert notes[0].startswith("preprocessing: ")
    return notes[1:]


@pytest.mark.parametrize("recipe", [None, Recipe(), Recipe(resize=(16, 16))])
def test_nobody_has_said_how_images_are_normalised(folder: Path, recipe: Recipe | None) -> None:
    [warning] = said(folder, recipe)
    assert warning.startswith("WARNING: nothing says how the model's images are normalised")


@pytest.mark.parametrize(
    "recipe", [Recipe(scale=1 / 255), Recipe(scale=1.0), Recipe(mean=(0.5,)), Recipe(std=(0.2,)), PRESETS["cifar10"]]
)
def test_it_was_said(folder: Path, recipe: Recipe) -> None:
    assert said(folder, recipe) == []


def test_an_integer_input_takes_pixels_as_they_are(folder: Path) -> None:
    assert said(folder, None, spec("image", (None, 16, 16, 3), np.uint8)) == []


def test_mean_and_std_in_other_units_than_the_scale(folder: Path) -> None:
    [warning] = said(folder, Recipe(scale=1.0, mean=(0.5,), std=(0.2,)))
    assert "takes pixels to -2.5 to 1272, which no usual recipe does" in warning


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.random.default_rng(0).standard_normal((4, 3, 16, 16)), ""),
        (np.random.default_rng(0).random((4, 3, 16, 16)) * 65025, "WARNING: 'image' has values from"),
        (np.random.default_rng(0).integers(0, 256, (4, 3, 16, 16)), "'image' holds whole numbers from 0 to 255"),
        (np.zeros((4, 3, 16, 16)), ""),
    ],
)
def test_stored_images(values: Any, expected: str) -> None:
    source = open_source({"image": values.astype(np.float32), "labels": np.arange(4) % 2}, [IMAGE], 2)
    notes = preprocessing_notes(source, [IMAGE], None)
    assert [note[: len(expected)] for note in notes] == ([expected] if expected else [])


def test_arrays_that_are_no_images() -> None:
    table = spec("x", (None, 4))
    source = open_source({"x": np.full((4, 4), 1e6, np.float32), "labels": np.arange(4) % 2}, [table], 2)
    assert preprocessing_notes(source, [table], None) == []
