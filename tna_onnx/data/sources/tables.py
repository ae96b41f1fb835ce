"""Samples from tables: Parquet and Arrow files, folders of them, and text files.

`table_inputs` decides which columns fill which input; bytes, or structs {bytes, path} with bytes, are images. Numbers
are read some rows at a time and mapped where they are many; images, of which any may be asked for, are copied to disk.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.foreign import foreign_json
from tna_onnx.data.labelfile import labels_apart
from tna_onnx.data.labels import class_indices, listed
from tna_onnx.data.sample_info import columns_beside
from tna_onnx.data.sources import arrow, table_inputs
from tna_onnx.data.sources.columns import ArraySource, check_arrays
from tna_onnx.data.sources.image_files import ImageSource, TableImages, open_image_files, prepared_input
from tna_onnx.data.textfile import DELIMITED, read_columns
from tna_onnx.errors import DataError
from tna_onnx.files import resolved

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tna_onnx.data.options import Request
    from tna_onnx.data.source import AnyArray

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
        columns = read_columns(path, request.limits, table_inputs.texts_for(request))
        return table_inputs.open_in_memory(f"table {path.name}", str(path), columns, request, [path])
    pyarrow = arrow.load_pyarrow()
    files = arrow.table_files(path, request.data_root)
    schema = arrow.table_schema(files[0])
    where, limits = str(path), request.limits
    kinds = {field.name: _kind(pyarrow, field.type) for field in schema}

    def parts(names: Sequence[str]) -> Iterator[dict[str, AnyArray]]:
        start = 0
        for batch in arrow.checked_batches(files, names, limits):
            yield {name: _values(batch.column(name), kinds[name], f"{where}: column {name!r}", start) for name in names}
            start += len(batch)

    table = table_inputs.Table(where, kinds, parts, files, lambda name: label_names(schema, name, path, request))
    title = f"table {resolved(path).name}"
    if request.labels is not None or not request.label_columns:
        label = table_inputs.label_of(table, request)
        image_name = image_column(pyarrow, schema, request, label, path)
        if image_name is not None:
            return _open_images(table, title, image_name, label, request)
    return table_inputs.open_columns_of(table, title, request)


def _values(column: Any, kind: table_inputs.Kind, where: str, start: int) -> AnyArray:
    if kind in ("number", "list"):
        return np.array(arrow.column_numbers(column, where, start))  # a copy: the file is mapped, and may be rewritten
    return arrow.column_cells(column)


def _open_images(table: table_inputs.Table, title: str, name: str, label: str | None, request: Request) -> ImageSource:
    where, files = table.where, tuple(table.files)
    request.check_one_class(where)
    further = columns_beside(request, where, table.kinds)
    stored = table.columns([*further, *([] if label is None else [label])])
    images = TableImages(Path(where), files, arrow.map_column(files, name, request.limits))
    labels = labels_apart(request, None if label is None else table.labels(label, stored[label]))
    indices = class_indices(request, labels, len(images), request.labels_where(f"{where}: column {label!r}"))
    columns = {column: stored[column] for column in further}
    return open_image_files(title, where, images, indices, request, prepared_input(request, where), columns)


def table_columns(schema: Any, request: Request, label_name: str, where: str) -> tuple[tuple[str, ...], bool, str]:
    """Return the columns that the model reads, in its order, whether they hold images, and a note on their choice."""
    pyarrow = arrow.load_pyarrow()
    image_name = image_column(pyarrow, schema, request, label_name, Path(where))
    if image_name is not None:
        return (image_name,), True, ""
    check_arrays(request, where)
    columns, note = table_inputs.lay_out(
        where, {field.name: _kind(pyarrow, field.type) for field in schema}, request, label_name
    )
    return tuple(dict.fromkeys(name for spec in request.inputs for name in columns[spec.name])), False, note


def _kind(pyarrow: Any, kind: Any) -> table_inputs.Kind:
    types = pyarrow.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return "number"
    if types.is_dictionary(kind):
        return _kind(pyarrow, kind.value_type)
    if arrow.is_text(pyarrow, kind):
        return "text"
    if arrow.is_list(pyarrow, kind):
        return "list"
    return "other"
