"""Samples from a folder with one sub-folder of images per class.

Which class a sub-folder stands for is told by its name (`folder_labels`). All images below it count, at any depth, in
the order of their paths. Files without the suffix of an image and anything whose name starts with a dot are ignored,
and so are links to folders below a class folder, which could lead in circles.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from tna_onnx.data.decode import read_image, require_pillow
from tna_onnx.data.digest import tree_sha256
from tna_onnx.data.labels import check_labels, folder_labels
from tna_onnx.data.source import split_rows
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from pathlib import Path

    from tna_onnx.data.preprocess import Recipe
    from tna_onnx.data.source import AnyArray, Batch, InputSpec, IntArray
    from tna_onnx.data.transform import ResolvedRecipe

__all__ = ["SUFFIXES", "ImageFolderSource", "open_images"]

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})

_WORKERS = min(8, os.cpu_count() or 1)  # decoding leaves Python's lock; past 8 the model is what takes the time


@dataclass(frozen=True, eq=False)
class ImageFolderSource:
    """Images decoded when asked for; made by `open_images`. `names` are their paths below `root`."""

    root: Path
    names: tuple[str, ...] = field(repr=False)
    labels: IntArray = field(repr=False)
    input_name: str
    preprocess: ResolvedRecipe

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.names)

    def describe(self) -> str:
        """Return one line for reports."""
        n_classes = len(np.unique(self.labels))
        return f"image folder {self.root.resolve().name} ({len(self):,} images, {n_classes:,} classes)"

    def recipe(self) -> dict[str, object]:
        """Return the resolved preprocessing as JSON-able values."""
        return self.preprocess.as_dict()

    def batches(self, size: int, rows: IntArray | None = None) -> Iterator[Batch]:
        """Yield input name -> array (B, C, H, W) or (B, H, W, C) in the input's dtype; see `Source.batches`.

        Raises:
            UsageError: `size` is below 1.
            IndexError: a row is not a sample.
            DataError: an image cannot be read, does not fit the model, or has not the size of the others in its batch
                (raised while iterating).
        """
        return self._decoded(split_rows(len(self), size, rows))

    def digest(self) -> str:
        """Return SHA-256 (hex) over path below the folder, label and bytes of each image, in order.

        Raises:
            DataError: a file cannot be read.
        """
        return tree_sha256(self.root, zip(self.names, self.labels.tolist(), strict=True))

    def _decoded(self, picks: Sequence[IntArray]) -> Iterator[Batch]:
        rows = (int(row) for pick in picks for row in pick)
        with closing(_map_ahead(self._load, rows)) as arrays:
            for pick in picks:
                yield {self.input_name: self._stack(pick, list(islice(arrays, len(pick))))}

    def _load(self, row: int) -> AnyArray:
        path = self.root / self.names[row]
        image = read_image(path)
        try:
            return self.preprocess(image)
        except DataError as error:
            raise DataError(f"{path}: {error}") from error

    def _stack(self, pick: IntArray, arrays: Sequence[AnyArray]) -> AnyArray:
        for row, array in zip(pick, arrays, strict=True):
            if array.shape != arrays[0].shape:
                raise DataError(
                    f"{self.root / self.names[row]}: has shape {array.shape} after preprocessing, but "
                    f"{self.names[pick[0]]} in the same batch has {arrays[0].shape}; the model takes images of any "
                    "size, so bring them to one with --resize and --crop"
                )
        return np.stack(arrays)


def open_images(root: Path, spec: InputSpec, n_classes: int, recipe: Recipe) -> ImageFolderSource:
    """Find the images below `root` for the model input `spec`; none is decoded yet.

    Raises:
        UsageError: Pillow is missing, or the recipe cannot be used for this input.
        DataError: the input does not take images, or the folder has no images or no usable labels.
    """
    require_pillow()
    preprocess = recipe.resolve(spec)
    try:
        folders = [entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
        label_of = folder_labels(folders, n_classes, str(root))
        parts = sorted((folder, *below) for folder in folders for below in _images_below(root / folder))
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be listed ({error.strerror}); check its permissions") from error
    if not parts:
        raise DataError(
            f"{root}: no images in its {len(folders)} class folders; looked for {' '.join(sorted(SUFFIXES))}"
        )
    labels = check_labels(np.array([label_of[path[0]] for path in parts]), len(parts), n_classes, str(root))
    return ImageFolderSource(root, tuple("/".join(path) for path in parts), labels, spec.name, preprocess)


def _images_below(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield the path below `folder` of each image, as its parts, in no particular order."""
    for entry in folder.iterdir():
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            if not entry.is_symlink():
                yield from ((entry.name, *below) for below in _images_below(entry))
        elif entry.suffix.lower() in SUFFIXES:
            yield (entry.name,)


def _map_ahead(function: Callable[[int], AnyArray], rows: Iterable[int]) -> Generator[AnyArray, None, None]:
    """Yield function(row) in order, computed by threads that run at most two rounds ahead of the reader."""
    pending: deque[Future[AnyArray]] = deque()
    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="tna-onnx-image") as pool:
        try:
            for row in rows:
                pending.append(pool.submit(function, row))
                if len(pending) > 2 * _WORKERS:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:  # the reader stopped, or an image failed: do not decode what nobody will see
                future.cancel()
