"""Opening labelled samples of any kind: `open_request` finds the format (`DATA_FORMATS`) and calls its opener.

A URL is copied first, and its copy is recognised. Text files are a table where the model takes no images.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tna_onnx.data.choices import Limits
from tna_onnx.data.foreign import file_system, parsing
from tna_onnx.data.images.recipe_files import stated_recipe
from tna_onnx.data.labels import check_labels
from tna_onnx.data.options import Data, Request
from tna_onnx.data.sample_info import require_beside, with_prior
from tna_onnx.data.several import LabelSource, PositionSource
from tna_onnx.data.source import InputSpec, Source
from tna_onnx.data.sources.arrays import open_arrays
from tna_onnx.data.sources.image_files import open_folder, open_manifest
from tna_onnx.data.sources.objects import open_object
from tna_onnx.data.sources.tables import SAVED, SUFFIXES, open_table
from tna_onnx.errors import DataError, UsageError
from tna_onnx.files import is_url, local_path


@dataclass(frozen=True)
class DataFormat:
    """One format."""

    opener: Callable[[Path, Request], Source]
    files: tuple[str, ...] = ()  # suffixes of its files
    in_folder: tuple[str, ...] = ()  # endings of files that make a folder one of this format


# In the order in which they are tried.
DATA_FORMATS: dict[str, DataFormat] = {
    "npz": DataFormat(open_arrays, files=(".npz",)),
    "table": DataFormat(open_table, files=SUFFIXES, in_folder=(*SUFFIXES, *SAVED)),
    "manifest": DataFormat(open_manifest, files=(".csv", ".tsv", ".json", ".jsonl", ".txt")),
    # What a folder is if none of the others fits.
    "folder": DataFormat(open_folder),
}


def request_of(
    data: Data,
    inputs: Sequence[InputSpec],
    n_classes: int,
    names: tuple[str, ...] | None,
    **fields: Any,
) -> Request:
    """Return what a model's inputs need of the samples; `fields` are further ones of `Request`."""
    positions = fields.get("several", False)
    if not positions and data.ignore_label is not None:
        raise UsageError(
            "--ignore-label is for models with several predictions a sample (tokens, pixels), and "
            "this one gives one; leave it out"
        )
    if data.expect_accuracy is not None and "weight" in data.sample_info:
        raise UsageError(f"--expect-accuracy does not use sample weights; leave it or {data._flag('weight')} out")
    if data.class_prior is not None and (positions or fields.get("multi_label")):
        raise UsageError("--class-prior is for models that predict one class a sample; give weights instead")
    stated = vars(with_prior(data, n_classes, names)) | {"preprocessing": stated_recipe(data)}
    return Request(**stated, inputs=inputs, n_classes=n_classes, class_names=names, **fields)


def open_request(request: Request) -> Source:
    """Open the samples of a request."""
    source = _open(request.samples, request)
    require_beside(request, source)
    if request.multi_label:
        if source.labels.ndim > 1:
            return source
        return LabelSource.of(source)
    if request.several:
        return PositionSource.of(source, request.n_classes, request.n_features)
    return source


def _open(data: Any, request: Request) -> Source:
    if hasattr(data, "sample_digests"):  # a source that is open, such as a part of one
        source: Source = data
        if not (request.multi_label and source.labels.shape == (len(source), request.n_classes)):
            request.check_one_class(source.describe())
            check_labels(source.labels, len(source), request.n_classes, source.describe())
        return source
    if not isinstance(data, (str, Path)):
        return open_object(data, request)
    if isinstance(data, str):
        data = local_path(data)
    if is_url(str(data)):
        return _open_url(str(data), request)
    return _open_path(Path(data), request)


class Copy:
    """A local copy of the file or folder behind a URL; it goes with its user, at the latest when Python exits."""

    def __init__(self, url: str, limits: Limits) -> None:
        """Copy what is there."""
        self.url = url
        system, root = file_system(url)
        folder = Path(tempfile.mkdtemp(prefix="tna-onnx-"))
        self._remove: Any = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        last = root.rpartition("/")[2]
        self.path = folder / (last if last.strip(".") else "data")
        with parsing(url, "cannot be copied", "check the address, the credentials, the connection and the disk"):
            if not system.exists(root):
                raise UsageError(f"{url}: there is nothing there; check the path behind the host or bucket")
            size = system.du(root)
            if size > limits.download_bytes:
                raise DataError(f"{url}: has {size:,} bytes; raise --limit download-bytes=NUMBER")
            if system.isdir(root):
                system.get(f"{root}/", f"{self.path}/", recursive=True)
            else:
                system.get(root, str(self.path))

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Let errors of the block name the URL, which the user knows, in place of the copy."""
        try:
            yield
        except (DataError, UsageError) as error:
            raise type(error)(str(error).replace(str(self.path), self.url)) from error

    def keep_for(self, user: object) -> None:
        """Keep the copy for as long as `user` is alive."""
        folder = self.path.parent
        self._remove.detach()
        self._remove = weakref.finalize(user, shutil.rmtree, folder, ignore_errors=True)


def _open_url(url: str, request: Request) -> Source:
    copy = Copy(url, request.limits)
    with copy.named():
        if copy.path.is_file() and _recognise(copy.path, request) == "manifest":
            raise UsageError(f"{url}: lists files beside it; give the URL of their folder, and --labels with the list")
        source = _open_path(copy.path, request)
    # images that are prepared in another way are another source of the same files
    copy.keep_for(getattr(source, "files", source))
    return source


def _open_path(path: Path, request: Request) -> Source:
    if not path.exists():
        advice = "give a file or folder of samples (docs/data.md lists the formats)"
        with contextlib.suppress(OSError):
            for near in get_close_matches(path.name, [entry.name for entry in path.parent.iterdir()], 1, 0.75):
                advice = f"did you mean {path.with_name(near)}?"
        raise UsageError(f"{path}: no such file or folder; {advice}")
    if not path.is_file() and not path.is_dir():
        raise DataError(f"{path}: is a pipe or a device, not a regular file; expected a file or a folder")
    format_name = _recognise(path, request)
    if format_name != "table":
        request.check_no_table(str(path))
    if format_name in ("folder", "manifest"):
        request.check_one_class(str(path))
    return DATA_FORMATS[format_name].opener(path, request)


def _recognise(path: Path, request: Request) -> str:
    suffix = path.suffix.lower()
    if path.is_dir():
        for kind, row in DATA_FORMATS.items():
            if any(any(path.glob(f"*{ending}")) for ending in row.in_folder):
                return kind
        return "folder"
    for kind, row in DATA_FORMATS.items():
        if suffix in row.files:
            # a list of images is of use to a model of one input of four axes, and to no other
            if kind != "manifest" or [len(spec.shape) for spec in request.inputs] == [4]:
                return kind
            if suffix == ".txt":
                raise DataError(
                    f"{path}: a .txt file lists images, and the model takes none; expected a table (.csv .tsv .jsonl "
                    ".parquet) with a column for the label, or arrays (.npz)"
                )
            return "table"
    suffixes = " ".join(ending for row in DATA_FORMATS.values() for ending in row.files)
    raise DataError(
        f"{path}: expected a folder, or a file {suffixes}; found {suffix or 'no suffix'}. If it is one of "
        "these under another name, rename it"
    )
