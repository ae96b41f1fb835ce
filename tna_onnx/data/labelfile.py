"""Labels and class names that are not stored with the samples.

A file of labels has the path of each sample, or not:

| suffix | content |
|---|---|
| `.csv`, `.tsv`, `.jsonl`, `.json` | a table with a column of labels, and of paths (`tna_onnx.data.textfile`) |
| `.txt` | one label per line, or path, white space, label |
| `.npy` | an array of labels |

Columns and keys are found by name, in any case (`_LABEL`, `_PATH`). All others are ignored. Class names come from the
model's metadata or a file: a name per line; or JSON, a list or a dict, also under one of `_KEYS`.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from tna_onnx.data.choices import DEFAULT_LIMITS, Limits
from tna_onnx.data.foreign import any_array, cell_array, foreign_json, parse_json, read_npy, read_text, text_lines
from tna_onnx.data.options import Data, Request
from tna_onnx.data.source import AnyArray
from tna_onnx.data.textfile import DELIMITED, read_columns
from tna_onnx.errors import DataError, UsageError, listed

LABEL_FILES = (*DELIMITED, ".txt", ".npy")

# Groups of names, tried one after the other: "label" is certain, a column "class" may hold something else, and "y" may
# be a coordinate.
_LABEL = (("label",), ("labels",), ("class", "class_name", "category", "target"), ("y",))
_PATH = (
    ("path",),
    ("file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img", "img_path"),
)


@dataclass(frozen=True, eq=False)
class LabelFile:
    """The contents of a label file: labels (N,), indices or names; paths of the samples, if any; other columns (N,)."""

    paths: tuple[str, ...] | None
    labels: AnyArray = field(repr=False)
    columns: Mapping[str, AnyArray] = field(default_factory=dict, repr=False)


def read_label_file(
    path: Path, label_column: str | None = None, *, is_path: Callable[[str], bool], limits: Limits = DEFAULT_LIMITS
) -> LabelFile:
    """Read the labels in `path`.

    `label_column`: the column or key that holds the labels; None finds it by its name. `is_path`: tells whether the
    first part of a line of a `.txt` file is a path; if it is one in every line, the rest of the line is the label, else
    the whole line is.
    """
    suffix = path.suffix.lower()
    if path.is_dir():
        raise UsageError(f"{path}: is a directory; give a file of labels, one of {' '.join(LABEL_FILES)}")
    if not path.is_file():
        column = ""
        if not suffix:
            column = f"; for a column of a table, use --label-column {path}"
        raise UsageError(f"{path}: no such file; give a file of labels, one of {' '.join(LABEL_FILES)}{column}")
    if suffix not in LABEL_FILES:
        raise DataError(f"{path}: expected a file of labels, one of {' '.join(LABEL_FILES)}, found {suffix or 'none'}")
    if suffix == ".npy":
        return LabelFile(None, read_npy(path))
    if suffix == ".txt":
        return _from_lines(path, read_text(path, limits), is_path)
    columns = read_columns(path, limits, lambda _: True)
    if label_column is None and [*columns] == ["1"]:  # numbers without a header
        label_column = "1"
    return _from_columns(path, columns, label_column)


def find_label_column(
    columns: Sequence[str],
    label_column: str | None,
    where: str,
    *,
    sample_info: Collection[str] = (),
    classes_in: Callable[[str], bool] | None = None,
) -> str:
    """Return the one of `columns` that holds the labels.

    `sample_info`: columns of groups, say, which hold them only if no other does. `classes_in`: tells, for the advice,
    whether all values of a column are the model's classes.

    >>> find_label_column(["image", "Label", "class"], None, "calib.parquet")
    'Label'
    >>> find_label_column(["x", "label", "y"], None, "calib.parquet", sample_info=["label"])
    'y'
    """
    names = [name for name in columns if name not in sample_info]
    if label_column is not None:
        if label_column in columns:
            return label_column
        near = {name.lower(): name for name in names}
        advice = "name one of them"
        for word in get_close_matches(label_column.lower(), near, n=1):
            advice = f"did you mean {near[word]!r}?"
        raise DataError(
            f"{where}: no column {label_column!r} for the labels; the columns are {listed(names)}; {advice}"
        )
    if not _named(names, _LABEL) and _named(columns, _LABEL):
        names = [*columns]
    if not names:
        raise DataError(f"{where}: no labels; add the class index of each sample as 'labels'")
    candidates = _named(names, _LABEL)
    if len(candidates) != 1:
        raise _not_one_column(names, candidates, where, classes_in)
    (label,) = candidates
    words = [str(name).strip().lower() for name in names if str(name).strip()]
    # next to an `x`, or among other columns, `y` may be a coordinate
    if label.strip().lower() == "y" and len(words) >= 3 and ({"x", "z"} & {*words} or "y" not in (words[0], words[-1])):
        raise DataError(
            f"{where}: {label!r} may be the label or a feature ({listed(names)}); name the label with --label-column"
        )
    return label


def _not_one_column(
    names: Sequence[str], candidates: Sequence[str], where: str, classes_in: Callable[[str], bool] | None
) -> DataError:
    problem = "no column is named 'label'"
    if candidates:
        problem = "several columns can hold the labels"
    fitting = [name for name in candidates or names if classes_in is not None and classes_in(name)]
    columns = candidates or [*fitting, *(name for name in names if name not in fitting)]
    advice = "name the one with --label-column"
    if len(fitting) == 1:
        advice = f"{fitting[0]!r} alone holds the model's classes: add --label-column {fitting[0]}"
    return DataError(f"{where}: {problem} ({listed(columns)}); {advice}")


def holds_classes(values: AnyArray, request: Request) -> bool:
    """Whether the values of a column (N,) are the names of the model's classes; of unknown names, C texts."""
    if values.ndim != 1 or values.dtype.kind not in "OUiub":
        return False
    names = {str(value).strip() for value in values.tolist()}
    if request.class_names is not None:
        return len(names) > 1 and names <= {*request.class_names}
    return len(names) == request.n_classes and all(isinstance(value, str) for value in values.tolist())


def labels_apart(request: Request, stored: AnyArray | None) -> AnyArray:
    """Return the labels that the user gives separately from the samples, in the samples' order; else `stored`."""
    if request.labels is None:
        return np.asarray(stored)
    if isinstance(request.labels, Path):
        table = read_label_file(request.labels, request.label_column, is_path=lambda _: False, limits=request.limits)
        return table.labels
    columns = getattr(request.labels, "columns", ())
    if len(columns) > 1 and not request.multi_label and not request.several:
        raise DataError(
            f"labels: expected one column, found {len(columns)} ({listed(map(str, columns))}); where each is 1 for its "
            "class and 0 for others, give labels.idxmax(axis=1)"
        )
    return any_array(request.labels)


def _named(names: Sequence[str], groups: Sequence[Sequence[str]]) -> list[str]:
    """Return the names that are in the first group with any match."""
    for group in groups:
        members = [name for name in names if str(name).strip().lower() in group]
        if members:
            return members
    return []


def _from_lines(path: Path, text: str, is_path: Callable[[str], bool]) -> LabelFile:
    lines = text_lines(text.rstrip())
    # Labels without paths belong to samples by their place, so an empty line cannot be skipped.
    empty = next((number for number, line in enumerate(lines, 1) if not line.strip()), None)
    if empty is not None:
        raise DataError(f"{path}: line {empty} is empty; write one label per line")
    pairs = [line.split(maxsplit=1) for line in lines]
    if all(len(pair) == 2 and is_path(pair[0]) for pair in pairs):
        return LabelFile(tuple(pair[0] for pair in pairs), cell_array([pair[1].strip() for pair in pairs]))
    return LabelFile(None, cell_array([line.strip() for line in lines]))


def _from_columns(path: Path, columns: dict[str, AnyArray], label_column: str | None) -> LabelFile:
    label = find_label_column(list(columns), label_column, str(path))
    further = {name: values for name, values in columns.items() if name != label}
    candidates = _named([*further], _PATH)
    if len(candidates) > 1:
        raise DataError(f"{path}: several columns can hold the paths ({listed(candidates)}); call the one 'path'")
    if not candidates:
        return LabelFile(None, columns[label], further)
    paths = tuple(str(name).strip() for name in further.pop(candidates[0]).tolist())
    return LabelFile(paths, columns[label], further)


# ---- names of classes

# Keys of a configuration file; the first that is there counts. `names` is YOLO's, `class_to_idx` torchvision's.
_KEYS = ("id2label", "label2id", "label_names", "class_names", "classes", "names", "class_to_idx")

_MAX_DIGITS = 18  # more are no index, and Python does not convert thousands of them


def read_class_names(path: Path, limits: Limits = DEFAULT_LIMITS) -> tuple[str, ...]:
    """Return the names in `path`, class 0 first."""
    if not path.is_file():
        raise UsageError(f"{path}: no such file; give a text file with one class name per line, or JSON")
    text = read_text(path, limits)
    if path.suffix.lower() == ".json":
        return _name_list(parse_json(text, str(path), "write a list of class names"), str(path))
    lines = [line.strip() for line in text_lines(text.rstrip())]
    if "" in lines:  # left out, it would shift every name below it by one class
        raise DataError(
            f"{path}: line {lines.index('') + 1} is empty, so the names below it have no certain index; write one "
            "class name per line"
        )
    return _name_list(lines, str(path))


def model_class_names(
    data: Data, metadata: Mapping[str, str], labels: Sequence[int | str], n_classes: int
) -> tuple[str, ...] | None:
    """Return the model's class names: those of `classes`, else of its metadata or classifier node; None if unknown.

    Several label columns (`a,b,c`) name the labels of a model that does not.

    `labels`: of the model's classifier node; the numbers 0 to C - 1 are indices, not names.
    """
    if data.classes is not None:
        where, listed_names = "classes", data.classes
        if isinstance(listed_names, (str, Path)):
            where = str(listed_names)
            listed_names = read_class_names(Path(where), data.limits)
        stated = tuple(map(str, listed_names))
        if len(stated) != n_classes:
            raise UsageError(
                f"{where}: {len(stated)} class names ({listed(stated)}) for a model with {n_classes} classes; give "
                "one name for each, in the order of the model's output"
            )
        return stated
    for names in (metadata_class_names(metadata), labels):
        # What the file says counts only where it fits the output: it may be left over from another model.
        if not names or len(names) != n_classes:
            continue
        # numbers are names too where they are no places: a model of grades 3 to 8, say
        if all(isinstance(name, str) for name in names) or list(names) != list(range(n_classes)):
            return tuple(str(name) for name in names)
    if len(data.label_columns) == n_classes:
        return data.label_columns
    return None


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
                return _name_list(_parsed(metadata[key]), key)
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


def _name_list(value: Any, where: str) -> tuple[str, ...]:
    """Return the names in a list, in {index: name} or {name: index}, or in one of these under a known key."""
    if isinstance(value, dict):
        # A dict {name: index} may have a class called "names": only what can hold names is followed.
        value = next((value[key] for key in _KEYS if isinstance(value.get(key), (dict, list))), value)
    if isinstance(value, dict):
        pairs = list(value.items())
        if not all(_is_index(index) for index, _ in pairs):
            pairs = [(index, name) for name, index in pairs]
        if all(_is_index(index) for index, _ in pairs):
            by_index = {int(index): name for index, name in pairs}  # JSON's keys are text
            # A gap or a repeat would leave a class without its name.
            if sorted(by_index) != list(range(len(pairs))):
                raise DataError(
                    f"{where}: expected a name for each of the indices 0 to {len(pairs) - 1}, found indices "
                    f"{sorted(by_index)!r:.80}; give every index once"
                )
            value = [by_index[index] for index in range(len(pairs))]
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise DataError(
            f"{where}: expected class names (a list, or a dict of index and name), found "
            f"{value!r:.80}; write one name per class"
        )
    return tuple(value)


def _is_index(value: object) -> bool:
    if isinstance(value, str):
        return value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS
    return isinstance(value, int) and not isinstance(value, bool)
