"""What is read beside inputs and labels: the group, the subgroup and the weight of each sample.

Weights may follow from class frequencies that the user states: `uniform`, numbers, or a file. A file is JSON, a list or
an object {class: number}; or CSV with two columns, class and number. Classes are named, if the model's names are known,
or numbered.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.choices import BESIDE, Limits
from tna_onnx.data.foreign import any_array, parse_json, read_text, repeated
from tna_onnx.data.options import Data
from tna_onnx.data.source import AnyArray, IntArray, Source
from tna_onnx.data.textfile import read_columns
from tna_onnx.errors import DataError, UsageError, listed

# What libraries write where a value is missing; "none" is a word.
_EMPTY = frozenset({"", "nan", "NaN", "None", "NaT", "<NA>"})

_MAX_LISTED = 8  # classes that a message names
_UNIFORM = "uniform"
_SUM_TOLERANCE = 2e-3  # figures rounded to three digits add up to 1 within this
_SMALLEST = 1e-100  # squares of much smaller frequencies are 0
_PRIOR_ADVICE = "give one positive number for each class, which add up to 1"


def columns_beside(data: Data, where: str, names: Collection[str]) -> list[str]:
    """Return the columns to read beside inputs and labels."""
    columns = {role: column for role, column in data.sample_info.items() if isinstance(column, str)}
    for role, column in columns.items():
        if column not in names:
            raise _no_column(where, role, column, names)
    return [*columns.values()]


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


# ---- class frequencies


@dataclass(frozen=True, eq=False)
class ClassPrior:
    """Class frequencies in place of weights, which follow with the labels."""

    frequencies: NDArray[np.float64]  # of the C classes in the population, (C,), which add up to 1

    def weights(self, labels: IntArray, where: str) -> NDArray[np.float64]:
        """Return the frequency of each sample's class over its share of the samples, (N,).

        `labels`: class indices (N,).
        """
        counts = np.bincount(labels, minlength=len(self.frequencies))
        missing = np.flatnonzero(counts == 0)
        if len(missing):
            raise DataError(
                f"{where}: no sample of the classes {', '.join(map(str, missing[:_MAX_LISTED]))}, which --class-prior "
                "says are in the population; give some of each class"
            )
        weights: NDArray[np.float64] = (self.frequencies * len(labels) / counts)[labels]
        return weights


def read_prior(prior: Any, names: Sequence[str] | None, n_classes: int, option: str, limits: Limits) -> NDArray[Any]:
    """Return (C,) frequencies, float64, which add up to 1."""
    where = option
    if isinstance(prior, str) and prior == _UNIFORM:
        return np.full(n_classes, 1 / n_classes)
    if isinstance(prior, (str, Path)):
        where = f"{prior}"
        prior = _from_file(Path(prior), option, limits)
    elif hasattr(prior, "to_dict"):  # a series of pandas, such as y.value_counts(normalize=True), by class
        prior = prior.to_dict()
    if isinstance(prior, Mapping):
        prior = _by_class(prior, names, n_classes, where)
    return _checked_frequencies(prior, n_classes, where)


def with_prior(data: Data, n_classes: int, names: Sequence[str] | None) -> Data:
    """Return the same samples with `class_prior` as their weights, if it is stated."""
    if data.class_prior is None:
        return data
    frequencies = read_prior(data.class_prior, names, n_classes, "--class-prior", data.limits)
    return replace(data, weights=ClassPrior(frequencies), class_prior=None)


def restricted(source: NDArray[np.float64], only: Sequence[str], names: Sequence[str] | None) -> NDArray[np.float64]:
    """Return frequencies (C,) that are 0 but for some classes, whose ratios stay."""
    possible = [*map(str, only)]
    can_occur = np.isin(_known_names(possible, names, len(source), "--only"), possible)
    target: NDArray[np.float64] = np.where(can_occur, source, 0.0) / source[can_occur].sum()
    return target


def _from_file(path: Path, where: str, limits: Limits) -> Any:
    if not path.is_file():
        raise UsageError(f"{path}: no such file; {where} takes '{_UNIFORM}' or a file of class frequencies")
    if path.suffix.lower() == ".json":
        return parse_json(read_text(path, limits), str(path), "write a list of numbers")
    columns = read_columns(path, limits, lambda _: True)
    if len(columns) != 2:
        raise DataError(f"{path}: expected two columns, the class and its frequency, found {listed(columns)}")
    names, numbers = (values.tolist() for values in columns.values())
    if twice := repeated(names):
        raise DataError(f"{path}: class {twice[0]!r} has several lines; {_PRIOR_ADVICE}")
    frequencies = {}
    for name, text in zip(names, numbers, strict=True):
        try:
            frequencies[str(name).strip()] = float(text)
        except (TypeError, ValueError) as error:
            raise DataError(f"{path}: expected a number, found {str(text)[:80]!r}; {_PRIOR_ADVICE}") from error
    return frequencies


def _by_class(frequencies: Mapping[Any, Any], names: Sequence[str] | None, n_classes: int, where: str) -> list[Any]:
    keys = [str(key) for key in frequencies]
    names_known = _known_names(keys, names, n_classes, where)
    missing = [name for name in names_known if name not in keys]
    if missing:
        raise DataError(f"{where}: no number for the classes {listed(missing)}; {_PRIOR_ADVICE}")
    values = dict(zip(keys, frequencies.values(), strict=True))
    return [values[name] for name in names_known]


def _known_names(keys: Sequence[str], names: Sequence[str] | None, n_classes: int, where: str) -> list[str]:
    """Return what the C classes are called by keys: names or indices."""
    names_known = [str(k) for k in range(n_classes)]
    # names go first: a class may be called "1" and not be the one with that index
    if names is not None and (set(keys) <= set(names) or not set(keys) <= set(names_known)):
        names_known = list(names)
    unknown = [key for key in keys if key not in names_known]
    if unknown:
        raise DataError(f"{where}: unknown classes {listed(unknown)}; the model's classes are {listed(names_known)}")
    return names_known


def _checked_frequencies(raw: Any, n_classes: int, where: str) -> NDArray[Any]:
    values = list(raw) if isinstance(raw, (Sequence, np.ndarray)) else None
    if values is None or any(isinstance(v, bool) or not isinstance(v, (int, float, np.number)) for v in values):
        raise DataError(f"{where}: expected numbers, found {str(raw)[:80]!r}; {_PRIOR_ADVICE}")
    if len(values) != n_classes:
        raise DataError(f"{where}: {len(values)} numbers for a model with {n_classes} classes; {_PRIOR_ADVICE}")
    prior = np.array([float(value) for value in values])
    wrong = np.flatnonzero(~np.isfinite(prior) | (prior < 0))
    if wrong.size:
        raise DataError(f"{where}: class {wrong[0]} has the frequency {prior[wrong[0]]:g}; {_PRIOR_ADVICE}")
    if np.any(prior < _SMALLEST):
        raise DataError(
            f"{where}: class {int(np.argmin(prior))} has the frequency {prior.min():g}, which would rule it out "
            "whatever the model sees; give a small number, such as 1e-6, in its place; for shift, --only says which "
            "classes can occur"
        )
    total = float(prior.sum())
    if abs(total - 1) > _SUM_TOLERANCE:
        hint = ""
        if total > 1:
            hint = "; if these are counts, divide them by their sum"
        raise DataError(f"{where}: the numbers add up to {total:.6g}; expected 1{hint}")
    return prior / total
