"""The types of keywords are those of the fields of the settings."""

from __future__ import annotations

import pytest

from tests.api.make_keywords import FILE, formatted, written


def test_the_file_is_the_one_that_the_fields_make() -> None:
    pytest.importorskip("ruff")
    assert FILE.read_text(encoding="utf-8") == formatted(written())
