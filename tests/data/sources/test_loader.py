"""Samples from a function in a Python file: what it may return, errors with their line, and what names none."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.samples import gather, spec
from tna_onnx.data import Source, open_source
from tna_onnx.errors import DataError, UsageError


def opened(data: Any, **options: Any) -> Source:
    return open_source(data, [spec()], 3, **options)


def loader(folder: Path, code: str, name: str = "load", **options: Any) -> Source:
    (folder / "loader.py").write_text(code)
    return opened(f"{folder / 'loader.py'}:{name}", format="loader", **options)


GOOD = """
import dataclasses, numpy as np
from helper import LABELS

@dataclasses.dataclass
class Batch:
    x: object

def load():
    from helper import LABELS
    yield {"x": Batch(np.ones((7, 4), np.float32)).x, "labels": LABELS}

def whole():
    return {"x": np.zeros((7, 4), np.float32), "labels": LABELS}

def broken():
    yield np.ones((7, 4), np.float32), LABELS
    raise ValueError("no more")

NOT_A_FUNCTION = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "helper.py").write_text("LABELS = [0, 1, 2, 0, 1, 2, 0]\n")
    return tmp_path


@pytest.mark.parametrize(("name", "value"), [("load", 1), ("whole", 0)])
def test_a_loader(folder: Path, name: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(sys.path)
    source = loader(folder, GOOD, name)
    assert np.all(gather(source, 4)["x"] == value)
    assert source.describe() == f"{folder / 'loader.py'}:{name} (7 samples, 3 classes)"
    assert sys.path == before
    monkeypatch.delitem(sys.modules, "helper")


def test_a_loader_runs_only_when_said(folder: Path) -> None:
    (folder / "loader.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    with pytest.raises(UsageError, match=r"no such file or folder; .* add --format loader"):
        opened(f"{folder / 'loader.py'}:load")
    with pytest.raises(DataError, match=r"found \.py"):
        opened(folder / "loader.py")
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("code", "name", "pattern"),
    [
        (GOOD, "broken", r"loader\.py:broken: line 18: ValueError: no more"),
        ("\nimport nothing_of_that_name\n", "load", r"loader\.py:load: line 2: ModuleNotFoundError"),
        ("def load(:\n", "load", r"line 1: SyntaxError"),
        ("def load(path):\n    pass\n", "load", "TypeError"),
        ("def load():\n    return 3\n", "load", "found int"),
    ],
)
def test_errors_in_a_loader(folder: Path, code: str, name: str, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=pattern):
        loader(folder, code, name)
    monkeypatch.delitem(sys.modules, "helper", raising=False)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("loader.py", r"expected the function of a Python file"),
        ("loader.txt:load", r"expected the function of a Python file"),
        ("loader.py:a.b", r"expected the function of a Python file"),
        ("gone.py:load", r"gone\.py: no such file"),
    ],
)
def test_what_names_no_loader(folder: Path, text: str, pattern: str) -> None:
    with pytest.raises(UsageError, match=pattern):
        opened(str(folder / text), format="loader")


@pytest.mark.parametrize("name", ["NOT_A_FUNCTION", "nothing"])
def test_what_is_not_a_function(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=f"has no function '{name}'"):
        loader(folder, GOOD, name)
    monkeypatch.delitem(sys.modules, "helper")
