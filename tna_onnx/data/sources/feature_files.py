"""Features or logits in Parquet and Arrow files, as Ray Data, Spark, Dask and `tna-onnx features -o` leave them.

A row is a sample: `features` (a list of n floats) or `logits` (a list of C), `label`, and what else there is, a `key`
say, which is not read. The files are read once, some thousand rows at a time, into one array, in memory or mapped.

Engines write rows in any order, into any number of files. So rows are sorted by a digest of their values, and by their
label where these are the same: the array, its digest and all that is fitted on it do not depend on that order.

The writer's metadata (`METADATA`) are those of `FeatureExtractor.describe`; files of others have none.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.digest import arrays_sha256
from tna_onnx.data.files import is_url, local_path, optional, parsing
from tna_onnx.data.labelfile import find_label_column
from tna_onnx.data.request import Request
from tna_onnx.data.source import InputSpec
from tna_onnx.data.sources.columns import open_columns
from tna_onnx.data.sources.precomputed import Kind, Precomputed
from tna_onnx.errors import DataError, UsageError

__all__ = ["METADATA", "FeatureFiles", "features_table", "open_feature_files", "write_feature_file"]

METADATA = b"tna_onnx"
"""Key of the writer's metadata in the schema of a file: JSON."""

_SUFFIXES = (".parquet", ".arrow", ".feather")
_KINDS: tuple[Kind, ...] = ("features", "logits")  # features first: logits follow from them
_REFUSED = {"weight": "weights of samples", "group": "groups of samples"}
_ROWS = 2**14  # read at a time
_GATHERED = 2**15  # rows put in order at a time: each may touch a page of its own
_IN_MEMORY = 2**27  # bytes of values up to which they are in memory, and not in a temporary file
_DIGEST = 16  # bytes of a row's digest


@dataclass(frozen=True, eq=False)
class FeatureFiles:
    """Features or logits that were read from files.

    Attributes:
        precomputed: the values and labels.
        writer: what `FeatureExtractor.describe` said of them; None for files of others.
    """

    precomputed: Precomputed
    writer: dict[str, Any] | None


@dataclass(frozen=True)
class _Files:
    """Files of one schema; `open` gives a stream of one."""

    names: tuple[str, ...]
    open: Callable[[str], Any]
    schema: Any


def open_feature_files(
    data: Any,
    inputs: Sequence[InputSpec],
    n_classes: int,
    *,
    label_column: str | None = None,
    class_names: Sequence[str] | None = None,
) -> FeatureFiles | None:
    """Read features or logits; None if `data` are something else, or hold an input of the model.

    Args:
        data: a file, a folder of files or a pattern (`*`), local or behind a URL that fsspec reads.
        inputs: the model's inputs.
        n_classes: number of classes C.
        label_column: column with the labels; None finds it by its name.
        class_names: as in `open_source`.

    Raises:
        UsageError: a library is missing, or there is no room for the values.
        DataError: a file cannot be read, or values or labels cannot be used.
    """
    if not isinstance(data, (str, Path)):
        return None
    files = _files(local_path(str(data)))
    if files is None:
        return None
    names = set(files.schema.names)
    kind = next((kind for kind in _KINDS if kind in names and _is_list(files.schema.field(kind).type)), None)
    if kind is None or any(spec.name in names for spec in inputs):
        return None
    where = str(data)
    for name, what in _REFUSED.items():
        if name in names:
            raise DataError(f"{where}: has a column {name!r}, but {what} are not used yet; leave the column out")
    label = find_label_column([name for name in files.schema.names if name not in _KINDS], label_column, where)
    values, labels = _read(files, kind, label, where)
    spec = InputSpec(kind, (None, values.shape[1]), values.dtype)
    request = Request([spec], n_classes, class_names=class_names)
    source = open_columns(f"{kind} {Path(where).name}", where, request, {kind: values}, labels, hashed=lambda _: "")
    ordered, order = _sorted(values, source.labels)
    del values
    indices = source.labels[order]
    request = Request([spec], n_classes)

    def digest(labels: NDArray[np.int64]) -> str:
        return arrays_sha256({kind: ordered}, labels)

    source = open_columns(source.title, where, request, {kind: ordered}, indices, hashed=digest)
    return FeatureFiles(Precomputed(kind, source), _writer(files.schema))


def features_table(kind: Kind, values: NDArray[Any], columns: Mapping[str, Any], writer: Mapping[str, Any]) -> Any:
    """Return an Arrow table of (B, n) values, as fixed-size lists, beside other columns.

    Raises:
        UsageError: pyarrow is missing.
    """
    pa = _pyarrow()
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    table = pa.table({kind: pa.FixedSizeListArray.from_arrays(flat, values.shape[1]), **columns})
    return table.replace_schema_metadata({METADATA: json.dumps(writer, sort_keys=True)})


def write_feature_file(path: Path, tables: Iterable[Any]) -> None:
    """Write tables (`features_table`) one after the other into a Parquet file that is not there yet.

    Raises:
        OSError: it cannot be written.
        UsageError: pyarrow is missing.
    """
    _pyarrow()
    import pyarrow.parquet as pq  # noqa: PLC0415 - optional

    writer = None
    with path.open("xb") as file:
        for table in tables:
            writer = writer or pq.ParquetWriter(file, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()


def _pyarrow() -> Any:
    return optional("pyarrow", "tables", "reading and writing Parquet files")


def _is_list(kind: Any) -> bool:
    types = _pyarrow().types
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(lists and types.is_floating(kind.value_type))


def _writer(schema: Any) -> dict[str, Any] | None:
    text = (schema.metadata or {}).get(METADATA)
    if text is None:
        return None
    with suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    return None


def _files(place: str) -> _Files | None:
    """Return the files of a place; None if there are none of a kind that is read here."""
    if is_url(place):
        if not (place.endswith((*_SUFFIXES, "/")) or "*" in place):
            return None  # a single file of another kind, or a folder that would have to be listed to be sure
        fsspec = optional("fsspec", "remote", f"reading {place}")
        system, root = fsspec.core.url_to_fs(place)
        names = system.glob(root) if "*" in root else [root]
        if place.endswith("/"):
            names = system.find(root)
        opened = system.open
    else:
        path = Path(place)
        names = [place]
        if "*" in path.name:
            names = [str(each) for each in path.parent.glob(path.name)]
        elif path.is_dir():
            names = [str(each) for each in path.iterdir() if each.is_file()]
        elif not path.is_file():
            return None

        def opened(name: str) -> Any:
            return open(name, "rb")  # noqa: PTH123 - whoever asks closes it

    names = sorted(
        name for name in names if name.lower().endswith(_SUFFIXES) and not Path(name).name.startswith((".", "_"))
    )
    if not names:
        return None
    with parsing(names[0], "cannot be read", "write it again"), opened(names[0]) as stream:
        schema = _schema(stream, names[0])
    if schema is None:
        return None
    return _Files(tuple(names), opened, schema)


def _schema(stream: Any, name: str) -> Any:
    pa = _pyarrow()
    if name.lower().endswith(".parquet"):
        import pyarrow.parquet as pq  # noqa: PLC0415 - optional

        return pq.read_schema(stream)
    try:
        return pa.ipc.open_file(stream).schema
    except pa.ArrowInvalid:  # a stream, as `datasets` saves it, or no Arrow file at all: the reader of tables knows
        return None


def _rows(files: _Files, name: str, columns: list[str]) -> Iterator[Any]:
    """Yield record batches of one file; row groups are read one at a time."""
    pa = _pyarrow()
    with parsing(name, "cannot be read", "write it again"), files.open(name) as stream:
        if name.lower().endswith(".parquet"):
            import pyarrow.parquet as pq  # noqa: PLC0415 - optional

            yield from pq.ParquetFile(stream).iter_batches(_ROWS, columns=columns)
        else:
            reader = pa.ipc.open_file(stream)
            for k in range(reader.num_record_batches):
                yield reader.get_batch(k).select(columns)


def _count(files: _Files, columns: list[str]) -> int:
    count = 0
    for name in files.names:
        with parsing(name, "cannot be read", "write it again"), files.open(name) as stream:
            schema = _schema(stream, name)
            missing = [column for column in columns if column not in schema.names]
            if missing:
                raise DataError(f"{name}: has no column {missing[0]!r}, which {files.names[0]} has; remove one of them")
            if _writer(schema) != _writer(files.schema):
                raise DataError(f"{name}: was written for another model than {files.names[0]}; keep them apart")
            if name.lower().endswith(".parquet"):
                import pyarrow.parquet as pq  # noqa: PLC0415 - optional

                count += pq.ParquetFile(stream).metadata.num_rows
            else:
                reader = _pyarrow().ipc.open_file(stream)
                count += sum(reader.get_batch(k).num_rows for k in range(reader.num_record_batches))
    return count


def _read(files: _Files, kind: Kind, label: str, where: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the values (N, n) and labels (N,) in the order of the files."""
    columns = [kind, label]
    count = _count(files, columns)
    values: NDArray[Any] | None = None
    labels = []
    start = 0
    for name in files.names:
        for batch in _rows(files, name, columns):
            part = _matrix(batch.column(kind), f"{name}: column {kind!r}")
            if values is None:
                values = _room((count, part.shape[1]), part.dtype)
            if part.shape[1] != values.shape[1]:
                raise DataError(
                    f"{name}: {kind} of {part.shape[1]} numbers, {values.shape[1]} in the rows before; write all for "
                    "one model"
                )
            if batch.column(label).null_count:
                raise DataError(f"{name}: column {label!r} has rows without a label; leave them out")
            values[start : start + len(part)] = part
            _release(values)
            labels.append(batch.column(label).to_numpy(zero_copy_only=False))
            start += len(part)
    if values is None:
        raise DataError(f"{where}: has no rows")
    return values, np.concatenate(labels)


def _matrix(column: Any, where: str) -> NDArray[Any]:
    """Return lists of one length as (B, n)."""
    flat = column.flatten()
    if column.null_count or flat.null_count:
        raise DataError(f"{where} has empty values; leave these rows out")
    width, rest = divmod(len(flat), len(column)) if len(column) else (0, 0)
    lengths = column.value_lengths().to_numpy(zero_copy_only=False) if hasattr(column, "value_lengths") else None
    if rest or (lengths is not None and np.any(lengths != width)):
        raise DataError(f"{where} has lists of different lengths; expected one number for each feature")
    return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(len(column), width)


def _sorted(values: NDArray[Any], labels: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Return the rows in the order of their digests and labels, and that order."""
    digests = np.empty(len(values), [("low", "<u8"), ("high", "<u8")])
    raw = digests.data.cast("B")
    size = values.dtype.itemsize * values.shape[1]
    for start in range(0, len(values), _GATHERED):
        block = np.ascontiguousarray(values[start : start + _GATHERED]).data.cast("B")
        digested = b"".join(
            hashlib.blake2b(block[place : place + size], digest_size=_DIGEST).digest()
            for place in range(0, len(block), size)
        )
        raw[start * _DIGEST : start * _DIGEST + len(digested)] = digested
        _release(values)
    order = np.lexsort((labels, digests["low"], digests["high"]))
    ordered = _room(values.shape, values.dtype)
    for start in range(0, len(values), _GATHERED):
        rows = order[start : start + _GATHERED]
        ordered[start : start + len(rows)] = values[rows]
        _release(values)
        _release(ordered)
    return ordered, order


def _room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array to be filled: in memory, or mapped from a temporary file where it is large.

    Raises:
        UsageError: there is no room for the file.
    """
    size = math.prod(shape) * dtype.itemsize
    if size <= _IN_MEMORY:
        return np.empty(shape, dtype)
    try:
        with tempfile.TemporaryFile(prefix="tna-onnx-") as file:
            file.truncate(size)
            return np.memmap(file, dtype, "r+", shape=shape)  # the map outlives the handle
    except OSError as error:
        raise UsageError(
            f"{tempfile.gettempdir()}: no room for {size:,} bytes of features ({error.strerror}); set TMPDIR to a "
            "larger disk"
        ) from error


def _release(array: NDArray[Any]) -> None:
    """Give the pages of a mapped array back to the system; reading them again brings them back."""
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)
