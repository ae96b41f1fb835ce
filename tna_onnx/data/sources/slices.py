"""Samples in slices: each is read by itself, in this process or a task of Ray Data, as Arrow tables of what the model
reads.

`key` tells samples apart whatever their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.choices import BESIDE, STORED
from tna_onnx.data.labels import named_labels
from tna_onnx.data.options import Data, FeatureFields, Request
from tna_onnx.data.sample_info import columns_beside
from tna_onnx.data.source import IntArray, Source
from tna_onnx.data.sources import table_inputs, tables
from tna_onnx.data.sources.arrays import check_arrays
from tna_onnx.data.sources.image_files import FolderImages, ImageSource
from tna_onnx.data.sources.tables import TableFiles, arrow_column, load_pyarrow
from tna_onnx.errors import UsageError
from tna_onnx.files import is_url

KEY = "key"
LABEL = "label"

_ROWS = 256  # of a source that are read at a time
_IMAGES = 1024  # of one slice, at least
_SLICES = 4096  # of images, at most: the driver keeps a record of each
_SPLIT = 256  # files up to which the row groups of each are counted, so that one file can be read by several tasks


@dataclass(frozen=True, eq=False)
class TableSlice:
    """Rows of one table file."""

    files: TableFiles = field(repr=False)  # how it is opened
    name: str  # of the file
    columns: tuple[str, ...]  # what the model reads
    label: str  # column of the labels
    groups: tuple[int, int] | None = None  # row groups of a Parquet file, from and to; None for all
    first: int = 0  # row of the file that the slice starts with
    rows: IntArray | None = field(default=None, repr=False)  # rows of the file that are taken, sorted; None for all
    count: int = 0  # of samples; 0 where it is not known
    # column of what belongs to a sample beside inputs and label, by its role: `group`, `weight`
    sample_info: Mapping[str, str] = field(default_factory=dict)
    label_names: Sequence[str] = ()  # of the classes that labels number in another order than the model

    def __len__(self) -> int:
        """Return the number of samples; 0 where it is not known."""
        return self.count

    def tables(self) -> Iterator[Any]:
        """Yield Arrow tables of the columns that the model reads, `label`, `key`, and what else belongs to a sample."""
        pa = load_pyarrow()
        read = {*self.columns, *self.sample_info.values()}
        passed = [name for name in (KEY, *STORED) if name in self.files.schema.names and name not in read]
        names = list(dict.fromkeys([*self.columns, self.label, *passed, *self.sample_info.values()]))
        start = self.first
        for batch in self.files.batches(self.name, names, self.groups):
            stop = start + len(batch)
            rows = np.arange(start, stop)
            if self.rows is not None:
                rows = self.rows[np.searchsorted(self.rows, start) : np.searchsorted(self.rows, stop)]
                batch = batch.take(pa.array(rows - start))  # noqa: PLW2901 - the rows of the batch that count
            start = stop
            if not len(batch):
                continue
            columns = {input_column(name): batch.column(name) for name in self.columns}
            columns |= {name: batch.column(name) for name in passed}
            columns[LABEL] = batch.column(self.label)
            if self.label_names:
                columns[LABEL] = pa.array(_labels_of(batch, self.label, self.label_names))
            columns |= {role: batch.column(column) for role, column in self.sample_info.items()}
            if KEY not in columns:
                file = self.name.rpartition("/")[2]
                columns[KEY] = pa.array([f"{file}:{row}" for row in rows.tolist()])
            yield pa.table(columns)


@dataclass(frozen=True, eq=False)
class SourceSlice:
    """Rows of a source; those of image files alone can be pickled."""

    source: Source = field(repr=False)  # with the samples
    rows: IntArray = field(repr=False)  # of the source

    def __len__(self) -> int:
        return len(self.rows)

    def tables(self) -> Iterator[Any]:
        """Yield Arrow tables: inputs as tensors of one shape."""
        pa = load_pyarrow()
        start = 0
        for batch in self.source.batches(_ROWS, self.rows):
            count = len(next(iter(batch.values())))
            rows = self.rows[start : start + count]
            start += count
            columns = {input_column(name): arrow_column(values) for name, values in batch.items()}
            columns |= {role: pa.array(values[rows]) for role, values in self.source.sample_info.items()}
            labels = pa.array(self.source.labels[rows])
            yield pa.table({**columns, LABEL: labels, KEY: pa.array([self._key(row) for row in rows.tolist()])})

    def _key(self, row: int) -> str:
        source = self.source
        if isinstance(source, ImageSource) and isinstance(source.files, FolderImages):
            return source.files.names[int(source.rows[row])]
        return str(row)


Slice: TypeAlias = TableSlice | SourceSlice
"""Some of the samples."""


def input_column(name: str) -> str:
    """Return the column of tables that holds a column that the model reads: apart from labels, keys, groups and so on.

    >>> input_column("age"), input_column("weight")
    ('age', "input 'weight'")
    """
    if name in (LABEL, KEY, *BESIDE):
        return f"input {name!r}"
    return name


def image_slices(source: Source, rows: IntArray) -> list[SourceSlice] | None:
    """Cut rows of image files: each slice holds the names of its own alone. None for other samples."""
    if not isinstance(source, ImageSource) or not isinstance(source.files, FolderImages):
        return None
    size = max(_IMAGES, -(-len(rows) // _SLICES))
    slices = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        files = replace(source.files, names=tuple(source.files.names[row] for row in source.rows[part].tolist()))
        numbers = np.arange(len(part))
        sample_info = {role: values[part] for role, values in source.sample_info.items()}
        part_source = replace(source, files=files, rows=numbers, labels=source.labels[part], sample_info=sample_info)
        slices.append(SourceSlice(part_source, numbers))
    return slices


def plain_tables(data: Data) -> TableFiles | None:
    """Return table files that are read as they are, row by row; None for other data."""
    if data.labels is not None or data.tokenizer is not None or data.skip_bad:
        return None
    if not isinstance(data.samples, (str, Path)):
        return None
    place = str(data.samples)
    if not is_url(place):  # a task of an engine has another working directory
        place = str(Path(place).absolute())
    return tables.find_table_files(place)


def table_slices(
    files: TableFiles, request: Request, fields: FeatureFields
) -> tuple[list[TableSlice], tuple[str, ...], bool]:
    """Choose rows of table files, and cut them.

    Gives the slices, the columns of their tables that the model reads, and whether these hold images.
    """
    where = str(request.samples)
    names = files.schema.names
    inputs = {spec.name for spec in request.inputs}
    computed = {"features", "logits"} & {*names}
    if computed and not computed & inputs:
        raise UsageError(f"{where}: holds computed features or logits already")
    table = tables.table_of(files, where, request)
    label = str(table_inputs.label_of(table, request))  # labels that are given apart are refused before
    image_name = tables.image_column(table, request, label)
    if image_name is not None:
        columns = [image_name]
    else:
        check_arrays(request, where)
        by_input, _ = table_inputs.lay_out(where, table.kinds, request, label)
        columns = [*dict.fromkeys(name for spec in request.inputs for name in by_input[spec.name])]
    rows = None
    if fields.max_samples is not None:
        labels = _table_labels(files, label) if fields.stratify else None
        count = sum(sum(files.row_groups(name)) for name in files.names)
        rows = chosen_rows(count, labels, fields.max_samples)
    sample_info = _columns_beside(request, files, where)
    names_of_classes = tables.label_names(files.schema, label, where, request) or ()
    all_rows = TableSlice(files, "", tuple(columns), label, sample_info=sample_info, label_names=names_of_classes)
    return _cut(all_rows, rows), tuple(map(input_column, columns)), image_name is not None


def _columns_beside(request: Request, files: TableFiles, where: str) -> dict[str, str]:
    """Return the columns of groups and weights, by their role."""
    columns_beside(request, where, files.schema.names)
    for role, column in request.sample_info.items():
        if not isinstance(column, str):
            noun, flag = BESIDE[role]
            raise UsageError(f"{where}: {noun} of table files are a column of them; name it with {flag}")
    return dict(request.sample_info)


def _cut(all_rows: TableSlice, rows: IntArray | None) -> list[TableSlice]:
    """Cut all table files: a slice for each, or for each row group where there are few files.

    `rows`: samples that are taken, counted over all files in their order; None for all.
    """
    files = all_rows.files
    slices = []
    start = 0
    counted = rows is not None or len(files.names) <= _SPLIT
    for name in files.names:
        groups = [0]
        if counted:
            groups = files.row_groups(name)
        first = 0
        for number, size in enumerate(groups):
            selected = None
            count = size
            if rows is not None:
                low, high = np.searchsorted(rows, [start + first, start + first + size])
                selected = rows[low:high] - start
                count = len(selected)
            one = None
            if len(groups) > 1:
                one = (number, number + 1)
            if count or not counted:
                slices.append(replace(all_rows, name=name, groups=one, first=first, rows=selected, count=count))
            first += size
        start += first
    return slices


def _table_labels(files: TableFiles, label: str) -> NDArray[Any]:
    """Return the labels of all rows of table files, in their order: this column alone is read."""
    parts = [_labels_of(batch, label, ()) for name in files.names for batch in files.batches(name, [label])]
    labels = np.concatenate(parts or [np.zeros(0)])
    if labels.dtype == object:  # lists, or texts with empty cells, have no order
        return np.array([str(cell) for cell in labels])
    return labels


def _labels_of(batch: Any, label: str, label_names: Sequence[str]) -> NDArray[Any]:
    labels: NDArray[Any] = batch.column(label).to_numpy(zero_copy_only=False)
    if label_names:
        return named_labels(labels, label_names, f"column {label!r}")
    return labels


def chosen_rows(count: int, labels: NDArray[Any] | None, size: int, seed: int = 0) -> IntArray:
    """Choose samples at random, sorted by their place.

    `labels`: (N,), to keep the share of each class, and at least one sample of each; None for a plain draw. `size`:
    samples to choose; with shares that are rounded up, a few more.
    """
    rng = np.random.default_rng(seed)
    if size >= count:
        return np.arange(count)
    if labels is None:
        return np.sort(rng.choice(count, size, replace=False))
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = rng.permutation(count)
    order = order[np.argsort(classes[order], kind="stable")]  # by class, at random within it
    starts = np.cumsum(counts) - counts
    sizes = np.maximum(1, np.round(counts * (size / count)).astype(np.int64))
    return np.sort(np.concatenate([order[start : start + n] for start, n in zip(starts, sizes, strict=True)]))
