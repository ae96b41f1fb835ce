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
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tna_onnx.data.digest import arrays_sha256, files_sha256
from tna_onnx.data.files import check_inside, read_text
from tna_onnx.data.formats import ROWS
from tna_onnx.data.labelfile import find_label_column, labels_apart
from tna_onnx.data.labels import label_indices, listed
from tna_onnx.data.optional import optional
from tna_onnx.data.parsing import parsing
from tna_onnx.data.sources.arrow import ArrowColumn, is_list, map_table, table_schema
from tna_onnx.data.sources.columns import ArraySource, open_columns
from tna_onnx.data.sources.delimited import DELIMITED, open_delimited
from tna_onnx.data.sources.images import ImageSource, open_image_files
from tna_onnx.data.sources.inmemory import open_in_memory, plain_column
from tna_onnx.data.sources.layout import Kind, Layout, lay_out, texts_of
from tna_onnx.data.sources.ragged import padded, token_columns
from tna_onnx.data.sources.stacked import stack
from tna_onnx.data.sources.table_labels import stored_labels
from tna_onnx.data.sources.tokens import text_columns, tokenized
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

    from tna_onnx.data.limits import Limits
    from tna_onnx.data.request import Request
    from tna_onnx.data.source import AnyArray, IntArray
    from tna_onnx.data.sources.columns import Column

__all__ = ["open_table"]

_SUFFIXES = ROWS["table"].files
# What `datasets` writes beside its Arrow files: how a data set is stored, its features, the names of its splits.
_STATE = "state.json"
_SPLITS = "dataset_dict.json"
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
            folder = _folder(self.path)
            check_inside(folder, [str(path)], self.name(row), self.data_root)
            return folder / str(path)
        raise DataError(f"{self.name(row)}: holds no image; remove that row")

    def digest(self, rows: IntArray, labels: IntArray, contents: object) -> str:  # noqa: ARG002 - whole files count
        """Return SHA-256 (hex) over the bytes of all files of the table, in order, and the labels."""
        return files_sha256(self.files, labels)


def open_table(path: Path, request: Request) -> ArraySource | ImageSource:
    """Map the table in the file or folder `path`, or read that of a text file.

    Raises:
        UsageError: pyarrow or, for images, Pillow is missing; a recipe cannot be used; no room for a temporary file.
        DataError: the table cannot be read, or its columns or labels do not fit the model.
    """
    if path.is_file() and path.suffix.lower() in DELIMITED:
        return open_delimited(path, request)
    pyarrow = optional("pyarrow", "tables", "reading Parquet and Arrow files")
    files = _files(path, request.limits, request.data_root)
    check_inside(_folder(path), [str(file.absolute()) for file in files if file != path], str(path), request.data_root)
    schema = table_schema(files[0])
    if request.labels is None and request.label_columns:
        return _open_in_memory(path, files, list(schema.names), request)
    wanted = [spec.name for spec in request.inputs]
    kinds = {field.name: _kind(pyarrow, field.type) for field in schema}
    label_name = None
    if request.labels is None:
        rest = {name: kind for name, kind in kinds.items() if name not in (*wanted, *request.columns)}
        label_name = find_label_column([*rest], request.label_column, str(path), texts_of(rest))
    image_name = _image_column(pyarrow, schema, request, label_name, path)
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


def _folder(path: Path) -> Path:
    """Return the folder that paths in a table count from."""
    if path.is_dir():
        return path
    return path.parent


def _files(path: Path, limits: Limits, data_root: Path | None) -> tuple[Path, ...]:
    """Return the files of a table in their order."""
    if path.is_file():
        return (path,)
    if (path / _SPLITS).is_file():
        splits = sorted(entry.name for entry in path.iterdir() if (entry / _STATE).is_file())
        raise DataError(
            f"{path}: holds several data sets; choose one: {', '.join(str(path / name) for name in splits)}"
        )
    if (path / _STATE).is_file():
        check_inside(path, [_STATE], str(path), data_root)
        with parsing(str(path / _STATE), "cannot be read", "save the data set again"):
            state = json.loads(read_text(path / _STATE, limits))
            names = [str(entry["filename"]) for entry in state["_data_files"]]
        if state.get("_indices_data_files"):  # left by `shuffle` and `select`, which do not move the rows
            raise DataError(f"{path}: its rows are not stored in their order; save data_set.flatten_indices() instead")
        files = tuple(path / name for name in names)
    else:
        files = tuple(sorted(file for suffix in _SUFFIXES for file in path.glob(f"*{suffix}")))
    if not files:
        raise DataError(f"{path}: no files {' '.join(_SUFFIXES)} in this folder; give the folder that holds them")
    return files


def _image_column(pyarrow: Any, schema: Any, request: Request, label_name: str | None, path: Path) -> str | None:
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
