"""What a request refuses before anything is read."""

from pathlib import Path

import pytest

from tests.data.samples import spec
from tna_onnx.data import Recipe
from tna_onnx.data.request import Request
from tna_onnx.errors import DataError, UsageError

IMAGE = spec("image", (None, 3, 8, 8))


def test_class_names_are_as_many_as_classes() -> None:
    with pytest.raises(DataError, match=r"2 class names for a model with 3 classes \('cat', 'dog'\)"):
        Request([IMAGE], 3, class_names=["cat", "dog"])


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


def test_where_labels_stand() -> None:
    assert Request([IMAGE], 3, labels=Path("labels.csv")).labels_where("calib") == "labels.csv"
    assert Request([IMAGE], 3, labels=[0, 1]).labels_where("calib") == "calib"
    Request([IMAGE], 3).no_labels_apart("list.csv")
    with pytest.raises(UsageError, match=r"list\.csv: brings its own labels; leave --labels out"):
        Request([IMAGE], 3, labels=[0, 1]).no_labels_apart("list.csv")
