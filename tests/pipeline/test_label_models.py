"""Models with several labels a sample, from the command line to the written file."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper
from scipy import special

import tna_onnx
from tests.api.test_choice import logits_of
from tests.builders import nodes_of, small_model, tensor_info
from tests.conftest import Small
from tests.results.test_json import valid
from tests.support import cli, ok, outputs_of, with_options
from tna_onnx.errors import DataError, UnsupportedModel
from tna_onnx.extraction.store import json_digest
from tna_onnx.maps import MAPS
from tna_onnx.render.html.pages import page_of
from tna_onnx.results.report import Report

N_FEATURES, LABELS = 8, 4
NAMES = ("sea", "sky", "sun", "rain")
RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(LABELS, N_FEATURES)).astype(np.float32)
BIAS = RNG.normal(size=LABELS).astype(np.float32)
# the models' logits are so many times those that the labels come from, and the last two are off by a constant
TOO_LARGE = np.array([3.0, 1.5, 2.0, 0.8])
SHIFT = np.array([0.0, 0.0, 1.0, -1.0])


def model(form: str = "sigmoid") -> Any:
    """A head behind a ReLU, and what may follow it."""
    nodes = [helper.make_node("Relu", ["x"], ["z"])]
    outputs = [tensor_info("p", ["N", LABELS])]
    tensors: dict[str, Any] = {"w": WEIGHT, "b": BIAS}
    if form == "columns":  # one classifier a label, side by side
        columns = []
        for c in range(LABELS):
            tensors[f"w{c}"] = WEIGHT[c : c + 1]
            tensors[f"b{c}"] = BIAS[c : c + 1]
            nodes.append(helper.make_node("Gemm", ["z", f"w{c}", f"b{c}"], [f"s{c}"], name=f"head{c}", transB=1))
            nodes.append(helper.make_node("Sigmoid", [f"s{c}"], [f"p{c}"]))
            columns.append(f"p{c}")
        del tensors["w"], tensors["b"]
        nodes.append(helper.make_node("Concat", columns, ["p"], axis=1))
        return small_model(nodes, {"x": ["N", N_FEATURES]}, outputs, tensors)
    nodes.append(helper.make_node("Gemm", ["z", "w", "b"], ["logits"], name="head", transB=1))
    if form == "logits":
        outputs = [tensor_info("logits", ["N", LABELS])]
    else:
        nodes.append(helper.make_node("Sigmoid", ["logits"], ["p"]))
    if form == "label":
        tensors["half"] = np.float32(0.5)
        nodes.append(helper.make_node("Greater", ["p", "half"], ["label"]))
        outputs.append(tensor_info("label", ["N", LABELS], np.bool_))
    return small_model(nodes, {"x": ["N", N_FEATURES]}, outputs, tensors)


FORMS = ("sigmoid", "label", "columns", "logits")

# For tests of a second or more.
_FIRST_FORM = [FORMS[0], *(pytest.param(form, marks=pytest.mark.slow) for form in FORMS[1:])]


def samples(n: int, seed: int) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, N_FEATURES)).astype(np.float32)
    logits = np.maximum(x, 0) @ WEIGHT.T + BIAS
    labels = (rng.random((n, LABELS)) < special.expit(logits / TOO_LARGE - SHIFT)).astype(np.int64)
    return {"x": x, "labels": labels}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.savez(tmp_path / "calib.npz", **samples(600, 1))
    np.savez(tmp_path / "test.npz", **samples(900, 2))
    return tmp_path


def written(folder: Path, form: str, *words: str) -> tuple[Any, NDArray[Any]]:
    """Calibrate on the command line; return the report and the new file's probabilities of the test data."""
    onnx.save(model(form), folder / "m.onnx")
    kind = ["--output-kind", "label-logits"] if form == "logits" else []
    ok(
        "calibrate", folder / "m.onnx", "--calib", folder / "calib.npz", "--eval", folder / "test.npz", "--device",
        "cpu", "-o", folder / "o.onnx", "--json", folder / "r.json", *kind, *words,
    )  # fmt: skip
    return valid((folder / "r.json").read_text("utf-8")), ran(folder / "o.onnx", form)


def ran(path: Path, form: str) -> NDArray[Any]:
    found = outputs_of(path, samples(900, 2)["x"])
    return special.expit(found["logits"].astype(np.float64)) if form == "logits" else found["p"].astype(np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_calibrated_and_its_file_gives_the_reported_numbers(folder: Path, form: str) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    report, p = written(folder, form, "--predictions", "change")
    labels = samples(900, 2)["labels"]
    after = report["comparison"]["after"]
    assert after["n"] == 900
    balanced = [metrics.balanced_accuracy_score(labels[:, c], p[:, c] > 0.5) for c in range(LABELS)]
    assert report["recall"]["balanced_after"] == pytest.approx(np.mean(balanced), abs=2e-3)
    assert after["nll"] == pytest.approx(
        np.mean([metrics.log_loss(labels[:, c], p[:, c]) for c in range(LABELS)]), abs=1e-5
    )
    assert after["brier"] == pytest.approx(np.mean((p - labels) ** 2), abs=1e-5)
    assert after["accuracy"] == pytest.approx(np.mean((p > 0.5) == labels), abs=1e-3)
    assert after["nll"] < report["comparison"]["before"]["nll"] - 0.02
    # slopes and shifts by label are what is wrong with these logits
    assert report["method"] == "label-platt"
    assert report["folded"] == (form != "columns")
    # four standard errors: 1 / (sd of the logits, 1.5, times the root of 600 times 0.24)
    np.testing.assert_allclose(report["parameters"]["slopes"], 1 / TOO_LARGE, atol=4 / (1.5 * np.sqrt(600 * 0.24)))
    rows = report["labels"]
    assert [row["positives"] for row in rows] == labels.sum(axis=0).tolist()
    assert np.mean([row["after"]["nll"] for row in rows]) == pytest.approx(after["nll"], abs=1e-6)
    assert np.mean([row["after"]["ece"] for row in rows]) == pytest.approx(after["ece"], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "name"),
    [("sigmoid", "ts"), ("columns", "label-ts"), ("sigmoid", "label-platt"), ("sigmoid", "label-isotonic")],
)
def test_every_map_is_written_as_it_was_scored(folder: Path, form: str, name: str) -> None:
    report, _ = written(folder, form, "--map", name, "--search", "none", "--require", "nothing")
    assert report["map"] == name
    folded = form == "sigmoid" and name != "label-isotonic"
    assert report["folded"] == folded
    assert bool(report["changes"]["nodes"]) != folded
    # the file was run against the numerics, and its bound is that of rounding
    assert report["verification"]["max_difference"] <= report["verification"]["bound"] < 1e-3


def test_a_tilted_weight_of_labels_is_that_of_classes() -> None:
    """The search knows class vectors alone: one row a label, turned as any other."""
    words = {"search": "sparse", "map": "none", "ensemble_size": "inf", "max_accuracy_drop": 100.0}
    report = with_options(tna_onnx.calibrate, model(), samples(600, 1), angle_step=15.0, **words)
    assert report.angle > 0
    turned = {t.name: onnx.numpy_helper.to_array(t) for t in report.recalibrated.graph.initializer}
    # the limit of many members is cos(mRC) times the weight, and the bias goes with it
    factor = np.cos(np.radians(report.angle))
    np.testing.assert_allclose(turned["w"], factor * WEIGHT, rtol=1e-5)
    np.testing.assert_allclose(turned["b"], factor * BIAS, rtol=1e-5)


def test_without_held_out_data_the_numbers_are_cross_fitted(folder: Path) -> None:
    report = tna_onnx.calibrate(model(), folder / "calib.npz", classes=NAMES)
    assert report.comparison.how == "cross-fitted"
    assert report.comparison.before.n == 600
    assert tuple(row.label for row in report.labels) == NAMES
    assert report.bin_free_after.cumulative.kuiper_p is None


def test_a_label_that_never_holds_has_the_shared_temperature_and_a_note(folder: Path) -> None:
    data = samples(600, 1)
    data["labels"][:, 2] = 0
    report = tna_onnx.calibrate(
        model(), data, map="label-platt", search="none", classes=NAMES, gates=tna_onnx.Gates(require="nothing")
    )
    notes = "\n".join(report.notes)
    assert "the calibration data have no sample with 1 of 4 labels (sun)" in notes
    assert "1 of 4 labels share one temperature" in notes
    assert "do not rise with the label: 'sun'" in notes
    assert [row.shared for row in report.labels] == [False, False, True, False]
    assert report.parameters["intercepts"][2] == 0


# ---- other commands


@pytest.mark.parametrize("form", _FIRST_FORM)
def test_other_commands_read_the_written_file(folder: Path, form: str) -> None:
    report, _ = written(folder, form)
    result = ok("evaluate", folder / "o.onnx", "--data", folder / "test.npz", "--json", folder / "e.json")
    evaluated = valid((folder / "e.json").read_text("utf-8"))
    # probabilities in float32 against logits
    assert evaluated["metrics"]["nll"] == pytest.approx(report["comparison"]["after"]["nll"], abs=1e-4)
    assert evaluated["metrics"]["ece"] == pytest.approx(report["comparison"]["after"]["ece"], abs=1e-3)
    assert len(evaluated["labels"]) == LABELS
    assert "each label, 15 bins" in result.output
    kind = ["--output-kind", "label-logits"] if form == "logits" else []
    words = [folder / "m.onnx", folder / "o.onnx", "--data", folder / "test.npz", "--json", folder / "j.json"]
    ok("verify", *words)
    assert valid((folder / "j.json").read_text("utf-8"))["intact"]
    said = ok("compare", *words, *kind, "--report", folder / "c.html").output
    for text in (said, (folder / "c.html").read_text("utf-8")):
        assert "ECE of the worst label, %" in text
        assert "ECE of P(positive)" not in text
    _, new = valid((folder / "j.json").read_text("utf-8"))["models"]
    assert new["differences"]["nll"]["high"] < 0


def test_models_agree_on_samples_of_which_all_labels_are_the_same() -> None:
    """Four labels that differ by a shift of one of them: nine labels in ten may agree where few samples do."""
    shifted = model("logits")
    next(t for t in shifted.graph.initializer if t.name == "b").CopyFrom(
        onnx.numpy_helper.from_array(BIAS + np.float32([0.5, 0, 0, 0]), "b")
    )
    data = samples(300, 3)
    found = tna_onnx.compare(
        [model("logits"), shifted], data, model_options=tna_onnx.ModelOptions(output_kind="label-logits")
    )
    logits = np.maximum(data["x"], 0) @ WEIGHT.T + BIAS
    same = np.all((logits > 0) == (logits + np.array([0.5, 0, 0, 0]) > 0), axis=1)
    assert 0 < same.mean() < 1
    assert found.models[1].agreement == pytest.approx(same.mean(), abs=1e-9)
    assert f"the same labels for {100 * same.mean():.2f} % of samples" in found.models[1].verdict


@pytest.fixture(scope="module")
def searched() -> Report:
    """A report with a search, and so with a diagram at every angle."""
    words: dict[str, Any] = {"search": "sparse", "map": "label-ts", "angle_step": 15.0, "require": "nothing"}
    return with_options(tna_onnx.calibrate, model(), samples(600, 1), eval=samples(900, 2), details=True, **words)


def test_every_diagram_has_the_class_wise_ece(searched: Report, tmp_path: Path) -> None:
    c = searched.comparison
    assert searched.reliability.before.ece != pytest.approx(c.before.ece, rel=0.01)
    expected = {f"{100 * side.ece:.2f}" for side in (c.before, c.after)}
    for text in (page_of(searched), page_of(replace(searched, details=None))):
        assert set(re.findall(r"ECE (\d+\.\d+) %", text)) == expected
    evaluation = tna_onnx.evaluate(model(), samples(900, 2))
    assert f"ECE {100 * evaluation.metrics.ece:.2f} %" in page_of(evaluation)
    [drawn, *_] = searched.save_figures(tmp_path)
    assert set(re.findall(r"ECE (\d+\.\d+) %", drawn.read_text("utf-8"))) == expected


@pytest.mark.parametrize("form", _FIRST_FORM)
def test_a_store_stands_for_the_data(folder: Path, form: str) -> None:
    """The oracle is a run on the data themselves: the same features, or logits, give the same file."""
    onnx.save(model(form), folder / "m.onnx")
    kind = ["--output-kind", "label-logits"] if form == "logits" else []
    ok("features", folder / "m.onnx", "--data", folder / "calib.npz", "--cache", folder / "store", *kind)
    words = ["calibrate", folder / "m.onnx", "--search", "none", "--map", "label-platt", *kind]
    metrics = {}
    for name, data in (
        ("data", [folder / "calib.npz"]),
        ("cache", [folder / "calib.npz", "--cache", folder / "store"]),
        ("store", [folder / "store"]),
    ):
        ok(*words, "--calib", *data, "-o", folder / f"{name}.onnx", "--json", folder / "r.json")
        after = json.loads((folder / "r.json").read_text("utf-8"))["comparison"]["after"]
        positive = after.pop("positive")
        after |= {f"positive.{key}": positive[key] for key in ("mean", "frequency", "ece")}
        metrics[name] = {metric: value for metric, value in after.items() if value is not None}
    assert len([*(folder / "store").iterdir()]) == 1
    assert metrics["data"] == metrics["cache"]
    # where there is no head, the store holds logits of what the model gives as float32 probabilities
    assert metrics["store"] == pytest.approx(metrics["data"], rel=1e-6)
    assert (folder / "data.onnx").read_bytes() == (folder / "cache.onnx").read_bytes()
    np.testing.assert_allclose(ran(folder / "data.onnx", form), ran(folder / "store.onnx", form), atol=1e-6)


def test_a_store_of_labels_is_checked(folder: Path) -> None:
    """Labels that were changed, cut, or that a forged manifest describes otherwise are refused."""
    onnx.save(model(), folder / "m.onnx")
    store = Path(tna_onnx.features(folder / "m.onnx", folder / "calib.npz", folder / "store").folder)
    labels = (store / "labels.npy").read_bytes()
    manifest = (store / "manifest.json").read_bytes()

    def refused(message: str) -> None:
        with pytest.raises(DataError, match=message):
            tna_onnx.calibrate(folder / "m.onnx", store, search="none", map="ts", dry_run=True)

    changed = bytearray(labels)
    changed[-8] ^= 1
    (store / "labels.npy").write_bytes(changed)
    refused("does not belong to this store")
    (store / "labels.npy").write_bytes(labels[-80:])
    refused("cannot be read")
    (store / "labels.npy").write_bytes(labels)
    for wrong in (0, -1, 2**60, "4", None, 3):
        told = json.loads(manifest)
        told["key"]["n_labels"] = wrong
        del told["sha256"]
        (store / "manifest.json").write_text(json.dumps({**told, "sha256": json_digest(told)}))
        refused("cannot be read|does not belong|computed with another")
    (store / "manifest.json").write_bytes(manifest)
    classes = small_model(
        [helper.make_node("Gemm", ["x", "w"], ["z"], name="head", transB=1), helper.make_node("Softmax", ["z"], ["p"])],
        {"x": ["N", N_FEATURES]}, {"p": ["N", LABELS]}, {"w": WEIGHT},
    )  # fmt: skip
    with pytest.raises(DataError, match="computed with another model"):
        tna_onnx.calibrate(classes, store, search="none", map="ts", dry_run=True)


REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "guard": (
        ("guard", "m.onnx", "--calib", "calib.npz", "--coverage", "90", "-o", "o.onnx"),
        "several labels a sample",
    ),
    "add": (("calibrate", "m.onnx", "--calib", "calib.npz", "--add", "confidence"), "several labels a sample"),
    "shift": (("shift", "m.onnx", "--calib", "calib.npz", "--target-prior", "uniform"), "several labels a sample"),
    "study": (
        ("study", "m.onnx", "--calib", "calib.npz", "--eval", "test.npz", "-o", "out", "--only", "angle"),
        "several labels a sample",
    ),
    "platt": (("calibrate", "m.onnx", "--calib", "calib.npz", "--map", "platt"), "use --map ts, label-ts, label-platt"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_for_labels_is_refused_with_the_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    words, reason = REFUSED[case]
    onnx.save(model(), folder / "m.onnx")
    monkeypatch.chdir(folder)
    result = cli(*words)
    assert result.exit_code in (2, 3, 4), result.output
    assert reason in result.output
    assert not (folder / "o.onnx").exists()


def test_labels_of_a_softmax_model_and_maps_by_label_do_not_go_together(folder: Path) -> None:
    proto = model()
    proto.graph.node[-1].CopyFrom(helper.make_node("Softmax", ["logits"], ["p"], axis=1))
    with pytest.raises(DataError, match="one class a sample"):
        tna_onnx.calibrate(proto, folder / "calib.npz")
    with pytest.raises(UnsupportedModel, match=r"followed by softmax|one class a sample"):
        tna_onnx.calibrate(proto, folder / "calib.npz", model_options=tna_onnx.ModelOptions(output_kind="label-logits"))
    x = samples(600, 1)["x"]
    classes = np.argmax(x @ WEIGHT.T + np.random.default_rng(0).gumbel(size=(600, LABELS)), axis=1)
    with pytest.raises(UnsupportedModel, match="label-ts is for several labels a sample"):
        tna_onnx.calibrate(proto, {"x": x, "labels": classes}, map="label-ts")


def test_what_a_file_says_of_its_labels_is_not_said_of_another_head(folder: Path) -> None:
    """One head of labels, recalibrated, beside one of classes: each is read as what it is, by output or by node."""
    nodes = nodes_of(
        "Relu x > z; Gemm z w b > digit name=classes transB=1; Gemm z w2 b2 > marks name=attributes transB=1"
    )
    outputs = [tensor_info(name, ["N", LABELS]) for name in ("digit", "marks")]
    tensors = {"w": WEIGHT[::-1].copy(), "b": BIAS, "w2": WEIGHT, "b2": BIAS}
    proto = small_model(nodes, {"x": ["N", N_FEATURES]}, outputs, tensors)
    onnx.save(proto, folder / "m.onnx")
    new, marks = folder / "o.onnx", ["--data", folder / "test.npz"]
    words = ["--head", "marks", "--output-kind", "label-logits", "--map", "label-ts", "--search", "none"]
    ok("calibrate", folder / "m.onnx", "--calib", folder / "calib.npz", "-o", new, *words)
    x = samples(900, 2)["x"]
    np.savez(folder / "digit.npz", x=x, labels=np.argmax(np.maximum(x, 0) @ WEIGHT[::-1].T + BIAS, axis=1))
    digit = ["--data", folder / "digit.npz", "--head"]
    ok("evaluate", new, *digit, "digit")
    ok("compare", folder / "m.onnx", new, *digit, "classes")
    ok("evaluate", new, "--head", "attributes", *marks)
    ok("evaluate", new, *marks)


def test_a_file_that_says_labels_and_holds_other_numbers_is_refused(folder: Path) -> None:
    """Logits that are taken for probabilities of labels."""
    with pytest.raises(UnsupportedModel, match="say output_kind='label-logits'"):
        tna_onnx.evaluate(
            model("logits"), folder / "test.npz", model_options=tna_onnx.ModelOptions(output_kind="label-probabilities")
        )


# ---- What the labels of a run look like before anything is searched, through the public function


FAST: dict[str, Any] = {"search": "none"}


def drawn(small: Small, classes: int = 5, size: int = 600, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Labels drawn from overconfident logits; only the first classes occur."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((4 * size, 8)).astype(np.float32)
    logits = logits_of(small.model, x)
    labels = np.argmax(logits / 2 + rng.gumbel(size=logits.shape), axis=1)
    kept = np.flatnonzero(labels < classes)[:size]
    return {"x": x[kept], "labels": labels[kept]}


def test_classes_that_are_missing_leave_what_keeps_predictions(small: Small, tmp_path: Path) -> None:
    data = drawn(small, classes=3)
    every = drawn(small, seed=1)
    report = with_options(tna_onnx.calibrate, small.model, data, eval=every, output=tmp_path / "o.onnx", **FAST)
    assert all(MAPS[each.method].keeps_order for each in report.methods if each.method != "none")
    assert report.comparison.after.accuracy == report.comparison.before.accuracy
    assert report.classes_unseen == (3, 4)
    first = report.notes[0]
    assert first.startswith("the calibration data have no sample of 2 of 5 classes (3, 4): maps with parameters")


def test_a_map_by_name_that_would_unlearn_classes_is_refused(small: Small, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="map refit: the calibration data have no sample of 1 of 5 classes"):
        with_options(
            tna_onnx.calibrate, small.model, drawn(small, classes=4), output=tmp_path / "o.onnx", map="refit", **FAST
        )
    assert list(tmp_path.iterdir()) == []


def test_few_samples_of_a_class_are_named(small: Small, tmp_path: Path) -> None:
    data = drawn(small)
    kept = np.flatnonzero((data["labels"] != 2) | (np.cumsum(data["labels"] == 2) <= 3))
    few = {name: values[kept] for name, values in data.items()}
    report = with_options(tna_onnx.calibrate, small.model, few, output=tmp_path / "o.onnx", map="ts", **FAST)
    assert (report.classes_unseen, report.classes_scarce) == ((), (2,))
    assert "the calibration data have fewer than 5 samples of 1 of 5 classes (2)" in report.notes


@pytest.mark.parametrize("which", ["calib", "eval"])
def test_labels_in_another_order_end_the_run(small: Small, tmp_path: Path, which: str) -> None:
    data = {"calib": drawn(small), "eval": drawn(small, seed=1)}
    data[which] = {**data[which], "labels": (data[which]["labels"] + 1) % 5}
    words = {"eval": data["eval"], "output": tmp_path / "o.onnx", "map": "ts", **FAST}
    with pytest.raises(DataError, match=f"{which}: accuracy is .* in another order.*trust_labels"):
        with_options(tna_onnx.calibrate, small.model, data["calib"], **words)
    assert list(tmp_path.iterdir()) == []
