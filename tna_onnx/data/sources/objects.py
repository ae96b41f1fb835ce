"""Python objects as labelled samples, recognised by their members: no library of theirs is imported.

| object | read as |
|---|---|
| data frame of pandas or polars, table of pyarrow | a table: `tna_onnx.data.sources.table_inputs` |
| `(X, y)`, or an array with `labels=`; mapping of arrays by input name | arrays of all samples; (N,) each: a table |
| iterable, calibration data reader | batches: mappings, or inputs and labels in order |

Batches are read once; where they are large they are mapped from a temporary file.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sized
from typing import Any

import numpy as np

from tna_onnx.data.foreign import any_array, plain_column, reason, repeated
from tna_onnx.data.labelfile import labels_apart
from tna_onnx.data.mapped import GrowingRows
from tna_onnx.data.options import Request
from tna_onnx.data.source import NO_LABELS, AnyArray, Source
from tna_onnx.data.sources.arrays import LABELS, ArraySource, check_arrays, check_names, open_columns, open_mapping
from tna_onnx.data.sources.table_inputs import open_in_memory
from tna_onnx.errors import DataError, NoLabels, UsageError, listed


def open_iterable(data: Any, request: Request) -> ArraySource:
    """Read all batches of an iterable or of a reader."""
    title = "batches"
    check_arrays(request, title)
    names = [spec.name for spec in request.inputs]
    input_names = list(names)
    if request.labels is None:
        input_names.append(LABELS)
    if LABELS in names:
        check_names(title, [*names, LABELS], request.inputs)  # raises: that name is taken
    labels: list[AnyArray] = []
    n_labels = math.inf
    if request.labels is not None and request.labels is not NO_LABELS:
        n_labels = len(np.atleast_1d(labels_apart(request, None)))
    columns = {name: GrowingRows(f"{title}: {name!r}") for name in names}
    batches = data
    if hasattr(data, "get_next"):
        batches = itertools.takewhile(lambda batch: batch is not None, (data.get_next() for _ in itertools.count()))
    for number, batch in enumerate(batches):
        where = f"{title}: batch {number}"
        arrays = _arrays(batch, input_names, where)
        for name in names:
            columns[name].append(np.array(arrays[name]))  # a loader may fill one buffer again and again
        if columns[names[0]].rows > n_labels:  # or go on for ever
            raise DataError(f"{where}: {n_labels} labels for more samples; give exactly one label per sample")
        if request.labels is None:
            labels.append(arrays[LABELS])
    if not columns[names[0]].rows:
        raise DataError(f"{title}: gives no samples; an iterator that was read before is empty, give a new one")
    mapped = {name: column.array() for name, column in columns.items()}
    if len({part.ndim for part in labels}) > 1:
        raise DataError(f"{title}: labels of some batches have another number of axes; give one per sample, (B,)")
    return open_columns(title, title, request, mapped, np.concatenate(labels) if labels else None)


def _arrays(batch: Any, input_names: list[str], where: str) -> dict[str, AnyArray]:
    """Return the arrays of one batch that are wanted, all of one length."""
    arrays = {}
    for name, value in _by_name(batch, input_names, where).items():
        try:
            array = arrays[name] = any_array(value)
        except (TypeError, ValueError, RuntimeError) as error:  # of the library whose values these are
            text = f"{where}: {name!r}: cannot be made an array ({reason(error)}); give NumPy arrays"
            raise DataError(text) from error
        if name != LABELS and array.dtype.kind in "OUS":
            kind = "objects"
            if not array.dtype.hasobject:
                kind = str(array.dtype)
            raise DataError(f"{where}: {name!r}: expected numbers, found {kind}; give arrays of one shape and dtype")
    lengths = {name: next(iter(array.shape), None) for name, array in arrays.items()}
    if len(set(lengths.values())) != 1 or None in lengths.values():
        raise DataError(
            f"{where}: every array must have one row per sample along axis 0, but lengths are {lengths}; give the same "
            "samples in each"
        )
    return arrays


def _by_name(batch: Any, input_names: list[str], where: str) -> dict[str, Any]:
    """Return the parts of a batch that are wanted, by name."""
    if isinstance(batch, Mapping):
        parts = dict(batch)
        if "label" in parts:  # the name of the column in most data sets
            parts.setdefault(LABELS, parts["label"])
        missing = [name for name in input_names if name not in parts]
        if missing:
            advice = ""
            if LABELS in missing:
                advice = f"; give labels apart, or under {LABELS!r}"
            raise DataError(f"{where}: has no {listed(missing)} (found {listed(map(str, batch))}){advice}")
        return {name: parts[name] for name in input_names}
    if isinstance(batch, (tuple, list)):
        # With labels apart, those that a data loader yields all the same are left alone.
        if len(batch) not in (len(input_names), len(input_names) + (LABELS not in input_names)):
            expected = f"{len(input_names)}, {listed(input_names)} in this order"
            raise DataError(f"{where}: has {len(batch)} parts, expected {expected}")
        return dict(zip(input_names, batch, strict=False))
    if len(input_names) == 1 and LABELS not in input_names:  # labels are given apart: a batch may be the bare array
        return {input_names[0]: batch}
    raise DataError(
        f"{where}: expected a mapping or a tuple of {listed(input_names)}, found {type(batch).__name__}; for arrays of "
        "all samples give one mapping of name and array"
    )


def open_object(data: Any, request: Request) -> Source:
    """Open samples that are a Python object."""
    data = tuple(map(_collected, data)) if isinstance(data, tuple) else _collected(data)
    if _is_set_of_items(data):
        raise UsageError(
            f"found a data set, {type(data).__name__}; expected its batches: torch's DataLoader(data, batch_size=64), "
            "data.iter(batch_size=64) of datasets, data.iter_batches(batch_format='numpy') of Ray Data; or a file: "
            "data.to_parquet('calib.parquet') of datasets, which keeps images and the names of the classes"
        )
    if _is_pair(data, request):
        data, labels = data
        if isinstance(data, list):
            data = any_array(data)
        request = dataclasses.replace(request, labels=labels)
    if _is_frame(data):
        return open_in_memory("data frame", "data frame", _frame_columns(data), request)
    if _is_array(data):
        return _open_array(any_array(data), request)
    if isinstance(data, Mapping):  # before iterables: a mapping is one too
        return _open_mapping(data, request)
    if hasattr(data, "get_next") or isinstance(data, Iterable):
        request.check_no_table(type(data).__name__)
        if isinstance(data, list) and len(data) == 2 and _is_pair(tuple(data), request):
            raise UsageError("[X, y]: a list is taken for batches; give arrays of all samples as a tuple, (X, y)")
        return open_iterable(data, request)
    raise UsageError(
        f"expected a path, a source, a data frame, (X, y), a mapping of arrays or batches, found "
        f"{type(data).__name__}; name the file or folder of the samples"
    )


def _collected(data: Any) -> Any:
    """Read a lazy frame of polars, whose names alone cost a warning; return all else as it is."""
    if hasattr(data, "collect_schema") and hasattr(data, "collect"):
        return data.collect()
    return data


def _is_pair(data: Any, request: Request) -> bool:
    """Tell whether data are (X, y); a tuple of batches contains tuples, mappings or arrays of inputs instead."""
    if not isinstance(data, tuple) or len(data) != 2 or request.labels is not None:
        return False
    x, y = data
    is_column = _is_array(y) or _is_frame(y) or isinstance(y, list) or hasattr(y, "to_pylist")
    if isinstance(y, (Mapping, tuple, str)) or not is_column:
        return False
    return _is_frame(x) or _is_array(x) or isinstance(x, (list, Mapping))


def _is_array(data: Any) -> bool:
    """Tell whether data are an array of NumPy or SciPy, a tensor, or a series of a data frame."""
    return hasattr(data, "dtype") and hasattr(data, "shape")


def _is_frame(data: Any) -> bool:
    if _is_array(data) or isinstance(data, Mapping):
        return False
    if any(hasattr(data, name) for name in ("__dataframe__", "__arrow_c_stream__")):
        return hasattr(data, "columns")
    return hasattr(data, "columns") and hasattr(data, "dtypes")


def _is_set_of_items(data: Any) -> bool:
    """Tell whether data are a set of samples of torch, `datasets` or Ray, and no batches of them."""
    if type(data).__module__.startswith("ray.data") and hasattr(data, "iter_batches"):
        return True
    if all(hasattr(data, name) for name in ("column_names", "to_parquet")):
        return True
    recognised = isinstance(data, (str, Iterable)) or _is_array(data) or _is_frame(data)
    return not recognised and hasattr(data, "__getitem__") and isinstance(data, Sized)


def _frame_columns(data: Any) -> dict[str, AnyArray]:
    # pyarrow has the names apart; a pandas column may be called 0
    column_names = list(getattr(data, "column_names", data.columns))
    names = [str(name) for name in column_names]
    if twice := repeated(names):
        raise DataError(f"data frame: several columns are called {listed(twice)}; give each a name of its own")
    return {name: plain_column(any_array(data[key])) for name, key in zip(names, column_names, strict=True)}


def _open_array(values: AnyArray, request: Request) -> Source:
    """Take one array as the only input, or its columns as the inputs of one number each."""
    request.check_no_table(f"array {values.shape}")
    specs = list(request.inputs)
    if request.labels is None:
        raise NoLabels(f"array {values.shape}: has no labels; give (X, y), or labels= beside it")
    if values.ndim == 2 and all(len(spec.shape) <= 2 for spec in specs) and values.dtype.kind in "biufO":
        names = tuple(str(number) for number in range(values.shape[1]))
        if len(specs) > 1 or values.dtype != specs[0].dtype:
            columns = {name: plain_column(values[:, number]) for number, name in enumerate(names)}
            source = open_in_memory("array", "array", columns, dataclasses.replace(request, columns=names))
            # that columns without names are taken in their order goes without saying
            if len(specs) > 1:
                return source
            return dataclasses.replace(source, notes=())
    if len(specs) != 1:
        raise DataError(
            f"array {values.shape}: one array for a model with {len(specs)} inputs; give a mapping with "
            f"{listed(spec.name for spec in specs)}"
        )
    return open_mapping({specs[0].name: values}, request, title="array")


def _open_mapping(data: Mapping[str, Any], request: Request) -> Source:
    names = [spec.name for spec in request.inputs]
    # columns of a table: labels may be the only array that has another name in a mapping of inputs
    arrays = {str(name): any_array(values) for name, values in data.items()}
    flat = all(array.ndim == 1 for array in arrays.values())
    if not flat or not all(len(spec.shape) == 2 for spec in request.inputs) or set(arrays) <= {*names[:1], LABELS}:
        request.check_no_table("arrays")
        return open_mapping(data, request)
    columns = {name: plain_column(array) for name, array in arrays.items()}
    return open_in_memory("arrays", "arrays", columns, request)
