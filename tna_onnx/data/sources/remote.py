"""Data behind a URL, copied by fsspec to a temporary folder, which is removed at the latest when Python exits.

Servers of http are not trusted: they answer within 30 seconds, at 1 kB a second or more; sizes are limited; HTML is
refused.
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from tna_onnx.data.choices import DEFAULT_LIMITS
from tna_onnx.data.foreign import file_system, optional, reason
from tna_onnx.errors import DataError, TnaError, UsageError

if TYPE_CHECKING:
    from tna_onnx.data.choices import Limits

_MAX_NAME = 120  # characters: file systems take 255 bytes
_TIMEOUT = 30.0  # seconds: for the head with all redirects, and between two pieces
_PIECE = 1 << 16  # bytes
_MIN_RATE = 1000.0  # bytes per second, over the last period
_PERIOD = 60.0  # seconds


class Copy:
    """A local copy of what lies behind a URL.

    Attributes:
        url: what was copied.
        path: where it is now.
    """

    def __init__(self, url: str, limits: Limits = DEFAULT_LIMITS) -> None:
        """Copy the file or the folder."""
        self.url = url
        self._system = _system(url, limits)
        last = self._system.root.rpartition("/")[2]
        self._folder = Path(tempfile.mkdtemp(prefix="tna-onnx-"))
        self._remove: Any = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.path = self._folder / self._system.file_name(last)
        with self._copying():
            if self._system.copied_folder(self.path):
                return
            try:
                self._system.get([last], [self.path])
            except FileNotFoundError as error:
                raise UsageError(f"{url}: there is nothing there; check the path behind the host or bucket") from error

    def fetch(self, names: Sequence[str]) -> None:
        """Copy further files, whose paths count from the folder of the URL."""
        # A manifest from elsewhere must not make this write outside the copy.
        for name in names:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\0" in name or "\\" in name:
                raise DataError(f"{self.url}: {name!r} lies outside the folder of that file; use relative paths")
        targets = [self._folder / name for name in names]
        with self._copying():
            for folder in {target.parent for target in targets}:
                folder.mkdir(parents=True, exist_ok=True)
            self._system.get(names, targets)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Let errors of the block name the URL, which the user knows, in place of the copy."""
        try:
            yield
        except (DataError, UsageError) as error:
            raise type(error)(str(error).replace(str(self.path), self.url)) from error

    def keep_for(self, user: object) -> None:
        """Keep the copy for as long as `user` is alive."""
        self._remove.detach()
        self._remove = weakref.finalize(user, shutil.rmtree, self._folder, ignore_errors=True)

    @contextlib.contextmanager
    def _copying(self) -> Iterator[None]:
        try:
            yield
        except TnaError:
            raise
        except Exception as error:  # every file system has exceptions of its own
            raise DataError(
                f"{self.url}: cannot be copied ({type(error).__name__}: {reason(error)}); check the address, the "
                "credentials, the connection and the disk"
            ) from error


def _system(url: str, limits: Limits) -> _Web | _Bucket:
    """Return the server or file system behind a URL."""
    if url.partition("://")[0].lower() in ("http", "https"):
        root, mark, query = url.partition("?")
        aiohttp = optional("aiohttp", "remote", f"reading {url}")
        client = {
            "timeout": aiohttp.ClientTimeout(total=None),  # else five minutes; `download` has a limit for each piece
            "headers": {"Accept-Encoding": "identity"},
            "auto_decompress": False,
            "trust_env": True,  # proxies
        }
        system, _ = file_system(url, client_kwargs=client)
        return _Web(root.rstrip("/"), mark + query, system, limits)
    system, root = file_system(url)
    return _Bucket(root, system, limits)


@dataclass
class _Bucket:
    """What fsspec reads; `root` is the path in that file system."""

    root: str
    system: Any
    limits: Limits

    def file_name(self, last: str) -> str:
        return _file_name(last)

    def copied_folder(self, target: Path) -> bool:
        """Copy the root if it is a folder, and say whether it is."""
        if not self.system.isdir(self.root):
            return False
        size = self.system.du(self.root)
        if size > self.limits.download_bytes:
            raise DataError(f"{self.root}: has {size:,} bytes; raise --limit download-bytes=NUMBER")
        self.system.get(f"{self.root}/", f"{target}/", recursive=True)
        return True

    def get(self, names: Sequence[str], targets: Sequence[Path]) -> None:
        base = self.root.rpartition("/")[0]
        self.system.get([f"{base}/{name}" for name in names], [str(target) for target in targets])


@dataclass
class _Web:
    """A server of http or https; `query` is what follows the path."""

    root: str
    query: str
    system: Any
    limits: Limits
    received: int = 0

    def file_name(self, last: str) -> str:
        return _file_name(unquote(last))

    def copied_folder(self, target: Path) -> bool:  # noqa: ARG002 - as a bucket has it
        return False  # a server has none

    def get(self, names: Sequence[str], targets: Sequence[Path]) -> None:
        """Copy files, whose names count from the folder of the root."""
        base, _, last = self.root.rpartition("/")
        for name, target in zip(names, targets, strict=True):
            # the name of the file itself stays as the user wrote it, with its query
            url = self.root + self.query if name == last else f"{base}/{quote(name)}"
            self.received += download(self.system, url, target, int(self.limits.download_bytes) - self.received)


def download(system: Any, url: str, target: Path, max_bytes: int) -> int:
    """Copy a file in pieces, and return its size; `system`: of fsspec, for http."""
    asyn = importlib.import_module("fsspec.asyn")

    def wait(work: Callable[..., Any], *words: Any) -> Any:
        try:
            return asyn.sync(system.loop, work, *words, timeout=_TIMEOUT)
        except asyn.FSTimeoutError as error:
            raise DataError(f"{url}: sent nothing for {_TIMEOUT:g} seconds; copy the file by other means") from error

    stream = wait(system.open_async, url, "rb", 0)  # a size, so that it is not asked for
    received, before, since = 0, 0, time.monotonic()
    try:
        with target.open("wb") as file:
            # a piece is what has come, and at most so long
            for piece in iter(lambda: wait(stream.read, _PIECE), b""):
                received += len(piece)
                _check_size(url, stream.r, received, max_bytes)
                file.write(piece)
                now = time.monotonic()
                if now - since > _PERIOD:
                    if received - before < _MIN_RATE * _PERIOD:
                        raise DataError(
                            f"{url}: sends less than {_MIN_RATE:,.0f} bytes a second; copy the file by other means"
                        )
                    since, before = now, received
    finally:
        wait(stream.close)
    return received


def _check_size(url: str, answer: Any, received: int, max_bytes: int) -> None:
    if answer.content_type == "text/html":
        raise DataError(f"{url}: is a web page (text/html), not data; give the address of the file itself")
    size = max(received, answer.content_length or 0)
    if size > max_bytes:
        raise DataError(
            f"{url}: has {size:,} bytes or more, of at most {max_bytes:,}; raise --limit download-bytes=NUMBER"
        )


def _file_name(name: str) -> str:
    """Return the name of a copy: that of the file, if it can be one."""
    if name in ("", ".", "..") or len(name) > _MAX_NAME or any(sign in name for sign in "/\\\0"):
        return "data"
    return name
