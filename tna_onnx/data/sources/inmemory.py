"""Tables in memory (of a text file, a data frame or a mapping of arrays) as inputs of a model (`layout`).

A column of CSV is of numbers if each of its cells is one, or empty; else cells are truth values, lists, or text.
"""

from __future__ import annotations

import math
import numbers
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.digest import arrays_sha256, files_sha256
from tna_onnx.data.foreign import MISSING, cell_array, parse_json, plain_column, read_text, repeated, whole_numbers
from tna_onnx.data.labelfile import delimited_columns, labels_apart, text_json
from tna_onnx.data.labels import listed
from tna_onnx.data.multi_label import joined_columns, marked_labels
from tna_onnx.data.sources.columns import LABELS, ArraySource, open_columns, stack
from tna_onnx.data.sources.layout import Kind, by_user, folded, label_in, lay_out, no_inputs, plain_kinds
from tna_onnx.data.sources.tokens import need_padding, padded, text_columns, token_columns, tokenized, with_tokenizer
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tna_onnx.data.choices import Limits
    from tna_onnx.data.options import Request
    from tna_onnx.data.source import AnyArray, InputSpec, IntArray


def open_in_memory(
    title: str,
    where: str,
    columns: Mapping[str, AnyArray],
    request: Request,
    *,
    hashed: Callable[[IntArray], str] | None = None,
) -> ArraySource:
    """Take columns of one length as the inputs of the model, and one of them as the labels.

    `columns`: name -> values (N,), as `plain_column` returns them. `hashed`: computes the digest, given the class
    indices; None hashes the values.
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
    further = request.columns_beside(where, columns)
    label = label_in(where, kinds, request, columns.__getitem__)
    if label is not None and request.multi_label and columns[label].dtype.kind != "O":
        # before the columns of the inputs, which the other labels may be taken for
        marked_labels(columns[label], len(columns[label]), request.n_classes, f"{where}: column {label!r}")
    request = with_tokenizer(request, kinds, label)
    arrays, note = _input_arrays(where, columns, kinds, request, label)
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
        sample_info={name: columns[name] for name in further},
    )


def _input_arrays(
    where: str, columns: Mapping[str, AnyArray], kinds: Mapping[str, Kind], request: Request, label: str | None
) -> tuple[Mapping[str, Any], str]:
    """Return the values of the inputs, from padded tokens, from numbers or from texts; and a note on them."""
    tokens = token_columns(kinds, request)
    if tokens and need_padding(tokens, map(_length, columns[tokens["ids"]]), request):
        return padded(where, {role: (name, columns[name].tolist()) for role, name in tokens.items()}, request)
    if request.tokenizer is None:
        layout = lay_out(where, kinds, request, label)
        names = layout.columns
        arrays = {spec.name: _filled(where, spec, names[spec.name], columns, kinds) for spec in request.inputs}
        return arrays, layout.note
    left_out = no_inputs(where, kinds, request, label)
    texts = [name for name, kind in kinds.items() if kind == "text" and name not in left_out]
    cells = [(name, columns[name].tolist()) for name in text_columns(where, texts, request)]
    return tokenized(where, cells, request)


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
    where: str, spec: InputSpec, names: tuple[str, ...], columns: Mapping[str, AnyArray], kinds: Mapping[str, Kind]
) -> AnyArray:
    """Return the values of one input."""
    if all(kinds[name] in plain_kinds(spec) for name in names):
        stacked = stack(where, spec, names, [columns[name] for name in names])
        return stacked[np.arange(stacked.shape[0])]
    values = columns[names[0]]
    if len(names) > 1 or kinds[names[0]] != "list":
        wrong = next(name for name in names if kinds[name] != "number")
        raise DataError(f"{where}: column {wrong!r}: expected numbers, found {_example(columns[wrong])}; store numbers")
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


def _length(cell: Any) -> int:
    if hasattr(cell, "__len__"):
        return len(cell)
    return 0


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

DELIMITED = (".csv", ".tsv", ".jsonl", ".json")

_EMPTY = frozenset({"", "na", "n/a", "nan", "null", "none"})
_TRUTH = {"true": True, "false": False}
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf(inity)?", re.IGNORECASE)
_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")


def open_delimited(path: Path, request: Request) -> ArraySource:
    """Read the table in the text file `path`."""
    columns = read_columns(path, request.limits, texts_for(request))
    return open_in_memory(
        f"table {path.name}", str(path), columns, request, hashed=lambda indices: files_sha256([path], indices)
    )


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


def read_columns(path: Path, limits: Limits, is_text: Callable[[str], bool] = lambda _: False) -> dict[str, AnyArray]:
    """Return name -> values (N,) of each column: numbers, or objects that are text, lists or None.

    `is_text`: tells of the name of a column of CSV whether its cells are text, whatever they look like.
    """
    text = read_text(path, limits)
    if path.suffix.lower() not in (".csv", ".tsv"):
        return _from_objects(path, text_json(path, text))
    first, columns = delimited_columns(path, text)
    del text
    header = [cell.strip() for cell in first]
    start = 1
    if _is_sample(header):
        header = [str(number + 1) for number in range(len(header))]
        start = 0
    if twice := repeated(header):
        raise DataError(f"{path}: several columns are called {listed(twice)}; give each a name of its own")
    values = {}
    for name, cells in zip(header, columns, strict=True):
        del cells[:start]
        if is_text(name):
            values[name] = cell_array([cell or None for cell in cells])
        else:
            values[name] = _parsed(cells, f"{path}: {name}")
    return values


def _is_sample(cells: list[str]) -> bool:
    """Tell whether a first row holds numbers and no names; pandas calls columns without names 0, 1, 2, ..."""
    return all(_NUMBER.fullmatch(cell) for cell in cells) and cells != [str(number) for number in range(len(cells))]


def _parsed(texts: list[str], where: str) -> AnyArray:
    """Convert text cells to the values that they denote."""
    cells = {text: text.strip() for text in dict.fromkeys(texts)}
    filled = [cell for cell in cells.values() if cell.lower() not in _EMPTY]
    full = len(filled) == len(cells)
    if not filled:
        return cell_array(texts)
    if full and all(map(_WHOLE.fullmatch, filled)):
        whole = {text: int(cell) for text, cell in cells.items()}
        return whole_numbers([whole[text] for text in texts])
    if all(map(_NUMBER.fullmatch, filled)):
        values = {text: math.nan if cell.lower() in _EMPTY else float(cell) for text, cell in cells.items()}
        return np.array([values[text] for text in texts])
    if full and all(cell.lower() in _TRUTH for cell in filled):
        return np.array([_TRUTH[cells[text].lower()] for text in texts])
    if full and all(cell[0] == "[" and cell[-1] == "]" for cell in filled):
        lists = {text: parse_json(cell, where) for text, cell in cells.items()}
        return cell_array([lists[text] for text in texts])
    return cell_array(texts)


def _from_objects(path: Path, records: Any) -> dict[str, AnyArray]:
    if isinstance(records, dict):  # name -> all values of a column
        records = _transposed(path, records)
    if not isinstance(records, list) or not records or not all(isinstance(record, dict) for record in records):
        raise DataError(f"{path}: expected an object with the names of the columns for each sample; write it again")
    names = list(records[0])
    wrong = next((number for number, record in enumerate(records) if list(record) != names), None)
    if wrong is not None and set(records[wrong]) != set(names):
        raise DataError(
            f"{path}: expected an object with the keys {listed(names)} for each sample, as the first one has, found "
            f"{listed(records[wrong])} as number {wrong + 1}"
        )
    return {name: plain_column(cell_array([record[name] for record in records])) for name in names}


def _transposed(path: Path, columns: dict[str, Any]) -> list[dict[str, Any]]:
    # pandas writes {column: {row: value}} by default
    if columns and all(isinstance(values, dict) for values in columns.values()):
        columns = aligned(str(path), columns)
    if not all(isinstance(values, list) for values in columns.values()):
        raise DataError(f"{path}: expected a list of objects, one for each sample, found a single one; write it again")
    if len({len(values) for values in columns.values()}) != 1:
        raise DataError(f"{path}: its columns differ in length; write one value per sample in each")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def aligned(where: str, columns: Mapping[str, Mapping[Any, Any]]) -> dict[str, list[Any]]:
    """Return {column: {row: value}} as lists, the rows of each column in the order of the first."""
    first, *_ = columns
    rows = list(columns[first])
    for name, values in columns.items():
        if set(values) != set(rows):
            raise DataError(
                f"{where}: column {name!r} has other rows than {first!r} ({len(values):,} and {len(rows):,}); write "
                "one value per row in each"
            )
    return {name: [values[row] for row in rows] for name, values in columns.items()}
