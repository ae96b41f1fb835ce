"""docs/contributing.md: it names every package, and its examples work on a copy that is changed as the page says."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.pages.documents import Block, blocks, commands
from tests.support import run

PAGE = ROOT / "docs/contributing.md"
PACKAGE = ROOT / "tna_onnx"


def test_the_map_names_every_package_and_module_of_the_top_level() -> None:
    text = PAGE.read_text(encoding="utf-8")
    packages = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.glob("*/**/__init__.py")}
    assert [name for name in sorted(packages) if f"| `{name}/` |" not in text] == []
    modules = {path.name for path in PACKAGE.glob("[a-z]*.py")}
    assert [name for name in sorted(modules) if f"`{name}`" not in text] == []


def test_the_layers_are_those_of_the_contract() -> None:
    rules = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("\nlayers = [\n")[2].partition("]")[0]
    assert any(block.text.split("\n") == [*re.findall(r'"(.+)"', rules), ""] for block in blocks(PAGE))


def test_the_root_points_to_the_page() -> None:
    assert "docs/contributing.md" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def apply(diff: str, text: str) -> str:
    """Apply the hunks of a diff without line numbers; each must fit in one place."""
    for hunk in re.split(r"^@@.*\n", diff, flags=re.MULTILINE):
        lines = hunk.splitlines()
        before = "\n".join(line[1:] for line in lines if line[0] in " -")
        after = "\n".join(line[1:] for line in lines if line[0] in " +")
        assert text.count(before) == 1, f"expected once:\n{before}"
        text = text.replace(before, after)
    return text


def added(copy: Path, what: str) -> list[str]:
    """Change a copy of the repository as the example says; return the commands that it shows."""
    shown = []
    for block in blocks(PAGE):
        place = block.remark_after(f"adding {what}")
        if place == "a command":
            shown += commands(block.text)
        elif place is not None:
            run_command(copy / place, block)
    assert shown
    return shown


def run_command(file: Path, block: Block) -> None:
    if block.language == "diff":
        file.write_text(apply(block.text, file.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        assert not file.exists(), f"{block.where}: {file.name} is there already"
        file.write_text(block.text, encoding="utf-8")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(PACKAGE, tmp_path / "tna_onnx", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "models", tmp_path / "models")
    return tmp_path


def tool(folder: Path, line: str, code: int = 0) -> str:
    """Run a command of a page with the package in a folder; return what it prints."""
    done = run(
        *shlex.split(line)[1:],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


@pytest.mark.slow
def test_a_new_map(copy: Path) -> None:
    commands = added(copy, "a map")
    printed = "".join(tool(copy, line) for line in commands)
    assert "shrinkage" in printed
    assert (copy / "shrunk.onnx").exists()
    # the default command compares it with the others
    methods = json.loads((copy / "default.json").read_text(encoding="utf-8"))["methods"]
    assert "shrinkage" in [method["method"] for method in methods]
    tool(copy, "tna-onnx verify models/digits/model.onnx shrunk.onnx")
    lint(copy)


@pytest.mark.slow
def test_a_new_metric(copy: Path) -> None:
    before = "tna-onnx calibrate models/digits/model.onnx models/digits/calib.npz --search none --map ts"
    tool(copy, f"{before} -o before.onnx --json before.json")
    printed = "".join(tool(copy, line) for line in added(copy, "a metric"))
    assert "gap, %" in printed
    tool(copy, "tna-onnx card before.json -o before.md")
    comparison = json.loads((copy / "gap.json").read_text(encoding="utf-8"))["comparison"]
    interval = comparison["differences"]["gap"]
    assert interval["low"] <= interval["difference"] <= interval["high"]
    # by the triangle inequality, bins can only add to it
    assert 0 < comparison["before"]["gap"] <= comparison["before"]["ece"]
    assert "Gap, %" in (copy / "gap.html").read_text(encoding="utf-8")
    # a gate on it is one field, and samples without labels know neither
    gates = copy / "tna_onnx/results/gates.py"
    text = gates.read_text(encoding="utf-8")
    field = '    max_gap: float | None = setting(None, "Largest gap.", section=_SECTION, low=0)\n'
    gates.write_text(text.replace("    max_nll: float", f"{field}    max_nll: float", 1), encoding="utf-8")
    images = np.load(copy / "models/digits/test.npz")["image"]
    np.savez(copy / "unlabelled.npz", image=images)
    tool(copy, "tna-onnx calibrate models/digits/model.onnx models/digits/calib.npz --map bias -o bias.onnx")
    tool(copy, "tna-onnx evaluate bias.onnx unlabelled.npz")
    missed = tool(copy, "tna-onnx evaluate gap.onnx models/digits/test.npz --max-gap 0.001", code=1)
    assert "--max-gap" in missed
    lint(copy)


def lint(copy: Path) -> None:
    """Check that an example is as clean as the package."""
    pytest.importorskip("ruff")
    shutil.copy(ROOT / "pyproject.toml", copy)
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "tna_onnx"], cwd=copy, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
