"""The recipes of docs/how-to/trackers.md that need a tool of their own: MLflow with a local store, and Olive."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT, Small
from tests.pages.documents import blocks
from tests.support import PLAIN, cli, words_of

pytestmark = pytest.mark.slow


def run(tool: str, folder: Path, **env: str) -> None:
    """Run the block of the page that imports a tool, in a process of its own: tools keep state and write files."""
    [text] = [
        b.text
        for b in blocks(ROOT / "docs/how-to/trackers.md")
        if f"import {tool}\n" in b.text or f"from {tool} import" in b.text
    ]
    assert len([line for line in text.splitlines() if line and "import " not in line]) <= 10
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_run_of_mlflow_holds_the_numbers_and_the_file(small: Small, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    output = tmp_path / "new.onnx"
    words = ["--eval", small.test, "-o", output, "--json", tmp_path / "result.json", *words_of(PLAIN)]
    assert cli("calibrate", small.model, small.calib, *words, "--quiet").exit_code == 0
    store = f"sqlite:///{tmp_path}/runs.db"
    run("mlflow", tmp_path, MLFLOW_TRACKING_URI=store, MLFLOW_DISABLE_TELEMETRY="true")

    warnings.simplefilter("ignore")  # of what MLflow calls; pytest sets the filters back
    client = mlflow.MlflowClient(tracking_uri=store)
    [found] = client.search_runs(["0"])
    report = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert found.data.tags["verdict"] == report["verdict"]
    assert found.data.params["seed"] == str(report["settings"]["seed"])
    for when in ("before", "after"):
        values = report["comparison"][when]
        expected = {f"{when}.{name}": value for name, value in values.items() if isinstance(value, (int, float))}
        assert {name: value for name, value in found.data.metrics.items() if name.startswith(when)} == expected
    kept = Path(client.download_artifacts(found.info.run_id, "", dst_path=str(tmp_path)))
    assert (kept / "new.onnx").read_bytes() == output.read_bytes()


def test_the_result_of_a_workflow_of_olive_is_calibrated(small: Small, tmp_path: Path) -> None:
    pytest.importorskip("olive")
    shutil.copy(small.model, tmp_path / "model.onnx")
    for name, path in (("calib", small.calib), ("test", small.test)):
        np.savez(tmp_path / f"{name}.npz", **np.load(path))
    workflow = {
        "input_model": {"type": "ONNXModel", "model_path": "model.onnx"},
        "passes": {"fixed": {"type": "DynamicToFixedShape", "dim_param": ["N"], "dim_value": [50]}},
        "output_dir": "out",
        "cache_dir": "cache",
    }
    (tmp_path / "workflow.json").write_text(json.dumps(workflow), "utf-8")
    run("olive.workflows", tmp_path, OLIVE_DISABLE_TELEMETRY="1")
    assert (tmp_path / "out/model.tna.onnx").is_file()
