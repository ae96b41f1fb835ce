"""Columns against the model's inputs: names, and what a source of columns gives."""

import numpy as np
import pytest

from tests.data.samples import gather, spec
from tna_onnx.data.request import Request
from tna_onnx.data.sources.columns import check_names, only_other, open_columns
from tna_onnx.errors import DataError

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_a_source_of_columns() -> None:
    source = open_columns("arrays", "here", Request([spec()], 3), {"x": X}, np.array([2, 0, 1]), hashed=str)
    np.testing.assert_array_equal(gather(source, 2, np.array([2, 0, 2]))["x"], X[[2, 0, 2]], strict=True)
    assert source.describe() == "arrays (3 samples, 3 classes)"
    assert source.digest() == "[2 0 1]"


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["y", "labels"], "no column for the model's input 'x'; .* if 'y' is that input, rename it to 'x'"),
        (["y", "z"], "no column for the model's input 'x'; .* name the columns after the model's inputs"),
        (["x", "y"], "no column 'labels'; the file has 'x', 'y'"),
    ],
)
def test_missing_names(names: list[str], pattern: str) -> None:
    with pytest.raises(DataError, match=f"^here: {pattern}"):
        check_names("here", names, [spec()], noun="column")


def test_the_only_other_column_is_the_input() -> None:
    assert only_other(["y", "labels", "label"], spec()) == "y"
    assert only_other(["y", "x"], spec()) == "x"
    assert only_other(["y", "z"], spec()) is None
