"""The rows of the formats: complete, loadable, light; and a new source is its file and its row."""

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.data.samples import gather, spec
from tna_onnx.data import Source, open_source
from tna_onnx.data.choices import ROWS, Row
from tna_onnx.data.request import Request
from tna_onnx.data.sources.columns import ArraySource, open_columns
from tna_onnx.errors import DataError, UsageError


def open_text(path: Path, request: Request) -> ArraySource:
    """Read a table of numbers, the label last."""
    rows = np.loadtxt(path, dtype=np.float32)
    columns = {request.inputs[0].name: rows[:, :-1]}
    return open_columns(f"text {path.name}", str(path), request, columns, rows[:, -1], hashed=lambda _: "digest")


def test_a_new_source_is_its_file_and_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("tna_onnx.data.sources.text")
    module.open_text = open_text  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(ROWS, "text", Row("text:open_text", files=(".dat",)))  # type: ignore[misc]
    rows = np.random.default_rng(0).random((5, 4)).astype(np.float32)
    np.savetxt(tmp_path / "calib.dat", np.column_stack([rows, [0, 1, 2, 0, 1]]))
    source: Source = open_source(tmp_path / "calib.dat", [spec()], 3)
    np.testing.assert_allclose(gather(source, 2)["x"], rows, rtol=1e-6)
    assert source.labels.tolist() == [0, 1, 2, 0, 1]


# ---- `open_source` chooses by what the path is, and refuses what it cannot choose for


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
