"""Samples, features or logits as arrays: one per model input, in memory or memory-mapped (`ArraySource`).

A dtype is only widened within its kind: other casts would hide missing preprocessing. `stack` places columns of single
numbers side by side; these are converted unless that would lose more than the last digits of a fraction.

Named arrays come from a `.npz` archive or a mapping; nothing is ever unpickled. `features` (N, n), before the head, or
`logits` (N, C) need neither samples nor a session; features come first.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.choices import IGNORED, Limits
from tna_onnx.data.digest import arrays_sha256, row_digests, stream_sha256
from tna_onnx.data.foreign import any_array, claimed_bytes, open_foreign, parsing
from tna_onnx.data.images.decode import read_ahead
from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.data.labelfile import labels_apart
from tna_onnx.data.labels import class_indices
from tna_onnx.data.mapped import release
from tna_onnx.data.options import Request
from tna_onnx.data.sample_info import columns_beside, values_beside
from tna_onnx.data.several import marked_labels, placed_labels, refuse_copies
from tna_onnx.data.source import NO_LABELS, AnyArray, Batch, InputSpec, IntArray, classes_text, shape_text, split_rows
from tna_onnx.errors import DataError, NoLabels, UsageError, listed

LABELS = "labels"
_HASHED = 1 << 20  # bytes of samples that are read at a time for their digests
_KINDS = ("b", "iu", "f", "c")  # dtype kinds within which a safe cast only widens
_LABEL_SYNONYMS = ("label", "y", "target", "targets")  # what people call them, where nothing is called "labels"

Kind: TypeAlias = Literal["features", "logits"]


@dataclass(frozen=True, eq=False)
class ArraySource:
    """Samples in columns; made by `open_columns`."""

    title: str  # what reports call it, e.g. "arrays calib.npz"
    where: str  # what messages start with, the path of the data
    noun: str  # what messages call a column, e.g. "array"
    inputs: tuple[InputSpec, ...]  # the model's inputs
    columns: Mapping[str, AnyArray] = field(repr=False)  # input name -> its values
    labels: IntArray = field(repr=False)  # class indices (N,)
    hashed: Callable[[], str] = field(repr=False)  # computes the digest
    notes: tuple[str, ...] = ()  # what reports say about how the columns were taken
    # labels by position, (N, P...), or by label, (N, C), where a sample has several; `labels` then only tell samples
    # apart
    placed: IntArray | None = field(default=None, repr=False)
    # what belongs to each sample beside inputs and labels, by its role: `group` -> texts (N,)
    sample_info: Mapping[str, AnyArray] = field(default_factory=dict, repr=False)
    # what was done to the samples where they were read; None for values that are used as they are
    preprocessing: dict[str, object] | None = None

    sample_form: ClassVar[str] = "values of the model's inputs"

    def __len__(self) -> int:
        return len(self.labels)

    def describe(self) -> str:
        return f"{self.title} ({len(self):,} samples{classes_text(self.labels)})"

    def recipe(self) -> dict[str, object] | None:
        return self.preprocessing

    def batches(self, size: int, rows: IntArray | None = None) -> Iterator[Batch]:
        """Yield input name -> array (B, ...) in the input's dtype; see `Source.batches`."""
        # A batch is one item: rows come out of a column together, and disks gain nothing from more threads.
        picks = [[pick] for pick in split_rows(len(self), size, rows)]
        return read_ahead(picks, self._batch, lambda _, parts: parts[0], workers=1)

    def digest(self) -> str:
        """Return SHA-256 (hex) of the contents, which are read for it once."""
        return self.hashed()

    def sample_digests(self) -> NDArray[np.uint64]:
        """Return 64 bits for each sample, (N,): equal for equal values of all inputs, in the inputs' dtypes."""
        return self._sample_digests

    @cached_property
    def _sample_digests(self) -> NDArray[np.uint64]:
        a_row = sum(math.prod(self.columns[spec.name].shape[1:]) * spec.dtype.itemsize for spec in self.inputs)
        parts = [row_digests(batch) for batch in self.batches(max(1, _HASHED // max(1, a_row)))]
        return np.concatenate(parts)

    def _batch(self, pick: IntArray) -> Batch:
        return {spec.name: self._take(spec, pick) for spec in self.inputs}

    def _take(self, spec: InputSpec, pick: IntArray) -> AnyArray:
        column = self.columns[spec.name]
        part = column[pick]
        release(column, slice(int(pick.min()), int(pick.max()) + 1))
        # One NaN would make every sum over the samples NaN, far from the row that holds it.
        if part.dtype.kind in "fc":
            finite = np.isfinite(part).all(axis=tuple(range(1, part.ndim)))
            if not finite.all():
                row = pick[np.argmin(finite)]
                raise DataError(
                    f"{self.where}: {self.noun} {spec.name!r} must be finite, but row {row} holds NaN or infinity; "
                    "remove or repair that sample"
                )
        part = np.ascontiguousarray(part, dtype=spec.dtype)
        if part.dtype == object:
            require_text(f"{self.where}: {self.noun} {spec.name!r}", part, pick)
        return part


def open_columns(
    title: str,
    where: str,
    request: Request,
    columns: Mapping[str, AnyArray],
    stored_labels: AnyArray | None,
    *,
    hashed: Callable[[IntArray], str] | None = None,
    noun: str = "array",
    label: str | None = None,
    notes: tuple[str, ...] = (),
    sample_info: Mapping[str, AnyArray] | None = None,
) -> ArraySource:
    """Check columns and labels against the model and return them as a source.

    `stored_labels`: class indices or names, one per sample; None where the request has them apart. `hashed`: computes
    the digest, given the class indices; by default from the values. `label`: what the column with the labels is called;
    None is "labels".
    """
    inputs = tuple(request.inputs)
    labels = labels_apart(request, stored_labels)
    # All of this is known before the first batch, so that a run does not fail after an hour.
    for spec in inputs:
        check_column(columns[spec.name], spec, f"{where}: {noun} {spec.name!r}")
    lengths = {spec.name: columns[spec.name].shape[0] for spec in inputs}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise DataError(
            f"{where}: every {noun} must have one row per sample, but {counts}; store the same samples in each"
        )
    labels_where = request.labels_where(f"{where}: {noun} {label or LABELS!r}")
    n_samples = lengths[inputs[0].name]
    placed = None
    if request.multi_label and labels is not NO_LABELS:
        indices, placed = marked_labels(labels, n_samples, request.n_classes, labels_where)
    elif request.several:
        no_label = IGNORED if request.ignore_label is None else request.ignore_label
        indices, placed = placed_labels(np.asarray(labels), n_samples, request.n_classes, labels_where, no_label)
        refuse_copies(placed, {spec.name: columns[spec.name] for spec in inputs}, labels_where)
    else:
        indices = class_indices(request, labels, n_samples, labels_where)
    values = values_beside(request, where, sample_info or {}, indices)
    hashed = hashed or functools.partial(arrays_sha256, columns)
    digest = functools.cache(functools.partial(hashed, indices))
    return ArraySource(title, where, noun, inputs, columns, indices, digest, notes, placed, values)


def check_arrays(request: Request, where: str) -> None:
    """Check that samples stored as arrays can be used."""
    if request.preprocessing not in (None, Recipe()):  # a recipe of defaults asks for nothing
        raise UsageError(
            f"{where}: preprocessing applies to images only; stored arrays are used as they are, leave it out"
        )
    if not request.inputs:
        raise DataError(f"{where}: the model has no inputs, so it cannot run on samples; check the model file")


def check_names(
    where: str, names: Sequence[str], inputs: Sequence[InputSpec], *, need_labels: bool = True, label: str = LABELS
) -> None:
    """Check that every input and the labels have an array of that name."""
    input_names = [spec.name for spec in inputs]
    if LABELS in input_names:
        raise DataError(
            f"{where}: the model has an input called {LABELS!r}, which in the data is the name of the class labels; "
            "rename that input in the model"
        )
    stored = listed(names) or "none"
    missing = [name for name in input_names if name not in names]
    if missing:
        candidates = [name for name in names if name != LABELS]
        advice = "name the arrays after the model's inputs"
        if "arr_0" in names:
            advice += f": numpy.savez(file, {', '.join(f'{name}=...' for name in input_names)}, {LABELS}=...)"
        if len(input_names) == 1 and len(candidates) == 1:
            advice = f"if {candidates[0]!r} is that input, store it in the model's shape and dtype"
        raise DataError(
            f"{where}: no array for the model's input {listed(missing)}; the model wants {listed(input_names)}, the "
            f"file has {stored}; {advice}"
        )
    if need_labels and label not in names:
        # what else is stored may be the labels under another name
        error = DataError
        if set(names) <= set(input_names):
            error = NoLabels
        raise error(
            f"{where}: no array {label!r}; the file has {stored}; add the class index of each sample as {label!r}, or "
            "say with --label-column which array it is"
        )


def check_column(column: AnyArray, spec: InputSpec, where: str) -> None:
    """Refuse a column whose shape or dtype the model does not take."""
    if not spec.shape:
        raise DataError(
            f"{where}: the model does not say which shape its input {spec.name!r} has; export it again with shapes of "
            "its inputs, samples along axis 0"
        )
    fits = column.ndim == len(spec.shape) and all(
        expected in (None, length) for expected, length in zip(spec.shape[1:], column.shape[1:], strict=True)
    )
    if not fits:
        raise DataError(
            f"{where}: expected shape {shape_text(spec.shape)}, found {column.shape}; store the samples along axis 0, "
            "each with the shape that the model takes"
        )
    # NumPy also calls int16 -> float32 safe. The values survive, but they are pixels or codes, not model inputs.
    stored, target = column.dtype, spec.dtype
    same_kind = any(stored.kind in kind and target.kind in kind for kind in _KINDS)
    widens = stored == target or (same_kind and np.can_cast(stored, target, "safe"))
    if target.kind == "O":
        widens = stored.kind in "OU"
    if not widens:
        raise DataError(
            f"{where}: expected dtype {target}, found {stored}; preprocess the samples as for the model and store them "
            f"with .astype({target.name!r})"
        )


def require_text(where: str, values: AnyArray, rows: IntArray) -> None:
    """Refuse cells of an input of text, (B, ...), that hold something else."""
    width = max(1, values.size // max(1, len(values)))
    for place, cell in enumerate(values.ravel().tolist()):
        if not isinstance(cell, str):
            raise DataError(
                f"{where}: expected text, found {cell!r} in row {rows[place // width]} (None and nan are empty cells); "
                "store it as it was in training, or remove the row"
            )


def stack(where: str, spec: InputSpec, columns: Mapping[str, AnyArray], start: int = 0) -> AnyArray:
    """Put columns (B,) of numbers or text, from row `start` on, side by side for an input of one axis or two."""
    n_rows = len(next(iter(columns.values())))
    values = np.empty((n_rows, len(columns)), spec.dtype)
    for place, (name, column) in enumerate(columns.items()):
        values[:, place] = _converted(f"{where}: column {name!r}", column, spec.dtype, start)
    if len(spec.shape) == 1:
        return values.reshape(n_rows)
    return values


def _converted(where: str, column: AnyArray, dtype: np.dtype[Any], start: int) -> AnyArray:
    """Return a column in the dtype of the model's input, which has to hold its values."""
    if dtype.kind == "O":
        converted = column.astype(str if column.dtype.kind in "iu" else object).astype(object)
        require_text(where, converted, np.arange(start, start + len(column)))
        return converted
    with np.errstate(over="ignore", invalid="ignore"):
        converted = column.astype(dtype)
    expected = f"a whole number of {dtype}"
    wrong = converted != column  # NaN differs from everything
    if dtype.kind == "f":
        expected = f"a finite number of {dtype}"
        wrong = ~np.isfinite(converted)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise DataError(
            f"{where}: expected {expected}, found {column[at]} in row {start + at} (NaN is an empty cell); fill it as "
            "for the training, or remove the row"
        )
    return converted


# ---- arrays by name


@dataclass(frozen=True, eq=False)
class StoredArrays:
    """Arrays by name, of a mapping or of an open archive."""

    where: str  # what messages start with
    title: str  # what reports call the file
    names: list[str]  # of all arrays
    column: Callable[[str], AnyArray]  # returns an array, rows along axis 0
    digest: Callable[[Sequence[str], IntArray], str]  # of arrays, by their names, and the class indices


@contextlib.contextmanager
def open_npz(path: Path, limits: Limits) -> Iterator[StoredArrays]:
    """Open a `.npz` file for a block. Its digest is that of the file that was read, even if another takes its place."""
    where = str(path)
    with contextlib.ExitStack() as stack:
        archive = None
        with parsing(where, "cannot be read", "write it again with numpy.savez"):
            stream = stack.enter_context(open_foreign(path))
            # Checked before NumPy opens it: of other files NumPy reads any length, and its message is about pickles.
            if zipfile.is_zipfile(stream):
                stream.seek(0)
                archive = np.load(stream, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            problem = "expected a .npz file, found something else or a broken one; write it with numpy.savez"
            raise DataError(f"{where}: {problem}")
        free = limits.expanded_bytes(os.fstat(stream.fileno()).st_size)  # bytes that further arrays may take

        @functools.cache
        def sha256() -> str:
            stream.seek(0)
            return stream_sha256(stream).hex()

        @functools.cache
        def column(name: str) -> AnyArray:
            nonlocal free
            sha256()
            values = _read_array(archive, name, where, free)
            free -= values.nbytes
            return values

        yield StoredArrays(where, path.name, archive.files, column, lambda names, labels: sha256())  # noqa: ARG005


def _read_array(archive: Any, name: str, where: str, max_bytes: int) -> AnyArray:
    """Read an array of an archive of NumPy, of `max_bytes` at most."""
    problem = f"array {name!r} cannot be read"
    member = name if name in archive.zip.namelist() else f"{name}.npy"
    advice = (
        "expected a plain array, objects are never unpickled; store numbers with a numeric dtype, and names of classes "
        "with np.array(names, dtype=str)"
    )
    with parsing(where, problem, advice):
        with archive.zip.open(member) as stream:
            claimed = claimed_bytes(stream, archive.zip.getinfo(member).file_size)
        if claimed > max_bytes:
            raise DataError(
                f"{where}: its arrays take more bytes than a file of its size may expand to; if that is right, raise "
                "--limit expansion=NUMBER"
            )
        values: AnyArray = archive[name]
        return values


def _of_mapping(where: str, data: Mapping[str, Any]) -> StoredArrays:
    values = {str(name): array for name, array in data.items()}

    def column(name: str) -> AnyArray:
        return any_array(values[name])

    def digest(names: Sequence[str], labels: IntArray) -> str:
        return arrays_sha256({name: column(name) for name in names}, labels)

    return StoredArrays(where, "", [*values], column, digest)


def open_arrays(path: Path, request: Request) -> ArraySource:
    """Load the arrays for the model's inputs and the labels from the `.npz` file `path`."""
    check_arrays(request, str(path))
    with open_npz(path, request.limits) as stored:
        return _open_stored(stored, request)


def open_mapping(data: Mapping[str, Any], request: Request, title: str = "arrays") -> ArraySource:
    """Open a mapping of input name to an array of all samples; see `open_arrays`."""
    check_arrays(request, title)
    return _open_stored(_of_mapping(title, data), request, title)


def _open_stored(stored: StoredArrays, request: Request, title: str | None = None) -> ArraySource:
    """Take arrays as the inputs of the model, its labels, and what is read beside them; reports say `title`."""
    where = stored.where
    label = labels_name(stored.names, request)
    in_data = request.labels is None
    sample_info = {name: stored.column(name) for name in columns_beside(request, where, stored.names)}
    arrays = {spec.name: spec.name for spec in request.inputs}  # input -> array
    notes: list[str] = []
    if (only := _only_array(stored, request, {label, LABELS, *sample_info})) is not None:
        arrays = {request.inputs[0].name: only}
        notes.append(f"{stored.title}: the input {request.inputs[0].name!r} is the array {only!r}")
    inputs = [replace(spec, name=arrays[spec.name]) for spec in request.inputs]
    check_names(where, stored.names, inputs, need_labels=in_data, label=label)
    columns = {name: stored.column(array) for name, array in arrays.items()}
    labels = stored.column(label) if in_data else None
    if in_data and label not in (LABELS, request.label_column):
        notes.append(f"{stored.title}: the labels are the array {label!r}")
    return open_columns(
        title or f"arrays {stored.title}",
        where,
        request,
        columns,
        labels,
        hashed=lambda indices: stored.digest([*arrays.values()], indices),
        label=label,
        notes=tuple(notes),
        sample_info=sample_info,
    )


def _only_array(stored: StoredArrays, request: Request, no_inputs: set[str]) -> str | None:
    """Return the only array that can be the model's only input, under another name and of its shape and dtype."""
    names = [name for name in stored.names if name not in no_inputs]
    if len(request.inputs) != 1 or len(names) != 1 or request.inputs[0].name in stored.names:
        return None
    with contextlib.suppress(DataError):
        check_column(stored.column(names[0]), request.inputs[0], stored.where)
        return names[0]
    return None


def labels_name(names: list[str], request: Request) -> str:
    """Return the name of the labels: the one that the user states, else "labels", else the only synonym there is."""
    if request.label_column is not None:
        return request.label_column
    inputs = [spec.name for spec in request.inputs]
    candidates = [name for name in _LABEL_SYNONYMS if name in names and name not in inputs]
    if LABELS in names or len(candidates) != 1:
        return LABELS
    return candidates[0]


@dataclass(frozen=True, eq=False)
class Precomputed:
    """Features or logits of N samples."""

    kind: Kind  # which of the two
    source: ArraySource  # the values and labels
    # of files, what `FeatureExtractor.describe` said of them; None where nothing is said
    writer: dict[str, Any] | None = None

    @property
    def values(self) -> AnyArray:
        """Features (N, n) or logits (N, C), mapped where they lie in a file of their own."""
        return self.source.columns[self.kind]

    @property
    def labels(self) -> IntArray:
        """Class indices (N,); of several labels a sample, 0 or 1 for each, (N, C)."""
        if self.source.placed is None:
            return self.source.labels
        return self.source.placed


def open_precomputed(data: Any, request: Request) -> Precomputed | None:
    """Open features or logits; return None if `data` are something else, or hold an input of the model.

    `data`: `.npz` file or mapping of arrays.
    """
    with stored_arrays(data, request.limits) as stored:
        if stored is None:
            return None
        # In the order of `Kind`, features come first: logits follow from them, and only they allow a search.
        kind = next((kind for kind in get_args(Kind) if kind in stored.names), None)
        # a model may have an input called "features"
        if kind is None or any(spec.name in stored.names for spec in request.inputs):
            return None
        values = stored.column(kind)
        _check_values(values, kind, request, stored.where)
        # The values themselves are the only input, so the checks of stored arrays apply to them.
        request = replace(request, inputs=[InputSpec(kind, (None, values.shape[1]), values.dtype)], preprocessing=None)
        return Precomputed(kind, _open_stored(stored, request, f"{kind} {stored.title}".strip()))


@contextlib.contextmanager
def stored_arrays(data: Any, limits: Limits) -> Iterator[StoredArrays | None]:
    """Open the arrays of a mapping or a `.npz` file for a block; None of something else."""
    if isinstance(data, Mapping):
        yield _of_mapping("arrays", data)
        return
    if isinstance(data, (str, Path)) and Path(data).suffix.lower() == ".npz" and Path(data).is_file():
        with open_npz(Path(data), limits) as stored:
            yield stored
    else:
        yield None


def _check_values(values: AnyArray, kind: Kind, request: Request, where: str) -> None:
    form = "(N, n), the vectors in front of the head"
    widths = values.shape[1:]
    if kind == "logits":
        form = f"(N, {request.n_classes}), one per class"
        # one column: the logit of a binary model's second class
        widths = (request.n_classes,) if request.multi_label else (request.n_classes, 1)
    if values.ndim != 2 or values.dtype.kind != "f" or values.shape[1] not in widths:
        raise DataError(
            f"{where}: {kind!r} must be floating-point {form}; found {values.shape} {values.dtype}. Store them as the "
            "model computes them"
        )
