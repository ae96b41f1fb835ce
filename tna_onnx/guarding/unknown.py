"""Samples that a model should not know, such as images of other classes: their labels are not its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tna_onnx.data import InputSpec, Source
from tna_onnx.data.options import Data
from tna_onnx.data.unlabelled import NO_LABELS

__all__ = ["open_unknown"]

# They may have more classes than the model; none of their numbers is read.
_CLASSES = 1 << 31


def open_unknown(data: Data, inputs: Sequence[InputSpec]) -> Source:
    """Open samples of which only the inputs count; their labels may be any numbers or names.

    Raises:
        UsageError, DataError: see `tna_onnx.data.open_source`.
    """
    return replace(data, classes=None, labels=NO_LABELS).open(inputs, _CLASSES, None)
