"""Samples from a `.npz` file: one array per model input, under the input's name, and one called `labels`.

Values are used as stored. A dtype is only ever widened without loss within its kind (float16 to float32, int32 to
int64): a cast across kinds hides missing preprocessing, and a narrowing one changes the samples, so both are refused.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.digest import stream_sha256
from tna_onnx.data.labels import check_labels
from tna_onnx.data.source import AnyArray, Batch, InputSpec, IntArray, shape_text, split_rows
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["LABELS", "ArraySource", "open_arrays"]

LABELS = "labels"
_KINDS = ("b", "iu", "f", "c")  # dtype kinds within which a safe cast only widens
# What zipfile, zlib and numpy.lib.format raise on broken bytes, encrypted members and unknown compression.
_UNREADABLE = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error)


@dataclass(frozen=True, eq=False)
class ArraySource:
    """Samples held in memory; made by `open_arrays`."""

    path: Path
    inputs: tuple[InputSpec, ...]
    arrays: Mapping[str, AnyArray] = field(repr=False)
    labels: IntArray = field(repr=False)
    sha256: str

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.labels)

    def describe(self) -> str:
        """Return one line for reports."""
        return f"arrays {self.path.name} ({len(self):,} samples, {len(np.unique(self.labels)):,} classes)"

    def recipe(self) -> dict[str, object] | None:
        """Return None: stored values are used as they are."""
        return None

    def batches(self, size: int, rows: IntArray | None = None) -> Iterator[Batch]:
        """Yield input name -> array (B, ...) in the input's dtype; see `Source.batches`.

        Raises:
            UsageError: `size` is below 1.
            IndexError: a row is not a sample.
            DataError: a floating-point sample holds NaN or infinity (raised while iterating).
        """
        picks = split_rows(len(self), size, rows)
        return ({spec.name: self._take(spec, pick) for spec in self.inputs} for pick in picks)

    def digest(self) -> str:
        """Return SHA-256 (hex) of the file, as it was when it was opened."""
        return self.sha256

    def _take(self, spec: InputSpec, pick: IntArray) -> AnyArray:
        part = self.arrays[spec.name][pick]
        if part.dtype.kind in "fc":
            finite = np.isfinite(part).all(axis=tuple(range(1, part.ndim)))
            if not finite.all():
                row = pick[np.argmin(finite)]
                raise DataError(
                    f"{self.path}: array {spec.name!r} must be finite, but row {row} holds NaN or infinity; "
                    "remove or repair that sample"
                )
        return np.ascontiguousarray(part, dtype=spec.dtype)


def open_arrays(path: Path, inputs: Sequence[InputSpec], n_classes: int) -> ArraySource:
    """Load the arrays for `inputs` and `labels` from the `.npz` file `path`; further arrays are not read.

    Raises:
        DataError: the file or an array in it cannot be read, an array is missing, or its shape, dtype, length or labels
            do not fit the model.
    """
    wanted = [spec.name for spec in inputs]
    if LABELS in wanted:
        raise DataError(
            f"{path}: the model has an input called {LABELS!r}, which in a .npz file is the name of the class labels; "
            "rename that input in the model"
        )
    arrays, sha256 = _read(path, wanted)
    for spec in inputs:
        _check_array(arrays[spec.name], spec, f"{path}: array {spec.name!r}")
    lengths = {spec.name: len(arrays[spec.name]) for spec in inputs}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise DataError(
            f"{path}: every array must have one row per sample, but {found}; store the same samples in each"
        )
    labels = check_labels(arrays.pop(LABELS), lengths[wanted[0]], n_classes, f"{path}: array {LABELS!r}")
    return ArraySource(path, tuple(inputs), arrays, labels, sha256)


def _read(path: Path, wanted: list[str]) -> tuple[dict[str, AnyArray], str]:
    """Return the wanted arrays and the labels, and the SHA-256 of the very file that they were read from."""
    try:
        with path.open("rb") as stream:
            sha256 = stream_sha256(stream).hex()
            is_zip = zipfile.is_zipfile(stream)
            stream.seek(0)
            archive = np.load(stream, allow_pickle=False) if is_zip else None
            if isinstance(archive, np.lib.npyio.NpzFile):
                _check_names(path, archive.files, wanted)
                return {name: _member(path, archive, name) for name in [*wanted, LABELS]}, sha256
    except _UNREADABLE as error:
        raise DataError(f"{path}: cannot be read ({error}); write it again with numpy.savez") from error
    raise DataError(f"{path}: expected a .npz file, found something else or a broken one; write it with numpy.savez")


def _check_names(path: Path, names: list[str], wanted: list[str]) -> None:
    found = ", ".join(map(repr, names)) or "none"
    missing = [name for name in wanted if name not in names]
    if missing:
        others = [name for name in names if name != LABELS]
        advice = "name the arrays after the model's inputs"
        if len(wanted) == 1 and len(others) == 1:
            advice = f"if {others[0]!r} is that input, rename it to {wanted[0]!r}"
        raise DataError(
            f"{path}: no array for the model's input {', '.join(map(repr, missing))}; the model wants "
            f"{', '.join(map(repr, wanted))}, the file has {found}; {advice}"
        )
    if LABELS not in names:
        raise DataError(
            f"{path}: no array {LABELS!r}; the file has {found}; add the class index of each sample as {LABELS!r}"
        )


def _member(path: Path, archive: Mapping[str, Any], name: str) -> AnyArray:
    try:
        array = archive[name]
    except MemoryError as error:
        raise DataError(f"{path}: array {name!r} does not fit in memory; store fewer samples") from error
    except _UNREADABLE as error:
        raise DataError(
            f"{path}: array {name!r} cannot be read ({error}). Expected a plain array of numbers: object arrays are "
            "never unpickled; store it again with a numeric dtype"
        ) from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path}: {name!r} is not a NumPy array; write the file with numpy.savez")
    return array


def _check_array(array: AnyArray, spec: InputSpec, where: str) -> None:
    wanted, found = spec.shape[1:], array.shape[1:]
    fits = array.ndim == len(spec.shape) and all(a is None or a == b for a, b in zip(wanted, found, strict=True))
    if array.ndim == 0 or not fits:
        raise DataError(
            f"{where}: expected shape {shape_text(spec.shape)}, found {array.shape}; store the samples along axis 0, "
            "each with the shape that the model takes"
        )
    if not _widens(array.dtype, spec.dtype):
        raise DataError(
            f"{where}: expected dtype {spec.dtype}, found {array.dtype}; preprocess the samples as for the model and "
            f"store them with .astype({spec.dtype.name!r})"
        )


def _widens(found: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    same_kind = any(found.kind in kind and wanted.kind in kind for kind in _KINDS)
    return found == wanted or (same_kind and np.can_cast(found, wanted, "safe"))
