"""Large mapped files: rows that were read leave memory and keep their values; given features are not copied."""

import mmap
import os
from pathlib import Path

import numpy as np
import pytest

import tna_onnx
import tna_onnx.extraction.collect
from tests.conftest import Small
from tests.support import PLAIN
from tna_onnx.data import mapped as mapped_module
from tna_onnx.data.digest import arrays_sha256
from tna_onnx.data.mapped import allocate, release
from tna_onnx.errors import DataError, UsageError


def resident(array: np.memmap) -> int:
    """Bytes of a mapped array that this process has in memory, from Linux."""
    start = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    found = 0
    there = False
    for line in Path("/proc/self/smaps").read_text(encoding="ascii").splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            low, high = (int(part, 16) for part in first.split("-"))
            there = low <= start < high
        elif there and first == "Rss:":
            found += int(line.split()[1]) * 1024
    return found


@pytest.fixture
def mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.memmap:
    """4 MB of rows of 4 kB, behind an offset that is no whole page; large enough to be released."""
    monkeypatch.setattr(mapped_module, "_STAYS", 2**20)
    rows = np.arange(1024 * 1024, dtype=np.float32).reshape(1024, 1024)
    np.save(tmp_path / "rows.npy", rows)
    return np.load(tmp_path / "rows.npy", mmap_mode="r+")


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux tells which pages are there")
def test_released_rows_leave_memory_and_keep_their_values(mapped: np.memmap) -> None:
    expected = np.array(mapped)
    assert resident(mapped) >= 4 * 2**20
    release(mapped, slice(256, 768))
    assert resident(mapped) <= 2 * 2**20 + 4 * mmap.PAGESIZE
    np.testing.assert_array_equal(mapped, expected)
    mapped[300] = -1
    release(mapped.reshape(512, 2048), slice(0, 512))
    assert resident(mapped) <= 2 * mmap.PAGESIZE
    assert np.all(mapped[300] == -1)  # what was written is in the file
    np.testing.assert_array_equal(np.delete(mapped, 300, axis=0), np.delete(expected, 300, axis=0))


@pytest.mark.parametrize("rows", [slice(0, 0), slice(5, 2), slice(1023, 9999), slice(0, 1), slice(3, 900, 2)])
def test_any_rows_may_be_released(mapped: np.memmap, rows: slice) -> None:
    expected = np.array(mapped)
    for array in (mapped, mapped[:, ::2], mapped.T, np.asarray(mapped), expected):
        release(array, rows)
    np.testing.assert_array_equal(mapped, expected)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux tells which pages are there")
def test_a_digest_gives_back_the_pages_that_it_has_read(mapped: np.memmap) -> None:
    labels = np.arange(1024)
    digest = arrays_sha256({"a": mapped}, labels)
    assert resident(mapped) <= 2 * mmap.PAGESIZE
    assert digest == arrays_sha256({"a": np.array(mapped)}, labels)


# --- room on the disk


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("reserves", [True, False], ids=["posix_fallocate", "macOS and Windows"])
def test_a_file_gets_its_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reserves: bool) -> None:
    if not reserves:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
        monkeypatch.setattr(mapped_module, "_ZEROS", 1000)  # the last portion is a shorter one
    path = tmp_path / "rows.bin"
    array = allocate(path, (625, 3), np.dtype(np.float32))
    assert (array.shape, array.dtype, path.stat().st_size) == ((625, 3), np.float32, 7500)
    if hasattr(os.stat_result, "st_blocks"):
        assert 512 * path.stat().st_blocks >= 7500
    array[:] = 1
    array.flush()
    again = allocate(path, (625, 3), np.dtype(np.float32))
    assert np.all(again == 1)  # a file of the right size keeps its content
    assert np.all(allocate(path, (626, 3), np.dtype(np.float32)) == 0)


@pytest.mark.parametrize("reserves", [True, False], ids=["posix_fallocate", "macOS and Windows"])
def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reserves: bool) -> None:
    if reserves:
        monkeypatch.setattr(os, "posix_fallocate", no_space, raising=False)
    else:
        monkeypatch.setattr(mapped_module, "reserve", no_space)
    message = r"no room for 7,500 bytes of features \(No space left on device\); "
    with pytest.raises(UsageError, match=f"{message}choose another --cache"):
        allocate(tmp_path / "rows.bin", (625, 3), np.dtype(np.float32))
    with pytest.raises(UsageError, match=f"{message}set TMPDIR to a larger disk"):
        allocate(None, (625, 3), np.dtype(np.float32))


def test_temporary_rows_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    array = allocate(None, (100, 6), np.dtype(np.float32))
    array[:] = np.arange(600).reshape(100, 6)
    assert list(tmp_path.iterdir()) == []


# --- features that are there already


def test_a_store_is_not_copied(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is calibrated from a feature store is its own file, and the result is that of a copy."""
    stored = tna_onnx.features(small.model, small.calib, tmp_path / "cache")
    outputs = [tmp_path / "mapped.onnx", tmp_path / "copied.onnx"]

    def copied(*_: object) -> None:
        raise AssertionError("copied")

    with monkeypatch.context() as patch:
        patch.setattr(tna_onnx.extraction.collect, "allocate", copied)
        tna_onnx.calibrate(small.model, stored.folder, output=outputs[0], **PLAIN)
    monkeypatch.setattr(tna_onnx.extraction.collect, "own_features", lambda *_: None)
    tna_onnx.calibrate(small.model, stored.folder, output=outputs[1], **PLAIN)
    assert outputs[0].read_bytes() == outputs[1].read_bytes()


def test_a_store_has_the_names_of_the_classes(small: Small, tmp_path: Path) -> None:
    names = ("ant", "bee", "cat", "dog", "eel")
    stored = tna_onnx.features(small.model, small.calib, tmp_path / "cache", classes=names)
    report = tna_onnx.calibrate(small.model, stored.folder, dry_run=True, **PLAIN)
    assert tuple(recall.name for recall in report.recall.classes) == names


def test_given_features_are_checked(small: Small, tmp_path: Path) -> None:
    x = np.ones((5000, 32), np.float32)
    x[4999, 3] = np.nan
    np.savez(tmp_path / "features.npz", features=x, labels=np.arange(5000) % 5)
    with pytest.raises(DataError, match=r"row 4999 holds NaN or infinity"):
        tna_onnx.calibrate(small.model, tmp_path / "features.npz", output=tmp_path / "a.onnx")
