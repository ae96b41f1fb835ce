"""Samples that are images in files: a folder, or a manifest that lists paths and labels (`tna_onnx.data.labelfile`).

Threads decode on demand (`ImageSource`). Files without an image suffix, names with a leading dot and links to folders
are ignored.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.choices import DEFAULT_LIMITS, Limits
from tna_onnx.data.digest import files_sha256, short_digests, stream_sha256, tree_sha256
from tna_onnx.data.foreign import check_inside
from tna_onnx.data.images.decode import load_pillow, open_image_file, read_ahead, read_image
from tna_onnx.data.images.known_recipes import RecipeSearch
from tna_onnx.data.images.preprocess import Recipe, ResolvedRecipe
from tna_onnx.data.images.recipe_files import stated_recipe
from tna_onnx.data.labelfile import labels_apart, read_label_file
from tna_onnx.data.labels import check_labels, class_indices, folder_labels
from tna_onnx.data.options import Request
from tna_onnx.data.sample_info import values_beside
from tna_onnx.data.source import NO_LABELS, AnyArray, Batch, IntArray, classes_text, split_rows
from tna_onnx.errors import DataError, NoLabels, UsageError, listed
from tna_onnx.files import resolved

T = TypeVar("T")
ImageFiles: TypeAlias = "FolderImages | TableImages"

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})

_SPLITS = frozenset({"train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval", "calib"})
_MAX_SKIPPED = 3  # names of skipped images in one line
_GROUP = 256  # images that are handed to the threads at a time where nothing of their pixels is kept


@dataclass(frozen=True, eq=False)
class ImageSource:
    """Images decoded when asked for; made by `open_image_files`."""

    title: str  # what reports call it, e.g. "image folder calib"
    files: ImageFiles = field(repr=False)  # where the images lie
    rows: IntArray = field(repr=False)  # which of the files are samples, (N,)
    labels: IntArray = field(repr=False)  # class indices (N,)
    input_name: str  # the model input that takes the images
    preprocess: ResolvedRecipe  # what becomes of them
    skipped: tuple[str, ...] = ()  # names of files left out because they cannot be read
    limits: Limits = DEFAULT_LIMITS  # how many pixels an image may have
    notes: tuple[str, ...] = ()  # what users should know about the samples
    search: RecipeSearch | None = None  # how the preprocessing was found; None where something says what it is
    # what belongs to each sample beside image and label, by its role: `group` -> texts (N,)
    sample_info: Mapping[str, AnyArray] = field(default_factory=dict, repr=False)
    mixed_sizes: bool = False  # whether the model takes several; a batch ends where the next image has another
    sample_form: ClassVar[str] = "bytes of image files"

    def __len__(self) -> int:
        return len(self.rows)

    def describe(self) -> str:
        text = f"{self.title} ({len(self):,} images{classes_text(self.labels)})"
        if self.skipped:
            text += f", {len(self.skipped):,} unreadable skipped: {', '.join(self.skipped[:_MAX_SKIPPED])}"
        if len(self.skipped) > _MAX_SKIPPED:
            text += f" and {len(self.skipped) - _MAX_SKIPPED:,} more"
        return text

    def recipe(self) -> dict[str, object]:
        return self.preprocess.as_dict()

    def batches(self, size: int, rows: IntArray | None = None) -> Iterator[Batch]:
        """Yield input name -> array (B, C, H, W) or (B, H, W, C) in the input's dtype; see `Source.batches`."""
        picks = split_rows(len(self), size, rows)
        return itertools.chain.from_iterable(read_ahead((pick.tolist() for pick in picks), self._load, self._stack))

    def digest(self) -> str:
        """Return SHA-256 (hex) over the files and their labels; the files are read for it once."""
        return self._digest

    def sample_digests(self) -> NDArray[np.uint64]:
        """Return 64 bits for each image, (N,): equal for files of equal bytes."""
        return short_digests(self._contents)

    @cached_property
    def _digest(self) -> str:
        if isinstance(self.files, TableImages):
            return files_sha256(self.files.files, self.labels)
        names = (self.files.names[row] for row in self.rows.tolist())
        return tree_sha256(zip(names, self.labels.tolist(), self._contents, strict=True))

    @cached_property
    def _contents(self) -> tuple[bytes, ...]:
        """SHA-256 of the bytes of each image."""

        def sha256(row: int) -> bytes:
            file = self.files.open(row)
            where = self.files.name(row)
            try:
                with open_image_file(file, where, self.limits) as stream:
                    return stream_sha256(stream)
            except OSError as error:
                raise DataError(f"{where}: cannot be read ({error.strerror}); check that it still exists") from error

        return tuple(_in_threads(sha256, self.rows.tolist()))

    def _load(self, row: int) -> AnyArray:
        at = int(self.rows[row])
        image = read_image(self.files.open(at), self.files.name(at), self.limits)
        try:
            return self.preprocess(image, self.limits)
        except DataError as error:  # the recipe knows sizes, not files
            raise DataError(f"{self.files.name(at)}: {error}") from error

    def _stack(self, pick: Sequence[int], arrays: Sequence[AnyArray]) -> list[Batch]:
        batches = []
        start = 0
        for _, group in itertools.groupby(arrays, lambda array: array.shape):
            end = start + sum(1 for _ in group)
            batches.append({self.input_name: np.stack(arrays[start:end])})
            if end < len(arrays) and not self.mixed_sizes:
                raise DataError(
                    f"{self.files.name(int(self.rows[pick[end]]))}: has shape {arrays[end].shape} after preprocessing, "
                    f"but {self.files.name(int(self.rows[pick[0]]))} in the same batch has {arrays[0].shape}; the "
                    "model takes images of any size, so bring them to one with --resize and --crop"
                )
            start = end
        return batches


def prepared_input(request: Request, where: str) -> tuple[str, ResolvedRecipe]:
    """Return the name and the preprocessing of the only input, which takes images."""
    # With several, nothing says which of them takes the image and what the others get.
    if len(request.inputs) != 1:
        raise DataError(
            f"{where}: images need a model with one input, but this one has {len(request.inputs)} "
            f"({listed(spec.name for spec in request.inputs)}); store the samples as .npz, with one array per input"
        )
    load_pillow()  # an error here, not at the first image
    return request.inputs[0].name, (stated_recipe(request) or Recipe()).resolve(request.inputs[0])


def open_image_files(
    title: str,
    where: str,
    files: ImageFiles,
    labels: IntArray,
    request: Request,
    image_input: tuple[str, ResolvedRecipe],
    columns: Mapping[str, Any],
) -> ImageSource:
    """Return image files and their labels as a source; with `request.skip_bad`, decode every image to find bad ones.

    `labels`: class indices of all files. `columns`: name -> further values, of all files too.
    """
    rows = np.arange(len(files), dtype=np.int64)
    paths: tuple[str, ...] = ()
    if isinstance(files, FolderImages):
        paths = files.names
    of_files = labels
    skipped: tuple[str, ...] = ()
    if request.skip_bad:

        def fails(row: int) -> bool:
            try:
                read_image(files.open(row), files.name(row), request.limits)
            except DataError:
                return True
            return False

        bad = np.array(_in_threads(fails, range(len(files))), bool)
        skipped = tuple(files.name(row) for row in np.flatnonzero(bad).tolist())
        if len(files) and bad.all():
            raise DataError(f"{where}: none of {len(files):,} images can be read, {skipped[0]} first; check the files")
        rows = rows[~bad]
        labels = labels[~bad]
    # Checked again: the images left out may have been all of one class, or all but one.
    if request.labels is not NO_LABELS:
        labels = check_labels(labels, len(rows), request.n_classes, where)
    sample_info = values_beside(request, where, columns, of_files, paths, rows)
    return ImageSource(title, files, rows, labels, *image_input, skipped, request.limits, sample_info=sample_info)


def _in_threads(of: Callable[[int], T], rows: Sequence[int]) -> list[T]:
    """Return what a function makes of each row."""
    groups = (rows[start : start + _GROUP] for start in range(0, len(rows), _GROUP))
    return [value for group in read_ahead(groups, of, lambda _, values: values) for value in group]


@dataclass(frozen=True, eq=False)
class FolderImages:
    """Image files in a folder, each of which is read when it is needed."""

    root: Path
    names: tuple[str, ...] = field(repr=False)  # paths below `root`, with forward slashes

    def __len__(self) -> int:
        return len(self.names)

    def name(self, row: int) -> str:
        """Return what messages call file `row`."""
        return str(self.open(row))

    def open(self, row: int) -> Path:
        """Return the path of file `row`."""
        return self.root / self.names[row]


@dataclass(frozen=True, eq=False)
class TableImages:
    """Images in a column of bytes, or of structs with `bytes`, of a mapped table."""

    path: Path
    files: tuple[Path, ...]
    column: Any

    def __len__(self) -> int:
        return len(self.column)

    def name(self, row: int) -> str:
        """Return what messages call image `row`."""
        return f"{self.path}: row {row}"

    def open(self, row: int) -> io.BytesIO:
        """Return the bytes of image `row`."""
        content = self.column[row].as_py()
        if isinstance(content, dict):
            content = content.get("bytes")
        if content is None:
            raise DataError(f"{self.name(row)}: holds no bytes of an image; list paths in a CSV, path,label")
        return io.BytesIO(content)


def open_folder(root: Path, request: Request) -> ImageSource:
    """Find the images below `root`; none is decoded yet, unless bad ones are to be skipped."""
    image_input = prepared_input(request, str(root))  # first: files need no order where the model takes no images
    try:
        if request.labels is None:
            names, labels, columns = _by_class(root, request)
        else:
            names, labels, columns = _by_labels(root, request)
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be listed ({error.strerror}); check its permissions") from error
    check_inside(root, names, str(root), request.data_root)
    files = FolderImages(root, tuple(names))
    title = f"image folder {resolved(root).name}"
    return open_image_files(title, str(root), files, labels, request, image_input, columns)


def folder_names(source: object) -> dict[int, str]:
    """Class -> folder, if every folder holds the images of one class, and every class has one folder."""
    if not isinstance(source, ImageSource) or not isinstance(source.files, FolderImages):
        return {}
    names = [source.files.names[row] for row in source.rows.tolist()]
    folders = [name.rpartition("/")[0].partition("/")[0] for name in names]
    pairs = set(zip(source.labels.tolist(), folders, strict=True))
    folder_of = dict(pairs)
    if "" in folders or not len(pairs) == len(folder_of) == len(set(folders)):
        return {}
    return folder_of


def require_files(root: Path, names: Sequence[str], where: str) -> None:
    """Check that each of `names` is a file below `root`."""
    if missing := [name for name in names if not _is_file(root, name)]:
        raise DataError(
            f"{where}: {len(missing):,} of {len(names):,} files are not there ({listed(missing)}); paths are "
            f"relative to {root}"
        )


def _is_file(root: Path, name: str) -> bool:
    try:
        return (root / name).is_file()
    except (OSError, ValueError):  # a name that is too long, say
        return False


def _by_class(root: Path, request: Request) -> tuple[list[str], IntArray, Mapping[str, Any]]:
    """Return paths below `root` and the class of each."""
    folders = [entry.name for entry in root.iterdir() if entry.is_dir() and not _is_hidden(entry.name)]
    # The usual mistake: all images in one folder.
    if not folders and any(entry.suffix.lower() in SUFFIXES for entry in root.iterdir()):
        raise NoLabels(
            f"{root}: no class folders, but images; put the images of each class in a folder of its own, or say which "
            "class each has with --labels labels.csv (path,label)"
        )
    _refuse_splits(root, folders, request.class_names or ())
    # Folders without images count: rule 3 of the labels needs the names of all classes.
    label_of = folder_labels(folders, request.n_classes, str(root), request.class_names)
    # Sorted by parts, not by text: "a/b.png" goes before "a-1/b.png", as in every listing of folders.
    parts = sorted((folder, *below) for folder in folders for below in _images_below(root / folder))
    if not parts:
        raise DataError(
            f"{root}: no images in its {len(folders)} class folders; looked for {' '.join(sorted(SUFFIXES))}; "
            "check the path"
        )
    return ["/".join(path) for path in parts], np.array([label_of[path[0]] for path in parts], np.int64), {}


def _refuse_splits(root: Path, folders: Sequence[str], class_names: Sequence[str]) -> None:
    """Refuse folders of a data set that hold the class folders: a model of two classes would take them for its own."""
    unknown = [name for name in folders if name not in class_names and not name.isdecimal()]
    above = len(folders) == 1 or all(name.lower() in _SPLITS for name in folders)
    if not unknown or not above:
        return
    nested = [name for name in unknown if any(entry.is_dir() for entry in (root / name).iterdir())]
    if nested:
        raise DataError(
            f"{root}: expected a folder for each class, found {listed(sorted(folders))} with folders in them; give "
            f"the folder that holds the class folders, such as {root / min(nested)}"
        )


def _by_labels(root: Path, request: Request) -> tuple[list[str], IntArray, Mapping[str, Any]]:
    """Return paths below `root`, the class of each, and further columns of a file of labels."""
    names = ["/".join(path) for path in sorted(_images_below(root))]
    if not names:
        raise DataError(f"{root}: no images; looked for {' '.join(sorted(SUFFIXES))}; check the path")
    where = request.labels_where(str(root))
    columns: Mapping[str, Any] = {}
    if not isinstance(request.labels, Path):
        values = labels_apart(request, None)
    else:
        table = read_label_file(
            request.labels, request.label_column, is_path=lambda text: _is_file(root, text), limits=request.limits
        )
        if table.paths is not None:
            require_files(root, table.paths, where)
            names = list(table.paths)
        elif table.columns:  # one of them may be the paths under another name: their order must not be assumed
            raise DataError(f"{where}: no column holds the paths (found {listed(table.columns)}); call it 'path'")
        values = table.labels
        columns = table.columns
    indices = class_indices(request, values, len(names), where)
    return names, indices, columns


def _is_hidden(name: str) -> bool:
    """Whether a file or folder is none of the user's: `__MACOSX` is what macOS adds to an archive."""
    return name.startswith(".") or name == "__MACOSX"


def _images_below(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield the path below `folder` of each image, as its parts, in no particular order."""
    for entry in folder.iterdir():
        if _is_hidden(entry.name):
            continue
        if entry.is_dir():
            if not entry.is_symlink():  # it could lead in circles
                yield from ((entry.name, *below) for below in _images_below(entry))
        elif entry.suffix.lower() in SUFFIXES:
            yield (entry.name,)


def open_manifest(path: Path, request: Request) -> ImageSource:
    """Read the manifest `path`; no image is decoded yet, unless bad ones are to be skipped."""
    if request.labels is not None and request.labels is not NO_LABELS:
        raise UsageError(f"{path}: contains its labels; leave --labels out")
    image_input = prepared_input(request, str(path))
    table = read_label_file(path, request.label_column, is_path=lambda _: True, limits=request.limits)
    if table.paths is None:
        advice = "call it 'path'"
        if any(name.startswith(("logits", "features")) for name in table.columns):
            advice += "; computed logits and features are read from Parquet, as a column of lists, and from .npz"
        raise DataError(
            f"{path}: no column holds the paths of the images (found {listed(table.columns) or 'labels'} "
            f"only); {advice}"
        )
    labels = class_indices(request, table.labels, len(table.paths), str(path))
    if not request.skip_bad:  # else a missing file is one that cannot be read: it is left out and counted
        require_files(path.parent, table.paths, str(path))
    check_inside(path.parent, table.paths, str(path), request.data_root)
    files = FolderImages(path.parent, table.paths)
    return open_image_files(f"manifest {path.name}", str(path), files, labels, request, image_input, table.columns)
