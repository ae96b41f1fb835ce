"""Samples stored as arrays in files: `.npz` archives, `.npy` files and HDF5 files.

Each input of the model is filled by the array of its name; labels are the array `labels`. Other arrays are ignored.

- `.npz`: the arrays are loaded into memory.
- `.npy`: one file per input in a folder, `<input name>.npy`, and `labels.npy`. For a model with one input, the only
  other `.npy` file is that input, whatever its name; a single file `x.npy` needs labels from a separate file. The
  files are memory-mapped, so they may be larger than memory.
- HDF5: one data set per input, read on demand. Values must be stored in the file itself: links to other files are not
  followed, and external storage and virtual data sets, which could name any file on the machine, are refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.digest import files_sha256
from tna_onnx.data.files import check_inside, optional, parsing, regular_size
from tna_onnx.data.labelfile import labels_apart
from tna_onnx.data.sources.columns import LABELS, ArraySource, check_names, labels_name, only_other, open_columns
from tna_onnx.data.sources.npfiles import map_npy, read_npz
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from tna_onnx.data.request import Request
    from tna_onnx.data.source import AnyArray, IntArray


def open_arrays(path: Path, request: Request) -> ArraySource:
    """Load the arrays for the model's inputs and `labels` from the `.npz` file `path`; further arrays are not read.

    Raises:
        UsageError: a recipe is given.
        DataError: the file or an array in it cannot be read, an array is missing, or its shape, dtype, length or labels
            do not fit the model.
    """
    request.check_arrays(str(path))
    separate_labels = request.labels is not None
    inputs = [spec.name for spec in request.inputs]
    label = LABELS

    def choose(names: list[str]) -> list[str]:
        nonlocal label
        label = labels_name(names, request)
        check_names(str(path), names, request.inputs, need_labels=not separate_labels, label=label)
        further = request.columns_beside(str(path), names)
        return [*inputs, *further] if separate_labels else [*inputs, label, *further]

    # Hashed while it is open, so that the digest is that of the values even if the file is replaced.
    arrays, sha256 = read_npz(path, choose, request.limits)
    labels = labels_apart(request, arrays.get(label))
    notes: tuple[str, ...] = ()
    if label != LABELS and not separate_labels:
        notes = (f"{path.name}: the labels are the array {label!r}",)
    title = f"arrays {path.name}"
    return open_columns(
        title, str(path), request, arrays, labels, hashed=lambda _: sha256, label=label, notes=notes, beside=arrays
    )


def open_npy(path: Path, request: Request) -> ArraySource:
    """Map the arrays in the folder `path`, or the file `path` for a model with one input.

    Raises:
        UsageError: a recipe is given.
        DataError: a file is missing or cannot be read, or its shape, dtype, length or labels do not fit the model.
    """
    request.check_arrays(str(path))
    label = request.label_column or LABELS
    files = _files(path, request, label)
    used = [files[spec.name] for spec in request.inputs]
    if path.is_dir():
        named = [file.name for name, file in files.items() if file in used or name == label]
        check_inside(path, named, str(path), request.data_root)
    columns = {spec.name: map_npy(file) for spec, file in zip(request.inputs, used, strict=True)}
    stored = None
    if label in files:
        stored = np.array(map_npy(files[label]))  # in memory: they are needed all at once
    labels = labels_apart(request, stored)
    title = f"arrays {path.resolve().name}"
    further = {name: np.array(map_npy(files[name])) for name in request.columns_beside(str(path), files)}
    return open_columns(
        title, str(path), request, columns, labels, hashed=lambda indices: files_sha256(used, indices), beside=further
    )


def _files(path: Path, request: Request, label: str) -> dict[str, Path]:
    """Return input name or "labels" -> its file."""
    if not path.is_dir():
        return _one_file(path, request)
    files = {file.stem: file for file in sorted(path.glob("*.npy"))}
    if len(request.inputs) == 1:
        input_name = only_other(list(files), request.inputs[0])
        if input_name is not None:
            files[request.inputs[0].name] = files[input_name]
    separate_labels = request.labels is not None
    check_names(str(path), list(files), request.inputs, need_labels=not separate_labels, noun=".npy file", label=label)
    return files


def _one_file(path: Path, request: Request) -> dict[str, Path]:
    """Return input name -> its file."""
    if len(request.inputs) != 1:
        expected = ", ".join(f"{spec.name}.npy" for spec in request.inputs)
        raise DataError(
            f"{path}: one array for a model with {len(request.inputs)} inputs; give a folder with {expected} and "
            "labels.npy"
        )
    if request.labels is None:
        raise DataError(f"{path}: an array without labels; give them with --labels labels.npy")
    return {request.inputs[0].name: path}


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
        separate_labels = request.labels is not None
        check_names(str(path), names, request.inputs, need_labels=not separate_labels, noun="data set", label=label)
        used = [spec.name for spec in request.inputs]
        if not separate_labels:
            used.append(label)
        further = request.columns_beside(str(path), names)
        used += further
        for name in used:
            _check_stored(file[name], f"{path}: {name!r}")
        _check_size(path, [file[name] for name in used], max_bytes)
        columns = {spec.name: _DataSet(file[spec.name], f"{path}: {spec.name!r}") for spec in request.inputs}
        stored = None
        if not separate_labels:
            stored = np.asarray(file[label][()])
        beside = {name: _plain_texts(file[name][()]) for name in further}
    labels = labels_apart(request, stored)
    return open_columns(
        f"arrays {path.name}",
        str(path),
        request,
        columns,
        labels,
        hashed=lambda indices: files_sha256([path], indices),
        noun="data set",
        beside=beside,
    )


def _plain_texts(values: AnyArray) -> AnyArray:
    """Return the values of a data set, texts as such: h5py gives their bytes."""
    if values.dtype.kind not in "OS":
        return values
    return np.array([cell.decode() if isinstance(cell, bytes) else cell for cell in values.tolist()], object)


def _check_stored(data_set: Any, where: str) -> None:
    """Refuse a data set whose values lie in other files, or that has none (a null dataspace).

    Raises:
        DataError: such a data set.
    """
    if data_set.shape is None:
        raise DataError(f"{where}: holds no values, not even an empty array; store an array")
    if data_set.external or data_set.is_virtual:
        raise DataError(f"{where}: its values lie in other files, which are not read; store them in this file")


def _check_size(path: Path, data_sets: list[Any], max_bytes: int) -> None:
    """Refuse data sets whose declared size is far beyond that of the file: values that are not stored read as zeros.

    Raises:
        DataError: they do.
    """
    total = sum(math.prod(data_set.shape) * data_set.dtype.itemsize for data_set in data_sets)
    if total > max_bytes:
        raise DataError(
            f"{path}: its data sets take {total:,} bytes, more than {max_bytes:,}, which is what a file of its size "
            "may expand to; if that is right, raise --data-limit expansion=NUMBER"
        )
