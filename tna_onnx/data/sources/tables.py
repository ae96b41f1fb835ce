"""Samples from tables: Parquet and Arrow files, folders of them, data sets saved by `datasets`, and text files.

`tna_onnx.data.sources.layout` decides which columns fill which input: columns of numbers side by side, or a column of
lists of one shape. A column of bytes, or of structs {bytes, path} as `datasets` stores images, holds images. Labels are
in the column `label` or `labels`, as class indices or names; where `datasets` has stored the names of its classes and
the model's names are known, the names decide.

Arrow files are memory-mapped. The needed columns of Parquet and compressed Arrow files are first written to an
uncompressed temporary file, a few hundred rows at a time: memory does not grow with the data, and any row can be read.
"""

from __future__ import annotations

import importlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.digest import arrays_sha256, files_sha256
from tna_onnx.data.files import check_inside, foreign_json, optional, read_text, whole_numbers
from tna_onnx.data.labelfile import find_label_column, holds_classes, labels_apart
from tna_onnx.data.labels import label_indices, listed
from tna_onnx.data.sources.arrow import ArrowColumn, is_list, map_table, table_files, table_folder, table_schema
from tna_onnx.data.sources.columns import ArraySource, open_columns, stack
from tna_onnx.data.sources.delimited import DELIMITED, open_delimited
from tna_onnx.data.sources.images import ImageSource, open_image_files
from tna_onnx.data.sources.inmemory import open_in_memory, padded, plain_column, token_columns
from tna_onnx.data.sources.layout import Kind, Layout, lay_out, plain_kinds, texts_of
from tna_onnx.data.sources.tokens import text_columns, tokenized, with_tokenizer
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

    from tna_onnx.data.choices import Limits
    from tna_onnx.data.request import Request
    from tna_onnx.data.source import AnyArray, IntArray
    from tna_onnx.data.sources.columns import Column

__all__ = ["INFO", "TableImages", "image_column", "open_table", "stored_labels", "table_columns"]


_IMAGE_NAMES = ("image", "img")


@dataclass(frozen=True, eq=False)
class TableImages:
    """Images in a column of bytes, or of structs with `bytes` or `path`, of a mapped table."""

    path: Path
    files: tuple[Path, ...]
    column: ArrowColumn
    data_root: Path | None = None

    def __len__(self) -> int:
        """Return their number."""
        return self.column.shape[0]

    def name(self, row: int) -> str:
        """Return the path of the table and the row."""
        return f"{self.path}: row {row}"

    def open(self, row: int) -> Path | BinaryIO:
        """Return the bytes of image `row`, or its path where only that is stored."""
        content = self.column.value(row)
        path = None
        if isinstance(content, dict):
            path = content.get("path")
            content = content.get("bytes")
        if content is not None:
            return io.BytesIO(content)
        if path:
            folder = table_folder(self.path)
            check_inside(folder, [str(path)], self.name(row), self.data_root)
            return folder / str(path)
        raise DataError(f"{self.name(row)}: holds no image; remove that row")

    def digest(self, rows: IntArray, labels: IntArray, contents: object) -> str:  # noqa: ARG002 - whole files count
        """Return SHA-256 (hex) over the bytes of all files of the table, in order, and the labels."""
        return files_sha256(self.files, labels)


def image_column(pyarrow: Any, schema: Any, request: Request, label_name: str | None, path: Path) -> str | None:
    """Return the name of the column that holds the images of the model's only input; None if samples are numbers.

    Raises:
        DataError: several columns may hold them, or none that is known.
    """
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


INFO = "dataset_info.json"  # where `datasets` writes the features of a data set


def stored_labels(table: Any, name: str, path: Path, request: Request) -> AnyArray:
    """Return the labels in a column of a table, as numbers or names.

    Raises:
        DataError: cells are empty, or stand for names that the model does not have.
    """
    column = table.column(name)
    # Said here with its row: as a Python value an empty cell is None, which no message explains.
    if column.null_count:
        row = next(row for row, value in enumerate(column) if not value.is_valid)
        raise DataError(f"{path}: column {name!r} has {column.null_count} empty cells, first in row {row}; fill them")
    values = np.array([*column.to_pylist(), None], object)[:-1]  # None keeps NumPy from making axes of nested lists
    if not all(isinstance(value, int) for value in values):
        if all(isinstance(value, (int, float)) for value in values):
            return values.astype(np.float64)
        return values
    indices = whole_numbers(values.tolist())
    # no class of any model has such a number
    if indices.dtype != np.int64:
        row = next(row for row, value in enumerate(values) if not -(2**63) <= value < 2**63)
        raise DataError(f"{path}: column {name!r}: {values[row]} in row {row} is no class index; store the classes")
    class_label = _class_label(table.schema, name, path, request.limits)
    if class_label is None or indices.size == 0:
        return indices
    # Without the model's names, indices of the data set can only be taken as the model's if the counts agree.
    if request.class_names is None and len(class_label) != request.n_classes:
        raise DataError(
            f"{path}: column {name!r} has {len(class_label)} classes ({listed(class_label)}), the model has "
            f"{request.n_classes}; give the model's class names in its order (--classes FILE)"
        )
    if request.class_names is None:
        return indices
    if indices.min() < 0 or indices.max() >= len(class_label):
        raise DataError(
            f"{path}: column {name!r} must lie in 0 to {len(class_label) - 1}, the places of its class names, but goes "
            f"from {indices.min()} to {indices.max()}; remove samples without a label"
        )
    named: AnyArray = np.array(class_label)[indices]
    return named  # names decide: the data set and the model may order the classes differently


def _class_label(schema: Any, name: str, path: Path, limits: Limits) -> list[str] | None:
    """Return the class names that `datasets` stored for a column of indices; None if it stored none."""
    info: Any = None
    try:
        if b"huggingface" in (schema.metadata or {}):
            info = foreign_json(schema.metadata[b"huggingface"])["info"]
        elif path.is_dir() and (path / INFO).is_file():
            info = foreign_json(read_text(path / INFO, limits))
        names = info["features"][name]["names"]
    except (
        DataError,
        ValueError,
        LookupError,
        TypeError,
        RecursionError,
    ):  # no such entry, or not in the form of `datasets`
        return None
    if not isinstance(names, list) or not names:
        return None
    return [str(text) for text in names]


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
    input_names = [spec.name for spec in request.inputs]
    kinds = {field.name: _kind(pyarrow, field.type) for field in schema}
    label_name = None
    if request.labels is None:
        taken = (*input_names, *request.columns, *request.no_inputs)
        rest = {name: kind for name, kind in kinds.items() if name not in taken}

        def classes_in(name: str) -> bool:
            if kinds[name] not in ("number", "text"):
                return False
            values = map_table(files, [name], request.limits).column(name).unique().to_pylist()
            return holds_classes(plain_column(np.array([*values, None], object)[:-1]), request)

        label_name = find_label_column([*rest], request.label_column, str(path), texts_of(rest), classes_in=classes_in)
    image_name = image_column(pyarrow, schema, request, label_name, path)
    if image_name is not None:
        return _open_images(path, files, request, image_name, label_name)
    request = with_tokenizer(request, kinds, label_name)
    if request.tokenizer is not None:
        return _open_text(path, files, request, kinds, label_name)
    tokens = token_columns(kinds, request)
    if tokens and (ragged := _open_ragged(path, files, request, tokens, label_name)) is not None:
        return ragged
    return _open_numbers(path, files, request, lay_out(str(path), kinds, request, label_name), kinds, label_name)


def table_columns(schema: Any, request: Request, label_name: str, where: str) -> tuple[tuple[str, ...], bool]:
    """Return the columns that the model reads, in its order, and whether they hold images.

    Raises:
        DataError: they cannot be told, or do not fit the model.
    """
    pyarrow = optional("pyarrow", "tables", "reading Parquet and Arrow files")
    image_name = image_column(pyarrow, schema, request, label_name, Path(where))
    if image_name is not None:
        return (image_name,), True
    request.check_arrays(where)
    layout = lay_out(where, {field.name: _kind(pyarrow, field.type) for field in schema}, request, label_name)
    return tuple(dict.fromkeys(name for spec in request.inputs for name in layout.columns[spec.name])), False


def _open_in_memory(path: Path, files: tuple[Path, ...], names: list[str], request: Request) -> ArraySource:
    """Read all columns into memory, for samples with several label columns."""
    table = map_table(files, names, request.limits)
    columns = {name: plain_column(table.column(name).to_numpy()) for name in names}
    return open_in_memory(
        _title(path), str(path), columns, request, hashed=lambda indices: files_sha256(files, indices)
    )


def _open_images(
    path: Path, files: tuple[Path, ...], request: Request, image_name: str, label_name: str | None
) -> ImageSource:
    request.check_one_class(str(path))
    table, labels, beside = _map(path, files, request, [image_name], label_name)
    images = TableImages(
        path, files, ArrowColumn(table.column(image_name), f"{path}: column {image_name!r}"), request.data_root
    )
    where = request.labels_where(f"{path}: column {label_name!r}")
    indices = label_indices(labels, len(images), request.n_classes, where, request.class_names)
    image_input = request.image_input(str(path))
    return open_image_files(_title(path), str(path), images, indices, request, image_input, beside)


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
    table, labels, beside = _map(path, files, request, used, label_name)
    stored = {name: ArrowColumn(table.column(name), f"{path}: column {name!r}") for name in used}
    parts = {name: column.texts() if kinds[name] == "text" else column.numbers() for name, column in stored.items()}
    arrays: dict[str, Column] = {}
    for spec in request.inputs:
        names = layout.columns[spec.name]
        arrays[spec.name] = parts[names[0]]
        if any(kinds[name] in plain_kinds(spec) for name in names):
            arrays[spec.name] = stack(str(path), spec, names, [parts[name] for name in names])
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
        beside=beside,
    )


def _open_text(
    path: Path, files: tuple[Path, ...], request: Request, kinds: Mapping[str, Kind], label_name: str | None
) -> ArraySource:
    request.check_arrays(str(path))
    text = [name for name, kind in kinds.items() if kind == "text" and name not in (label_name, *request.no_inputs)]
    text_names = text_columns(str(path), text, request)
    table, labels, beside = _map(path, files, request, list(text_names), label_name)
    tokens = tokenized(str(path), [(name, table.column(name).to_pylist()) for name in text_names], request)
    return _open_arrays(path, request, tokens, labels, label_name, beside)


def _open_ragged(
    path: Path, files: tuple[Path, ...], request: Request, tokens: Mapping[str, str], label_name: str | None
) -> ArraySource | None:
    """Pad lists of tokens; return None if all have the model's length and a mask."""
    compute = importlib.import_module("pyarrow.compute")
    table, labels, beside = _map(path, files, request, list(tokens.values()), label_name)
    lengths = {*compute.list_value_length(table.column(tokens["ids"])).unique().to_pylist()}
    if len(lengths | {spec.shape[1] for spec in request.inputs} - {None}) <= 1 and "mask" in tokens:
        return None
    request.check_arrays(str(path))
    lists = {role: (name, table.column(name).to_pylist()) for role, name in tokens.items()}
    return _open_arrays(path, request, padded(str(path), lists, request), labels, label_name, beside)


def _open_arrays(
    path: Path,
    request: Request,
    arrays_and_note: tuple[dict[str, AnyArray], str],
    labels: AnyArray,
    label_name: str | None,
    beside: Mapping[str, AnyArray],
) -> ArraySource:
    """Take arrays that were made of columns, and the note on how."""
    arrays, note = arrays_and_note
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
        beside=beside,
    )


def _map(
    path: Path, files: tuple[Path, ...], request: Request, columns: list[str], label_name: str | None
) -> tuple[Any, AnyArray, dict[str, AnyArray]]:
    """Return the table with these columns, the labels, and further columns that the request asks for."""
    further = request.columns_beside(str(path), table_schema(files[0]).names)
    # These columns only: Parquet and compressed files are copied to disk.
    read = dict.fromkeys([*columns, *([] if label_name is None else [label_name]), *further])
    table = map_table(files, list(read), request.limits)
    beside = {name: np.array([*table.column(name).to_pylist(), None], object)[:-1] for name in further}
    stored = None if label_name is None else stored_labels(table, label_name, path, request)
    return table, labels_apart(request, stored), beside


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
