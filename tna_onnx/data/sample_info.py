"""What is read beside inputs and labels: the group, the subgroup and the weight of each sample."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.foreign import any_array
from tna_onnx.data.labels import listed
from tna_onnx.data.options import BESIDE
from tna_onnx.data.source import ClassPrior
from tna_onnx.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from tna_onnx.data.options import Data
    from tna_onnx.data.source import AnyArray, IntArray, Source

# What libraries write where a value is missing; "none" is a word.
_EMPTY = frozenset({"", "nan", "NaN", "None", "NaT", "<NA>"})


def columns_beside(data: Data, where: str, names: Collection[str]) -> list[str]:
    """Return the columns to read beside inputs and labels."""
    wanted = {role: column for role, column in data.sample_info.items() if isinstance(column, str)}
    for role, column in wanted.items():
        if column not in names:
            raise _no_column(where, role, column, names)
    return list(wanted.values())


def values_beside(
    data: Data,
    where: str,
    columns: Mapping[str, Any],
    labels: IntArray,
    paths: Sequence[str] = (),
    rows: IntArray | slice = slice(None),
) -> dict[str, AnyArray]:
    """Return what belongs to some of n samples beside inputs and label, by its role: texts, weights float64.

    `columns`: name -> values (n,). `labels`: class indices (n,). `paths`: of the samples, (n,), that a group may be a
    part of; empty where they have none. `rows`: which samples.
    """
    n = len(labels)
    values: dict[str, AnyArray] = {}
    for role, column in data.sample_info.items():
        read = _weights if role == "weight" else _texts
        if isinstance(column, ClassPrior):
            values[role] = column.weights(labels[rows], where)
        elif not isinstance(column, str):
            values[role] = read(column, n, f"{where}: {BESIDE[role][0]}")[rows]
        elif column in columns:
            values[role] = read(columns[column], n, f"{where}: column {column!r}")[rows]
        elif role == "weight":
            raise _no_column(where, role, column, columns)
        elif len(paths):
            values[role] = np.array(_parts_of(column, paths, where, columns, BESIDE[role][1]))[rows]
    return values


def require_beside(data: Data, source: Source) -> None:
    """Refuse samples that lack what is to be read beside inputs and labels."""
    for role in data.sample_info:
        if role not in source.sample_info:
            noun, _ = BESIDE[role]
            raise UsageError(
                f"{source.describe()}: no {noun} can be read from such data; expected a table, a manifest, arrays "
                f"or features with a column of that name, or in Python a value for each sample"
            )


def _cells(values: Any, n: int, where: str) -> list[Any]:
    array = any_array(values)
    if array.shape != (n,):
        raise DataError(f"{where}: expected one value for each of {n:,} samples, found shape {array.shape}")
    cells: list[Any] = array.tolist()
    return cells


def _texts(values: Any, n: int, where: str) -> AnyArray:
    """Return n values as texts, (n,): 7, 7.0 and "7" are one."""
    texts = []
    for row, cell in enumerate(_cells(values, n, where)):
        if isinstance(cell, bytes):
            text = cell.decode("utf-8", "backslashreplace").strip()
        elif isinstance(cell, float) and cell.is_integer():
            text = str(int(cell))
        else:
            text = str(cell).strip()
        if text in _EMPTY:
            raise DataError(f"{where}: is empty in row {row}; fill it, or leave the sample out")
        texts.append(text)
    return np.array(texts)


def _no_column(where: str, role: str, column: str, names: Iterable[str]) -> DataError:
    text = f"{where}: no column {column!r} for {BESIDE[role][1]}; found {listed(names) or 'none'}"
    if role == "weight":
        text += "; if all samples count alike (held-out data of the population, say), add a column of ones"
    return DataError(text)


def _weights(values: Any, n: int, where: str) -> AnyArray:
    """Return n weights as float64, (n,)."""
    cells = _cells(values, n, where)
    for row, cell in enumerate(cells):
        try:
            valid = 0 <= float(cell) < np.inf
        except (TypeError, ValueError):
            valid = False
        if not valid:
            raise DataError(f"{where}: row {row} has the weight {cell!r}; expected a number that is zero or more")
    weights = np.array(cells, np.float64)
    if not weights.any():
        raise DataError(f"{where}: all {n:,} weights are zero; expected some samples that count")
    top = weights.max()
    weights[weights < top * 1e-100] = 0  # adds to no sum
    if not 1e-50 < top < 1e50:  # squares are zero or infinite
        weights /= top
    return weights


def _parts_of(pattern: str, paths: Sequence[str], where: str, columns: Iterable[str], flag: str) -> list[str]:
    """Return what a regular expression finds in each path: its first group, or all of it."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"{flag} {pattern}: no column, and no regular expression ({error})") from error
    parts = []
    for path in paths:
        match = expression.search(path)
        if match is None:
            names = ""
            if columns:
                names = f" (columns: {listed(columns)})"
            raise DataError(
                f"{where}: {flag} {pattern!r} is no column{names}, and as a regular expression it does not "
                f"match the path {path!r}"
            )
        parts.append(str(match[1] if expression.groups else match[0]))
    return parts
