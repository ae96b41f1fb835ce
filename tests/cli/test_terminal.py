"""What a terminal shows: tables and colours on one, plain text in a pipe, diagrams that any encoding can hold."""

from __future__ import annotations

import io
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.conftest import Small
from tests.support import PLAIN, cli, program, run, words_of
from tna_onnx.render.reliability import ReliabilityPlot
from tna_onnx.results.details import Bins

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


def printed(plot: ReliabilityPlot, encoding: str = "utf-8", width: int = 80) -> list[str]:
    """Print a diagram into a file of some encoding, and return its lines."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    Console(file=file, width=width).print(plot)
    file.flush()
    return file.buffer.getvalue().decode(encoding).splitlines()  # type: ignore[attr-defined]


# The command


def test_a_pipe_gets_plain_text(small: Small, tmp_path: Path) -> None:
    text = in_pipe(command(small, tmp_path / "o.onnx", "--plot"), "utf-8")
    assert "\x1b" not in text
    assert re.search(r"^ECE, % +\d+\.\d\d +\d+\.\d\d +[+-]\d+\.\d\d \(", text, re.M)
    assert "─" not in text
    plot = text[text.index("conf., %") : text.index("head   ")]
    assert max(map(len, plot.splitlines())) <= 80
    assert "█" in plot
    assert text.splitlines()[-1].startswith(("improved", "no significant change"))


def test_evaluate_has_a_diagram(small: Small) -> None:
    result = cli("evaluate", small.model, "--data", small.test, "--plot", "--device", "cpu")
    rows = re.findall(r"^ +\d+-\d+ +([\d,]+) ", result.stdout, re.M)
    assert sum(int(count.replace(",", "")) for count in rows) == 1500


def test_a_terminal_gets_a_ruled_table_in_colour(small: Small, tmp_path: Path) -> None:
    text = on_terminal(command(small, tmp_path / "o.onnx", "--plot"), COLUMNS="100")
    codes = set(";".join(ESCAPE.findall(text)).split(";"))
    assert {"1", "32"} <= codes  # bold; green for what is significantly better
    plain = ESCAPE.sub("", text)
    assert "─────" in plain
    assert "\x1b" not in plain
    assert "conf., %" in plain


def test_a_narrow_terminal_gets_whole_numbers(small: Small, tmp_path: Path) -> None:
    text = ESCAPE.sub("", on_terminal(command(small, tmp_path / "o.onnx"), COLUMNS="40"))
    assert re.search(r"^ ECE, % +\d+\.\d\d +\d+\.\d\d +[+-]\d+\.\d\d \([+-]\d+\.\d\d to [+-]\d+\.\d\d\)", text, re.M)
    assert "…" not in text


def test_no_color_is_respected(small: Small, tmp_path: Path) -> None:
    text = on_terminal(command(small, tmp_path / "o.onnx", "--plot"), COLUMNS="100", NO_COLOR="1")
    codes = {int(code or 0) for code in ";".join(ESCAPE.findall(text)).split(";")}
    assert not [code for code in codes if 30 <= code <= 49 or 90 <= code <= 107]
    assert "─────" in text


def test_ascii_stands_in_where_the_encoding_has_no_blocks(small: Small, tmp_path: Path) -> None:
    text = in_pipe(command(small, tmp_path / "ö.onnx", "--plot"), "ascii")
    assert re.search(r"93-100 .* #+", text)
    assert "## accuracy" in text
    assert r"\xf6.onnx" in text  # a name that cannot be shown is escaped, not an error
    assert (tmp_path / "ö.onnx").is_file()


@pytest.mark.parametrize("flags", [[], ["--plot", "--quiet"]])
def test_there_is_no_diagram_unless_asked(small: Small, tmp_path: Path, flags: list[str]) -> None:
    result = cli(*command(small, tmp_path / "o.onnx", *flags))
    assert result.exit_code == 0
    assert "conf., %" not in result.output


# The diagram


BINS = Bins((0, 10, 250_000, 1_250_000), (0.0, 0.5, 0.7, 1.0), (0.0, 0.25, 0.75, 1.0))
EMPTY = Bins((0, 0, 0, 4), (0.0, 0.0, 0.0, 0.9), (0.0, 0.0, 0.0, 0.5))


def test_rows_are_the_numbers() -> None:
    lines = printed(ReliabilityPlot([("before", BINS), ("after", EMPTY)]))
    bar = 18  # columns from 0 to 100 %
    assert lines[0].split() == ["conf.,", "%", "samples", "gap", "before", "samples", "gap", "after"]
    assert lines[1].split() == ["75-100", "1.25M", "+0.0", "█" * bar, "4", "+40.0", "█" * 9 + "░" * 7]
    assert lines[2].split() == ["50-75", "250,000", "-5.0", "█" * 13 + "▒", "0"]
    assert lines[3].split() == ["25-50", "10", "+25.0", "█" * 4 + "░" * 5, "0"]
    assert lines[4].startswith("██ accuracy")  # the empty bin has no row
    assert len(lines) == 6


def test_columns_line_up() -> None:
    lines = printed(ReliabilityPlot([("before", BINS), ("after", BINS)]))
    at = lines[0].index("before"), lines[0].index("after")
    assert all(line[k] == "█" and line[k - 1] == " " for line in lines[1:4] for k in at)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1"])
def test_other_encodings_get_ascii(encoding: str) -> None:
    lines = printed(ReliabilityPlot([("only", BINS)]), encoding)
    assert lines[1].split()[-1] == "#" * 18
    assert lines[3].split()[-1] == "####....."


def test_old_code_pages_have_blocks() -> None:
    assert "█" in "".join(printed(ReliabilityPlot([("only", BINS)]), "cp437"))


@pytest.mark.parametrize(("width", "heads"), [(80, 1), (78, 1), (77, 2), (45, 2), (40, 2), (31, 2), (200, 1)])
def test_diagrams_stand_below_each_other_where_columns_are_few(width: int, heads: int) -> None:
    lines = printed(ReliabilityPlot([("before", BINS), ("after", BINS)]), width=width)
    assert sum("samples" in line for line in lines) == heads
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(("width", "bar"), [(43, 18), (42, 17), (40, 15), (31, 6)])
def test_bars_are_narrower_where_columns_are_few(width: int, bar: int) -> None:
    """A bar from 0 to 100 % is whole, and half of it is a half."""
    lines = printed(ReliabilityPlot([("after", EMPTY), ("b", BINS)]), width=width)
    full = next(line for line in lines if "1.25M" in line)
    assert full.count("█") == bar
    half = next(line for line in lines if "+40.0" in line)
    assert half.count("█") == round(bar * 0.5)
    assert half.count("█") + half.count("░") == round(bar * 0.9)


@given(st.integers(1, 130), st.integers(0, 2**32 - 1))
def test_many_bins_are_merged_and_nothing_is_lost(bins: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(size=400)
    hit = rng.uniform(size=400) < confidence
    lines = printed(ReliabilityPlot([("only", Bins.of(confidence, hit, bins))]))
    rows = [line.split() for line in lines[1:-2]]
    assert len(rows) <= 20
    assert sum(int(row[1]) for row in rows) == 400
    assert ("bins a row" in lines[-1]) == (bins > 20)
    low, high = (float(edge) / 100 for edge in rows[0][0].split("-"))
    assert high >= confidence.max() - 0.005  # rows without samples are left out; edges are shown in whole per cent
    if bins <= 20:
        inside = (confidence > low + 0.006) & (confidence <= high)
        assert int(rows[0][1]) >= inside.sum()
    gap = sum(int(row[1]) * float(row[2]) for row in rows) / 400
    assert gap == pytest.approx(100 * (confidence.mean() - hit.mean()), abs=0.051)  # one digit is shown
