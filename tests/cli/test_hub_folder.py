"""A folder as the Hub keeps it: the model in it, what the classes are called, how images become inputs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import tna_onnx
from tests.conftest import Small
from tests.support import cli
from tna_onnx.graph.load import load_model


@pytest.mark.parametrize("place", ["", "onnx"])
def test_the_folder_of_a_model_is_the_model(small: Small, place: str, tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    (hub / place).mkdir(parents=True)
    shutil.copy(small.model, hub / place / "model.onnx")
    names = ["ant", "bee", "cat", "dog", "eel"]
    (hub / "config.json").write_text(json.dumps({"id2label": dict(enumerate(names)), "model_type": "x"}))
    done = cli("calibrate", hub, small.calib, "--search", "none", "--map", "ts", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert (hub / place / "model.tna.onnx").is_file()
    report = tna_onnx.calibrate(hub, small.calib, output=tmp_path / "n.onnx", search="none", map="ts", device="cpu")
    assert [each.name for each in report.recall.classes] == names


def test_names_that_nobody_gave_are_none(small: Small, tmp_path: Path) -> None:
    shutil.copy(small.model, tmp_path / "model.onnx")
    for config in ({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, {"num_classes": 5}, ["a"], "no JSON"):
        text = config if isinstance(config, str) else json.dumps(config)
        (tmp_path / "config.json").write_text(text)
        assert "id2label" not in load_model(tmp_path).said_of_classes
    assert "id2label" not in load_model(tmp_path).metadata


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    done = cli("inspect", tmp_path)
    assert (done.exit_code, "expected an ONNX model file" in done.output) == (2, True)
