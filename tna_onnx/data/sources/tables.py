"""Samples from tables: Parquet and Arrow files, folders of them, data sets that Hugging Face's `datasets` saved.

Which columns fill which inputs is settled in `tna_onnx.data.sources.layout`: columns of numbers side by side, or a
column of lists that all have one shape. A column of bytes, or of structs {bytes, path} as `datasets` stores images,
holds images.
Labels are in the column `label` or `labels`, as class indices or names. Where `datasets` has stored the names that its
indices stand for and the model's names are known, names decide.

Arrow files are mapped. Parquet and compressed Arrow files are first written out as such, the needed columns only, into
a temporary file, a few hundred rows at a time: so memory does not grow with the data, and any row can be reached.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tna_onnx.data.digest import arrays_sha256, files_sha256
from tna_onnx.data.labelfile import find_label_column, labels_apart
from tna_onnx.data.labels import label_indices
from tna_onnx.data.optional import optional
from tna_onnx.data.sources.arrow import ArrowColumn, is_list, map_table, table_schema
from tna_onnx.data.sources.columns import ArraySource, open_columns
from tna_onnx.data.sources.delimited import DELIMITED, open_delimited
from tna_onnx.data.sources.images import ImageSource, open_image_files
from tna_onnx.data.sources.inmemory import open_in_memory, plain_column
from tna_onnx.data.sources.layout import Kind, Layout, lay_out, texts_of
from tna_onnx.data.sources.ragged import padded, token_columns
from tna_onnx.data.sources.stacked import stack
from tna_onnx.data.sources.table_files import table_files
from tna_onnx.data.sources.table_images import TableImages, image_column
from tna_onnx.data.sources.table_labels import stored_labels
from tna_onnx.data.sources.tokens import text_columns, tokenized

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tna_onnx.data.request import Request
    from tna_onnx.data.source import AnyArray
    from tna_onnx.data.sources.columns import Column

__all__ = ["open_table"]


def open_table(path: Path, request: Request) -> ArraySource | ImageSource:
    """Map the table in the file or folder `path`, or read that of a text file.

    Raises:
        UsageError: pyarrow or, for images, Pillow is missing; a recipe cannot be used; no room for a temporary file.
        DataError: the table cannot be read, or its columns or labels do not fit the model.
    """
    if path.is_file() and path.suffix.lower() in DELIMITED:
        return open_delimited(path, request)
    pyarrow = optional("pyarrow", "tables", "reading Parquet and Arrow files")
    files = table_files(path, request.limits, request.data_root)
    schema = table_schema(files[0])
    if request.labels is None and request.label_columns:
        return _open_in_memory(path, files, list(schema.names), request)
    wanted = [spec.name for spec in request.inputs]
    kinds = {field.name: _kind(pyarrow, field.type) for field in schema}
    label_name = None
    if request.labels is None:
        rest = {name: kind for name, kind in kinds.items() if name not in (*wanted, *request.columns)}
        label_name = find_label_column([*rest], request.label_column, str(path), texts_of(rest))
    image_name = image_column(pyarrow, schema, request, label_name, path)
    if image_name is not None:
        return _open_images(path, files, request, image_name, label_name)
    if request.tokenizer is not None:
        return _open_text(path, files, request, kinds, label_name)
    tokens = token_columns(kinds, request)
    if tokens and (ragged := _open_ragged(path, files, request, tokens, label_name)) is not None:
        return ragged
    return _open_numbers(path, files, request, lay_out(str(path), kinds, request, label_name), kinds, label_name)


def _open_in_memory(path: Path, files: tuple[Path, ...], names: list[str], request: Request) -> ArraySource:
    """Read all columns, where several of them are labels."""
    table = map_table(files, names, request.limits)
    columns = {name: plain_column(table.column(name).to_numpy()) for name in names}
    return open_in_memory(
        _title(path), str(path), columns, request, hashed=lambda indices: files_sha256(files, indices)
    )


def _open_images(
    path: Path, files: tuple[Path, ...], request: Request, image_name: str, label_name: str | None
) -> ImageSource:
    request.check_one_class(str(path))
    table, labels = _map(path, files, request, [image_name], label_name)
    images = TableImages(
        path, files, ArrowColumn(table.column(image_name), f"{path}: column {image_name!r}"), request.data_root
    )
    where = request.labels_where(f"{path}: column {label_name!r}")
    indices = label_indices(labels, len(images), request.n_classes, where, request.class_names)
    return open_image_files(_title(path), str(path), images, indices, request, request.image_input(str(path)))


def _open_numbers(
    path: Path,
    files: tuple[Path, ...],
    request: Request,
    layout: Layout,
    kinds: Mapping[str, Kind],
    label_name: str | None,
) -> ArraySource:
    request.check_arrays(str(path))
    used = list(dict.fromkeys(name for names in layout.columns.values() for name in names))
    table, labels = _map(path, files, request, used, label_name)
    numbers = {name: ArrowColumn(table.column(name), f"{path}: column {name!r}").numbers() for name in used}
    arrays: dict[str, Column] = {}
    for spec in request.inputs:
        names = layout.columns[spec.name]
        arrays[spec.name] = numbers[names[0]]
        if any(kinds[name] == "number" for name in names):
            arrays[spec.name] = stack(str(path), spec, names, [numbers[name] for name in names])
    return open_columns(
        _title(path),
        str(path),
        request,
        arrays,
        labels,
        hashed=lambda indices: files_sha256(files, indices),
        noun="column",
        label=label_name,
        notes=(layout.note,) if layout.note else (),
    )


def _open_text(
    path: Path, files: tuple[Path, ...], request: Request, kinds: Mapping[str, Kind], label_name: str | None
) -> ArraySource:
    request.check_arrays(str(path))
    text = [name for name, kind in kinds.items() if kind == "text" and name != label_name]
    chosen = text_columns(str(path), text, request)
    table, labels = _map(path, files, request, list(chosen), label_name)
    made = tokenized(str(path), [(name, table.column(name).to_pylist()) for name in chosen], request)
    return _of_arrays(path, request, made, labels, label_name)


def _open_ragged(
    path: Path, files: tuple[Path, ...], request: Request, tokens: Mapping[str, str], label_name: str | None
) -> ArraySource | None:
    """Pad lists of tokens; None if they have one length, which is the model's, and a mask."""
    compute = importlib.import_module("pyarrow.compute")
    table, labels = _map(path, files, request, list(tokens.values()), label_name)
    lengths = {*compute.list_value_length(table.column(tokens["ids"])).unique().to_pylist()}
    if len(lengths | {spec.shape[1] for spec in request.inputs} - {None}) <= 1 and "mask" in tokens:
        return None
    request.check_arrays(str(path))
    lists = {role: (name, table.column(name).to_pylist()) for role, name in tokens.items()}
    return _of_arrays(path, request, padded(str(path), lists, request), labels, label_name)


def _of_arrays(
    path: Path, request: Request, made: tuple[dict[str, AnyArray], str], labels: AnyArray, label_name: str | None
) -> ArraySource:
    """Take arrays that were made of columns, and the note on how."""
    arrays, note = made
    return open_columns(
        _title(path),
        str(path),
        request,
        arrays,
        labels,
        hashed=lambda indices: arrays_sha256(arrays, indices),
        noun="column",
        label=label_name,
        notes=(note,),
    )


def _map(
    path: Path, files: tuple[Path, ...], request: Request, columns: list[str], label_name: str | None
) -> tuple[Any, AnyArray]:
    """Return the table with these columns, and the labels."""
    if label_name is None:
        return map_table(files, columns, request.limits), labels_apart(request, None)
    # These columns only: Parquet and compressed files are copied to disk.
    table = map_table(files, [*columns, label_name], request.limits)
    return table, labels_apart(request, stored_labels(table, label_name, path, request))


def _title(path: Path) -> str:
    return f"table {path.resolve().name}"


def _kind(pyarrow: Any, kind: Any) -> Kind:
    types = pyarrow.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return "number"
    if types.is_dictionary(kind):
        return _kind(pyarrow, kind.value_type)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    if is_list(pyarrow, getattr(kind, "storage_type", kind)):
        return "list"
    return "other"
