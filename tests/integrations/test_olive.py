"""The pass of Olive in a workflow that the real `olive run` makes: a pass of Olive before it, a gate behind it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.conftest import ROOT, Small

pytest.importorskip("olive")

QUICK = {"search": "none", "map": "ts", "device": "cpu"}


def workflow(small: Small, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run two passes: symbolic batches become batches of 50, then the model is recalibrated."""
    from tna_onnx.integrations.olive import register

    register(folder / "package.json")
    config = {
        "input_model": {"type": "ONNXModel", "model_path": str(small.model)},
        "passes": {
            "fixed": {"type": "DynamicToFixedShape", "dim_param": ["N"], "dim_value": [50]},
            "calibrated": {
                "type": "TnaCalibration",
                "calib": str(small.calib),
                "eval": str(small.test),
                "options": QUICK | options,
            },
        },
        "output_dir": str(folder / "out"),
        "cache_dir": str(folder / "cache"),
        "no_artifacts": True,
    }
    (folder / "workflow.json").write_text(json.dumps(config), "utf-8")
    words = [sys.executable, "-m", "olive", "run", "--run-config", "workflow.json", "--package-config", "package.json"]
    return subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OLIVE_DISABLE_TELEMETRY": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_pass_recalibrates_what_the_pass_before_it_made(small: Small, tmp_path: Path) -> None:
    done = workflow(small, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    [output] = (tmp_path / "out").rglob("*.onnx")
    written = onnx.load(output)
    assert any(entry.key == "tna_onnx.map" for entry in written.metadata_props)
    assert written.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 50
    [report] = (tmp_path / "out").rglob("report.json")
    assert json.loads(report.read_text("utf-8"))["verdict"].startswith("improved")


@pytest.mark.slow
def test_a_missed_gate_ends_the_workflow(small: Small, tmp_path: Path) -> None:
    done = workflow(small, tmp_path, max_ece=0.001)
    assert not list((tmp_path / "out").rglob("*.onnx"))
    assert "ECE" in done.stdout + done.stderr
