"""Where the external data of a tensor lie: the one reader of a tensor's location, offset and length."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.dtypes import byte_count

__all__ = ["Place", "is_external", "place_of", "placeless"]

# Of the largest file that any system has; its double is still a 64-bit number for ONNX Runtime.
_MAX_DIGITS = 18
# Characters of what stands in the place of a number, in a message.
_MAX_SHOWN = 40


@dataclass(frozen=True)
class Place:
    """A range of bytes in a file.

    Attributes:
        location: the file, relative to the model's folder.
        offset: first byte.
        length: number of bytes, from type and shape where the tensor does not say it.
    """

    location: str
    offset: int
    length: int

    @property
    def end(self) -> int:
        """First byte behind the range."""
        return self.offset + self.length

    def overlaps(self, other: Place) -> bool:
        """Whether two places have bytes in common."""
        return self.location == other.location and self.offset < other.end and other.offset < self.end


def is_external(tensor: TensorProto) -> bool:
    """Whether a tensor's data lie in another file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def place_of(tensor: TensorProto) -> Place:
    """Return where the data of an external tensor lie.

    Raises:
        UnsupportedModel: the offset or the length is not a number, or a text is not UTF-8.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if any(isinstance(text, bytes) for entry in entries.items() for text in entry):
        raise UnsupportedModel(f"tensor '{tensor.name}' has external data in a place that is not UTF-8 text")
    offset = _number(tensor, "offset", entries.get("offset", "0"))
    length = byte_count(tensor)
    if "length" in entries:
        length = _number(tensor, "length", entries["length"])
    return Place(entries.get("location", ""), offset, length)


def placeless(tensor: TensorProto) -> TensorProto:
    """Return a tensor that says how long external data are, but not in which file, and where in it, they lie."""
    if not is_external(tensor):
        return tensor
    copy = TensorProto()
    copy.CopyFrom(tensor)
    del copy.external_data[:]
    copy.external_data.add(key="length", value=str(place_of(tensor).length))
    return copy


def _number(tensor: TensorProto, key: str, text: str) -> int:
    # `int` would take a sign, spaces and underscores, too, and a negative offset would be read from somewhere.
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise UnsupportedModel(
            f"tensor '{tensor.name}' has external data with the {key} '{text[:_MAX_SHOWN]}'; expected a number of bytes"
        )
    return int(text)
