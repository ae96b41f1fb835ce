"""http and https by the standard library, from servers that are not trusted.

1. The head of an answer, with all redirects and `100 Continue`, comes within 30 seconds; what follows, its framing
   left out, at 1 kB a second or more over each minute. `urllib` has a limit for each byte only, so a thread watches the
   connection and shuts it down.
2. Redirects are followed only to http and https, and from https only to https: never to files of this machine. From a
   server outside they lead to none of a private network, this machine, or a link-local address: what is looked at is
   the address that is connected to, not the name, and the IPv4 address in one of IPv6 that is translated.
3. A file is kept only if its size is what the server announced; all files together stay below a limit.
4. HTML in place of data is refused by name: it is a login form or a directory listing.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import ipaddress
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tna_onnx.data.files import reason
from tna_onnx.errors import DataError, UsageError

if TYPE_CHECKING:
    from http.client import HTTPResponse

__all__ = ["download", "exists"]


_SCHEMES = ("http", "https")
_TIMEOUT = 30.0  # seconds: without a byte, and for the head with all redirects
_PIECE = 1 << 16  # bytes
_MIN_RATE = 1000.0  # bytes per second, over the last period
_PERIOD = 60.0  # seconds
_LOOK = 0.2  # seconds between two looks at the clock
_GONE = (404, 410)


class _Watch:
    """Shuts a connection down that takes too long (rule 1), and knows whether it began outside (rule 2).

    Attributes:
        received: bytes of the body so far; None while the head is awaited.
        late: what took too long; empty if nothing did.
        outside: whether the first server has a public address; None before it is known, and behind a proxy.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.late = ""
        self.outside: bool | None = None
        self._line: socket.socket | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def watching(self) -> Iterator[_Watch]:
        """Watch while the block runs."""
        thread = threading.Thread(target=self._look, name="tna-onnx-web", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._done.set()
            thread.join()
            self._keep(None)

    def _keep(self, line: socket.socket | None) -> None:
        with self._lock:
            if self._line is not None:
                self._line.close()
            self._line = line
            if line is not None and self.late:
                _shut(line)

    def _look(self) -> None:
        since, before = time.monotonic(), 0
        head = True
        while not self._done.wait(_LOOK):
            now = time.monotonic()
            received = self.received
            if head and received is not None:
                head, since, before = False, now, 0
            if head and now - since > _TIMEOUT:
                self._stop(f"has not answered within {_TIMEOUT:g} seconds")
            elif not head and now - since > _PERIOD:
                assert received is not None  # noqa: S101 - it never is again
                if received - before < _MIN_RATE * _PERIOD:
                    self._stop(f"sends less than {_MIN_RATE:,.0f} bytes a second; copy the file by other means")
                since, before = now, received

    def _stop(self, late: str) -> None:
        with self._lock:
            self.late = self.late or late
            if self._line is not None:
                _shut(self._line)

    def connect(
        self, address: tuple[str, int], timeout: Any = None, source: Any = None, *, proxied: bool = False
    ) -> socket.socket:
        """Connect, as `socket.create_connection`, to an address that may be connected to."""
        refused: Exception = OSError(f"{address[0]} has no address")
        for family, kind, protocol, _, place in socket.getaddrinfo(*address, 0, socket.SOCK_STREAM):
            public = _is_public(str(place[0]))
            if self.outside and not public and not proxied:
                refused = DataError(f"it redirects to {address[0]} ({place[0]}), inside a network; give that address")
                continue
            if self.late:
                raise TimeoutError(self.late)
            line = socket.socket(family, kind, protocol)
            try:
                line.settimeout(timeout)
                self._keep(line.dup())  # TLS takes the socket itself away
                if source:
                    line.bind(source)
                line.connect(place)
            except OSError as error:
                line.close()
                refused = error
                continue
            if self.outside is None and not proxied:
                self.outside = public
            return line
        raise refused


def _shut(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)


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


def _connection(kind: type[Any], watch: _Watch, host: str, *, proxied: bool, **words: Any) -> Any:
    connection = kind(host, **words)
    connection._create_connection = functools.partial(watch.connect, proxied=proxied)
    return connection


class _Http(urllib.request.HTTPHandler):
    """Connections that are watched."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def http_open(self, req: Any) -> Any:
        """Open http."""
        kind = functools.partial(_connection, http.client.HTTPConnection, self._watch, proxied=_proxied(req))
        return self.do_open(kind, req)  # type: ignore[arg-type, unused-ignore]  # called with a host, as the class is


class _Https(urllib.request.HTTPSHandler):
    """The same with TLS."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def https_open(self, req: Any) -> Any:
        """Open https."""
        kind = functools.partial(_connection, http.client.HTTPSConnection, self._watch, proxied=_proxied(req))
        return self.do_open(kind, req)  # type: ignore[arg-type, unused-ignore]  # likewise


def _proxied(request: Any) -> bool:
    return bool(request.has_proxy() or getattr(request, "_tunnel_host", None))


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Rule 2."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """Return the next request."""
        parts = urlsplit(newurl)
        allowed = ("https",) if req.type == "https" else _SCHEMES
        # a proxy finds the address by itself: what can be told is an address that is written down
        inside = _names_inside(parts.hostname) and not _names_inside(urlsplit(req.full_url).hostname)
        if parts.scheme.lower() not in allowed or inside:
            raise DataError(
                f"{req.full_url}: redirects to {newurl[:200]!r}, which is not followed; give the last address"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _names_inside(host: str | None) -> bool:
    """Whether a host is written as this machine, or as an address that is not public."""
    name = (host or "").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return not _is_public(name)
    except ValueError:
        return False


def exists(url: str) -> bool:
    """Tell whether the server has something at a URL.

    Raises:
        UsageError: the URL cannot be used.
        DataError: the server cannot be reached, or refuses.
    """
    try:
        with _Watch().watching() as watch, _open(url, watch):
            return True
    except FileNotFoundError:
        return False


def download(url: str, target: Path, max_bytes: int) -> int:
    """Copy a file, and return its size.

    Args:
        url: of the file.
        target: path to write.
        max_bytes: most that may come.

    Raises:
        UsageError: the URL cannot be used.
        DataError: the server cannot be reached, or what it sends cannot be used.
    """
    watch = _Watch()
    try:
        with watch.watching(), _open(url, watch) as response, target.open("wb") as file:
            announced = _announced(url, response, max_bytes)
            received = _copy(url, response, file, max_bytes, watch)
    except FileNotFoundError as error:
        raise DataError(f"{url}: there is nothing there ({error}); check the path behind the host") from error
    except (OSError, http.client.HTTPException) as error:  # a time-out among them, and an end within a chunk
        if watch.late:
            raise DataError(f"{url}: {watch.late}") from error
        raise DataError(f"{url}: cannot be copied ({reason(error)}); check the connection and the disk") from error
    if watch.late:
        raise DataError(f"{url}: {watch.late}")
    if announced is not None and received != announced:
        raise DataError(f"{url}: expected {announced:,} bytes, received {received:,}; try again")
    return received


def _copy(url: str, response: HTTPResponse, file: Any, max_bytes: int, watch: _Watch) -> int:
    """Write the response to a file, and return its size (rule 3)."""
    received = 0
    # read1 returns what is there: the watch sees each byte that came
    while piece := response.read1(_PIECE):
        received += len(piece)
        watch.received = received
        if received > max_bytes:
            raise DataError(f"{url}: sends more than {max_bytes:,} bytes; raise --data-limit download-bytes=NUMBER")
        file.write(piece)
    return received


def _announced(url: str, response: HTTPResponse, max_bytes: int) -> int | None:
    """Return the size that the server announces, or None.

    Raises:
        DataError: it is too large, or what comes is a page (rule 4).
    """
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


def _open(url: str, watch: _Watch) -> HTTPResponse:
    """Send a request, and return the answer when its head is there.

    Raises:
        FileNotFoundError: there is nothing at the URL.
        UsageError, DataError: see `exists`.
    """
    # Only http: the default openers also read ftp:, file: and data:.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        _Http(watch),
        _Https(watch),
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
        if watch.late:
            raise DataError(f"{url}: {watch.late}") from error
        raise DataError(f"{url}: cannot be reached ({reason(error)}); check the address and the connection") from error
    if response is None:
        raise UsageError(f"{url}: cannot be used as a URL; give https://HOST/PATH")
    watch.received = 0
    return response
