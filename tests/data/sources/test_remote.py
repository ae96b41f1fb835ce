"""Data behind URLs, on fsspec's file system in memory."""

import gc
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.samples import gather, open_source, spec, write_folder, write_npz
from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.errors import DataError, UsageError

fsspec = pytest.importorskip("fsspec")

X = np.random.default_rng(0).random((4, 4), np.float32)
LABELS = np.array([0, 1, 0, 1])
IMAGE = spec("image", (None, 3, 5, 6))


@pytest.fixture(autouse=True)
def _temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


@pytest.fixture
def put(tmp_path: Path) -> Any:
    system = fsspec.filesystem("memory")

    def upload(local: Path) -> str:
        at = f"/{tmp_path.name}/{local.name}"
        system.put(f"{local}/" if local.is_dir() else str(local), f"{at}/" if local.is_dir() else at, recursive=True)
        return f"memory:/{at}"

    return upload


def test_a_folder_of_images(tmp_path: Path, put: Any) -> None:
    local = write_folder(tmp_path / "calib", ["0/a.png", "1/b.png", "1/deep/c.png"])
    source, same = (open_source(path, [IMAGE], 2, Recipe(scale=1.0)) for path in (put(local), local))
    np.testing.assert_array_equal(gather(source, 2)["image"], gather(same, 2)["image"])
    assert source.digest() == same.digest()
    assert source.describe() == same.describe()


def test_a_list_of_images_is_given_as_labels_of_their_folder(tmp_path: Path, put: Any) -> None:
    local = write_folder(tmp_path / "calib", ["a.png", "sub/b.png", "not listed.png"])
    (local / "list.csv").write_text("path,label\na.png,0\nsub/b.png,1\n")
    url = put(local)
    source = open_source(url, [IMAGE], 2, labels=local / "list.csv")
    np.testing.assert_array_equal(
        gather(source, 2)["image"], gather(open_source(local / "list.csv", [IMAGE], 2), 2)["image"]
    )
    with pytest.raises(UsageError, match="give the URL of their folder"):
        open_source(f"{url}/list.csv", [IMAGE], 2)


def test_the_copy_lives_as_long_as_it_is_used(tmp_path: Path, put: Any) -> None:
    source: Any = open_source(put(write_folder(tmp_path / "calib", ["0/a.png", "1/b.png"])), [IMAGE], 2)
    source = replace(source, notes=("prepared in another way",))
    gc.collect()
    batches = source.batches(1)
    next(batches)
    del source
    gc.collect()
    assert len(list(batches)) == 1
    del batches
    gc.collect()
    assert os.listdir(tmp_path / "tmp") == []  # noqa: PTH208


def test_errors_name_the_url_and_leave_no_copy(tmp_path: Path, put: Any) -> None:
    url = put(write_npz(tmp_path / "calib.npz", {"y": X[:, :2], "labels": LABELS}))
    with pytest.raises(DataError, match=rf"^{url}: no array for the model's input 'x'"):
        open_source(url, [spec()], 2)
    gc.collect()
    assert os.listdir(tmp_path / "tmp") == []  # noqa: PTH208


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("memory://gone/c.npz", "there is nothing there"),
        ("nonsense://a/b.npz", "cannot be opened"),
        ("https://host/a.npz", "web servers are not read"),
    ],
)
def test_nothing_there(url: str, says: str) -> None:
    with pytest.raises(UsageError, match=f"{url}: {says}"):
        open_source(url, [spec()], 2)


def test_missing_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(UsageError, match=r"needs fsspec, .* pip install 'tna-onnx\[remote\]'"):
        open_source("memory://a/b.npz", [spec()], 2)


@pytest.mark.parametrize("url", ["HTTP://127.0.0.1:9/..", "memory://", "://", "zip://", "a::b://c", "memory://\x00/.."])
def test_odd_urls(url: str) -> None:
    with pytest.raises((UsageError, DataError)):
        open_source(url, [spec()], 2)
