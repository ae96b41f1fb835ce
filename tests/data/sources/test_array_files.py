"""NumPy's files: mapped or read, never unpickled."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import write_npz
from tna_onnx.data.choices import Limits
from tna_onnx.data.sources.array_files import map_npy, open_npz
from tna_onnx.errors import DataError

X = np.arange(6.0)


def test_only_chosen_arrays_are_read(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", {"x": X, "objects": np.array([None])})
    with open_npz(path, Limits()) as stored:
        np.testing.assert_array_equal(stored.column("x"), X, strict=True)
        assert stored.digest(["x"], np.zeros(0, np.int64)) == hashlib.sha256(path.read_bytes()).hexdigest()
        with pytest.raises(DataError, match=r"array 'objects' cannot be read .* never unpickled"):
            stored.column("objects")


def test_files_are_mapped_read_only(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    mapped = map_npy(tmp_path / "x.npy")
    assert isinstance(mapped, np.memmap)
    assert not mapped.flags.writeable
    np.save(tmp_path / "objects.npy", np.array([None]))
    with pytest.raises(DataError, match=r"objects\.npy: cannot be read as an array of numbers"):
        map_npy(tmp_path / "objects.npy")
