"""The feature store: whatever happened to its files, a row that was not written for this key is never handed out."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import ROOT, Small
from tna_onnx.errors import DataError, UnsupportedModel, UsageError
from tna_onnx.extraction.store import (
    DiskStore,
    find_stores,
    labels_digest,
    model_key,
    open_store,
    read_stored,
)
from tna_onnx.graph.load import load_model

N, BATCH, CHUNK = 2500, 100, 1000  # chunks are whole batches, 1024 samples at most for batches up to that
LABELS = np.arange(N) % 7
KEY = {"model_sha256": "ab" * 32, "labels_sha256": labels_digest(LABELS), "beside": [], "recipe": None, "batch": BATCH}


def rows(start: int, stop: int) -> np.ndarray:
    """What a run would compute: (N, 6) float32."""
    return np.sin(np.arange(start, stop)[:, None] * 6 + np.arange(6)).astype(np.float32)


def fill(store: DiskStore, stop: int = N, batch: int = BATCH) -> None:
    """Go on from where the store is, in batches."""
    for start in range(store.done, stop, batch):
        end = min(start + batch, N)
        store.array((6,), np.dtype(np.float32))[start:end] = rows(start, end)
        store.finish_up_to(end)


def kept(cache: Path, key: dict[str, Any] | None = None, stop: int = N) -> Path:
    """Fill a store and return its folder."""
    with open_store(cache, key or KEY, LABELS, BATCH) as store:
        fill(store, stop)
        return store.folder


def assert_right(folder: Path) -> None:
    stored = read_stored(folder)
    np.testing.assert_array_equal(stored.features, rows(0, N))
    assert not stored.features.flags.writeable
    np.testing.assert_array_equal(stored.labels, LABELS)


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest as an editor would."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_rows_come_back_bit_for_bit(tmp_path: Path) -> None:
    folder = kept(tmp_path / "deep/cache")
    assert_right(folder)
    assert_right(folder.parent)  # a cache with one store is that store
    np.testing.assert_array_equal(np.load(folder / "labels.npy"), LABELS)
    names = {path.name for path in folder.iterdir()} - {"lock"}  # some versions of filelock remove it, others do not
    assert names == {"features.bin", "labels.npy", "manifest.json", "checksums.txt"}


def test_the_files_of_a_store_stay_as_they_are(tmp_path: Path) -> None:
    """Stores of earlier versions are read: what this test spells out does not change without a new schema."""
    labels = np.arange(3)
    key = {"labels_sha256": labels_digest(labels), "batch_size": 2}
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    with open_store(tmp_path, key, labels, 2) as store:
        store.array((2,), np.dtype("<f4"))[:] = values
        store.finish_up_to(3)
        folder = store.folder
    assert folder.name == FOLDER
    assert (folder / "features.bin").read_bytes() == values.tobytes()
    assert (folder / "manifest.json").read_text() == MANIFEST
    assert (folder / "checksums.txt").read_text() == f"{hashlib.sha256(values.tobytes()).hexdigest()}\n"


FOLDER = "9dd0c3f88fa00ffe"
MANIFEST = """{
 "arrays": {
  "features": {
   "dtype": "<f4",
   "shape": [
    2
   ]
  }
 },
 "chunk": 1024,
 "key": {
  "batch_size": 2,
  "labels_sha256": "ab25350e3e65efebe24584461683ecda68725576e825e550038b90e7b1479946"
 },
 "samples": 3,
 "schema": 2,
 "sha256": "874e367f09a5c7fafaa58b6dd93874e4696aad432ed94ad13b8316c8f5dbf664"
}"""


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut short": (lambda f: os.truncate(f / "features.bin", 100), "features.bin is damaged"),
    "too long": (lambda f: os.truncate(f / "features.bin", N * 24 + 1), "features.bin is damaged"),
    "missing rows": (lambda f: (f / "features.bin").unlink(), "features.bin is damaged"),
    "manifest is no JSON": (lambda f: (f / "manifest.json").write_text("{"), "manifest"),
    "manifest is not text": (lambda f: (f / "manifest.json").write_bytes(b"\xff\xfe"), "manifest"),
    "manifest nests too deep": (lambda f: (f / "manifest.json").write_text("[" * 10**5), "manifest"),
    "other model in it": (lambda f: edit(f, lambda m: m["key"].update(model_sha256="cd" * 32)), "manifest"),
    "array taken out": (lambda f: edit(f, lambda m: m["arrays"].pop("features")), "manifest"),
    "no digest": (lambda f: edit(f, lambda m: m.pop("sha256")), "manifest"),
    "labels missing": (lambda f: (f / "labels.npy").unlink(), "labels.npy"),
    "labels cut short": (lambda f: os.truncate(f / "labels.npy", 5000), "labels.npy"),
    "other labels": (lambda f: np.save(f / "labels.npy", LABELS[::-1]), "labels.npy"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_told_and_never_used(tmp_path: Path, case: str) -> None:
    damage, what = DAMAGE[case]
    folder = kept(tmp_path)
    damage(folder)
    with pytest.raises(DataError, match=what) as refused:
        read_stored(folder)
    assert str(folder) in str(refused.value)
    assert "collect the features again" in str(refused.value)
    with open_store(tmp_path, KEY, LABELS, BATCH) as store:
        assert store.done == (N if what == "labels.npy" else 0)
        assert what in "; ".join(store.notes) or what == "labels.npy"  # those are written again
        fill(store)
    assert_right(folder)


@settings(max_examples=15)
@given(st.integers(0, 10**9), st.integers(0, 7))
def test_a_flipped_bit_costs_its_chunk_and_those_after_it(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    cache = tmp_path_factory.mktemp("flip")
    folder = kept(cache)
    content = bytearray((folder / "features.bin").read_bytes())
    place %= len(content)
    content[place] ^= 1 << bit
    (folder / "features.bin").write_bytes(content)
    chunk = place // (len(content) // N) // CHUNK
    with pytest.raises(DataError, match=f"chunk {chunk} is damaged"):
        read_stored(folder)
    with open_store(cache, KEY, LABELS, BATCH) as store:
        assert (store.done, store.notes) == (chunk * CHUNK, [f"chunk {chunk} is damaged: computed anew from there"])
        fill(store)
    assert_right(folder)
    shutil.rmtree(cache)


@settings(max_examples=15)
@given(st.integers(0, 10**9), st.integers(0, 255))
def test_no_byte_of_the_manifest_can_change_what_is_used(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int
) -> None:
    """A changed byte is told, or leaves the manifest's meaning as it was (white space)."""
    cache = tmp_path_factory.mktemp("manifest")
    folder = kept(cache)
    content = bytearray((folder / "manifest.json").read_bytes())
    content[place % len(content)] = value
    (folder / "manifest.json").write_bytes(content)
    try:
        stored = read_stored(folder)
    except DataError:
        with open_store(cache, KEY, LABELS, BATCH) as store:
            assert store.done == 0
            fill(store)
    else:
        assert stored.key == KEY
    assert_right(folder)
    shutil.rmtree(cache)


@settings(max_examples=10)
@given(st.lists(st.integers(0, N), max_size=5), st.integers(1, 1500))
def test_any_interruptions_give_the_same_files(
    tmp_path_factory: pytest.TempPathFactory, stops: list[int], batch: int
) -> None:
    cache = tmp_path_factory.mktemp("stops")
    for stop in [*stops, N]:
        with open_store(cache, KEY, LABELS, batch) as store:
            assert not store.notes
            fill(store, stop, batch)
    assert_right(cache)
    shutil.rmtree(cache)


def test_a_store_of_another_run_under_this_name_is_not_used(tmp_path: Path) -> None:
    """Someone has copied a store into the folder of another key."""
    folder, other = kept(tmp_path / "a"), kept(tmp_path / "b", {**KEY, "head": "b"})
    for file in folder.iterdir():
        shutil.copy(file, other)
    with open_store(tmp_path / "b", {**KEY, "head": "b"}, LABELS, BATCH) as store:
        assert store.done == 0
        assert store.notes == ["the store's manifest does not fit: computed anew"]


def test_what_is_a_store(tmp_path: Path) -> None:
    folder = kept(tmp_path / "cache")
    assert find_stores(folder) == find_stores(tmp_path / "cache") == [folder]
    for name in ("features.bin", "labels.npy"):  # one of them may be lost, and the message says so
        (folder / name).rename(tmp_path / name)
        assert find_stores(folder) == [folder]
        (tmp_path / name).rename(folder / name)
    images = tmp_path / "images/cat"
    images.mkdir(parents=True)
    (images / "manifest.json").write_text("{}")  # of another program
    assert find_stores(tmp_path / "images") == find_stores(tmp_path / "none") == []
    with pytest.raises(DataError, match="expected one feature store, found none"):
        read_stored(tmp_path / "images")


HOLD = """
import sys
from pathlib import Path
from tests.extraction.test_store import _open
with _open(Path(sys.argv[1])):
    print("opened", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_two_runs_on_one_store_are_kept_apart(tmp_path: Path, end: str) -> None:
    kept(tmp_path, stop=1000)
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as other:
        assert other.stdout.readline() == "opened\n"
        with pytest.raises(UsageError, match="another process is filling this feature store"), _open(tmp_path):
            pass
        with _open(tmp_path, {**KEY, "head": "b"}) as store:  # another key is another lock
            assert store.done == 0
        if end == "killed":
            other.kill()
        other.communicate(timeout=60)  # which closes what the other reads
    with _open(tmp_path) as store:
        assert store.done == 1000


def test_a_lock_file_that_stayed_behind_is_no_lock(tmp_path: Path) -> None:
    folder = kept(tmp_path, stop=1000)
    (folder / "lock").write_text("left by an earlier version")
    with _open(tmp_path) as store:
        assert store.done == 1000


def _open(cache: Path, key: dict[str, Any] | None = None) -> Any:
    return open_store(cache, key or KEY, LABELS, BATCH)


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_disk_that_fills_up_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest of the first chunk stays, and so does the chunk."""
    folder = kept(tmp_path, stop=1000)
    before = (folder / "manifest.json").read_bytes()
    with open_store(tmp_path, KEY, LABELS, BATCH) as store:
        monkeypatch.setattr(os, "fsync", no_space)
        with pytest.raises(UsageError, match=r"cannot be written: No space left on device; choose another --cache"):
            fill(store)
    assert (folder / "manifest.json").read_bytes() == before
    with pytest.raises(UsageError, match="No space left on device"), _open(tmp_path):  # the labels cannot be written
        pass
    monkeypatch.undo()
    with open_store(tmp_path, KEY, LABELS, BATCH) as store:
        assert (store.done, store.notes) == (2000, [])
        fill(store)
    assert_right(folder)


WRITE = (
    "import sys; from pathlib import Path; from tna_onnx.files import write_file; write_file(Path(sys.argv[1]), b'')"
)


def test_what_a_killed_process_left_is_removed_by_the_next_run(tmp_path: Path) -> None:
    """In the store of another key, too; not what somebody is writing, and nothing that is no temporary of ours."""
    with open_store(tmp_path, {**KEY, "other": 1}, LABELS, BATCH) as store:
        kill = f"import os; os.replace = lambda *_: os._exit(9); os.rename = os.replace; {WRITE}"
        subprocess.run([sys.executable, "-c", kill, str(store.folder / "manifest.json")], cwd=ROOT, check=False)
        foreign = tmp_path / "mine" / ".notes.tmp"
        foreign.parent.mkdir()
        foreign.write_text("mine")
        assert len(list(tmp_path.glob("*/.*"))) == 2
    with open_store(tmp_path, KEY, LABELS, BATCH):
        assert list(tmp_path.glob("*/.*")) == [foreign]


CUT_OR_MADE_UP = [b"", b"ab", b"ab\n", b"\xff\xfe\n", b"0" * 64 + b"\n", b"9" * 5000]


@pytest.mark.parametrize("tail", CUT_OR_MADE_UP)
def test_lines_that_are_cut_or_made_up_are_not_used(tmp_path: Path, tail: bytes) -> None:
    folder = kept(tmp_path, stop=2000)
    with (folder / "checksums.txt").open("ab") as file:
        file.write(tail)
    with _open(tmp_path) as store:
        assert store.done == (0 if tail.startswith(b"\xff") else 2000)  # a file that is no text says nothing
        fill(store)
    assert_right(folder)
    assert len((folder / "checksums.txt").read_text().splitlines()) == 3


def test_a_checksum_that_is_taken_out_costs_its_chunk(tmp_path: Path) -> None:
    folder = kept(tmp_path)
    lines = (folder / "checksums.txt").read_text().splitlines(keepends=True)
    (folder / "checksums.txt").write_text("".join(lines[:-1]))
    with pytest.raises(DataError, match="not complete: 2,000 of 2,500"):
        read_stored(folder)
    (folder / "checksums.txt").write_text("".join(lines[1:]))
    with pytest.raises(DataError, match="chunk 0 is damaged"):
        read_stored(folder)


@pytest.mark.parametrize("dtype", [">f4", "<i4", "|S4", "<f3", "<c8", 4, None])
def test_bytes_are_not_taken_for_other_numbers(tmp_path: Path, dtype: object) -> None:
    """Even where the digest fits: someone has made the manifest up."""
    folder = kept(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["arrays"]["features"]["dtype"] = dtype
    del manifest["sha256"]
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({**manifest, "sha256": digest}))
    with pytest.raises(DataError, match="manifest"):
        read_stored(folder)


# ---- Keys of features: digests of files and samples, equal only where the features are


def test_external_data_count(small: Small, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    weights = tmp_path / "weights.bin"
    onnx.save_model(onnx.load(small.model), path, save_as_external_data=True, location=weights.name, size_threshold=0)
    model = load_model(path)
    assert model_key(model) == {
        "model_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "external_sha256": {weights.name: hashlib.sha256(weights.read_bytes()).hexdigest()},
    }
    weights.unlink()
    with pytest.raises(UnsupportedModel, match=r"model\.onnx: external data .weights\.bin. is missing"):
        model_key(model)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize("name", ["labels.npy", "manifest.json"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_nothing_outside_is_written(tmp_path: Path, name: str, kind: str) -> None:
    """Whoever made a store may have put a link or a pipe in the place of a file that is written."""
    folder = kept(tmp_path / "cache", stop=1024)
    assert (folder / name).is_file()
    (folder / name).unlink()
    outside = tmp_path / "outside"
    outside.write_bytes(b"of somebody else")
    if kind == "link":
        (folder / name).symlink_to(outside)
    else:
        os.mkfifo(folder / name)
    kept(tmp_path / "cache")
    assert outside.read_bytes() == b"of somebody else"
    assert (folder / name).is_file()
    assert not (folder / name).is_symlink()
    assert_right(folder)
