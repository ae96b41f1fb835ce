"""What is wrong with this package is no advice to its user: planted bugs end with exit code 70 and a traceback."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import Small
from tests.support import run
from tna_onnx.errors import INTERNAL_ERROR

# Where a bug is planted, as code that runs before the command line.
READER = """
import tna_onnx.graph.walk.loop as planted
def head_at(*_): raise AttributeError('planted')
planted.head_at = head_at
"""
FIT = """
from tna_onnx.maps.temperature import Temperature
def fit(*_, **__): raise ValueError('planted')
Temperature.fit = fit
"""
SOURCE = """
from tna_onnx.data.sources.columns import ArraySource
def batch(*_): return {}['planted']
ArraySource._batch = batch
"""
# inside of the block around a parser of foreign bytes
PARSER = """
import tna_onnx.data.sources.array_files as planted
def claimed_bytes(*_): return {}['planted']
claimed_bytes.__globals__['__name__'] = 'tna_onnx.planted'
planted._claimed_bytes = claimed_bytes
"""


def calibrate(small: Small, folder: Path, *words: str, code: str) -> subprocess.CompletedProcess[str]:
    return run("calibrate", small.model, "--calib", small.calib, "-o", folder / "o.onnx", *words, code=code)


def assert_bug(done: subprocess.CompletedProcess[str], error: str) -> None:
    assert done.returncode == INTERNAL_ERROR == 70, done.stderr
    assert "Traceback" in done.stderr
    assert f"{error}: " in done.stderr
    assert "planted" in done.stderr
    assert "this is a bug in tna-onnx" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("code", "error"),
    [(READER, "AttributeError"), (FIT, "ValueError"), (SOURCE, "KeyError"), (PARSER, "KeyError")],
    ids=["reader", "fit", "source", "parser"],
)
def test_a_planted_bug_is_called_one(small: Small, tmp_path: Path, code: str, error: str) -> None:
    assert_bug(calibrate(small, tmp_path, code=code), error)
    assert list(tmp_path.iterdir()) == []


def test_a_bug_in_the_child_process_is_called_one(small: Small, tmp_path: Path) -> None:
    # the parent process would work
    code = """
import tna_onnx.extraction.isolation as isolated
isolated._PROGRAM = '''
import json, sys
sys.path[:] = json.loads(sys.argv[1])
import tna_onnx.extraction.isolation as trial
def find_heads(*_): raise AttributeError("planted")
trial.find_heads = find_heads
trial.main(sys.argv[2])
'''
"""
    assert_bug(calibrate(small, tmp_path, "--isolate", code=code), "AttributeError")
    assert list(tmp_path.iterdir()) == []
