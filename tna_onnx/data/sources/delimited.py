"""Tables in text files: CSV, TSV, JSON and JSON Lines, read into columns by name.

A cell of CSV is a number, a truth value, a list in JSON's brackets, or text; a column is of numbers if each of its
cells is one, or empty. Without a header the columns are called 1, 2, ... The separator of a `.csv` is a comma, or a
semicolon or tab where the first line has no comma.
"""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.digest import files_sha256
from tna_onnx.data.files import parse_json, parsing, read_text, whole_numbers
from tna_onnx.data.labels import listed
from tna_onnx.data.sources.inmemory import open_in_memory
from tna_onnx.data.sources.layout import by_user, folded
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tna_onnx.data.choices import Limits
    from tna_onnx.data.request import Request
    from tna_onnx.data.source import AnyArray
    from tna_onnx.data.sources.columns import ArraySource

DELIMITED = (".csv", ".tsv", ".jsonl", ".json")

_EMPTY = frozenset({"", "na", "n/a", "nan", "null", "none"})
_TRUTH = {"true": True, "false": False}
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf(inity)?", re.IGNORECASE)
_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")


def open_delimited(path: Path, request: Request) -> ArraySource:
    """Read the table in the text file `path`.

    Raises:
        UsageError: a recipe is given, or a library is missing.
        DataError: the file cannot be read, or its columns or labels do not fit the model.
    """
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

    Args:
        path: of the file.
        limits: how large it may be.
        is_text: tells of the name of a column of CSV whether its cells are text, whatever they look like.

    Raises:
        DataError: the file cannot be read as a table.
    """
    suffix = path.suffix.lower()
    text = read_text(path, limits)
    with parsing(str(path), "cannot be read as a table", "write it again"):
        if suffix in (".csv", ".tsv"):
            return _from_rows(path, text, _delimiter(text, suffix), is_text)
        if suffix == ".jsonl":
            lines = enumerate(text.split("\n"), 1)  # other breaks stand inside of strings
            return _from_objects(path, [parse_json(line, f"{path}: line {n}") for n, line in lines if line.strip()])
        return _from_objects(path, parse_json(text, str(path)))


def _delimiter(text: str, suffix: str) -> str:
    if suffix == ".tsv":
        return "\t"
    first = text.partition("\n")[0]
    return next((sign for sign in (",", ";", "\t") if sign in first), ",")


def _from_rows(path: Path, text: str, delimiter: str, is_text: Callable[[str], bool]) -> dict[str, AnyArray]:
    # strict: a quote that is left open would take the rows below it into its cell; cells may hold line breaks
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows = [row for row in reader if row]
    if not rows:
        raise DataError(f"{path}: is empty; write a row with the names of the columns, and one row per sample")
    header = [cell.strip() for cell in rows[0]]
    if _is_sample(header):
        header = [str(number + 1) for number in range(len(header))]
    else:
        rows = rows[1:]
    twice = [name for number, name in enumerate(header) if name in header[:number]]
    if twice:
        raise DataError(f"{path}: several columns are called {listed(twice)}; give each a name of its own")
    wrong = next((number for number, row in enumerate(rows) if len(row) != len(header)), None)
    if wrong is not None:
        raise DataError(
            f"{path}: expected {len(header)} cells in each row ({listed(header)}), found {len(rows[wrong])} in row "
            f"{wrong}; put text that holds {delimiter!r} in double quotes"
        )
    columns = {}
    for at, name in enumerate(header):
        cells = [row[at].strip() for row in rows]
        if is_text(name):
            columns[name] = _objects([cell or None for cell in cells])
        else:
            columns[name] = _parsed(cells, f"{path}: {name}")
    return columns


def _is_sample(cells: list[str]) -> bool:
    """Tell whether a first row holds numbers and no names; pandas calls columns without names 0, 1, 2, ..."""
    return all(_NUMBER.fullmatch(cell) for cell in cells) and cells != [str(number) for number in range(len(cells))]


def _parsed(cells: list[str], where: str) -> AnyArray:
    """Convert text cells to the values that they denote."""
    filled = [cell for cell in cells if cell.lower() not in _EMPTY]
    if filled and len(filled) == len(cells) and all(_WHOLE.fullmatch(cell) for cell in filled):
        return whole_numbers([int(cell) for cell in cells])
    if filled and all(_NUMBER.fullmatch(cell) for cell in filled):
        return np.array([cell if cell.lower() not in _EMPTY else "nan" for cell in cells]).astype(np.float64)
    if filled and len(filled) == len(cells) and all(cell.lower() in _TRUTH for cell in filled):
        return np.array([_TRUTH[cell.lower()] for cell in cells])
    if filled and len(filled) == len(cells) and all(cell[0] == "[" and cell[-1] == "]" for cell in filled):
        return _objects([parse_json(cell, where) for cell in cells])
    return _objects(cells)


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
    return {name: _typed([record[name] for record in records]) for name in names}


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
    """Return {column: {row: value}} as lists, the rows of each column in the order of the first.

    Raises:
        DataError: a column has other rows.
    """
    first, *_ = columns
    rows = list(columns[first])
    for name, values in columns.items():
        if set(values) != set(rows):
            raise DataError(
                f"{where}: column {name!r} has other rows than {first!r} ({len(values):,} and {len(rows):,}); write "
                "one value per row in each"
            )
    return {name: [values[row] for row in rows] for name, values in columns.items()}


def _typed(values: list[Any]) -> AnyArray:
    """Convert JSON values to an array of numbers if all are numbers or null, else of objects."""
    if values and all(isinstance(value, bool) for value in values):
        return np.array(values)
    numbers = [value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)) for value in values]
    if not all(numbers) or all(value is None for value in values):
        return _objects(values)
    if any(value is None or isinstance(value, float) for value in values):
        return np.array([np.nan if value is None else float(value) for value in values])
    return whole_numbers(values)


def _objects(values: list[Any]) -> AnyArray:
    return np.array([*values, None], object)[:-1]  # None keeps NumPy from making axes of nested lists
