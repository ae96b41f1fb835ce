"""Columns of a table as inputs, labels, groups and weights (`layout` says which): one way for all tables.

Parquet and Arrow (`tna_onnx.data.sources.tables`) come some rows at a time; text files and data frames at once.
"""

from __future__ import annotations

import contextlib
import math
import numbers
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.digest import arrays_sha256, files_sha256
from tna_onnx.data.foreign import MISSING, cell_array, plain_column
from tna_onnx.data.labelfile import find_label_column, holds_classes, label_candidates, labels_apart
from tna_onnx.data.labels import named_labels
from tna_onnx.data.mapped import GrowingRows
from tna_onnx.data.multi_label import check_label_columns, joined_labels, marked_labels
from tna_onnx.data.sample_info import columns_beside
from tna_onnx.data.sources.columns import LABELS, ArraySource, check_arrays, open_columns, stack
from tna_onnx.data.sources.layout import (
    ROW_NUMBERS,
    Kind,
    by_user,
    folded,
    lay_out,
    no_inputs,
    plain_kinds,
    width_of,
)
from tna_onnx.data.sources.tokens import text_columns, tokenized, with_tokenizer
from tna_onnx.errors import DataError, NoLabels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tna_onnx.data.options import Request
    from tna_onnx.data.source import AnyArray, InputSpec, IntArray


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of one length."""

    where: str  # what messages start with
    kinds: Mapping[str, Kind]  # in the order of the table
    parts: Callable[[Sequence[str]], Iterator[Mapping[str, AnyArray]]]  # gives these columns, some rows at a time
    files: Sequence[Path] = ()  # whose bytes are hashed; the values are, if there are none
    # names that the table itself has for the classes which a column numbers
    class_names: Callable[[str], Sequence[str] | None] = lambda _: None

    def distinct(self, name: str) -> AnyArray:
        """Return the values of a column, each once; of fractions, which name no classes, nothing."""
        found: dict[Any, None] = {}
        for part in self.parts([name]):
            if part[name].dtype.kind == "f":
                break
            found.update(dict.fromkeys(part[name].tolist()))
        return plain_column(cell_array([*found]))

    def columns(self, names: Sequence[str]) -> dict[str, AnyArray]:
        """Read columns whole."""
        rows = {name: GrowingRows(f"{self.where}: column {name!r}") for name in names}
        for part in self.parts([*rows]):
            for name, column in rows.items():
                column.append(part[name])
        return {name: column.array() for name, column in rows.items()}

    def labels(self, name: str, values: AnyArray) -> AnyArray:
        """Return the values of a column as labels: numbers, or names."""
        values = plain_column(values)
        if values.dtype.kind in "iu" and (names := self.class_names(name)) is not None:
            return named_labels(values, names, f"{self.where}: column {name!r}")
        return values


def open_in_memory(
    title: str, where: str, columns: Mapping[str, AnyArray], request: Request, files: Sequence[Path] = ()
) -> ArraySource:
    """Open columns in memory, as `plain_column` returns them."""
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"{where}: every column must have one row per sample, found lengths {lengths}; store them alike"
        )
    kinds = {name: _kind(values) for name, values in columns.items()}
    return open_columns_of(Table(where, kinds, lambda _: iter([columns]), files), title, request)


def label_of(table: Table, request: Request) -> str | None:
    """Return the column with the labels; None where they are given apart."""
    if request.labels is not None:
        return None
    kinds = table.kinds
    not_labels = {*(spec.name for spec in request.inputs), *request.columns, *request.drop_columns}
    columns = [name for name in kinds if name not in not_labels]
    names = label_candidates(columns, request.no_inputs, request.label_column)

    def classes_in(name: str) -> bool:
        if kinds[name] not in ("number", "text"):
            return False
        with contextlib.suppress(DataError):  # empty cells, say
            return holds_classes(table.distinct(name), request)
        return False

    try:
        return find_label_column(names, request.label_column, table.where, classes_in=classes_in)
    except DataError as error:
        needed = sum(width_of(spec) or math.inf for spec in request.inputs)
        left = {*kinds} - {*ROW_NUMBERS, *request.no_inputs}
        # with a column more than the inputs need, that may be the label under an unknown name
        if request.label_column is None and len(left) in (1, needed):
            raise NoLabels(str(error)) from error
        raise


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
    label = label_of(replace(table, kinds=kinds), request)
    if label is not None and request.multi_label and kinds[label] == "number":
        # before the columns of the inputs, which the other labels may be taken for
        of_label = table.columns([label])[label]
        marked_labels(plain_column(of_label), len(of_label), request.n_classes, f"{where}: column {label!r}")
    request = with_tokenizer(request, kinds, label)
    of_labels = marks or ([] if label is None else [label])
    if request.tokenizer is None:
        columns, note = lay_out(where, kinds, request, label)
        arrays, stored = _read(table, request.inputs, columns, [*of_labels, *further])
    else:
        left_out = no_inputs(where, kinds, request, label)
        texts = [name for name, kind in kinds.items() if kind == "text" and name not in left_out]
        used = text_columns(where, texts, request)
        stored = table.columns([*used, *of_labels, *further])
        arrays, note = tokenized(where, [(name, stored[name].tolist()) for name in used], request)
    labels = None
    if marks:
        labels = joined_labels(stored, marks, where)
    elif label is not None:
        labels = table.labels(label, stored[label])
    files = table.files if request.tokenizer is None else ()  # not the table: its columns may be in memory

    def hashed(indices: IntArray) -> str:
        return files_sha256(files, indices) if files else arrays_sha256(arrays, indices)

    return open_columns(
        title,
        where,
        request,
        arrays,
        labels_apart(request, labels),
        hashed=hashed,
        noun="column",
        label=label,
        notes=tuple(filter(None, [note])),
        sample_info={name: stored[name] for name in further},
    )


def _read(
    table: Table, inputs: Sequence[InputSpec], columns: Mapping[str, tuple[str, ...]], others: Sequence[str]
) -> tuple[dict[str, AnyArray], dict[str, AnyArray]]:
    """Read a table once; return the values of each input, and of other columns.

    `columns`: input name -> names of its columns.
    """
    names = dict.fromkeys([*(name for used in columns.values() for name in used), *others])
    values = {spec.name: GrowingRows(f"{table.where}: column {columns[spec.name][0]!r}") for spec in inputs}
    stored = {name: GrowingRows(f"{table.where}: column {name!r}") for name in others}
    start = 0
    for part in table.parts([*names]):
        for spec in inputs:
            values[spec.name].append(_filled(table, spec, columns[spec.name], part, start))
        for name, column in stored.items():
            column.append(part[name])
        start += len(next(iter(part.values())))
    return {name: rows.array() for name, rows in values.items()}, {name: rows.array() for name, rows in stored.items()}


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
    table: Table, spec: InputSpec, names: tuple[str, ...], columns: Mapping[str, AnyArray], start: int
) -> AnyArray:
    """Return some rows of one input, from row `start` on, of columns of a table."""
    where, kinds = table.where, table.kinds
    if all(kinds[name] in plain_kinds(spec) for name in names):
        return stack(where, spec, {name: columns[name] for name in names}, start)
    if len(names) > 1 or kinds[names[0]] != "list":
        wrong = next(name for name in names if kinds[name] != "number")
        cells = enumerate(columns[wrong].tolist())
        odd = (f"{cell!r:.80} in row {row}" for row, cell in cells if not isinstance(cell, numbers.Real))
        found = next(odd, str(columns[wrong].dtype))
        raise DataError(f"{where}: column {wrong!r}: expected numbers, found {found}; store numbers")
    values = columns[names[0]]
    if values.dtype.kind == "O":
        values = _joined(f"{where}: column {names[0]!r}", values)
    whole = values.dtype in (np.int32, np.int64)
    if not (whole and spec.dtype.kind in "iuf") and not values.dtype.kind == spec.dtype.kind == "f":
        return values
    with np.errstate(over="ignore"):
        cast = values.astype(spec.dtype)  # text, lists of Python and pandas know no dtypes of the model
    wrong = cast != values if whole else np.isinf(cast) & np.isfinite(values)
    if wrong.any():
        raise DataError(
            f"{where}: column {names[0]!r}: {values[wrong][0]} does not fit into {spec.dtype}, the input's dtype; "
            "correct it"
        )
    return cast


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
