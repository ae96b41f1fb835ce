"""What becomes of results when a stream, a file or the process itself gives out: exit codes, messages, files."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Small
from tests.support import PLAIN, cli, ok, refused, run, words_of
from tna_onnx.cli import main

FAST = words_of(PLAIN)
posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX pipes, devices and signals")
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")


def command(small: Small, output: Path, *flags: object) -> list[str]:
    """Words of a short `calibrate`."""
    return ["calibrate", *map(str, [small.model, "--calib", small.calib, *FAST, "-o", output, *flags])]


def closed_early(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run with a standard output that no one reads."""
    read, write = os.pipe()
    os.close(read)
    try:
        return run(*words, stdout=write, stderr=subprocess.PIPE)
    finally:
        os.close(write)


def without_progress(text: str) -> str:
    """Standard error without the lines that a slow machine gets: how far a run is, and after how many seconds."""
    return "".join(line for line in text.splitlines(keepends=True) if not re.search(r", \d+ s$", line))


# Standard output


@pytest.mark.slow
@posix
def test_a_reader_that_left_costs_nothing(small: Small, tmp_path: Path) -> None:
    files = ["--json", tmp_path / "r.json", "--report", tmp_path / "r.html"]
    done = closed_early(command(small, tmp_path / "o.onnx", *files))
    assert (done.returncode, without_progress(done.stderr)) == (0, "")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["o.onnx", "r.html", "r.json"]
    assert json.loads((tmp_path / "r.json").read_text())["output"] == str(tmp_path / "o.onnx")
    assert (tmp_path / "r.html").read_text(encoding="utf-8").rstrip().endswith("</html>")


@pytest.mark.slow
@needs_full
def test_a_full_standard_output_is_said(small: Small, tmp_path: Path) -> None:
    words = command(small, tmp_path / "o.onnx", "--json", tmp_path / "r.json")
    with Path("/dev/full").open("w") as full:
        done = run(*words, stdout=full, stderr=subprocess.PIPE)
    reason = os.strerror(errno.ENOSPC)
    expected = f"Error: standard output: cannot be written: {reason}; {tmp_path / 'o.onnx'} is written\n"
    assert (done.returncode, without_progress(done.stderr)) == (6, expected)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["o.onnx", "r.json"]


@posix
def test_a_closed_standard_output_takes_no_json(small: Small) -> None:
    inspect = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "tna_onnx", "inspect", str(small.model)]
    for words, code, said in ((inspect, 0, ""), ([*inspect, "--json", "-"], 6, "it is closed; name a file for --json")):
        done = subprocess.run(words, check=False, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stderr.rpartition(": ")[2].strip()) == (code, said)


# Files


@needs_full
@pytest.mark.parametrize("flag", ["--json", "--report"])
def test_a_result_that_cannot_be_written_is_no_usage_error(small: Small, tmp_path: Path, flag: str) -> None:
    other = {"--json": "--report", "--report": "--json"}[flag]
    result = cli(*command(small, tmp_path / "o.onnx", flag, "/dev/full", other, tmp_path / "other"))
    reason = os.strerror(errno.ENOSPC)
    assert result.exit_code == 6, result.output
    assert (
        without_progress(result.stderr)
        == f"Error: /dev/full: cannot be written: {reason}; {tmp_path / 'o.onnx'} is written\n"
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["o.onnx", "other"]
    assert "ECE, %" in result.stdout


def test_figures_that_cannot_be_written_are_no_usage_error(small: Small, tmp_path: Path) -> None:
    (tmp_path / "f/reliability.svg").mkdir(parents=True)  # where a file should go
    for name in ("search", "confidence", "risk-coverage"):
        (tmp_path / f"f/{name}.svg").mkdir()
    flags = ["--figures", tmp_path / "f", "--json", tmp_path / "r.json"]
    refused(6, f"{tmp_path / 'o.onnx'} is written", *command(small, tmp_path / "o.onnx", *flags))
    assert (tmp_path / "o.onnx").is_file()
    assert (tmp_path / "r.json").is_file()


@needs_full
def test_a_missed_gate_decides_on_the_exit_code(small: Small, tmp_path: Path) -> None:
    words = command(small, tmp_path / "o.onnx", "--max-ece", "0", "--json", "/dev/full")
    result = refused(1, "Error: /dev/full: cannot be written", *words)
    assert "is written" not in result.stderr
    assert "Error: --max-ece 0 missed" in result.stderr


@pytest.mark.parametrize("flags", [["--report", "-"], ["-o", "-"]])
def test_a_dash_is_no_file_name_for_what_is_no_text(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(2, "Error: -: ", *command(small, tmp_path / "o.onnx", *flags))
    assert list(tmp_path.iterdir()) == []


def identity(path: Path) -> tuple[int, ...]:
    """What tells whether a path is another file, or was written to; reading a link changes when it was last read."""
    found = path.lstat()
    return (found.st_mode, found.st_ino, found.st_dev, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@posix
@pytest.mark.parametrize(("kind", "dry"), [("fifo", ["--dry-run"]), ("socket", []), ("link to a fifo", [])])
def test_an_output_that_is_no_regular_file_is_refused(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, dry: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    path = Path("o.onnx")
    with contextlib.ExitStack() as stack:
        if kind == "socket":
            stack.enter_context(socket.socket(socket.AF_UNIX)).bind(str(path))
        else:
            os.mkfifo("pipe" if "link" in kind else path)
        if "link" in kind:
            path.symlink_to("pipe")
        before = identity(path)
        result = cli(*command(small, path, *dry))
        assert (result.exit_code, identity(path)) == (2, before), result.output
    assert "o.onnx: is not a regular file; use --dry-run to write nothing" in result.stderr


@posix
def test_json_may_go_into_a_pipe(small: Small, tmp_path: Path) -> None:
    read, write = os.pipe()
    words = ["evaluate", small.model, "--data", small.test, "--device", "cpu", "-q", "--json", f"/dev/fd/{write}"]
    ok(*words)
    os.close(write)
    with os.fdopen(read) as file:
        assert json.load(file)["metrics"]["n"] == 1500


@pytest.mark.slow
@posix
def test_json_and_text_may_share_a_file(small: Small, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("earlier\n")
    words = ["evaluate", str(small.model), "--data", str(small.test), "--device", "cpu", "--json", "/dev/stdout"]
    with path.open("a") as file:
        done = run(*words, stdout=file, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")
    first, _, rest = path.read_text().partition("\n")
    result, end = json.JSONDecoder().raw_decode(rest)
    assert (first, result["metrics"]["n"], "ECE, %" in rest[end:]) == ("earlier", 1500, True)


# Interruptions


def test_the_cache_is_kept_wherever_it_was_named(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tna_onnx.pipeline.recalibrate.check_file", interrupt)
    monkeypatch.setenv("TNA_ONNX_CACHE", str(tmp_path / "cache"))
    assert "are kept in the cache" in cli(*command(small, tmp_path / "o.onnx")).stderr


@posix
def test_ctrl_c_while_modules_load_ends_by_the_signal(small: Small, tmp_path: Path) -> None:
    """The import of a module sends the signal, and goes on if that does not end the process."""
    code = """
import os, signal
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == 'onnxruntime': os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())"""
    done = run(*command(small, tmp_path / "o.onnx"), code=code)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@posix
def test_signals_that_are_ignored_stay_ignored(small: Small, tmp_path: Path) -> None:
    """As under `nohup`, and in the background of a script."""
    code = """
import os, signal
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
import tna_onnx.pipeline.checking as r
real = r.check_file
def signalled(*given):
    for number in (signal.SIGINT, signal.SIGHUP):
        os.kill(os.getpid(), number)
    return real(*given)
r.check_file = signalled"""
    done = run(*command(small, tmp_path / "o.onnx", "-q"), code=code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@posix
@pytest.mark.parametrize("number", [0, signal.SIGINT, signal.SIGTERM])
def test_main_in_process_gives_signals_back(small: Small, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A program, or a notebook, that goes on hears the next Ctrl-C; whether its own run was stopped or not."""
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    handlers = [signal.default_int_handler, signal.SIG_DFL, signal.SIG_DFL]
    before = [signal.getsignal(each) for each in numbers]
    try:
        for each, handler in zip(numbers, handlers, strict=True):
            signal.signal(each, handler)
        monkeypatch.setattr("tna_onnx.api.evaluate.evaluate", lambda *_, **__: signal.raise_signal(number))
        words = ["evaluate", str(small.model), "--data", str(small.test)] if number else ["--version"]
        monkeypatch.setattr(sys, "argv", ["tna-onnx", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == (128 + number if number else 0)
        assert [signal.getsignal(each) for each in numbers] == handlers
    finally:
        for each, handler in zip(numbers, before, strict=True):
            signal.signal(each, handler)
