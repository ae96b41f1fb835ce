"""Data behind a URL, copied to a temporary folder: http and https by `web`, all others by fsspec.

A folder is copied with all its files, and a manifest with its images. The copy is removed when the data are no longer
in use, at the latest when Python exits. `file://` is treated as a path, and nothing is copied.

What is done about a server that is not to be trusted: `tna_onnx.data.sources.web`.
"""

from __future__ import annotations

import importlib
import shutil
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote

from tna_onnx.data.choices import DEFAULT_LIMITS
from tna_onnx.data.files import optional, reason
from tna_onnx.data.sources.webdataset import expanded
from tna_onnx.errors import DataError, TnaError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tna_onnx.data.choices import Limits

_MAX_NAME = 120  # characters: file systems take 255 bytes


class _System(Protocol):
    """A file system or server behind one kind of URL."""

    root: str
    """Where the data are, in the words of the system."""

    def is_folder(self) -> bool: ...

    def exists(self) -> bool: ...

    def get_folder(self, target: Path) -> None: ...

    def get(self, names: Sequence[str], targets: Sequence[Path]) -> None:
        """Copy files, whose names count from the folder of the root."""


@dataclass
class _Web:
    """http and https, which have no folders."""

    root: str
    query: str
    limits: Limits
    received: int = 0

    def is_folder(self) -> bool:
        return False

    def exists(self) -> bool:
        return bool(_http().exists(self.root + self.query))

    def get_folder(self, target: Path) -> None:
        raise NotImplementedError  # there are none

    def get(self, names: Sequence[str], targets: Sequence[Path]) -> None:
        base, _, last = self.root.rpartition("/")
        for name, target in zip(names, targets, strict=True):
            # the name of the file itself stays as the user wrote it, with what follows a question mark
            url = self.root + self.query if name == last else f"{base}/{quote(name)}"
            self.received += _http().download(url, target, int(self.limits.download_bytes) - self.received)


@dataclass
class _Fsspec:
    """Every other kind of URL."""

    root: str
    system: Any
    limits: Limits

    def is_folder(self) -> bool:
        return bool(self.system.isdir(self.root))

    def exists(self) -> bool:
        return bool(self.system.exists(self.root))

    def get_folder(self, target: Path) -> None:
        size = self.system.du(self.root)
        if size > self.limits.download_bytes:
            raise DataError(f"{self.root}: has {size:,} bytes; raise --data-limit download-bytes=NUMBER")
        self.system.get(f"{self.root}/", f"{target}/", recursive=True)

    def get(self, names: Sequence[str], targets: Sequence[Path]) -> None:
        base = self.root.rpartition("/")[0]
        self.system.get([f"{base}/{name}" for name in names], [str(target) for target in targets])


class Copy:
    """A local copy of what lies behind a URL.

    Attributes:
        url: what was copied.
        path: where it is now; for a pattern in braces, the pattern of the copies.
    """

    def __init__(self, url: str, limits: Limits = DEFAULT_LIMITS) -> None:
        """Copy the file, the folder, or the files that a pattern in braces stands for.

        Raises:
            UsageError: fsspec or the library for this kind of URL is missing, or there is nothing there.
            DataError: it cannot be read.
        """
        self.url = url
        self._system = _system(url, limits)
        last = self._system.root.rpartition("/")[2]
        self._folder = Path(tempfile.mkdtemp(prefix="tna-onnx-"))
        self._remove: weakref.finalize[Any, Any] = weakref.finalize(self, _remove, self._folder)
        self.path = self._folder / _file_name(url, last)
        names = expanded(last)
        # A name with braces may exist as it is, so the pattern is tried last, as for local paths.
        if self._ask(self._system.is_folder):
            self._copy(lambda: self._system.get_folder(self.path))
        elif self._ask(self._system.exists):
            self._copy(lambda: self._system.get([last], [self.path]))
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
        outside = [name for name in names if _leads_out(name)]
        if outside:
            raise DataError(f"{self.url}: {outside[0]!r} lies outside the folder of that file; use relative paths")
        targets = [self._folder / name for name in names]

        def get() -> None:
            for folder in {target.parent for target in targets}:
                folder.mkdir(parents=True, exist_ok=True)
            self._system.get(names, targets)

        self._copy(get)

    def keep_for(self, user: object) -> None:
        """Keep the copy for as long as `user` is alive."""
        self._remove.detach()
        self._remove = weakref.finalize(user, _remove, self._folder)

    def _ask(self, question: Callable[[], bool]) -> bool:
        try:
            return question()
        except TnaError:
            raise
        except Exception as error:  # every file system has exceptions of its own
            raise DataError(
                f"{self.url}: cannot be reached ({reason(error)}); check address and credentials"
            ) from error

    def _copy(self, get: Callable[[], None]) -> None:
        try:
            get()
        except TnaError:
            raise
        except Exception as error:  # likewise
            raise DataError(
                f"{self.url}: cannot be copied ({type(error).__name__}: {reason(error)}); check the connection and the "
                "disk"
            ) from error


def _system(url: str, limits: Limits) -> _System:
    """Return the file system or server behind a URL.

    Raises:
        UsageError: fsspec or the library for this kind of URL is missing, or the URL cannot be used.
    """
    if _is_http(url):
        root, mark, query = url.partition("?")
        return _Web(root.rstrip("/"), mark + query, limits)
    fsspec = optional("fsspec", "remote", f"reading {url}")
    try:
        system, root = fsspec.core.url_to_fs(url)
        return _Fsspec(str(root).rstrip("/"), system, limits)
    except Exception as error:  # what a URL may look like is the business of many libraries
        raise UsageError(
            f"{url}: cannot be opened ({reason(error)}); check the URL, and install the library that it needs"
        ) from error


def _is_http(url: str) -> bool:
    return url.partition("://")[0].lower() in ("http", "https")


def _http() -> Any:
    """Return our module for the web, which takes as long to load as a small run: only where it is needed."""
    return importlib.import_module("tna_onnx.data.sources.web")


def _file_name(url: str, last: str) -> str:
    """Return the name of the copy: that of the file, if it can be one."""
    name = last
    if _is_http(url):
        name = unquote(last)
    if name in ("", ".", "..") or len(name) > _MAX_NAME or any(sign in name for sign in "/\\\0"):
        return "data"
    return name


def _leads_out(name: str) -> bool:
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts or "\0" in name or "\\" in name


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
