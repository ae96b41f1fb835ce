"""Paths of results: what is refused before the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import cli
from tna_onnx.cli.terminal import check_figure_folder, check_result_file, default_output, named_files
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


LABELS = ["--labels", "l.npy", "--eval", "e.npz", "--eval-labels", "el.npy"]


@pytest.mark.parametrize(
    ("command", "words", "taken"),
    [
        ("guard", LABELS, ("m.guard.onnx", "l.npy", "e.npz", "el.npy")),
        ("shift", [*LABELS, "--target-prior", "t.json"], ("m.shift.onnx", "l.npy", "el.npy", "t.json")),
        ("shift", ["--source-prior", "s.json", "--target-prior", "uniform"], ("s.json",)),
        ("calibrate", LABELS, ("m.tna.onnx", "l.npy", "el.npy")),
        ("calibrate", ["-o", "o.onnx"], ("o.onnx",)),
        ("evaluate", ["--labels", "l.npy"], ("l.npy",)),
        ("features", ["--labels", "l.npy", "--cache", "c"], ("l.npy",)),
        ("study", [*LABELS, "--out", "s"], ("l.npy", "el.npy")),
    ],
)
def test_no_result_replaces_a_file_of_the_command(
    command: str, words: list[str], taken: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in taken:
        done = cli(command, "m.onnx", "c.npz", *words, "--json", name)
        assert done.exit_code == 2
        assert "is one of the other files" in done.stderr, name
    assert not list(tmp_path.iterdir())


def test_uniform_frequencies_are_no_file() -> None:
    assert "uniform" not in named_files({"target_prior": "uniform", "source_prior": None})


def test_figure_folders(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    check_figure_folder(str(tmp_path / "new/deeper"), str(file), None)
    with pytest.raises(UsageError, match="is one of the other files"):
        check_figure_folder(str(file), str(file))
    file.touch()
    with pytest.raises(UsageError, match="cannot be written"):
        check_figure_folder(str(file / "inside"))
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
