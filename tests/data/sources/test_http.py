"""http:// against a real server: what it serves, how it misbehaves, and where it must not lead."""

import contextlib
import io
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from tests.data.samples import encoded, gather, spec
from tna_onnx.data import Recipe, open_source
from tna_onnx.data.choices import Limits
from tna_onnx.data.sources import remote as http
from tna_onnx.errors import DataError, UsageError

pytest.importorskip("aiohttp")

X = np.random.default_rng(0).random((4, 4), np.float32)
LABELS = np.array([0, 1, 0, 1])
IMAGE = spec("image", (None, 3, 5, 6))


def npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


ARRAYS = npz(x=X, labels=LABELS)


class Handler(BaseHTTPRequestHandler):
    """Each path behaves in its own way."""

    def do_GET(self) -> None:
        name = self.path.split("?")[0]
        if name == "/slow.npz":
            time.sleep(1)
        if name.startswith("/to/"):
            self.redirect(name)
            return
        pages = {
            "/a.npz": ARRAYS,
            "/features.npz": npz(features=X, labels=LABELS),
            "/sub/list.csv": b"path,label\nimg/a b.png,0\n1.png,1\n",
            "/sub/img/a%20b.png": encoded(0),
            "/sub/1.png": encoded(1),
            "/cut.npz": ARRAYS,
            "/slow.npz": ARRAYS,
            "/login.npz": b"<html>log in</html>",
            "/endless.npz": b"x" * 100_000,
            "/wrong.npz": b"no archive",
            "/outside.csv": b"path,label\n../secret.png,0\n/etc/passwd,1\n",
        }
        if name not in pages:
            self.send_error(403 if name == "/forbidden.npz" else 404)
            return
        body = pages[name]
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if name == "/login.npz" else "application/octet-stream")
        if name != "/endless.npz":
            self.send_header("Content-Length", str(len(body) + (1000 if name == "/cut.npz" else 0)))
        self.end_headers()
        self.wfile.write(body)

    def redirect(self, name: str) -> None:
        targets = {
            "here": "/a.npz",
            "file": "file:///etc/passwd",
            "circle": "/to/circle",
            "ftp": "ftp://127.0.0.1/a.npz",
        }
        self.send_response(302)
        self.send_header("Location", targets[name.removeprefix("/to/").removesuffix(".npz")])
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.mark.parametrize("path", ["/a.npz", "/a.npz?token=a/b", "/to/here.npz"])
def test_a_file(server: str, path: str) -> None:
    np.testing.assert_array_equal(gather(open_source(server + path, [spec()], 2), 3)["x"], X)


def test_a_manifest_and_its_images(server: str) -> None:
    source = open_source(f"{server}/sub/list.csv", [IMAGE], 2, Recipe(scale=1.0))
    assert source.describe() == "manifest list.csv (2 images, 2 classes)"
    assert gather(source, 2)["image"].shape == (2, 3, 5, 6)


REFUSALS = {
    "/none.npz": (UsageError, "there is nothing there"),
    "/forbidden.npz": (DataError, "403"),
    "/cut.npz": (DataError, "cannot be copied"),
    "/login.npz": (DataError, "is a web page"),
    "/wrong.npz": (DataError, "expected a .npz file"),
    "/to/file.npz": (DataError, "NonHttpUrlRedirect"),
    "/to/ftp.npz": (DataError, "NonHttpUrlRedirect"),
    "/to/circle": (DataError, "Redirect"),
    "/outside.csv": (DataError, "lies outside the folder"),
}


@pytest.mark.parametrize("path", REFUSALS)
def test_refusals(server: str, path: str) -> None:
    kind, message = REFUSALS[path]
    with pytest.raises(kind, match=message):
        open_source(server + path, [IMAGE if path.endswith("csv") else spec()], 2)


def test_no_more_than_the_limit(server: str) -> None:
    for path in ("/endless.npz", "/a.npz"):
        with pytest.raises(DataError, match="raise --limit download-bytes=NUMBER"):
            open_source(server + path, [spec()], 2, limits=Limits(download_bytes=100))


def test_a_slow_server(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_TIMEOUT", 0.1)
    with pytest.raises(DataError, match=r"slow\.npz: sent nothing for 0\.1 seconds"):
        http.Copy(f"{server}/slow.npz")


# Hostile servers: what they send at once, and what they drip, a piece each hundredth of a second, for ever.
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
HOSTILE: dict[str, tuple[bytes, bytes]] = {
    "silent": (b"", b""),
    "many headers": (OK, b"A: b\r\n"),
    "endless 100 Continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "redirects": (b"", b""),
    "body by bytes": (OK + b"Content-Length: 1000000\r\n\r\n", b"x"),
    "chunk extension": (CHUNKED + b"5;a=", b"b"),
    "chunks of one byte": (CHUNKED, b"1\r\nx\r\n"),
    "silent after the head": (CHUNKED, b""),
}


@contextlib.contextmanager
def hostile(kind: str) -> Iterator[str]:
    """Run a server of a kind, and give its URL."""
    first, drip = HOSTILE[kind]
    over = threading.Event()

    def serve(line: socket.socket) -> None:
        with line, contextlib.suppress(OSError):
            line.recv(1 << 16)
            if kind == "redirects":
                time.sleep(0.05)
                line.sendall(b"HTTP/1.1 302 Found\r\nLocation: /%f\r\nConnection: close\r\n\r\n" % time.monotonic())
                return
            line.sendall(first)
            while not over.wait(0.01):
                line.sendall(drip)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = listener.accept()
                threading.Thread(target=serve, args=(line,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/a.npz"
        over.set()


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_server_holds_a_run(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a second and half a one in place of 30 and of 60."""
    monkeypatch.setattr(http, "_TIMEOUT", 1.0)
    monkeypatch.setattr(http, "_PERIOD", 0.5)
    start = time.monotonic()
    with hostile(kind) as url, pytest.raises(DataError) as refused:
        http.Copy(url)
    assert time.monotonic() - start < 4
    assert ("Redirect" in str(refused.value)) == (kind == "redirects")


ODD = [
    "http://",
    "http:///a.npz",
    "http://[::1",
    "http://127.0.0.1:99999/a.npz",
    "http://127.0.0.1:9/a.npz",
    "https://a b/c",
    "HTTP://127.0.0.1:9/..",
    "http://127.0.0.1:9/\x00",
    "http://\udcff/a",
    "s3://",
    "memory://",
    "://",
    "zip://",
    "a::b://c",
]


@pytest.mark.parametrize("url", ODD)
def test_odd_urls(url: str) -> None:
    with pytest.raises((UsageError, DataError)):
        open_source(url, [spec()], 2)
