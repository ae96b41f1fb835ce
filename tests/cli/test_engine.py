"""`--engine` of three commands: the same bytes, signals, lost workers, refusals with their exit codes."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.conftest import Small
from tests.support import PLAIN, TILTED, cli, program, words_of
from tna_onnx.calibration import crossfit
from tna_onnx.extraction import table

FAST = words_of(PLAIN)
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")


@pytest.fixture
def many(small: Small, tmp_path: Path) -> Path:
    """Write the samples of `small` twenty times over: 30 chunks."""
    with np.load(small.calib) as stored:
        np.savez(tmp_path / "many.npz", **{name: np.concatenate([stored[name]] * 20) for name in ("x", "labels")})
    return tmp_path / "many.npz"


def digests(cache: Path) -> dict[str, str]:
    """SHA-256 of every file, by its path."""
    files = [path for path in cache.rglob("*") if path.is_file()]
    return {str(path.relative_to(cache)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def workers_of(pid: int) -> list[psutil.Process]:
    return [each for each in psutil.Process(pid).children() if "spawn_main" in " ".join(each.cmdline())]


ENGINES = ["processes:2", *(pytest.param(f"processes:{n}", marks=pytest.mark.slow) for n in (1, 8))]


@pytest.mark.parametrize("engine", ENGINES)
def test_stores_and_written_files_are_the_same_bytes(small: Small, tmp_path: Path, engine: str) -> None:
    for name in ("local", engine):
        folder = tmp_path / name.replace(":", "-")
        words = ["--calib", small.calib, "--eval", small.test, "--cache", folder / "c", "-o", folder / "o.onnx", *FAST]
        folder.mkdir()
        result = cli("calibrate", small.model, *words, "--engine", name, "--json", folder / "r.json")
        assert result.exit_code == 0, result.output
        assert sorted(path.name for path in folder.iterdir()) == ["c", "o.onnx", "r.json"]
        assert len([*(folder / "c").iterdir()]) == 1  # nothing is left of the held-out samples
    here, there = (digests(tmp_path / name.replace(":", "-")) for name in ("local", engine))
    for digest in (here, there):
        digest.pop("r.json")  # holds times
    assert here == there
    result = cli("features", small.model, "--data", small.calib, "--cache", tmp_path / "f", "--engine", engine, "-q")
    assert result.exit_code == 0, result.output
    assert {f"c/{name}": digest for name, digest in digests(tmp_path / "f").items()}.items() <= here.items()


@pytest.mark.parametrize("engine", ENGINES)
def test_an_evaluation_is_the_same_bytes(small: Small, many: Path, tmp_path: Path, engine: str) -> None:
    for name in ("local", engine):
        result = cli("evaluate", small.model, many, "--engine", name, "-q", "--json", tmp_path / f"{name}.json")
        assert result.exit_code == 0, result.output
    assert (tmp_path / "local.json").read_bytes() == (tmp_path / f"{engine}.json").read_bytes()
    code, _ = refused("evaluate", small.model, many, "--engine", engine, "-q", "--max-ece", "0.001")
    assert code == cli("evaluate", small.model, many, "-q", "--max-ece", "0.001").exit_code != 0


def test_what_is_measured_in_one_process(small: Small, tmp_path: Path) -> None:
    guarded = tmp_path / "guarded.onnx"
    cli("guard", small.model, "--calib", small.calib, "--add", "set", "-o", guarded, "-q")
    code, text = refused("evaluate", guarded, small.test, "--engine", "processes:2")
    assert (code, "decides is measured in this process; leave --engine processes:2 out" in text) == (2, True), text


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seen", [crossfit.SEEN, 100])
@pytest.mark.parametrize("fitted", ["none", pytest.param("ts", marks=pytest.mark.slow)])
def test_a_store_is_searched_by_workers(
    small: Small,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    engine: str,
    fitted: str,
    seen: int,
) -> None:
    """The same file: sums over nine chunks, the last one odd; and where the search sees some of the samples."""
    monkeypatch.setattr(crossfit, "SEEN", seen)
    monkeypatch.setattr(table, "_BLOCK", 32 * 171)
    cli("features", small.model, "--data", small.calib, "--cache", tmp_path / "c", "-q")
    files = []
    for name in ("local", engine):
        output = tmp_path / "o.onnx"
        calib = ["--calib", tmp_path / "c", *words_of({**TILTED, "map": fitted})]
        caplog.clear()
        with caplog.at_level("INFO", "tna_onnx"):
            result = cli("calibrate", small.model, *calib, "--engine", name, "-o", output, "--overwrite", "-q")
        assert result.exit_code == 0, result.output
        assert (f"sums over all samples run on {engine}" in caplog.text) == (name == engine)
        files.append(output.read_bytes())
        output.unlink()
    assert files[0] == files[1]
    assert files[0] != small.model.read_bytes()


def test_what_workers_could_not_share_is_computed_here(small: Small, tmp_path: Path, caplog: Any) -> None:
    cli("features", small.model, "--data", small.calib, "--cache", tmp_path / "c", "-q")
    with caplog.at_level("INFO", "tna_onnx"):
        # held-out data beside a store need no folder of stores
        words = [
            "--calib",
            tmp_path / "c",
            "--eval",
            small.test,
            *FAST,
            "--engine",
            "processes:2",
            "-o",
            tmp_path / "o.onnx",
            "-q",
        ]
        assert cli("calibrate", small.model, *words).exit_code == 0
    assert "search and fits run in this process: all features are one chunk" in caplog.text


# Says on standard output that chunks come in, and waits until the test has done what it wants to.
BEGUN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have told its children to ignore it
from tna_onnx.extraction.store import DiskStore
take = DiskStore.take
def told(self, checksum):
    take(self, checksum)
    if len(self.checksums) == 2:
        print("begun", flush=True)
        sys.stdin.readline()
DiskStore.take = told
"""


def begun(*words: object) -> subprocess.Popen[str]:
    """Start the program, and wait until two chunks are recorded."""
    process = subprocess.Popen(
        program(*words, code=BEGUN), stdin=-1, stdout=-1, stderr=-1, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n", process.communicate()
    return process


@POSIX
def test_a_worker_that_is_killed_changes_no_byte(small: Small, many: Path, tmp_path: Path) -> None:
    words = ["features", small.model, "--data", many, "--device", "cpu", "-q", "--cache"]
    assert cli(*words, tmp_path / "a").exit_code == 0
    process = begun(*words, tmp_path / "b", "--engine", "processes:2")
    for worker in workers_of(process.pid):
        worker.kill()
    _, errors = process.communicate("\n", timeout=120)
    assert (process.returncode, errors) == (0, "")
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


@pytest.mark.slow
@POSIX
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("group", [True, False])  # a terminal sends Ctrl-C to all processes of the group
def test_an_interruption_stops_all_workers(small: Small, many: Path, tmp_path: Path, number: int, group: bool) -> None:
    words = ["features", small.model, "--data", many, "--device", "cpu", "-q", "--cache", tmp_path / "c"]
    process = begun(*words, "--engine", "processes:2")
    workers = workers_of(process.pid)
    assert workers
    if group:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert errors == "Interrupted; no file was written. The features computed so far are kept in the cache.\n"
    assert not psutil.wait_procs(workers, timeout=10)[1]
    seen = cli(*words)
    assert seen.exit_code == 0, seen.output
    assert cli(*words[:-1], tmp_path / "whole").exit_code == 0
    assert digests(tmp_path / "c") == digests(tmp_path / "whole")


def refused(*words: object) -> tuple[int, str]:
    result = cli(*words)
    return result.exit_code, result.output


def test_refusals(small: Small, tmp_path: Path) -> None:
    calib: list[Any] = ["calibrate", small.model, "--calib", small.calib, *FAST, "-o", tmp_path / "o.onnx", "--engine"]
    code, text = refused(*calib, "processes:2")
    assert (code, "add --cache FOLDER" in text) == (2, True)
    cache = ["--cache", tmp_path / "c"]
    for engine, found in [
        ("spark", "is not known"),
        ("processes:0", "expected 1 to"),
        ("processes:99999", "for each core of this machine"),
        ("ray:ray://head:10001", "expected ray:HOST:PORT"),
    ]:
        code, text = refused(*calib, engine, *cache)
        assert (code, found in text) == (2, True), text
    assert not (tmp_path / "c").exists()
    assert not (tmp_path / "o.onnx").exists()


def test_features_in_a_file_are_read_here(small: Small, tmp_path: Path) -> None:
    cli("features", small.model, "--data", small.calib, "--cache", tmp_path / "c", "-q")
    (store,) = (tmp_path / "c").iterdir()
    labels = np.load(store / "labels.npy")
    features = np.fromfile(store / "features.bin", np.float32).reshape(len(labels), -1)
    np.savez(tmp_path / "f.npz", features=features, labels=labels)
    words = ["--calib", tmp_path / "f.npz", "--cache", tmp_path / "d", "--engine", "processes:2", *FAST]
    code, text = refused("calibrate", small.model, *words, "-o", tmp_path / "o.onnx")
    assert (code, "leave --engine processes:2 out, or collect them into a store" in text) == (2, True), text


def test_an_address_that_nobody_listens_at(small: Small, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["features", small.model, "--data", small.calib, "--cache", tmp_path / "c", "--engine"]
    code, text = refused(*words, f"ray:127.0.0.1:{port}")
    assert code == 5
    assert f"the Ray cluster at 127.0.0.1:{port} cannot be reached" in text
    assert not list((tmp_path / "c").rglob("features.bin")) or cli(*words, "local").exit_code == 0


@pytest.mark.slow
@POSIX
def test_workers_for_which_memory_is_too_small(small: Small, many: Path, tmp_path: Path) -> None:
    """The system kills a process that takes too much; a worker that ends at every chunk stands for it."""
    words = ["features", small.model, "--data", many, "--cache", tmp_path / "c", "--engine", "processes:2"]
    code = """
import os
from tna_onnx.engine import processes
submit = processes._Process._submit
processes._Process.give = lambda self, chunk: submit(self, os._exit, 137)
"""
    done = subprocess.run(program(*words, code=code), capture_output=True, text=True, check=False)
    assert done.returncode == 5, done.stderr
    assert "ended 3 workers" in done.stderr
    assert "too little memory" in done.stderr
    assert "Traceback" not in done.stderr
    assert cli(*words[:-2]).exit_code == 0
