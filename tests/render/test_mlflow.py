"""`--mlflow` with a real local store: what a run holds, and what happens where there is no store to log to."""

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests import support
from tests.conftest import Small

FAST = ["--method", "tna", "--objective", "ece", "--ensemble-size", "10", "--device", "cpu"]

needs_mlflow = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("mlflow", "sqlalchemy")), reason="MLflow is not installed"
)


def command(small: Small, folder: Path, *flags: object) -> list[object]:
    files = [small.model, "--calib", small.calib, "--eval", small.test, "-o", folder / "o.onnx"]
    return ["calibrate", *files, *FAST, *flags]


def run(words: list[object], folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, in `folder`: MLflow keeps state in the process and writes there."""
    settings = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    settings |= {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/runs.db", "MLFLOW_DISABLE_TELEMETRY": "true"} | env
    return support.run(*words, cwd=folder, env=settings)


def stored(folder: Path, experiment: str = "Default") -> tuple[Any, dict[str, Any], list[str], Path]:
    """Read the only run of an experiment back: itself, the histories of its metrics, its files, and a copy of them."""
    import mlflow

    warnings.simplefilter("ignore")  # pytest sets the filters back
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder}/runs.db")
    (found,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    history = {name: client.get_metric_history(found.info.run_id, name) for name in found.data.metrics}
    (folder / "back").mkdir()
    copy = Path(client.download_artifacts(found.info.run_id, "", dst_path=folder / "back"))
    files = sorted(path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file())
    return found, history, files, copy


@needs_mlflow
def test_a_run_holds_everything(small: Small, tmp_path: Path) -> None:
    flags = ["--mlflow", "--json", "j.json", "--report", "r.html", "--seed", 3]
    done = run(command(small, tmp_path, *flags), tmp_path, MLFLOW_EXPERIMENT_NAME="digits")
    assert done.returncode == 0, done.stderr
    (found, history, files, folder), report = stored(tmp_path, "digits"), json.loads((tmp_path / "j.json").read_text())
    assert f"mlflow   run {found.info.run_id} in sqlite:///" in done.stdout
    assert done.stdout.startswith("The new model's probabilities")  # MLflow's own words are not on stdout
    assert not re.search("INFO|database|alembic", done.stderr), done.stderr  # nor what it does to a new database
    assert (found.info.status, found.info.run_name) == ("FINISHED", "model")

    parameters = found.data.params
    assert parameters["settings.seed"] == "3"
    assert parameters["settings.tilt.theta_s"] == "0.9"
    assert parameters["map"] == "ts"
    assert json.loads(parameters["fitted.temperature"]) == report["parameters"]["temperature"]
    assert parameters["model_sha256"] == report["model_sha256"]

    metrics = found.data.metrics
    for name, interval in report["comparison"]["differences"].items():
        assert metrics[f"before.{name}"] == report["comparison"]["before"][name]
        assert metrics[f"after.{name}"] == report["comparison"]["after"][name]
        ends = [metrics[f"difference.{name}{end}"] for end in ("", ".low", ".high")]
        assert ends == [interval["difference"], interval["low"], interval["high"]]
        assert metrics[f"calibration.after.{name}"] == report["calibration"]["after"][name]
    for stage in ("before", "after"):
        cumulative = report[f"bin_free_{stage}"]["cumulative"]
        assert metrics[f"{stage}.kuiper"] == cumulative["kuiper"]
        assert metrics[f"{stage}.kuiper_p"] == cumulative["kuiper_p"]
    for name in ("angle", "objective", "accuracy"):
        steps = [(each.step, each.value) for each in history[f"curve.{name}"]]
        assert steps == [*enumerate(point[name] for point in report["curve"])]

    assert found.data.tags["tna_onnx.verdict"] == report["verdict"]
    assert found.data.tags["tna_onnx.version.onnxruntime"] == report["versions"]["onnxruntime"]
    described = ["model/MLmodel", "model/o.onnx", "model/python_env.yaml", "model/requirements.txt"]
    assert files == [*described, "r.html", "report.json"]
    data = {each.tags[0].value: each.dataset.name for each in found.inputs.dataset_inputs}
    assert data == {"calibration": report["calibration"]["data"], "evaluation": report["comparison"]["data"]}
    assert (folder / "model/o.onnx").read_bytes() == (tmp_path / "o.onnx").read_bytes()
    assert json.loads((folder / "report.json").read_text("utf-8"))["comparison"] == report["comparison"]


LOAD = """
import sys, mlflow, mlflow.onnx, numpy as np, onnxruntime
uri = f"runs:/{sys.argv[1]}/model"
model = mlflow.onnx.load_model(uri)
version = mlflow.register_model(uri, "digits")
again = mlflow.onnx.load_model(f"models:/digits/{version.version}")
assert again == model
stored = np.load(sys.argv[2])
loaded = mlflow.pyfunc.load_model(uri).predict({"x": stored["x"]})["logits"]
[plain] = onnxruntime.InferenceSession(sys.argv[3]).run(None, {"x": stored["x"]})
assert np.array_equal(loaded, plain)
"""


@needs_mlflow
@pytest.mark.slow
def test_the_model_can_be_loaded_and_registered(small: Small, tmp_path: Path) -> None:
    pytest.importorskip("pandas")  # what loads models of MLflow needs it
    done = run(command(small, tmp_path, "--mlflow"), tmp_path)
    assert done.returncode == 0, done.stderr
    found, *_ = stored(tmp_path)
    env = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/runs.db", "MLFLOW_DISABLE_TELEMETRY": "true"}
    words = [sys.executable, "-c", LOAD, found.info.run_id, small.test, tmp_path / "o.onnx"]
    loaded = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    assert loaded.returncode == 0, loaded.stderr


@needs_mlflow
@pytest.mark.slow
def test_external_data_go_with_the_model_and_figures_with_the_run(small: Small, tmp_path: Path) -> None:
    model = onnx.load(small.model)
    source = tmp_path / "source"
    source.mkdir()
    onnx.save(model, source / "m.onnx", save_as_external_data=True, size_threshold=0, location="m.bin")
    flags = ["--calib", small.calib, "-o", "o.onnx", "--mlflow", "--search", "none", "--device", "cpu", "--quiet"]
    figures = ["--figures", "f"] if importlib.util.find_spec("matplotlib") else []
    done = run(["calibrate", source / "m.onnx", *flags, *figures], tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    _, _, files, _ = stored(tmp_path)
    assert {"model/o.onnx", "report.json"} <= set(files)
    # called by what it holds
    assert [file for file in files if re.fullmatch(r"model/o\.onnx\.[0-9a-f]+\.data", file)]
    assert ("figures/reliability.svg" in files) == bool(figures)


@needs_mlflow
@pytest.mark.parametrize(("flags", "code"), [([], 6), pytest.param(["--max-ece", "0.001"], 1, marks=pytest.mark.slow)])
def test_a_store_that_fails_costs_nothing_but_the_log(
    small: Small, tmp_path: Path, flags: list[str], code: int
) -> None:
    broken = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}  # with MLflow's own patience this takes five minutes
    outputs = ["--mlflow", "--json", "j.json", *flags]
    done = run(command(small, tmp_path, *outputs), tmp_path, **broken)
    assert done.returncode == code
    assert re.search(r"^Error: MLflow did not take the run: .*127\.0\.0\.1", done.stderr, re.M)
    assert re.search(r"^MLflow's server at http://127\.0\.0\.1:9 does not answer .*; the run goes", done.stderr, re.M)
    assert "Traceback" not in done.stderr
    assert "ECE, %" in done.stdout
    assert (tmp_path / "j.json").is_file()
    assert (tmp_path / "o.onnx").is_file() == (code == 6)
    if code == 6:
        onnx.checker.check_model(tmp_path / "o.onnx")
        assert f"{tmp_path / 'o.onnx'} is written" in done.stderr


@needs_mlflow
def test_a_server_that_takes_calls_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    from tna_onnx.render import mlflow as ours

    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(mlflow, "get_tracking_uri", lambda: uri)
        monkeypatch.setattr(ours, "_PROBE_SECONDS", 0.2)
        assert re.match(f"MLflow's server at {uri} does not answer within 0.2 seconds", ours.require_mlflow())


def test_a_missing_mlflow_is_said_before_any_work(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setattr("tna_onnx.api.calibrate.calibrate", lambda **_: pytest.fail("work was done"))
    support.refused(2, "pip install 'tna-onnx[mlflow]'", *command(small, tmp_path, "--mlflow"))
    assert list(tmp_path.iterdir()) == []
