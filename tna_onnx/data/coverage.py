"""How well labels cover the model's classes, and the names of these classes.

A map with parameters of its own for each class learns from labels without a class that this class never occurs.
If classes are missing by chance, others are almost missing: of K equally frequent classes with lambda samples each on
average, K e^-lambda have none and lambda K e^-lambda have one. Cross-validation measures that cost, since samples of a
fold belong to classes that the other folds lack. If many more classes have none than one, they were left out of the
data, and nothing in the data can measure that cost. Good (1953) estimates the unseen share in the same way, from the
classes seen once.

Class names are in the order of the model's output. They come from the model's metadata, or from a file: text with one
name per line, or JSON with a list of names or a dict {index: name} or {name: index}, at the top level or under
`id2label`, `label2id` or `label_names` (a `config.json` of Hugging Face or timm).
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.choices import DEFAULT_LIMITS
from tna_onnx.data.files import foreign_json, parse_json, read_text, text_lines
from tna_onnx.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tna_onnx.data.choices import Limits
    from tna_onnx.data.source import IntArray

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

    Attributes:
        classes: number of classes C.
        unseen: classes without a sample.
        scarce: classes with fewer than `FEW` samples, but with one at least.
        left_out: whether classes are missing that sampling alone would not miss.
    """

    classes: int
    unseen: tuple[int, ...]
    scarce: tuple[int, ...]
    left_out: bool

    @classmethod
    def of(cls, labels: IntArray, n_classes: int) -> Coverage:
        """Count labels (N,) in [0, C).

        >>> Coverage.of(np.array([0, 0, 1, 1, 1, 1, 1]), 3)
        Coverage(classes=3, unseen=(2,), scarce=(0,), left_out=True)
        """
        counts = np.bincount(labels, minlength=n_classes)
        unseen = np.flatnonzero(counts == 0)
        scarce = np.flatnonzero((counts > 0) & (counts < FEW))
        missed = _LEFT_OUT * int(np.count_nonzero(counts == 1))
        left_out = len(unseen) > max(missed, _SHARE * n_classes)
        return cls(n_classes, tuple(unseen.tolist()), tuple(scarce.tolist()), left_out)

    def text(self, subject: str, class_names: Sequence[str] | None = None) -> str:
        """Name the classes that lack samples, in one sentence; empty if none do.

        Args:
            subject: the data, as in `the calibration data`.
            class_names: in the order of the model's output, if known.

        >>> Coverage.of(np.array([0] * 9), 2).text("the calibration data", ["cat", "dog"])
        'the calibration data have no sample of 1 of 2 classes (dog)'
        """
        parts = []
        if self.unseen:
            parts.append(f"no sample of {self._listed(self.unseen, class_names)}")
        if self.scarce:
            parts.append(f"fewer than {FEW} of {self._listed(self.scarce, class_names)}")
        if not parts:
            return ""
        return f"{subject} have {' and '.join(parts)}"

    def _listed(self, classes: tuple[int, ...], names: Sequence[str] | None) -> str:
        return f"{len(classes):,} of {self.classes:,} classes ({_named(classes, names)})"


def marks_text(marks: IntArray, subject: str, names: Sequence[str] | None = None) -> str:
    """Name the labels that hold for no sample, for few, or for nearly all, in one sentence; empty if there are none.

    Args:
        marks: (N, C) of 0 and 1.
        subject: the data, as in `the calibration data`.
        names: of the labels, if known.

    >>> marks_text(np.array([[1, 0]] * 5 + [[0, 0]] * 5), "the data", ["cat", "dog"])
    'the data have no sample with 1 of 2 labels (dog)'
    """
    positives = marks.sum(axis=0)
    parts = []
    for count, word in ((positives, "with"), (len(marks) - positives, "without")):
        none = np.flatnonzero(count == 0)
        rare = np.flatnonzero((count > 0) & (count < FEW))
        for group, how in ((none, "no sample"), (rare, f"fewer than {FEW} samples")):
            if len(group):
                listed = _named(tuple(group.tolist()), names)
                parts.append(f"{how} {word} {len(group):,} of {len(positives):,} labels ({listed})")
    if not parts:
        return ""
    return f"{subject} have {' and '.join(parts)}"


def _named(classes: tuple[int, ...], names: Sequence[str] | None) -> str:
    """List classes by name, or by number."""
    listed = [str(c) for c in classes[:_MAX_NAMES]]
    if names:
        listed = [names[c] for c in classes[:_MAX_NAMES]]
    if len(classes) > _MAX_NAMES:
        listed.append(f"{len(classes) - _MAX_NAMES:,} more")
    return ", ".join(listed)


# Keys of a configuration file; the first that is there counts. `names` is YOLO's, `class_to_idx` torchvision's.
_KEYS = ("id2label", "label2id", "label_names", "class_names", "classes", "names", "class_to_idx")

_MAX_DIGITS = 18  # more are no index, and Python does not convert thousands of them
_MAX_TEXT = 80  # characters of a value in a message: about a line of a terminal


def read_class_names(path: Path, limits: Limits = DEFAULT_LIMITS) -> tuple[str, ...]:
    """Return the names in `path`, class 0 first.

    Raises:
        UsageError: there is no such file.
        DataError: the file cannot be read, or does not hold one name for each of the indices 0, 1, ...
    """
    if not path.is_file():
        raise UsageError(f"{path}: no such file; give a text file with one class name per line, or JSON")
    text = read_text(path, limits)
    if path.suffix.lower() != ".json":
        return _lines(text, str(path))
    return _names(parse_json(text, str(path), "write a list of class names"), str(path))


def metadata_class_names(metadata: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the class names in a model's metadata; None if there are none that can be parsed.

    Looked for under `names` (Ultralytics), `id2label`, `classes` and a few more, as JSON, as a Python literal, one per
    line, or with commas between them.

    >>> metadata_class_names({"names": "{0: 'cat', 1: 'dog'}"})
    ('cat', 'dog')
    >>> metadata_class_names({"classes": "cat, dog"})
    ('cat', 'dog')
    """
    for key in _KEYS:
        if key in metadata:
            try:
                return _names(_parsed(metadata[key]), key)
            except DataError:  # an entry of that name that serves another purpose
                continue
    return None


def _parsed(text: str) -> Any:
    for parse in (foreign_json, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return parse(text)
    for separator in ("\n", ","):  # a name may hold a comma, but no line break
        if separator in text.strip():
            return [name.strip() for name in text.strip().split(separator)]
    return text


def _lines(text: str, where: str) -> tuple[str, ...]:
    lines = [line.strip() for line in text_lines(text.rstrip())]
    if "" in lines:  # left out, it would shift every name below it by one class
        raise DataError(
            f"{where}: line {lines.index('') + 1} is empty, so the names below it have no certain index; write one "
            "class name per line"
        )
    return _names(lines, where)


def _names(value: Any, where: str) -> tuple[str, ...]:
    if isinstance(value, dict):
        for key in _KEYS:
            # A dict {name: index} may have a class called "names": only what can hold names is followed.
            if isinstance(value.get(key), (dict, list)):
                value = value[key]
                break
        value = _by_index(value, where)
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise DataError(
            f"{where}: expected class names, as a list of text or a dict of index and name, found "
            f"{_cut(value)}; write one name per class"
        )
    return tuple(value)


def _by_index(value: Any, where: str) -> Any:
    """Convert {index: name} or {name: index} to a list of names, class 0 first; return other values unchanged."""
    if not isinstance(value, dict):
        return value
    by_index = value
    if not all(_is_index(key) for key in value):
        if not all(_is_index(index) for index in value.values()):
            return value
        by_index = {index: name for name, index in value.items()}
    by_index = {int(index): name for index, name in by_index.items()}  # JSON's keys are text
    # A gap or a repeat would leave a class without its name.
    if sorted(by_index) != list(range(len(value))):
        raise DataError(
            f"{where}: expected a name for each of the indices 0 to {len(value) - 1}, found indices "
            f"{_cut(sorted(by_index))}; give every index once"
        )
    return [by_index[index] for index in range(len(value))]


def _is_index(value: object) -> bool:
    if isinstance(value, str):
        return value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS
    return isinstance(value, int) and not isinstance(value, bool)


def _cut(value: object) -> str:
    text = repr(value)
    if len(text) > _MAX_TEXT:
        return f"{text[: _MAX_TEXT - 3]}..."
    return text
