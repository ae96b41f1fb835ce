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
