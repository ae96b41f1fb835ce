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


@pytest.mark.parametrize(("name", "older"), [("SIGINT", True), ("SIGTERM", False), ("SIGHUP", True)])
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
    assert errors == f"Interrupted; no file was written. {kept}\n"
    assert {path.name for path in tmp_path.iterdir()} <= {"cache", *(["o.onnx"] if older else [])}
    assert not older or output.read_bytes() == b"older"


# While an object is finalized, Python drops what a signal's handler raises.
FINALIZED = (
    BEGUN
    + """
import os
class Closing:
    def __del__(self):
        os.kill(os.getpid(), NUMBER)
first = session.Session.run
def closing(self, *args, **options):
    Closing()
    return first(self, *args, **options)
session.Session.run = closing
"""
)


# A library that is not there is often no error: `try: import ... except ImportError`, or any other exception.
SWALLOWED = (
    BEGUN
    + """
import os
first = session.Session.run
def swallowing(self, *args, **options):
    try:
        os.kill(os.getpid(), NUMBER)
        list(range(1000))
    except BaseException:
        pass
    return first(self, *args, **options)
session.Session.run = swallowing
"""
)


@pytest.mark.parametrize(
    ("number", "lost"), [(signal.SIGINT, FINALIZED), (signal.SIGTERM, SWALLOWED)], ids=["finalizer", "library"]
)
def test_a_signal_that_is_lost_comes_again(small: Small, tmp_path: Path, number: int, lost: str) -> None:
    words = ["calibrate", small.model, "--calib", small.calib, *ENDLESS, "-o", tmp_path / "o.onnx"]
    code = lost.replace("NUMBER", str(int(number)))
    done = subprocess.run(program(*words, code=code), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 128 + number
    assert "Exception ignored" not in done.stderr
    assert not list(tmp_path.iterdir())
