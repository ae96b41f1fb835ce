"""The model's class names, in the order of its output: from a file, or from the metadata of the model.

A file is text with one name per line, or JSON: a list of names, or a dict {index: name} or {name: index}, also where it
stands under `id2label`, `label2id` or `label_names` (a `config.json` of Hugging Face or timm).
"""

from __future__ import annotations

import ast
import contextlib
import json
from typing import TYPE_CHECKING, Any

from tna_onnx.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["metadata_class_names", "read_class_names"]

# Of a configuration file; the first that is there counts. `names` is YOLO's, `class_to_idx` torchvision's.
_KEYS = ("id2label", "label2id", "label_names", "class_names", "classes", "names", "class_to_idx")


def read_class_names(path: Path) -> tuple[str, ...]:
    """Return the names in `path`, class 0 first.

    Raises:
        UsageError: there is no such file.
        DataError: the file cannot be read, or does not hold one name for each of the indices 0, 1, ...
    """
    if not path.is_file():
        raise UsageError(f"{path}: no such file; give a text file with one class name per line, or JSON")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text ({error}); write one class name per line") from error
    if path.suffix.lower() != ".json":
        return _lines(text, str(path))
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DataError(f"{path}: is not JSON ({error}); write a list of class names") from error
    return _names(value, str(path))


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
            except DataError:  # an entry of that name for another purpose
                continue
    return None


def _parsed(text: str) -> Any:
    for parse in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return parse(text)
    separator = "\n" if "\n" in text.strip() else ","
    return [name.strip() for name in text.strip().split(separator)] if separator in text else text


def _lines(text: str, where: str) -> tuple[str, ...]:
    lines = [line.strip() for line in text.rstrip().splitlines()]
    if "" in lines:
        raise DataError(
            f"{where}: line {lines.index('') + 1} is empty, so the names below it have no certain index; write one "
            "class name per line"
        )
    return _names(lines, where)


def _names(value: Any, where: str) -> tuple[str, ...]:
    if isinstance(value, dict):
        inner = next((value[key] for key in _KEYS if isinstance(value.get(key), (dict, list))), None)
        value = _by_index(value if inner is None else inner, where)
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise DataError(
            f"{where}: expected class names, as a list of text or a dict of index and name, found "
            f"{_shown(value)}; write one name per class"
        )
    return tuple(value)


def _by_index(value: Any, where: str) -> Any:
    """Order {index: name} or {name: index}; lists go through."""
    if not isinstance(value, dict):
        return value
    numbered = all(_is_index(key) for key in value)
    pairs = [(key, name) if numbered else (name, key) for key, name in value.items()]
    if not all(_is_index(index) for index, _ in pairs):
        return value
    by_index = {int(index): name for index, name in pairs}
    if sorted(by_index) != list(range(len(value))):
        raise DataError(
            f"{where}: expected a name for each of the indices 0 to {len(value) - 1}, found indices "
            f"{_shown(sorted(by_index))}; give every index once"
        )
    return [by_index[index] for index in range(len(value))]


def _is_index(value: object) -> bool:
    if isinstance(value, str):
        return value.isascii() and value.isdigit()
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
