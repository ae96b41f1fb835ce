"""`--isolate`: a crash or an endless loop of native code is an error with exit code 3, one line, no file."""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tna_onnx
from tests.graph.samples import CASES, FEATURES
from tests.support import PLAIN, run, words_of
from tna_onnx.errors import DeviceError, TnaError, UnsupportedModel, UsageError
from tna_onnx.extraction import isolation as isolated
from tna_onnx.extraction.isolation import open_source
from tna_onnx.graph.options import ModelLimits, ModelOptions

ISOLATE = ModelOptions(isolate=True)

# In place of ONNX Runtime: a library that does to the process what a flaw in compiled code would do.
FAKE = """
import ctypes, os, time
__version__ = "1.0"
class SessionOptions:
    def add_session_config_entry(self, *words): pass
def get_available_providers(): return ["CPUExecutionProvider"]
def InferenceSession(*words, **options):
    {harm}
"""
HARM = {
    "SIGSEGV": "ctypes.string_at(0)",
    "SIGABRT": "os.abort()",
    "SIGKILL": "os.kill(os.getpid(), 9)",  # as the system does where memory ends
    "exit code 0x7": "os._exit(7)",
    "did not open it within 2 seconds": "exec('while True: pass')",
    "within 2 seconds": "ctypes.CDLL(None).pause()",  # outside of the interpreter, which no Python signal ends
}
SLOW_VERBS = ("compare", "evaluate", "features", "inspect", "verify")
VERBS = ["calibrate", *(pytest.param(verb, marks=pytest.mark.slow) for verb in SLOW_VERBS)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return CASES["external data"]().write(tmp_path / "in").path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "in/data.npz"
    np.savez(path, x=rng.standard_normal((60, FEATURES)).astype(np.float32), labels=rng.integers(0, 3, 60))
    return path


def words(verb: str, model: Path, data: Path, out: Path) -> list[str]:
    own: dict[str, list[Any]] = {
        "calibrate": [model, "--calib", data, "-o", out / "new.onnx", *words_of(PLAIN), "--trust-labels"],
        "compare": [model, model, "--data", data, "--json", out / "a.json"],
        "evaluate": [model, "--data", data, "--json", out / "a.json"],
        "features": [model, "--data", data, "--cache", out / "store"],
        "inspect": [model],
        "verify": [model, model],
    }
    return [verb, *map(str, own[verb]), "--isolate", "--model-limit", "isolate-seconds=2"]


def harmed(tmp_path: Path, harm: str) -> dict[str, str]:
    (tmp_path / "fake/onnxruntime").mkdir(parents=True)
    (tmp_path / "fake/onnxruntime/__init__.py").write_text(FAKE.format(harm=harm))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "fake"), os.environ.get("PYTHONPATH", "")])}


CRASHES = [("calibrate", said) for said in HARM] + [(verb, "SIGSEGV") for verb in SLOW_VERBS]


@pytest.mark.parametrize(
    ("verb", "said"), [*CRASHES[:2], *(pytest.param(*crash, marks=pytest.mark.slow) for crash in CRASHES[2:])]
)
def test_a_crash_is_one_line_and_no_file(verb: str, said: str, model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    result = run(*words(verb, model, data, out), env=harmed(tmp_path, HARM[said]), cwd=out)
    assert result.returncode == 3, result.stderr
    (line,) = result.stderr.strip().splitlines()
    assert str(model) in line
    assert said in line
    assert result.stdout == ""
    assert list(out.iterdir()) == []


def test_without_the_option_the_process_itself_ends(model: Path, data: Path, tmp_path: Path) -> None:
    """The library of these tests does crash."""
    out = tmp_path / "out"
    out.mkdir()
    most = words("evaluate", model, data, out)
    most.remove("--isolate")
    assert run(*most, env=harmed(tmp_path, HARM["SIGABRT"]), cwd=out).returncode == -6


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_a_sound_model_ends_as_without(verb: str, model: Path, data: Path, tmp_path: Path) -> None:
    ends = []
    for drop in ([], ["--isolate"]):
        out = tmp_path / f"out{len(drop)}"
        out.mkdir()
        result = run(*[word for word in words(verb, model, data, out) if word not in drop])
        ends.append((result.returncode, result.stdout.replace(str(out), ""), len(list(out.iterdir()))))
    assert ends[0] == ends[1]
    assert ends[0][0] == 0


def test_a_child_outlives_no_limit(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where its own alarm does not end it, the parent process does."""
    monkeypatch.setattr(isolated, "_PROGRAM", "import time; time.sleep(60)")
    monkeypatch.setattr(isolated, "_START_SECONDS", 0.2)
    start = time.monotonic()
    with pytest.raises(UnsupportedModel, match=r"within 0.2 seconds .*isolate-seconds=NUMBER"):
        open_source(model, ModelOptions(isolate=True, model_limits=ModelLimits(isolate_seconds=0.2)))
    assert time.monotonic() - start < 30


def test_a_child_that_does_not_start_is_no_fault_of_the_model(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "_PROGRAM", "import no_such_module")
    with pytest.raises(DeviceError, match=r"does not start .*No module named 'no_such_module'"):
        open_source(model, ISOLATE)


def test_modules_of_the_current_folder_are_not_loaded(model: Path, tmp_path: Path) -> None:
    """A model may come in a folder with programs in it."""
    (model.parent / "onnx.py").write_text("raise SystemExit('executed')")
    (model.parent / "json.py").write_text("raise SystemExit('executed')")
    env = {**os.environ, "PYTHONSAFEPATH": "1"}  # the installed program has no current folder in its path either
    code = "import sys; sys.path[:] = [p for p in sys.path if p]"
    result = run("inspect", model, "--isolate", code=code, cwd=model.parent, env=env)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("source", [b"", b"\x08\x07nonsense", 7, Path("no/such.onnx")])
def test_what_is_refused_is_refused_in_the_same_words(source: Any) -> None:
    texts = []
    for isolate in (False, True):
        with pytest.raises((UnsupportedModel, UsageError)) as error:
            open_source(source, ModelOptions(isolate=isolate))
        texts.append(str(error.value))
    assert texts[0] == texts[1]


def test_from_python(model: Path, data: Path) -> None:
    result = tna_onnx.evaluate(model, data, device="cpu", model_options=tna_onnx.ModelOptions(isolate=True))
    assert result.metrics == tna_onnx.evaluate(model, data, device="cpu").metrics
    assert json.dumps(tna_onnx.inspect(model, isolate=True).sha256)
    with pytest.raises(TnaError, match="name-length"):
        tna_onnx.inspect(model, model_limits=ModelLimits(name_length=2))
