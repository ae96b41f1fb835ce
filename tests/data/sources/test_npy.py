"""`.npy` files: which is which input, that they are mapped and not loaded, and every refusal."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.samples import gather, spec
from tna_onnx.data import open_source
from tna_onnx.data.sources.columns import ArraySource
from tna_onnx.errors import DataError, UsageError

X = np.arange(12, dtype=np.float32).reshape(3, 4)
LABELS = np.array([0, 1, 2])


def write(folder: Path, **arrays: Any) -> Path:
    folder.mkdir(exist_ok=True)
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    return folder


@pytest.mark.parametrize("name", ["x", "images"])
def test_the_only_other_file_is_the_only_input(tmp_path: Path, name: str) -> None:
    source = open_source(write(tmp_path / "calib", **{name: X, "labels": LABELS}), [spec()], 3)
    np.testing.assert_array_equal(gather(source, 2)["x"], X, strict=True)
    assert source.describe() == "arrays calib (3 samples, 3 classes)"
    assert source.recipe() is None


def test_files_are_mapped(tmp_path: Path) -> None:
    source = open_source(write(tmp_path, x=X, labels=LABELS), [spec()], 3)
    assert isinstance(source, ArraySource)
    assert isinstance(source.columns["x"], np.memmap)


@pytest.mark.skipif(sys.platform == "win32", reason="files are not sparse by default")
def test_more_than_memory(tmp_path: Path) -> None:
    """A sparse file of 256 GiB can be opened and read at its end."""
    shape = (2**19, 2**17)
    file = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, shape)
    file[-1, -1] = 7
    del file
    labels = np.arange(len(np.load(tmp_path / "x.npy", mmap_mode="r")), dtype=np.int8) % 2
    np.save(tmp_path / "labels.npy", labels)
    source = open_source(tmp_path, [spec("x", (None, shape[1]))], 2)
    assert gather(source, 2, np.array([0, -1]))["x"][1, -1] == 7


def test_one_file_with_labels_apart(tmp_path: Path) -> None:
    write(tmp_path, anything=X, y=LABELS)
    for labels in (tmp_path / "y.npy", str(tmp_path / "y.npy"), LABELS, [0, 1, 2]):
        source = open_source(tmp_path / "anything.npy", [spec()], 3, labels=labels)
        np.testing.assert_array_equal(source.labels, LABELS)
    with pytest.raises(DataError, match="without labels; give them with --labels"):
        open_source(tmp_path / "anything.npy", [spec()], 3)
    with pytest.raises(DataError, match=r"one array for a model with 2 inputs; .* x\.npy, y\.npy and labels\.npy"):
        open_source(tmp_path / "anything.npy", [spec("x"), spec("y")], 3)


@pytest.mark.parametrize(
    ("arrays", "pattern"),
    [
        ({"x": X}, r"no \.npy file 'labels'; the file has 'x'"),
        ({"a": X, "b": X, "labels": LABELS}, r"no \.npy file for the model's input 'x'; the model wants 'x'"),
        ({"x": X[:2], "labels": LABELS}, "3 labels for 2 samples"),
        ({"x": X.astype(np.float64), "labels": LABELS}, "expected dtype float32, found float64"),
        ({"x": X[:, :3], "labels": LABELS}, r"expected shape \(N, 4\), found \(3, 3\)"),
        ({"x": X[:0], "labels": LABELS[:0]}, "no samples"),
        ({"x": np.array(["a", {}, 3], object), "labels": LABELS}, r"x\.npy: cannot be read .* never unpickled"),
    ],
)
def test_refusals(tmp_path: Path, arrays: dict[str, Any], pattern: str) -> None:
    with pytest.raises(DataError, match=pattern) as caught:
        open_source(write(tmp_path, **arrays), [spec()], 3)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"not an array", b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', "])
def test_broken_files(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, labels=LABELS)
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.npy: cannot be read"):
        open_source(tmp_path, [spec()], 3)


def test_a_file_that_is_cut_off(tmp_path: Path) -> None:
    file = write(tmp_path, x=X, labels=LABELS) / "x.npy"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"x\.npy: cannot be read"):
        open_source(tmp_path, [spec()], 3)


def test_no_recipe(tmp_path: Path) -> None:
    from tna_onnx.data import Recipe

    with pytest.raises(UsageError, match="preprocessing applies to images only"):
        open_source(write(tmp_path, x=X, labels=LABELS), [spec()], 3, Recipe(scale=1.0))
