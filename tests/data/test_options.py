"""`Data`: class names from where they are known, the checks of labels, and that `open` passes everything on."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import gather, spec
from tna_onnx.data.options import Data
from tna_onnx.errors import CheckFailed, UsageError

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_class_names_by_precedence(tmp_path: Path) -> None:
    metadata = {"names": "['cat', 'cow', 'dog']"}
    (tmp_path / "names.txt").write_text("a\nb\nc\n")
    assert Data(X, classes=tmp_path / "names.txt").class_names(metadata, [], 3) == ("a", "b", "c")
    assert Data(X, classes=["x", "y", "z"]).class_names(metadata, ["p", "q", "r"], 3) == ("x", "y", "z")
    assert Data(X).class_names(metadata, ["p", "q", "r"], 3) == ("cat", "cow", "dog")
    assert Data(X).class_names({}, ["p", "q", "r"], 3) == ("p", "q", "r")
    assert Data(X).class_names(metadata, [0, 1], 2) is None, "other numbers of names, and labels that are indices"


def test_stated_names_must_be_as_many_as_the_classes() -> None:
    with pytest.raises(UsageError, match=r"classes: 9 class names \(0, 1, .* 7, \.\.\.\) for a model with 3"):
        Data(X, classes=[str(index) for index in range(9)]).class_names({}, [], 3)


@pytest.mark.parametrize("expected", [-1, 100.5, "76"])
def test_an_expected_accuracy_is_a_percentage(expected: object) -> None:
    with pytest.raises(UsageError, match="expected accuracy must lie in 0 to 100 per cent"):
        Data(X, expect_accuracy=expected)  # type: ignore[arg-type]


def test_the_expected_accuracy_is_checked_with_its_standard_error() -> None:
    data = Data(X, expect_accuracy=76)
    data.check_accuracy(0.752, 10_000)
    with pytest.raises(CheckFailed, match=r"accuracy is 75\.00 % .*; check the preprocessing"):
        data.check_accuracy(0.75, 10_000)
    with pytest.raises(CheckFailed, match="; look there"):
        data.check_accuracy(0.75, 10_000, "look there")
    Data(X).check_accuracy(0.0, 10_000)


def test_open_passes_everything_on(tmp_path: Path) -> None:
    np.save(tmp_path / "x.bin", X)
    (tmp_path / "x.bin.npy").rename(tmp_path / "x.bin")
    (tmp_path / "labels.csv").write_text("class,label\n0,dog\n0,cat\n0,dog\n")
    data = Data(tmp_path / "x.bin", tmp_path / "labels.csv", "npy", label_column="label")
    source = data.open([spec()], 2, ("cat", "dog"))
    assert source.labels.tolist() == [1, 0, 1]
    np.testing.assert_array_equal(gather(source, 2)["x"], X)
