"""The model's class names, in the order of its output: from a file, or from the metadata of the model.

A file is text with one name per line, or JSON: a list of names, or a dict {index: name} or {name: index}, also where it
stands under `id2label`, `label2id` or `label_names` (a `config.json` of Hugging Face or timm).
"""

from __future__ import annotations

import ast
import contextlib
import json
from typing import TYPE_CHECKING, Any

from tna_onnx.data.files import read_text
from tna_onnx.data.limits import DEFAULT_LIMITS
from tna_onnx.data.parsing import parse_json, text_lines
from tna_onnx.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tna_onnx.data.limits import Limits

__all__ = ["metadata_class_names", "read_class_names"]

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
    """Return the names that a model's metadata hold; None if they hold none, or nothing that can be read as names.

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
    for parse in (json.loads, ast.literal_eval):
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
    """Return the names of {index: name} or {name: index} as a list, class 0 first; anything else as it is."""
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
