"""The command line as a user meets it: help, results, errors with their exit codes, nothing left behind."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tna_onnx
from tests.builders import small_model, tensor_info
from tests.conftest import ROOT, Small
from tests.support import PLAIN, TILTED, cli, ok, refused, run, words_of

FAST = words_of(PLAIN)
SEARCHED = words_of(TILTED)


def save(path: Path, nodes: list[onnx.NodeProto], tensors: dict[str, np.ndarray], **shapes: list[object]) -> Path:
    """Write a float32 model with input `x` and output `logits`."""
    shapes = {"x": ["N", 8], "logits": ["N", 5], **shapes}
    x, y = (tensor_info(name, shapes[name]) for name in ("x", "logits"))
    onnx.save(small_model(nodes, [x], [y], tensors), path)
    return path


@pytest.mark.parametrize("start", [["-m", "tna_onnx"], [str(ROOT / "cli.py")]])
def test_module_and_shim_are_the_console_script(start: list[str]) -> None:
    done = subprocess.run([sys.executable, *start, "--version"], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == f"tna-onnx, version {tna_onnx.__version__}"


def test_main_job_prints_the_table_and_writes_json(small: Small, tmp_path: Path) -> None:
    output, json_file = tmp_path / "o.onnx", tmp_path / "r.json"
    data = ["--calib", small.calib, "--eval", small.test]
    result = ok("calibrate", small.model, *data, "-o", output, "--json", json_file, "-v", *SEARCHED)
    for word in ("accuracy, %", "ECE, %", "AdaECE, %", "NLL, nats", "Brier", "held-out: N = 1,500, 15 bins"):
        assert word in result.output
    assert re.search(r"^verdict  improved: NLL .*, ECE .*; 1,500 held-out samples, 95% intervals", result.output, re.M)
    report = json.loads(json_file.read_text())
    ok("evaluate", output, "--data", small.test, "--json", json_file, "--device", "cpu")
    measured = json.loads(json_file.read_text())["metrics"]
    assert measured == pytest.approx(report["comparison"]["after"], abs=1e-6)  # float32, summed in another order


def test_progress_stays_off_a_pipe_and_quiet_is_quiet(small: Small, tmp_path: Path) -> None:
    done = run("calibrate", small.model, "--calib", small.calib, *SEARCHED, "-q", "-o", tmp_path / "o.onnx")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def truncated(small: Small, folder: Path) -> Path:
    path = folder / "cut.onnx"
    path.write_bytes(small.model.read_bytes()[:-100])
    return path


def text(folder: Path) -> Path:
    path = folder / "text.onnx"
    path.write_text("this is no model\n" * 20)
    return path


def no_head(folder: Path) -> Path:
    weight = np.ones((8, 5), np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Sin", ["h"], ["logits"], name="sine")]
    return save(folder / "sine.onnx", nodes, {"w": weight})


BAD_MODELS = {
    "missing": (lambda small, folder: folder / "none.onnx", 2, "no such file"),
    "folder": (lambda small, folder: folder, 2, "is a directory"),
    "text": (lambda small, folder: text(folder), 3, "not an ONNX file"),
    "truncated": (truncated, 3, "truncated"),
    "no head": (lambda small, folder: no_head(folder), 3, "at sine: Sin is neither a linear layer"),
}


@pytest.mark.parametrize("case", BAD_MODELS)
@pytest.mark.parametrize("command", ["calibrate", "evaluate", "inspect"])
def test_bad_models(small: Small, tmp_path: Path, case: str, command: str) -> None:
    make, code, message = BAD_MODELS[case]
    # rows that add up to 1 could be calibrated: the data show that these do not
    if case == "no head":
        code = 0 if command == "inspect" else 3
        message = message if command == "inspect" else "if they are logits, say so with --output-kind logits"
    flags = {"calibrate": ["--calib", small.calib], "evaluate": ["--data", small.calib], "inspect": []}[command]
    result = cli(command, make(small, tmp_path), *flags)
    assert (result.exit_code, message in result.output) == (code, True), result.output
    assert "Traceback" not in result.output
    assert not list(tmp_path.glob("*.tna.onnx"))


def data_with(folder: Path, small: Small, **changes: object) -> Path:
    """Write the calibration data with some arrays changed, None for left out."""
    arrays = {**np.load(small.calib), **changes}
    np.savez(folder / "data.npz", **{k: v for k, v in arrays.items() if v is not None})
    return folder / "data.npz"


def nan_at(small: Small, row: int) -> np.ndarray:
    x = np.load(small.calib)["x"]
    x[row, 3] = np.nan
    return x


X = np.zeros((1500, 8), np.float32)
LABELS = np.arange(1500) % 5
BAD_DATA = {
    "labels missing": (lambda s: {"labels": None}, 4, "labels"),
    "labels out of range": (lambda s: {"labels": LABELS + 1}, 4, "5"),
    "wrong shape": (lambda s: {"x": X[:, :7]}, 4, "7"),
    "NaN": (lambda s: {"x": nan_at(s, 1234)}, 4, "1234"),
    "fewer samples than bins": (lambda s: {"x": X[:12], "labels": LABELS[:12]}, 4, "15 bins"),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_bad_arrays(small: Small, tmp_path: Path, case: str) -> None:
    change, code, message = BAD_DATA[case]
    data = data_with(tmp_path, small, **change(small))
    output = tmp_path / "o.onnx"
    for command in (
        ["calibrate", small.model, "--calib", data, "-o", output],
        ["calibrate", small.model, "--calib", small.calib, "--eval", data, "-o", output, *FAST],
        ["evaluate", small.model, "--data", data],
    ):
        result = refused(code, message, *command)
        assert "data.npz" in result.output
        assert not output.exists()


def test_infinite_features_and_logits_name_the_sample(small: Small, tmp_path: Path) -> None:
    x = np.load(small.calib)["x"]
    x[7] = 3e38
    data = data_with(tmp_path, small, x=x)
    result = cli("calibrate", small.model, "--calib", data, "-o", tmp_path / "o.onnx")
    assert (result.exit_code, "sample 7" in result.output) == (4, True), result.output
    result = cli("evaluate", small.model, "--data", data)
    assert (result.exit_code, "sample 7" in result.output) == (4, True), result.output


@pytest.mark.parametrize(
    ("output", "message"),
    [("model.onnx", "output is the input model"), ("none/o.onnx", "does not exist"), (".", "is a directory")],
)
def test_bad_outputs(small: Small, tmp_path: Path, output: str, message: str) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(small.model.read_bytes())
    result = cli("calibrate", model, "--calib", small.calib, "-o", tmp_path / output)
    assert (result.exit_code, message in result.output) == (2, True), result.output
    assert model.read_bytes() == small.model.read_bytes()


BAD_USAGE = {
    "no data": ([], "--calib"),
    "missing data": (["--calib", "none.npz"], "none.npz"),
    "mean is no list": (["--calib", "D", "--mean", "a,b"], "0.485,0.456,0.406"),
    "resize is no size": (["--calib", "D", "--resize", "1,2,3"], "HEIGHT,WIDTH"),
    "flags for arrays": (["--calib", "D", "--mean", "0.5"], "images only"),
    "unknown device": (["--calib", "D", "--device", "tpu"], "expected auto, cpu, cuda or cuda:INDEX"),
    "nothing to do": (["--calib", "D", "--search", "none", "--map", "none"], "changes nothing"),
    "json nowhere": (["--calib", "D", "--json", "none/r.json"], "does not exist"),
}


@pytest.mark.parametrize("case", BAD_USAGE)
def test_bad_usage(small: Small, tmp_path: Path, case: str) -> None:
    flags, message = BAD_USAGE[case]
    given = [str(small.calib) if f == "D" else f for f in flags]
    result = cli("calibrate", small.model, *given, "-o", tmp_path / "o.onnx")
    assert (result.exit_code, message in result.output) == (2, True), result.output
    assert list(tmp_path.iterdir()) == []


def test_without_a_runtime_the_message_says_what_to_install(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # makes `import onnxruntime` fail
    result = cli("calibrate", small.model, "--calib", small.calib, "-o", tmp_path / "o.onnx")
    assert result.exit_code == 5
    assert "pip install 'tna-onnx[cpu]'" in result.output
    assert "pip install 'tna-onnx[gpu]'" in result.output


def test_data_that_the_model_has_mastered_gives_advice(small: Small, tmp_path: Path) -> None:
    arrays = dict(np.load(small.calib))
    tensors = {t.name: numpy_helper.to_array(t) for t in onnx.load(small.model).graph.initializer}
    logits = np.maximum(arrays["x"] @ tensors["hidden"], 0) @ tensors["weight"].T + tensors["bias"]
    data = data_with(tmp_path, small, labels=logits.argmax(axis=1))
    result = cli("calibrate", small.model, "--calib", data, "-o", tmp_path / "o.onnx", *FAST)
    assert (result.exit_code, "every calibration sample is classified right" in result.output) == (4, True)
    assert not (tmp_path / "o.onnx").exists()


def test_no_file_of_the_command_is_overwritten(small: Small, tmp_path: Path) -> None:
    model, data = tmp_path / "m.onnx", tmp_path / "d.npz"
    model.write_bytes(small.model.read_bytes())
    data.write_bytes(small.calib.read_bytes())
    for flags in (["-o", data], ["--json", model], ["--json", data], ["--json", tmp_path], ["-o", model]):
        result = cli("calibrate", model, "--calib", data, *flags)
        assert result.exit_code == 2, result.output
    assert model.read_bytes() == small.model.read_bytes()
    assert data.read_bytes() == small.calib.read_bytes()
    assert len(list(tmp_path.iterdir())) == 2
