"""`schema.json` is what its script makes of the dataclasses; a field that nobody described is an error."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

pytest.importorskip("pydantic")

from tests.results import make_schema as script


def test_the_file_is_what_the_script_writes() -> None:
    written = script.FILE.read_text(encoding="utf-8")
    assert written == script.text_of(script.make_schema()), "run `python -m tests.results.make_schema`"


@dataclass
class Described:
    """Lines of one and of two lines.

    Attributes:
        first: a fraction: 0.5
            is one half.
        second: of the first.

    Raises:
        KeyError: not a field.
    """

    first: float
    second: int


@dataclass
class Extended(Described):
    """Lines of what it extends count too.

    Attributes:
        third: more.
    """

    third: str


@dataclass
class Silent:
    """Says nothing of its field."""

    first: int


@dataclass
class Talkative:
    """Describes what is not there.

    Attributes:
        first: a field.
        absent: not a field.
    """

    first: int


def test_lines_of_fields() -> None:
    lines = {"first": "a fraction: 0.5 is one half.", "second": "of the first."}
    assert script.attributes(Described) == lines
    assert script.attributes(Extended) == {**lines, "third": "more."}


@pytest.mark.parametrize(("cls", "field"), [(Silent, "first"), (Talkative, "absent")])
def test_fields_and_lines_belong_together(cls: type, field: str) -> None:
    with pytest.raises(ValueError, match=f"{cls.__name__}: `Attributes:` and fields differ in {field}"):
        script.attributes(cls)


def test_a_number_without_a_unit_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"owner\.key: a number without a unit"):
        script._property("owner", "key", {"type": "number", "description": "How good."})


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "number", "description": "A fraction."}, {"minimum": 0, "maximum": 1}),
        ({"type": "integer", "description": "Bins, at least 1."}, {"minimum": 1}),
        ({"type": "integer", "description": "Samples."}, {"minimum": 0}),
        ({"type": "number", "description": "A fraction for ECE, nats for NLL."}, {"minimum": 0}),
    ],
)
def test_units_bound_numbers(schema: dict[str, object], expected: dict[str, int]) -> None:
    assert script._property("owner", "key", schema) == schema | expected
