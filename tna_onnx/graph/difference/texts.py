"""Before and after, as short texts."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import TensorProto

from tna_onnx.graph.dtypes import type_name

__all__ = ["arrow", "attribute_text", "info_text", "shortened", "tensor_text"]

# Longer texts do not fit beside a name on a line of the terminal.
_MAX_LENGTH = 60


def shortened(value: Any) -> str:
    """Return a value as text, cut to a length that fits a line."""
    text = str(value)
    if len(text) <= _MAX_LENGTH:
        return text
    return f"{text[: _MAX_LENGTH - 3]}..."


def arrow(before: str, after: str) -> str:
    """Return `before -> after`."""
    return f"{before or 'nothing'} -> {after or 'nothing'}"


def tensor_text(tensor: TensorProto) -> str:
    """Return type and shape of a tensor."""
    return f"{type_name(tensor.data_type)} {tuple(tensor.dims)}"


def info_text(info: onnx.ValueInfoProto) -> str:
    """Return what an input, an output or a value_info declares."""
    try:
        return shortened(onnx.helper.printable_value_info(info))
    except ValueError:  # an element type that this version of ONNX does not know
        return ""


def attribute_text(attribute: onnx.AttributeProto | None) -> str:
    """Return the value of an attribute; nothing for none."""
    if attribute is None:
        return ""
    return shortened(str(onnx.helper.printable_attribute(attribute)).partition(" = ")[2])
