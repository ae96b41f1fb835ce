"""Columns of single numbers, side by side, as the array that an input of the model takes.

Tables have no dtype of the model's: pandas counts in float64, CSV files in nothing at all. So numbers are converted to
the dtype of the input. Where that would lose more than the last digits of a fraction, it is refused, with column and
row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tna_onnx.data.source import AnyArray, InputSpec, IntArray
    from tna_onnx.data.sources.columns import Column

__all__ = ["Stacked", "stack"]


@dataclass(frozen=True, eq=False)
class Stacked:
    """Columns (N,) of numbers as one array (N, n), or (N,); a `Column`.

    Attributes:
        where: what messages start with.
        names: of the columns.
        parts: their values.
        shape: of the array.
        dtype: of the model's input.
    """

    where: str
    names: tuple[str, ...]
    parts: tuple[Column, ...] = field(repr=False)
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __getitem__(self, rows: IntArray, /) -> AnyArray:
        """Return the values of `rows` as a new array.

        Raises:
            DataError: a cell is empty, not finite, or no number of the dtype.
        """
        values = np.empty((len(rows), len(self.parts)), self.dtype)
        for place, (name, part) in enumerate(zip(self.names, self.parts, strict=True)):
            values[:, place] = self._converted(name, part[rows], rows)
        return values.reshape(len(rows), *self.shape[1:])

    def _converted(self, name: str, part: AnyArray, rows: IntArray) -> AnyArray:
        with np.errstate(over="ignore", invalid="ignore"):
            converted = part.astype(self.dtype)
        if self.dtype.kind == "f":
            wrong = ~np.isfinite(converted)
            wanted = f"a finite number of {self.dtype}"
        else:
            wrong = converted != part  # NaN differs from everything
            wanted = f"a whole number of {self.dtype}"
        if wrong.any():
            at = int(np.argmax(wrong))
            raise DataError(
                f"{self.where}: column {name!r}: expected {wanted}, found {part[at]} in row {rows[at]} (NaN is an "
                "empty cell); fill it as for the training, or remove the row"
            )
        return converted


def stack(where: str, spec: InputSpec, names: Sequence[str], parts: Sequence[Column]) -> Stacked:
    """Put columns of numbers side by side for an input of one axis or two."""
    n_rows = parts[0].shape[0]
    shape = (n_rows,) if len(spec.shape) == 1 else (n_rows, len(parts))
    return Stacked(where, tuple(names), tuple(parts), shape, spec.dtype)
