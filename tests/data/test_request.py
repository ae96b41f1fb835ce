"""What a request refuses before anything is read."""

import pytest

from tests.data.samples import spec
from tna_onnx.data import Recipe
from tna_onnx.data.request import Request
from tna_onnx.errors import DataError, UsageError

IMAGE = spec("image", (None, 3, 8, 8))


def test_the_only_input_takes_images() -> None:
    name, resolved = Request([IMAGE], 3, Recipe(scale=1.0)).image_input("calib")
    assert (name, resolved.layout, resolved.scale) == ("image", "NCHW", 1.0)
    with pytest.raises(DataError, match="calib: images need a model with one input"):
        Request([IMAGE, spec()], 3).image_input("calib")


def test_arrays_take_no_recipe_and_need_an_input() -> None:
    Request([spec()], 3, Recipe()).check_arrays("calib.npz")
    with pytest.raises(UsageError, match=r"calib\.npz: preprocessing applies to images only"):
        Request([spec()], 3, Recipe(crop=3)).check_arrays("calib.npz")
    with pytest.raises(DataError, match=r"calib\.npz: the model has no inputs"):
        Request([], 3).check_arrays("calib.npz")
