"""Class frequencies that the user states: `uniform`, numbers, or a file.

A file is JSON, a list or an object {class: number}; or CSV with two columns, class and number. Classes are named, if
the model's names are known, or numbered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.choices import Limits
from tna_onnx.data.foreign import parse_json, read_text, repeated
from tna_onnx.data.labels import listed
from tna_onnx.data.options import Data
from tna_onnx.data.source import ClassPrior
from tna_onnx.data.textfile import read_columns
from tna_onnx.errors import DataError, UsageError

UNIFORM = "uniform"
_SUM_TOLERANCE = 2e-3  # figures rounded to three digits add up to 1 within this
_SMALLEST = 1e-100  # squares of much smaller frequencies are 0
_PRIOR_ADVICE = "give one positive number for each class, which add up to 1"


def read_prior(prior: Any, names: Sequence[str] | None, n_classes: int, option: str, limits: Limits) -> NDArray[Any]:
    """Return (C,) frequencies, float64, which add up to 1."""
    where = option
    if isinstance(prior, str) and prior == UNIFORM:
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
    known = _known_names([*map(str, only)], names, len(source), "--only")
    kept = np.isin(known, [*map(str, only)])
    target: NDArray[np.float64] = np.where(kept, source, 0.0) / source[kept].sum()
    return target


def _from_file(path: Path, where: str, limits: Limits) -> Any:
    if not path.is_file():
        raise UsageError(f"{path}: no such file; {where} takes '{UNIFORM}' or a file of class frequencies")
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
