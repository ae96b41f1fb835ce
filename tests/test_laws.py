"""Laws of the package: exit codes, imports, what may be printed, and what SECURITY.md promises."""

import inspect
import os
import re
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tna_onnx
from tests.conftest import ROOT
from tna_onnx import errors
from tna_onnx.files import printable

# --- Each error has an exit code of its own, and the documents say which


OWN = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
BASE = errors.TnaError


def test_exit_codes_are_unique_and_none_is_success() -> None:
    codes = [kind.exit_code for kind in OWN if BASE in kind.__bases__]
    codes += [errors.INTERNAL_ERROR, errors.INTERRUPTED]
    assert len(set(codes)) == len(codes)
    assert 0 not in codes
    assert max(codes) < 256  # what a process can end with


def test_the_table_of_the_module_is_that_of_its_classes() -> None:
    stated = {name: int(code) for code, name in re.findall(r"(\d+)\s+([A-Z]\w+)", errors.__doc__ or "")}
    expected = {kind.__name__: kind.exit_code for kind in OWN if BASE in kind.__bases__}
    assert stated == {**expected, "INTERNAL_ERROR": errors.INTERNAL_ERROR, "INTERRUPTED": errors.INTERRUPTED}


def test_the_reference_names_every_code() -> None:
    """Its table is written from the errors that are public; the other codes are named by hand."""
    page = (ROOT / "docs/reference/exit-codes.md").read_text("utf-8")
    by_hand = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    public = {kind.exit_code for kind in OWN if kind.__name__ in tna_onnx.__all__ and kind is not BASE}
    every = {kind.exit_code for kind in OWN} | {errors.INTERNAL_ERROR, errors.INTERRUPTED}
    assert public == set(range(1, 6))  # "1 to 5: one of the errors below"
    assert by_hand == every - public | {0}


# --- Each kind of import rule in pyproject.toml can fail: a copy of the package is broken on purpose


LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the package in a folder, which must be the first of that name."""
    pytest.importorskip("importlinter")
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


def test_a_forbidden_import_is_noticed(copy: Path) -> None:
    for module, line in (
        ("maps/temperature.py", "import tna_onnx.graph.load"),
        ("graph/head.py", "import onnxruntime"),
        ("pipeline/reporting.py", "import PIL.Image"),
    ):
        with (copy / "tna_onnx" / module).open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
    done = lint(copy)
    assert done.returncode != 0
    for rule in ("imports point down BROKEN", "only runtime knows onnxruntime", "reads files of others BROKEN"):
        assert rule in done.stdout, done.stdout


def test_a_module_that_no_layer_lists_is_noticed(copy: Path) -> None:
    (copy / "tna_onnx" / "unlisted.py").write_text('"""Nothing."""\n', encoding="utf-8")
    done = lint(copy)
    assert done.returncode != 0
    assert "tna_onnx.unlisted" in done.stdout, done.stdout


# --- What came out of a file cannot act on a terminal


ACTING = "\x00\x07\x08\x1b\r\n\t\x7f\x85\x9b\u061c\u200e\u200f\u202a\u202e\u2066\u2069\u2028\u2029\ud800\udcff\udfff"


def test_what_acts_is_escaped() -> None:
    for character in ACTING:
        text = printable(f"a{character}b")
        assert text.isascii()
        assert text.isprintable()
        assert text == f"a{character!r}b".replace("'", "")


def test_all_else_stays() -> None:
    for text in ("", "head", "größe", "猫", "שלום", "कुत्ता", "👩‍🔬", "a b", r"C:\path", "[red]"):
        assert printable(text) == text


def test_line_breaks_of_a_message_stay() -> None:
    assert printable("one\n  two\r\x1b", lines=True) == "one\n  two\\r\\x1b"


@settings(max_examples=60)
@given(st.text(st.characters(codec=None)))
def test_no_control_is_left(text: str) -> None:
    """The oracle is the Unicode database: categories Cc and Cs, and the classes of explicit directions."""
    shown = printable(text)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
    directions = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert not [c for c in shown if unicodedata.bidirectional(c) in directions]
    assert printable(shown) == shown


# --- SECURITY.md promises what tests hold: every file that it names is there


SECURITY = ROOT / "SECURITY.md"


def test_every_file_that_is_named_exists() -> None:
    named = set(re.findall(r"`((?:tests|docs)/[\w/.-]+)`", SECURITY.read_text(encoding="utf-8")))
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_every_promise_names_a_test() -> None:
    _, _, rest = SECURITY.read_text(encoding="utf-8").partition("## Promises")
    promises = [text for text in rest.partition("\n## ")[0].split("\n\n") if text.startswith("**")]
    assert len(promises) > 5
    assert [text for text in promises if "`tests/" not in text] == []


def test_one_module_writes_files_for_spreadsheets_and_quotes_names() -> None:
    """A cell that begins with = + - @ is a formula there. Whoever writes such a file has to quote names first."""
    writers = re.compile(r"csv\.(writer|DictWriter)|to_csv|write_csv|savetxt|to_excel|openpyxl|xlsx|log_table")
    files = sorted((ROOT / "tna_onnx").rglob("*.py"))
    assert files
    found = [path.relative_to(ROOT).as_posix() for path in files if writers.search(path.read_text(encoding="utf-8"))]
    assert found == ["tna_onnx/studies/run.py"]  # held by tests/cli/test_study.py
