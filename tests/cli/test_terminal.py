"""What a terminal shows: tables and colours on one, plain text in a pipe."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Small
from tests.support import PLAIN, program, run, words_of

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
    text = in_pipe(command(small, tmp_path / "o.onnx"), "utf-8")
    assert "\x1b" not in text
    assert re.search(r"^ECE, % +\d+\.\d\d +\d+\.\d\d +[+-]\d+\.\d\d \(", text, re.M)
    assert "─" not in text
    assert text.splitlines()[-1].startswith("next     use it in place of ")
    assert "head     " not in text


def test_a_terminal_gets_a_ruled_table_in_colour(small: Small, tmp_path: Path) -> None:
    text = on_terminal(command(small, tmp_path / "o.onnx"), COLUMNS="100")
    codes = set(";".join(ESCAPE.findall(text)).split(";"))
    assert {"1", "32"} <= codes  # bold; green for what is significantly better
    plain = ESCAPE.sub("", text)
    assert "─────" in plain
    assert "\x1b" not in plain


def test_a_narrow_terminal_gets_whole_numbers(small: Small, tmp_path: Path) -> None:
    text = ESCAPE.sub("", on_terminal(command(small, tmp_path / "o.onnx"), COLUMNS="40"))
    assert re.search(r"^ ECE, % +\d+\.\d\d +\d+\.\d\d +[+-]\d+\.\d\d \([+-]\d+\.\d\d to [+-]\d+\.\d\d\)", text, re.M)
    assert "…" not in text


def test_no_color_is_respected(small: Small, tmp_path: Path) -> None:
    text = on_terminal(command(small, tmp_path / "o.onnx"), COLUMNS="100", NO_COLOR="1")
    codes = {int(code or 0) for code in ";".join(ESCAPE.findall(text)).split(";")}
    assert not [code for code in codes if 30 <= code <= 49 or 90 <= code <= 107]
    assert "─────" in text


def test_a_name_that_cannot_be_shown_is_escaped(small: Small, tmp_path: Path) -> None:
    text = in_pipe(command(small, tmp_path / "ö.onnx"), "ascii")
    assert r"\xf6.onnx" in text
    assert (tmp_path / "ö.onnx").is_file()
