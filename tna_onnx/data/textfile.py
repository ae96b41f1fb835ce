"""Tables in text files: CSV, TSV, JSON and JSON Lines, as columns.

A column of CSV is of numbers if each of its cells is one, or empty; else cells are truth values, lists, or text.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import math
import re
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import numpy as np

from tna_onnx.data.choices import Limits
from tna_onnx.data.foreign import cell_array, parse_json, parsing, plain_column, read_text, repeated, whole_numbers
from tna_onnx.data.source import AnyArray
from tna_onnx.errors import DataError, listed

Cells: TypeAlias = AnyArray | list[str]
"""A column: numbers, or what its cells say."""

DELIMITED = (".csv", ".tsv", ".jsonl", ".json")

_EMPTY = frozenset({"", "na", "n/a", "nan", "null", "none"})
_TRUTH = {"true": True, "false": False}
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf(inity)?", re.IGNORECASE)
_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")
_MOST_DIGITS = 20
_DIGITS = re.compile(r"[0-9+\-\0]*")
_NUMERALS = re.compile(r"[0-9+\-.eE\0]*")
_BLOCK = 2**12  # rows whose cells become texts together


def read_columns(path: Path, limits: Limits, is_text: Callable[[str], bool] = lambda _: False) -> dict[str, AnyArray]:
    """Return name -> values (N,) of each column: numbers, or objects that are text, lists or None.

    `is_text`: tells of the name of a column of CSV whether its cells are text, whatever they look like.
    """
    text = read_text(path, limits)
    if path.suffix.lower() not in (".csv", ".tsv"):
        return _columns_of_objects(path, text)
    # the separator of a `.csv` is a comma, or a semicolon or tab where the first line has no comma
    delimiter = "\t"
    if path.suffix.lower() == ".csv":
        first_line = text.partition("\n")[0]
        delimiter = next((sign for sign in (",", ";", "\t") if sign in first_line), ",")
    names, columns = _columns_of_numbers(text, delimiter, is_text) or _delimited_columns(path, text, delimiter)
    del text
    if twice := repeated(names):
        raise DataError(f"{path}: several columns are called {listed(twice)}; give each a name of its own")
    values: dict[str, AnyArray] = {}
    for name, cells in zip(names, columns, strict=True):
        if isinstance(cells, np.ndarray):
            values[name] = cells
        elif is_text(name):
            values[name] = cell_array([cell or None for cell in cells])
        else:
            numbers = _plain_numbers(cells)
            values[name] = _parsed(cells, f"{path}: {name}") if numbers is None else numbers
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
        integers = {text: int(cell) for text, cell in cells.items()}
        return whole_numbers([integers[text] for text in texts])
    if all(map(_NUMBER.fullmatch, filled)):
        values = {text: math.nan if cell.lower() in _EMPTY else float(cell) for text, cell in cells.items()}
        return np.array([values[text] for text in texts])
    if full and all(cell.lower() in _TRUTH for cell in filled):
        return np.array([_TRUTH[cells[text].lower()] for text in texts])
    if full and all(cell[0] == "[" and cell[-1] == "]" for cell in filled):
        lists = {text: parse_json(cell, where) for text, cell in cells.items()}
        return cell_array([lists[text] for text in texts])
    return cell_array(texts)


def _plain_numbers(texts: list[str]) -> AnyArray | None:
    """Convert cells that are all numbers, as most columns are: none is empty or has spaces or words; else None."""
    joined = "\0".join(texts)
    with contextlib.suppress(ValueError):
        only_digits = _DIGITS.fullmatch(joined) is not None
        if only_digits and max(map(len, texts), default=0) <= _MOST_DIGITS:
            return whole_numbers(list(map(int, texts)))
        if not only_digits and _NUMERALS.fullmatch(joined):
            return np.fromiter(map(float, texts), np.float64, len(texts))
    return None


def _columns_of_objects(path: Path, text: str) -> dict[str, AnyArray]:
    """Return the columns of a text of JSON, a list of objects; or of JSON Lines, an object in each line."""
    if path.suffix.lower() == ".jsonl":
        lines = enumerate(text.split("\n"), 1)  # other breaks stand inside of strings
        records = [parse_json(line, f"{path}: line {number}") for number, line in lines if line.strip()]
    else:
        records = parse_json(text, str(path))
    if not isinstance(records, list) or not records or not all(isinstance(record, dict) for record in records):
        raise DataError(
            f"{path}: expected a list with an object for each sample, as pandas writes it by "
            "frame.to_json(path, orient='records')"
        )
    names = records[0].keys()
    for number, record in enumerate(records, 1):
        if record.keys() != names:
            raise DataError(
                f"{path}: expected the keys of the first sample, {listed(names)}, in each; sample {number} has "
                f"{listed(record)}"
            )
    return {name: plain_column(cell_array([record[name] for record in records])) for name in names}


def _columns_of_numbers(
    text: str, delimiter: str, is_text: Callable[[str], bool]
) -> tuple[list[str], Iterable[Cells]] | None:
    """Return names and values of a table whose cells are all numbers, below a row of names; None for any other."""
    names, _, body = text.partition("\n")
    names = names.rstrip("\r")  # a tab at either end stands beside a name that is empty
    first = [cell.strip() for cell in names.split(delimiter)]
    if not names or re.search('["\0\r]', names) or _is_sample(first) or any(map(is_text, first)):
        return None
    if not re.fullmatch(rf"[0-9+\-.eE\r\n{delimiter}]*", body):
        return None
    lines = [*filter(None, body.splitlines())]
    kinds = [np.int64 if _WHOLE.fullmatch(cell) else np.float64 for line in lines[:1] for cell in line.split(delimiter)]
    # a number that is not of its column's kind is a warning, or an error
    with warnings.catch_warnings(action="error"), contextlib.suppress(ValueError, Warning):
        if len(first) == len(kinds):
            dtype = [(str(place), kind) for place, kind in enumerate(kinds)]
            table = np.loadtxt(lines, dtype, comments=None, delimiter=delimiter, ndmin=1)
            return first, [np.ascontiguousarray(table[name]) for name, _ in dtype]
    return None


def _delimited_columns(path: Path, text: str, delimiter: str) -> tuple[list[str], Iterable[Cells]]:
    """Return the names and the columns of a text of CSV or TSV; without names they are numbered. Cells keep spaces."""
    with parsing(str(path), "cannot be read as a table", "write it again"):
        if "\0" in text:
            raise ValueError("it holds a character NUL")
        # breaks of a line are CR, LF and both, and stay in it
        lines = io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8", newline="")
        # strict: a quote that is left open would take the rows below it into its cell; cells may hold line breaks
        rows = filter(None, csv.reader(lines, delimiter=delimiter, strict=True))
        first = next(rows, [])
        if not first:
            raise DataError(f"{path}: is empty; write a row with the names of the columns, and one row per sample")
        # a text of many cells takes a tenth of what as many texts would
        names = [cell.strip() for cell in first]
        columns: list[list[str]] = [[] for _ in first]
        if _is_sample(names):
            names = [str(number + 1) for number in range(len(first))]
            columns = [[cell] for cell in first]
        below = 1
        while block := [*itertools.islice(rows, _BLOCK)]:
            for row in block:
                if len(row) != len(first):
                    raise DataError(
                        f"{path}: expected {len(first)} cells in each row ({listed(first)}), found {len(row)} in row "
                        f"{below} below the first; put text that holds {delimiter!r} in double quotes"
                    )
                below += 1
            for column, cells in zip(columns, zip(*block, strict=True), strict=True):
                column.append("\0".join(cells))
    return names, ("\0".join(column).split("\0") if column else [] for column in columns)
