"""Paths of results: what is refused before the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tna_onnx.cli.paths import check_figure_folder, check_result_file, default_output
from tna_onnx.errors import UsageError


@pytest.mark.parametrize(("model", "output"), [("a/m.onnx", "a/m.tna.onnx"), ("m", "m.tna.onnx"), ("", None)])
def test_the_default_output_is_beside_the_model(model: str, output: str | None) -> None:
    assert default_output(model) == (None if output is None else Path(output))


def test_result_files(tmp_path: Path) -> None:
    other = tmp_path / "m.onnx"
    other.touch()
    check_result_file(None)
    check_result_file(str(tmp_path / "r.json"), str(other), None)
    for path, message in (
        ("-", "expected the name of a file for the HTML"),
        (str(tmp_path / "none/r.html"), "does not exist; create it"),
        (str(tmp_path), "cannot be written"),
        (str(tmp_path / "." / "m.onnx"), "is one of the other files"),
    ):
        with pytest.raises(UsageError, match=message):
            check_result_file(path, str(other), kind="HTML")


def test_figure_folders(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    check_figure_folder(str(tmp_path / "new/deeper"), str(file), None)
    with pytest.raises(UsageError, match="is one of the other files"):
        check_figure_folder(str(file), str(file))
    file.touch()
    with pytest.raises(UsageError, match="cannot be written"):
        check_figure_folder(str(file / "inside"))
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
