"""Logits or probabilities with labels, by themselves: no model says how many classes there are.

Read from a `.npz` file, Parquet or Arrow files, or a mapping of arrays. Rows of Parquet and Arrow files are put in the
order of their digests, as features are (`feature_files`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.files import is_url, local_path
from tna_onnx.data.labelfile import find_label_column
from tna_onnx.data.sources.feature_files import find_table_files, read_lists
from tna_onnx.data.sources.npfiles import read_npz
from tna_onnx.errors import DataError, UsageError

ScoresWord: TypeAlias = Literal["logits", "probabilities"]
_KINDS: tuple[ScoresWord, ...] = ("logits", "probabilities")

_Beside: TypeAlias = Mapping[str, "str | None"]
_NOTHING: _Beside = {"groups": None, "weights": None}


@dataclass(frozen=True, eq=False)
class LabelledScores:
    """Scores of N samples.

    Attributes:
        kind: logits, natural logarithms before a softmax, or probabilities.
        values: (N, C), or (N,) of the second of two classes.
        labels: (N,), class indices or names.
        beside: `groups` and `weights`, (N,) each, or None where they are not asked for.
    """

    kind: ScoresWord
    values: NDArray[Any]
    labels: NDArray[Any]
    beside: Mapping[str, NDArray[Any] | None]


def open_scores(
    data: Any, kind: ScoresWord | None = None, label_column: str | None = None, beside: _Beside = _NOTHING
) -> LabelledScores:
    """Read scores and labels.

    Args:
        data: path, URL, or mapping of arrays.
        kind: which of the two; None takes what is there.
        label_column: column or array with the labels; None finds it by its name.
        beside: column or array of `groups` and of `weights`; None for none.

    Raises:
        UsageError: nothing is there, or a library is missing.
        DataError: it cannot be read, or there are no scores or labels.
    """
    if isinstance(data, Mapping):
        arrays = {str(name): np.asarray(values) for name, values in data.items()}
        return _of_arrays(arrays, kind, label_column, beside, "arrays")
    if not isinstance(data, (str, Path)):
        raise UsageError(f"expected the path of a file, or a mapping of arrays, got {type(data).__name__}")
    place = local_path(str(data))
    files = find_table_files(place)
    if files is not None:
        names = list(files.schema.names)
        chosen = _kind(names, kind, place)
        label = _label(names, label_column, beside, place)
        wanted = [column for column in beside.values() if column is not None]
        values, labels, columns = read_lists(files, chosen, label, place, wanted)
        return LabelledScores(chosen, values, labels, _chosen(columns, beside))
    path = Path(place)
    if is_url(place) or (path.exists() and path.suffix.lower() != ".npz"):
        raise DataError(f"{place}: expected .npz, .parquet or .arrow with logits or probabilities, and labels")
    if not path.exists():
        raise UsageError(f"{place}: no such file or folder; give a file with logits or probabilities, and labels")
    arrays, _ = read_npz(path, lambda found: found)
    return _of_arrays(arrays, kind, label_column, beside, place)


def _of_arrays(
    arrays: Mapping[str, NDArray[Any]],
    kind: ScoresWord | None,
    label_column: str | None,
    beside: _Beside,
    where: str,
) -> LabelledScores:
    chosen = _kind(list(arrays), kind, where)
    label = _label(list(arrays), label_column, beside, where)
    return LabelledScores(chosen, arrays[chosen], arrays[label], _chosen(arrays, beside))


def _chosen(columns: Mapping[str, NDArray[Any]], beside: _Beside) -> dict[str, NDArray[Any] | None]:
    return {role: None if column is None else columns[column] for role, column in beside.items()}


def _label(names: list[str], label_column: str | None, beside: _Beside, where: str) -> str:
    """Return the name of the label column; the others that are asked for have to be there."""
    for role, column in beside.items():
        if column is not None and column not in names:
            flag = f"--{role.removesuffix('s')}-column"
            raise DataError(f"{where}: no column {column!r} for {flag}; found {', '.join(map(repr, names))}")
    others = [name for name in names if name not in (*_KINDS, *beside.values())]
    return find_label_column(others, label_column, where)


def _kind(names: list[str], kind: ScoresWord | None, where: str) -> ScoresWord:
    present = [name for name in ([kind] if kind else _KINDS) if name in names]
    if len(present) == 1:
        return present[0]
    listed = ", ".join(map(repr, names)) or "nothing"
    if present:
        raise DataError(f"{where}: has both logits and probabilities; say which with --scores")
    raise DataError(f"{where}: expected {kind or 'logits or probabilities'}, a row for each sample; found {listed}")
