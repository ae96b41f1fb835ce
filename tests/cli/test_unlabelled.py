"""`evaluate` on data without labels: what it says, gates, refusals, and which data have none."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from PIL import Image

import tna_onnx
from tests.builders import nodes_of, small_model, stumps
from tests.conftest import Small
from tests.results.test_json import valid
from tests.support import cli, loaded, ok, refused
from tna_onnx.errors import DataError, UnsupportedModel
from tna_onnx.results.gates import GateMissed


@pytest.fixture(scope="module")
def known_model(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """Write a classifier of three classes, input `x` (N, 8) -> Relu(x A) (16) -> `logits`, and its data."""
    folder, rng = tmp_path_factory.mktemp("three"), np.random.default_rng(5)
    hidden, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 16), (3, 16)))
    nodes = nodes_of("MatMul x hidden > h; Relu h > features; Gemm features weight > logits name=head transB=1")
    model = small_model(nodes, {"x": ["N", 8]}, {"logits": ["N", 3]}, {"hidden": hidden, "weight": weight})
    onnx.save(model, folder / "model.onnx")
    for name in ("calib", "test"):
        x = rng.standard_normal((1500, 8)).astype(np.float32)
        logits = np.maximum(x @ hidden, 0) @ weight.T
        np.savez(folder / f"{name}.npz", x=x, labels=np.argmax(logits / 2 + rng.gumbel(size=logits.shape), axis=1))
    return Small(folder / "model.onnx", folder / "calib.npz", folder / "test.npz")


@pytest.fixture(scope="module")
def calibrated(known_model: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unlabelled")
    words = ["--search", "none", "--map", "bias", "-q", "-o", folder / "m.onnx"]
    ok("calibrate", known_model.model, "--calib", known_model.calib, *words)
    data = loaded(known_model.test)
    np.savez(folder / "new.npz", x=data["x"])
    np.savez(folder / "scaled.npz", x=3 * data["x"])
    np.savez(folder / "misspelt.npz", x=data["x"], lables=data["labels"])
    np.savez(folder / "few.npz", x=data["x"][:20])
    np.savetxt(folder / "new.csv", data["x"], delimiter=",", header="a,b,c,d,e,f,g,h", comments="")
    rows = np.column_stack([data["x"], data["labels"]])
    np.savetxt(folder / "misspelt.csv", rows, delimiter=",", header="a,b,c,d,e,f,g,h,lable", comments="")
    return folder


def test_expected_accuracy_holds_the_one_that_labels_give(calibrated: Path, known_model: Small, tmp_path: Path) -> None:
    done = ok("evaluate", calibrated / "m.onnx", "--data", calibrated / "new.npz", "--json", tmp_path / "r.json")
    assert done.stdout.splitlines()[0].startswith("No labels")
    report = valid((tmp_path / "r.json").read_text())
    known = report["without_labels"]
    truth = tna_onnx.evaluate(calibrated / "m.onnx", known_model.test, device="cpu").metrics.accuracy
    found = known["accuracy"]
    assert found["low"] <= truth <= found["high"]
    assert found["low"] < found["value"] < found["high"]
    assert not known["alarm"]
    assert report["metrics"]["n"] == 1500
    assert report["metrics"]["accuracy"] is None
    shares = np.bincount(loaded(known_model.test)["labels"]) / 1500
    ends = np.array([each["interval"] for each in known["frequencies"]])
    assert np.all((ends[:, 0] <= shares) & (shares <= ends[:, 1]))


def test_every_kind_gives_the_same(calibrated: Path, known_model: Small) -> None:
    expected = tna_onnx.evaluate(calibrated / "m.onnx", loaded(known_model.test)["x"], device="cpu")
    assert "No labels" in repr(expected)
    for data in (calibrated / "new.npz", calibrated / "new.csv"):
        found = tna_onnx.evaluate(calibrated / "m.onnx", data, device="cpu")
        assert found.without_labels.other_p == pytest.approx(expected.without_labels.other_p, rel=1e-3)


def test_images_in_one_folder_have_no_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    nodes = nodes_of(
        "GlobalAveragePool image > mean; Flatten mean > features; Gemm features weight > logits name=head transB=1"
    )
    weight = np.array([[4, 0, 0], [0, 4, 0]], np.float32)
    model = small_model(nodes, {"image": ["N", 3, 4, 4]}, {"logits": ["N", 2]}, {"weight": weight})
    onnx.save(model, tmp_path / "model.onnx")
    for number in range(200):
        # three in four are mostly of the colour of their class
        colour = number % 2 if number % 8 else 1 - number % 2
        pixels = rng.integers(0, 200, (4, 4, 3), np.uint8)
        pixels[..., colour] += 55
        for folder in (f"calib/{number % 2}", "new"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(tmp_path / folder / f"{number}.png")
    words = ["--search", "none", "--map", "bias", "--mean", "0,0,0", "--std", "1,1,1", "-q", "-o", tmp_path / "m.onnx"]
    ok("calibrate", tmp_path / "model.onnx", "--calib", tmp_path / "calib", *words)
    known = tna_onnx.evaluate(tmp_path / "m.onnx", tmp_path / "new", device="cpu").without_labels
    truth = tna_onnx.evaluate(tmp_path / "m.onnx", tmp_path / "calib", device="cpu").metrics.accuracy
    # the samples of the reference themselves
    assert known.accuracy.value == pytest.approx(truth, abs=1e-4)
    assert known.other_p > 0.999


@pytest.mark.parametrize("name", ["misspelt.npz", "misspelt.csv"])
def test_a_column_more_than_the_inputs_may_be_the_labels(calibrated: Path, name: str) -> None:
    refused(4, "lable", "evaluate", calibrated / "m.onnx", "--data", calibrated / name)


def test_gate_takes_the_lower_end(calibrated: Path, tmp_path: Path) -> None:
    model, data = calibrated / "m.onnx", calibrated / "new.npz"
    known = tna_onnx.evaluate(model, data, device="cpu").without_labels
    assert known.accuracy.low is not None
    ok("evaluate", model, "--data", data, "--min-accuracy", 100 * known.accuracy.low - 0.1)
    refused(1, "--min-accuracy", "evaluate", model, "--data", data, "--min-accuracy", 100 * known.accuracy.value)
    with pytest.raises(GateMissed):
        tna_onnx.evaluate(model, data, gates=tna_onnx.Gates(min_accuracy=100), device="cpu")


def test_alarm_takes_the_number_away_and_fails_the_gate(calibrated: Path, tmp_path: Path) -> None:
    words = ["evaluate", calibrated / "m.onnx", "--data", calibrated / "scaled.npz", "--json", tmp_path / "r.json"]
    done = ok(*words, "--report", tmp_path / "r.html")
    known = valid((tmp_path / "r.json").read_text())["without_labels"]
    assert known["alarm"]
    assert known["accuracy"] is None
    assert "300 labelled samples" in done.output
    assert "cannot be known" in (tmp_path / "r.html").read_text()
    assert cli(*words, "--min-accuracy", 1).exit_code == 1


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (2, ["--max-ece", "5"]),
        (2, ["--min-recall", "1=0.5"]),
        (2, ["--expect-accuracy", "50"]),
        (2, ["--class-prior", "uniform"]),
    ],
)
def test_what_needs_labels_is_refused(calibrated: Path, code: int, words: list[str]) -> None:
    refused(code, "needs labels", "evaluate", calibrated / "m.onnx", "--data", calibrated / "new.npz", *words)


def test_few_samples_are_refused(calibrated: Path) -> None:
    refused(4, "at least 50", "evaluate", calibrated / "m.onnx", "--data", calibrated / "few.npz")


def test_a_file_without_a_reference_says_what_is_missing(calibrated: Path, known_model: Small) -> None:
    refused(4, "records no reference", "evaluate", known_model.model, "--data", calibrated / "new.npz")


def test_a_resealed_reference_that_cannot_be_is_refused(calibrated: Path, tmp_path: Path) -> None:
    model = onnx.load(calibrated / "m.onnx")
    entry = next(entry for entry in model.metadata_props if entry.key == "tna_onnx.reference")
    for change in ({"counts": [1e9]}, {"features": "x"}, {"features": "h"}):
        entry.value = json.dumps(json.loads(entry.value) | change)
        onnx.save(model, tmp_path / "n.onnx")
        with pytest.raises((DataError, UnsupportedModel), match="reference"):
            tna_onnx.evaluate(tmp_path / "n.onnx", calibrated / "new.npz", device="cpu")


def test_the_reference_is_part_of_what_verify_makes_again(calibrated: Path, known_model: Small) -> None:
    ok("verify", known_model.model, calibrated / "m.onnx")


def test_a_map_of_many_numbers_needs_samples_that_it_was_not_fitted_to(known_model: Small, tmp_path: Path) -> None:
    words = ["--search", "none", "--map", "refit", "-q", "-o", tmp_path / "m.onnx"]
    for further, recorded in (([], False), (["--eval", known_model.test], True)):
        ok("calibrate", known_model.model, "--calib", known_model.calib, *words, *further, "--overwrite")
        keys = [entry.key for entry in onnx.load(tmp_path / "m.onnx").metadata_props]
        assert ("tna_onnx.reference" in keys) == recorded


def test_a_shifted_file_is_refused(calibrated: Path, known_model: Small, tmp_path: Path) -> None:
    words = ["--target-prior", "uniform", "-q", "-o", tmp_path / "s.onnx"]
    ok("shift", calibrated / "m.onnx", "--calib", known_model.test, *words)
    refused(4, "was shifted", "evaluate", tmp_path / "s.onnx", "--data", calibrated / "new.npz")


def test_without_features_probabilities_are_enough(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3000, 1)).astype(np.float32)
    labels = (x[:, 0] + rng.logistic(size=3000) > 0).astype(np.int64)
    names, leaves = ["label", "probabilities"], stumps([[0.7, 0.3], [0.2, 0.8]])
    trees = helper.make_node("TreeEnsembleClassifier", ["x"], names, domain="ai.onnx.ml", **leaves)
    outputs = {"label": (["N"], np.int64), "probabilities": ["N", 2]}
    model = small_model([trees], {"x": ["N", 1]}, outputs, domains={"ai.onnx.ml": 3})
    onnx.save(model, tmp_path / "trees.onnx")
    np.savez(tmp_path / "calib.npz", x=x[:1500], labels=labels[:1500])
    np.savez(tmp_path / "new.npz", x=x[1500:])
    ok("calibrate", tmp_path / "trees.onnx", tmp_path / "calib.npz", "--map", "ts", "-q", "-o", tmp_path / "m.onnx")
    known = tna_onnx.evaluate(tmp_path / "m.onnx", tmp_path / "new.npz", device="cpu").without_labels
    # two leaves: which share of the samples is in the first gives the frequencies, and nothing is left to test
    assert known.other_p == 1
    assert known.accuracy is not None
