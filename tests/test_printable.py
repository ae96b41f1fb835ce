"""What came out of a file cannot act on a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tna_onnx.files import printable

ACTING = "\x00\x07\x08\x1b\r\n\t\x7f\x85\x9b\u061c\u200e\u200f\u202a\u202e\u2066\u2069\u2028\u2029\ud800\udcff\udfff"


@pytest.mark.parametrize("character", ACTING)
def test_what_acts_is_escaped(character: str) -> None:
    text = printable(f"a{character}b")
    assert text.isascii()
    assert text.isprintable()
    assert text == f"a{character!r}b".replace("'", "")


@pytest.mark.parametrize("text", ["", "head", "größe", "猫", "שלום", "कुत्ता", "👩‍🔬", "a b", r"C:\path", "[red]"])
def test_all_else_stays(text: str) -> None:
    assert printable(text) == text


def test_line_breaks_of_a_message_stay() -> None:
    assert printable("one\n  two\r\x1b", lines=True) == "one\n  two\\r\\x1b"


@given(st.text(st.characters(codec=None)))
def test_no_control_is_left(text: str) -> None:
    """The oracle is the Unicode database: categories Cc and Cs, and the classes of explicit directions."""
    shown = printable(text)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
    directions = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert not [c for c in shown if unicodedata.bidirectional(c) in directions]
    assert printable(shown) == shown
