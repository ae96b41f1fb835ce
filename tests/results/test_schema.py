"""The JSON Schema is made of the dataclasses; a field that nobody described is an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tna_onnx.api import schema
from tna_onnx.numerics.metrics import Interval


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
    assert schema._attributes(Described) == lines
    assert schema._attributes(Extended) == {**lines, "third": "more."}


@pytest.mark.parametrize(("cls", "field"), [(Silent, "first"), (Talkative, "absent")])
def test_fields_and_lines_belong_together(cls: type, field: str) -> None:
    with pytest.raises(ValueError, match=f"{cls.__name__}: `Attributes:` and fields differ in {field}"):
        schema._attributes(cls)


def test_a_number_without_a_unit_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"owner\.key: a number without a unit"):
        schema._property("owner.key", float, "How good.")


@pytest.mark.parametrize(
    ("hint", "description", "expected"),
    [
        (float, "A fraction.", {"type": "number", "minimum": 0, "maximum": 1}),
        (int, "Bins, at least 1.", {"type": "integer", "minimum": 1}),
        (int | None, "Samples.", {"type": ["integer", "null"], "minimum": 0}),
        (float, "A fraction for ECE, nats for NLL.", {"type": "number", "minimum": 0}),
        (
            tuple[float, float],
            "Ends, in nats.",
            {"type": "array", "items": {"type": "number", "minimum": 0}, "minItems": 2, "maxItems": 2},
        ),
        (
            dict[str, Interval],
            "Of each metric.",
            {"type": "object", "additionalProperties": {"$ref": "#/$defs/interval"}},
        ),
    ],
)
def test_types_and_units_make_the_schema_of_a_field(hint: Any, description: str, expected: dict[str, object]) -> None:
    assert schema._property("owner.key", hint, description) == expected | {"description": description}
