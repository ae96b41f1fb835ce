"""Checks of labels that are numbers: whole ones, from 0 to C - 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from tna_onnx.data.source import AnyArray

__all__ = ["check_integral", "check_range"]


def check_integral(flat: AnyArray, where: str) -> None:
    """Refuse values that are no whole numbers.

    Raises:
        DataError: there are such.
    """
    if flat.dtype.kind in "iu":
        return
    if flat.dtype.kind != "f":
        raise DataError(
            f"{where}: expected integers, found {flat.dtype}; store the index of each sample's class (0, 1, ...)"
        )
    wrong = ~np.isfinite(flat) | (flat != np.trunc(flat))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(
            f"{where}: expected integers, found {np.count_nonzero(wrong)} of {len(flat)} values that are not, first "
            f"{flat[row]} in row {row}; store the index of each sample's class (0, 1, ...)"
        )


def check_range(values: AnyArray, n_classes: int, where: str) -> None:
    """Refuse values that are no class indices.

    Raises:
        DataError: there are such.
    """
    outside = np.count_nonzero((values < 0) | (values >= n_classes))
    if not outside:
        return
    low = values.min()
    high = values.max()
    hint = "remove or correct these"
    if low == 1 and high == n_classes:  # said, not done: labels of another model could look the same
        hint = "they seem to start at 1: subtract 1 so that the first class is 0"
    raise DataError(
        f"{where}: the model has {n_classes} classes, so labels must lie in 0 to {n_classes - 1}, but {outside} of "
        f"{len(values)} do not (smallest {low}, largest {high}); {hint}"
    )
