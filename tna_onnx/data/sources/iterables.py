"""Samples from Python objects: arrays by input name, batches from an iterable, or a calibration data reader.

A batch is a mapping {input name: array (B, ...), "labels": (B,)}, or for tuples and lists the model's inputs in their
order and then the labels. A reader's `get_next()` gives mappings without labels, then None. Values are anything that
NumPy can make an array of, and tensors of torch.

Batches are read once and written to temporary files, which are mapped: so a generator can be read again and in any
order, and memory does not grow with the samples.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from tna_onnx.data.digest import arrays_sha256
from tna_onnx.data.labelfile import labels_apart
from tna_onnx.data.source import shape_text
from tna_onnx.data.sources.columns import LABELS, ArraySource, check_names, open_columns
from tna_onnx.errors import DataError, UsageError

if TYPE_CHECKING:
    from tna_onnx.data.request import Request
    from tna_onnx.data.source import AnyArray

__all__ = ["is_iterable", "open_iterable", "open_mapping"]


def is_iterable(data: object) -> bool:
    """Tell whether `open_iterable` may take an object."""
    return callable(data) or hasattr(data, "get_next") or isinstance(data, Iterable)


def open_mapping(data: Mapping[str, Any], request: Request, title: str = "arrays") -> ArraySource:
    """Take arrays of all samples by input name, and the labels under "labels" or apart.

    Raises:
        UsageError: a recipe is given.
        DataError: an array is missing, or its shape, dtype, length or labels do not fit the model.
    """
    request.check_arrays(title)
    label = request.label_column or LABELS
    check_names(title, list(data), request.inputs, need_labels=request.labels is None, label=label)
    arrays = {spec.name: _array(data[spec.name], f"{title}: array {spec.name!r}") for spec in request.inputs}
    stored = None
    if label in data:
        stored = _array(data[label], f"{title}: array {label!r}")
    labels = labels_apart(request, stored)
    return open_columns(title, title, request, arrays, labels, hashed=lambda indices: arrays_sha256(arrays, indices))


def open_iterable(data: Any, request: Request, title: str = "batches") -> ArraySource:
    """Read all batches of an iterable, of the iterable that a function without arguments returns, or of a reader.

    Raises:
        UsageError: a recipe is given, or no room for the temporary files.
        DataError: a batch does not have the form above, batches differ in dtype or in the shape of a sample, or they or
            the labels do not fit the model.
    """
    request.check_arrays(title)
    names = [spec.name for spec in request.inputs]
    wanted = list(names)
    if request.labels is None:
        wanted.append(LABELS)
    if LABELS in names:
        check_names(title, [*names, LABELS], request.inputs)  # raises: that name is taken
    labels: list[AnyArray] = []
    # Temporary files without a name: whatever ends the process, nothing is left on the disk.
    with contextlib.ExitStack() as files:
        columns = {name: _Column(f"{title}: {name!r}", files.enter_context(_temporary())) for name in names}
        for number, batch in enumerate(_batches(data, title)):
            where = f"{title}: batch {number}"
            arrays = _arrays(batch, wanted, where)
            for name in names:
                columns[name].append(arrays[name], where)
            if request.labels is None:
                labels.append(arrays[LABELS])
        if not columns[names[0]].rows:
            raise DataError(f"{title}: gives no samples; an iterator that was read before is empty, give a new one")
        mapped = {name: column.mapped() for name, column in columns.items()}
    values = labels_apart(request, _joined(labels, title))
    return open_columns(title, title, request, mapped, values, hashed=lambda indices: arrays_sha256(mapped, indices))


def _arrays(batch: Any, wanted: list[str], where: str) -> dict[str, AnyArray]:
    """Return the arrays of one batch that are wanted, all of one length."""
    arrays = {name: _array(value, f"{where}: {name!r}") for name, value in _by_name(batch, wanted, where).items()}
    lengths = {name: next(iter(array.shape), None) for name, array in arrays.items()}
    if len(set(lengths.values())) != 1 or None in lengths.values():
        raise DataError(
            f"{where}: every array must have one row per sample along axis 0, but lengths are {lengths}; give the same "
            "samples in each"
        )
    return arrays


def _temporary() -> BinaryIO:
    return tempfile.TemporaryFile(prefix="tna-onnx-")


def _joined(labels: list[AnyArray], title: str) -> AnyArray | None:
    """Join the labels of all batches; None if they bring none."""
    if not labels:
        return None
    if len({part.ndim for part in labels}) > 1:
        raise DataError(f"{title}: labels of some batches have another number of axes; give one per sample, (B,)")
    return np.concatenate(labels)


class _Column:
    """Rows of one input, written to an unnamed temporary file as they come."""

    def __init__(self, where: str, file: BinaryIO) -> None:
        self.where = where
        self.file = file
        self.rows = 0
        self.shape: tuple[int, ...] | None = None
        self.dtype: np.dtype[Any] | None = None

    def append(self, array: AnyArray, where: str) -> None:
        if self.shape is None:
            self.shape = array.shape[1:]
            self.dtype = array.dtype
        if array.shape[1:] != self.shape or array.dtype != self.dtype:
            raise DataError(
                f"{self.where}: batches before have samples of shape {shape_text((None, *self.shape))} and dtype "
                f"{self.dtype}, {where.rpartition(': ')[2]} has {shape_text((None, *array.shape[1:]))} and "
                f"{array.dtype}; bring them to one shape and dtype"
            )
        try:
            self.file.write(np.ascontiguousarray(array).data)
            self.file.flush()  # a full disk is an error here, with its advice, and not in `mapped`
        except OSError as error:
            raise UsageError(
                f"{tempfile.gettempdir()}: no room for the samples ({error.strerror}); set TMPDIR to a larger disk"
            ) from error
        self.rows += len(array)

    def mapped(self) -> AnyArray:
        """Return all rows; the map outlives the file."""
        shape = (self.rows, *(self.shape or ()))
        if os.fstat(self.file.fileno()).st_size == 0:  # samples of shape (0,), say; nothing cannot be mapped
            return np.zeros(shape, self.dtype)
        return np.memmap(self.file, self.dtype or np.float32, "r", shape=shape)


def _batches(data: Any, title: str) -> Iterator[Any]:
    """Return an iterator over what the object gives."""
    if hasattr(data, "get_next"):
        return iter(data.get_next, None)
    if callable(data) and not isinstance(data, Iterable):
        data = data()
        if hasattr(data, "get_next"):
            return iter(data.get_next, None)
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes, Mapping)):
        return iter(data)
    raise DataError(
        f"{title}: expected batches from an iterable, from a function that returns one, or from get_next(), found "
        f"{type(data).__name__}"
    )


def _by_name(batch: Any, wanted: list[str], where: str) -> dict[str, Any]:
    """Return the parts of a batch that are wanted, by name."""
    if isinstance(batch, Mapping):
        missing = [name for name in wanted if name not in batch]
        if missing == [LABELS] and "label" in batch:  # the name of the column in most data sets
            return {**{name: batch[name] for name in wanted if name != LABELS}, LABELS: batch["label"]}
        if missing:
            advice = f"; give labels apart, or under {LABELS!r}" if LABELS in missing else ""
            raise DataError(
                f"{where}: has no {', '.join(map(repr, missing))} (found {', '.join(map(repr, batch))}){advice}"
            )
        return {name: batch[name] for name in wanted}
    if isinstance(batch, (tuple, list)):
        # With labels apart, those that a data loader yields all the same are left alone.
        if len(batch) not in (len(wanted), len(wanted) + (LABELS not in wanted)):
            raise DataError(
                f"{where}: has {len(batch)} parts, expected {len(wanted)}, {', '.join(map(repr, wanted))} in this order"
            )
        return dict(zip(wanted, batch, strict=False))
    if len(wanted) == 1 and LABELS not in wanted:  # labels are given apart: a batch may be the bare array
        return {wanted[0]: batch}
    raise DataError(
        f"{where}: expected a mapping or a tuple of {', '.join(map(repr, wanted))}, found {type(batch).__name__}; for "
        "arrays of all samples give one mapping of name and array"
    )


def _array(value: Any, where: str) -> AnyArray:
    """Return an array; a tensor of torch leaves its graph and device."""
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{where}: cannot be made an array ({error}); give NumPy arrays") from error
    if array.dtype.kind in "OUS" and not where.endswith(f"{LABELS!r}"):  # labels may be names
        found = "objects" if array.dtype.hasobject else str(array.dtype)
        raise DataError(f"{where}: expected numbers, found {found}; give arrays of one shape and dtype")
    return array
