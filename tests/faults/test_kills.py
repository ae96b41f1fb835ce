"""A few kills at random moments; `python -m tests.faults.kills --kills 200` has more of them."""

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")]


def test_a_kill_leaves_the_old_or_the_new_result() -> None:
    """In a program of its own, which has no threads when it forks."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "tests.faults.kills", "--kills", "8", "--seed", "3"]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(int(line.split("|")[3]) for line in done.stdout.splitlines()[2:]) == 8
