"""Samples from tables: Parquet and Arrow files, folders of them, data sets that Hugging Face's `datasets` saved.

Columns are the model's inputs by name, or for a model with one input the only other column; numbers, or lists of them
that all have one shape. A column of bytes, or of structs {bytes, path} as `datasets` stores images, holds images.
Labels are in the column `label` or `labels`, as class indices or names. Where `datasets` has stored the names that its
indices stand for and the model's names are known, names decide.

Arrow files are mapped. Parquet and compressed Arrow files are first written out as such, the needed columns only, into
a temporary file, a few hundred rows at a time: so memory does not grow with the data, and any row can be reached.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.digest import files_sha256
from tna_onnx.data.formats import ROWS
from tna_onnx.data.labelfile import find_label_column, labels_apart
from tna_onnx.data.labels import label_indices, listed
from tna_onnx.data.optional import optional
from tna_onnx.data.sources.arrow import ArrowColumn, map_table, table_schema
from tna_onnx.data.sources.columns import ArraySource, check_names, only_other, open_columns
from tna_onnx.data.sources.images import ImageSource, open_image_files
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from typing import BinaryIO

    from tna_onnx.data.request import Request
    from tna_onnx.data.source import AnyArray, IntArray

__all__ = ["open_table"]

_SUFFIXES = ROWS["table"].files
_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
_IMAGE_NAMES = ("image", "img")


@dataclass(frozen=True, eq=False)
class TableImages:
    """Images in a column of bytes, or of structs with `bytes` or `path`, of a mapped table."""

    path: Path
    files: tuple[Path, ...]
    column: ArrowColumn

    def __len__(self) -> int:
        """Return their number."""
        return self.column.shape[0]

    def name(self, row: int) -> str:
        """Return the path of the table and the row."""
        return f"{self.path}: row {row}"

    def open(self, row: int) -> Path | BinaryIO:
        """Return the bytes of image `row`, or its path where only that is stored."""
        value = self.column.value(row)
        content, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
        if content is not None:
            return io.BytesIO(content)
        if path:
            return (self.path if self.path.is_dir() else self.path.parent) / str(path)
        raise DataError(f"{self.name(row)}: holds no image; remove that row")

    def digest(self, rows: IntArray, labels: IntArray) -> str:  # noqa: ARG002 - whole files count
        """Return SHA-256 (hex) over the bytes of all files of the table, in order, and the labels."""
        return files_sha256(self.files, labels)


def open_table(path: Path, request: Request) -> ArraySource | ImageSource:
    """Map the table in the file or folder `path`.

    Raises:
        UsageError: pyarrow or, for images, Pillow is missing; a recipe cannot be used; no room for a temporary file.
        DataError: the table cannot be read, or its columns or labels do not fit the model.
    """
    pyarrow = optional("pyarrow", "tables", "reading Parquet and Arrow files")
    files = _files(path)
    schema = table_schema(files[0])
    names = list(schema.names)
    wanted = [spec.name for spec in request.inputs]
    label_name = None
    if request.labels is None:
        label_name = find_label_column([name for name in names if name not in wanted], request.label_column, str(path))
    image_name = _image_column(pyarrow, schema, request, label_name, path)
    column_of = {image_name: image_name} if image_name else _columns(names, request, label_name, path)
    needed = [*column_of.values(), *([label_name] if label_name else [])]
    table = map_table(files, columns=needed)
    stored = None if label_name is None else _labels(table, label_name, path, request)
    labels = labels_apart(request, stored)
    columns = {
        name: ArrowColumn(table.column(column), f"{path}: column {column!r}") for name, column in column_of.items()
    }
    title = f"table {path.resolve().name}"
    if image_name is None:
        request.check_arrays(str(path))
        arrays = {name: column.numbers() for name, column in columns.items()}
        return open_columns(
            title, str(path), request, arrays, labels, hashed=lambda found: files_sha256(files, found), noun="column"
        )
    images = TableImages(path, files, columns[image_name])
    where = str(request.labels) if isinstance(request.labels, Path) else f"{path}: column {label_name!r}"
    indices = label_indices(labels, len(images), request.n_classes, where, request.class_names)
    return open_image_files(title, str(path), images, indices, request, request.image_input(str(path)))


def _files(path: Path) -> tuple[Path, ...]:
    """Return the files of a table in their order."""
    if path.is_file():
        return (path,)
    if (path / _SPLITS).is_file():
        splits = sorted(entry.name for entry in path.iterdir() if (entry / _STATE).is_file())
        raise DataError(
            f"{path}: holds several data sets; choose one: {', '.join(str(path / name) for name in splits)}"
        )
    if (path / _STATE).is_file():
        try:
            state = json.loads((path / _STATE).read_text(encoding="utf-8"))
            names = [str(entry["filename"]) for entry in state["_data_files"]]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DataError(f"{path / _STATE}: cannot be read ({error}); save the data set again") from error
        if state.get("_indices_data_files"):
            raise DataError(f"{path}: holds rows in an order of its own; save data_set.flatten_indices() instead")
        files = tuple(path / name for name in names)
    else:
        files = tuple(sorted(file for suffix in _SUFFIXES for file in path.glob(f"*{suffix}")))
    if not files:
        raise DataError(f"{path}: no files {' '.join(_SUFFIXES)} in this folder")
    return files


def _image_column(pyarrow: Any, schema: Any, request: Request, label_name: str | None, path: Path) -> str | None:
    """Return the name of the column that holds the images of the model's only input; None if samples are numbers."""
    if len(request.inputs) != 1:
        return None
    types, kinds = pyarrow.types, {field.name: field.type for field in schema}
    found: list[str] = [
        column
        for column, kind in kinds.items()
        if column != label_name
        and (
            types.is_binary(kind)
            or types.is_large_binary(kind)
            or (types.is_struct(kind) and {"bytes", "path"} >= {field.name for field in kind})
        )
    ]
    name = request.inputs[0].name
    if name in kinds:
        return name if name in found else None
    chosen = found if len(found) == 1 else [column for column in _IMAGE_NAMES if column in found]
    if len(chosen) == 1:
        return chosen[0]
    if found or any(types.is_struct(kind) for kind in kinds.values()):
        raise DataError(
            f"{path}: no column can be told to hold the images (found {listed(kinds)}); call it 'image' or after the "
            f"model's input, {name!r}"
        )
    return None


def _columns(names: list[str], request: Request, label_name: str | None, path: Path) -> dict[str, str]:
    """Return input name -> column."""
    others = [name for name in names if name != label_name]
    chosen = only_other(others, request.inputs[0]) if len(request.inputs) == 1 else None
    if chosen is not None:
        return {request.inputs[0].name: chosen}
    check_names(str(path), others, request.inputs, need_labels=False, noun="column")
    return {spec.name: spec.name for spec in request.inputs}


def _labels(table: Any, name: str, path: Path, request: Request) -> AnyArray:
    """Return the labels, as numbers or names."""
    column = table.column(name)
    if column.null_count:
        row = next(row for row, value in enumerate(column) if not value.is_valid)
        raise DataError(f"{path}: column {name!r} has {column.null_count} empty cells, first in row {row}; fill them")
    values = np.array([*column.to_pylist(), None], object)[:-1]
    if not all(isinstance(value, int) for value in values):
        numbers = all(isinstance(value, (int, float)) for value in values)
        return values.astype(np.float64) if numbers else values
    indices = values.astype(np.int64)
    known = _class_label(table.schema, name, path)
    if known is None or indices.size == 0:
        return indices
    if request.class_names is None and len(known) != request.n_classes:
        raise DataError(
            f"{path}: column {name!r} has {len(known)} classes ({listed(known)}), the model has {request.n_classes}; "
            "give the model's class names in its order (--classes FILE)"
        )
    if request.class_names is None:
        return indices
    if indices.min() < 0 or indices.max() >= len(known):
        raise DataError(
            f"{path}: column {name!r} must lie in 0 to {len(known) - 1}, the places of its class names, but goes from "
            f"{indices.min()} to {indices.max()}; remove samples without a label"
        )
    return np.array(known)[indices]


def _class_label(schema: Any, name: str, path: Path) -> list[str] | None:
    """Return the names that `datasets` stored for the indices of a column, if it did."""
    info: Any = None
    try:
        if b"huggingface" in (schema.metadata or {}):
            info = json.loads(schema.metadata[b"huggingface"])["info"]
        elif path.is_dir() and (path / _INFO).is_file():
            info = json.loads((path / _INFO).read_text(encoding="utf-8"))
        names = None if info is None else info["features"][name].get("names")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return [str(text) for text in names] if isinstance(names, list) and names else None
