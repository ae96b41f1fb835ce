"""Class labels: checks that stored labels are class indices of the model, conversion of class names to indices, and
classes that have no samples, or few (`Coverage`).

Nothing is shifted, rounded or guessed. Names become indices by the first rule that applies (`name_indices`):

1. The model's class names hold every name: the place in that list. Labels that may be names or indices are refused.
2. Every name is an integer: that number.
3. The model's class names are not known, and there are exactly C names: their alphabetical order (of code points).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tna_onnx.data.foreign import plain_column, repeated
from tna_onnx.data.options import Request
from tna_onnx.data.source import NO_LABELS, AnyArray, IntArray
from tna_onnx.errors import DataError, UsageError, listed


def check_integral(flat: AnyArray, where: str) -> None:
    """Refuse values that are not whole numbers."""
    actual = str(flat.dtype)
    if flat.dtype.kind == "f":
        wrong = np.flatnonzero(~np.isfinite(flat) | (flat != np.trunc(flat)))
        if not wrong.size:
            return
        actual = f"{wrong.size} of {len(flat)} values that are not, first {flat[wrong[0]]} in row {wrong[0]}"
    if flat.dtype.kind not in "iu":
        raise DataError(
            f"{where}: expected integers, found {actual}; store the index of each sample's class (0, 1, ...)"
        )


def check_range(values: AnyArray, n_classes: int, where: str) -> None:
    """Refuse values that are not class indices."""
    outside = np.count_nonzero((values < 0) | (values >= n_classes))
    if not outside:
        return
    low = values.min()
    high = values.max()
    hint = "remove or correct these, or name the model's classes with --classes if they are such names"
    if low == 1 and high == n_classes:  # said, not done: labels of another model could look the same
        hint = "they seem to start at 1: subtract 1 so that the first class is 0"
    raise DataError(
        f"{where}: the model has {n_classes} classes, so labels must lie in 0 to {n_classes - 1}, but {outside} of "
        f"{len(values)} do not (smallest {low}, largest {high}); {hint}"
    )


def check_two_classes(values: AnyArray, where: str) -> None:
    """Refuse labels of one class: a map fitted to them says nothing about the others."""
    if np.all(values == values[0]):
        raise DataError(
            f"{where}: every label is {values[0]}; at least two different classes are needed: "
            "draw the samples from all classes"
        )


_INTEGER = re.compile(r"-?[0-9]{1,40}")  # longer ones are no index, and Python does not convert thousands of digits
_WHOLE_FLOAT = re.compile(_INTEGER.pattern + r"\.0+")


def check_labels(labels: AnyArray, n_samples: int, n_classes: int, where: str) -> IntArray:
    """Return `labels` as class indices, a new int64 array (N,).

    `labels`: integers, or floats without a fraction, of shape (N,) or (N, 1).

    >>> check_labels(np.array([[2.0], [0.0]]), n_samples=2, n_classes=3, where="labels")
    array([2, 0])
    """
    flat = _one_axis(np.asarray(labels), where)
    if n_samples < 1:
        raise DataError(f"{where}: there are no samples; at least one of each of two classes is needed")
    if len(flat) != n_samples:
        raise DataError(f"{where}: {len(flat)} labels for {n_samples} samples; give exactly one label per sample")
    check_integral(flat, where)
    check_range(flat, n_classes, where)
    indices = flat.astype(np.int64)
    check_two_classes(indices, where)
    return indices


def label_indices(
    values: AnyArray, n_samples: int, n_classes: int, where: str, class_names: Sequence[str] | None = None
) -> IntArray:
    """Return stored labels, numbers or names, as class indices, a new int64 array (N,).

    `values`: what `check_labels` takes, or names, str of shape (N,) or (N, 1).

    >>> label_indices(np.array(["dog", "cat"]), 2, 3, "labels", class_names=["cat", "cow", "dog"])
    array([2, 0])
    """
    values = np.asarray(values)
    if values.ndim == 2 and values.shape[1] == n_classes > 1 and _one_hot(values):
        values, class_names = values.argmax(axis=1), None  # indices, whatever the classes are called
    if values.dtype == object:
        values = plain_column(values)
    if values.dtype == bool and n_classes == 2:
        values = _of_truth(values, where, class_names)
    if class_names is not None and _are_own_numbers(values, n_classes, where, class_names):
        values = values.astype(np.int64).astype(str)
        class_names = [_plain_number(name) for name in class_names]
    if values.dtype.kind in "biufc" or values.size == 0:  # no values have no type: `check_labels` says what is wrong
        return check_labels(values, n_samples, n_classes, where)
    texts = _as_text(_one_axis(values, where), where)
    if class_names is None or not set(texts.tolist()) <= set(class_names):
        texts = np.char.strip(texts)  # cells of a CSV file have spaces around their text
    distinct, inverse = np.unique(texts, return_inverse=True)
    names = distinct.tolist()
    # numbers that were floats for a while: the alphabet would put "10.0" before "2.0"
    if all(_WHOLE_FLOAT.fullmatch(name) for name in names) and not set(names) <= set(class_names or ()):
        names = [name.partition(".")[0] for name in names]
    index_of = name_indices(names, n_classes, where, "labels", class_names)
    indices = np.array([index_of[name] for name in names], np.int64)[inverse]
    return check_labels(indices, n_samples, n_classes, where)


def class_indices(request: Request, labels: AnyArray, n_samples: int, where: str) -> IntArray:
    """Return stored labels, numbers or names, as class indices, (N,); -1 for each if labels are not to be read."""
    if request.labels is NO_LABELS:
        return np.full(n_samples, -1, np.int64)
    return label_indices(labels, n_samples, request.n_classes, where, request.class_names)


def named_labels(indices: AnyArray, names: Sequence[str], where: str) -> AnyArray:
    """Return the names of classes, (N,), where a data set has its own: the model may order the classes differently."""
    if indices.dtype.kind not in "iu" or not np.all((indices >= 0) & (indices < len(names))):
        raise DataError(
            f"{where} must lie in 0 to {len(names) - 1}, the places of its class names, but goes from {indices.min()} "
            f"to {indices.max()}; remove samples without a label"
        )
    named: AnyArray = np.array(names)[indices]
    return named


def _of_truth(values: AnyArray, where: str, class_names: Sequence[str] | None) -> AnyArray:
    """Return truth values as names or indices of two classes: false is the first one."""
    folded = [name.casefold() for name in class_names or ()]
    if sorted(folded) == ["false", "true"]:
        return np.array(class_names)[np.where(values, folded.index("true"), folded.index("false"))]
    if folded and not all(_INTEGER.fullmatch(name) for name in folded):
        raise DataError(
            f"{where}: labels are True and False, and the model's classes are {listed(class_names or ())}; store these "
            "names, or the index of each sample's class"
        )
    return values.astype(np.int64)


def folder_labels(
    names: Sequence[str], n_classes: int, where: str, class_names: Sequence[str] | None = None
) -> dict[str, int]:
    """Return the class index that each class folder stands for, by the rules of the module's docstring.

    Classes may be absent under rules 1 and 2. Numbers go before the alphabet, which would put "10" before "2".

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
    folders_of = Counter(index_of.values())
    if repeated := [name for name, index in index_of.items() if folders_of[index] > 1]:  # "7" and "07"
        raise DataError(
            f"{where}: several class folders have the same number ({listed(repeated)}); merge or rename them"
        )
    return index_of


def name_indices(
    names: Sequence[str], n_classes: int, where: str, noun: str, class_names: Sequence[str] | None = None
) -> dict[str, int]:
    """Return the class index of each of the distinct `names`, by the rules of the module's docstring."""
    if class_names is not None and set(names) <= set(class_names):  # rule 1
        return _listed_indices(names, where, noun, class_names)
    if all(_INTEGER.fullmatch(name) for name in names):  # rule 2
        indices = {name: int(name) for name in names}
        if noun == "class folders":
            where = f"{where}: names of the class folders"
        # Objects, because a name of twenty digits does not fit in int64.
        check_range(np.array(list(indices.values()), dtype=object), n_classes, where)
        if class_names is not None:
            _check_indices([str(index) for index in indices.values()], where, class_names)
        return indices
    if class_names is not None:  # their order is known, so the alphabet must not decide
        model_names = set(class_names)
        unknown = [name for name in names if name not in model_names]
        raise DataError(
            f"{where}: {len(unknown)} of {len(names)} {noun} are not class names of the model: {listed(unknown)}. The "
            f"model's {len(class_names)} class names are {listed(class_names)}. Correct one of the two lists, or use "
            "class indices"
        )
    if len(names) != n_classes:
        odd = [name for name in names if not _INTEGER.fullmatch(name)]
        detail = f"found {listed(sorted(names))}"
        # a stray folder beside numbered ones
        if 2 * len(odd) < len(names):
            detail = f"all but {listed(sorted(odd))} are numbers"
        raise DataError(
            f"{where}: {len(names)} {noun} for a model with {n_classes} classes, so their order is unknown "
            f"({detail}). Give the model's class names in its order (--classes FILE), or name the {noun} "
            f"by class index, 0 to {n_classes - 1}"
        )
    return {name: index for index, name in enumerate(sorted(names))}  # rule 3


def class_called(word: str, names: Sequence[str]) -> int:
    """Return the class that `--positive` names, by its name or its number."""
    if word in names:
        return names.index(word)
    if word.isdecimal() and int(word) < len(names):
        return int(word)
    raise UsageError(f"--positive {word}: the model has no such class; expected {listed(names)}, or its number from 0")


def _listed_indices(names: Sequence[str], where: str, noun: str, class_names: Sequence[str]) -> dict[str, int]:
    # ImageNet has two classes called "crane". That is an error only for samples that carry such a name.
    shared = set(repeated(class_names)).intersection(names)
    if shared:
        places = ", ".join(f"class {index} is {name!r}" for index, name in enumerate(class_names) if name in shared)
        raise DataError(
            f"{where}: {noun} whose name the model has more than once ({places}); make the class names unique, or "
            "use class indices"
        )
    index_of = {name: index for index, name in enumerate(class_names)}
    return {name: index_of[name] for name in names}


def _are_own_numbers(values: AnyArray, n_classes: int, where: str, class_names: Sequence[str]) -> bool:
    """Tell whether labels are the model's numeric class names and not class indices."""
    if values.dtype.kind not in "iuf" or not values.size:
        return False
    if not np.all(np.isfinite(values) & (values == np.trunc(values))):
        return False
    distinct = np.unique(values)
    numbers = [str(int(value)) for value in distinct]
    if distinct[0] < 0 or distinct[-1] >= n_classes:
        return {*numbers} <= {_plain_number(name) for name in class_names}
    _check_indices(numbers, where, class_names)
    return False


def _check_indices(numbers: Sequence[str], where: str, class_names: Sequence[str]) -> None:
    """Refuse class indices that are numbers of other classes too, as 1 is where the first class is called 01."""
    plain = [_plain_number(name) for name in class_names]
    if {*numbers} <= {*plain} and any(plain[int(number)] != number for number in numbers):
        raise DataError(
            f"{where}: labels {listed(numbers)} may be indices, or the numbers that the model gives its classes "
            f"({listed(class_names)}); store those numbers as text, written as the model has them, or name the classes "
            "otherwise with --classes"
        )


def _plain_number(name: str) -> str:
    """Return the name of a class without the zeros around a whole number, as cells of numbers lose them."""
    if _INTEGER.fullmatch(name) or _WHOLE_FLOAT.fullmatch(name):
        return str(int(name.partition(".")[0]))
    return name


def _as_text(flat: AnyArray, where: str) -> AnyArray:
    """Return names as an array of str."""
    if flat.dtype.kind == "U":
        return flat
    values = flat.tolist()
    wrong = next((row for row, value in enumerate(values) if not isinstance(value, str)), None)
    if wrong is not None:
        raise DataError(
            f"{where}: expected class indices or names, found {values[wrong]!r} in row {wrong}; give every sample a "
            "label of text"
        )
    return np.array(values)


def _one_hot(labels: AnyArray) -> bool:
    """Whether each row is 1 in one place and 0 in all others."""
    if labels.dtype.kind not in "biuf" or not labels.size:
        return False
    return bool(np.all((labels == 0) | (labels == 1)) and np.all(labels.sum(axis=1) == 1))


def _one_axis(labels: AnyArray, where: str) -> AnyArray:
    if labels.ndim == 2 and labels.shape[1] == 1:
        return labels[:, 0]
    if labels.ndim == 1:
        return labels
    advice = "; store them as an array with one axis"
    if labels.ndim == 2:
        advice = (
            "; this model gives one class a sample (softmax). If each column is a label by itself (sigmoid), add "
            "--output-kind label-logits, or label-probabilities for numbers from 0 to 1; if a row holds scores of "
            "classes, store labels.argmax(axis=1)"
        )
    raise DataError(f"{where}: expected one class index per sample, shape (N,), found shape {labels.shape}{advice}")


# ---- classes without samples

FEW = 5
"""A class with fewer samples is named."""

# So many times as many classes have no sample as have one: left out, not missed by chance. A hundredth of the classes
# at least, as counts of two or three classes tell little, and little depends on them.
_LEFT_OUT = 2
_SHARE = 0.01

_MAX_NAMES = 8


@dataclass(frozen=True)
class Coverage:
    """How labels cover C classes.

    If classes are missing by chance, others are almost missing: of K equally frequent classes with lambda samples each,
    K e^-lambda have none and lambda K e^-lambda one. If many more have none, they were left out (Good 1953).
    """

    classes: int  # number of classes C
    unseen: tuple[int, ...]  # classes without a sample
    scarce: tuple[int, ...]  # classes with fewer than `FEW` samples, but with one at least
    left_out: bool  # whether classes are missing that sampling alone would not miss

    @classmethod
    def of(cls, labels: IntArray, n_classes: int) -> Coverage:
        """Count labels (N,) in [0, C).

        >>> Coverage.of(np.array([0, 0, 1, 1, 1, 1, 1]), 3)
        Coverage(classes=3, unseen=(2,), scarce=(0,), left_out=True)
        """
        return cls.of_counts(np.bincount(labels, minlength=n_classes))

    @classmethod
    def of_counts(cls, counts: IntArray) -> Coverage:
        """Take the number of samples of each class, (C,)."""
        unseen = np.flatnonzero(counts == 0)
        scarce = np.flatnonzero((counts > 0) & (counts < FEW))
        left_out = len(unseen) > max(_LEFT_OUT * int(np.count_nonzero(counts == 1)), _SHARE * len(counts))
        return cls(len(counts), tuple(unseen.tolist()), tuple(scarce.tolist()), bool(left_out))

    def lacks(self, phrase: str, names: Sequence[str] | None) -> list[str]:
        """Name the classes that lack samples, in a phrase each for those with none and those with few."""
        phrases = []
        for classes, count in ((self.unseen, "no sample"), (self.scarce, f"fewer than {FEW} samples")):
            if classes:
                examples = [names[c] if names else str(c) for c in classes[:_MAX_NAMES]]
                if len(classes) > _MAX_NAMES:
                    examples.append(f"{len(classes) - _MAX_NAMES:,} more")
                counted = f"{len(classes):,} of {self.classes:,}"
                phrases.append(f"{count} {phrase.format(counted)} ({', '.join(examples)})")
        return phrases

    def text(self, subject: str, class_names: Sequence[str] | None = None) -> str:
        """Name the classes that lack samples, in one sentence; empty if none do.

        >>> Coverage.of(np.array([0] * 9), 2).text("the calibration data", ["cat", "dog"])
        'the calibration data have no sample of 1 of 2 classes (dog)'
        """
        return _sentence(subject, self.lacks("of {} classes", class_names))


def label_coverage_text(marks: IntArray, subject: str, names: Sequence[str] | None = None) -> str:
    """Name the labels that hold for no sample, for few, or for nearly all, in one sentence; empty if there are none.

    `marks`: (N, C) of 0 and 1.

    >>> label_coverage_text(np.array([[1, 0]] * 5 + [[0, 0]] * 5), "the data", ["cat", "dog"])
    'the data have no sample with 1 of 2 labels (dog)'
    """
    positives = marks.sum(axis=0)
    true = Coverage.of_counts(positives).lacks("with {} labels", names)
    false = Coverage.of_counts(len(marks) - positives).lacks("without {} labels", names)
    return _sentence(subject, true + false)


def _sentence(subject: str, phrases: list[str]) -> str:
    if not phrases:
        return ""
    return f"{subject} have {' and '.join(phrases)}"
