"""A tampered cache: no link in a store is followed, and the store of another user is not filled."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import support
from tests.conftest import Small
from tests.extraction.test_store import BATCH, KEY, LABELS, kept
from tna_onnx.errors import DataError, UsageError
from tna_onnx.extraction.manifest import json_digest, read_manifest, write_manifest
from tna_onnx.extraction.own_files import make_folder, open_own
from tna_onnx.extraction.store import open_store
from tna_onnx.extraction.stored import read_stored

pytestmark = pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="needs POSIX links")

FILES = ["lock", "features.bin", "logits.bin", "labels.npy", "manifest.json", ".manifest.json.tmp", "journal.txt"]


def test_modes(tmp_path: Path) -> None:
    folder = kept(tmp_path / "cache", stop=100)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", [os.symlink, os.link, lambda _, path: os.mkfifo(path)])
def test_a_file_of_a_store_that_is_something_else(tmp_path: Path, name: str, kind: Callable[[Path, Path], Any]) -> None:
    secret = tmp_path / "precious.txt"
    secret.write_text("precious")
    folder = kept(tmp_path / "cache", stop=900)
    (folder / name).unlink(missing_ok=True)
    kind(secret, folder / name)
    with (
        pytest.raises(UsageError, match=f"{name}: .*remove it, or choose another --cache"),
        open_store(tmp_path / "cache", KEY, LABELS, BATCH),
    ):
        pass
    assert secret.read_text() == "precious"


def test_the_command_leaves_other_files_alone(small: Small, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    words = ["features", small.model, "--data", small.calib, "--cache", cache, "-q"]
    assert support.cli(*words).exit_code == 0
    precious = tmp_path / "precious"
    for name in ("lock", "features.bin"):
        precious.write_text("precious")
        [store] = cache.iterdir()
        (store / name).unlink()
        (store / name).symlink_to(precious)
        done = support.cli(*words)
        assert (done.exit_code, precious.read_text()) == (2, "precious")
        assert f"{name}: is a link" in done.output
        (store / name).unlink()


def test_the_folder_of_a_store_is_a_link(tmp_path: Path) -> None:
    folder = kept(tmp_path / "cache", stop=100)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.raises(UsageError, match="is no folder, or a link to one"):
        make_folder(folder)


def test_the_store_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = kept(tmp_path, stop=100)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(UsageError, match="belongs to another user"), open_store(tmp_path, KEY, LABELS, BATCH):
        pass
    with pytest.raises(UsageError, match="belongs to another user"):
        open_own(folder / "features.bin")


@pytest.mark.parametrize("name", ["features.bin", "labels.npy", "manifest.json"])
def test_a_store_that_is_read_follows_no_link_either(tmp_path: Path, name: str) -> None:
    folder = kept(tmp_path / "cache")
    (folder / name).rename(tmp_path / "moved")
    (folder / name).symlink_to(tmp_path / "moved")
    with pytest.raises(DataError):
        read_stored(folder)


def made_up(**changes: Any) -> dict[str, Any]:
    arrays = {"features": {"dtype": "<f4", "shape": [2]}}
    return {"key": {}, "samples": 3, "chunk": 2, "arrays": arrays, "checksums": []} | changes


@pytest.mark.parametrize(
    "content",
    [
        made_up(arrays={"../../precious": {"dtype": "<f4", "shape": [2]}}),
        made_up(arrays={"features": {"dtype": "O", "shape": [2]}}),
        made_up(arrays={"features": {"dtype": "<f4", "shape": [-1, -1]}}),
        made_up(arrays={"features": {"dtype": "<f4", "shape": [True]}}),
        made_up(samples=-1),
        made_up(samples=2.5),
        made_up(samples=10**30),
        made_up(chunk=0),
        made_up(checksums=["a", "b", "c"]),
        made_up(checksums="ab"),
        made_up(key=[]),
    ],
)
def test_a_manifest_that_someone_made_up(tmp_path: Path, content: dict[str, Any]) -> None:
    """Its digest fits, since anybody can compute it."""
    write_manifest(tmp_path, made_up())
    assert read_manifest(tmp_path) is not None
    write_manifest(tmp_path, content)
    assert read_manifest(tmp_path) is None
    assert json_digest(content)
