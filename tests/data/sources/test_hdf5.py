"""HDF5 files: data sets by name, rows in any order, and every refusal."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.samples import gather, spec
from tna_onnx.data import Source, open_source
from tna_onnx.errors import DataError

h5py = pytest.importorskip("h5py")

X = np.random.default_rng(0).random((7, 4), np.float32)
LABELS = np.arange(7) % 3


def write(path: Path, **arrays: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values
    return path


def opened(path: Path, **options: Any) -> Source:
    return open_source(path, [spec()], 3, **options)


@pytest.mark.parametrize("suffix", ["h5", "hdf5"])
@pytest.mark.parametrize("chunked", [False, True])
def test_values(tmp_path: Path, suffix: str, chunked: bool) -> None:
    path = tmp_path / f"calib.{suffix}"
    with h5py.File(path, "w") as file:
        options = {"chunks": (2, 3), "compression": "gzip"} if chunked else {}
        file.create_dataset("x", data=X, **options)
        file["labels"] = LABELS
        file["group/x"] = X
    source = opened(path)
    np.testing.assert_array_equal(gather(source, 3)["x"], X, strict=True)
    rows = np.array([6, 0, 3, 3, -1])
    np.testing.assert_array_equal(gather(source, 5, rows)["x"], X[rows], strict=True)
    assert source.describe() == f"arrays calib.{suffix} (7 samples, 3 classes)"


def test_text_as_labels(tmp_path: Path) -> None:
    names = np.array(["cat", "cow", "dog"], object)[LABELS]
    np.testing.assert_array_equal(opened(write(tmp_path / "a.h5", x=X, labels=names)).labels, LABELS)


def test_labels_apart(tmp_path: Path) -> None:
    np.testing.assert_array_equal(opened(write(tmp_path / "a.h5", x=X), labels=LABELS).labels, LABELS)


@pytest.mark.parametrize(
    ("arrays", "pattern"),
    [
        ({"x": X}, "no data set 'labels'; the file has 'x'"),
        ({"y": X, "labels": LABELS}, "if 'y' is that input, rename it to 'x'"),
        ({"x": X[:, :3], "labels": LABELS}, r"data set 'x': expected shape \(N, 4\), found \(7, 3\)"),
        ({"x": X.astype(int), "labels": LABELS}, "expected dtype float32, found int64"),
        ({"x": X, "labels": LABELS[:3]}, "3 labels for 7 samples"),
    ],
)
def test_refusals(tmp_path: Path, arrays: dict[str, Any], pattern: str) -> None:
    with pytest.raises(DataError, match=pattern) as caught:
        opened(write(tmp_path / "a.h5", **arrays))
    assert str(tmp_path / "a.h5") in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"nothing of the kind"])
def test_broken_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.h5").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.h5: cannot be read as HDF5"):
        opened(tmp_path / "a.h5")
