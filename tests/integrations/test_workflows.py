"""The stage of DVC and the component of Kubeflow on the page about pipelines, run by these tools."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.pages.documents import Block, blocks

PAGE = ROOT / "docs/how-to/pipelines.md"


def block_with(text: str) -> Block:
    [found] = [block for block in blocks(PAGE) if text in block.text]
    return found


def copied_world(folder: Path) -> None:
    """Put the demo and a `tna-onnx` command into a folder, as an installation would."""
    shutil.copytree(ROOT / "models/digits", folder / "models/digits", ignore=shutil.ignore_patterns("*.tna.onnx"))
    (folder / "bin").mkdir()
    program = folder / "bin/tna-onnx"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tna_onnx "$@"\n', "utf-8")
    program.chmod(0o755)


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "DVC_NO_ANALYTICS": "1",
        # neither tool is to find settings of the user
        "HOME": str(folder),
    }
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("dvc") is None, reason="DVC is not installed")
def test_the_stage_of_dvc_runs_and_is_not_run_again(tmp_path: Path) -> None:
    copied_world(tmp_path)
    stage = block_with("# dvc.yaml").text
    (tmp_path / "dvc.yaml").write_text(stage, "utf-8")
    run(tmp_path, "dvc", "init", "--no-scm")
    assert "Running stage 'calibrate'" in run(tmp_path, "dvc", "repro").stdout
    assert (tmp_path / "digits.tna.onnx").is_file()
    assert "comparison.after.ece" in run(tmp_path, "dvc", "metrics", "show").stdout
    assert "didn't change, skipping" in run(tmp_path, "dvc", "repro").stdout
    # the same inputs give the same bytes: what depends on the model need not run again
    before = (tmp_path / "dvc.lock").read_text("utf-8")
    run(tmp_path, "dvc", "repro", "--force")
    after = (tmp_path / "dvc.lock").read_text("utf-8")
    assert outs_of(before) == outs_of(after)


def outs_of(lock: str) -> list[str]:
    """Digest of the model in a lock file; the metrics hold the duration."""
    lines = lock.splitlines()
    return [line for at, line in enumerate(lines) if "md5:" in line and "digits.tna.onnx" in lines[at - 1]]


@pytest.mark.slow
def test_the_component_of_kubeflow_compiles_and_runs(tmp_path: Path) -> None:
    pytest.importorskip("kfp")
    yaml = pytest.importorskip("yaml")
    copied_world(tmp_path)
    # the source of a component is read from its file
    body = block_with("def calibrate(model: str").text
    compiled = block_with("compiler.Compiler()").text
    local = "from kfp import local\nlocal.init(local.SubprocessRunner(use_venv=False))\n"
    folder = tmp_path / "models/digits"
    arguments = {
        "model": f"{folder}/model.onnx",
        "calib": f"{folder}/calib.npz",
        "heldout": f"{folder}/test.npz",
        "output": f"{tmp_path}/local.onnx",
        "max_ece": 3.0,
    }
    (tmp_path / "pipeline.py").write_text(f"{body}\n{compiled}\n{local}component(**{arguments!r})\n", "utf-8")
    done = run(tmp_path, sys.executable, "pipeline.py")
    component = yaml.safe_load((tmp_path / "calibrate.yaml").read_text("utf-8"))
    assert component["components"]["comp-calibrate"]["executorLabel"] == "exec-calibrate"
    [executor] = component["deploymentSpec"]["executors"].values()
    assert executor["container"]["image"] == "tna-onnx"
    assert (tmp_path / "local.onnx").is_file()
    assert "SUCCESS" in done.stdout + done.stderr
