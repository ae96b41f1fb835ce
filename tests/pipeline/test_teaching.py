"""A student is fitted to a teacher's probabilities: soft labels in fits and scores, and the command around them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax, softmax
from scipy.stats import t

import tna_onnx
from tests.builders import small_model, tensor_info
from tests.conftest import Small
from tests.support import PLAIN, ok, refused
from tna_onnx.maps import MAPS
from tna_onnx.numerics.ops import SoftLabels
from tna_onnx.numerics.scores import SampleScores

SOFT = [name for name in MAPS if MAPS[name].soft]


def drawn(seed: int, n: int = 600, classes: int = 4) -> tuple[Any, Any, Any]:
    """Features, overconfident logits, and probabilities that a teacher gives."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, 6)).astype(np.float32)
    weight = rng.standard_normal((classes, 6)).astype(np.float32)
    shares = softmax(z @ weight.T + [0.5, 0, 0, -0.5], axis=1)
    student = 3 * (z @ (weight + 0.3 * rng.standard_normal(weight.shape).astype(np.float32)).T)
    return z, student, shares.astype(np.float32)


def reduce_of(logits: Any, labels: Any, features: Any) -> Any:
    return lambda of, *aligned: of(logits, labels, features, *aligned)


def cross_entropy(logits: Any, shares: Any) -> float:
    return float(-np.mean(np.sum(shares * log_softmax(logits.astype(np.float64), axis=1), axis=1)))


def mapped(fitted: Any, logits: Any, features: Any) -> Any:
    from tna_onnx.maps.base import apply_map

    return np.asarray(apply_map(fitted, logits, features))


@pytest.mark.parametrize("name", SOFT)
def test_one_hot_shares_are_labels(name: str) -> None:
    z, logits, shares = drawn(0)
    labels = SoftLabels.drawn(shares, 0).labels
    soft = SoftLabels(labels, np.eye(4, dtype=np.float32)[labels])
    hard, same = (mapped(MAPS[name].fit(reduce_of(logits, each, z)), logits, z) for each in (labels, soft))
    np.testing.assert_allclose(hard, same, atol=2e-3)  # the fits stop within this


@pytest.mark.parametrize("name", SOFT)
def test_a_fit_to_shares_is_that_to_many_drawn_labels(name: str) -> None:
    """The definition: a soft label is the mean over labels that are drawn of it."""
    z, logits, shares = drawn(1)
    fitted = MAPS[name].fit(reduce_of(logits, SoftLabels.drawn(shares, 0), z))
    copies = 60
    many = np.concatenate([SoftLabels.drawn(shares, 1 + k).labels for k in range(copies)])
    tile = [np.tile(each, (copies, 1)) for each in (logits, z)]
    other = MAPS[name].fit(reduce_of(tile[0], many, tile[1]))
    after = cross_entropy(mapped(fitted, logits, z), shares)
    # of N samples 60 times, what is drawn moves the loss by a part of its standard error, 0.5 / sqrt(60 N)
    assert after <= cross_entropy(mapped(other, logits, z), shares) + 0.5 / np.sqrt(copies * len(z))
    assert after < cross_entropy(logits, shares) - 0.1


def test_the_temperature_is_that_of_scipy() -> None:
    z, logits, shares = drawn(2)
    fitted = MAPS["ts"].fit(reduce_of(logits, SoftLabels.drawn(shares, 0), z))
    best = minimize_scalar(lambda beta: cross_entropy(beta * logits, shares), bounds=(0.01, 5), method="bounded")
    assert 1 / fitted.temperature == pytest.approx(best.x, rel=1e-4)  # its own tolerance


def test_the_refit_is_the_ridge_of_scipy() -> None:
    z, logits, shares = drawn(3, n=300)
    strengths = MAPS["refit"].strengths
    for fitted, strength in zip(
        MAPS["refit"].fit_path(reduce_of(logits, SoftLabels.drawn(shares, 0), z)), strengths, strict=True
    ):
        scale = np.sqrt(np.mean(np.square(z), axis=0))
        x = np.hstack([z / scale, np.ones((len(z), 1))])
        scores = logits / fitted.temperature

        def loss(flat: Any, x: Any = x, scores: Any = scores, strength: float = strength) -> float:
            v = flat.reshape(4, -1)
            return cross_entropy(scores + x @ v.T, shares) + strength * float(np.sum(v * v))

        ours = np.hstack([fitted.delta * scale, fitted.shift[:, None]])
        best = minimize(loss, np.zeros(ours.size), method="BFGS")
        assert loss(ours.ravel()) == pytest.approx(best.fun, abs=1e-4)


@settings(max_examples=25)
@given(st.integers(0, 1000), st.integers(2, 6))
def test_scores_are_means_over_labels(seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=4, size=(5, classes)).astype(np.float32)
    shares = rng.dirichlet(np.full(classes, 0.3), 5).astype(np.float32)
    soft = SampleScores.of_logits(logits, SoftLabels.drawn(shares, seed))
    by_label = [SampleScores.of_logits(logits, np.full(5, c)) for c in range(classes)]
    for name in ("nll", "brier"):
        mean = sum(shares[:, c] * getattr(each, name) for c, each in enumerate(by_label))
        np.testing.assert_allclose(getattr(soft, name), mean, atol=1e-5 * (1 + np.abs(logits).max()))  # float32


def test_labels_are_drawn_as_often_as_the_shares_say() -> None:
    p = np.array([0.1, 0.0, 0.6, 0.3])
    labels = SoftLabels.drawn(np.tile(p, (20_000, 1)), 0)
    counts = np.bincount(np.asarray(labels), minlength=4) / 20_000
    np.testing.assert_allclose(counts, p, atol=5 * 0.5 / np.sqrt(20_000))
    assert counts[1] == 0


@pytest.fixture(scope="module")
def student(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose head is too large, and in float16 steps: what a bad quantisation leaves of its teacher."""
    proto = onnx.load(small.model)
    rng = np.random.default_rng(0)
    for tensor in proto.graph.initializer:
        if tensor.name == "weight":
            value = numpy_helper.to_array(tensor)
            value = 2.5 * value + 0.3 * rng.standard_normal(value.shape)
            tensor.CopyFrom(numpy_helper.from_array(value.astype(np.float32), "weight"))
    path = tmp_path_factory.mktemp("student") / "student.onnx"
    onnx.save(proto, path)
    return path


def test_a_student_follows_its_teacher(small: Small, student: Path, tmp_path: Path) -> None:
    x = np.load(small.calib)["x"]
    np.savez(tmp_path / "u.npz", x=x)
    result = ok("calibrate", student, tmp_path / "u.npz", "--teacher", small.model, "-o", tmp_path / "o.onnx",
                 "--json", tmp_path / "r.json", "--report", tmp_path / "r.html")  # fmt: skip
    assert ("follows its teacher more closely" in result.output, "no labels" in result.output) == (True, True)
    found = json.loads((tmp_path / "r.json").read_text())
    taught = found["teacher"]
    assert taught["samples"] == 375  # a quarter: the fit has not seen them
    assert taught["kl_after"] < taught["kl_before"] / 3
    assert taught["kl_change"][1] < 0
    assert taught["metrics"] is None
    entries = {e.key: e.value for e in onnx.load(tmp_path / "o.onnx").metadata_props}
    assert entries["tna_onnx.teacher_sha256"] == taught["model_sha256"]
    ok("verify", student, tmp_path / "o.onnx")


def test_labels_judge_both(small: Small, student: Path, tmp_path: Path) -> None:
    """The numbers of the report are those of ONNX Runtime on the written file."""
    ort = pytest.importorskip("onnxruntime")
    report = tna_onnx.calibrate(
        student, small.calib, teacher=small.model, eval=small.test, output=tmp_path / "o.onnx", device="cpu"
    )
    data = np.load(small.test)
    logs = {}
    for name, path in (("teacher", small.model), ("before", student), ("after", tmp_path / "o.onnx")):
        (logits,) = ort.InferenceSession(path).run(None, {"x": data["x"]})
        logs[name] = log_softmax(logits.astype(np.float64), axis=1)
    taught = report.teacher
    for stage in ("before", "after"):
        kl = np.sum(np.exp(logs["teacher"]) * (logs["teacher"] - logs[stage]), axis=1).mean()
        same = np.mean(np.argmax(logs["teacher"], axis=1) == np.argmax(logs[stage], axis=1))
        assert getattr(taught, f"kl_{stage}") == pytest.approx(kl, abs=1e-5)
        assert getattr(taught, f"agreement_{stage}") == pytest.approx(same, abs=1e-9)
    rows = np.arange(len(data["x"]))
    assert taught.metrics.nll == pytest.approx(-logs["teacher"][rows, data["labels"]].mean(), abs=1e-5)
    assert report.comparison.after.nll == pytest.approx(-logs["after"][rows, data["labels"]].mean(), abs=1e-5)
    # the labels of these samples come from its softmax at temperature 3
    assert any("teacher itself is badly calibrated" in note for note in report.notes)


def test_labels_of_the_samples_are_not_read(small: Small, student: Path, tmp_path: Path) -> None:
    data = dict(np.load(small.calib))
    wrong = {"x": data["x"], "labels": (data["labels"] + 1) % 5}
    for k, samples in enumerate((data, wrong)):
        tna_onnx.calibrate(student, samples, teacher=small.model, output=tmp_path / f"{k}.onnx", **PLAIN)
    first, second = (
        {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / f"{k}.onnx").graph.initializer} for k in (0, 1)
    )
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name])


def test_a_folder_of_images_without_classes(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((48, 3)).astype(np.float32)
    for name, factor in (("teacher", 1), ("student", 4)):
        nodes = [helper.make_node("Flatten", ["x"], ["z"]), helper.make_node("Gemm", ["z", "w"], ["y"], name="head")]
        infos = [tensor_info("x", ["N", 3, 4, 4])], [tensor_info("y", ["N", 3])]
        onnx.save(small_model(nodes, *infos, tensors={"w": factor * weight}), tmp_path / f"{name}.onnx")
    (tmp_path / "images").mkdir()
    for k in range(200):
        pixels = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        image.fromarray(pixels).save(tmp_path / "images" / f"{k}.png")
    words = ("calibrate", tmp_path / "student.onnx", tmp_path / "images", "--teacher", tmp_path / "teacher.onnx")
    ok(*words, "--scale", 1 / 255, "-o", tmp_path / "o.onnx", "--json", tmp_path / "r.json")
    found = json.loads((tmp_path / "r.json").read_text())["teacher"]
    assert found["kl_after"] < found["kl_before"] / 10


def batches_of(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what loaders give, and what quantisation reads."""
    return [{name: value[start : start + 100] for name, value in data.items()} for start in range(0, 600, 100)]


FORMS = {
    "file": lambda small: small.calib,
    "arrays": lambda small: {**np.load(small.calib), "id": np.arange(1500)},
    "batches": lambda small: batches_of({"x": np.load(small.calib)["x"]}),
    "batches with labels": lambda small: batches_of(dict(np.load(small.calib))),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_teacher_may_call_its_input_something_else(form: str, small: Small, student: Path, tmp_path: Path) -> None:
    proto = onnx.load(small.model)
    proto.graph.input[0].name = "another"
    for node in proto.graph.node:
        node.input[:] = ["another" if name == "x" else name for name in node.input]
    onnx.save(proto, tmp_path / "teacher.onnx")
    reports = [
        tna_onnx.calibrate(student, FORMS[form](small), teacher=teacher, eval=small.test, dry_run=True, **PLAIN)
        for teacher in (small.model, tmp_path / "teacher.onnx")
    ]
    assert reports[0].teacher.kl_after == reports[1].teacher.kl_after < reports[0].teacher.kl_before


def test_the_teacher_is_not_overwritten(small: Small, student: Path, tmp_path: Path) -> None:
    """Nor where the output has its name by default."""
    model, teacher = tmp_path / "m.onnx", tmp_path / "m.tna.onnx"
    for source, target in ((student, model), (small.model, teacher)):
        target.write_bytes(source.read_bytes())
    refused(2, "m.tna.onnx: output is the teacher", "calibrate", model, small.calib, "--teacher", teacher)
    assert teacher.read_bytes() == small.model.read_bytes()


def test_what_cannot_be_is_refused(small: Small, student: Path, tmp_path: Path) -> None:
    words = ("calibrate", student, small.calib, "--teacher", small.model)
    other = onnx.load(small.model)
    for tensor in other.graph.initializer:
        if tensor.name in ("weight", "bias"):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:4], tensor.name))
    other.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 4
    onnx.save(other, tmp_path / "four.onnx")
    for name, model, order in (("named", student, "abcde"), ("swapped", small.model, "abced")):
        named = onnx.load(model)
        helper.set_model_props(named, {"names": json.dumps(dict(enumerate(order)))})
        onnx.save(named, tmp_path / f"{name}.onnx")
    swapped = ("calibrate", tmp_path / "named.onnx", small.calib, "--teacher", tmp_path / "swapped.onnx")
    refused(3, "numbers the classes in another order", *swapped, "--trust-labels", "-o", tmp_path / "o.onnx")
    np.save(tmp_path / "labels.npy", np.load(small.calib)["labels"])
    np.savez(tmp_path / "features.npz", features=np.ones((100, 32), np.float32), labels=np.arange(100) % 5)
    for more, code, text in (
        (("--add", "accept"), 2, "--add needs labels"),
        (("--labels", tmp_path / "labels.npy"), 2, "leave --labels out"),
        (("--search", "none", "--map", "ets"), 3, "use --map ts"),
        (("--teacher", tmp_path / "four.onnx"), 3, "has 4 classes"),
        (("--eval", tmp_path / "features.npz"), 2, "give samples for its inputs"),
        (("--teacher", tmp_path / "none.onnx"), 2, "none.onnx"),
        (("--teacher", student, "--cache", tmp_path / "cache"), 2, "is the model itself"),
        (("--min-recall", "nobody=0.5", "--cache", tmp_path / "cache"), 2, "--min-recall nobody"),
    ):
        refused(code, text, *words, "-o", tmp_path / "o.onnx", *more)
    assert not (tmp_path / "cache").exists()  # the student has not run
    assert not (tmp_path / "o.onnx").exists()


def test_of_few_groups_the_interval_is_students(small: Small, student: Path) -> None:
    """By the definition: means of 12 groups, whose spread is known by 11 degrees of freedom."""
    ort = pytest.importorskip("onnxruntime")
    data = dict(np.load(small.test))
    group = np.arange(len(data["x"])) % 12
    report = tna_onnx.calibrate(
        student, small.calib, teacher=small.model, eval=tna_onnx.Data(data, groups=group), map="ts",
        search="none", dry_run=True, device="cpu",
    )  # fmt: skip
    temperature = report.parameters["temperature"]
    (teacher,), (before,) = (ort.InferenceSession(path).run(None, {"x": data["x"]}) for path in (small.model, student))
    logs = [log_softmax(each.astype(np.float64), axis=1) for each in (teacher, before, before / temperature)]
    moved = np.sum(np.exp(logs[0]) * (logs[1] - logs[2]), axis=1)
    sums = np.bincount(group, moved - moved.mean())
    error = np.sqrt(12 / 11 * np.sum(sums**2)) / len(moved)
    low, high = report.teacher.kl_change
    assert (high - low) / 2 == pytest.approx(t.ppf(0.975, 11) * error, rel=1e-3)
