"""The recipe of docs/how-to/trackers.md for MLflow, with a local store."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests.conftest import ROOT, Small
from tests.pages.documents import blocks
from tests.support import PLAIN, cli, words_of

pytestmark = pytest.mark.slow


def test_a_run_of_mlflow_holds_the_numbers_and_the_file(small: Small, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    output = tmp_path / "new.onnx"
    words = ["--eval", small.test, "-o", output, "--json", tmp_path / "result.json", *words_of(PLAIN)]
    assert cli("calibrate", small.model, small.calib, *words, "--quiet").exit_code == 0
    store = f"sqlite:///{tmp_path}/runs.db"
    [text] = [b.text for b in blocks(ROOT / "docs/how-to/trackers.md") if "import mlflow\n" in b.text]
    assert len([line for line in text.splitlines() if line and "import " not in line]) <= 10
    # in a process of its own: MLflow keeps state and writes files
    own = {"PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": store, "MLFLOW_DISABLE_TELEMETRY": "true"}
    words = [sys.executable, "-c", text]
    done = subprocess.run(words, cwd=tmp_path, env=os.environ | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

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
