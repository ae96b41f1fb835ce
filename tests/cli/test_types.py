"""Texts of options -> values, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import pytest

from tna_onnx.cli.options import Number, Words, batch_size, flat, members, numbers, size

CTX, OPTION = click.Context(click.Command("test")), click.Option(["--option"])


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (batch_size, "auto", "auto"),
        (batch_size, "64", 64),
        (members, "inf", "inf"),
        (members, "12", 12),
        (numbers, "0.5,1,2e-1", (0.5, 1.0, 0.2)),
        (numbers, None, None),
        (size, "224", 224),
        (size, "224,320", (224, 320)),
        (size, None, None),
    ],
)
def test_values(parse: Callable[..., Any], text: str | None, value: object) -> None:
    assert parse(CTX, OPTION, text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (batch_size, "0"),
        (batch_size, "+3"),
        (batch_size, "1_0"),
        (batch_size, "inf"),
        (members, "-1"),
        (members, "many"),
        (numbers, "1;2"),
        (size, "1,2,3"),
        (size, "wide"),
    ],
)
def test_what_is_refused_is_in_the_message(parse: Callable[..., Any], text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected") as caught:
        parse(CTX, OPTION, text)
    assert f"got '{text}'" in caught.value.message


def test_a_number_is_in_its_range_and_is_a_number() -> None:
    assert Number(0, 100).convert("12.5", OPTION, CTX) == 12.5
    for text in ("101", "nan", "x"):
        with pytest.raises(click.BadParameter):
            Number(0, 100).convert(text, OPTION, CTX)


def test_words_are_joined_without_repetition() -> None:
    kind = Words(("a", "b", "c"))
    groups = tuple(kind.convert(text, OPTION, CTX) for text in ("c,a", "a,b"))
    assert flat(CTX, OPTION, groups) == ("c", "a", "b")
    with pytest.raises(click.BadParameter, match="'d' is not one of"):
        kind.convert("a,d", OPTION, CTX)
