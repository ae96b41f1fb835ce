"""Where external data lie: one reader, which takes what ONNX says and refuses what is not a number."""

from __future__ import annotations

import pytest
from onnx import TensorProto

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.external import Place, place_of


def tensor(**entries: str) -> TensorProto:
    made = TensorProto(name="w", dims=[3, 5], data_type=TensorProto.FLOAT16, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        made.external_data.add(key=key, value=value)
    return made


def test_every_entry_is_read() -> None:
    place = place_of(tensor(location="a/b.bin", offset="4096", length="30", checksum="abc"))
    assert place == Place("a/b.bin", 4096, 30)
    assert place.end == 4126


def test_without_offset_and_length() -> None:
    """ONNX: an offset is 0 unless stated, and the length follows from type and shape, here 15 numbers of 2 bytes."""
    assert place_of(tensor(location="b.bin")) == Place("b.bin", 0, 30)


@pytest.mark.parametrize("key", ["offset", "length"])
@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", " 1", "1_0", "0x10", "one"])
def test_anything_but_digits_is_refused(key: str, text: str) -> None:
    entries = {"location": "b.bin", "offset": "0", "length": "30", key: text}
    with pytest.raises(UnsupportedModel, match=f"tensor 'w' has external data with the {key} '.*'; expected a number"):
        place_of(tensor(**entries))


@pytest.mark.parametrize(
    ("location", "offset", "length", "overlaps"),
    [
        ("b.bin", 10, 5, True),
        ("b.bin", 0, 11, True),
        ("b.bin", 14, 100, True),
        ("b.bin", 0, 100, True),
        ("b.bin", 0, 10, False),
        ("b.bin", 15, 5, False),
        ("c.bin", 10, 5, False),
    ],
)
def test_overlap(location: str, offset: int, length: int, overlaps: bool) -> None:
    place = Place("b.bin", 10, 5)
    other = Place(location, offset, length)
    assert place.overlaps(other) is overlaps
    assert other.overlaps(place) is overlaps
