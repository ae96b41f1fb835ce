"""Columns of a table as inputs, labels, groups and weights (`layout` says which): one way for all tables.

Those of files are mapped (`tna_onnx.data.sources.tables`); text files, data frames and mappings are in memory.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.digest import arrays_sha256, files_sha256
from tna_onnx.data.foreign import MISSING, plain_column
from tna_onnx.data.labelfile import labels_apart
from tna_onnx.data.multi_label import check_label_columns, joined_labels, marked_labels
from tna_onnx.data.sample_info import columns_beside
from tna_onnx.data.sources.columns import LABELS, ArraySource, check_arrays, open_columns, stack
from tna_onnx.data.sources.layout import Kind, by_user, folded, label_in, lay_out, no_inputs, plain_kinds
from tna_onnx.data.sources.tokens import text_columns, tokenized, with_tokenizer
from tna_onnx.data.textfile import read_columns
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tna_onnx.data.options import Request
    from tna_onnx.data.source import AnyArray, InputSpec, IntArray
    from tna_onnx.data.sources.columns import Column


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns that were read."""

    inputs: Mapping[str, Column]
    labels: AnyArray | None  # (N,), as stored; None where they are given apart
    sample_info: Mapping[str, AnyArray]  # by name, (N,) each


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of one length."""

    where: str  # what messages start with
    kinds: Mapping[str, Kind]  # in the order of the table
    # reads columns in one pass: those of inputs, of the label and of what else belongs to samples
    read: Callable[[Sequence[str], str | None, Sequence[str]], Columns]
    hashed: Callable[[Mapping[str, Any], IntArray], str]  # computes the digest, of inputs and class indices
    distinct: Callable[[str], AnyArray]  # the values of a column, each at least once


def open_in_memory(
    title: str, where: str, columns: Mapping[str, AnyArray], request: Request, file: Path | None = None
) -> ArraySource:
    """Open columns in memory, as `plain_column` returns them.

    `file`: that they were read from, whose bytes are hashed; None hashes the values.
    """
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"{where}: every column must have one row per sample, found lengths {lengths}; store them alike"
        )

    def read(_: Sequence[str], label: str | None, sample_info: Sequence[str]) -> Columns:
        labels = None if label is None else columns[label]
        return Columns(columns, labels, {name: columns[name] for name in sample_info})

    kinds = {name: _kind(values) for name, values in columns.items()}
    hashed = arrays_sha256 if file is None else lambda _, indices: files_sha256([file], indices)
    distinct = columns.__getitem__
    return open_columns_of(Table(where, kinds, read, hashed, distinct), title, request)


def label_of(table: Table, request: Request) -> str | None:
    """Return the column with the labels; None where they are given apart."""
    return label_in(table.where, table.kinds, request, lambda name: plain_column(table.distinct(name)))


def open_columns_of(table: Table, title: str, request: Request) -> ArraySource:
    """Take columns of a table as the inputs of the model, and one of them as the labels."""
    where, kinds = table.where, dict(table.kinds)
    check_arrays(request, where)
    marks = request.label_columns if request.labels is None else ()
    if marks:
        check_label_columns(where, kinds, marks, request)
        kinds = {**{name: kind for name, kind in kinds.items() if name not in marks}, LABELS: "list"}
        request = replace(request, label_column=LABELS)
    further = columns_beside(request, where, kinds)
    table = replace(table, kinds=kinds)
    label = label_of(table, request)
    if label is not None and request.multi_label and kinds[label] == "number":
        # before the columns of the inputs, which the other labels may be taken for
        of_label = table.read((), None, [label]).sample_info[label]
        marked_labels(plain_column(of_label), len(of_label), request.n_classes, f"{where}: column {label!r}")
    request = with_tokenizer(request, kinds, label)
    if request.tokenizer is None:
        layout = lay_out(where, kinds, request, label)
        used = list(dict.fromkeys(name for names in layout.columns.values() for name in names))
    else:
        left_out = no_inputs(where, kinds, request, label)
        texts = [name for name, kind in kinds.items() if kind == "text" and name not in left_out]
        used = list(text_columns(where, texts, request))
    columns = table.read([*used, *marks], None if marks else label, further)
    labels = joined_labels(columns.inputs, marks, where) if marks else columns.labels
    hashed = table.hashed  # not the table: its columns may be in memory
    arrays: Mapping[str, Any]
    if request.tokenizer is None:
        note = layout.note
        arrays = {
            spec.name: _filled(where, spec, layout.columns[spec.name], columns.inputs, kinds) for spec in request.inputs
        }
    else:
        cells = [(name, _all_rows(columns.inputs[name]).tolist()) for name in used]
        arrays, note = tokenized(where, cells, request)
    return open_columns(
        title,
        where,
        request,
        arrays,
        labels_apart(request, labels),
        hashed=lambda indices: hashed(arrays, indices),
        noun="column",
        label=label,
        notes=(note,) if note else (),
        sample_info=columns.sample_info,
    )


def _all_rows(column: Column) -> AnyArray:
    return column[np.arange(column.shape[0])]


def _kind(values: AnyArray) -> Kind:
    if values.ndim > 1:
        return "list"
    if values.dtype.kind in "biuf":
        return "number"
    if values.dtype.kind != "O":
        return "other"
    # a column has few types, and many cells
    kinds = {type(cell) for cell in values.tolist() if not (isinstance(cell, float) and math.isnan(cell))}
    filled = tuple(kind for kind in kinds if kind.__name__ not in MISSING)
    if filled and all(issubclass(kind, str) for kind in filled):
        return "text"
    if filled and all(issubclass(kind, (list, tuple, np.ndarray)) for kind in filled):
        return "list"
    return "other"


def _filled(
    where: str, spec: InputSpec, names: tuple[str, ...], columns: Mapping[str, Column], kinds: Mapping[str, Kind]
) -> Column:
    """Return the values of one input; what is in memory is converted at once."""
    values = columns[names[0]]
    if all(kinds[name] in plain_kinds(spec) for name in names):
        stacked = stack(where, spec, names, [columns[name] for name in names])
        return _all_rows(stacked) if isinstance(values, np.ndarray) else stacked
    if len(names) > 1 or kinds[names[0]] != "list":
        wrong = next(name for name in names if kinds[name] != "number")
        found = _example(_all_rows(columns[wrong]))
        raise DataError(f"{where}: column {wrong!r}: expected numbers, found {found}; store numbers")
    if not isinstance(values, np.ndarray):
        return values
    if values.dtype.kind == "O":
        values = _joined(f"{where}: column {names[0]!r}", values)
    if values.dtype.kind == spec.dtype.kind == "f" or (values.dtype.kind in "iu" and spec.dtype.kind in "iuf"):
        cast = values.astype(spec.dtype)  # text and lists of Python know no dtypes of the model
        if values.dtype.kind in "iu" and not np.array_equal(cast, values):
            wrong = values[cast != values][0]
            raise DataError(
                f"{where}: column {names[0]!r}: {wrong} does not fit into {spec.dtype}, the input's dtype; correct it"
            )
        return cast
    return values


def _joined(where: str, cells: AnyArray) -> AnyArray:
    """Stack lists of one shape into one array."""
    try:
        arrays = [np.asarray(cell) for cell in cells]
    except ValueError as error:  # a list whose parts differ in length
        raise DataError(
            f"{where}: holds lists that do not form an array ({error}); pad or cut them to one length"
        ) from error
    shapes = [array.shape for array in arrays]
    odd_row = next((row for row, shape in enumerate(shapes) if shape != shapes[0]), None)
    if odd_row is not None:
        raise DataError(
            f"{where}: every row must have the shape of row 0, {shapes[0]}, but row {odd_row} has {shapes[odd_row]}; "
            "pad or cut the lists to one length"
        )
    joined = np.stack(arrays)
    if joined.dtype.kind not in "biuf":
        raise DataError(f"{where}: expected lists of numbers, found {cells[0]!r:.80} in row 0; store numbers")
    return joined


def _example(values: AnyArray) -> str:
    """Format a non-numeric cell for a message."""
    for row, cell in enumerate(values.tolist()):
        if not isinstance(cell, numbers.Real):
            return f"{cell!r:.80} in row {row}"
    return str(values.dtype)


# ---- text files


def open_delimited(path: Path, request: Request) -> ArraySource:
    """Read the table in the text file `path`."""
    columns = read_columns(path, request.limits, texts_for(request))
    return open_in_memory(f"table {path.name}", str(path), columns, request, path)


def texts_for(request: Request) -> Callable[[str], bool]:
    """Return which columns fill inputs of text, as far as names tell: their cells are text, also where they are digits.

    In CSV "0150" may be a number or a code, and only the model can tell which.
    """
    texts = [spec for spec in request.inputs if spec.dtype == object]
    if not texts:
        return lambda _: False
    if request.columns:
        columns = by_user("columns", dict.fromkeys(request.columns, "text"), request.inputs, request.columns)
        named = {name for spec in texts for name in columns[spec.name]}
        return lambda name: name in named
    if len(request.inputs) == 1 and len(texts[0].shape) == 2 and (texts[0].shape[1] or 1) > 1:
        return lambda name: name not in (request.label_column, "label", "labels")
    named = {folded(spec.name) for spec in texts}
    return lambda name: folded(name) in named
