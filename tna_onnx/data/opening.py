"""Which kind of source something is, and the one function that opens all of them.

Paths are recognised by what is there; the first line that fits counts:

| format | what is there |
|---|---|
| `npz` | a file `.npz` |
| `npy` | a file `.npy`, or a folder with `.npy` files |
| `webdataset` | a file `.tar`, a folder with `.tar` files, or a pattern such as `shard-{000..004}.tar` |
| `table` | a file `.parquet`, `.arrow`, `.feather` or `.ipc`, a folder with such files, or one with `state.json` |
| `hdf5` | a file `.h5` or `.hdf5` |
| `manifest` | a file `.csv`, `.tsv`, `.json`, `.jsonl` or `.txt` |
| `folder` | a folder with none of the other files |
| `loader` | `loader.py:function`; never recognised, only said |

A URL is copied first, and recognised by its copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from tna_onnx.data.labelfile import read_label_file
from tna_onnx.data.labels import check_labels
from tna_onnx.data.request import Request
from tna_onnx.data.sources.arrays import open_arrays
from tna_onnx.data.sources.folder import open_folder
from tna_onnx.data.sources.hdf5 import open_hdf5
from tna_onnx.data.sources.iterables import is_iterable, open_iterable, open_mapping
from tna_onnx.data.sources.loader import open_loader
from tna_onnx.data.sources.manifest import open_manifest
from tna_onnx.data.sources.npy import open_npy
from tna_onnx.data.sources.remote import Copy, is_url
from tna_onnx.data.sources.tables import TABLE_SUFFIXES, open_table
from tna_onnx.data.sources.webdataset import expand_braces, open_webdataset
from tna_onnx.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from tna_onnx.data.images.preprocess import Recipe
    from tna_onnx.data.source import InputSpec, Source

__all__ = ["FORMATS", "Format", "open_source"]

Format: TypeAlias = Literal["folder", "manifest", "npz", "npy", "webdataset", "table", "hdf5", "loader"]
FORMATS: tuple[Format, ...] = get_args(Format)

_OPENERS: dict[Format, Callable[[Path, Request], Source]] = {
    "folder": open_folder,
    "manifest": open_manifest,
    "npz": open_arrays,
    "npy": open_npy,
    "webdataset": open_webdataset,
    "table": open_table,
    "hdf5": open_hdf5,
}
# A folder is what its files are; one with none of these holds images.
_FOLDERS: dict[str, Format] = {
    ".npy": "npy",
    ".tar": "webdataset",
    **dict.fromkeys((*TABLE_SUFFIXES, "state.json", "dataset_dict.json"), "table"),
}
_FILES: dict[str, Format] = {
    ".npz": "npz",
    ".npy": "npy",
    ".tar": "webdataset",
    **dict.fromkeys(TABLE_SUFFIXES, "table"),
    **dict.fromkeys((".h5", ".hdf5"), "hdf5"),
    **dict.fromkeys((".csv", ".tsv", ".json", ".jsonl", ".txt"), "manifest"),
}


def open_source(
    data: Any,
    inputs: Sequence[InputSpec],
    n_classes: int,
    recipe: Recipe | None = None,
    *,
    format: Format | None = None,  # noqa: A002 - the word of the command line
    labels: str | Path | npt.ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
    label_column: str | None = None,
    skip_bad: bool = False,
) -> Source:
    """Open labelled samples.

    Args:
        data: path of a file or folder; a URL; a `Source`; a mapping of arrays; an iterable of batches, a function that
            returns one, or an object with `get_next()` (`tna_onnx.data.sources.iterables`).
        inputs: the model's inputs, all of which the samples must provide.
        n_classes: the number of classes of the model; labels are indices below it, checked here.
        recipe: preprocessing for images; None is `Recipe()`.
        format: what a path is; None finds out.
        labels: labels that stand apart from the samples: path of a file (`tna_onnx.data.labelfile`), or values (N,).
        class_names: the model's class names, in the order of its output; labels may then be names.
        label_column: the column of a manifest or table that holds the labels; None finds it by its name.
        skip_bad: leave out images that cannot be read, which takes one pass over all of them, and count them.

    Raises:
        UsageError: the path does not exist, an argument does not apply or cannot be used, or a library is missing.
        DataError: the data cannot be read or do not fit the model, or the labels cannot be used.
    """
    if format is not None and format not in FORMATS:
        raise UsageError(f"format '{format}' is not known; expected {', '.join(FORMATS)}")
    apart = Path(labels) if isinstance(labels, (str, Path)) else None if labels is None else np.asarray(labels)
    request = Request(inputs, n_classes, recipe, apart, class_names, label_column, skip_bad)
    if not isinstance(data, (str, Path)):
        return _open_object(data, request)
    if format == "loader":
        return open_loader(str(data), request)
    if is_url(str(data)):
        return _open_url(str(data), request, format)
    return _open_path(Path(data), request, format)


def _open_path(path: Path, request: Request, kind: Format | None) -> Source:
    if not path.exists() and (shards := expand_braces(path)):
        return open_webdataset(path, request, shards)
    if not path.exists():
        advice = "give a .npz file or a folder with one sub-folder per class"
        if ".py:" in str(path):
            advice = "to run a function of a Python file, add --format loader"
        raise UsageError(f"{path}: no such file or folder; {advice}")
    return _OPENERS[kind or _recognise(path)](path, request)


def _recognise(path: Path) -> Format:
    suffix = path.suffix.lower()
    if path.is_dir():
        return next((kind for ending, kind in _FOLDERS.items() if any(path.glob(f"*{ending}"))), "folder")
    if suffix in _FILES:
        return _FILES[suffix]
    raise DataError(
        f"{path}: expected a folder, or a file {' '.join(_FILES)}; found {suffix or 'no suffix'}. If it is one of "
        f"these under another name, say which with --format ({', '.join(FORMATS)})"
    )


def _open_url(url: str, request: Request, kind: Format | None) -> Source:
    copy = Copy(url)
    try:
        if copy.path.is_file() and (kind or _recognise(copy.path)) == "manifest":
            table = read_label_file(copy.path, request.label_column, is_path=lambda _: True)
            copy.fetch(table.paths or ())
        source = _open_path(copy.path, request, kind)
    except (DataError, UsageError) as error:  # name what the user named
        raise type(error)(str(error).replace(str(copy.path), url)) from error
    copy.keep_for(source)
    return source


def _open_object(data: Any, request: Request) -> Source:
    if all(hasattr(data, name) for name in ("labels", "describe", "recipe", "batches", "digest")):
        source: Source = data
        check_labels(source.labels, len(source), request.n_classes, source.describe())
        return source
    if isinstance(data, Mapping):
        return open_mapping(data, request)
    if is_iterable(data):
        return open_iterable(data, request)
    raise UsageError(f"expected a path, a source, a mapping of arrays or batches, found {type(data).__name__}")
