"""Tables: Parquet and Arrow files, folders of them, and text files; as samples (`open_table`), or in batches of rows.

`table_inputs` decides which columns fill which input; bytes, or structs {bytes, path} with bytes, are images. Numbers
are read some thousand rows at a time, and mapped where they are many. Any image may be asked for, so their column is
first written as plain Arrow.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tna_onnx.data.choices import DEFAULT_LIMITS, Limits
from tna_onnx.data.foreign import cell_array, check_inside, file_system, foreign_json, open_foreign, optional, parsing
from tna_onnx.data.labelfile import labels_apart
from tna_onnx.data.labels import class_indices
from tna_onnx.data.options import Request
from tna_onnx.data.sample_info import columns_beside
from tna_onnx.data.source import AnyArray
from tna_onnx.data.sources import table_inputs
from tna_onnx.data.sources.arrays import LABELS, ArraySource, check_arrays
from tna_onnx.data.sources.image_files import ImageSource, TableImages, open_image_files, prepared_input
from tna_onnx.data.textfile import DELIMITED, read_columns
from tna_onnx.errors import DataError, UsageError, listed
from tna_onnx.files import is_url, resolved

SUFFIXES = (".parquet", ".arrow", ".feather", ".ipc")
SAVED = ("state.json", "dataset_dict.json")
"""What `datasets` writes into the folder of a data set that it saves, or of several."""

UNFINISHED = "_unfinished"
"""Name of the mark in a folder that is being written."""

_STREAMED = (".parquet", ".arrow", ".feather")  # what engines write
_BATCH = 2**14  # rows read at a time, at most
_FEWEST = 512  # at least: 50 MB of images of 100 kB
_BATCH_BYTES = 2**23  # read at a time, of small rows
_IMAGE_NAMES = ("image", "img")


def load_pyarrow() -> Any:
    return optional("pyarrow", "tables", "reading and writing Parquet and Arrow files")


def load_parquet() -> Any:
    """Import the part of pyarrow for Parquet; see `load_pyarrow`."""
    return optional("pyarrow.parquet", "tables", "reading and writing Parquet and Arrow files")


# ---- samples


def open_table(path: Path, request: Request) -> ArraySource | ImageSource:
    """Map the table in the file or folder `path`, or read that of a text file."""
    where, limits = str(path), request.limits
    if path.is_file() and path.suffix.lower() in DELIMITED:
        columns = read_columns(path, limits, table_inputs.texts_for(request))
        return table_inputs.open_in_memory(f"table {path.name}", where, columns, request, [path])
    files = table_files(path, request.data_root)
    schema = table_schema(files[0])
    kinds = {field.name: _kind(field.type) for field in schema}

    def parts(names: Sequence[str]) -> Iterator[dict[str, AnyArray]]:
        start = 0
        for batch in checked_batches(files, names, limits):
            yield {name: _values(batch.column(name), kinds[name], f"{where}: column {name!r}", start) for name in names}
            start += len(batch)

    table = table_inputs.Table(where, kinds, parts, files, lambda name: label_names(schema, name, where, request))
    title = f"table {resolved(path).name}"
    if request.labels is not None or not request.label_columns:
        label = table_inputs.label_of(table, request)
        if (image_name := _image_column(kinds, request, label, where)) is not None:
            return _open_images(table, title, image_name, label, request)
    return table_inputs.open_columns_of(table, title, request)


def _kind(kind: Any) -> table_inputs.Kind:
    """Return what a type of Arrow is for; binary values and what `datasets` stores of an image are images."""
    types = load_pyarrow().types
    if types.is_dictionary(kind):
        return _kind(kind.value_type)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return "number"
    if is_text(kind):
        return "text"
    if is_list(kind):
        return "list"
    file = types.is_struct(kind) and {field.name for field in kind} <= {"bytes", "path"}
    if file or types.is_binary(kind) or types.is_large_binary(kind):
        return "image"
    return "other"


def _values(column: Any, kind: table_inputs.Kind, where: str, start: int) -> AnyArray:
    if kind in ("number", "list"):
        return np.array(column_numbers(column, where, start))  # a copy: the file is mapped, and may be rewritten
    return column_cells(column)


def _image_column(
    kinds: Mapping[str, table_inputs.Kind], request: Request, label: str | None, where: str
) -> str | None:
    """Return the column that holds the images of the model's only input; None if samples are numbers."""
    if len(request.inputs) != 1:
        return None
    table_inputs.require_columns(where, request.drop_columns, kinds, "--drop-columns")
    no_images = {label, *request.drop_columns}
    images = [name for name, kind in kinds.items() if kind == "image" and name not in no_images]
    input_name = request.inputs[0].name
    if request.columns or input_name in kinds:
        named = [*(request.columns or [input_name])]
        return named[0] if len(named) == 1 and named[0] in images else None
    if len(images) > 1:  # a mask beside the image, say
        images = [name for name in _IMAGE_NAMES if name in images] or images
    if len(images) > 1:
        raise DataError(
            f"{where}: no column is known to hold the images (found {listed(kinds)}); name it with --columns, or call "
            f"it 'image' or after the model's input, {input_name!r}"
        )
    return next(iter(images), None)


def _open_images(table: table_inputs.Table, title: str, name: str, label: str | None, request: Request) -> ImageSource:
    where, files = table.where, tuple(table.files)
    request.check_one_class(where)
    further = columns_beside(request, where, table.kinds)
    stored_labels = None
    if label is None:
        stored = table.columns(further)
    else:
        stored = table.columns([*further, label])
        stored_labels = table.labels(label, stored[label])
    images = TableImages(Path(where), files, map_column(files, name, request.limits))
    labels = labels_apart(request, stored_labels)
    indices = class_indices(request, labels, len(images), request.labels_where(f"{where}: column {label or LABELS!r}"))
    columns = {column: stored[column] for column in further}
    return open_image_files(title, where, images, indices, request, prepared_input(request, where), columns)


def label_names(schema: Any, name: str, where: str, request: Request) -> list[str] | None:
    """Return the names that `datasets` stored for a column of class indices, where these decide; else None."""
    try:
        stored = foreign_json(schema.metadata[b"huggingface"])["info"]["features"][name]["names"]
    except (ValueError, LookupError, TypeError, RecursionError):  # no such entry, or not in the form of `datasets`
        return None
    if not isinstance(stored, list) or not stored:
        return None
    names = [*map(str, stored)]
    if request.class_names is not None:
        return names
    # Without the model's names, indices of the data set can only be taken as the model's if the counts agree.
    if len(names) != request.n_classes:
        raise DataError(
            f"{where}: column {name!r} has {len(names)} classes ({listed(names)}), the model has {request.n_classes}; "
            "give the model's class names in its order (--classes FILE)"
        )
    return None


def table_columns(schema: Any, request: Request, label: str, where: str) -> tuple[tuple[str, ...], bool, str]:
    """Return the columns that the model reads, in its order, whether they hold images, and a note on their choice."""
    kinds = {field.name: _kind(field.type) for field in schema}
    image_name = _image_column(kinds, request, label, where)
    if image_name is not None:
        return (image_name,), True, ""
    check_arrays(request, where)
    columns, note = table_inputs.lay_out(where, kinds, request, label)
    return tuple(dict.fromkeys(name for spec in request.inputs for name in columns[spec.name])), False, note


# ---- streams of batches, here or behind a URL


@dataclass(frozen=True)
class TableFiles:
    """Files of one schema; `open` gives a stream of one."""

    names: tuple[str, ...]
    open: Callable[[str], Any]
    schema: Any


def find_table_files(place: str) -> TableFiles | None:
    """Return the Parquet or Arrow files of a file, a folder or a pattern; None if there are none."""
    if is_url(place):
        if not (place.endswith((*_STREAMED, "/")) or "*" in place):
            return None  # a single file of another kind, or a folder that would have to be listed to be sure
        system, root = file_system(place)
        opened = system.open
        with parsing(place, "cannot be listed", "check the address and its permissions"):
            names = [root]
            if "*" in root:
                names = system.glob(root)
            elif place.endswith("/"):
                names = system.find(root)
    else:
        opened = functools.partial(open, mode="rb")
        names = _local_names(Path(place).absolute())  # a task of an engine has another working directory
    if any(name.endswith(f"/{UNFINISHED}") for name in names):
        raise DataError(f"{place}: the run that writes it has not finished; delete the folder and run it again")
    names = sorted(
        name for name in names if name.lower().endswith(_STREAMED) and not Path(name).name.startswith((".", "_"))
    )
    if not names:
        return None
    with parsing(names[0], "cannot be read", "write it again"), opened(names[0]) as stream:
        schema = stream_schema(stream, names[0])
    return TableFiles(tuple(names), opened, schema)


def _local_names(path: Path) -> list[str]:
    if "*" in path.name:
        return [str(file) for file in path.parent.glob(path.name)]
    if path.is_dir():
        _refuse_saved(path)
        return [str(file) for file in path.iterdir() if file.is_file()]
    if not path.is_file():
        return []
    return [str(path)]


def _refuse_saved(folder: Path) -> None:
    """Refuse a folder of `save_to_disk`: the order of its rows may be in a file of its own."""
    if any((folder / name).is_file() for name in SAVED):
        raise DataError(f"{folder}: is a data set saved by `datasets`; write data_set.to_parquet('calib.parquet')")


def stream_schema(stream: Any, name: str) -> Any:
    """Return the names and types of the columns of an open file."""
    if name.lower().endswith(".parquet"):
        return load_parquet().read_schema(stream)
    return _reader(load_pyarrow(), stream).schema


def row_groups(files: TableFiles, name: str) -> list[int]:
    """Return the rows of each row group of a Parquet file; of other files, of the whole."""
    with parsing(name, "cannot be read", "write it again"), files.open(name) as stream:
        if not name.lower().endswith(".parquet"):
            return [sum(map(len, _batches(_reader(load_pyarrow(), stream))))]
        metadata = load_parquet().ParquetFile(stream).metadata
        return [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]


def table_batches(
    files: TableFiles, name: str, columns: list[str], groups: tuple[int, int] | None = None
) -> Iterator[Any]:
    """Yield record batches of one file, of some thousand rows.

    `groups`: row groups of a Parquet file, from and to; None for all.
    """
    with parsing(name, "cannot be read as a table", "write it again"), files.open(name) as stream:
        if name.lower().endswith(".parquet"):
            numbers = None
            if groups is not None:
                numbers = list(range(*groups))
            # what it reads ahead by default stays in memory until the last row group has been read
            file = load_parquet().ParquetFile(stream, pre_buffer=False)
            metadata = file.metadata
            size = sum(metadata.row_group(k).total_byte_size for k in range(metadata.num_row_groups))
            rows = _batch_rows(metadata.num_rows, size)
            yield from file.iter_batches(rows, row_groups=numbers, columns=columns)
        else:
            for batch in _batches(_reader(load_pyarrow(), stream)):
                if len(batch):  # engines write the empty parts of a table too
                    yield batch.select(columns)


def _batch_rows(rows: int, size: int) -> int:
    """Return how many of some rows, of `size` bytes in all, are read at a time."""
    return min(_BATCH, max(_FEWEST, _BATCH_BYTES * rows // max(1, size)))


# ---- mapped tables of files here


def table_files(path: Path, data_root: str | Path | None) -> tuple[Path, ...]:
    """Return the files of a table, in order."""
    if path.is_file():
        return (path,)
    _refuse_saved(path)
    files = tuple(sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES))
    check_inside(path, [str(file.absolute()) for file in files], str(path), data_root)
    return files


def checked_batches(files: Sequence[Path], columns: Sequence[str], limits: Limits = DEFAULT_LIMITS) -> Iterator[Any]:
    """Yield record batches of these columns of all files, of one type each, and no larger than the files may be."""
    pa = load_pyarrow()
    schema = None
    for file in files:
        stored = table_schema(file)
        with parsing(str(file), "cannot be read as a table", "write it again"):
            selected_schema = pa.schema([stored.field(name) for name in columns], stored.metadata)
        schema = schema or selected_schema
        if selected_schema.types != schema.types:
            raise DataError(f"{file}: its columns differ in type from those of {files[0]}; write them alike")
        max_bytes = limits.expanded_bytes(file.stat().st_size)
        size = 0
        for batch in table_batches(TableFiles((str(file),), pa.memory_map, stored), str(file), list(columns)):
            if not len(batch):
                continue
            # offsets of lists and texts are used as they are: wrong ones would read memory that is not the file's
            with parsing(str(file), "cannot be read as a table", "write it again"):
                batch.validate(full=True)
                selected = batch.select(schema.names).cast(schema)
            size += batch.nbytes
            if size > max_bytes:
                raise DataError(
                    f"{file}: its columns take more than {max_bytes:,} bytes, which is what a file of its size may "
                    "expand to; if that is right, raise --limit expansion=NUMBER"
                )
            rows = _batch_rows(len(selected), selected.nbytes)  # an Arrow file may be one batch
            for start in range(0, len(selected), rows):
                yield selected.slice(start, rows)


def map_column(files: Sequence[Path], column: str, limits: Limits = DEFAULT_LIMITS) -> Any:
    """Write a column as plain Arrow, of which any row can be reached, into a temporary file, and map that."""
    pa = load_pyarrow()
    handle, name = tempfile.mkstemp(prefix="tna-onnx-", suffix=".arrow")
    os.close(handle)
    try:
        schema = pa.schema([table_schema(files[0]).field(column)])
        with pa.OSFile(name, "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            for batch in checked_batches(files, [column], limits):
                writer.write_batch(batch.cast(schema))
        return pa.ipc.open_stream(pa.memory_map(name)).read_all().column(column)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise UsageError(
            f"{tempfile.gettempdir()}: no room for a copy of the table ({error}); set TMPDIR to a larger disk"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # a mapped file cannot be removed on Windows
            Path(name).unlink()


def table_schema(file: Path) -> Any:
    """Return the names and types of a file's columns."""
    with parsing(str(file), "cannot be read as a table", "write it again"), open_foreign(file) as stream:
        schema = stream_schema(stream, file.name)
        list(schema.names)  # names that are no UTF-8 are an error here
        return schema


def _reader(pa: Any, source: Any) -> Any:
    source.seek(0)
    is_file = source.read(6) == b"ARROW1"  # the magic of the file format; a stream, as `datasets` writes it, has none
    source.seek(0)
    if is_file:
        return pa.ipc.open_file(source)
    return pa.ipc.open_stream(source)


def _batches(reader: Any) -> Iterator[Any]:
    if hasattr(reader, "num_record_batches"):
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)
    else:
        yield from reader


# ---- columns as arrays


def column_numbers(column: Any, where: str, start: int = 0) -> AnyArray:
    """Return a column of a batch, whose first row is row `start`, as numbers of one shape, (B, ...)."""
    pa = load_pyarrow()
    types = pa.types
    kind = column.type
    column = getattr(column, "storage", column)  # extension types, such as tensors, wrap plain lists
    if types.is_dictionary(kind):
        column = column.dictionary_decode()
    shape, values = _shape(column, where, start)
    if not (types.is_integer(values.type) or types.is_floating(values.type) or types.is_boolean(values.type)):
        raise DataError(
            f"{where}: expected numbers or lists of numbers, found {values.type}; store what the model takes"
        )
    if isinstance(kind, pa.FixedShapeTensorType):  # stored flat
        if kind.permutation not in (None, list(range(len(kind.shape)))):
            raise DataError(f"{where}: tensors with permuted axes are not read; store them in plain order")
        shape = tuple(kind.shape)
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(len(column), *shape)


def column_cells(column: Any) -> AnyArray:
    """Return a column of a batch as objects, (B,); of a text that occurs several times there is one."""
    pa = load_pyarrow()
    if is_text(column.type):
        encoded = column.cast(pa.string()).dictionary_encode()
        texts = cell_array([*encoded.dictionary.to_pylist(), None])
        return np.asarray(texts[encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)])
    return cell_array(column.to_pylist())


def is_text(kind: Any) -> bool:
    """Tell whether a type is one of texts."""
    types = load_pyarrow().types
    if types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def column_array(column: Any, where: str) -> AnyArray:
    """Return a column of a batch or table as an array: (B, ...) of numbers; of others, objects (B,)."""
    pa = load_pyarrow()
    if getattr(column.type, "extension_name", "") == "ray.data.arrow_variable_shaped_tensor":
        raise DataError(
            f"{where}: has several shapes, which Ray does not run together; bring images to one size with --resize and "
            "--crop, or leave --engine out"
        )
    if is_list(column.type) and len(column):
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        return column_numbers(column, where)
    if column.null_count:
        raise DataError(f"{where}: has {column.null_count:,} empty cells; fill them or remove the rows")
    return np.asarray(column.to_numpy())


def arrow_column(values: AnyArray) -> Any:
    """Return an array (B, ...) as a column: of numbers, of lists of one length, or of tensors."""
    pa = load_pyarrow()
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    if values.ndim == 1:
        return flat
    lists = pa.FixedSizeListArray.from_arrays(flat, int(np.prod(values.shape[1:])))
    if values.ndim == 2:
        return lists
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(flat.type, values.shape[1:]), lists)


def is_list(kind: Any) -> bool:
    """Tell whether a type is one of lists, or of tensors."""
    types = load_pyarrow().types
    kind = getattr(kind, "storage_type", kind)
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _shape(array: Any, where: str, start: int) -> tuple[tuple[int, ...], Any]:
    """Return the shape of each row of an array and its flat values, checking that all rows have that shape."""
    shape: list[int] = []
    while True:
        if array.null_count:
            place = ""
            if not shape:  # further in, a place in the flat list is not a row
                place = f", first in row {start + int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))}"
            raise DataError(f"{where}: has empty cells{place}; fill them or remove the rows")
        if not is_list(array.type) or not len(array):
            return tuple(shape), array
        lengths = np.asarray(array.value_lengths())
        different = np.flatnonzero(lengths != lengths[0])
        if different.size:
            odd_row = f"row {start + different[0]}"
            if shape:
                odd_row = "another"
            raise DataError(
                f"{where}: every row must have the same shape, but one list has {lengths[0]} values and {odd_row} has "
                f"{lengths[different[0]]}; pad or cut the lists to one length"
            )
        shape.append(int(lengths[0]))
        array = array.flatten()
