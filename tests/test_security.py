"""SECURITY.md promises what tests hold: every file that it names is there."""

from __future__ import annotations

import re

from tests.conftest import ROOT

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
