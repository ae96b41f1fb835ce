"""Samples from a folder of images: one sub-folder per class, or all in one with a file of labels.

Which class a sub-folder stands for is told by its name (`folder_labels`). All images below it count, at any depth, in
the order of their paths. Files without the suffix of an image and anything whose name starts with a dot are ignored,
and so are links to folders below a class folder, which could lead in circles.

A file of labels names the images, which lie anywhere below the folder, or has one label for each of them in the order
of their paths. Then the names of sub-folders do not count, nor do images that the file does not name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tna_onnx.data.digest import tree_sha256
from tna_onnx.data.files import check_inside
from tna_onnx.data.labelfile import read_label_file
from tna_onnx.data.labels import folder_labels, label_indices, listed
from tna_onnx.data.sources.images import SUFFIXES, ImageSource, open_image_files
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tna_onnx.data.request import Request
    from tna_onnx.data.source import IntArray

__all__ = ["FolderImages", "open_folder", "require_files"]


@dataclass(frozen=True, eq=False)
class FolderImages:
    """Image files called `names`, which are paths below `root` with forward slashes."""

    root: Path
    names: tuple[str, ...] = field(repr=False)

    def __len__(self) -> int:
        """Return their number."""
        return len(self.names)

    def name(self, row: int) -> str:
        """Return the path of file `row`."""
        return str(self.root / self.names[row])

    def open(self, row: int) -> Path:
        """Return the path of file `row`."""
        return self.root / self.names[row]

    def digest(self, rows: IntArray, labels: IntArray, contents: Callable[[], Sequence[bytes]]) -> str:
        """Return SHA-256 (hex) over path below the folder, label and bytes of each image, in order."""
        names = (self.names[row] for row in rows.tolist())
        return tree_sha256(zip(names, labels.tolist(), contents(), strict=True))


def open_folder(root: Path, request: Request) -> ImageSource:
    """Find the images below `root`; none is decoded yet, unless bad ones are to be skipped.

    Raises:
        UsageError: Pillow is missing, or the recipe cannot be used for this input.
        DataError: the input does not take images, or the folder has no images or no usable labels.
    """
    image_input = request.image_input(str(root))
    try:
        names, labels = _labelled_images(root, request)
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be listed ({error.strerror}); check its permissions") from error
    except RecursionError as error:
        raise DataError(f"{root}: its folders are nested too deeply; move the images further up") from error
    check_inside(root, names, str(root), request.data_root)
    files = FolderImages(root, tuple(names))
    return open_image_files(f"image folder {root.resolve().name}", str(root), files, labels, request, image_input)


def require_files(root: Path, names: Sequence[str], where: str) -> None:
    """Check that each of `names` is a file below `root`.

    Raises:
        DataError: some are not.
    """
    missing = [name for name in names if not _is_file(root, name)]
    if missing:
        raise DataError(
            f"{where}: {len(missing):,} of {len(names):,} files are not there ({listed(missing)}); paths count from "
            f"{root}"
        )


def _is_file(root: Path, name: str) -> bool:
    try:
        return (root / name).is_file()
    except (OSError, ValueError):  # a name that is too long, say
        return False


def _labelled_images(root: Path, request: Request) -> tuple[list[str], IntArray]:
    """Return paths below `root`, and the class of each."""
    if request.labels is None:
        return _by_class(root, request)
    return _by_labels(root, request)


def _by_class(root: Path, request: Request) -> tuple[list[str], IntArray]:
    folders = [entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    # The usual mistake: all images in one folder.
    if not folders and any(entry.suffix.lower() in SUFFIXES for entry in root.iterdir()):
        raise DataError(
            f"{root}: no class folders, but images; put the images of each class in a folder of its own, or say which "
            "class each has with --labels labels.csv (path,label)"
        )
    # Folders without images count: rule 3 of the labels needs the names of all classes.
    label_of = folder_labels(folders, request.n_classes, str(root), request.class_names)
    # Sorted by parts, not by text: "a/b.png" goes before "a-1/b.png", as in every listing of folders.
    parts = sorted((folder, *below) for folder in folders for below in _images_below(root / folder))
    if not parts:
        raise DataError(
            f"{root}: no images in its {len(folders)} class folders; looked for {' '.join(sorted(SUFFIXES))}; "
            "check the path"
        )
    return ["/".join(path) for path in parts], np.array([label_of[path[0]] for path in parts], np.int64)


def _by_labels(root: Path, request: Request) -> tuple[list[str], IntArray]:
    names = ["/".join(path) for path in sorted(_images_below(root))]
    if not names:
        raise DataError(f"{root}: no images; looked for {' '.join(sorted(SUFFIXES))}; check the path")
    where = request.labels_where(str(root))
    values = request.labels
    if isinstance(values, Path):
        table = read_label_file(
            values, request.label_column, is_path=lambda text: _is_file(root, text), limits=request.limits
        )
        if table.paths is not None:
            require_files(root, table.paths, where)
            names = list(table.paths)
        elif table.others:  # one of them may be the paths under another name: their order must not be assumed
            raise DataError(f"{where}: no column holds the paths (found {listed(table.others)}); call it 'path'")
        values = table.labels
    return names, label_indices(np.asarray(values), len(names), request.n_classes, where, request.class_names)


def _images_below(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield the path below `folder` of each image, as its parts, in no particular order."""
    for entry in folder.iterdir():
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            if not entry.is_symlink():  # it could lead in circles
                yield from ((entry.name, *below) for below in _images_below(entry))
        elif entry.suffix.lower() in SUFFIXES:
            yield (entry.name,)
