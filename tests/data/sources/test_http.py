"""http:// against a real server: what it serves, how it misbehaves, and where it must not lead."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.samples import encoded, gather, spec
from tna_onnx.data import Recipe, open_precomputed, open_source
from tna_onnx.data.choices import Limits
from tna_onnx.data.sources import remote as http
from tna_onnx.errors import DataError, UsageError

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


def test_features(server: str) -> None:
    found = open_precomputed(f"{server}/features.npz", [spec()], 2)
    assert found is not None
    np.testing.assert_array_equal(found.values, X)


def test_a_manifest_and_its_images(server: str) -> None:
    source = open_source(f"{server}/sub/list.csv", [IMAGE], 2, Recipe(scale=1.0))
    assert source.describe() == "manifest list.csv (2 images, 2 classes)"
    assert gather(source, 2)["image"].shape == (2, 3, 5, 6)


REFUSALS = {
    "/none.npz": (UsageError, "there is nothing there"),
    "/forbidden.npz": (DataError, "the server answers 403"),
    "/cut.npz": (DataError, "expected 1,[0-9]+ bytes, received [0-9]+|IncompleteRead"),
    "/login.npz": (DataError, "is a web page"),
    "/wrong.npz": (DataError, "expected a .npz file"),
    "/to/file.npz": (DataError, "file:///etc/passwd' is not allowed"),
    "/to/ftp.npz": (DataError, "redirects to 'ftp:.*, which is not followed"),
    "/to/circle": (DataError, "redirect"),
    "/outside.csv": (DataError, "lies outside the folder"),
}


@pytest.mark.parametrize("path", REFUSALS)
def test_refusals(server: str, path: str) -> None:
    kind, message = REFUSALS[path]
    with pytest.raises(kind, match=message):
        open_source(server + path, [IMAGE if path.endswith("csv") else spec()], 2)


def test_no_more_than_the_limit(server: str) -> None:
    for path in ("/endless.npz", "/a.npz"):
        with pytest.raises(DataError, match="raise --data-limit download-bytes=NUMBER"):
            open_source(server + path, [spec()], 2, limits=Limits(download_bytes=100))


def test_a_slow_server(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"slow\.npz: cannot be .*timed out"):
        http.download(f"{server}/slow.npz", tmp_path / "a", 10**6, timeout=0.1)
    monkeypatch.setattr(http, "_PERIOD", -1.0)
    monkeypatch.setattr(http, "_MIN_RATE", -1e9)
    with pytest.raises(DataError, match="sends less than"):
        http.download(f"{server}/a.npz", tmp_path / "a", 10**6)


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
