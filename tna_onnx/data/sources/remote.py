"""Data behind a URL: copied to a temporary folder by fsspec, which knows s3://, gs://, https:// and many more.

Files are copied piece by piece; a folder is copied whole. For a manifest its images are copied too. The copy is removed
when the data are no longer used, at the latest when Python ends.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from tna_onnx.data.optional import optional
from tna_onnx.data.sources.webdataset import expanded
from tna_onnx.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Copy", "is_url"]

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)  # two letters at least: C: is a drive


def is_url(text: str) -> bool:
    """Tell whether a path is a URL.

    >>> is_url("s3://bucket/calib.npz"), is_url("C:/calib.npz"), is_url("data/a:b.npz")
    (True, False, False)
    """
    return _SCHEME.match(text) is not None


class Copy:
    """A local copy of what lies behind a URL.

    Attributes:
        url: what was copied.
        path: where it is now; for a pattern in braces, the pattern of the copies.
    """

    def __init__(self, url: str) -> None:
        """Copy the file, the folder, or the files that a pattern in braces stands for.

        Raises:
            UsageError: fsspec or the library for this kind of URL is missing, or there is nothing there.
            DataError: it cannot be read.
        """
        fsspec = optional("fsspec", "remote", f"reading {url}")
        try:
            self._system, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise UsageError(
                f"{url}: cannot be opened ({error}); check the URL, and install the library that it needs"
            ) from error
        self.url = url
        self._root = PurePosixPath(root.rstrip("/"))
        self._folder = Path(tempfile.mkdtemp(prefix="tna-onnx-"))
        self._remove: weakref.finalize[Any, Any] = weakref.finalize(self, _remove, self._folder)
        self.path = self._folder / (self._root.name or "data")
        names = expanded(self._root.name)
        # A name with braces may exist as it is, so the pattern is tried last, as for local paths.
        if self._is("isdir", self._root):
            self._get(f"{self._root}/", f"{self.path}/", recursive=True)
        elif self._is("exists", self._root):
            self._get(str(self._root), str(self.path))
        elif len(names) > 1:
            self.fetch(names)
        else:
            raise UsageError(f"{url}: there is nothing there; check the path behind the host or bucket")

    def fetch(self, names: Sequence[str]) -> None:
        """Copy further files, whose paths count from the folder of the URL.

        Raises:
            DataError: one cannot be read, or lies outside that folder.
        """
        # A manifest from elsewhere must not make this write outside the copy.
        outside = [name for name in names if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts]
        if outside:
            raise DataError(f"{self.url}: {outside[0]!r} lies outside the folder of that file; use relative paths")
        targets = [self._folder / name for name in names]
        for folder in {target.parent for target in targets}:
            folder.mkdir(parents=True, exist_ok=True)
        self._get([str(self._root.parent / name) for name in names], [str(target) for target in targets])

    def keep_for(self, user: object) -> None:
        """Remove the copy when `user` is gone, not before."""
        self._remove.detach()
        self._remove = weakref.finalize(user, _remove, self._folder)

    def _is(self, question: str, path: PurePosixPath) -> bool:
        try:
            return bool(getattr(self._system, question)(str(path)))
        except Exception as error:  # every file system has exceptions of its own
            raise DataError(f"{self.url}: cannot be reached ({error}); check address and credentials") from error

    def _get(self, source: str | list[str], target: str | list[str], **options: Any) -> None:
        try:
            self._system.get(source, target, **options)
        except Exception as error:  # likewise
            raise DataError(
                f"{self.url}: cannot be copied ({type(error).__name__}: {error}); check the connection and the disk"
            ) from error


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
