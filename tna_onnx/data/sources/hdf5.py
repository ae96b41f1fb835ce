"""Samples from an HDF5 file: one data set per model input, under the input's name, and one called `labels`.

The values must lie in this file. HDF5 can also name other files, any on the machine, by links, as raw storage and as
parts of a virtual data set: links are not followed, and the other two are refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.digest import files_sha256
from tna_onnx.data.files import regular_size
from tna_onnx.data.labelfile import labels_apart
from tna_onnx.data.optional import optional
from tna_onnx.data.parsing import parsing
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
        with parsing(self.where, "cannot be read", "write the file again"):
            if np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
                # A slice is one read; a list of rows is a selection for each.
                return np.asarray(self.values[int(rows[0]) : int(rows[0]) + len(rows)])
            ordered, inverse = np.unique(rows, return_inverse=True)  # h5py wants each row once, ascending
            return np.asarray(self.values[ordered])[inverse]


def open_hdf5(path: Path, request: Request) -> ArraySource:
    """Open the data sets for the model's inputs and `labels`; samples are read when asked for.

    Raises:
        UsageError: h5py is missing, or a recipe is given.
        DataError: the file or a data set in it cannot be read or is missing, or its shape, dtype, length or labels do
            not fit the model.
    """
    h5py = optional("h5py", "hdf5", "reading HDF5 files")
    request.check_arrays(str(path))
    max_bytes = request.limits.expanded_bytes(regular_size(path))
    with parsing(str(path), "cannot be read as HDF5", "write it again"):
        file = h5py.File(path, "r")  # its data sets keep it open
        # Links are not even opened: they may lead to other files.
        plain = [name for name in file if isinstance(file.get(name, getlink=True), h5py.HardLink)]
        names = [name for name in plain if isinstance(file[name], h5py.Dataset)]
        label = request.label_column or LABELS
        apart = request.labels is not None
        check_names(str(path), names, request.inputs, need_labels=not apart, noun="data set", label=label)
        used = [spec.name for spec in request.inputs]
        if not apart:
            used.append(label)
        for name in used:
            _check_stored(file[name], f"{path}: {name!r}")
        _check_size(path, [file[name] for name in used], max_bytes)
        columns = {spec.name: _DataSet(file[spec.name], f"{path}: {spec.name!r}") for spec in request.inputs}
        stored = None
        if not apart:
            stored = np.asarray(file[label][()])
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


def _check_stored(data_set: Any, where: str) -> None:
    """Refuse a data set whose values lie in other files.

    Raises:
        DataError: such a data set.
    """
    if data_set.external or data_set.is_virtual:
        raise DataError(f"{where}: its values lie in other files, which are not read; store them in this file")


def _check_size(path: Path, data_sets: list[Any], max_bytes: int) -> None:
    """Refuse data sets that claim far more than the file holds: what is not stored reads as zeros.

    Raises:
        DataError: they do.
    """
    total = sum(math.prod(each.shape or ()) * each.dtype.itemsize for each in data_sets)
    if total > max_bytes:
        raise DataError(
            f"{path}: its data sets take {total:,} bytes, more than {max_bytes:,}, which is what a file of its size "
            "may expand to; if that is right, raise --data-limit expansion=NUMBER"
        )
