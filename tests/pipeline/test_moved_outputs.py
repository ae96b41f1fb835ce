"""Every output whose values change with the one that classifies is named, with how far it moves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import tna_onnx
from tests.builders import small_model, tensor_info

Files = tuple[Path, Path, Path]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Return a model with an energy score, labels, a mean over everything and an output of its own; data; features."""
    folder = tmp_path_factory.mktemp("moved")
    rng = np.random.default_rng(5)
    weight = 3 * rng.standard_normal((5, 8)).astype(np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["logits"], name="head", transB=1),
        helper.make_node("ReduceMax", ["logits"], ["energy"], axes=[1], keepdims=0),
        helper.make_node("ArgMax", ["logits"], ["label"], axis=1, keepdims=0),
        helper.make_node("ReduceMean", ["logits"], ["mean"], keepdims=0),
        helper.make_node("Abs", ["x"], ["own"]),
    ]
    outputs = [
        tensor_info("logits", ["N", 5]),
        tensor_info("energy", ["N"]),
        tensor_info("label", ["N"], np.int64),
        tensor_info("mean", []),
        tensor_info("own", ["N", 8]),
    ]
    onnx.save(small_model(nodes, [tensor_info("x", ["N", 8])], outputs, {"w": weight}), folder / "model.onnx")
    x = rng.standard_normal((1500, 8)).astype(np.float32)
    labels = np.argmax(x @ weight.T / 6 + rng.gumbel(size=(1500, 5)), axis=1)
    np.savez(folder / "data.npz", x=x, labels=labels)
    np.savez(folder / "features.npz", features=x, labels=labels)
    return folder / "model.onnx", folder / "data.npz", folder / "features.npz"


def test_an_energy_score_is_named_and_measured(files: Files, tmp_path: Path) -> None:
    model, data, _ = files
    words = {"map": "ts", "search": "none", "output_name": "logits", "device": "cpu"}
    page, result_file = tmp_path / "page.html", tmp_path / "result.json"
    files_written = {"output": tmp_path / "o.onnx", "report": page, "json": result_file}
    result = tna_onnx.calibrate(model, data, **files_written, **words)  # type: ignore[arg-type]
    energy, mean = result.verification.moved
    assert (energy.name, energy.samples, energy.moved) == ("energy", 512, 512)
    assert energy.largest is not None
    assert energy.largest > 1
    assert (mean.name, mean.samples, mean.largest) == ("mean", 0, None)
    moved = json.loads(result_file.read_text())["verification"]["moved"]
    assert {each["name"] for each in moved} == {"energy", "mean"}
    for each in result.verification.moved:
        assert each.text in result.notes
        assert f"output &#39;{each.name}&#39;" in page.read_text() or f"output '{each.name}'" in page.read_text()


def test_what_features_do_not_reach_is_named_too(files: Files) -> None:
    model, _, features = files
    result = tna_onnx.calibrate(model, features, map="ts", search="none", output_name="logits", dry_run=True)
    assert [each.name for each in result.verification.moved] == ["energy", "label", "mean"]
    assert not any(each.samples for each in result.verification.moved)


def test_new_class_frequencies_move_them_as_well(files: Files) -> None:
    model, data, _ = files
    words = {"output_name": "logits", "output_kind": "logits", "device": "cpu"}
    result = tna_onnx.shift(model, data, target_prior="uniform", dry_run=True, **words)  # type: ignore[arg-type]
    notes = "".join(result.notes)
    assert [name for name in ("energy", "label", "mean", "own") if f"'{name}'" in notes] == ["energy", "label", "mean"]
