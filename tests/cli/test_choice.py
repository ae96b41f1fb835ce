"""The choice of a method as the command line shows it, and maps that go into the last layer of real files."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import tna_onnx
from tests.conftest import Small
from tests.graph.samples import run
from tests.pipeline.test_folded_maps import Built, gemm, without_bias
from tests.support import cli, ok

Array = NDArray[Any]

# --- maps in the last layer

MODELS: dict[str, Callable[[], Built]] = {
    "no bias": without_bias,
    "float16": lambda: gemm("float16"),
    "one logit": lambda: gemm(classes=1, activation="Sigmoid"),
}


def data_of(built: Built) -> dict[str, Array]:
    """Samples whose labels follow the model at temperature 2, with classes that have shifted."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((500, 6)).astype(built.dtype)
    # logits of the binary head are mostly negative: a larger shift would leave them worse than guessing
    size = 1 if built.classes > 2 else 0.25
    logits = built.logits(x) / 2 + np.linspace(-size, size, built.classes)
    return {"x": x, "labels": np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)}


@pytest.mark.parametrize("model", MODELS)
def test_any_map_goes_with_predictions_kept(model: str, tmp_path: Path) -> None:
    """The file predicts what the source does, on samples of the fit and others, and is the record's, byte by byte."""
    built = MODELS[model]()
    data = data_of(built)
    onnx.save(built.proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "c.npz", **data)
    words = ("--search", "none", "--map", "bias", "--output-name", "y", "--device", "cpu", "--predictions", "keep")
    command = ("calibrate", tmp_path / "m.onnx", "--calib", tmp_path / "c.npz", "--json", tmp_path / "r.json")
    ok(*command, "-o", tmp_path / "o.onnx", *words)
    onnx.checker.check_model(onnx.load(tmp_path / "o.onnx"), full_check=True)
    x = np.concatenate([data["x"], np.random.default_rng(9).standard_normal((3000, 6)).astype(data["x"].dtype)])
    before, after = (built.probabilities(run(tmp_path / name, ["y"], x)[0]) for name in ("m.onnx", "o.onnx"))
    np.testing.assert_array_equal(after.argmax(1), before.argmax(1))
    assert np.abs(after - before).max() > 0.05
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["map"], report["changed_predictions"]) == ("clamped-bias", 0)
    assert report["comparison"]["after"]["accuracy"] == report["comparison"]["before"]["accuracy"]
    assert not report["folded"]
    ok("verify", tmp_path / "m.onnx", tmp_path / "o.onnx")
    edited = onnx.load(tmp_path / "o.onnx")
    (record,) = (entry for entry in edited.metadata_props if entry.key == "tna_onnx.change")
    record.value = record.value.replace('"is":"ClampedBias"', '"is":"ClampedVectorScaling"')
    onnx.save(edited, tmp_path / "edited.onnx")
    assert cli("verify", tmp_path / "m.onnx", tmp_path / "edited.onnx").exit_code == 1


@pytest.mark.parametrize("model", MODELS)
def test_a_refit_is_worth_it_and_its_report_is_true(model: str, tmp_path: Path) -> None:
    """The NLL that is reported of the calibration data is the one of the file, run by ONNX Runtime."""
    built = MODELS[model]()
    data = data_of(built)
    onnx.save(built.proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "c.npz", **data)
    output, json_file = tmp_path / "o.onnx", tmp_path / "r.json"
    words = ("--search", "none", "--map", "refit", "--output-name", "y", "--device", "cpu", "--json", json_file)
    ok("calibrate", tmp_path / "m.onnx", "--calib", tmp_path / "c.npz", "-o", output, *words)
    report = json.loads(json_file.read_text())
    assert report["folded"]
    rows = np.arange(len(data["labels"]))
    values = []
    for path in (tmp_path / "m.onnx", output):
        p = built.probabilities(run(path, ["y"], data["x"])[0])
        values.append(-float(np.mean(np.log(p[rows, data["labels"]]))))
    assert values[1] < values[0] - 0.02  # classes have shifted, and the model is too sure
    calibration = report["calibration"]
    tolerance = 2e-2 if built.dtype == "float16" else 1e-5  # as above
    assert [calibration[side]["nll"] for side in ("before", "after")] == pytest.approx(values, abs=tolerance)
    nodes = [node.op_type for node in onnx.load(output).graph.node if node.name.startswith("tna_onnx/")]
    assert ("Add" in nodes) == (model == "no bias")


def test_the_settings_of_the_paper(small: Small) -> None:
    settings = dataclasses.replace(tna_onnx.PAPER, angle_step=30.0)
    words: dict[str, Any] = {"dry_run": True, "device": "cpu", "map": "ets", "seed": 4, "settings": settings}
    report = tna_onnx.calibrate(small.model, small.calib, eval=small.test, **words)
    assert (report.search, report.map) == ("sparse", "ets")
    expected = {"ensemble_size": 10, "grows": False, "tilt_bias": False, "adaptive": False, "max_accuracy_drop": 100.0}
    assert {name: report.settings[name] for name in expected} == expected
    # ten members, each of which can stop after every 50 rotations
    rotations = [point.rotations for point in report.curve]
    assert max(rotations) > 0
    assert all(round(10 * count) % 50 == 0 for count in rotations)
