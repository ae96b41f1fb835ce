"""Sentences beside the numbers: each where its reason holds, and only there."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import Small
from tests.pipeline.samples import job_of, outcome_of
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline import reporting as module
from tna_onnx.pipeline.job import Task
from tna_onnx.pipeline.methods import Method
from tna_onnx.pipeline.reporting import Compared, notes_on
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.strategy import Outcome
from tna_onnx.results.gates import Gates
from tna_onnx.results.recall import Recall
from tna_onnx.results.report import Changes, Comparison, compare_scores


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
    honest = Compared(before, before, before, compared or comparison(), recall, given["changed"], given["folds"])
    job = job_of(small, **fields)
    return notes_on(task, outcome, job, honest, given["changes"], given["drift"], given["labels"])


def test_device_labels_and_functions(small: Small, task: Task, outcome: Outcome) -> None:
    model = replace(task.model, inlined=("Gelu", "Norm"))
    unusual = replace(task, fallback="no driver", opened=replace(task.opened, model=model))
    found = notes(small, unusual, outcome, labels=("labels look shifted by one",))
    assert found[0].endswith("ran on the CPU: no driver")
    assert found[1:] == ["labels look shifted by one", "model-local functions were inlined: Gelu, Norm"]


def scored(nll: float, samples: int = 40) -> SampleScores:
    zeros = np.zeros(samples, np.float32)
    return SampleScores(zeros, zeros == 0, zeros + np.float32(nll), zeros)


def test_a_choice_is_said_with_the_best_that_were_compared(small: Small, task: Task, outcome: Outcome) -> None:
    names = {"none": 1 / 3, "ts": 0.5, "ets": 0.75, "bias": 2.0, "svs": 3.0}
    scores = {Method(tilted=False, map=name): scored(value) for name, value in names.items()}
    scores[Method(tilted=True, map="ts")] = scored(0.25)
    scores[Method(tilted=False, map="refit", step=2)] = scored(0.125)
    (found,) = notes(small, task, replace(outcome, scores=scores))
    assert found.startswith("chosen of 7 methods")
    assert "one temperature (ts)" in found


def test_the_note_on_a_choice_names_what_was_allowed_and_what_was_chosen(
    small: Small, task: Task, outcome: Outcome
) -> None:
    def scores(nll: float) -> SampleScores:
        hit = np.arange(40) % 4 > 0
        return SampleScores(np.full(40, 0.6, np.float32), hit, *(np.full(40, nll, np.float32) for _ in range(2)))

    names = ("none", "ts", "ets", "bias", "svs", "aar", "isotonic")
    methods = [Method(tilted=False, map=name) for name in names]
    each = {method: scores(0.9 - 0.1 * k) for k, method in enumerate(methods)}
    several = replace(outcome, method=methods[0], scores=each, left_out={methods[-1]: "accuracy"})
    (found,) = notes(small, task, several)
    assert "of 7 methods" in found
    assert found.endswith("the input model; left out, as it costs accuracy: isotonic regression (isotonic)")


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
    tilted = replace(under, chosen=replace(under.chosen, angle=30.0))
    for search in ("sparse", "complete"):
        (found,) = notes(small, task, tilted, settings=Settings(search=search, map="ts"))  # type: ignore[arg-type]
        assert found.startswith("the model is underconfident on these data: mean confidence 60.0%, accuracy 75.0%")
        assert found.endswith("a tilt only lowers confidences, what raises them is the map")
    alone = replace(tilted, method=replace(tilted.method, map="none"))
    assert notes(small, task, alone, settings=Settings(method="tna"))[0].endswith("--map ts raises them too")
    (found,) = notes(small, task, tilted, settings=Settings(method="tna"))
    assert "underconfident" in found
    # what is chosen by cross-validation needs no advice
    assert notes(small, task, tilted) == notes(small, task, tilted, settings=Settings()) == []


def test_a_search_that_found_nothing_and_one_that_needed_more_members(
    small: Small, task: Task, outcome: Outcome
) -> None:
    settings = Settings(search="sparse", map="ts")
    assert "no tilted weight was better" in notes(small, task, outcome, settings=settings)[0]
    tilted = replace(outcome, chosen=replace(outcome.chosen, angle=30.0, ensemble_size=40))
    (found,) = notes(small, task, tilted, settings=settings)
    # a plain sentence first
    assert found.startswith("the new last layer averages turned copies of the old one; ")
    assert found.endswith("averaged 40 members, not 10")
    limit = replace(outcome, chosen=replace(outcome.chosen, angle=30.0, ensemble_size=0))
    (found,) = notes(small, task, limit, settings=settings)
    assert "infinitely many copies (the limit of many members), because fewer may cost too much accuracy" in found
    assert notes(small, task, limit, settings=Settings(ensemble_size="inf")) == []


def test_a_worse_result_that_no_gate_holds_back(small: Small, task: Task, outcome: Outcome) -> None:
    worse = comparison(worse=True)
    held = notes(small, task, outcome, worse)
    assert [line.split()[0] for line in held] == ["NLL", "ECE", "accuracy"]
    passed = notes(small, task, outcome, worse, gates=Gates(fail_if_worse=False))
    assert passed[:3] == held
    assert "--no-fail-if-worse lets it pass" in passed[3]


def test_fits_to_some_of_very_many_samples_are_said(
    small: Small, task: Task, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = len(outcome.before)
    monkeypatch.setattr(module, "SEEN", n // 2)
    ending = f"{n // 2:,} samples at most, at random; all {n:,} are scored, and seen by the final fit"
    _, found = notes(small, task, outcome, comparison("cross-fitted"))
    assert found == f"fits that are cross-validated see {ending}"
    # one method, and data to hold it against: nothing was cross-validated
    alone = replace(outcome, scores={})
    assert notes(small, task, alone) == []
    few = replace(outcome.candidates[0], scores=outcome.before.take(np.arange(n // 2)))
    searched = replace(alone, candidates=(few, few))
    assert notes(small, task, searched)[-1] == f"the search sees {ending}"
    both = notes(small, task, searched, comparison("cross-fitted"))[-1]
    assert both == f"the search and fits that are cross-validated see {ending}"
    # without a map there is no fit
    bare = notes(small, task, replace(searched, fitted=None, chosen=few), comparison("cross-fitted"))[-1]
    assert bare == f"the search sees {n // 2:,} samples at most, at random; all {n:,} are scored"


def test_a_recipe_is_written_in_plain_words(small: Small, task: Task, outcome: Outcome) -> None:
    recipe = {"size": (224, 224), "mean": [0.485], "scale": 1 / 255, "crop": None}
    source = SimpleNamespace(recipe=lambda: recipe)
    samples = replace(task.calibration.samples, source=source)
    (found,) = notes(small, replace(task, calibration=replace(task.calibration, samples=samples)), outcome)
    accuracy = np.mean(outcome.before.hit)
    assert found == (
        "preprocessing: size (224, 224), mean (0.485), scale 0.00392157; accuracy of the input model with it "
        f"{100 * accuracy:.2f}%"
    )
