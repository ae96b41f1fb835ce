"""Planted bugs end with exit code 70 and a traceback, hostile models with a message."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.conftest import Small
from tests.graph.samples import CASES, FEATURES, Builder
from tests.graph.test_datafiles import SECRET, hostile
from tests.support import cli, ok, refused, run
from tna_onnx.errors import INTERNAL_ERROR

# Where a bug is planted, as code that runs before the command line.
FIT = """
from tna_onnx.maps.temperature import Temperature
def fit(*_, **__): raise BrokenPipeError('planted')
Temperature.fit = fit
"""
# inside of the block around a parser of foreign bytes
PARSER = """
import tna_onnx.data.sources.arrays as planted
def claimed_bytes(*_): return {}['planted']
claimed_bytes.__globals__['__name__'] = 'tna_onnx.planted'
planted.claimed_bytes = claimed_bytes
"""


def calibrate(small: Small, folder: Path, *words: str, code: str) -> subprocess.CompletedProcess[str]:
    return run("calibrate", small.model, "--calib", small.calib, "-o", folder / "o.onnx", *words, code=code)


def assert_bug(done: subprocess.CompletedProcess[str], error: str) -> None:
    assert done.returncode == INTERNAL_ERROR == 70, done.stderr
    assert "Traceback" in done.stderr
    assert f"{error}: " in done.stderr
    assert "planted" in done.stderr
    assert "this is a bug in tna-onnx" in done.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "error"),
    [
        (PARSER, "KeyError"),
        (FIT, "BrokenPipeError"),  # no error where it comes from a stream
    ],
)
def test_a_planted_bug_is_called_one(small: Small, tmp_path: Path, code: str, error: str) -> None:
    assert_bug(calibrate(small, tmp_path, code=code), error)
    assert list(tmp_path.iterdir()) == []


# ---- Hostile models through the commands: an exit code, no file, nothing that acts on a terminal


NASTY = "he\x1b[31mad\x07\x9b2J\u202e[red]"
SHOWN = r"he\x1b[31mad\x07\x9b2J\u202e[red]"
ACTING = ("\x1b", "\x07", "\x9b", "\u202e")


def no_controls(text: str) -> bool:
    return not any(character in text for character in ACTING)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((90, FEATURES)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, labels=rng.integers(0, 3, 90))
    return tmp_path / "data.npz"


@pytest.fixture
def nasty(tmp_path: Path) -> Path:
    """A model whose head, weight, output and metadata have names that act on a terminal."""
    b = Builder()
    weight = b.store(f"w{NASTY}", b.weight)
    b.node("Gemm", "features", weight, b.store("bias", b.bias), out=f"s{NASTY}", transB=1, name=NASTY)
    b.node("Softmax", f"s{NASTY}", out=f"y{NASTY}")
    proto = b.proto(f"y{NASTY}")
    helper.set_model_props(proto, {f"tna_onnx.x{NASTY}": f"one\ntwo{NASTY}", "names": json.dumps(["a", NASTY, "c"])})
    path = tmp_path / f"model{NASTY}.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_inspect(nasty: Path) -> None:
    result = ok("inspect", nasty)
    assert no_controls(result.output)
    for line in (f"head     {SHOWN} (Gemm)", f"output   y{SHOWN}", rf"  x{SHOWN}: one\ntwo{SHOWN}"):
        assert line in result.output.splitlines()


def test_inspect_as_json_holds_the_names_as_they_are(nasty: Path) -> None:
    result = cli("inspect", nasty, "--json", "-")
    assert no_controls(result.output)
    assert json.loads(result.output)["heads"][0]["node"] == NASTY


def test_commands_that_read_data(nasty: Path, data: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / nasty.name
    other.write_bytes(nasty.read_bytes())
    for words in (
        ("evaluate", nasty, "--data", data),
        ("compare", nasty, other, "--data", data, "--report", tmp_path / "c.html"),
        ("verify", nasty, other),
    ):
        result = cli(*words, *(["--device", "cpu"] if words[0] != "verify" else []))
        assert result.exit_code in (0, 1), result.output
        assert no_controls(result.output + result.stderr)
    page = (tmp_path / "c.html").read_text("utf-8")
    assert no_controls(page)


def test_an_error_names_the_place_without_acting(nasty: Path, data: Path) -> None:
    result = refused(3, SHOWN, "calibrate", nasty, "--calib", data, "--head", "nowhere", "--device", "cpu")
    assert no_controls(result.stderr)


def test_external_data_that_lead_out(data: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_bytes(SECRET)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "w.bin").symlink_to("../secret.txt")
    path = hostile(tmp_path / "model", location="w.bin", offset="0")
    before = sorted(tmp_path.rglob("*"))
    for words in (
        ("inspect", path),
        ("evaluate", path, "--data", data),
        ("features", path, "--data", data, "--cache", tmp_path / "cache"),
        ("compare", path, path, "--data", data),
        ("verify", path, path),
        ("calibrate", path, "--calib", data, "-o", tmp_path / "out.onnx"),
    ):
        refused(3, "behind a link to", *words)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_pipe_as_external_data_does_not_block(data: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    os.mkfifo(tmp_path / "model" / "pipe")
    refused(3, "not a regular file", "calibrate", hostile(tmp_path / "model", location="pipe"), "--calib", data)


def test_a_number_of_any_length_in_the_metadata(data: Path, tmp_path: Path) -> None:
    sample = CASES["float32 Gemm"]()
    digits = "9" * 5000
    entries = {
        "tna_onnx.classes": digits,
        "tna_onnx.output": "y",
        "names": f"{{{digits}: 'a'}}",
        "id2label": "[" * 10**5,
    }
    proto = onnx.ModelProto()
    proto.CopyFrom(sample.proto)
    helper.set_model_props(proto, entries)
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    for words in (("inspect", tmp_path / "model.onnx"), ("evaluate", tmp_path / "model.onnx", "--data", data)):
        ok(*words)
