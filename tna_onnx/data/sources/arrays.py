"""Samples, features or logits as named arrays, in a `.npz` archive or a mapping. Nothing is ever unpickled.

`features` (N, n), before the head, or `logits` (N, C) need neither samples nor a session; features come first.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np

from tna_onnx.data.digest import arrays_sha256, stream_sha256
from tna_onnx.data.foreign import any_array, claimed_bytes, open_foreign, parsing
from tna_onnx.data.labelfile import labels_apart
from tna_onnx.data.sample_info import columns_beside
from tna_onnx.data.source import AnyArray, InputSpec, IntArray
from tna_onnx.data.sources.columns import LABELS, ArraySource, check_arrays, check_column, check_names, open_columns
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from tna_onnx.data.choices import Limits
    from tna_onnx.data.options import Request

_LABEL_SYNONYMS = ("label", "y", "target", "targets")  # what people call them, where nothing is called "labels"

Kind: TypeAlias = Literal["features", "logits"]


@dataclass(eq=False)
class NpzArrays:
    """Arrays of an open archive; made by `open_npz`."""

    where: str  # what messages start with: the path
    title: str  # what reports call the file
    names: list[str]  # of all arrays
    archive: Any = field(repr=False)  # NumPy's
    stream: Any = field(repr=False)  # the file that it reads
    max_bytes: int  # what its arrays may take
    _arrays: dict[str, AnyArray] = field(default_factory=dict, repr=False)
    _claimed: int = 0
    _sha256: str = ""

    def column(self, name: str) -> AnyArray:
        """Return an array, rows along axis 0; it is loaded once."""
        if name not in self._arrays:
            if not self._sha256:
                self.stream.seek(0)
                self._sha256 = stream_sha256(self.stream).hex()
            self._check_size(name)
            advice = "expected a plain array of numbers; store it again"
            with parsing(self.where, f"array {name!r} cannot be read", advice):
                array = self.archive[name]
            if not isinstance(array, np.ndarray):
                raise DataError(f"{self.where}: {name!r} is not a NumPy array; write the file with numpy.savez")
            self._arrays[name] = array
        return self._arrays[name]

    def digest(self, names: Sequence[str], labels: IntArray) -> str:  # noqa: ARG002 - all of the file counts
        """Return the SHA-256 of the file that was read, even if another one has taken its place."""
        return self._sha256

    def _check_size(self, name: str) -> None:
        archive = self.archive.zip
        member = name
        if name not in archive.namelist():
            member = f"{name}.npy"
        advice = (
            "expected a plain array, objects are never unpickled; store numbers with a numeric dtype, and names of "
            "classes with np.array(names, dtype=str)"
        )
        with parsing(self.where, f"array {name!r} cannot be read", advice), archive.open(member) as stream:
            self._claimed += claimed_bytes(stream, archive.getinfo(member).file_size)
        if self._claimed > self.max_bytes:
            raise DataError(
                f"{self.where}: its arrays take {self._claimed:,} bytes, more than {self.max_bytes:,}, which is what a "
                "file of its size may expand to; if that is right, raise --limit expansion=NUMBER"
            )


@contextlib.contextmanager
def open_npz(path: Path, limits: Limits) -> Iterator[NpzArrays]:
    """Open a `.npz` file for a block."""
    with contextlib.ExitStack() as stack:
        archive = None
        with parsing(str(path), "cannot be read", "write it again with numpy.savez"):
            stream = stack.enter_context(open_foreign(path))
            # Checked before NumPy opens it: of other files NumPy reads any length, and its message is about pickles.
            if zipfile.is_zipfile(stream):
                stream.seek(0)
                archive = np.load(stream, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            problem = "expected a .npz file, found something else or a broken one; write it with numpy.savez"
            raise DataError(f"{path}: {problem}")
        size = os.fstat(stream.fileno()).st_size
        yield NpzArrays(str(path), path.name, archive.files, archive, stream, limits.expanded_bytes(size))


@dataclass(eq=False)
class MappingArrays:
    """Arrays in memory, of NumPy or any library that gives such."""

    where: str  # what messages start with
    values: Mapping[str, Any] = field(repr=False)
    title: ClassVar[str] = ""

    @property
    def names(self) -> list[str]:
        """Names of all arrays."""
        return [*self.values]

    def column(self, name: str) -> AnyArray:
        """Return an array, rows along axis 0."""
        return any_array(self.values[name])

    def digest(self, names: Sequence[str], labels: IntArray) -> str:
        """Return the digest of the values."""
        return arrays_sha256({name: self.column(name) for name in names}, labels)


StoredArrays: TypeAlias = NpzArrays | MappingArrays
"""Arrays by name, as `column`, and their `digest` with labels."""


def open_arrays(path: Path, request: Request) -> ArraySource:
    """Load the arrays for the model's inputs and the labels from the `.npz` file `path`."""
    check_arrays(request, str(path))
    with open_npz(path, request.limits) as stored:
        return _open_stored(stored, request)


def open_mapping(data: Mapping[str, Any], request: Request, title: str = "arrays") -> ArraySource:
    """Open a mapping of input name to an array of all samples; see `open_arrays`."""
    check_arrays(request, title)
    return _open_stored(_of_mapping(title, data), request, title)


def _of_mapping(where: str, data: Mapping[str, Any]) -> MappingArrays:
    return MappingArrays(where, {str(name): values for name, values in data.items()})


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
    labels = labels_apart(request, stored.column(label) if in_data else None)
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


def _only_array(stored: StoredArrays, request: Request, others: set[str]) -> str | None:
    """Return the only array that can be the model's only input, under another name and of its shape and dtype."""
    names = [name for name in stored.names if name not in others]
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
