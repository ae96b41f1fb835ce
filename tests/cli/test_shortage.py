"""Errors that say what the machine lacks are told from bugs."""

from __future__ import annotations

import errno

import pytest

from tests.conftest import Small
from tests.support import run
from tna_onnx.cli.terminal import shortage


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (MemoryError(), "memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (OSError(errno.EMFILE, "Too many open files"), "open files"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk"),
        (RuntimeError("can't start new thread"), "thread"),
        (ModuleNotFoundError("No module named 'scipy'", name="scipy.optimize"), "scipy, which tna-onnx needs"),
        (FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"), "TMPDIR"),
    ],
)
def test_what_is_missing(error: Exception, word: str) -> None:
    said = shortage(error)
    assert said is not None
    assert word in str(said)


@pytest.mark.parametrize(
    "error",
    [
        OSError(),
        OSError(errno.EIO, "Input/output error"),
        RuntimeError("x"),
        ValueError(),
        ModuleNotFoundError("No module named 'tna_onnx.gone'", name="tna_onnx.gone"),
        ImportError("cannot import name 'x' from 'y'"),
    ],
)
def test_others_are_bugs(error: Exception) -> None:
    assert shortage(error) is None


@pytest.mark.parametrize("error", ["MemoryError()", "OSError(24, 'Too many open files')"])
def test_one_line_and_the_code_of_the_machine(small: Small, error: str) -> None:
    code = f"import tna_onnx.api.evaluate as e\ndef evaluate(**_): raise {error}\ne.evaluate = evaluate"
    done = run("evaluate", small.model, "--data", small.test, code=code)
    assert (done.returncode, len(done.stderr.splitlines())) == (5, 1), done.stderr


@pytest.mark.parametrize("library", ["click", "onnx", "numpy", "scipy", "rich", "google"])
def test_a_library_that_is_missing_is_no_bug(small: Small, library: str) -> None:
    done = run("calibrate", small.model, small.test, code=f"import sys; sys.modules[{library!r}] = None")
    assert done.returncode == 5, done.stderr
    assert f"Error: {library}, which tna-onnx needs, cannot be imported" in done.stderr
    assert "install tna-onnx again" in done.stderr
    assert "bug" not in done.stderr
