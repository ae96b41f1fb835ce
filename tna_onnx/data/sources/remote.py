"""Data behind a URL, copied to a temporary folder: http and https by the standard library, all others by fsspec.

A folder is copied with all its files, and a manifest with its images. The copy is removed when the data are no longer
in use, at the latest when Python exits. `file://` is treated as a path, and nothing is copied.

Servers of http and https are not trusted:

1. The head of an answer, with all redirects and `100 Continue`, comes within 30 seconds; what follows, its framing
   left out, at 1 kB a second or more over each minute. `urllib` has a limit for each byte only, so a thread of its own
   does the transfer, and is left behind where it takes longer.
2. Redirects are followed only to http and https, and from https only to https: never to files of this machine. From a
   server outside they lead to no name that stands for an address of a private network, this machine, or a link-local
   address, also where that is the IPv4 address in one of IPv6 that is translated.
3. A file is kept only if its size is what the server announced; all files together stay below a limit.
4. HTML in place of data is refused by name: it is a login form or a directory listing.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import shutil
import socket
import tempfile
import threading
import time
import urllib.error
import urllib.request
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from tna_onnx.data.choices import DEFAULT_LIMITS
from tna_onnx.data.foreign import file_system, reason
from tna_onnx.errors import DataError, TnaError, UsageError

if TYPE_CHECKING:
    from http.client import HTTPResponse

    from tna_onnx.data.choices import Limits

_MAX_NAME = 120  # characters: file systems take 255 bytes


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
        cannot_reach = ("reached", "check address and credentials")
        if self._ask(self._system.is_folder, *cannot_reach):
            self._ask(lambda: self._system.get_folder(self.path))
        elif self._ask(self._system.exists, *cannot_reach):
            self._ask(lambda: self._system.get([last], [self.path]))
        else:
            raise UsageError(f"{url}: there is nothing there; check the path behind the host or bucket")

    def fetch(self, names: Sequence[str]) -> None:
        """Copy further files, whose paths count from the folder of the URL."""
        # A manifest from elsewhere must not make this write outside the copy.
        for name in names:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\0" in name or "\\" in name:
                raise DataError(f"{self.url}: {name!r} lies outside the folder of that file; use relative paths")
        targets = [self._folder / name for name in names]

        def get() -> None:
            for folder in {target.parent for target in targets}:
                folder.mkdir(parents=True, exist_ok=True)
            self._system.get(names, targets)

        self._ask(get)

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

    def _ask(
        self, request: Callable[[], Any], what: str = "copied", advice: str = "check the connection and the disk"
    ) -> Any:
        try:
            return request()
        except TnaError:
            raise
        except Exception as error:  # every file system has exceptions of its own
            raise DataError(
                f"{self.url}: cannot be {what} ({type(error).__name__}: {reason(error)}); {advice}"
            ) from error


def _system(url: str, limits: Limits) -> _Web | _Bucket:
    """Return the server or file system behind a URL."""
    if url.partition("://")[0].lower() in ("http", "https"):
        root, mark, query = url.partition("?")
        return _Web(root.rstrip("/"), mark + query, limits)
    system, root = file_system(url)
    return _Bucket(root, system, limits)


@dataclass
class _Bucket:
    """What fsspec reads; `root` is the path in that file system."""

    root: str
    system: Any
    limits: Limits

    def is_folder(self) -> bool:
        return bool(self.system.isdir(self.root))

    def exists(self) -> bool:
        return bool(self.system.exists(self.root))

    def file_name(self, last: str) -> str:
        return _file_name(last)

    def get_folder(self, target: Path) -> None:
        size = self.system.du(self.root)
        if size > self.limits.download_bytes:
            raise DataError(f"{self.root}: has {size:,} bytes; raise --data-limit download-bytes=NUMBER")
        self.system.get(f"{self.root}/", f"{target}/", recursive=True)

    def get(self, names: Sequence[str], targets: Sequence[Path]) -> None:
        base = self.root.rpartition("/")[0]
        self.system.get([f"{base}/{name}" for name in names], [str(target) for target in targets])


@dataclass
class _Web:
    """A server of http or https, which has no folders; `query` is what follows the path."""

    root: str
    query: str
    limits: Limits
    received: int = 0

    def is_folder(self) -> bool:
        return False

    def exists(self) -> bool:
        url = self.root + self.query

        def ask(_: _Transfer) -> bool:
            with _open(url):
                return True

        try:
            return bool(_Transfer(ask).result(url))
        except FileNotFoundError:
            return False

    def file_name(self, last: str) -> str:
        return _file_name(unquote(last))

    def get_folder(self, target: Path) -> None:
        raise NotImplementedError  # there are none

    def get(self, names: Sequence[str], targets: Sequence[Path]) -> None:
        """Copy files, whose names count from the folder of the root."""
        base, _, last = self.root.rpartition("/")
        for name, target in zip(names, targets, strict=True):
            # the name of the file itself stays as the user wrote it, with its query
            url = self.root + self.query if name == last else f"{base}/{quote(name)}"
            self.received += download(url, target, int(self.limits.download_bytes) - self.received)


def _file_name(name: str) -> str:
    """Return the name of a copy: that of the file, if it can be one."""
    if name in ("", ".", "..") or len(name) > _MAX_NAME or any(sign in name for sign in "/\\\0"):
        return "data"
    return name


# ---- http and https


_TIMEOUT = 30.0  # seconds: without a byte, and for the head with all redirects
_PIECE = 1 << 16  # bytes
_MIN_RATE = 1000.0  # bytes per second, over the last period
_PERIOD = 60.0  # seconds
_LOOK = 0.2  # seconds between two looks at the clock
_GONE = (404, 410)


@dataclass(eq=False)
class _Transfer:
    """Something that a thread of its own does with a server."""

    work: Callable[[_Transfer], Any]  # does it, and says in `received` how far it is
    received: int | None = None  # bytes of the body so far; None while the head is awaited
    # what the work has returned or raised, once it has
    outcome: list[tuple[Any, BaseException | None]] = field(default_factory=list)

    def result(self, url: str) -> Any:
        """Return what the work returns, or raise what it raises."""
        thread = threading.Thread(target=self._run, name="tna-onnx-web", daemon=True)
        thread.start()
        since, before = time.monotonic(), 0
        head = True
        while thread.is_alive():
            thread.join(_LOOK)
            now = time.monotonic()
            received = self.received
            if head and received is not None:
                head, since = False, now
            if received is None:
                if now - since > _TIMEOUT and thread.is_alive():
                    raise DataError(f"{url}: has not answered within {_TIMEOUT:g} seconds")
            elif now - since > _PERIOD:
                if received - before < _MIN_RATE * _PERIOD and thread.is_alive():
                    raise DataError(
                        f"{url}: sends less than {_MIN_RATE:,.0f} bytes a second; copy the file by other means"
                    )
                since, before = now, received
        ((value, error),) = self.outcome
        if error is not None:
            raise error
        return value

    def _run(self) -> None:
        try:
            self.outcome.append((self.work(self), None))
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            self.outcome.append((None, error))


# Addresses of IPv6 that a gateway translates to the IPv4 address in their last 32 bits (RFC 6052; RFC 8215; RFC 4291,
# section 2.5.5): they lead to wherever that one leads.
_TRANSLATED = tuple(
    map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::ffff:0:0/96", "::ffff:0:0:0/96", "::/96"))
)


def _is_public(text: str) -> bool:
    address: Any = ipaddress.ip_address(text.partition("%")[0])
    if address.version == 6 and address.sixtofour is not None:  # 2002::/16 (RFC 3056)
        address = address.sixtofour
    elif address.version == 6 and any(address in network for network in _TRANSLATED):
        address = ipaddress.IPv4Address(int(address) % 2**32)
    return bool(address.is_global)


def _leads_inside(host: str | None) -> bool:
    """Whether a name stands for an address that is not public; of one that only a proxy knows nothing is known."""
    try:
        places = socket.getaddrinfo(host, None, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return not all(_is_public(str(place[0])) for *_, place in places)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Rule 2."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        parts = urlsplit(newurl)
        allowed = ("https",) if req.type == "https" else ("http", "https")
        inside = _leads_inside(parts.hostname) and not _leads_inside(urlsplit(req.full_url).hostname)
        if parts.scheme.lower() not in allowed or inside:
            if fp is not None:
                fp.close()
            raise DataError(
                f"{req.full_url}: redirects to {newurl[:200]!r}, which is not followed; give the last address"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def download(url: str, target: Path, max_bytes: int) -> int:
    """Copy a file, and return its size."""

    def copy(transfer: _Transfer) -> int:
        with _open(url) as response, target.open("wb") as file:
            announced = _announced(url, response, max_bytes)
            received = transfer.received = 0
            # read1 returns what is there: each byte that came is counted
            while piece := response.read1(_PIECE):
                received = transfer.received = received + len(piece)
                if received > max_bytes:
                    raise DataError(
                        f"{url}: sends more than {max_bytes:,} bytes; raise --data-limit download-bytes=NUMBER"
                    )
                file.write(piece)
        if announced is not None and received != announced:
            raise DataError(f"{url}: expected {announced:,} bytes, received {received:,}; try again")
        return received

    try:
        return int(_Transfer(copy).result(url))
    except FileNotFoundError as error:
        raise DataError(f"{url}: there is nothing there ({error}); check the path behind the host") from error
    except (OSError, http.client.HTTPException) as error:  # a time-out among them, and an end within a chunk
        raise DataError(f"{url}: cannot be copied ({reason(error)}); check the connection and the disk") from error


def _announced(url: str, response: HTTPResponse, max_bytes: int) -> int | None:
    """Return the size that the server announces, or None."""
    kind = response.headers.get_content_type()
    if kind == "text/html":
        raise DataError(f"{url}: is a web page (text/html), not data; give the address of the file itself")
    length = response.headers.get("Content-Length", "")
    if not (length.isascii() and length.isdigit() and len(length) < 20):
        return None
    if int(length) > max_bytes:
        raise DataError(
            f"{url}: has {int(length):,} bytes, more than {max_bytes:,}; raise --data-limit download-bytes=NUMBER"
        )
    return int(length)


def _open(url: str) -> HTTPResponse:
    """Send a request, and return the answer when its head is there.

    Raises FileNotFoundError: there is nothing at the URL. UsageError, DataError: it cannot be opened.
    """
    # Only http: the default openers also read ftp:, file: and data:.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(),
    ):
        opener.add_handler(handler)
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "tna-onnx"})  # noqa: S310 - http only, see above
        response: HTTPResponse | None = opener.open(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in _GONE:
            raise FileNotFoundError(f"HTTP {error.code}") from error
        raise DataError(
            f"{url}: the server answers {error.code} {error.reason}; check address and permissions"
        ) from error
    except ValueError as error:
        raise UsageError(f"{url}: cannot be used as a URL ({reason(error)}); give https://HOST/PATH") from error
    # An answer that is no HTTP raises exceptions of `http.client`, which have no common base with the others.
    except Exception as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{url}: cannot be reached ({reason(error)}); check the address and the connection") from error
    if response is None:
        raise UsageError(f"{url}: cannot be used as a URL; give https://HOST/PATH")
    return response
