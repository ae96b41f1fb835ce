"""Python objects as labelled samples: data frames, arrays, data sets, batches.

| object | read as |
|---|---|
| data frame of pandas or polars, table of pyarrow | a table: `tna_onnx.data.sources.inmemory` |
| `(X, y)`, or an array beside `labels=` | arrays of all samples; X may be a data frame |
| mapping of arrays by input name | arrays of all samples; of columns (N,), a table |
| data set of `datasets` | a Parquet file, with its images, in a temporary folder |
| data set of torch, or what else has `[i]` and a length | its items, in batches |
| iterable, function, reader | batches |

None of these libraries is imported: an object is known by its members.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.labels import listed
from tna_onnx.data.sources.columns import LABELS
from tna_onnx.data.sources.delimited import aligned
from tna_onnx.data.sources.inmemory import open_in_memory, plain_column
from tna_onnx.data.sources.iterables import is_iterable, open_iterable, open_mapping
from tna_onnx.data.sources.tables import open_table
from tna_onnx.errors import DataError, TnaError, UsageError

if TYPE_CHECKING:
    from tna_onnx.data.request import Request
    from tna_onnx.data.source import AnyArray, Source

__all__ = ["open_object"]

_ITEMS = 64  # of a data set, in a batch


def open_object(data: Any, request: Request) -> Source:
    """Open samples that are a Python object.

    Raises:
        UsageError: it is none of those in the module's docstring, or an argument does not apply.
        DataError: the samples or labels do not fit the model.
    """
    if _is_pair(data, request):
        data, labels = data
        if isinstance(data, list):
            data = _array(data)
        request = dataclasses.replace(request, labels=plain_column(_array(labels)))
    if _is_hugging_face(data):
        return _open_hugging_face(data, request)
    if _is_frame(data):
        return open_in_memory("data frame", "data frame", _frame_columns(data), request)
    if _is_array(data):
        return _open_array(_array(data), request)
    if isinstance(data, Mapping):  # before iterables: a mapping is one too
        return _open_mapping(data, request)
    if _has_items(data) or is_iterable(data):
        request.check_no_table(type(data).__name__)
    if _has_items(data):
        return open_iterable(_items(data), request, title=f"data set {type(data).__name__}")
    if isinstance(data, list) and len(data) == 2 and _is_pair(tuple(data), request):
        raise UsageError("[X, y]: a list is taken for batches; give arrays of all samples as a tuple, (X, y)")
    if is_iterable(data):
        return open_iterable(data, request)
    raise UsageError(
        f"expected a path, a source, a data frame, (X, y), a mapping of arrays or batches, found "
        f"{type(data).__name__}; name the file or folder of the samples"
    )


def _is_pair(data: Any, request: Request) -> bool:
    """Tell whether data are (X, y); a tuple of batches has tuples, mappings or bare arrays of inputs in it."""
    if not isinstance(data, tuple) or len(data) != 2 or request.labels is not None:
        return False
    x, y = data
    if isinstance(y, (Mapping, tuple, str)) or not (_is_array(y) or isinstance(y, list)):
        return False
    return _is_frame(x) or _is_array(x) or isinstance(x, (list, Mapping))


def _is_array(data: Any) -> bool:
    """Tell arrays of NumPy and SciPy, tensors, and series of data frames."""
    return hasattr(data, "dtype") and hasattr(data, "shape")


def _is_frame(data: Any) -> bool:
    if _is_array(data) or isinstance(data, Mapping):
        return False
    if any(hasattr(data, name) for name in ("__dataframe__", "__arrow_c_stream__")):
        return hasattr(data, "columns")
    return hasattr(data, "columns") and hasattr(data, "dtypes")


def _is_hugging_face(data: Any) -> bool:
    return all(hasattr(data, name) for name in ("features", "column_names", "to_parquet"))


def _has_items(data: Any) -> bool:
    known = isinstance(data, (str, Iterable))
    return not known and hasattr(data, "__getitem__") and isinstance(data, Sized)


def _frame_columns(data: Any) -> dict[str, AnyArray]:
    # pyarrow has the names apart; a pandas column may be called 0
    given = list(getattr(data, "column_names", data.columns))
    names = [str(name) for name in given]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise DataError(f"data frame: several columns are called {listed(twice)}; give each a name of its own")
    return {name: plain_column(_array(data[key])) for name, key in zip(names, given, strict=True)}


def _open_array(values: AnyArray, request: Request) -> Source:
    """Take one array as the only input, or its columns as the inputs of one number each."""
    request.check_no_table(f"array {values.shape}")
    specs = list(request.inputs)
    if request.labels is None:
        raise DataError(f"array {values.shape}: has no labels; give (X, y), or labels= beside it")
    if values.ndim == 2 and all(len(spec.shape) <= 2 for spec in specs) and values.dtype.kind in "biufO":
        names = tuple(str(number) for number in range(values.shape[1]))
        if len(specs) > 1 or values.dtype != specs[0].dtype:
            columns = {name: plain_column(values[:, number]) for number, name in enumerate(names)}
            source = open_in_memory("array", "array", columns, dataclasses.replace(request, columns=names))
            # that columns without names are taken in their order goes without saying
            return source if len(specs) > 1 else dataclasses.replace(source, notes=())
    if len(specs) != 1:
        raise DataError(
            f"array {values.shape}: one array for a model with {len(specs)} inputs; give a mapping with "
            f"{listed(spec.name for spec in specs)}"
        )
    return open_mapping({specs[0].name: values}, request, title="array")


def _open_mapping(data: Mapping[str, Any], request: Request) -> Source:
    if data and all(_is_hugging_face(part) for part in data.values()):
        raise UsageError(f"expected one data set, found {len(data)}; choose one of {listed(map(str, data))}")
    names = [spec.name for spec in request.inputs]
    data = _in_one_order(data)
    # columns of a table: labels may be the only array that has another name in a mapping of inputs
    arrays = {str(name): _array(values) for name, values in data.items()}
    flat = all(array.ndim == 1 for array in arrays.values())
    if not flat or not all(len(spec.shape) == 2 for spec in request.inputs) or set(arrays) <= {*names[:1], LABELS}:
        request.check_no_table("arrays")
        return open_mapping(data, request)
    columns = {name: plain_column(array) for name, array in arrays.items()}
    return open_in_memory("arrays", "arrays", columns, request)


def _in_one_order(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return {column: {row: value}}, as `DataFrame.to_dict` writes it, as lists with one order of the rows.

    Raises:
        DataError: the columns have different rows.
    """
    if not data or not all(isinstance(column, Mapping) for column in data.values()):
        return data
    if any(any(isinstance(cell, (Mapping, list, np.ndarray)) for cell in column.values()) for column in data.values()):
        return data
    return aligned("mapping", {str(name): column for name, column in data.items()})


def _open_hugging_face(data: Any, request: Request) -> Source:
    # rows are made when they are asked for: what is stored is something else
    if getattr(data, "format", {}).get("type") == "custom":
        return open_iterable(_items(data), request, title="data set")
    folder = Path(tempfile.mkdtemp(prefix="tna-onnx-"))
    copy = folder / "dataset.parquet"
    try:
        _write(data, copy)
        source = open_table(copy, request)
    except (TnaError, OSError) as error:
        _remove(folder)
        if isinstance(error, TnaError):
            raise type(error)(str(error).replace(str(copy), "data set")) from error
        raise UsageError(
            f"{folder}: no room for a copy of the data set ({error}); set TMPDIR to a larger disk"
        ) from error
    named = dataclasses.replace(source, title="data set")
    weakref.finalize(named, _remove, folder)
    return named


def _write(data: Any, path: Path) -> None:
    """Write a data set, without the bar that `datasets` shows."""
    library = sys.modules.get("datasets")
    shown = library is not None and not library.are_progress_bars_disabled()
    if library is not None and shown:
        library.disable_progress_bars()
    try:
        data.to_parquet(str(path))
    finally:
        if library is not None and shown:
            library.enable_progress_bars()


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _items(data: Any) -> Iterator[Any]:
    """Yield the items of a data set, joined to batches."""
    for start in range(0, len(data), _ITEMS):
        items = [data[row] for row in range(start, min(start + _ITEMS, len(data)))]
        first = items[0]
        if isinstance(first, Mapping):
            yield {name: _joined([item[name] for item in items]) for name in first}
        elif isinstance(first, (tuple, list)):
            yield tuple(_joined(list(parts)) for parts in zip(*items, strict=True))
        else:
            yield _joined(items)


def _joined(values: list[Any]) -> AnyArray:
    """Stack the parts of several items; what cannot be stacked is a list of objects, which the reader refuses."""
    arrays = [_array(value) for value in values]
    if len({array.shape for array in arrays}) > 1:
        shapes = sorted({str(array.shape) for array in arrays})
        raise DataError(f"data set: its samples have shapes {', '.join(shapes)}; bring them to one shape")
    return np.stack(arrays)


def _array(values: Any) -> AnyArray:
    """Return an array of what NumPy, torch, SciPy, pandas, polars or pyarrow call one."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    elif hasattr(values, "toarray"):  # a sparse matrix
        values = values.toarray()
    elif hasattr(values, "to_numpy"):  # of lists, pandas and polars give objects, one a row
        values = values.to_numpy()
    try:
        return np.asarray(values)
    except ValueError:  # lists that differ in length
        return np.array([*values, None], object)[:-1]
