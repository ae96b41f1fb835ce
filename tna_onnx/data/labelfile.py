"""Labels from a file of their own, with the path of each sample or without.

| suffix | content |
|---|---|
| `.csv`, `.tsv`, `.jsonl`, `.json` | a table with a column of labels, and of paths (`tna_onnx.data.textfile`) |
| `.txt` | one label per line, or path, white space, label |
| `.npy` | an array of labels |

Columns and keys are found by name, in any case (`_LABEL`, `_PATH`). All others are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tna_onnx.data.choices import DEFAULT_LIMITS
from tna_onnx.data.foreign import any_array, cell_array, read_npy, read_text, text_lines
from tna_onnx.data.labels import listed
from tna_onnx.data.textfile import DELIMITED, read_columns
from tna_onnx.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from tna_onnx.data.choices import Limits
    from tna_onnx.data.options import Request
    from tna_onnx.data.source import AnyArray

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
    names: Sequence[str],
    label_column: str | None,
    where: str,
    *,
    classes_in: Callable[[str], bool] | None = None,
) -> str:
    """Return the one of `names` that holds the labels.

    `classes_in`: tells, for the advice, whether all values of a column are the model's classes.

    >>> find_label_column(["image", "Label", "class"], None, "calib.parquet")
    'Label'
    """
    if label_column is not None:
        if label_column in names:
            return label_column
        near = {name.lower(): name for name in names}
        advice = "name one of them"
        for word in get_close_matches(label_column.lower(), near, n=1):
            advice = f"did you mean {near[word]!r}?"
        raise DataError(
            f"{where}: no column {label_column!r} for the labels; the columns are {listed(names)}; {advice}"
        )
    if not names:
        raise DataError(f"{where}: no labels; add the class index of each sample as 'labels'")
    candidates = _named(names, _LABEL)
    if len(candidates) != 1:
        problem = "no column is named 'label'"
        if candidates:
            problem = "several columns can hold the labels"
        fitting = [name for name in candidates or names if classes_in is not None and classes_in(name)]
        columns = candidates or [*fitting, *(name for name in names if name not in fitting)]
        advice = "name the one with --label-column"
        if len(fitting) == 1:
            advice = f"{fitting[0]!r} alone holds the model's classes: add --label-column {fitting[0]}"
        raise DataError(f"{where}: {problem} ({listed(columns)}); {advice}")
    (label,) = candidates
    named = [str(name).strip().lower() for name in names if str(name).strip()]
    # next to an `x`, or among other columns, `y` may be a coordinate
    if label.strip().lower() == "y" and len(named) >= 3 and ({"x", "z"} & {*named} or "y" not in (named[0], named[-1])):
        raise DataError(
            f"{where}: {label!r} may be the label or a feature ({listed(names)}); name the label with --label-column"
        )
    return label


def label_candidates(names: Sequence[str], sample_info: Collection[str], label_column: str | None) -> list[str]:
    """Return the columns that may hold the labels: those of `sample_info` (groups, say) only if no other does.

    >>> label_candidates(["site", "label"], ["site"], None), label_candidates(["x", "label"], ["label"], None)
    (['label'], ['x', 'label'])
    """
    others = [name for name in names if name not in sample_info]
    if label_column in names or (label_column is None and not _named(others, _LABEL) and _named(names, _LABEL)):
        return [*names]
    return others


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
