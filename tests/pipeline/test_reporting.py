"""The report on a run: its numbers against the scores of both heads, and each note where its reason holds."""

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.conftest import Small
from tests.data.samples import open_source, write_folder
from tests.pipeline.samples import few, job_of, opened, outcome_of, scores_of
from tna_onnx.data.source import InputSpec
from tna_onnx.errors import DataError
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.metrics import Interval, Metrics
from tna_onnx.numerics.reliability import Bins
from tna_onnx.numerics.residuals import CrossFit
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline.collected_details import class_sums, worst_rows
from tna_onnx.pipeline.comparing import Compared, compare_heads
from tna_onnx.pipeline.crossfit import folds
from tna_onnx.pipeline.job import Task
from tna_onnx.pipeline.methods import INPUT, Method
from tna_onnx.pipeline.recalibrate import recalibrate
from tna_onnx.pipeline.reporting import notes_on
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.strategy import Outcome, Strategy
from tna_onnx.pipeline.writing import Shipped, Writing
from tna_onnx.progress import silent
from tna_onnx.results.gates import GateMissed, Gates
from tna_onnx.results.report import Changes, Comparison, MethodScores, Report, compare_scores
from tna_onnx.results.verdict import Recall


def report_of(small: Small, model: Any = None, **fields: Any) -> Report:
    return recalibrate(job_of(small, model, few(small.calib), **fields), silent)


def test_a_missed_gate_holds_the_model_back_in_memory_too(small: Small) -> None:
    with pytest.raises(GateMissed) as caught:
        report_of(small, onnx.load(small.model), gates=Gates(max_nll=1e-6))
    report = caught.value.result
    assert (report.output, report.recalibrated) == ("", None)
    assert len(report.missed) == 1
    assert "--max-nll 1e-06 missed" in report.missed[0]


# ---- Sentences beside the numbers: each where its reason holds, and only there


@pytest.fixture(scope="module")
def outcome(task: Task) -> Outcome:
    return outcome_of(task, Temperature(2.0))


def comparison(how: Any = "held-out", *, worse: bool = False) -> Comparison:
    """Scores of labels drawn from the probabilities themselves; worse: after sharpening tenfold, and half wrong."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((300, 3))
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    before = SampleScores.of_logits(logits, labels)
    after = before
    if worse:
        after = SampleScores.of_logits(10 * logits, np.where(rng.random(300) < 0.5, labels, (labels + 1) % 3))
    return compare_scores("data", how, before, after, 15, 0)


def notes(small: Small, task: Task, outcome: Outcome, compared: Comparison | None = None, **fields: Any) -> list[str]:
    nothing = Changes("", (), (), ())
    defaults: dict[str, Any] = {"drift": None, "labels": (), "changed": 0.0, "changes": nothing, "folds": ()}
    given = {name: fields.pop(name, default) for name, default in defaults.items()}
    before = outcome.before
    recall = Recall.of(before.labelled(np.zeros(len(before), np.int64)), before, ["0"])
    honest = Compared(before, before, compared or comparison(), recall, given["changed"], given["folds"])
    task = replace(task, job=job_of(small, **fields))
    return [*notes_on(task, outcome, honest, given["changes"], given["drift"], given["labels"])]


def scored(nll: float, samples: int = 40) -> SampleScores:
    zeros = np.zeros(samples, np.float32)
    return SampleScores(zeros, zeros == 0, zeros + np.float32(nll), zeros)


def test_folds_that_chose_otherwise_are_said_with_what_the_file_changes(
    small: Small, task: Task, outcome: Outcome
) -> None:
    chosen = ("refit 0.05", "refit 0.05", "ts", "ts", "refit 0.05")
    (found,) = notes(small, task, outcome, comparison("cross-fitted"), folds=chosen)
    assert "changes no predicted class" in found
    (same,) = notes(small, task, outcome, comparison("cross-fitted"), folds=(outcome.label,) * 5)
    assert "folds chose" not in same
    assert "refit 0.05 (3 of 5), ts (2 of 5)" in found


def test_a_search_by_name_on_an_underconfident_model_is_said(small: Small, task: Task, outcome: Outcome) -> None:
    """Mean confidence 60 %, accuracy 75 %: a tilt goes the wrong way."""
    hit = np.arange(40) % 4 > 0
    modest = SampleScores(np.full(40, 0.6, np.float32), hit, *(np.zeros(40, np.float32) for _ in range(2)))
    under = replace(outcome, before=modest)
    tilted = replace(under, chosen=replace(under.chosen, angle=30.0, ensemble_size=10))
    for search in ("sparse", "complete"):
        (found,) = notes(small, task, tilted, settings=Settings(search=search, map="ts"))  # type: ignore[arg-type]
        assert found.startswith("the model is underconfident on these data: mean confidence 60.0 %, accuracy 75.0 %")
        assert found.endswith("the map raises them")
    alone = replace(tilted, method=replace(tilted.method, map="none"))
    assert notes(small, task, alone, settings=Settings(method="tna"))[0].endswith("--map ts can raise them")
    (found,) = notes(small, task, tilted, settings=Settings(method="tna"))
    assert "underconfident" in found
    (found,) = notes(small, task, tilted, settings=Settings(ensemble_size="inf"))
    assert "the average of 10 tilted copies" in found
    assert notes(small, task, outcome, settings=Settings(ensemble_size="inf")) == []  # one weight, and no copy
    # what is chosen by cross-validation needs no advice
    assert notes(small, task, tilted) == notes(small, task, tilted, settings=Settings()) == []


def test_a_worse_result_that_no_gate_holds_back(small: Small, task: Task, outcome: Outcome) -> None:
    worse = comparison(worse=True)
    held = notes(small, task, outcome, worse)
    assert [line.split()[0] for line in held] == ["NLL", "ECE", "accuracy"]
    passed = notes(small, task, outcome, worse, gates=Gates(require="nothing"))
    assert passed[:3] == held
    assert "--require nothing lets it pass" in passed[3]


# ---- The honest numbers: of files that were run, of every sample once, or of nothing that changed


SETTINGS = Settings(search="none", bins=10)


def compared_by(task: Task, strategy: Strategy, outcome: Outcome) -> Compared:
    return compare_heads(Writing(task), strategy, outcome, Shipped(outcome.logits, outcome.fitted))


def strategy_of(task: Task, **fields: Any) -> Strategy:
    return Strategy(task.logits, task.weight, "none", "ts", SETTINGS.for_search, **fields)


def test_where_nothing_changed_both_are_the_same(small: Small) -> None:
    task = opened(small, calib=few(small.calib), settings=SETTINGS)
    outcome = outcome_of(task)
    compared = compared_by(task, strategy_of(task), outcome)
    assert compared.comparison.how == "unchanged"
    assert compared.before is compared.after
    for interval in compared.comparison.differences.values():
        assert (interval.low, interval.high) == (0, 0)


def test_where_folds_chose_otherwise_intervals_hold_the_method_of_the_file_too(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = opened(small, calib=few(small.calib), settings=SETTINGS)
    strategy = Strategy(task.logits, task.weight, "none", "auto", SETTINGS.for_search, allowed=("none", "ts"))
    outcome = strategy.run(lambda *_: None)
    assert outcome.method.map == "ts"

    def differences(*folds: Method) -> dict[str, Interval]:
        monkeypatch.setattr(Strategy, "chosen_in_folds", lambda *_: list(folds))
        return compared_by(task, strategy, outcome).comparison.differences

    alike, mixed = differences(*[outcome.method] * 5), differences(*[INPUT] * 4, outcome.method)
    # the input in four of five folds gains a fifth of what the file does
    assert alike["nll"].difference < mixed["nll"].difference < 0
    assert mixed["nll"].low == alike["nll"].low
    assert mixed["nll"].high > alike["nll"].high


@pytest.mark.parametrize("name", ["ts", "isotonic"])
def test_intervals_know_of_the_folds_and_of_predictions_that_stay(small: Small, name: str) -> None:
    task = opened(small, calib=few(small.calib), settings=SETTINGS)
    strategy = dataclasses.replace(strategy_of(task), map=name)
    outcome = strategy.run(lambda *_: None)
    assert outcome.keeps_predictions == (name == "ts")
    compared = compared_by(task, strategy, outcome)
    cross_fit = CrossFit(outcome.after, folds(300, SETTINGS.seed))
    shared: dict[str, Any] = {"seed": SETTINGS.seed, "cross_fit": cross_fit, "same_predictions": name == "ts"}
    expected = paired_differences(compared.before, compared.after, 10, **shared)
    assert compared.comparison.differences == expected
    assert compared.comparison.how == "cross-fitted"
    for one in ("confidence", "hit", "nll"):  # each sample once, in their own order
        np.testing.assert_array_equal(getattr(compared.before, one), getattr(outcome.before, one))
    # scored by fits without them, samples look no better than scored by the fit with them
    assert np.mean(compared.after.nll, dtype=np.float64) >= np.mean(outcome.after.nll, dtype=np.float64)
    after = compared.comparison.after
    # the fit's own error is put back, which adds to a calibration error
    assert after.ece != Metrics.of(compared.after, 10).ece
    accuracy = compared.comparison.differences["accuracy"]
    assert (accuracy.low == accuracy.high == 0) == (name == "ts")


def test_held_out_logits_that_are_no_numbers_are_refused(small: Small) -> None:
    """A NaN would miss no gate: no limit is below it."""
    task = opened(small, held_out=few(small.test), settings=SETTINGS)
    features = np.array(task.held_out.table.features)
    features[7] = np.nan
    table = dataclasses.replace(task.held_out.table, features=features)
    task = dataclasses.replace(task, held_out=dataclasses.replace(task.held_out, table=table))
    outcome = outcome_of(task, Temperature(2.0))
    with pytest.raises(DataError, match="logits 'logits' of sample 7 hold NaN or infinite values"):
        compare_heads(Writing(task), strategy_of(task), outcome, Writing(task).shipped(outcome, task.held_out))


# --- The numbers behind figures: diagrams of classes against a loop, worst samples, and angles


def test_class_sums_are_those_of_a_loop_however_the_samples_are_split() -> None:
    rng = np.random.default_rng(1)
    logits, labels, bins = 3 * rng.standard_normal((40, 3)), rng.integers(0, 3, 40), 5
    whole = class_sums(logits, labels, bins)
    parts = class_sums(logits[:7], labels[:7], bins) + class_sums(logits[7:], labels[7:], bins)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for c in range(3):
        expected = Bins.of(p[:, c], labels == c, bins)
        for found in (Bins.of_sums(*sums[:, c]) for sums in (whole, parts)):
            assert found.count == expected.count
            np.testing.assert_allclose(found.confidence, expected.confidence, atol=1e-12)
            np.testing.assert_allclose(found.accuracy, expected.accuracy, atol=1e-12)


# ---- The worst samples of a result, and what they and their classes are called


IMAGE = InputSpec("image", (None, 3, None, None), np.dtype(np.float32))


def test_worst_rows() -> None:
    over, under = worst_rows(scores_of([0.9, 0.8, 0.2, 0.99, 0.1], [False, True, True, False, True]))
    assert (over.tolist(), under.tolist()) == ([3, 0], [4, 2, 1])
    over, under = worst_rows(scores_of([0.9], [True]))
    assert (over.tolist(), under.tolist()) == ([], [0])


@pytest.mark.parametrize(
    ("files", "labels", "expected"),
    [
        (["cat/1.png", "dog/1.png"], None, ("cat", "dog", "2", "3", "4")),
        (["a/1.png", "a/2.png", "b/1.png"], [0, 1, 1], ("0", "1", "2", "3", "4")),  # a folder of two classes
        (["a/1.png", "b/1.png", "c/1.png"], [0, 1, 1], ("0", "1", "2", "3", "4")),  # a class in two folders
        (["1.png", "b/1.png"], [0, 1], ("0", "1", "2", "3", "4")),  # an image in no folder
    ],
)
def test_folders_name_classes_only_one_to_one(
    task: Task, tmp_path: Path, files: list[str], labels: list[int] | None, expected: tuple[str, ...]
) -> None:
    write_folder(tmp_path, files)
    classes = 2 if labels is None else 5
    source = open_source(tmp_path, [IMAGE], classes, labels=labels)
    assert task.opened.class_names(source) == expected


@pytest.mark.parametrize(
    ("error", "left_out", "named"), [(0.005, "error", True), (0.02, "error", False), (0.005, "accuracy", False)]
)
def test_an_input_that_stays_for_its_ece_alone_is_not_called_calibrated(
    small: Small, error: float, left_out: str, *, named: bool
) -> None:
    """One temperature has a lower NLL, by 6 standard errors or 1.5, and is left out by rule 4 or another one."""
    report = report_of(small, settings=replace(SETTINGS, map="ts"), dry_run=True)
    old = replace(report.comparison.before, nll=0.86)
    methods = (MethodScores("none", old, error=error), MethodScores("ts", replace(old, nll=0.83), left_out=left_out))
    by_chance = replace(report.bin_free_before, ece_p=0.3)
    stays = replace(report, method="none", methods=methods, bin_free_before=by_chance)
    assert ("ts has a significantly lower NLL" in stays.verdict, "already calibrated" in stays.verdict) == (
        named,
        not named,
    )
    assert ("needs no recalibration" in stays.summary) != named
    # an error beyond chance is no calibrated model, whatever else was tried
    off = replace(stays, bin_free_before=replace(by_chance, ece_p=0.001))
    assert "needs no recalibration" not in off.summary
    assert "already calibrated" not in off.verdict
