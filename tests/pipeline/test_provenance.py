"""What a written file says about itself: enough to repeat the run, nothing that differs when it is repeated."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import tna_onnx
from tests.conftest import Demo, Small
from tests.pipeline.samples import opened, outcome_of
from tna_onnx import __version__
from tna_onnx.data import Recipe
from tna_onnx.data.options import Data
from tna_onnx.maps.temperature import Temperature
from tna_onnx.pipeline.job import Job, Task
from tna_onnx.pipeline.opening import open_task
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.writing import provenance_entries
from tna_onnx.progress import silent
from tna_onnx.runtime import Device
from tna_onnx.runtime.session import CUDA


def test_entries_are_texts_that_give_the_numbers_back(task: Task, small: Small) -> None:
    settings = Settings(search="none", bins=12, max_accuracy_drop=0.5, theta_s=0.1 + 0.2)
    entries = provenance_entries(task, settings, outcome_of(task, Temperature(1 / 3)))
    assert all(isinstance(value, str) for value in entries.values())
    assert entries["version"] == __version__
    assert (entries["search"], entries["map"], entries["output_kind"]) == ("none", "ts", "logits")
    assert entries["source_sha256"] == hashlib.sha256(small.model.read_bytes()).hexdigest()
    numbers = {name: json.loads(entries[name]) for name in ("temperature", "theta_s", "bins", "calibration_samples")}
    assert numbers == {"temperature": 1 / 3, "theta_s": 0.1 + 0.2, "bins": 12, "calibration_samples": 1500}
    assert json.loads(entries["max_accuracy_drop"]) == 0.5  # points, as it was asked for
    assert json.loads(entries["antithetic"]) is False


def test_the_same_data_elsewhere_give_the_same_entries_and_other_data_others(
    task: Task, small: Small, tmp_path: Path
) -> None:
    settings = Settings(search="none")
    here = provenance_entries(task, settings, outcome_of(task))
    moved = Small(tmp_path / "m.onnx", tmp_path / "c.npz", small.test)
    shutil.copy(small.model, moved.model)
    shutil.copy(small.calib, moved.calib)
    there = opened(moved)
    assert provenance_entries(there, settings, outcome_of(there)) == here
    other = opened(small, calib=small.test)
    entries = provenance_entries(other, settings, outcome_of(other))
    assert {name for name in here if entries[name] != here[name]} == {"calibration_sha256", "calibration_sketch"}


def test_a_recipe_is_kept(demo: Demo, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    arrays = np.load(demo.calib)
    for k, label in enumerate(arrays["labels"][:100]):
        folder = tmp_path / str(label)
        folder.mkdir(exist_ok=True)
        image.fromarray(np.round(arrays["image"][k, 0] * 255).astype(np.uint8)).save(folder / f"{k}.png")
    settings = Settings(search="none", bins=5)
    task = open_task(
        Job(demo.model, Data(tmp_path, preprocessing=Recipe(scale=1 / 255)), settings=settings, device="cpu"), silent
    )
    assert json.loads(provenance_entries(task, settings, outcome_of(task))["preprocessing"]) == json.loads(
        json.dumps(task.source.recipe())
    )


def test_a_map_of_features_says_not_to_quantise_behind_it(small: Small, tmp_path: Path) -> None:
    for name, told in (("aar", True), ("ts", False)):
        target = tmp_path / f"{name}.onnx"
        tna_onnx.calibrate(small.model, small.calib, search="none", map=name, output=target, fail_if_worse=False)
        keys = {entry.key for entry in onnx.load(target).metadata_props}
        assert ("tna_onnx.quantization" in keys) == told


@pytest.mark.parametrize(("tf32", "word"), [(True, "as-deployed"), (False, "off")])
def test_tf32_is_recorded_where_there_is_such_a_choice(task: Task, tf32: bool, word: str) -> None:
    outcome = outcome_of(task)
    assert "tf32" not in provenance_entries(task, Settings(), outcome)
    opened_on = replace(task.opened, device=Device("cuda", tf32=tf32))
    on_cuda = replace(task, provider=CUDA, opened=opened_on)
    assert provenance_entries(on_cuda, Settings(), outcome)["tf32"] == word
