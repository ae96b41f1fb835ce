"""Features, logits or probabilities in Parquet and Arrow files, as Ray Data, Spark, Dask and `features -o` leave them.

Engines write rows in any order, so they are sorted by a digest of their values, then by label; a part are the smallest
digests. `METADATA` is what `FeatureExtractor.describe` says.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.choices import DEFAULT_LIMITS, STORED
from tna_onnx.data.digest import arrays_sha256
from tna_onnx.data.foreign import file_system, foreign_json, reason
from tna_onnx.data.labelfile import find_label_column
from tna_onnx.data.mapped import GrowingRows, release, room
from tna_onnx.data.options import Data, Request
from tna_onnx.data.sample_info import columns_beside
from tna_onnx.data.source import InputSpec
from tna_onnx.data.sources import tables
from tna_onnx.data.sources.arrays import Kind, Precomputed, open_columns, stored_arrays
from tna_onnx.errors import DataError, UsageError, listed
from tna_onnx.files import is_url, local_path

METADATA = b"tna_onnx"
"""Key of the writer's metadata in the schema of a file: JSON."""

_KINDS: tuple[Kind, ...] = ("features", "logits")  # features first: logits follow from them
_FILE = 2**28  # bytes of values after which a new file is begun
_DIGESTED = 2**15  # rows whose digests are computed at a time
_DIGEST = 16  # bytes of a row's digest


def open_feature_files(data: Any, request: Request, at_most: int | None = None) -> Precomputed | None:
    """Read features or logits; None if `data` are something else, or hold an input of the model.

    `data`: a file, a folder of files or a pattern (`*`), local or behind a URL that fsspec reads. `at_most`: rows to
    keep; None for all.
    """
    files_and_kind = _files_and_kind(data, [spec.name for spec in request.inputs])
    if files_and_kind is None:
        return None
    files, kind = files_and_kind
    names = files.schema.names
    where = str(data)
    further = columns_beside(request, where, names)
    stored = [name for name in names if name not in (*_KINDS, *STORED, "key")]
    label = find_label_column(stored, request.label_column, where, sample_info=further)
    values, labels, columns = _read(files, kind, label, where, further)
    request = replace(request, inputs=[InputSpec(kind, (None, values.shape[1]), values.dtype)])
    title = f"{kind} {Path(where).name}"
    source = open_columns(title, where, request, {kind: values}, labels, sample_info=columns)
    order = _order(values, source.labels)
    rows = order[:at_most]
    ordered = _in_order(values, rows)
    notes = [f"column {name!r} is not used" for name in STORED if name in names and name not in further]
    if "group" in names and "group" not in further:
        notes[0] += "; --group-column group uses it"
    if len(order) > len(rows):
        notes.append(f"{len(rows):,} of {len(order):,} rows are used, a random sample")
    indices = source.labels[rows]
    source = replace(
        source,
        columns={kind: ordered},
        labels=indices,
        hashed=lambda: arrays_sha256({kind: ordered}, indices),
        notes=tuple(notes),
        sample_info={role: column[rows] for role, column in source.sample_info.items()},
    )
    return Precomputed(kind, source, _writer(files.schema))


def feature_kind(data: Any, inputs: Sequence[str]) -> Kind | None:
    """Return what table files hold, features or logits; None if a column is an input of the model, or it is neither."""
    files_and_kind = _files_and_kind(data, inputs)
    return files_and_kind and files_and_kind[1]


def _files_and_kind(data: Any, inputs: Sequence[str]) -> tuple[tables.TableFiles, Kind] | None:
    if not isinstance(data, (str, Path)):
        return None
    files = tables.find_table_files(local_path(str(data)))
    if files is None or not set(inputs).isdisjoint(files.schema.names):
        return None
    return next(((files, kind) for kind in _KINDS if kind in files.schema.names and _holds_vectors(files, kind)), None)


def features_table(kind: Kind, values: NDArray[Any], columns: Mapping[str, Any], writer: Mapping[str, Any]) -> Any:
    """Return an Arrow table of (B, n) values, as fixed-size lists, beside other columns."""
    table = tables.load_pyarrow().table({kind: tables.arrow_column(values), **columns})
    return table.replace_schema_metadata({METADATA: json.dumps(writer, sort_keys=True)})


class FeatureFolder:
    """A new folder of feature files, here or behind a URL; until it is finished it holds a mark, and is no data.

    Attributes:
        place: as the user named it.
        system: Arrow's file system.
        root: its path in that system.
    """

    def __init__(self, place: str | Path) -> None:
        """Make the folder."""
        tables.load_pyarrow()
        import pyarrow.fs as arrow_fs  # noqa: PLC0415 - optional

        self.place = local_path(str(place))
        self.system: Any = arrow_fs.LocalFileSystem()
        self.root = str(Path(self.place).absolute())
        self._remote: Any = None  # fsspec's; None for a folder here
        self._written: list[str] = []
        if is_url(self.place):
            self._remote, self.root = file_system(self.place)
            self.system = arrow_fs.PyFileSystem(arrow_fs.FSSpecHandler(self._remote))
        try:
            if self.system.get_file_info(arrow_fs.FileSelector(self.root, allow_not_found=True)):
                raise UsageError(f"{place}: holds files already; name a new folder, or delete this one")
            self.system.create_dir(self.root)
            self._open(tables.UNFINISHED).close()
        except OSError as error:
            raise UsageError(f"{place}: cannot be written ({reason(error)}); name another folder") from error

    def _open(self, name: str) -> Any:
        self._written.append(f"{self.root}/{name}")
        return self.system.open_output_stream(self._written[-1])

    def write(self, parts: Iterable[Any]) -> None:
        """Write tables (`features_table`), a new file after some hundred MB; of a run that fails, none here stay."""
        parquet = tables.load_parquet()
        try:
            with ExitStack() as stack:
                writer = None
                size = 0
                for table in parts:
                    if writer is None or size > _FILE:
                        stack.close()
                        stream = stack.enter_context(self._open(f"part-{len(self._written) - 1:05}.parquet"))
                        writer = stack.enter_context(parquet.ParquetWriter(stream, table.schema))
                        size = 0
                    writer.write_table(table)
                    size += table.nbytes
        except BaseException:
            if self._remote is None:
                for path in self._written:
                    Path(path).unlink(missing_ok=True)
            raise

    def finish(self) -> tuple[Kind, int, int, np.dtype[Any]]:
        """Remove the mark; return what the files hold: features or logits, samples N, numbers n, and their dtype."""
        self.system.delete_file(f"{self.root}/{tables.UNFINISHED}")
        if self._remote is not None:
            self._remote.invalidate_cache()
        files = tables.find_table_files(f"{self.place.rstrip('/')}/")
        if files is None:
            raise DataError(f"{self.place}: no sample was written; give data with samples")
        kind = next(kind for kind in _KINDS if kind in files.schema.names)
        lists = files.schema.field(kind).type
        # floating-point numbers of 16, 32 or 64 bits; pyarrow's own way to a dtype asks for pandas in older versions
        dtype = np.dtype(f"f{lists.value_type.bit_width // 8}")
        return kind, _count(files, [kind]), lists.list_size, dtype


def _holds_vectors(files: tables.TableFiles, column: str) -> bool:
    """Whether the cells of a column are lists of floating-point numbers."""
    pa = tables.load_pyarrow()
    kind = files.schema.field(column).type
    kind = getattr(kind, "storage_type", kind)  # of a tensor, as Ray Data writes it
    return tables.is_list(kind) and bool(pa.types.is_floating(kind.value_type))


def _writer(schema: Any) -> dict[str, Any] | None:
    text = (schema.metadata or {}).get(METADATA)
    if text is None:
        return None
    with suppress(ValueError):
        writer = foreign_json(text)
        if isinstance(writer, dict):
            return writer
    return None


def _count(files: tables.TableFiles, columns: list[str]) -> int:
    count = 0
    for name in files.names:
        schema = files.schema_of(name)
        missing = [column for column in columns if column not in schema.names]
        if missing:
            raise DataError(f"{name}: has no column {missing[0]!r}, which {files.names[0]} has; remove one of them")
        if _writer(schema) != _writer(files.schema):
            raise DataError(f"{name}: was written for another model than {files.names[0]}; keep them apart")
        count += sum(files.row_groups(name))
    return count


def _read(
    files: tables.TableFiles, kind: str, label: str, where: str, further: Sequence[str] = ()
) -> tuple[NDArray[Any], NDArray[Any], dict[str, NDArray[Any]]]:
    """Return the values (N, n), labels (N,) and further columns (N,) in the order of the files."""
    columns = [*dict.fromkeys([kind, label, *further])]
    _count(files, columns)
    values = GrowingRows(where)
    labels = []
    parts: dict[str, list[Any]] = {column: [] for column in further}
    for name in files.names:
        values.where = f"{name}: {kind}"
        for batch in files.batches(name, columns):
            place = f"{name}: column {kind!r} from row {values.rows:,} of all on"
            values.append(tables.column_numbers(batch.column(kind), place))
            if batch.column(label).null_count:
                raise DataError(f"{name}: column {label!r} has rows without a label; leave them out")
            # a copy, as arrays in the memory of a batch would keep all of it
            labels.append(batch.column(label).to_numpy(zero_copy_only=False).copy())
            for column in further:
                parts[column] += batch.column(column).to_pylist()
    if not labels:
        raise DataError(f"{where}: has no rows")
    further_cells = {column: np.array(cells, object) for column, cells in parts.items()}
    return values.array(), np.concatenate(labels), further_cells


def _order(values: NDArray[Any], labels: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the places of all rows in the order of their digests, and of labels where these are the same."""
    digests = np.empty(len(values), [("low", "<u8"), ("high", "<u8")])
    raw = digests.data.cast("B")
    size = values.dtype.itemsize * values.shape[1]
    for start in range(0, len(values), _DIGESTED):
        block = np.ascontiguousarray(values[start : start + _DIGESTED]).data.cast("B")
        digested = b"".join(
            hashlib.blake2b(block[place : place + size], digest_size=_DIGEST).digest()
            for place in range(0, len(block), size)
        )
        raw[start * _DIGEST : start * _DIGEST + len(digested)] = digested
        release(values, slice(None), stays=0)
    return np.lexsort((labels, digests["low"], digests["high"]))


def _in_order(values: NDArray[Any], order: NDArray[np.intp]) -> NDArray[Any]:
    """Return values[order], of all rows or of some, with few of them in memory at a time."""
    ordered = room((len(order), *values.shape[1:]), values.dtype)
    # read from front to end: the system maps 64 KB around each row that is read, and a page around one that is written
    by_place = np.argsort(order)
    for start in range(0, len(order), _DIGESTED):
        rows = by_place[start : start + _DIGESTED]
        ordered[rows] = values[order[rows]]
        release(values, slice(None), stays=0)
        release(ordered, slice(None), stays=0)
    return ordered


ScoresWord: TypeAlias = Literal["logits", "probabilities"]
_SCORES: tuple[ScoresWord, ...] = ("logits", "probabilities")


def open_scores(
    data: Data, kind: ScoresWord | None
) -> tuple[ScoresWord, NDArray[Any], NDArray[Any], dict[str, NDArray[Any]]]:
    """Return what scores are, their values (N, C) or (N,) of two classes, labels (N,) as stored, and groups and weights
    by their role.

    Rows of Parquet and Arrow files come in the order of their digests. `kind`: None takes what is there.
    """
    place = data.samples
    if not isinstance(place, (str, Path, Mapping)):
        raise UsageError(f"expected the path of a file, or a mapping of arrays, got {type(place).__name__}")
    files = None
    if not isinstance(place, Mapping):
        place = local_path(str(place))
        files = tables.find_table_files(place)
    if files is not None:
        where = str(place)
        scores, label = _score_columns(files.schema.names, kind, data, where)
        if not _holds_vectors(files, scores):
            raise DataError(f"{where}: column {scores!r} must hold lists of floating-point numbers, one for each class")
        values, labels, columns = _read(files, scores, label, where, [*data.sample_info.values()])
        order = _order(values, np.unique(labels, return_inverse=True)[1])
        further = {role: columns[column][order] for role, column in data.sample_info.items()}
        return scores, _in_order(values, order), labels[order], further
    if isinstance(place, str) and not is_url(place) and not Path(place).exists():
        raise UsageError(f"{place}: no such file or folder; give a file with logits or probabilities, and labels")
    with stored_arrays(place, DEFAULT_LIMITS) as stored:
        if stored is None:
            raise DataError(f"{place}: expected .npz, .parquet or .arrow with logits or probabilities, and labels")
        scores, label = _score_columns(stored.names, kind, data, stored.where)
        further = {role: stored.column(column) for role, column in data.sample_info.items()}
        return scores, stored.column(scores), stored.column(label), further


def _score_columns(names: Sequence[str], kind: ScoresWord | None, data: Data, where: str) -> tuple[ScoresWord, str]:
    """Return the columns of the scores and of the labels; those of groups and weights have to be there."""
    present = [name for name in ([kind] if kind else _SCORES) if name in names]
    if len(present) > 1:
        raise DataError(f"{where}: has both logits and probabilities; say which with --scores")
    if not present:
        found = listed(names) or "nothing"
        raise DataError(f"{where}: expected {kind or 'logits or probabilities'}, a row for each sample; found {found}")
    further = columns_beside(data, where, names)
    columns = [name for name in names if name not in _SCORES]
    return present[0], find_label_column(columns, data.label_column, where, sample_info=further)
