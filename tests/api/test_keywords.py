"""The types of keywords are those of the fields of the settings."""

from __future__ import annotations

import pytest

from tests.api.make_keywords import FILE, KINDS, formatted, written
from tna_onnx.api import keywords
from tna_onnx.fields import settings_of


def test_the_file_is_the_one_that_the_fields_make() -> None:
    pytest.importorskip("ruff")
    assert FILE.read_text(encoding="utf-8") == formatted(written())


@pytest.mark.parametrize("name", KINDS)
def test_every_setting_is_a_keyword(name: str) -> None:
    cls, _, names = KINDS[name]
    assert [*getattr(keywords, name).__annotations__] == [*(names or settings_of(cls))]
