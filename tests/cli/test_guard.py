"""`guard` from the command line and Python: files whose decisions keep their promises, and what cannot be promised."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tna_onnx
from tests.builders import nodes_of, small_model
from tests.conftest import Demo, Small
from tests.results.test_json import valid
from tests.support import loaded, ok, outputs_of, refused, with_options
from tna_onnx.errors import DataError, UsageError
from tna_onnx.numerics.conformal import coverage_band
from tna_onnx.render.html.pages import page_of
from tna_onnx.render.terminal import guard_lines

ALL = ["--add", "confidence,accept,set,ood", "--device", "cpu", "-q"]


@pytest.fixture(scope="module")
def guarded(demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The demo with all outputs; and the result as JSON."""
    folder = tmp_path_factory.mktemp("guarded")
    words = ["--eval", demo.test, "-o", folder / "g.onnx", "--json", folder / "g.json"]
    ok("guard", demo.model, "--calib", demo.calib, *words, *ALL)
    return folder / "g.onnx", valid((folder / "g.json").read_text())


def test_the_file_decides_as_the_report_says(demo: Demo, guarded: tuple[Path, dict[str, Any]]) -> None:
    path, report = guarded
    test = loaded(demo.test)
    x = next(test[name] for name in test if name != "labels")
    labels = test["labels"]
    found = outputs_of(path, x)
    before = outputs_of(demo.model, x)
    for name, values in before.items():
        np.testing.assert_array_equal(found[name], values)
    hit = before["logits"].argmax(axis=1) == labels
    shown = report["decisions"]
    assert shown["fresh"] is True
    assert shown["accepted"] == pytest.approx(found["accept"].mean())
    assert shown["risk"] == pytest.approx((found["accept"] & ~hit).sum() / found["accept"].sum())
    assert shown["coverage"] == pytest.approx(found["set"][np.arange(len(x)), labels].mean())
    assert shown["mean_set_size"] == pytest.approx(found["set"].sum(axis=1).mean())
    assert shown["alarms"] == pytest.approx(found["ood_alarm"].mean())
    np.testing.assert_array_equal(found["accept"], found["confidence"] >= np.float32(limit(report, "accept")))


def limit(report: dict[str, Any], role: str) -> float:
    (threshold,) = next(each["threshold"] for each in report["outputs"] if each["role"] == role)
    return float(threshold)


def test_the_promises_are_kept_on_new_samples(guarded: tuple[Path, dict[str, Any]]) -> None:
    """The band of the coverage is one that 1 of 1,000 calibration sets leaves; the risk is above 2 % once in 20."""
    shown = guarded[1]["decisions"]
    low, high = coverage_band(2000, 0.95, 2000, 0.999)
    assert low <= shown["coverage"] <= high
    assert shown["risk"] <= 0.02
    low, high = coverage_band(1000, 0.95, 2000, 0.999)
    assert low <= 1 - shown["alarms"] <= high


def test_unknown_samples_raise_the_alarm(guarded: tuple[Path, dict[str, Any]], demo: Demo) -> None:
    test = loaded(demo.test)
    x = next(test[name] for name in test if name != "labels")[:300]
    noise = np.random.default_rng(0).permuted(x.reshape(len(x), -1), axis=1).reshape(x.shape)
    assert outputs_of(guarded[0], noise)["ood_alarm"].mean() > 3 * guarded[1]["decisions"]["alarms"]


@pytest.mark.parametrize(("score", "flags"), [("lac", ["--per-class"]), ("aps", []), ("raps", ["--per-class"])])
def test_sets_of_all_kinds_cover(small: Small, score: str, flags: list[str], tmp_path: Path) -> None:
    words = ["--eval", small.test, "-o", tmp_path / "g.onnx", "--json", tmp_path / "g.json", "-q", *flags]
    ok("guard", small.model, "--calib", small.calib, "--add", "set", "--set-score", score, *words)
    shown = valid((tmp_path / "g.json").read_text())["decisions"]
    assert shown["coverage"] >= coverage_band(1500, 0.95, 1500, 0.999)[0]
    if flags:
        assert min(shown["class_coverage"]) >= coverage_band(200, 0.95, 200, 0.9999)[0]


@pytest.mark.parametrize("score", ["energy", "residual"])
def test_other_outlier_scores(small: Small, score: str, tmp_path: Path) -> None:
    words = ["--add", "ood", "--ood-score", score, "-o", tmp_path / "g.onnx", "-q"]
    ok("guard", small.model, "--calib", small.calib, *words)
    x = loaded(small.test)["x"]
    alarms = outputs_of(tmp_path / "g.onnx", x)["ood_alarm"].mean()
    assert alarms <= 1 - coverage_band(750, 0.95, 1500, 0.9999)[0]


def test_after_calibration_on_other_samples(small: Small, tmp_path: Path) -> None:
    words = ["--search", "none", "--map", "isotonic", "--calib", small.calib, "-o", tmp_path / "c.onnx", "-q"]
    ok("calibrate", small.model, *words)
    words = ["guard", tmp_path / "c.onnx", "--calib", small.calib, "-o", tmp_path / "g.onnx", "-q"]
    refused(4, "was recalibrated on these data", *words)
    words = ["--calib", small.test, "--add", "set", "-o", tmp_path / "g.onnx", "-q"]
    ok("guard", tmp_path / "c.onnx", *words)
    entries = {entry.key: entry.value for entry in onnx.load(tmp_path / "g.onnx").metadata_props}
    assert entries["tna_onnx.map"] == "isotonic"
    assert json.loads(entries["tna_onnx.guard"])["coverage"] == 95
    for command in ("calibrate", "guard"):
        words = [tmp_path / "g.onnx", "--calib", small.test, "-o", tmp_path / "again.onnx", "-q"]
        refused(3, "guarded already", command, *words)


def test_no_unknown_samples_are_refused(small: Small, tmp_path: Path) -> None:
    words: dict[str, Any] = {"add": ("ood",), "ood_score": "energy", "output": tmp_path / "g.onnx"}
    empty = {"x": loaded(small.test)["x"][:0]}
    with pytest.raises(DataError, match=r"ood_data: .* expected samples, found none"):
        with_options(tna_onnx.guard, small.model, small.calib, ood_data=empty, **words)


def test_the_range_of_the_coverage_holds_that_of_many_equal_scores(small: Small, tmp_path: Path) -> None:
    """The likeliest class is the true one of more samples than the coverage asks for, and all of these have score 0."""
    done = tna_onnx.guard(
        small.model, small.calib, eval=small.test, output=tmp_path / "g.onnx", add=("set",), coverage=50
    )
    (sets,) = done.outputs
    low, high = map(float, re.findall(r"with this one ([\d.]+) to ([\d.]+) %", sets.promise)[0])
    assert low <= 50 < 100 * done.decisions.coverage <= high


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--coverage", "99.99"], 4, "need 9,999 samples, and there are 1,500; give more"),
        (["--add", "ood", "--false-alarm", "0.01"], 4, "need 9,999 samples, and there are 750"),
        (["--risk", "0.01", "--if-unreachable", "fail"], 4, "the error among accepted samples below 0.01 %"),
        (["--risk", "0.01", "--add", "accept"], 4, "the lowest risk that passes is "),
        (["--add", "set", "--per-class", "--coverage", "99.9"], 4, "no class has so many"),
        (["--coverage", "100"], 2, "coverage must lie between 0 and 100 per cent, both excluded"),
        (["--add", "sets"], 2, "set"),
        (["--prefix", "logits"], 0, ""),
        (["--add", "set", "--prefix", "x"], 0, ""),
    ],
)
def test_what_cannot_be_promised(small: Small, flags: list[str], code: int, said: str, tmp_path: Path) -> None:
    words = ["--calib", small.calib, "-o", tmp_path / "g.onnx", "-q", "--add", "accept,set", "--risk", "20"]
    if "--add" in flags:
        words = words[:4]
    refused(code, said, "guard", small.model, *words, *flags)
    assert (tmp_path / "g.onnx").exists() == (code == 0)


def test_a_risk_that_is_not_reached_leaves_the_rest(small: Small, tmp_path: Path) -> None:
    words = ["--add", "accept,set", "--risk", "0.01", "-o", tmp_path / "g.onnx", "--json", tmp_path / "g.json"]
    done = ok("guard", small.model, "--calib", small.calib, *words)
    result = valid((tmp_path / "g.json").read_text())
    assert (result["omitted"], [output["role"] for output in result["outputs"]]) == (["accept"], ["set"])
    found = outputs_of(tmp_path / "g.onnx", loaded(small.test)["x"])
    assert "set" in found
    assert "accept" not in found
    risk = f"{100 * result['lowest_risk']:g}"
    assert "accept is left out: no threshold on the confidence keeps" in done.output
    assert f"the lowest risk that passes is {risk} %" in done.output
    words = ["--add", "accept", "--risk", risk, "-o", tmp_path / "a.onnx", "-q"]
    ok("guard", small.model, "--calib", small.calib, *words)


def test_classes_with_few_samples_are_in_every_set(small: Small, tmp_path: Path) -> None:
    stored = loaded(small.calib)
    kept = np.flatnonzero((stored["labels"] != 1) | (np.cumsum(stored["labels"] == 1) <= 10))
    np.savez(tmp_path / "few.npz", x=stored["x"][kept], labels=stored["labels"][kept])
    words = ["--add", "set", "--per-class", "-o", tmp_path / "g.onnx"]
    done = ok("guard", small.model, "--calib", tmp_path / "few.npz", *words)
    assert "every set holds the classes '1': they have fewer than the 19 samples" in done.output
    assert outputs_of(tmp_path / "g.onnx", stored["x"])["set"][:, 1].all()


@pytest.mark.parametrize("command", [["guard", "--add", "set"], ["shift", "--target-prior", "uniform"]])
def test_labels_that_look_wrong_can_be_trusted(small: Small, tmp_path: Path, command: list[str]) -> None:
    stored = loaded(small.calib)
    wrong = (stored["labels"] + 1) % (stored["labels"].max() + 1)
    np.savez(tmp_path / "wrong.npz", x=stored["x"], labels=wrong)
    name, *words = command
    words = [small.model, "--calib", tmp_path / "wrong.npz", *words, "-o", tmp_path / "g.onnx"]
    refused(4, "--trust-labels", name, *words)
    assert "classes in another order" in ok(name, *words, "--trust-labels").output


def test_classes_without_samples_are_named(small: Small, tmp_path: Path) -> None:
    stored = loaded(small.calib)
    kept = stored["labels"] != 1
    np.savez(tmp_path / "none.npz", x=stored["x"][kept], labels=stored["labels"][kept])
    words = ["--add", "set,ood", "--ood-score", "energy", "-o", tmp_path / "g.onnx"]
    done = ok("guard", small.model, "--calib", tmp_path / "none.npz", *words)
    assert "no sample of the classes '1': no promise is about samples of these" in done.output
    (tmp_path / "names.txt").write_text("\n".join(f"name{c}" for c in range(stored["labels"].max() + 1)))
    named = ["--calib", tmp_path / "none.npz", "--classes", tmp_path / "names.txt"]
    assert "no sample of the classes 'name1'" in ok("guard", small.model, *named, *words).output
    refused(4, "(name1); it would learn", "calibrate", small.model, *named, "--map", "bias", "-o", tmp_path / "c.onnx")


def test_the_outlier_score_reads_what_is_in_front_of_an_appended_map(small: Small, tmp_path: Path) -> None:
    """What a map gives are log-probabilities, whose energy is 0 for every sample."""
    words = ["--search", "none", "--map", "isotonic", "--calib", small.calib, "-o", tmp_path / "c.onnx", "-q"]
    ok("calibrate", small.model, *words)
    x = loaded(small.test)["x"]
    logits = outputs_of(small.model, x)["logits"].astype(np.float64)
    for score in ("energy", "mahalanobis"):
        words = ["--calib", small.test, "--add", "ood", "--ood-score", score, "-o", tmp_path / "g.onnx", "-q"]
        ok("guard", tmp_path / "c.onnx", *words)
        if score == "energy":
            energy = -np.log(np.exp(logits).sum(axis=1))
            np.testing.assert_allclose(outputs_of(tmp_path / "g.onnx", x)["ood"], energy, rtol=1e-4, atol=1e-4)


def test_one_word_is_one_decision() -> None:
    assert tna_onnx.GuardSettings(add="set").add == ("set",)  # type: ignore[arg-type]
    assert tna_onnx.GuardSettings(add="set,ood").add == ("set", "ood")  # type: ignore[arg-type]


def test_the_page_of_an_evaluation_has_the_decisions(small: Small, tmp_path: Path) -> None:
    words: dict[str, Any] = {"output": tmp_path / "g.onnx", "add": ("set",), "decide": "macro-f1", "device": "cpu"}
    result = with_options(tna_onnx.guard, small.model, small.calib, **words)
    page = page_of(tna_onnx.evaluate(words["output"], small.test, device="cpu"))
    assert result.decisions.decision is not None
    for table in ("Coverage and size of sets by class", "Decisions by class", "True class and decision"):
        assert f"<summary>{table}</summary>" in page
    assert ">false positives</th>" in page


def test_what_scores_were_fitted_on_is_a_part_of_the_samples(small: Small) -> None:
    result = tna_onnx.guard(small.model, small.calib, add=("accept", "ood"), dry_run=True, device="cpu", risk=20)
    assert result.fitted_on == result.samples // 2
    assert not any("others" in line and "saw" in line for line in guard_lines(result))


@pytest.mark.parametrize(
    "flags",
    [
        ["--add", "set", "--risk", "5"],
        ["--add", "accept", "--coverage", "90"],
        ["--add", "set", "--ood-score", "energy"],
        ["--add", "ood", "--allow-empty"],
        ["--decide", "f1", "--positive", "1", "--delta", "10"],
    ],
)
def test_a_setting_that_nothing_uses_is_refused(small: Small, flags: list[str], tmp_path: Path) -> None:
    refused(2, "and none is added", "guard", small.model, small.calib, "-o", tmp_path / "g.onnx", *flags)


@pytest.mark.parametrize(("classes", "goal"), [(2, ["--decide", "recall>=0.7"]), (3, ["--add", "set"])])
def test_scores_that_are_no_probabilities_are_refused_by_every_command(
    classes: int, goal: list[str], tmp_path: Path
) -> None:
    """The graph does not say what a sine gives; its values show that they are no probabilities."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(4, classes)).astype(np.float32)
    nodes = nodes_of("MatMul x w > s; Sin s > y")
    model = small_model(nodes, {"x": ["N", 4]}, {"y": ["N", classes]}, {"w": weight})
    onnx.save(model, tmp_path / "model.onnx")
    x = rng.normal(size=(600, 4)).astype(np.float32)
    y = (np.sin(x @ weight) + rng.gumbel(size=(600, classes)) / 4).argmax(axis=1)
    np.savez(tmp_path / "calib.npz", x=x, labels=y)
    model_file, calib = tmp_path / "model.onnx", tmp_path / "calib.npz"
    said, output = "should hold probabilities", ["-o", tmp_path / "o.onnx"]
    refused(3, said, "evaluate", model_file, calib)
    refused(3, said, "calibrate", model_file, calib, "--search", "none", "--map", "ts", *output)
    refused(3, said, "guard", model_file, calib, *goal, *output)
    assert not (tmp_path / "o.onnx").exists()


@pytest.mark.parametrize(
    ("command", "flag"), [("guard", "--coverage"), ("evaluate", "--expect-accuracy"), ("evaluate", "--min-accuracy")]
)
def test_a_fraction_in_place_of_a_percentage_is_refused(small: Small, command: str, flag: str, tmp_path: Path) -> None:
    written = ["-o", tmp_path / "o.onnx"] if command == "guard" else []
    refused(2, f"for 90 %: {flag} 90", command, small.model, small.calib, flag, "0.9", *written)
    with pytest.raises(UsageError, match="per cent"):
        with_options(getattr(tna_onnx, command), small.model, small.calib, **{flag[2:].replace("-", "_"): 0.9})


def test_a_file_in_which_every_constant_is_an_input(small: Small, tmp_path: Path) -> None:
    old = onnx.load(small.model)
    old.ir_version = 3
    old.graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in old.graph.initializer
    )
    onnx.save(old, tmp_path / "old.onnx")
    words: dict[str, Any] = {"output": tmp_path / "g.onnx", "add": ("set", "accept"), "risk": 20, "device": "cpu"}
    result = tna_onnx.guard(tmp_path / "old.onnx", small.calib, **words)
    assert tna_onnx.verify(tmp_path / "old.onnx", result.output).intact
