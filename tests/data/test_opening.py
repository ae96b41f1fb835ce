"""`open_source` chooses by what the path is, and refuses what it cannot choose for."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import spec, write_npz
from tna_onnx.data import open_source
from tna_onnx.errors import DataError, UsageError

IMAGE = spec("image", (None, 3, 5, 6))


def stored(path: Path) -> Path:
    return write_npz(path, {"x": np.zeros((2, 4), np.float32), "labels": [0, 1]})


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
