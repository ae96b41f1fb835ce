"""Samples from a `.npz` file: one array per model input, under the input's name, and one called `labels`.

Only those arrays are read; they are held in memory. Larger data go into `.npy` files (`tna_onnx.data.sources.npy`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tna_onnx.data.labelfile import labels_apart
from tna_onnx.data.sources.columns import LABELS, ArraySource, check_names, labels_name, open_columns
from tna_onnx.data.sources.npfiles import read_npz

if TYPE_CHECKING:
    from pathlib import Path

    from tna_onnx.data.request import Request

__all__ = ["open_arrays"]


def open_arrays(path: Path, request: Request) -> ArraySource:
    """Load the arrays for the model's inputs and `labels` from the `.npz` file `path`; further arrays are not read.

    Raises:
        UsageError: a recipe is given.
        DataError: the file or an array in it cannot be read, an array is missing, or its shape, dtype, length or labels
            do not fit the model.
    """
    request.check_arrays(str(path))
    apart = request.labels is not None
    inputs = [spec.name for spec in request.inputs]
    label = LABELS

    def choose(names: list[str]) -> list[str]:
        nonlocal label
        label = labels_name(names, request)
        check_names(str(path), names, request.inputs, need_labels=not apart, label=label)
        return inputs if apart else [*inputs, label]

    # Hashed while it is open, so that the digest is that of the values even if the file is replaced.
    arrays, sha256 = read_npz(path, choose, request.limits)
    labels = labels_apart(request, arrays.pop(label, None))
    notes: tuple[str, ...] = ()
    if label != LABELS and not apart:
        notes = (f"{path.name}: the labels are the array {label!r}",)
    title = f"arrays {path.name}"
    return open_columns(title, str(path), request, arrays, labels, hashed=lambda _: sha256, label=label, notes=notes)
