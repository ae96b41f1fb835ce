"""Class labels: check that stored ones are class indices of the model, or read them from the names of class folders.

A label is the index of the model's output column, from 0 to C - 1 for C classes. Nothing is shifted, rounded or
guessed: labels that are not such indices are refused with a message that says how to make them so.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tna_onnx.data.source import AnyArray, IntArray

__all__ = ["check_labels", "folder_labels"]

_INTEGER = re.compile(r"-?[0-9]+")
_SHOWN = 10  # names in a message; more are cut


def check_labels(labels: AnyArray, n_samples: int, n_classes: int, where: str) -> IntArray:
    """Return `labels` as class indices, a new int64 array (N,).

    Args:
        labels: integers, or floats without a fraction, of shape (N,) or (N, 1).
        n_samples: the number N of samples that the labels belong to.
        n_classes: the number C of classes of the model.
        where: what messages start with, e.g. "calib.npz: array 'labels'".

    Raises:
        DataError: no samples, a wrong shape, type or length, a value outside [0, C), or fewer than two classes present.

    >>> check_labels(np.array([[2.0], [0.0]]), n_samples=2, n_classes=3, where="labels")
    array([2, 0])
    """
    flat = _one_axis(np.asarray(labels), where)
    if n_samples < 1:
        raise DataError(f"{where}: there are no samples; at least one of each of two classes is needed")
    if len(flat) != n_samples:
        raise DataError(f"{where}: {len(flat)} labels for {n_samples} samples; give exactly one label per sample")
    _check_integral(flat, where)
    _check_range(flat, n_classes, where)
    indices = flat.astype(np.int64)
    if np.all(indices == indices[0]):
        raise DataError(
            f"{where}: every label is {indices[0]}, but calibration needs at least two different classes; "
            "draw the samples from all classes"
        )
    return indices


def folder_labels(names: Sequence[str], n_classes: int, where: str) -> dict[str, int]:
    """Return the class index that each class folder stands for.

    If every name is an integer, the index is that number, and classes may be absent: alphabetical order would put "10"
    before "2". Otherwise the folders in alphabetical order (of code points) are classes 0, 1, ..., C - 1, which can
    only be right if there are exactly C of them.

    Raises:
        DataError: no names; numbers that repeat or lie outside [0, C); or names that are not C in number.

    >>> folder_labels(["10", "2"], n_classes=11, where="calib")
    {'10': 10, '2': 2}
    >>> folder_labels(["dog", "cat"], n_classes=2, where="calib")
    {'cat': 0, 'dog': 1}
    """
    if not names:
        raise DataError(f"{where}: no class folders; put the images of each class in a folder of its own")
    if all(_INTEGER.fullmatch(name) for name in names):
        return _numbered(names, n_classes, where)
    if len(names) != n_classes:
        raise DataError(
            f"{where}: {len(names)} class folders for a model with {n_classes} classes, so their order cannot be told "
            f"(found {_listed(sorted(names))}). Give one folder per class, or name the folders by class index, 0 to "
            f"{n_classes - 1}"
        )
    return {name: index for index, name in enumerate(sorted(names))}


def _numbered(names: Sequence[str], n_classes: int, where: str) -> dict[str, int]:
    indices = {name: int(name) for name in names}
    if len(set(indices.values())) < len(names):
        repeated = [name for name in names if list(indices.values()).count(indices[name]) > 1]
        raise DataError(
            f"{where}: several class folders have the same number ({_listed(repeated)}); merge or rename them"
        )
    _check_range(np.array(list(indices.values()), dtype=object), n_classes, f"{where}: names of the class folders")
    return indices


def _one_axis(labels: AnyArray, where: str) -> AnyArray:
    if labels.ndim == 2 and labels.shape[1] == 1:
        return labels[:, 0]
    if labels.ndim == 1:
        return labels
    advice = "; if each row is one-hot or holds scores, store labels.argmax(axis=1)" if labels.ndim == 2 else ""
    raise DataError(f"{where}: expected one class index per sample, shape (N,), found shape {labels.shape}{advice}")


def _check_integral(flat: AnyArray, where: str) -> None:
    if flat.dtype.kind in "iu":
        return
    if flat.dtype.kind != "f":
        raise DataError(
            f"{where}: expected integers, found {flat.dtype}; store the index of each sample's class (0, 1, ...)"
        )
    wrong = ~np.isfinite(flat) | (flat != np.trunc(flat))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(
            f"{where}: expected integers, found {np.count_nonzero(wrong)} of {len(flat)} values that are not, first "
            f"{flat[row]} in row {row}; store the index of each sample's class (0, 1, ...)"
        )


def _check_range(values: AnyArray, n_classes: int, where: str) -> None:
    low, high = values.min(), values.max()
    outside = np.count_nonzero((values < 0) | (values >= n_classes))
    if not outside:
        return
    hint = "remove or correct these"
    if low == 1 and high == n_classes:
        hint = "they seem to start at 1: subtract 1 so that the first class is 0"
    raise DataError(
        f"{where}: the model has {n_classes} classes, so labels must lie in 0 to {n_classes - 1}, but {outside} of "
        f"{len(values)} do not (smallest {low}, largest {high}); {hint}"
    )


def _listed(names: Iterable[str]) -> str:
    every = [repr(name) for name in names]
    rest = f", and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(every[:_SHOWN]) + rest
