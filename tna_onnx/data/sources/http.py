"""Files behind http:// and https://, with the standard library: what a server says is not trusted further than needed.

1. A server that says nothing for 30 seconds, or sends less than 1 kB a second over a minute, is given up.
2. Redirects lead to http and https only, and from https to https only: never to files of this machine.
3. A file is kept only if as many bytes came as the server announced; all of them together stay below a limit.
4. A page of HTML in place of data is named as such: it is a login form or a directory listing.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tna_onnx.data.parsing import reason
from tna_onnx.errors import DataError, UsageError

if TYPE_CHECKING:
    from http.client import HTTPResponse
    from pathlib import Path

__all__ = ["download", "exists"]

_SCHEMES = ("http", "https")
_TIMEOUT = 30.0  # seconds without a byte
_PIECE = 1 << 16  # bytes
_MIN_RATE = 1000.0  # bytes per second, over the last period
_PERIOD = 60.0  # seconds
_GONE = (404, 410)


def exists(url: str) -> bool:
    """Tell whether the server has something at a URL.

    Raises:
        UsageError: the URL cannot be used.
        DataError: the server cannot be reached, or refuses.
    """
    try:
        with _open(url):
            return True
    except FileNotFoundError:
        return False


def download(url: str, target: Path, max_bytes: int, timeout: float = _TIMEOUT) -> int:
    """Copy a file, and return its size.

    Args:
        url: of the file.
        target: path to write.
        max_bytes: most that may come.
        timeout: seconds without a byte.

    Raises:
        UsageError: the URL cannot be used.
        DataError: the server cannot be reached, or what it sends cannot be used.
    """
    try:
        with _open(url, timeout) as response, target.open("wb") as file:
            announced = _announced(url, response, max_bytes)
            received = _copy(url, response, file, max_bytes)
    except FileNotFoundError as error:
        raise DataError(f"{url}: there is nothing there ({error}); check the path behind the host") from error
    except OSError as error:  # a time-out among them
        raise DataError(f"{url}: cannot be copied ({reason(error)}); check the connection and the disk") from error
    if announced is not None and received != announced:
        raise DataError(f"{url}: expected {announced:,} bytes, received {received:,}; try again")
    return received


def _copy(url: str, response: HTTPResponse, file: Any, max_bytes: int) -> int:
    """Write what comes, and return its size (rules 1 and 3)."""
    received = 0
    since = time.monotonic()
    before = 0
    # read1 returns what is there: a server that drips would otherwise fill a piece for ever
    while piece := response.read1(_PIECE):
        received += len(piece)
        if received > max_bytes:
            raise DataError(f"{url}: sends more than {max_bytes:,} bytes; raise --data-limit download-bytes=NUMBER")
        file.write(piece)
        if time.monotonic() - since > _PERIOD:
            if received - before < _MIN_RATE * _PERIOD:
                raise DataError(f"{url}: sends less than {_MIN_RATE:,.0f} bytes a second; copy the file by other means")
            since = time.monotonic()
            before = received
    return received


def _announced(url: str, response: HTTPResponse, max_bytes: int) -> int | None:
    """Return the size that the server announces, if it does.

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


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Rule 2."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """Return the next request."""
        scheme = urlsplit(newurl).scheme.lower()
        allowed = ("https",) if req.type == "https" else _SCHEMES
        if scheme not in allowed:
            raise DataError(
                f"{req.full_url}: redirects to {newurl[:200]!r}, which is not followed; give the last address"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(url: str, timeout: float = _TIMEOUT) -> HTTPResponse:
    """Send a request.

    Raises:
        FileNotFoundError: there is nothing at the URL.
        UsageError, DataError: see `exists`.
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
        response: HTTPResponse | None = opener.open(request, timeout=timeout)
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
