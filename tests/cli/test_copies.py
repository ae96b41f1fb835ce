"""Copies among calibration samples decide nothing: what is written is what the distinct samples give."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.support import cli

Array = NDArray[Any]

CLASSES, FEATURES = 10, 128


def weight(seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal((CLASSES, FEATURES)).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head of more features than a calibration set of a few hundred samples can fit."""
    nodes = [helper.make_node("Relu", ["x"], ["f"]), helper.make_node("Gemm", ["f", "w", "b"], ["logits"], transB=1)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", FEATURES])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", CLASSES])],
        [numpy_helper.from_array(0.4 * weight(0), "w"), numpy_helper.from_array(np.zeros(CLASSES, np.float32), "b")],
    )
    path = tmp_path_factory.mktemp("copies") / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def drawn(n: int, copies: int, noise: float, seed: int) -> dict[str, Array]:
    """Samples whose labels follow the head roughly, and copies of each of them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, FEATURES)).astype(np.float32)
    scores = np.maximum(x, 0) @ (0.4 * weight(0) + 0.5 * weight(1)).T
    labels = (scores + 4 * rng.gumbel(size=scores.shape)).argmax(axis=1)
    x = np.repeat(x, copies, axis=0)
    x = x + noise * rng.standard_normal(x.shape).astype(np.float32)
    return {"x": x.astype(np.float32), "labels": np.repeat(labels, copies)}


def calibrated(model: Path, folder: Path, data: dict[str, Array], *words: object) -> tuple[Any, dict[str, Any]]:
    np.savez(folder / "calib.npz", **data)
    command = ["calibrate", model, "--calib", folder / "calib.npz", "-o", folder / "o.onnx", "--overwrite"]
    done = cli(*command, "--json", folder / "r.json", "--device", "cpu", *words)
    report = json.loads((folder / "r.json").read_text()) if (folder / "r.json").exists() else {}
    return done, report


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_copies_choose_what_the_distinct_samples_choose(model: Path, tmp_path: Path, noise: float) -> None:
    _, alone = calibrated(model, tmp_path, drawn(250, 1, 0, 3))
    done, report = calibrated(model, tmp_path, drawn(250, 4, noise, 3))
    assert done.exit_code == 0, done.output
    assert report["map"] == alone["map"]
    after, expected = report["comparison"]["after"], alone["comparison"]["after"]
    assert after["accuracy"] == pytest.approx(expected["accuracy"], abs=0.02)
    assert after["nll"] == pytest.approx(expected["nll"], abs=0.02)
    # 1,000 rows know no more than 250
    nll, expected_nll = (each["comparison"]["differences"]["nll"] for each in (report, alone))
    assert nll["high"] - nll["low"] == pytest.approx(expected_nll["high"] - expected_nll["low"], rel=0.1)
    notes = "\n".join(report["notes"])
    assert re.search(r"7[0-9]{2} samples \(7.*%\) are (near )?copies of others", notes)
    assert "copies share a fold" in notes


def test_an_implausible_gain_is_refused_and_held_out_samples_settle_it(model: Path, tmp_path: Path) -> None:
    """Copies too unlike each other to be recognised."""
    copies = drawn(250, 4, 0.4, 3)
    done, _ = calibrated(model, tmp_path, copies)
    assert done.exit_code == 4, done.output
    assert "implausible" in done.output
    assert "--eval" in done.output
    assert not (tmp_path / "o.onnx").exists()
    np.savez(tmp_path / "new.npz", **drawn(1000, 1, 0, 9))
    done, _ = calibrated(model, tmp_path, copies, "--eval", tmp_path / "new.npz")
    assert done.exit_code != 4, done.output
    assert "implausible" not in done.output


def test_near_copies_of_calibration_samples_cannot_judge(model: Path, tmp_path: Path) -> None:
    frames = drawn(120, 6, 0.02, 3)
    first = np.arange(720) % 6 < 3
    np.savez(tmp_path / "held.npz", **{name: values[~first] for name, values in frames.items()})
    calib = {name: values[first] for name, values in frames.items()}
    done, _ = calibrated(model, tmp_path, calib, "--eval", tmp_path / "held.npz")
    assert done.exit_code == 4, done.output
    assert " of 360 samples" in done.output
    assert "are near copies of calibration samples" in done.output
    allowed, _ = calibrated(model, tmp_path, calib, "--eval", tmp_path / "held.npz", "--data-limit", "overlap=100")
    assert allowed.exit_code == 0, allowed.output
