"""Samples that a model should not know, such as images of other classes: their labels are not its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tna_onnx.data import InputSpec, Source
from tna_onnx.data.options import Data
from tna_onnx.data.unlabelled import NO_LABELS
from tna_onnx.errors import UsageError

__all__ = ["open_unknown"]

# They may have more classes than the model; none of their numbers is read.
_CLASSES = 1 << 31


def open_unknown(data: Data, inputs: Sequence[InputSpec], known: Source) -> Source:
    """Open samples of which only the inputs count; their labels may be any numbers or names.

    Args:
        data: the samples.
        inputs: of the model.
        known: samples that the model knows.

    Raises:
        UsageError: images, of which nobody says how they become what the known samples hold.
        DataError: see `tna_onnx.data.open_source`.
    """
    opened = replace(data, classes=None, labels=NO_LABELS).open(inputs, _CLASSES, None)
    if opened.recipe() is not None and known.recipe() is None and data.preprocessing is None:
        raise UsageError(
            f"--ood-data: {opened.describe()}: are images, and {known.describe()}: hold values as the model takes "
            "them, so how these images become such values is not known; give arrays, or images for both"
        )
    return opened
