"""Tables: Parquet and Arrow files, folders of them, and text files; as samples (`open_table`), or in batches of rows.

`table_inputs` decides which columns fill which input; bytes, or structs {bytes, path} with bytes, are images. Numbers
are read some thousand rows at a time, and mapped where they are many. Any image may be asked for, so their column is
first written as plain Arrow.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tna_onnx.data.choices import Limits
from tna_onnx.data.foreign import cell_array, check_inside, file_system, foreign_json, open_foreign, optional, parsing
from tna_onnx.data.labelfile import labels_apart
from tna_onnx.data.labels import class_indices
from tna_onnx.data.options import Request
from tna_onnx.data.sample_info import columns_beside
from tna_onnx.data.source import AnyArray
from tna_onnx.data.sources import table_inputs
from tna_onnx.data.sources.arrays import LABELS, ArraySource
from tna_onnx.data.sources.image_files import ImageSource, TableImages, open_image_files, prepared_input
from tna_onnx.data.textfile import DELIMITED, read_columns
from tna_onnx.errors import DataError, UsageError, listed
from tna_onnx.files import is_url, resolved

SUFFIXES = (".parquet", ".arrow", ".feather", ".ipc")
SAVED = ("state.json", "dataset_dict.json")
"""What `datasets` writes into the folder of a data set that it saves, or of several."""

UNFINISHED = "_unfinished"
"""Name of the mark in a folder that is being written."""

_UNREADABLE = ("cannot be read as a table", "write it again")
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
    where = str(path)
    if path.is_file() and path.suffix.lower() in DELIMITED:
        columns = read_columns(path, request.limits, table_inputs.texts_for(request))
        return table_inputs.open_in_memory(f"table {path.name}", where, columns, request, [path])
    files = find_table_files(where)
    if files is None:
        raise DataError(f"{where}: its tables have names that begin with '.' or '_', as hidden files do; rename them")
    if path.is_dir():
        check_inside(path, [str(Path(name).absolute()) for name in files.names], where, request.data_root)
    table = table_of(files, where, request)
    title = f"table {resolved(path).name}"
    if request.labels is not None or not request.label_columns:
        label = table_inputs.label_of(table, request)
        if (image_name := image_column(table, request, label)) is not None:
            return _open_images(table, files, title, image_name, label, request)
    return table_inputs.open_columns_of(table, title, request)


def table_of(files: TableFiles, where: str, request: Request) -> table_inputs.Table:
    """Return the columns of table files here, which are read when they are asked for."""
    kinds = {field.name: _kind(field.type) for field in files.schema}

    def parts(names: Sequence[str]) -> Iterator[dict[str, AnyArray]]:
        start = 0
        for batch in _checked_batches(files, names, request.limits):
            yield {name: _values(batch.column(name), kinds[name], f"{where}: column {name!r}", start) for name in names}
            start += len(batch)

    paths = [Path(name) for name in files.names]
    return table_inputs.Table(where, kinds, parts, paths, lambda name: label_names(files.schema, name, where, request))


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


def image_column(table: table_inputs.Table, request: Request, label: str | None) -> str | None:
    """Return the column that holds the images of the model's only input; None if samples are numbers."""
    if len(request.inputs) != 1:
        return None
    where, kinds = table.where, table.kinds
    table_inputs.require_columns(where, request.drop_columns, kinds, "--drop-columns")
    images = [name for name, kind in kinds.items() if kind == "image" and name != label]
    input_name = request.inputs[0].name
    named = [*request.columns]
    if not named and input_name in kinds and input_name not in request.drop_columns:
        named = [input_name]
    if named:
        return named[0] if len(named) == 1 and named[0] in images else None
    images = [name for name in images if name not in request.drop_columns]
    if len(images) > 1:  # a mask beside the image, say
        images = [name for name in _IMAGE_NAMES if name in images] or images
    if len(images) > 1:
        raise DataError(
            f"{where}: no column is known to hold the images (found {listed(kinds)}); name it with --columns, or call "
            f"it 'image' or after the model's input, {input_name!r}"
        )
    return next(iter(images), None)


def _open_images(
    table: table_inputs.Table, files: TableFiles, title: str, name: str, label: str | None, request: Request
) -> ImageSource:
    where = table.where
    request.check_one_class(where)
    further = columns_beside(request, where, table.kinds)
    stored = table.columns([*further, *([] if label is None else [label])])
    stored_labels = None if label is None else table.labels(label, stored[label])
    images = TableImages(Path(where), tuple(table.files), _map_column(files, name, request.limits))
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


# ---- files


@dataclass(frozen=True)
class TableFiles:
    """Parquet or Arrow files, here or behind a URL, in order."""

    names: tuple[str, ...]
    open: Callable[[str], Any]  # gives a stream of one
    schema: Any  # names and types of the columns of the first

    def schema_of(self, name: str) -> Any:
        """Return the names and types of the columns of one file."""
        return _schema(self.open, name)

    def row_groups(self, name: str) -> list[int]:
        """Return the rows of each row group of a Parquet file; of other files, of the whole."""
        with parsing(name, *_UNREADABLE), self.open(name) as stream:
            if not _is_parquet(name):
                return [sum(map(len, _arrow_batches(stream)))]
            metadata = load_parquet().ParquetFile(stream).metadata
            return [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]

    def batches(self, name: str, columns: Sequence[str], groups: tuple[int, int] | None = None) -> Iterator[Any]:
        """Yield record batches of one file, of some thousand rows and none of no rows.

        `groups`: row groups of a Parquet file, from and to; None for all.
        """
        with parsing(name, *_UNREADABLE), self.open(name) as stream:
            if _is_parquet(name):
                numbers = None if groups is None else list(range(*groups))
                # what it reads ahead by default stays in memory until the last row group has been read
                file = load_parquet().ParquetFile(stream, pre_buffer=False)
                metadata = file.metadata
                size = sum(metadata.row_group(k).total_byte_size for k in range(metadata.num_row_groups))
                rows = _batch_rows(metadata.num_rows, size)
                batches = file.iter_batches(rows, row_groups=numbers, columns=[*columns])
            else:
                batches = _arrow_batches(stream)
            for batch in batches:
                if len(batch):  # engines write the empty parts of a table too
                    # offsets of lists and texts are used as they are: wrong ones would read memory of others
                    selected = batch.select(columns)
                    selected.validate(full=True)
                    yield selected


def find_table_files(place: str) -> TableFiles | None:
    """Return the Parquet or Arrow files of a file, a folder or a pattern; None if there are none."""
    opened: Callable[[str], Any] = _open_here
    if is_url(place):
        if not (place.endswith((*SUFFIXES, "/")) or "*" in place):
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
        names = _local_names(Path(place))
    if any(name.endswith(f"/{UNFINISHED}") for name in names):
        raise DataError(f"{place}: the run that writes it has not finished; delete the folder and run it again")
    tables = [name for name in names if name.lower().endswith(SUFFIXES)]
    # engines hide their marks in folders; the path of one file says what is meant
    visible = [name for name in tables if Path(name) == Path(place) or not Path(name).name.startswith((".", "_"))]
    if not visible:
        return None
    visible.sort()
    return TableFiles(tuple(visible), opened, _schema(opened, visible[0]))


def _local_names(path: Path) -> list[str]:
    if path.is_file():  # of whatever name: an asterisk may be a part of it
        return [str(path)]
    if path.is_dir():
        if any((path / name).is_file() for name in SAVED):  # the order of its rows may be in a file of its own
            raise DataError(f"{path}: is a data set saved by `datasets`; write data_set.to_parquet('calib.parquet')")
        return [str(entry) for entry in path.iterdir()]
    return [str(file) for file in path.parent.glob(path.name)] if "*" in path.name else []


def _open_here(name: str) -> Any:
    open_foreign(Path(name)).close()  # a folder, a pipe or a broken link of such a name is an error, and not left out
    if _is_parquet(name):
        return load_pyarrow().OSFile(name)
    return load_pyarrow().memory_map(name)  # it may be one batch, of which a few columns are read


def _is_parquet(name: str) -> bool:
    return name.lower().endswith(".parquet")


def _schema(opened: Callable[[str], Any], name: str) -> Any:
    with parsing(name, *_UNREADABLE), opened(name) as stream:
        schema = load_parquet().read_schema(stream) if _is_parquet(name) else _reader(stream).schema
        list(schema.names)  # names that are no UTF-8 are an error here
        return schema


def _reader(stream: Any) -> Any:
    ipc = load_pyarrow().ipc
    stream.seek(0)
    is_file = stream.read(6) == b"ARROW1"  # the magic of the file format; a stream, as `datasets` writes it, has none
    stream.seek(0)
    return ipc.open_file(stream) if is_file else ipc.open_stream(stream)


def _arrow_batches(stream: Any) -> Iterator[Any]:
    reader = _reader(stream)
    if hasattr(reader, "num_record_batches"):
        yield from map(reader.get_batch, range(reader.num_record_batches))
    else:
        yield from reader


def _batch_rows(rows: int, size: int) -> int:
    """Return how many of some rows, of `size` bytes in all, are read at a time."""
    return min(_BATCH, max(_FEWEST, _BATCH_BYTES * rows // max(1, size)))


def _checked_batches(files: TableFiles, columns: Sequence[str], limits: Limits) -> Iterator[Any]:
    """Yield record batches of these columns of all files, of one type each, and no larger than the files may be."""
    schema = None
    for name in files.names:
        with parsing(name, *_UNREADABLE):
            stored = files.schema_of(name)
            selected = load_pyarrow().schema([stored.field(column) for column in columns], stored.metadata)
            schema = schema or selected
            if selected.types != schema.types:
                raise DataError(f"{name}: its columns differ in type from those of {files.names[0]}; write them alike")
            max_bytes = limits.expanded_bytes(Path(name).stat().st_size)
            size = 0
            for stored_batch in files.batches(name, columns):
                batch = stored_batch.cast(schema)
                size += batch.nbytes
                if size > max_bytes:
                    raise DataError(
                        f"{name}: its columns take more than {max_bytes:,} bytes, which is what a file of its size may "
                        "expand to; if that is right, raise --limit expansion=NUMBER"
                    )
                rows = _batch_rows(len(batch), batch.nbytes)  # an Arrow file may be one batch
                for start in range(0, len(batch), rows):
                    yield batch.slice(start, rows)


def _map_column(files: TableFiles, column: str, limits: Limits) -> Any:
    """Write a column as plain Arrow, of which any row can be reached, into a temporary file, and map that."""
    pa = load_pyarrow()
    handle, name = tempfile.mkstemp(prefix="tna-onnx-", suffix=".arrow")
    os.close(handle)
    try:
        schema = pa.schema([files.schema.field(column)])
        with pa.OSFile(name, "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            for batch in _checked_batches(files, [column], limits):
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
