"""Class labels: check that stored ones are class indices of the model, or turn names of classes into indices.

A label is the index of the model's output column, from 0 to C - 1 for C classes. Nothing is shifted, rounded or
guessed: labels that are not such indices are refused with a message that says how to make them so.

Names, of folders or stored as text, become indices by the first of these rules that applies (`name_indices`):

1. The model's class names are known (`class_names`, in model order) and hold every name: the place in that list.
2. Every name is an integer: that number.
3. The model's class names are not known, and there are exactly C names: their alphabetical order (of code points).

All else is refused.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

import numpy as np

from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tna_onnx.data.source import AnyArray, IntArray

__all__ = ["check_labels", "folder_labels", "label_indices", "listed", "name_indices"]

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


def label_indices(
    values: AnyArray, n_samples: int, n_classes: int, where: str, class_names: Sequence[str] | None = None
) -> IntArray:
    """Return stored labels, numbers or names, as class indices, a new int64 array (N,).

    Args:
        values: what `check_labels` takes, or names: str, or bytes in UTF-8, of shape (N,) or (N, 1).
        n_samples: as in `check_labels`.
        n_classes: likewise.
        where: likewise.
        class_names: the model's class names, in model order.

    Raises:
        DataError: as `check_labels`, or the names cannot be turned into indices.

    >>> label_indices(np.array(["dog", "cat"]), 2, 3, "labels", class_names=["cat", "cow", "dog"])
    array([2, 0])
    """
    values = np.asarray(values)
    if values.dtype.kind in "biufc" or values.size == 0:
        return check_labels(values, n_samples, n_classes, where)
    flat = _one_axis(values, where)
    names, inverse = np.unique(_as_text(flat, where), return_inverse=True)
    index_of = name_indices(names.tolist(), n_classes, where, "labels", class_names)
    indices = np.array([index_of[name] for name in names.tolist()], np.int64)[inverse]
    return check_labels(indices, n_samples, n_classes, where)


def folder_labels(
    names: Sequence[str], n_classes: int, where: str, class_names: Sequence[str] | None = None
) -> dict[str, int]:
    """Return the class index that each class folder stands for, by the rules of the module's docstring.

    Classes may be absent under rules 1 and 2. Numbers go before the alphabet, which would put "10" before "2".

    Raises:
        DataError: no names, names that no rule covers, or several for one class.

    >>> folder_labels(["10", "2"], n_classes=11, where="calib")
    {'10': 10, '2': 2}
    >>> folder_labels(["dog", "cat"], n_classes=2, where="calib")
    {'cat': 0, 'dog': 1}
    >>> folder_labels(["dog", "cat"], n_classes=3, where="calib", class_names=["dog", "cow", "cat"])
    {'dog': 0, 'cat': 2}
    """
    if not names:
        raise DataError(f"{where}: no class folders; put the images of each class in a folder of its own")
    index_of = name_indices(names, n_classes, where, "class folders", class_names)
    indices = list(index_of.values())
    repeated = [name for name, index in index_of.items() if indices.count(index) > 1] if _repeats(indices) else []
    if repeated:
        raise DataError(
            f"{where}: several class folders have the same number ({listed(repeated)}); merge or rename them"
        )
    return index_of


def name_indices(
    names: Sequence[str], n_classes: int, where: str, noun: str, class_names: Sequence[str] | None = None
) -> dict[str, int]:
    """Return the class index of each of the distinct `names`, by the rules of the module's docstring.

    Args:
        names: distinct names.
        n_classes: the number C of classes of the model.
        where: what messages start with.
        noun: what messages call the names, in the plural, e.g. "class folders".
        class_names: the model's class names, in model order.

    Raises:
        DataError: no rule covers the names, or a number lies outside [0, C).
    """
    if class_names is not None and set(names) <= set(class_names):
        return _listed_indices(names, where, noun, class_names)
    if all(_INTEGER.fullmatch(name) for name in names):
        indices = {name: int(name) for name in names}
        named = f"{where}: names of the {noun}" if noun == "class folders" else where
        _check_range(np.array(list(indices.values()), dtype=object), n_classes, named)
        return indices
    if class_names is not None:
        raise DataError(f"{where}: {_unknown(names, noun, class_names)}")
    if len(names) != n_classes:
        raise DataError(
            f"{where}: {len(names)} {noun} for a model with {n_classes} classes, so their order cannot be told (found "
            f"{listed(sorted(names))}). Give the model's class names in its order (--classes FILE), or name the {noun} "
            f"by class index, 0 to {n_classes - 1}"
        )
    return {name: index for index, name in enumerate(sorted(names))}


def listed(names: Iterable[str]) -> str:
    """Write names for a message; of many only the first.

    >>> listed(["cat", "dog"])
    "'cat', 'dog'"
    """
    every = [repr(name) for name in names]
    rest = f", and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(every[:_SHOWN]) + rest


def _listed_indices(names: Sequence[str], where: str, noun: str, class_names: Sequence[str]) -> dict[str, int]:
    index_of = {name: index for index, name in enumerate(class_names)}
    if len(index_of) < len(class_names):  # ImageNet has two classes called "crane"
        places = {name: [i for i, known in enumerate(class_names) if known == name] for name in names}
        twice = {name: at for name, at in places.items() if len(at) > 1}
        if twice:
            found = ", ".join(f"{name!r} is class {' and '.join(map(str, at))}" for name, at in twice.items())
            raise DataError(
                f"{where}: {noun} whose name the model has more than once ({found}); make the class names unique, or "
                "use class indices"
            )
    return {name: index_of[name] for name in names}


def _unknown(names: Sequence[str], noun: str, class_names: Sequence[str]) -> str:
    """Say which names the model does not have, and what they may have meant."""
    folded = {_folded(name): name for name in class_names}
    known, unknown = set(class_names), list[str]()
    for name in (name for name in names if name not in known):
        near = difflib.get_close_matches(_folded(name), folded, n=1, cutoff=0.8) if len(unknown) < _SHOWN else []
        unknown.append(f"{name!r} (did you mean {folded[near[0]]!r}?)" if near else repr(name))
    rest = f", and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
    return (
        f"{len(unknown)} of {len(names)} {noun} are not class names of the model: {', '.join(unknown[:_SHOWN])}{rest}. "
        f"The model's {len(class_names)} class names are {listed(class_names)}. Correct one of the two lists, or use "
        "class indices"
    )


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name.strip().casefold())


def _as_text(flat: AnyArray, where: str) -> AnyArray:
    """Return names as an array of str."""
    if flat.dtype.kind == "U":
        return flat
    values = flat.tolist()
    if all(isinstance(value, (str, bytes)) for value in values):
        try:
            return np.array([value.decode() if isinstance(value, bytes) else value for value in values])
        except UnicodeDecodeError as error:
            raise DataError(f"{where}: names of classes must be UTF-8 ({error}); store class indices") from error
    wrong = next(row for row, value in enumerate(values) if not isinstance(value, (str, bytes)))
    raise DataError(
        f"{where}: expected class indices or names, found {values[wrong]!r} in row {wrong}; give every sample a label"
    )


def _repeats(indices: Sequence[int]) -> bool:
    return len(set(indices)) < len(indices)


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
