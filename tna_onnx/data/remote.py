"""Data behind a URL: copied to a temporary folder by fsspec, which knows s3://, gs://, https:// and many more.

Files are copied piece by piece; a folder is copied whole. For a manifest its images are copied too, if their paths are
relative. The copy is removed when the data are no longer used, at the latest when Python ends.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from tna_onnx.data.optional import optional
from tna_onnx.data.webdataset import expanded
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
    """A local copy of what lies behind a URL."""

    def __init__(self, url: str) -> None:
        """Copy the file, the folder, or the files that a pattern in braces stands for.

        Raises:
            UsageError: fsspec or the library for this kind of URL is missing, there is nothing there, or no room.
            DataError: it cannot be read.
        """
        fsspec = optional("fsspec", "remote", f"reading {url}")
        self.url = url
        self.folder = Path(tempfile.mkdtemp(prefix="tna-onnx-"))
        self.remove = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        try:
            self.files, self.root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise UsageError(f"{url}: cannot be opened ({error})") from error
        self.path = self.folder / (PurePosixPath(self.root.rstrip("/")).name or "data")
        names = expanded(self.root)
        if len(names) > 1 and not self._exists(self.root):
            self.fetch(names)
        elif not self._exists(self.root):
            raise UsageError(f"{url}: there is nothing there")
        elif self.files.isdir(self.root):
            self._get(self.root.rstrip("/") + "/", f"{self.path}/", recursive=True)
        else:
            self._get(self.root, str(self.path))

    def fetch(self, names: Sequence[str]) -> None:
        """Copy further files, each to its place relative to the first."""
        parent = PurePosixPath(self.root).parent
        for name in names:
            target = self.folder / (PurePosixPath(name).relative_to(parent) if name.startswith(f"{parent}") else name)
            target.parent.mkdir(parents=True, exist_ok=True)
            self._get(str(parent / name), str(target))

    def keep_for(self, user: object) -> None:
        """Remove the copy when `user` is gone, not before."""
        self.remove.detach()
        self.remove = weakref.finalize(user, shutil.rmtree, self.folder, ignore_errors=True)

    def _exists(self, name: str) -> bool:
        try:
            return bool(self.files.exists(name))
        except Exception as error:
            raise DataError(
                f"{self.url}: cannot be reached ({error}); check the address and the credentials"
            ) from error

    def _get(self, name: str, target: str, **options: Any) -> None:
        try:
            self.files.get(name, target, **options)
        except Exception as error:  # every file system has exceptions of its own
            raise DataError(f"{self.url}: {name} cannot be copied ({type(error).__name__}: {error})") from error
