"""Samples that are images, wherever their files lie: decoded by threads when asked for, preprocessed, stacked."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, ClassVar, Protocol

import numpy as np

from tna_onnx.data.ahead import WORKERS, read_ahead
from tna_onnx.data.digest import short_digests, stream_sha256
from tna_onnx.data.images.decode import open_image_file, read_image
from tna_onnx.data.labels import check_labels
from tna_onnx.data.limits import DEFAULT_LIMITS
from tna_onnx.data.source import split_rows
from tna_onnx.data.unlabelled import NO_LABELS, classes_text
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from tna_onnx.data.images.transform import ResolvedRecipe
    from tna_onnx.data.limits import Limits
    from tna_onnx.data.request import Request
    from tna_onnx.data.source import AnyArray, Batch, IntArray

__all__ = ["SUFFIXES", "ImageFiles", "ImageSource", "open_image_files"]

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})

_MAX_SKIPPED = 3  # names of skipped images in one line
_GROUP = 256  # images that are handed to the threads at a time where nothing of their pixels is kept


class ImageFiles(Protocol):
    """Image files in a folder, an archive or a table; read by several threads at once."""

    def __len__(self) -> int:
        """Return their number."""

    def name(self, row: int) -> str:
        """Return what messages call file `row`: a path, or a place in a path."""

    def open(self, row: int) -> Path | BinaryIO:
        """Return file `row`.

        Raises:
            DataError: it cannot be read.
        """

    def digest(self, rows: IntArray, labels: IntArray, contents: Callable[[], Sequence[bytes]]) -> str:
        """Return SHA-256 (hex) that follows every byte of the files `rows`, and their labels.

        Args:
            rows: the files.
            labels: their classes.
            contents: gives the SHA-256 (32 bytes) of each of them.

        Raises:
            DataError: a file cannot be read.
        """


@dataclass(frozen=True, eq=False)
class ImageSource:
    """Images decoded when asked for; made by `open_image_files`.

    Attributes:
        title: what reports call it, e.g. "image folder calib".
        files: where the images lie.
        rows: which of the files are samples, (N,).
        labels: class indices (N,).
        input_name: the model input that takes the images.
        preprocess: what becomes of them.
        skipped: names of files left out because they cannot be read.
        limits: how many pixels an image may have.
    """

    title: str
    files: ImageFiles = field(repr=False)
    rows: IntArray = field(repr=False)
    labels: IntArray = field(repr=False)
    input_name: str
    preprocess: ResolvedRecipe
    skipped: tuple[str, ...] = ()
    limits: Limits = DEFAULT_LIMITS
    sample_form: ClassVar[str] = "bytes of image files"

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.rows)

    def describe(self) -> str:
        """Return one line for reports."""
        text = f"{self.title} ({len(self):,} images, {classes_text(self.labels)})"
        if not self.skipped:
            return text
        text += f", {len(self.skipped):,} unreadable skipped: {', '.join(self.skipped[:_MAX_SKIPPED])}"
        if len(self.skipped) > _MAX_SKIPPED:
            text += f" and {len(self.skipped) - _MAX_SKIPPED:,} more"
        return text

    def recipe(self) -> dict[str, object]:
        """Return the resolved preprocessing as JSON-able values."""
        return self.preprocess.as_dict()

    def batches(self, size: int, rows: IntArray | None = None) -> Iterator[Batch]:
        """Yield input name -> array (B, C, H, W) or (B, H, W, C) in the input's dtype; see `Source.batches`.

        Raises:
            UsageError: `size` is below 1.
            IndexError: a row is not a sample.
            DataError: an image cannot be read, does not fit the model, or differs in size from the others in its batch
                (raised while iterating).
        """
        picks = split_rows(len(self), size, rows)
        return read_ahead((pick.tolist() for pick in picks), self._load, self._stack)

    def digest(self) -> str:
        """Return SHA-256 (hex) over the files and their labels; the files are read for it once.

        Raises:
            DataError: a file cannot be read.
        """
        return self._digest

    def sample_digests(self) -> NDArray[np.uint64]:
        """Return 64 bits for each image, (N,): equal for files of equal bytes.

        Raises:
            DataError: a file cannot be read.
        """
        return short_digests(self._contents)

    @cached_property
    def _digest(self) -> str:
        return self.files.digest(self.rows, self.labels, lambda: self._contents)

    @cached_property
    def _contents(self) -> tuple[bytes, ...]:
        """SHA-256 of the bytes of each image."""

        def sha256(row: int) -> bytes:
            file = self.files.open(row)
            where = self.files.name(row)
            if not isinstance(file, Path):
                return stream_sha256(file)
            try:
                with open_image_file(file, where, self.limits) as stream:
                    return stream_sha256(stream)
            except OSError as error:
                raise DataError(f"{where}: cannot be read ({error.strerror}); check that it still exists") from error

        rows = self.rows.tolist()
        groups = [rows[start : start + _GROUP] for start in range(0, len(rows), _GROUP)]
        return tuple(digest for group in read_ahead(groups, sha256, lambda _, found: found) for digest in group)

    def _load(self, row: int) -> AnyArray:
        at = int(self.rows[row])
        image = read_image(self.files.open(at), self.files.name(at), self.limits)
        try:
            return self.preprocess(image)
        except DataError as error:  # the recipe knows sizes, not files
            raise DataError(f"{self.files.name(at)}: {error}") from error

    def _stack(self, pick: Sequence[int], arrays: Sequence[AnyArray]) -> Batch:
        for row, array in zip(pick, arrays, strict=True):
            if array.shape != arrays[0].shape:
                raise DataError(
                    f"{self.files.name(int(self.rows[row]))}: has shape {array.shape} after preprocessing, but "
                    f"{self.files.name(int(self.rows[pick[0]]))} in the same batch has {arrays[0].shape}; the model "
                    "takes images of any size, so bring them to one with --resize and --crop"
                )
        return {self.input_name: np.stack(arrays)}


def open_image_files(
    title: str,
    where: str,
    files: ImageFiles,
    labels: IntArray,
    request: Request,
    image_input: tuple[str, ResolvedRecipe],
) -> ImageSource:
    """Return the images in `files`, of classes `labels`, as a source; with `request.skip_bad`, decode all of them once.

    Raises:
        DataError: no image can be read, or labels outside the model's classes.
    """
    rows = np.arange(len(files), dtype=np.int64)
    skipped: tuple[str, ...] = ()
    if request.skip_bad:
        bad = _unreadable(files, request.limits)
        skipped = tuple(files.name(row) for row in np.flatnonzero(bad).tolist())
        if len(files) and bad.all():
            raise DataError(f"{where}: none of {len(files):,} images can be read, {skipped[0]} first; check the files")
        rows = rows[~bad]
        labels = labels[~bad]
    # Checked again: the images left out may have been all of one class, or all but one.
    if request.labels is not NO_LABELS:
        labels = check_labels(labels, len(rows), request.n_classes, where)
    return ImageSource(title, files, rows, labels, *image_input, skipped, request.limits)


def _unreadable(files: ImageFiles, limits: Limits) -> AnyArray:
    """Decode every file; return which fail, (N,) bool."""

    def fails(row: int) -> bool:
        try:
            read_image(files.open(row), files.name(row), limits)
        except DataError:
            return True
        return False

    groups = [range(start, min(start + _GROUP, len(files))) for start in range(0, len(files), _GROUP)]
    return np.array([bad for group in read_ahead(groups, fails, lambda _, bad: bad, WORKERS) for bad in group], bool)
