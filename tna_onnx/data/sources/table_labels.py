"""Labels in a column of an Arrow table. Where `datasets` has stored the names of its classes, names decide."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.files import read_text
from tna_onnx.data.labels import listed
from tna_onnx.data.parsing import whole_numbers
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from tna_onnx.data.limits import Limits
    from tna_onnx.data.request import Request
    from tna_onnx.data.source import AnyArray

__all__ = ["INFO", "stored_labels"]

INFO = "dataset_info.json"  # where `datasets` writes the features of a data set


def stored_labels(table: Any, name: str, path: Path, request: Request) -> AnyArray:
    """Return the labels in a column of a table, as numbers or names.

    Raises:
        DataError: cells are empty, or stand for names that the model does not have.
    """
    column = table.column(name)
    # Said here with its row: as a Python value an empty cell is None, which no message explains.
    if column.null_count:
        row = next(row for row, value in enumerate(column) if not value.is_valid)
        raise DataError(f"{path}: column {name!r} has {column.null_count} empty cells, first in row {row}; fill them")
    values = np.array([*column.to_pylist(), None], object)[:-1]  # None keeps NumPy from making axes of nested lists
    if not all(isinstance(value, int) for value in values):
        if all(isinstance(value, (int, float)) for value in values):
            return values.astype(np.float64)
        return values
    indices = whole_numbers(values.tolist())
    # no class of any model has such a number
    if indices.dtype != np.int64:
        row = next(row for row, value in enumerate(values) if not -(2**63) <= value < 2**63)
        raise DataError(f"{path}: column {name!r}: {values[row]} in row {row} is no class index; store the classes")
    known = _class_label(table.schema, name, path, request.limits)
    if known is None or indices.size == 0:
        return indices
    # Without the model's names, indices of the data set can only be taken as the model's if the counts agree.
    if request.class_names is None and len(known) != request.n_classes:
        raise DataError(
            f"{path}: column {name!r} has {len(known)} classes ({listed(known)}), the model has {request.n_classes}; "
            "give the model's class names in its order (--classes FILE)"
        )
    if request.class_names is None:
        return indices
    if indices.min() < 0 or indices.max() >= len(known):
        raise DataError(
            f"{path}: column {name!r} must lie in 0 to {len(known) - 1}, the places of its class names, but goes from "
            f"{indices.min()} to {indices.max()}; remove samples without a label"
        )
    named: AnyArray = np.array(known)[indices]
    return named  # names decide: the data set and the model may order the classes differently


def _class_label(schema: Any, name: str, path: Path, limits: Limits) -> list[str] | None:
    """Return the names that `datasets` stored for the indices of a column, if it did."""
    info: Any = None
    try:
        if b"huggingface" in (schema.metadata or {}):
            info = json.loads(schema.metadata[b"huggingface"])["info"]
        elif path.is_dir() and (path / INFO).is_file():
            info = json.loads(read_text(path / INFO, limits))
        names = info["features"][name]["names"]
    except (
        DataError,
        ValueError,
        LookupError,
        TypeError,
        RecursionError,
    ):  # no such entry, or not in the form of `datasets`
        return None
    if not isinstance(names, list) or not names:
        return None
    return [str(text) for text in names]
