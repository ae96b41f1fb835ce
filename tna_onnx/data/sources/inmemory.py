"""Tables in memory: columns by name, of a text file, a data frame or plain arrays, as the inputs of a model.

Which column goes where is settled in `tna_onnx.data.sources.layout`.
"""

from __future__ import annotations

import numbers
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.digest import arrays_sha256
from tna_onnx.data.labelfile import find_label_column, labels_apart
from tna_onnx.data.marked import joined_columns, marked_labels
from tna_onnx.data.parsing import whole_numbers
from tna_onnx.data.sources.columns import LABELS, ArraySource, open_columns
from tna_onnx.data.sources.layout import Kind, lay_out, texts_of
from tna_onnx.data.sources.ragged import padded, token_columns
from tna_onnx.data.sources.stacked import stack
from tna_onnx.data.sources.tokens import text_columns, tokenized
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tna_onnx.data.request import Request
    from tna_onnx.data.source import AnyArray, InputSpec, IntArray

__all__ = ["open_in_memory", "plain_column"]

# What libraries put where a value is missing, by the names of the types: none of them need be installed.
_MISSING = ("NoneType", "NAType", "NaTType")


def open_in_memory(
    title: str,
    where: str,
    columns: Mapping[str, AnyArray],
    request: Request,
    *,
    hashed: Callable[[IntArray], str] | None = None,
) -> ArraySource:
    """Take columns of one length as the inputs of the model, and one of them as the labels.

    Args:
        title: what reports call the data.
        where: what messages start with.
        columns: name -> values (N,), as `plain_column` returns them.
        request: what the model wants.
        hashed: computes the digest, given the class indices; None hashes the values.

    Raises:
        UsageError: a recipe is given.
        DataError: the columns or labels do not fit the model.
    """
    request.check_arrays(where)
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"{where}: every column must have one row per sample, found lengths {lengths}; store them alike"
        )
    if request.labels is None and request.label_columns:
        columns = joined_columns(columns, request.label_columns, LABELS, where, request.n_classes, request.class_names)
        request = replace(request, label_column=LABELS)
    kinds: dict[str, Kind] = {name: _kind(values) for name, values in columns.items()}
    label = None
    if request.labels is None:
        inputs = [spec.name for spec in request.inputs]
        rest = {name: kind for name, kind in kinds.items() if name not in (*inputs, *request.columns)}
        label = find_label_column([*rest], request.label_column, where, texts_of(rest))
        if request.multi_label and columns[label].dtype.kind != "O":
            # before the columns of the inputs, which the other labels may be taken for
            marked_labels(columns[label], len(columns[label]), request.n_classes, f"{where}: column {label!r}")
    tokens = token_columns(kinds, request)
    if tokens and _needs_padding(tokens, columns, request):
        arrays, note = padded(where, {role: (name, columns[name].tolist()) for role, name in tokens.items()}, request)
    elif request.tokenizer is None:
        layout = lay_out(where, kinds, request, label)
        note = layout.note
        arrays = {spec.name: _filled(where, spec, layout.columns[spec.name], columns, kinds) for spec in request.inputs}
    else:
        chosen = text_columns(where, [name for name in kinds if kinds[name] == "text" and name != label], request)
        arrays, note = tokenized(where, [(name, columns[name].tolist()) for name in chosen], request)
    return open_columns(
        title,
        where,
        request,
        arrays,
        labels_apart(request, None if label is None else columns[label]),
        hashed=hashed or (lambda indices: arrays_sha256(arrays, indices)),
        noun="column",
        label=label,
        notes=(note,) if note else (),
    )


def plain_column(values: Any) -> AnyArray:
    """Return values as an array (N,) or (N, ...) of numbers where all are numbers or missing, else of objects."""
    array = np.asarray(values)
    if array.dtype.kind == "U":
        return array.astype(object)
    if array.dtype.kind != "O" or array.ndim != 1:
        return array
    cells = array.tolist()
    missing = [type(cell).__name__ in _MISSING for cell in cells]
    plain = [gone or (isinstance(cell, numbers.Real)) for cell, gone in zip(cells, missing, strict=True)]
    if not cells or not all(plain) or all(missing):
        return array
    if all(isinstance(cell, bool) for cell in cells):
        return array.astype(bool)
    if not any(missing) and all(isinstance(cell, numbers.Integral) for cell in cells):
        return whole_numbers([int(cell) for cell in cells])
    return np.array([np.nan if gone else float(cell) for cell, gone in zip(cells, missing, strict=True)])


def _kind(values: AnyArray) -> Kind:
    if values.ndim > 1:
        return "list"
    if values.dtype.kind in "biuf":
        return "number"
    if values.dtype.kind != "O":
        return "other"
    filled = [cell for cell in values if type(cell).__name__ not in _MISSING]
    if filled and all(isinstance(cell, str) for cell in filled):
        return "text"
    if filled and all(isinstance(cell, (list, tuple, np.ndarray)) for cell in filled):
        return "list"
    return "other"


def _filled(
    where: str, spec: InputSpec, names: tuple[str, ...], columns: Mapping[str, AnyArray], kinds: Mapping[str, Kind]
) -> AnyArray:
    """Return the values of one input."""
    if all(kinds[name] == "number" for name in names):
        stacked = stack(where, spec, names, [columns[name] for name in names])
        return stacked[np.arange(stacked.shape[0])]
    values = columns[names[0]]
    if len(names) > 1 or kinds[names[0]] != "list":
        wrong = next(name for name in names if kinds[name] != "number")
        raise DataError(f"{where}: column {wrong!r}: expected numbers, found {_example(columns[wrong])}; store numbers")
    if values.dtype.kind == "O":
        values = _joined(f"{where}: column {names[0]!r}", values)
    if values.dtype.kind == spec.dtype.kind == "f" or (values.dtype.kind in "iu" and spec.dtype.kind in "iuf"):
        return _cast(where, spec, names[0], values)  # text and lists of Python know no dtypes of the model
    return values


def _cast(where: str, spec: InputSpec, name: str, values: AnyArray) -> AnyArray:
    """Return values in the input's dtype.

    Raises:
        DataError: a whole number is another one there.
    """
    cast = values.astype(spec.dtype)
    if values.dtype.kind in "iu" and not np.array_equal(cast, values):
        wrong = values[cast != values][0]
        raise DataError(
            f"{where}: column {name!r}: {wrong} does not fit into {spec.dtype}, the input's dtype; correct it"
        )
    return cast


def _needs_padding(tokens: Mapping[str, str], columns: Mapping[str, AnyArray], request: Request) -> bool:
    """Tell whether lists of tokens differ in length, are shorter than the model's, or have no mask."""
    values = columns[tokens["ids"]]
    lengths = {len(cell) if hasattr(cell, "__len__") else 0 for cell in values}
    fixed = {spec.shape[1] for spec in request.inputs} - {None}
    return len(lengths | fixed) > 1 or "mask" not in tokens


def _joined(where: str, cells: AnyArray) -> AnyArray:
    """Return lists of one shape as one array."""
    try:
        arrays = [np.asarray(cell) for cell in cells]
    except ValueError as error:  # a list whose parts differ in length
        raise DataError(f"{where}: holds lists that are no arrays ({error}); pad or cut them to one length") from error
    shapes = [array.shape for array in arrays]
    other = next((row for row, shape in enumerate(shapes) if shape != shapes[0]), None)
    if other is not None:
        raise DataError(
            f"{where}: every row must have the shape of row 0, {shapes[0]}, but row {other} has {shapes[other]}; pad "
            "or cut the lists to one length"
        )
    joined = np.stack(arrays)
    if joined.dtype.kind not in "biuf":
        raise DataError(f"{where}: expected lists of numbers, found {cells[0]!r:.80} in row 0; store numbers")
    return joined


def _example(values: AnyArray) -> str:
    """Return a cell that is no number, for a message."""
    for row, cell in enumerate(values.tolist()):
        if not isinstance(cell, numbers.Real):
            return f"{cell!r:.80} in row {row}"
    return str(values.dtype)
