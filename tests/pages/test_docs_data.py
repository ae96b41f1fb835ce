"""The table of docs/data.md names every format and source, and the tests that read them; `test_docs.py` runs it."""

from __future__ import annotations

import re

from tests.cli.test_data import SOURCES
from tests.conftest import ROOT
from tna_onnx.data import FORMATS

PAGE = (ROOT / "docs/data.md").read_text(encoding="utf-8")


def table_rows() -> list[list[str]]:
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in PAGE.splitlines() if line.startswith("|")]
    start = next(k for k, row in enumerate(rows) if row[0].strip() == "`--format`")
    return [[cell.strip() for cell in row] for row in rows[start + 2 :] if len(row) == 5]


def test_the_table_names_every_format_and_the_tests_that_read_it() -> None:
    rows = table_rows()
    assert {row[0].strip("`") for row in rows if row[0].startswith("`")} == set(FORMATS)
    for row in rows:
        for name in re.findall(r"[\w/]*test_\w+\.py", row[3]):
            assert list((ROOT / "tests").rglob(name.removeprefix("tests/"))), name
    named = [name for row in rows if "`" not in row[4] for name in row[4].split("; ")]
    assert sorted(named) == sorted(SOURCES)
    code = (ROOT / "tests/cli/test_data.py").read_text(encoding="utf-8")
    for name in re.findall(r"`(test_\w+)`", "".join(row[4] for row in rows)):
        assert f"def {name}(" in code


def test_the_page_shows_what_data_need() -> None:
    for flag in ("--cache", "--classes", "--expect-accuracy", "--labels", "--label-column", "--skip-bad"):
        assert flag in PAGE
    assert "tna-onnx features" in PAGE
