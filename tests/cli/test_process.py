"""The terminal and the machine: tables and colours, signals, shortages, and paths of results."""

import errno
import os
import re
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from google.protobuf.message import EncodeError

from tests.conftest import Small
from tests.support import PLAIN, ok, program, refused, run, words_of
from tna_onnx.cli.command import Command, Group
from tna_onnx.cli.process import ended, loaded, loading, resource_error
from tna_onnx.errors import INTERRUPTED

FAST = words_of(PLAIN)
ESCAPE = re.compile(r"\x1b\[([0-9;]*)m")


def command(small: Small, output: Path, *flags: str) -> list[object]:
    return ["calibrate", small.model, "--calib", small.calib, "--eval", small.test, "-o", output, *FAST, *flags]


def environment(**changes: str) -> dict[str, str]:
    """Return this process's environment without what steers colours, widths and encodings."""
    steering = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "PYTHONIOENCODING", "PYTHONUTF8", "COLORTERM", "TERM")
    return {k: v for k, v in os.environ.items() if k not in steering} | changes


def on_terminal(words: list[object], **changes: str) -> str:
    """Run a command with its output on a pseudo-terminal, and return what arrived there."""
    pty = pytest.importorskip("pty")  # none on Windows
    master, slave = pty.openpty()
    env = environment(TERM="xterm-256color", PYTHONIOENCODING="utf-8", **changes)
    with subprocess.Popen(
        program(*words), stdout=slave, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=env
    ) as process:
        os.close(slave)
        received = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # Linux's end of a pseudo-terminal
                break
            if not part:
                break
            received += part
    os.close(master)
    assert process.returncode == 0
    return received.decode("utf-8").replace("\r\n", "\n")


def in_pipe(words: list[object], encoding: str) -> str:
    """Run a command with its output in a pipe, and return what arrived there."""
    done = run(*words, env=environment(PYTHONIOENCODING=encoding), encoding=encoding)
    assert done.returncode == 0, done.stderr
    return done.stdout


# The command


def test_a_pipe_gets_plain_text(small: Small, tmp_path: Path) -> None:
    text = ok(*command(small, tmp_path / "o.onnx")).stdout
    assert "\x1b" not in text
    assert re.search(r"^ECE, % +\d+\.\d\d +\d+\.\d\d +debiased [+-]\d+\.\d\d \(", text, re.M)
    assert "─" not in text
    assert text.splitlines()[-1].startswith("next     use it in place of ")
    assert "head     " not in text


@pytest.mark.slow
def test_a_narrow_terminal_gets_a_ruled_table_in_colour_with_whole_numbers(small: Small, tmp_path: Path) -> None:
    text = on_terminal(command(small, tmp_path / "o.onnx"), COLUMNS="40")
    codes = set(";".join(ESCAPE.findall(text)).split(";"))
    assert {"1", "32"} <= codes  # bold; green for what is significantly better
    plain = ESCAPE.sub("", text)
    assert "\x1b" not in plain
    assert "─────" in plain
    assert "…" not in plain
    whole = r"^ ECE, % +\d+\.\d\d +\d+\.\d\d +debiased [+-]\d+\.\d\d \([+-]\d+\.\d\d to [+-]\d+\.\d\d\)"
    assert re.search(whole, plain, re.M)


@pytest.mark.slow
def test_no_color_is_respected(small: Small) -> None:
    text = on_terminal(["evaluate", small.model, small.test, "--device", "cpu"], COLUMNS="100", NO_COLOR="1")
    codes = {int(code or 0) for code in ";".join(ESCAPE.findall(text)).split(";")}
    assert not [code for code in codes if 30 <= code <= 49 or 90 <= code <= 107]
    assert 1 in codes  # it is a terminal: bold


def test_a_name_that_cannot_be_shown_is_escaped(small: Small, tmp_path: Path) -> None:
    shutil.copy(small.model, tmp_path / "ö.onnx")
    assert r"\xf6.onnx" in in_pipe(["inspect", tmp_path / "ö.onnx"], "ascii")


# ---- Paths of results: what is refused before the work


LABELS = ["--labels", "l.npy", "--eval", "e.npz", "--eval-labels", "el.npy"]


@pytest.mark.parametrize(
    ("command", "words", "taken"),
    [
        ("guard", LABELS, ("m.guard.onnx", "l.npy", "e.npz", "el.npy")),
        ("shift", [*LABELS, "--target-prior", "t.json"], ("m.shift.onnx", "l.npy", "el.npy", "t.json")),
        ("shift", ["--source-prior", "s.json", "--target-prior", "uniform"], ("s.json",)),
        ("calibrate", LABELS, ("m.onnx", "c.npz", "m.tna.onnx", "l.npy", "el.npy")),
        ("calibrate", ["-o", "o.onnx"], ("o.onnx",)),
        ("evaluate", ["--labels", "l.npy", "--classes", "c.txt"], ("l.npy", "c.txt")),
        ("features", ["--labels", "l.npy", "--cache", "c"], ("l.npy",)),
        ("study", [*LABELS, "--out", "s"], ("l.npy", "el.npy")),
        ("study", [*LABELS, "--out", "."], ("index.html",)),
    ],
)
def test_no_result_replaces_a_file_of_the_command(
    command: str, words: list[str], taken: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in taken:
        refused(2, "choose another name for the JSON file", command, "m.onnx", "c.npz", *words, "--json", name)
    assert not list(tmp_path.iterdir())


# ---- Errors that say what the machine lacks are told from bugs


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (MemoryError(), "memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (OSError(errno.EMFILE, "Too many open files"), "open files"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk"),
        (RuntimeError("can't start new thread"), "thread"),
        (EncodeError("Failed to serialize proto"), "memory"),
        (SystemError("error return without exception set"), "memory"),
        (ModuleNotFoundError("No module named 'scipy'", name="scipy.optimize"), "scipy, which tna-onnx needs"),
        (FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"), "TMPDIR"),
    ],
)
def test_what_is_missing(error: Exception, word: str) -> None:
    said = resource_error(error)
    assert said is not None
    assert word in str(said)


@pytest.mark.parametrize(
    "error",
    [
        OSError(),
        OSError(errno.EIO, "Input/output error"),
        RuntimeError("x"),
        ValueError(),
        SystemError("bad argument to internal function"),
        ModuleNotFoundError("No module named 'tna_onnx.gone'", name="tna_onnx.gone"),
        ImportError("cannot import name 'x' from 'y'"),
    ],
)
def test_others_are_bugs(error: Exception) -> None:
    assert resource_error(error) is None


def test_a_library_that_is_missing_is_no_bug(small: Small) -> None:
    library = "click"
    done = run("calibrate", small.model, small.test, code=f"import sys; sys.modules[{library!r}] = None")
    assert done.returncode == 5, done.stderr
    assert f"Error: {library}, which tna-onnx needs, cannot be imported" in done.stderr
    assert "install tna-onnx again" in done.stderr
    assert "bug" not in done.stderr


# ---- Signal handlers; what signals do to the real program is in `test_channels.py`


def test_ctrl_c_ends_the_process_while_modules_load() -> None:
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        loading()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        loaded()
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)  # once is enough: what is removed is removed to the end
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        loading()
        ended()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        loading()
        with pytest.raises(SystemExit) as caught:
            signal.raise_signal(signal.SIGTERM)
        assert caught.value.code == 128 + signal.SIGTERM
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_another_thread_changes_no_handler() -> None:
    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=lambda: (loading(), loaded()))
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("linked", ["cause", "context"])
def test_an_interruption_that_a_library_has_made_another_error_of(linked: str) -> None:
    """A compiled module that is loaded when the signal comes raises ImportError."""

    @click.command(cls=Command)
    def work() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as interruption:
            if linked == "cause":
                raise ImportError("initialization failed") from interruption
            raise ImportError("initialization failed")  # noqa: B904 - that is what is tested

    ended = CliRunner().invoke(Group(commands={"work": work}), ["work"])
    assert ended.exit_code == INTERRUPTED
    assert "bug" not in ended.output
