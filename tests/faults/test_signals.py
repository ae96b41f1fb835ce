"""Signals from outside, while the real program computes: one line, the exit code of the signal, no file."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Small
from tests.support import program, words_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")

# A search with many members would take minutes: the signal comes in the middle of it, however slow the machine is.
ENDLESS = words_of({"search": "sparse", "map": "ts", "ensemble_size": 10_000, "angle_step": 0.5, "device": "cpu"})

# Says on standard output that samples are being run. From there on the command reports what interrupts it.
BEGUN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have told its children to ignore it
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and so may nohup
import tna_onnx.runtime.session as session
run = session.Session.run
def told(self, *args, **options):
    print("begun", flush=True)
    session.Session.run = run
    return run(self, *args, **options)
session.Session.run = told
"""


@pytest.mark.parametrize(
    ("name", "older"),
    [
        ("SIGTERM", False),
        pytest.param("SIGINT", True, marks=pytest.mark.slow),
        pytest.param("SIGHUP", True, marks=pytest.mark.slow),
    ],
)
def test_one_line_and_no_file(small: Small, tmp_path: Path, name: str, older: bool) -> None:
    output = tmp_path / "o.onnx"
    if older:
        output.write_bytes(b"older")
    number = getattr(signal, name)
    files = ["--json", tmp_path / "r.json", "--report", tmp_path / "r.html", "--cache", tmp_path / "cache"]
    words = ["calibrate", small.model, "--calib", small.calib, *ENDLESS, "-o", output, *files]
    process = subprocess.Popen(program(*words, code=BEGUN), stdout=-1, stderr=-1, text=True)
    try:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()  # a run that never ends must not outlive its test
    assert process.returncode == 128 + number
    kept = "The features computed so far are kept in the cache."
    assert errors == f"Interrupted. {kept}\n"
    assert {path.name for path in tmp_path.iterdir()} <= {"cache", *(["o.onnx"] if older else [])}
    assert not older or output.read_bytes() == b"older"
