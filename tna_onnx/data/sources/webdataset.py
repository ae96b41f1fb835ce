"""Samples from WebDataset shards: tar files whose members with one key make up one sample.

The key is the member's path up to the first dot of its last part; what follows the dot says what the member is:

    0001.jpg  0001.cls  0002.jpg  0002.cls  ...

An image ends in one of `SUFFIXES`. The label is in `.cls`, an index or a name as text, or in `.json`, an object with
`label` or `cls`. Other members are ignored. One scan of the headers finds where each image starts; the shards stay as
they are, and images are read from them by position, so compressed archives are refused.
"""

from __future__ import annotations

import io
import os
import re
import sys
import tarfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tna_onnx.data.digest import files_sha256
from tna_onnx.data.foreign import cell_array, check_inside, foreign_json, open_regular, parsing
from tna_onnx.data.labels import listed
from tna_onnx.data.source import NO_LABELS
from tna_onnx.data.sources.image_files import SUFFIXES, ImageSource, open_image_files
from tna_onnx.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

    from tna_onnx.data.choices import Limits
    from tna_onnx.data.request import Request
    from tna_onnx.data.source import AnyArray, IntArray

_LABEL_KEYS = ("label", "cls")
_BRACES = re.compile(r"\{(?:(?P<first>\d+)\.\.(?P<last>\d+)|(?P<choices>[^{}]*,[^{}]*))\}")
_MAX_FILES = 100_000  # of a pattern: the largest public data sets have a tenth of that
_MAX_DIGITS = 18
_SHOWN = 80


class _Sample(NamedTuple):
    key: str
    start: int
    size: int
    label: object


@dataclass(frozen=True, eq=False)
class TarImages:
    """Images inside tar files: image i is `sizes[i]` bytes from `starts[i]` on in `shards[shard[i]]`."""

    shards: tuple[Path, ...]
    shard: IntArray = field(repr=False)
    starts: IntArray = field(repr=False)
    sizes: IntArray = field(repr=False)
    keys: tuple[str, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.starts)

    def name(self, row: int) -> str:
        """Return the path of the shard and the key of the sample."""
        return f"{self.shards[self.shard[row]]}: sample {self.keys[row]!r}"

    def open(self, row: int) -> io.BytesIO:
        """Return the bytes of image `row`."""
        try:
            with open_regular(self.shards[self.shard[row]]) as stream:
                stream.seek(int(self.starts[row]))
                return io.BytesIO(stream.read(int(self.sizes[row])))
        except OSError as error:
            raise DataError(f"{self.name(row)}: cannot be read ({error.strerror}); check that it is there") from error

    def digest(self, rows: IntArray, labels: IntArray, contents: object) -> str:  # noqa: ARG002 - whole shards count
        """Return SHA-256 (hex) over the bytes of all shards, in order, and the labels."""
        return files_sha256(self.shards, labels)


def open_webdataset(path: Path, request: Request, shards: Sequence[Path] = ()) -> ImageSource:
    """Scan the tar file `path`, or all in the folder `path` in the order of their names; no image is decoded yet.

    `shards`: the tar files, where `path` is a pattern that stands for them.
    """
    request.no_labels_apart(str(path))
    image_input = request.image_input(str(path))
    files = tuple(shards) or (path,)
    if path.is_dir():
        files = tuple(sorted(path.glob("*.tar")))
        check_inside(path, [file.name for file in files], str(path), request.data_root)
    # 8 bytes a sample each, where a list takes 36: there may be millions.
    shard = array("q")
    starts = array("q")
    sizes = array("q")
    keys: list[str] = []
    column: list[Any] = []
    for number, file in enumerate(files):
        for sample in _scan(file, request.limits, labelled=request.labels is not NO_LABELS):
            shard.append(number)
            starts.append(sample.start)
            sizes.append(sample.size)
            keys.append(sample.key)
            label = sample.label
            if isinstance(label, str):
                label = sys.intern(label)  # one object a class, not one a sample
            column.append(label)
    if not keys:
        raise DataError(f"{path}: no samples in {len(files)} tar files; expected members such as 0001.jpg and 0001.cls")
    labels = request.class_indices(_labels(column), len(keys), str(path))
    images = TarImages(files, np.array(shard), np.array(starts), np.array(sizes), tuple(keys))
    return open_image_files(f"webdataset {path.name}", str(path), images, labels, request, image_input)


def expand_braces(path: Path) -> list[Path]:
    """Return the files that a pattern with braces stands for; none if it has no braces."""
    files = [Path(text) for text in expanded(str(path))]
    if len(files) == 1:
        return []
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise UsageError(
            f"{path}: {len(missing)} of its {len(files)} files are not there ({listed(missing)}); "
            "correct the pattern, or copy them there"
        )
    return files


def expanded(text: str) -> list[str]:
    """Return the texts that a pattern with braces stands for, or the text itself.

    >>> expanded("{a,b}-{08..10}.tar")
    ['a-08.tar', 'a-09.tar', 'a-10.tar', 'b-08.tar', 'b-09.tar', 'b-10.tar']
    """
    match = _BRACES.search(text)
    if match is None:
        return [text]
    before = text[: match.start()]
    after = text[match.end() :]
    rests = expanded(after)
    if match["choices"] is not None:
        parts = match["choices"].split(",")
    else:
        first, last = match["first"], match["last"]
        # before a list of them is made
        if max(len(first), len(last)) > _MAX_DIGITS or int(last) - int(first) >= _MAX_FILES:
            raise _too_many(text)
        width = len(first) if first.startswith("0") else 0  # as a shell does: {8..10} has no zeros to keep
        parts = [f"{number:0{width}}" for number in range(int(first), int(last) + 1)]
    if len(parts) * len(rests) > _MAX_FILES:
        raise _too_many(text)
    return [before + part + rest for part in parts for rest in rests]


def _too_many(text: str) -> UsageError:
    return UsageError(f"{text[:_SHOWN]}: stands for more than {_MAX_FILES:,} files; give the folder that holds them")


def _scan(path: Path, limits: Limits, *, labelled: bool) -> Iterator[_Sample]:
    """Yield the samples of one shard in the order of their first members; `labelled`: whether each needs a label."""
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, object] = {}
    advice = "shards must be whole and not compressed: unpack .tar.gz with gunzip"
    with parsing(str(path), "cannot be read as a tar file", advice), open_regular(path) as stream:
        bounded: Any = _Bounded(stream)
        with tarfile.open(fileobj=bounded, mode="r:") as archive:  # not compressed: images are read by their position
            for member in _members(archive, bounded.size):
                key, kind = _key(member.name)
                if f".{kind.rpartition('.')[2]}" in SUFFIXES:
                    if key in images:
                        raise DataError(f"{path}: sample {key!r} has several images; keep one")
                    images[key] = (member.offset_data, member.size)
                elif kind == "cls" or (kind == "json" and key not in labels):  # .cls wins, whichever comes first
                    label = _label(archive, member, kind, f"{path}: {member.name}", limits)
                    if label is not None:
                        labels[key] = label
    # After the scan, since members of a sample need not be neighbours. A dict keeps the order of the first members.
    for key in dict.fromkeys([*images, *labels]):
        missing = None
        if key not in images:
            missing = "an image"
        elif labelled and key not in labels:
            missing = "a label (.cls, or .json with 'label' or 'cls')"
        if missing is not None:
            raise DataError(f"{path}: sample {key!r} has no member with {missing}; add or remove it")
        yield _Sample(key, *images[key], labels.get(key))


class _Bounded:
    """A stream that reads at most what is left of the file, so that a false size in a header allocates no memory."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.size = os.fstat(stream.fileno()).st_size
        self.seek = stream.seek
        self.tell = stream.tell
        self.close = stream.close

    def read(self, size: int = -1) -> bytes:
        remaining = max(0, self.size - self.tell())
        return self._stream.read(remaining if size < 0 else min(size, remaining))


def _members(archive: tarfile.TarFile, size: int) -> Iterator[tarfile.TarInfo]:
    """Yield the regular files whose name does not start with a dot, keeping none of them in memory.

    Raises tarfile.ReadError: a header is broken, or a member goes beyond the `size` bytes of the archive; `tarfile`
    itself takes a broken header in the middle for the end.
    """
    while (member := archive.next()) is not None:
        archive.members = []  # type: ignore[attr-defined]  # else it keeps every header
        if member.issparse() or member.offset_data + member.size > size:
            raise tarfile.ReadError(f"member {member.name[:80]!r} claims {member.size:,} bytes, which are not there")
        if member.isreg() and not PurePosixPath(member.name).name.startswith("."):
            yield member
    stream: Any = archive.fileobj
    stream.seek(archive.offset)
    if stream.read(tarfile.BLOCKSIZE).strip(b"\0"):
        raise tarfile.ReadError(f"broken header at byte {archive.offset:,}")


def _key(name: str) -> tuple[str, str]:
    """Cut at the first dot of the last part.

    >>> _key("train/v1.0/0001.left.jpg")
    ('train/v1.0/0001', 'left.jpg')
    """
    path = PurePosixPath(name)
    stem, _, kind = path.name.partition(".")
    return str(path.parent / stem), kind.lower()


def _label(archive: tarfile.TarFile, member: tarfile.TarInfo, kind: str, where: str, limits: Limits) -> object:
    """Return the label in a `.cls` or `.json` member; None if a `.json` has none."""
    stream = archive.extractfile(member)
    assert stream is not None  # noqa: S101 - for the type checker: `_members` gives regular files only
    if member.size > limits.text_bytes:
        raise DataError(f"{where}: has {member.size:,} bytes; expected a class index or name")
    with parsing(where, "cannot be read", "expected a class index or name in UTF-8"):
        text = stream.read().decode("utf-8")
        if kind == "cls":
            return text.strip()
        value = foreign_json(text)
    if not isinstance(value, dict):
        return None
    return next((value[key] for key in _LABEL_KEYS if key in value), None)


def _labels(values: list[Any]) -> AnyArray:
    """Return labels as numbers where all are, else as objects, for `label_indices` to judge."""
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return np.array(values)
    # A number among texts, as .json and .cls can be mixed, is the same index written otherwise.
    return cell_array([str(value) if isinstance(value, int) else value for value in values])
