"""`open_source` chooses by what the path is, and refuses what it cannot choose for."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import spec, write_folder, write_npz
from tna_onnx.data import PRESETS, InputSpec, Recipe, open_source
from tna_onnx.errors import DataError, UsageError

IMAGE = spec("image", (None, 3, 5, 6))


def stored(path: Path) -> Path:
    return write_npz(path, {"x": np.zeros((2, 4), np.float32), "labels": [0, 1]})


@pytest.mark.parametrize("as_text", [True, False])
def test_a_file_of_arrays(tmp_path: Path, as_text: bool) -> None:
    path = stored(tmp_path / "calib.npz")
    source = open_source(str(path) if as_text else path, [spec()], 2)
    assert source.describe().startswith("arrays calib.npz")
    assert source.recipe() is None


def test_the_suffix_may_be_in_capitals(tmp_path: Path) -> None:
    path = stored(tmp_path / "calib.npz").rename(tmp_path / "CALIB.NPZ")
    assert len(open_source(path, [spec()], 2)) == 2


@pytest.mark.parametrize("recipe", [None, Recipe(), Recipe(scale=1.0)])
def test_a_folder_of_images(tmp_path: Path, recipe: Recipe | None) -> None:
    source = open_source(write_folder(tmp_path, ["0/a.png", "1/b.png"]), [IMAGE], 2, recipe)
    resolved = source.recipe()
    assert resolved is not None
    assert resolved["scale"] == (1.0 if recipe and recipe.scale else 1 / 255)


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.npz: no such file or folder"):
        open_source(tmp_path / "gone.npz", [spec()], 2)


@pytest.mark.parametrize(("name", "found"), [("calib.docx", r"\.docx"), ("calib", "no suffix")])
def test_other_files(tmp_path: Path, name: str, found: str) -> None:
    (tmp_path / name).write_text("0,1\n")
    with pytest.raises(DataError, match=rf"{name}: expected .* \.npz .* found {found}\. .* --format"):
        open_source(tmp_path / name, [spec()], 2)


def test_a_format_that_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="format 'zip' is not known; expected folder, "):
        open_source(tmp_path, [spec()], 2, format="zip")  # type: ignore[arg-type]


def test_the_format_can_be_said(tmp_path: Path) -> None:
    path = stored(tmp_path / "calib.npz").rename(tmp_path / "calib.bin")
    assert len(open_source(path, [spec()], 2, format="npz")) == 2


@pytest.mark.parametrize("inputs", [[], [IMAGE, spec("mask")]])
def test_images_need_one_input(tmp_path: Path, inputs: list[InputSpec]) -> None:
    root = write_folder(tmp_path, ["0/a.png", "1/b.png"])
    with pytest.raises(DataError, match=rf"one input, but this one has {len(inputs)} ") as caught:
        open_source(root, inputs, 2)
    assert str(root) in str(caught.value)
    assert all(repr(wanted.name) in str(caught.value) for wanted in inputs)


def test_a_model_without_inputs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"calib\.npz: the model has no inputs"):
        open_source(stored(tmp_path / "calib.npz"), [], 2)


@pytest.mark.parametrize("recipe", [*PRESETS.values(), Recipe(layout="NCHW")])
def test_arrays_take_no_recipe(tmp_path: Path, recipe: Recipe) -> None:
    path = stored(tmp_path / "calib.npz")
    with pytest.raises(UsageError, match=r"calib\.npz: preprocessing applies to images only"):
        open_source(path, [spec()], 2, recipe)
    assert len(open_source(path, [spec()], 2, Recipe())) == 2
