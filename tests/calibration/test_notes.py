"""Sentences beside the numbers: each where its reason holds, and only there."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.calibration.samples import job_of, of_logits, outcome_of
from tests.conftest import Small
from tna_onnx.calibration.notes import notes_on
from tna_onnx.calibration.settings import Settings
from tna_onnx.calibration.strategy import Outcome
from tna_onnx.calibration.task import Task
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.results.gates import Gates
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
    extra = {name: fields.pop(name, default) for name, default in (("drift", None), ("suspicion", ""))}
    changes = fields.pop("changes", Changes("", (), (), ()))
    return notes_on(task, outcome, job_of(small, **fields), compared or comparison(), changes, **extra)


def test_an_ordinary_run_needs_none(small: Small, task: Task, outcome: Outcome) -> None:
    assert notes(small, task, outcome) == []


def test_device_labels_and_functions(small: Small, task: Task, outcome: Outcome) -> None:
    model = replace(task.model, inlined=("Gelu", "Norm"))
    unusual = replace(task, fallback="no driver", opened=replace(task.opened, model=model))
    found = notes(small, unusual, outcome, suspicion="labels look shifted by one")
    assert found[0].endswith("ran on the CPU: no driver")
    assert found[1:] == ["labels look shifted by one", "model-local functions were inlined: Gelu, Norm"]


def test_without_a_head_it_says_what_is_calibrated(small: Small) -> None:
    task = of_logits(small)
    assert notes(small, task, outcome_of(task)) == [
        "output 'logits' is calibrated as it is (logits), without a linear head"
    ]


def test_a_map_that_was_chosen_is_said_with_all_that_were_compared(small: Small, task: Task, outcome: Outcome) -> None:
    (found,) = notes(small, task, replace(outcome, map_nll={"ts": 0.5, "none": 1 / 3}))
    assert "auto took ts" in found
    assert found.endswith("(ts 0.5000, none 0.3333)")


def test_a_search_that_found_nothing_and_one_that_needed_more_members(
    small: Small, task: Task, outcome: Outcome
) -> None:
    settings = Settings()
    assert "no tilted weight was better" in notes(small, task, outcome, settings=settings)[0]
    tilted = replace(outcome, chosen=replace(outcome.chosen, angle=30.0, ensemble_size=40))
    assert notes(small, task, tilted, settings=settings) == [
        "averaged 40 members, not 10: fewer cost too much accuracy"
    ]
    limit = replace(outcome, chosen=replace(outcome.chosen, angle=30.0, ensemble_size=0))
    assert notes(small, task, limit, settings=Settings(ensemble_size="inf")) == []


def test_a_worse_result_that_no_gate_holds_back(small: Small, task: Task, outcome: Outcome) -> None:
    worse = comparison(worse=True)
    held = notes(small, task, outcome, worse)
    assert [line.split()[0] for line in held] == ["NLL", "ECE", "accuracy"]
    passed = notes(small, task, outcome, worse, gates=Gates(fail_if_worse=False))
    assert passed[:3] == held
    assert "--no-fail-if-worse lets it pass" in passed[3]


def test_cross_fitting_says_what_all_folds_share(small: Small, task: Task, outcome: Outcome) -> None:
    crossed = comparison("cross-fitted")
    assert len(notes(small, task, outcome, crossed)) == 1
    tilted = replace(outcome, chosen=replace(outcome.chosen, angle=30.0), map_nll={"ts": 1.0})
    last = notes(small, task, tilted, crossed, settings=Settings(map="auto"))[-1]
    assert last == "the angles tried and the members and the choice of the map come from all calibration data"


def test_a_dry_run_lists_what_it_would_write(small: Small, task: Task, outcome: Outcome) -> None:
    changes = Changes("o.onnx", ("weight",), (), tuple(f"n{k}" for k in range(10)))
    (found,) = notes(small, task, outcome, changes=changes, dry_run=True)
    assert "would write o.onnx with changed tensors: weight; new tensors: none; new nodes: n0, " in found
    assert found.endswith("n7 and 2 more")
    assert "the model in memory" in notes(small, task, outcome, dry_run=True)[0]


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
