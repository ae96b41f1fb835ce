"""Samples from an HDF5 file: one data set per model input, under the input's name, and one called `labels`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.digest import files_sha256
from tna_onnx.data.labelfile import labels_apart
from tna_onnx.data.optional import optional
from tna_onnx.data.sources.columns import LABELS, ArraySource, check_names, open_columns
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from tna_onnx.data.request import Request
    from tna_onnx.data.source import AnyArray, IntArray

__all__ = ["open_hdf5"]


@dataclass(frozen=True, eq=False)
class _DataSet:
    """A data set of an open file; `where` is what messages start with."""

    values: Any = field(repr=False)
    where: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape with the samples along axis 0."""
        return tuple(self.values.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""
        dtype: np.dtype[Any] = self.values.dtype
        return dtype

    def __getitem__(self, rows: IntArray) -> AnyArray:
        """Return the values of `rows` as a new array."""
        if not len(rows):
            return np.zeros((0, *self.shape[1:]), self.dtype)
        try:
            if np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
                # A slice is one read; a list of rows is a selection for each.
                return np.asarray(self.values[int(rows[0]) : int(rows[0]) + len(rows)])
            ordered, inverse = np.unique(rows, return_inverse=True)  # h5py wants each row once, ascending
            return np.asarray(self.values[ordered])[inverse]
        except (OSError, ValueError) as error:
            raise DataError(f"{self.where}: cannot be read ({error}); write the file again") from error


def open_hdf5(path: Path, request: Request) -> ArraySource:
    """Open the data sets for the model's inputs and `labels`; samples are read when asked for.

    Raises:
        UsageError: h5py is missing, or a recipe is given.
        DataError: the file or a data set in it cannot be read or is missing, or its shape, dtype, length or labels do
            not fit the model.
    """
    h5py = optional("h5py", "hdf5", "reading HDF5 files")
    request.check_arrays(str(path))
    try:
        file = h5py.File(path, "r")  # its data sets keep it open
        names = [name for name in file if isinstance(file[name], h5py.Dataset)]
        check_names(str(path), names, request.inputs, need_labels=request.labels is None, noun="data set")
        columns = {spec.name: _DataSet(file[spec.name], f"{path}: {spec.name!r}") for spec in request.inputs}
        stored = None
        if request.labels is None:
            stored = np.asarray(file[LABELS][()])
    except (OSError, KeyError, RuntimeError) as error:
        raise DataError(f"{path}: cannot be read as HDF5 ({error}); write it again") from error
    labels = labels_apart(request, stored)
    return open_columns(
        f"arrays {path.name}",
        str(path),
        request,
        columns,
        labels,
        hashed=lambda indices: files_sha256([path], indices),
        noun="data set",
    )
