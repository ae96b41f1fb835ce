"""The import rules of pyproject.toml hold, and each kind can fail: a copy of the package is broken on purpose."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytest.importorskip("importlinter")

LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the package in a folder, which must be the first of that name."""
    return subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a folder with the package and its rules."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "tna_onnx", tmp_path / "tna_onnx", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_rules_hold(copy: Path) -> None:
    done = lint(copy)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "line", "rule"),
    [
        pytest.param("maps/temperature.py", "import tna_onnx.graph.load", "imports point down BROKEN", id="sideways"),
        pytest.param("unlisted.py", "", "tna_onnx.unlisted", id="unlisted"),
        pytest.param("graph/head.py", "import onnxruntime", "only runtime knows onnxruntime", id="ort"),
        pytest.param("pipeline/reporting.py", "import PIL.Image", "reads files of others BROKEN", id="pillow"),
    ],
)
def test_a_forbidden_import_is_noticed(copy: Path, module: str, line: str, rule: str) -> None:
    file = copy / "tna_onnx" / module
    source = file.read_text(encoding="utf-8") if file.exists() else '"""A module that no layer lists."""\n'
    file.write_text(f"{source}\n{line}\n", encoding="utf-8")
    done = lint(copy)
    assert done.returncode != 0
    assert rule in done.stdout, done.stdout
