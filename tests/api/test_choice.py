"""The choice of a method, end to end: a calibrated model stays as it is, and what is asked for by name is done."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import tna_onnx
from tests.builders import nodes_of, small_model
from tests.conftest import Small
from tests.support import PLAIN, TILTED, ok, outputs_of, with_options
from tna_onnx import maps
from tna_onnx.errors import DataError

Array = NDArray[Any]

# Nothing is said of search and map; the members are never drawn, which is quick.
FAST: dict[str, Any] = {"ensemble_size": "inf", "angle_step": 15.0, "device": "cpu"}


def logits_of(model: Path, x: Array) -> Array:
    """Compute the small classifier's logits with NumPy."""
    w = {t.name: numpy_helper.to_array(t) for t in onnx.load(model).graph.initializer}
    return np.asarray(np.maximum(x @ w["hidden"], 0) @ w["weight"].T + w["bias"])


def drawn(small: Small, temperature: float = 1.0, seed: int = 7, samples: int = 1000) -> dict[str, Array]:
    """Samples whose labels come from the model's own probabilities, at a temperature."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((samples, 8)).astype(np.float32)
    logits = logits_of(small.model, x)
    return {"x": x, "labels": np.argmax(logits / temperature + rng.gumbel(size=logits.shape), axis=1)}


def run(model: Path, x: Array) -> Array:
    (values,) = outputs_of(model, x).values()
    return np.asarray(values)


@pytest.fixture(scope="module")
def own(small: Small) -> dict[str, Array]:
    return drawn(small)


# --- already calibrated


@pytest.mark.slow
def test_the_output_is_the_input_byte_for_byte(small: Small, own: dict[str, Array], tmp_path: Path) -> None:
    test = drawn(small, seed=8)
    report = with_options(tna_onnx.calibrate, small.model, own, eval=test, output=tmp_path / "o.onnx", **FAST)
    assert (tmp_path / "o.onnx").read_bytes() == small.model.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["o.onnx"]
    assert report.already_calibrated
    assert report.verdict.startswith("already calibrated: on 1,000 held-out samples ")
    assert "no method is significantly better" in report.verdict
    assert (report.method, report.map, report.angle, report.folded, report.parameters) == ("none", "none", 0, False, {})
    assert (report.changes.tensors, report.changes.added, report.changes.nodes) == ((), (), ())
    assert (report.changed_predictions, report.missed) == (0.0, ())
    assert report.comparison.before == report.comparison.after
    assert all((d.low, d.high) == (0, 0) for d in report.comparison.differences.values())
    assert report.verification.max_difference <= report.verification.bound


def test_a_calibrated_model_with_new_outputs_is_no_copy(small: Small, tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", **drawn(small, samples=2000))
    words = ["--add", "set", "--coverage", "90", "--search", "none", "--device", "cpu"]
    output = ok("calibrate", small.model, tmp_path / "own.npz", "-o", tmp_path / "o.onnx", *words).output
    assert "needs no recalibration" in output
    assert "is a copy" not in output
    assert "new: set" in output


def test_external_data_are_the_same_bytes(small: Small, own: dict[str, Array], tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    onnx.save_model(
        onnx.load(small.model), source, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    report = with_options(tna_onnx.calibrate, source, own, output=tmp_path / "o.onnx", **FAST)
    assert report.verdict.startswith("already calibrated: on 1,000 calibration samples ")
    (data,) = tmp_path.glob("o.onnx.*.data")
    assert report.files == (report.output, str(data))
    assert {path.name for path in tmp_path.iterdir()} == {*before, "o.onnx", data.name}
    assert all((tmp_path / name).read_bytes() == data for name, data in before.items())
    old, new = onnx.load(source), onnx.load(tmp_path / "o.onnx")
    assert old == new  # the data loaded
    (tmp_path / "weights.bin").unlink()  # the new model has data of its own
    np.testing.assert_array_equal(run(tmp_path / "o.onnx", own["x"][:9]), run(small.model, own["x"][:9]))


@pytest.mark.parametrize("words", [{"method": "tna"}, {"search": "none", "map": "bias"}])
def test_what_was_asked_for_by_name_is_done_all_the_same(
    small: Small, own: dict[str, Array], tmp_path: Path, words: dict[str, Any]
) -> None:
    settings = {"output": tmp_path / "o.onnx", "require": "nothing", **FAST, **words}
    report = with_options(tna_onnx.calibrate, small.model, own, **settings)
    assert not report.already_calibrated
    assert report.map == words.get("map", "ts")
    assert report.methods == ()
    assert (tmp_path / "o.onnx").read_bytes() != small.model.read_bytes()
    assert not report.verdict.startswith("already calibrated")


# --- predictions


def shifted(small: Small) -> dict[str, Array]:
    """Labels of a world in which one class has become rare and one frequent: a bias is worth much accuracy."""
    rng = np.random.default_rng(9)
    x = rng.standard_normal((1000, 8)).astype(np.float32)
    logits = logits_of(small.model, x) / 3 + np.array([3.0, 0, 0, 0, -3.0])
    return {"x": x, "labels": np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)}


def test_predictions_may_change_and_are_counted(small: Small, tmp_path: Path) -> None:
    data = shifted(small)
    settings = {"output": tmp_path / "o.onnx", "predictions": "change", **FAST}
    report = with_options(tna_onnx.calibrate, small.model, data, **settings)
    old, new = run(small.model, data["x"]).argmax(axis=1), run(tmp_path / "o.onnx", data["x"]).argmax(axis=1)
    assert report.changed_predictions == pytest.approx(np.mean(old != new), abs=0.002)  # ties by rounding
    assert report.changed_predictions > 0.05
    assert report.comparison.after.accuracy > report.comparison.before.accuracy
    assert any(f"{100 * report.changed_predictions:.1f} %" in note for note in report.notes)


@pytest.mark.slow
def test_a_class_that_would_lose_keeps_all_predictions_and_the_price_is_said(small: Small, tmp_path: Path) -> None:
    """The class that has become rare would hardly be predicted any more."""
    data = shifted(small)
    report = with_options(tna_onnx.calibrate, small.model, data, output=tmp_path / "o.onnx", **FAST)
    old, new = run(small.model, data["x"]), run(tmp_path / "o.onnx", data["x"])
    np.testing.assert_array_equal(old.argmax(axis=1), new.argmax(axis=1))
    (note,) = (note for note in report.notes if "--predictions change" in note)
    assert re.search(r"accuracy \+\d+\.\d\d points", note)
    assert re.search(r"class 4 would lose \d+\.\d\d points of recall", note)
    rows = np.sort(np.concatenate([np.flatnonzero(data["labels"] != 4), np.flatnonzero(data["labels"] == 4)[:9]]))
    few = {name: values[rows] for name, values in data.items()}
    report = with_options(tna_onnx.calibrate, small.model, few, output=tmp_path / "few.onnx", **FAST)
    (note,) = (note for note in report.notes if "--predictions change" in note)
    assert "class 4 would lose" not in note  # of so few, nothing is known
    assert "'4' cannot be known" in note


# --- Maps and searches on heads of other kinds, through the public API: one deployable file each


def test_the_default_compares_everything_that_it_may_take_and_says_what_it_took(small: Small, tmp_path: Path) -> None:
    settings = {"output": tmp_path / "o.onnx", "predictions": "change", **FAST}
    report = with_options(tna_onnx.calibrate, small.model, small.calib, **settings)
    compared = {each.method for each in report.methods}
    # isotonic loses to one temperature in the first folds, and is given up; a tilt that nothing chooses is not shown
    assert compared >= {"none", "ts", "ets", "bias", "svs", "refit 1"}
    assert compared.isdisjoint(name for name in maps.MAPS if maps.MAPS[name].binary)
    assert report.method in compared
    kinds = {method.partition(" ")[0] for method in compared}  # the strengths of a method are one
    assert any(note.startswith(f"of {len(kinds)} methods compared on all folds, ") for note in report.notes)


def binary(folder: Path, form: str) -> tuple[Path, Path, Path]:
    """Write a binary classifier whose labels are drawn at temperature 3: model, calibration and test data."""
    rng = np.random.default_rng(11)
    hidden = rng.standard_normal((8, 32)).astype(np.float32)
    single = rng.standard_normal((32, 1)).astype(np.float32)
    bias = np.array([0.4], np.float32)
    tensors, shape = {"hidden": hidden, "weight": single, "bias": bias}, ["N", 1]
    nodes = nodes_of("MatMul x hidden > h; Relu h > features; Gemm features weight bias > s name=head")
    if form == "sigmoid (N, 1)":
        nodes += nodes_of("Sigmoid s > y")
    elif form == "sigmoid (N,)":
        tensors["flat"], shape = np.array([-1], np.int64), ["N"]
        nodes += nodes_of("Reshape s flat > r; Sigmoid r > y")
    else:  # two logits with Softmax
        tensors["weight"] = np.concatenate([-single / 2, single / 2], axis=1)
        tensors["bias"], shape = np.array([-0.2, 0.2], np.float32), ["N", 2]
        nodes += nodes_of("Softmax s > y axis=1")
    onnx.save(small_model(nodes, {"x": ["N", 8]}, {"y": shape}, tensors), folder / "b.onnx")
    for name in ("calib", "test"):
        x = rng.standard_normal((1500, 8)).astype(np.float32)
        s = (np.maximum(x @ hidden, 0) @ single)[:, 0] + 0.4
        np.savez(folder / f"{name}.npz", x=x, labels=(rng.random(1500) < 1 / (1 + np.exp(-s / 3))).astype(np.int64))
    return folder / "b.onnx", folder / "calib.npz", folder / "test.npz"


@pytest.mark.parametrize(
    ("form", "map_name"),
    [("sigmoid (N, 1)", "ts"), ("sigmoid (N, 1)", "isotonic"), ("sigmoid (N,)", "beta"), ("softmax (N, 2)", "aar")],
)
def test_binary_heads(tmp_path: Path, form: str, map_name: str) -> None:
    model, calib, test = binary(tmp_path, form)
    # 32 features need hundreds of members; one case walks them, the others take the limit
    members: Any = "auto" if (form, map_name) == ("sigmoid (N, 1)", "ts") else "inf"
    settings = {"search": "sparse", "map": map_name, "angle_step": 10.0, "max_accuracy_drop": 2.0, "device": "cpu"}
    files = {"eval": test, "output": tmp_path / "o.onnx"}
    report = with_options(tna_onnx.calibrate, model, calib, ensemble_size=members, **settings, **files)
    before, after = report.comparison.before, report.comparison.after
    assert report.classes == 2
    assert after.ece < 0.6 * before.ece
    data = np.load(test)
    y = run(tmp_path / "o.onnx", data["x"])
    assert y.shape == {"sigmoid (N, 1)": (1500, 1), "sigmoid (N,)": (1500,), "softmax (N, 2)": (1500, 2)}[form]
    positive = y[:, 1] if y.ndim == 2 and y.shape[1] == 2 else y.reshape(-1)
    # ECE of max(p, 1 - p) from the definition
    confidence, hit = np.maximum(positive, 1 - positive), (positive > 0.5) == (data["labels"] == 1)
    bins = np.ceil(confidence.astype(np.float64) * 15).astype(int)
    by_hand = sum(abs(np.sum(hit[bins == b] - confidence[bins == b].astype(np.float64))) for b in range(16)) / 1500
    assert after.ece == pytest.approx(by_hand, abs=1e-5)
    for batch in (0, 1):
        assert run(tmp_path / "o.onnx", data["x"][:batch]).shape == (batch, *y.shape[1:])


@pytest.mark.parametrize(("dtype", "opset", "lowest"), [("float32", 6, 7), ("float64", 11, 12)])
def test_an_opset_that_is_too_old_names_the_lowest_one(dtype: str, opset: int, lowest: int) -> None:
    from tna_onnx.graph.nodes import NodeOps

    with pytest.raises(tna_onnx.UnsupportedModel, match=f"convert it to opset {lowest} or newer"):
        NodeOps(dtype, opset)


def test_float16_heads_take_every_map(small: Small, tmp_path: Path) -> None:
    proto = onnx.load(small.model)
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16) / 4, tensor.name))
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    onnx.save(proto, tmp_path / "half.onnx")
    for name in ("calib", "test"):
        arrays = dict(np.load(small.calib if name == "calib" else small.test))
        np.savez(tmp_path / f"{name}.npz", x=arrays["x"].astype(np.float16), labels=arrays["labels"])
    for map_name in ("ts", "isotonic", "aar"):
        settings = TILTED | {"map": map_name, "eval": tmp_path / "test.npz"}
        report = with_options(tna_onnx.calibrate, tmp_path / "half.onnx", tmp_path / "calib.npz", **settings)
        assert report.comparison.after.nll <= report.comparison.before.nll + 0.01
        assert json.loads(json.dumps(report.parameters)) == report.parameters


def test_an_appended_softmax_is_read_from_the_graph_not_from_the_metadata(small: Small, tmp_path: Path) -> None:
    tna_onnx.calibrate(small.model, small.calib, output=tmp_path / "o.onnx", **PLAIN | {"map": "ets"})
    before = tna_onnx.evaluate(tmp_path / "o.onnx", small.test)
    proto = onnx.load(tmp_path / "o.onnx")
    proto.graph.node[-1].output[0] = "raw"
    proto.graph.node.append(helper.make_node("Softmax", ["raw"], ["logits"], axis=1))
    onnx.save(proto, tmp_path / "p.onnx")
    after = tna_onnx.evaluate(tmp_path / "p.onnx", small.test)
    assert (before.output_kind, after.output_kind) == ("logits", "probabilities")
    assert after.metrics.ece == pytest.approx(before.metrics.ece, abs=1e-5)


def test_samples_fill_the_folds(small: Small) -> None:
    """With one bin even four samples have an ECE, but there are five folds."""
    data = {name: values[:4] for name, values in drawn(small).items()}
    words: dict[str, Any] = {"bins": 1, "trust_labels": True}
    with pytest.raises(DataError, match="4 samples, fewer than the 5 folds"):
        with_options(tna_onnx.calibrate, small.model, data, **words)
