"""Samples from tables: Parquet and Arrow files, folders of them, and text files.

`layout` decides which columns fill which input; bytes, or structs {bytes, path} with bytes, are images. Needed
columns are first written to a temporary file and mapped, so that memory does not grow with the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.digest import arrays_sha256, files_sha256
from tna_onnx.data.foreign import cell_array, foreign_json, plain_column
from tna_onnx.data.labelfile import labels_apart
from tna_onnx.data.labels import class_indices, listed, named_labels
from tna_onnx.data.sample_info import columns_beside
from tna_onnx.data.sources.arrow import (
    ArrowTexts,
    column_numbers,
    is_list,
    load_pyarrow,
    map_table,
    table_files,
    table_schema,
)
from tna_onnx.data.sources.columns import ArraySource, check_arrays
from tna_onnx.data.sources.image_files import ImageSource, TableImages, open_image_files, prepared_input
from tna_onnx.data.sources.layout import Kind, lay_out
from tna_onnx.data.sources.table_inputs import Columns, Table, label_of, open_columns_of, open_delimited
from tna_onnx.data.textfile import DELIMITED
from tna_onnx.errors import DataError
from tna_onnx.files import resolved

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tna_onnx.data.options import Request
    from tna_onnx.data.source import AnyArray, IntArray
    from tna_onnx.data.sources.columns import Column

_IMAGE_NAMES = ("image", "img")


def image_column(pyarrow: Any, schema: Any, request: Request, label_name: str | None, path: Path) -> str | None:
    """Return the name of the column that holds the images of the model's only input; None if samples are numbers."""
    if len(request.inputs) != 1:
        return None
    types = pyarrow.types
    kinds = {field.name: field.type for field in schema}
    candidates: list[str] = [
        column for column, kind in kinds.items() if column != label_name and _holds_images(types, kind)
    ]
    name = request.inputs[0].name
    if name in kinds:
        if name in candidates:
            return name
        return None
    if len(candidates) > 1:  # a mask beside the image, say
        candidates = [column for column in _IMAGE_NAMES if column in candidates] or candidates
    if len(candidates) == 1:
        return candidates[0]
    if candidates or any(types.is_struct(kind) for kind in kinds.values()):
        raise DataError(
            f"{path}: no column is known to hold the images (found {listed(kinds)}); call it 'image' or after the "
            f"model's input, {name!r}"
        )
    return None


def _holds_images(types: Any, kind: Any) -> bool:
    if types.is_struct(kind):  # as `datasets` stores an image
        return {field.name for field in kind} <= {"bytes", "path"}
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def stored_labels(table: Any, name: str, path: Path, request: Request) -> AnyArray:
    """Return the labels in a column of a table, as numbers or names."""
    column = table.column(name)
    # Said here with its row: as a Python value an empty cell is None, which no message explains.
    if column.null_count:
        row = next(row for row, value in enumerate(column) if not value.is_valid)
        raise DataError(f"{path}: column {name!r} has {column.null_count} empty cells, first in row {row}; fill them")
    indices = plain_column(cell_array(column.to_pylist()))
    if indices.dtype.kind not in "iu":
        return indices
    names = label_names(table.schema, name, path, request)
    if names is None:
        return indices
    return named_labels(indices, names, f"{path}: column {name!r}")


def label_names(schema: Any, name: str, path: Path, request: Request) -> list[str] | None:
    """Return the names that `datasets` stored for a column of class indices, where these decide; else None."""
    names = _class_label(schema, name)
    # Without the model's names, indices of the data set can only be taken as the model's if the counts agree.
    if names is not None and request.class_names is None and len(names) != request.n_classes:
        raise DataError(
            f"{path}: column {name!r} has {len(names)} classes ({listed(names)}), the model has {request.n_classes}; "
            "give the model's class names in its order (--classes FILE)"
        )
    if request.class_names is None:
        return None
    return names


def _class_label(schema: Any, name: str) -> list[str] | None:
    """Return the class names that `datasets` stored for a column of indices; None if it stored none."""
    try:
        names = foreign_json(schema.metadata[b"huggingface"])["info"]["features"][name]["names"]
    except (ValueError, LookupError, TypeError, RecursionError):  # no such entry, or not in the form of `datasets`
        return None
    if not isinstance(names, list) or not names:
        return None
    return [str(text) for text in names]


def open_table(path: Path, request: Request) -> ArraySource | ImageSource:
    """Map the table in the file or folder `path`, or read that of a text file."""
    if path.is_file() and path.suffix.lower() in DELIMITED:
        return open_delimited(path, request)
    pyarrow = load_pyarrow()
    files = table_files(path, request.data_root)
    schema = table_schema(files[0])
    stored = _Files(path, files, request, {field.name: _kind(pyarrow, field.type) for field in schema})
    table = Table(str(path), stored.kinds, stored.read, stored.digest, stored.distinct)
    title = f"table {resolved(path).name}"
    if request.labels is not None or not request.label_columns:
        label = label_of(table, request)
        image_name = image_column(pyarrow, schema, request, label, path)
        if image_name is not None:
            return stored.images(title, image_name, label)
    return open_columns_of(table, title, request)


def table_columns(schema: Any, request: Request, label_name: str, where: str) -> tuple[tuple[str, ...], bool, str]:
    """Return the columns that the model reads, in its order, whether they hold images, and a note on their choice."""
    pyarrow = load_pyarrow()
    image_name = image_column(pyarrow, schema, request, label_name, Path(where))
    if image_name is not None:
        return (image_name,), True, ""
    check_arrays(request, where)
    layout = lay_out(where, {field.name: _kind(pyarrow, field.type) for field in schema}, request, label_name)
    columns = tuple(dict.fromkeys(name for spec in request.inputs for name in layout.columns[spec.name]))
    return columns, False, layout.note


@dataclass(frozen=True, eq=False)
class _Files:
    """Files of a table whose columns are mapped when they are read."""

    path: Path  # as the user named it
    files: tuple[Path, ...]  # of the table, in order
    request: Request  # what the model wants
    kinds: Mapping[str, Kind]  # name of a column -> what it holds

    def read(self, inputs: Sequence[str], label: str | None, sample_info: Sequence[str]) -> Columns:
        """Map columns of numbers or text."""
        table, stored, others = self._map(inputs, label, sample_info)
        columns: dict[str, Column] = {}
        for name in inputs:
            columns[name] = ArrowTexts(table.column(name))
            if self.kinds[name] != "text":
                columns[name] = column_numbers(table.column(name), f"{self.path}: column {name!r}")
        return Columns(columns, stored, others)

    def images(self, title: str, name: str, label: str | None) -> ImageSource:
        where, request = str(self.path), self.request
        request.check_one_class(where)
        table, stored, sample_info = self._map([name], label, columns_beside(request, where, self.kinds))
        images = TableImages(self.path, self.files, table.column(name))
        labels_where = request.labels_where(f"{where}: column {label!r}")
        indices = class_indices(request, labels_apart(request, stored), len(images), labels_where)
        return open_image_files(title, where, images, indices, request, prepared_input(request, where), sample_info)

    def _map(
        self, inputs: Sequence[str], label: str | None, sample_info: Sequence[str]
    ) -> tuple[Any, AnyArray | None, dict[str, AnyArray]]:
        """Return the table with these columns, the labels in it, and what belongs to samples beside these."""
        # These columns only: Parquet and compressed files are copied to disk.
        read = dict.fromkeys([*inputs, *([] if label is None else [label]), *sample_info])
        table = map_table(self.files, list(read), self.request.limits)
        others = {name: cell_array(table.column(name).to_pylist()) for name in sample_info}
        return table, None if label is None else stored_labels(table, label, self.path, self.request), others

    def distinct(self, name: str) -> AnyArray:
        """Return the values of a column, each once."""
        return cell_array(map_table(self.files, [name], self.request.limits).column(name).unique().to_pylist())

    def digest(self, arrays: Mapping[str, Any], indices: IntArray) -> str:
        """Hash the files; of text that became tokens, their values, but where several label columns are joined."""
        tokens = all(isinstance(values, np.ndarray) for values in arrays.values())
        if tokens and not self.request.label_columns:
            return arrays_sha256(arrays, indices)
        return files_sha256(self.files, indices)


def _kind(pyarrow: Any, kind: Any) -> Kind:
    types = pyarrow.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return "number"
    if types.is_dictionary(kind):
        return _kind(pyarrow, kind.value_type)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    if is_list(pyarrow, kind):
        return "list"
    return "other"
