"""The output `decision`: what a file decides, in ONNX Runtime and by the reference evaluator, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from scipy.special import softmax

import tna_onnx
from tests.conftest import Small
from tests.guarding.conftest import guard, run
from tests.pipeline.test_label_models import model as label_model
from tests.pipeline.test_label_models import samples
from tests.runtimes.matrix import Source, binary
from tests.support import cli, ok, refused
from tna_onnx.errors import DataError, UsageError

CPU: dict[str, Any] = {"device": "cpu"}

GOALS: dict[str, dict[str, Any]] = {
    "positive": {"decide": "recall>=0.9", "positive": "2"},
    "best of one": {"decide": "f1", "positive": "2"},
    "sure": {"decide": "precision>=0.5", "per_class": True},
    "ratio": {"decide": "balanced-accuracy"},
    "correlation": {"decide": "mcc"},
}


def costs(folder: Path, *, abstain: bool = True) -> str:
    """Write costs of five classes: 1 for an error, more to miss the last class, 0.4 to abstain."""
    rows = [["true", *map(str, range(5)), *(["abstain"] if abstain else [])]]
    for c in range(5):
        cells = [0.0 if a == c else 4.0 if c == 4 else 1.0 for a in range(5)]
        rows.append([str(c), *map(str, cells), *(["0.4"] if abstain else [])])
    (folder / "costs.csv").write_text("\n".join(map(",".join, rows)), "utf-8")
    return f"cost={folder / 'costs.csv'}"


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    """Write a model of several labels and its samples."""
    np.savez(tmp_path / "calib.npz", **samples(600, 1))
    np.savez(tmp_path / "test.npz", **samples(900, 2))
    onnx.save(label_model(), tmp_path / "m.onnx")
    return tmp_path


def by_definition(p: np.ndarray, t: np.ndarray, *, per_class: bool = False) -> np.ndarray:
    """Return classes (N,) by one threshold of class 2, by thresholds that a class has to reach, or by ratios."""
    first = p.argmax(axis=1)
    if t.size == 1:
        return np.where(p[:, 2] >= t[0], 2, np.where(np.arange(5) == 2, -1, p).argmax(axis=1))
    if per_class:
        return np.where(p.max(axis=1) >= t[first], first, -1)
    return (p / t).argmax(axis=1)


@pytest.mark.parametrize("name", [*GOALS, "cost", "cost without abstaining"])
def test_files_decide_by_their_rule(small: Small, data: dict[str, np.ndarray], name: str, tmp_path: Path) -> None:
    """Against the definition on float32 probabilities, and the reference evaluator."""
    words = GOALS.get(name) or {"decide": costs(tmp_path, abstain=name == "cost")}
    path = tmp_path / "g.onnx"
    result = guard(small.model, small.calib, path, **words)
    onnx.checker.check_model(path, full_check=True)
    decided = run(path, data["new"])["decision"]
    p = softmax(run(small.model, data["new"])["logits"].astype(np.float64), axis=1)
    (t,) = (np.array(output.threshold) for output in result.outputs if output.role == "decision")
    assert (t.size == 1) == (name in ("positive", "best of one"))
    expected = by_definition(p, t, per_class=name == "sure")
    if "cost" in name:
        matrix = 1.0 - np.eye(5) + 3 * np.outer(np.arange(5) == 4, np.arange(5) != 4)
        matrix = np.column_stack([matrix, np.full(5, 0.4)]) if name == "cost" else matrix
        expected = ((p / t) @ matrix).argmin(axis=1)
        expected = np.where(expected == 5, -1, expected)
    # a float32 softmax lies so close to a threshold for one sample or two
    assert decided.dtype == np.int64
    assert np.count_nonzero(decided != expected) <= 2
    (by_reference,) = ReferenceEvaluator(str(path)).run(["decision"], {"x": data["new"]})
    assert np.count_nonzero(by_reference != decided) <= 2
    assert tna_onnx.verify(small.model, path).intact


def test_several_labels_are_decided_each(labels: Path) -> None:
    path = labels / "g.onnx"
    for goal in ("recall>=0.9", "macro-f1"):
        ok(
            "guard", labels / "m.onnx", labels / "calib.npz", "--eval", labels / "test.npz", "--decide", goal, "-o",
            path, "--json", labels / "r.json", "--device", "cpu", "--overwrite",
        )  # fmt: skip
        report = json.loads((labels / "r.json").read_text("utf-8"))
        (output,) = report["outputs"]
        found = run(path, samples(900, 2)["x"])
        assert found["decision"].dtype == np.bool_
        np.testing.assert_array_equal(found["decision"], found["p"] >= np.array(output["threshold"], np.float32))
        y = samples(900, 2)["labels"]
        recall = (found["decision"] & (y == 1)).sum(axis=0) / y.sum(axis=0)
        scores = report["decisions"]["decision"]
        assert [each["recall"] for each in scores["classes"]] == pytest.approx(recall.tolist())
        assert tna_onnx.verify(labels / "m.onnx", path).intact
    evaluated = tna_onnx.evaluate(path, labels / "test.npz", **CPU)
    assert evaluated.decisions.decision.macro_f1 == pytest.approx(scores["macro_f1"])
    first = evaluated.decisions.decision.classes[0]
    assert not tna_onnx.evaluate(
        path, labels / "test.npz", gates=tna_onnx.Gates(min_recall={first.name: first.recall}), **CPU
    ).missed
    with pytest.raises(tna_onnx.GateMissed, match="min_recall"):
        tna_onnx.evaluate(
            path, labels / "test.npz", gates=tna_onnx.Gates(min_recall={first.name: first.recall + 0.01}), **CPU
        )
    compared = tna_onnx.compare([path, labels / "m.onnx"], labels / "test.npz", **CPU)
    assert [model.decisions and model.decisions.decision for model in compared.models] == [
        evaluated.decisions.decision,
        None,
    ]


def test_calibrate_decides_too(labels: Path) -> None:
    """Thresholds are of the recalibrated probabilities, and come from the half that the fit has not seen."""
    report = tna_onnx.calibrate(
        labels / "m.onnx",
        labels / "calib.npz",
        output=labels / "o.onnx",
        guard=tna_onnx.GuardSettings(decide="recall>=0.9"),
        **CPU,
    )
    assert report.guard.samples == 300
    assert tna_onnx.verify(labels / "m.onnx", labels / "o.onnx").intact


def test_what_is_no_number_is_not_decided(small: Small, labels: Path, tmp_path: Path) -> None:
    guard(small.model, small.calib, tmp_path / "g.onnx", positive="1", decide="f1")
    assert run(tmp_path / "g.onnx", np.full((2, 8), np.nan, np.float32))["decision"].tolist() == [-1, -1]
    guard(labels / "m.onnx", labels / "calib.npz", labels / "g.onnx", decide="f1")
    assert not run(labels / "g.onnx", np.full((2, 8), np.nan, np.float32))["decision"].any()


def test_two_classes_are_decided_at_the_second(tmp_path: Path) -> None:
    source: Source = binary(tmp_path)
    result = guard(source.model, source.calib, tmp_path / "g.onnx", decide="recall>=0.8")
    scores = result.decisions.decision
    assert scores.classes[1].recall >= 0.8
    assert sum(map(sum, scores.confusion)) == result.decisions.n
    # the record holds the number with its type, from which the file is rebuilt
    (change,) = (
        entry.value for entry in onnx.load(tmp_path / "g.onnx").metadata_props if entry.key.endswith(".change")
    )
    (step,) = json.loads(change)["steps"]
    threshold = step["thresholds"]["entries"]["decision"]
    assert (threshold["dtype"], threshold["shape"]) == ("float32", [])


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ({"decide": "recall=0.9"}, UsageError, r"recall=0\.9.* expected f1, macro-f1"),
        ({"decide": "recall>=1.5"}, UsageError, "between 0 and 1"),
        ({"decide": "f1"}, UsageError, "name it with positive"),
        ({"decide": "recall>=0.9", "per_class": True}, UsageError, "recall of all classes cannot be guaranteed"),
        ({"decide": "f1", "positive": "spam"}, UsageError, "expected .0., .1., .2., .3., .4."),
        ({"positive": "1"}, UsageError, "decide"),
        ({"decide": "cost=missing.csv"}, UsageError, "no such file"),
        ({"decide": "recall>=0.9999", "positive": "1"}, DataError, r"takes 29,956.*best that these can promise"),
    ],
)
def test_what_cannot_be_done_is_refused(small: Small, words: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        guard(small.model, small.calib, **words)


@pytest.mark.parametrize("words", [{}, {"positive": "spam"}])
def test_calibrate_refuses_a_goal_without_its_class_before_the_search(small: Small, words: dict[str, str]) -> None:
    stages: list[str] = []
    settings = tna_onnx.GuardSettings(decide="f1", **words)
    with pytest.raises(UsageError, match="positive"):
        tna_onnx.calibrate(
            small.model, small.calib, dry_run=True, guard=settings, progress=lambda *step: stages.append(step[0]), **CPU
        )
    assert not stages


@pytest.mark.parametrize("guard", [None, {"add": ("set",)}, {"decide": "mcc"}])
def test_calibrate_refuses_a_gate_on_an_unknown_class_before_the_network_runs(
    small: Small, guard: dict[str, Any] | None
) -> None:
    stages: list[str] = []
    with pytest.raises(UsageError, match="no class of this name has a sample; expected one of 0, 1, 2, 3, 4"):
        tna_onnx.calibrate(
            small.model, small.calib, eval=small.test, dry_run=True, gates=tna_onnx.Gates(min_recall={"spam": 0.5}),
            guard=None if guard is None else tna_onnx.GuardSettings(**guard),
            progress=lambda *step: stages.append(step[0]), **CPU,
        )  # fmt: skip
    assert not stages


def test_a_class_without_samples_has_no_best_threshold(small: Small, data: dict[str, np.ndarray]) -> None:
    rest = {"x": data["x"][data["y"] != 2], "labels": data["y"][data["y"] != 2]}
    done = guard(small.model, rest, add=("set",), positive="2", decide="f1")
    assert (done.omitted, [output.role for output in done.outputs]) == (("decision",), ["set"])
    with pytest.raises(DataError, match=r"none of these .* samples are of the class 2"):
        guard(small.model, rest, positive="2", decide="f1")


def test_samples_that_nothing_would_be_measured_on_are_refused_at_once(small: Small, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="measures the output ood"):
        tna_onnx.guard(tmp_path / "unread.onnx", small.test, ood_data=small.test, add=("set",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("true,0,1\n0,0,1\n1,1,0", "a row for each class"),
        ("true,0,1,2,3,4\n" + "".join(f"{k},0,1,1,1,1\n" for k in (0, 1, 2, 3, 4, 4)), "a row for each class"),
        ("true,0,1,2,3,4\n" + "".join(f"{k},0,1,1,1,inf\n" for k in range(5)), "finite costs"),
        ("true,0,1,2,3,4\n" + "".join(f"{k},0,1,1,1,one\n" for k in range(5)), "expected numbers"),
    ],
)
def test_costs_have_to_be_of_all_classes(small: Small, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.csv").write_text(text, "utf-8")
    with pytest.raises(DataError, match=message):
        guard(small.model, small.calib, decide=f"cost={tmp_path / 'c.csv'}")


def test_wrong_probabilities_are_not_good_enough_for_costs(small: Small, tmp_path: Path) -> None:
    """The small model is overconfident (temperature 3), so that abstaining by its probabilities comes too late."""
    result = guard(small.model, small.calib, tmp_path / "g.onnx", decide=costs(tmp_path))
    point = result.operating_point
    assert point.probability_cost >= point.lowest_cost


def test_a_bound_that_is_out_of_reach_leaves_the_rest(small: Small, tmp_path: Path) -> None:
    words: dict[str, Any] = {"decide": "recall>=0.9999", "positive": "1", "add": ("set",)}
    result = guard(small.model, small.calib, tmp_path / "g.onnx", **words)
    assert result.omitted == ("decision",)
    assert [output.role for output in result.outputs] == ["set"]
    assert any("decision is left out" in note for note in result.notes)
    with pytest.raises(DataError, match="give more samples"):
        guard(small.model, small.calib, if_unreachable="fail", **words)


def test_a_gate_asks_for_recall(small: Small, tmp_path: Path) -> None:
    path = tmp_path / "g.onnx"
    guard(small.model, small.calib, path, positive="2", decide="recall>=0.9")
    scores = tna_onnx.evaluate(path, small.test, **CPU).decisions
    recall = scores.decision.classes[2].recall
    for limit, code in ((recall - 0.01, 0), (min(1.0, recall + 0.01), 1)):
        result = cli("evaluate", path, small.test, "--min-recall", f"2={limit}", "--device", "cpu")
        assert result.exit_code == code, result.output
    assert "--min-recall 2=" in result.output
    refused(2, "no class", "evaluate", path, small.test, "--min-recall", "spam=0.5")


def test_without_a_decision_the_gate_is_on_predictions(small: Small) -> None:
    found = np.load(small.test)
    predicted = run(small.model, found["x"])["logits"].argmax(axis=1)
    recall = float(np.mean(predicted[found["labels"] == 2] == 2))
    for limit, code in ((recall - 0.01, 0), (recall + 0.01, 1)):
        result = cli("evaluate", small.model, small.test, "--min-recall", f"2={limit}", "--device", "cpu")
        assert result.exit_code == code, result.output


EDITED: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "positive": ({"decide": "recall>=0.9", "positive": "2"}, {"2": 0.7}),
    "sure": ({"decide": "precision>=0.5", "per_class": True}, {"1": 0.7, "3": 0.1}),
    "ratio beside sets": ({"decide": "macro-f1", "add": ("set", "accept"), "risk": 20.0}, {"4": 3.0}),
    "correlation": ({"decide": "mcc"}, {"0": 0.5}),
    "outliers": ({"decide": "f1", "positive": "2", "add": ("ood",)}, {"2": 0.7}),
}


@pytest.mark.parametrize("name", EDITED)
def test_thresholds_are_set_by_hand(small: Small, data: dict[str, np.ndarray], name: str, tmp_path: Path) -> None:
    words, wanted = EDITED[name]
    result = guard(small.model, small.calib, tmp_path / "g.onnx", **words)
    edited = tna_onnx.edit_decision(tmp_path / "g.onnx", wanted, output=tmp_path / "e.onnx")
    onnx.checker.check_model(tmp_path / "e.onnx", full_check=True)
    assert tna_onnx.verify(small.model, tmp_path / "e.onnx").intact
    before, after = (run(tmp_path / file, data["new"]) for file in ("g.onnx", "e.onnx"))
    for output in before.keys() - {"decision"}:
        np.testing.assert_array_equal(before[output], after[output])
    (t,) = (np.array(output.threshold, np.float32) for output in result.outputs if output.role == "decision")
    for label, value in wanted.items():
        t[0 if t.size == 1 else int(label)] = value
    p = softmax(after["logits"].astype(np.float64), axis=1)
    expected = by_definition(p, t, per_class=name == "sure")
    assert np.count_nonzero(after["decision"] != expected) <= 2
    assert np.count_nonzero(after["decision"] != before["decision"]) > 2
    said = json.loads(edited.provenance["guard_decision"])
    assert (said["goal"], said["by_hand"]) == ("by hand", sorted(wanted))
    assert "delta" not in said
    assert json.loads(edited.provenance["guard"])["decide"] == "by hand"
    # and once more
    again = tna_onnx.edit_decision(tmp_path / "e.onnx", wanted, output=tmp_path / "f.onnx")
    assert again.provenance["guard_decision"] == edited.provenance["guard_decision"]


def test_a_recalibrated_file_is_still_proved(labels: Path) -> None:
    tna_onnx.calibrate(labels / "m.onnx", labels / "calib.npz", output=labels / "c.onnx", **CPU)
    guard(labels / "c.onnx", labels / "test.npz", labels / "g.onnx", decide="f1")
    tna_onnx.edit_decision(labels / "g.onnx", {"0": 0.4}, output=labels / "e.onnx")
    assert tna_onnx.verify(labels / "m.onnx", labels / "e.onnx").intact
    found = run(labels / "e.onnx", samples(900, 2)["x"])
    np.testing.assert_array_equal(found["decision"][:, 0], found["p"][:, 0] >= np.float32(0.4))


def test_what_cannot_be_edited_is_refused(small: Small, tmp_path: Path) -> None:
    path = tmp_path / "g.onnx"
    guard(small.model, small.calib, path, positive="2", decide="f1")
    for words, code, message in (
        ((path, "--set-threshold", "spam=0.7"), 2, "expected '2'"),
        ((path, "--set-threshold", "2=1.5"), 2, "from 0 to 1"),
        ((path, "--set-threshold", "2=high"), 2, "must be a number"),
        ((path, small.calib, "--set-threshold", "2=0.7"), 2, "leave out --calib"),
        ((path,), 2, "Missing data"),
        ((small.model, "--set-threshold", "2=0.7"), 3, "has no output decision"),
    ):
        result = cli("guard", *words, "-o", tmp_path / "e.onnx")
        assert result.exit_code == code, result.output
        assert message in " ".join(result.output.split())
        assert not (tmp_path / "e.onnx").exists()
    result = ok("guard", path, "--set-threshold", "2=0.7", "-o", tmp_path / "e.onnx")
    assert '"by_hand": ["2"]' in result.output
    proto = onnx.load(tmp_path / "e.onnx")
    proto.graph.node[-1].doc_string = "changed"
    onnx.save(proto, tmp_path / "t.onnx")
    refused(3, "guard wrote it", "guard", tmp_path / "t.onnx", "--set-threshold", "2=0.7", "-o", tmp_path / "u.onnx")
