"""What each search chooses and fits, against one another and against the fits that it may choose from."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.pipeline.toys import BY_NLL, SETTINGS, TS, N, run, toy
from tna_onnx.maps import CLAMPED, MAPS, maps_of
from tna_onnx.maps.refit import Refit
from tna_onnx.pipeline import crossfit
from tna_onnx.pipeline import strategy as module
from tna_onnx.pipeline.crossfit import Scores
from tna_onnx.pipeline.job import Task
from tna_onnx.pipeline.methods import Method, Rule
from tna_onnx.search.candidates import choose

ALL = ("none", *maps_of(5))


def test_a_complete_search_scores_each_weight_with_its_own_map() -> None:
    outcome = run(toy("complete", "ts"))
    temperatures = {candidate.parameters["temperature"] for candidate in outcome.candidates}
    assert len(temperatures) == len(outcome.candidates) > 1
    assert outcome.fitted is outcome.chosen.fitted
    mapped = outcome.logits.mapped_scores(outcome.fitted)
    np.testing.assert_allclose(mapped.confidence, outcome.chosen.scores.confidence, rtol=1e-5)


# --- the choice


@pytest.mark.slow
@pytest.mark.parametrize(("search", "objective"), [("auto", "nll"), ("none", "brier"), ("sparse", "ece")])
def test_auto_takes_what_the_rule_takes_of_all_that_was_compared(
    search: str, objective: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = run(toy(search, "auto", settings=replace(SETTINGS, objective=objective)))
    monkeypatch.setattr(crossfit, "_ENOUGH", 10**9)  # none is given up
    outcome = run(toy(search, "auto", settings=replace(SETTINGS, objective=objective)))
    assert fast.method == outcome.method
    assert set(fast.scores) <= set(outcome.scores)
    methods = {(method.tilted, method.map) for method in outcome.scores}
    plain = {(False, name) for name in ALL}
    expected = {"none": plain, "sparse": {(True, name) for name in ALL}}
    # on top of a tilted weight, not what redoes a refit; and none where no angle was better
    expected["auto"] = plain | (
        {(True, name) for name in ("none", "ts", "ets")} if len(methods) > len(plain) else set()
    )
    assert methods == expected[search]
    drop = SETTINGS.max_accuracy_drop if search == "sparse" else 0.0
    assert outcome.method == Rule(objective, SETTINGS.bins, drop).choose(outcome.scores, outcome.before)
    assert outcome.map != "none" or outcome.chosen.angle > 0  # logits are three times too large
    assert all(len(each) == N for each in outcome.scores.values())


def test_where_no_angle_is_better_nothing_tilted_is_compared() -> None:
    """Logits are too small: every tilt makes them smaller."""
    outcome = run(toy("auto", "auto", temperature=0.3, settings=BY_NLL))
    assert len(outcome.candidates) > 1
    assert outcome.candidates[choose(outcome.candidates, BY_NLL)].angle == 0
    assert not any(method.tilted for method in outcome.scores)
    assert outcome.map != "none"


def test_a_map_with_predictions_kept_takes_the_place_of_one_that_keeps_them() -> None:
    """Two shifts of one map: what changes predictions is fitted for it, and stays out of the choice."""
    clamps = ("bias", "svs")
    kept = run(toy("auto", "auto", settings=BY_NLL, predictions="keep", clamps=clamps))
    found = {method.map for method in kept.scores}
    assert all(name == "none" or MAPS[name].keeps_order for name in found)
    assert {name for name in found if name.startswith(CLAMPED)} <= {CLAMPED + name for name in clamps}
    assert not any(method.tilted for method in kept.scores)
    assert len(kept.candidates) == 1  # what may not be taken is not searched
    hits = kept.before.hit
    for method, scores in kept.scores.items():
        if method.clamped:
            np.testing.assert_array_equal(scores.hit, hits)
    np.testing.assert_array_equal(kept.logits.predictions(kept.fitted), kept.logits.predictions())


@pytest.mark.parametrize(("search", "name"), [("sparse", "ts"), ("none", "bias"), ("sparse", "auto")])
def test_what_was_asked_for_by_name_is_done_though_predictions_are_to_be_kept(search: str, name: str) -> None:
    outcome = run(toy(search, name, predictions="keep"))
    if search == "sparse":
        assert outcome.method.tilted
    if name != "auto":
        assert outcome.map == name


def test_a_given_map_may_go_with_either_weight() -> None:
    outcome = run(toy("auto", "ts", settings=BY_NLL))
    assert TS in outcome.scores
    assert {method.map for method in outcome.scores} == {"ts"}


# --- paths


def test_the_strength_of_a_refit_is_chosen_and_fitted_on_all_samples() -> None:
    outcome = run(toy("none", "refit", settings=BY_NLL))
    fitted = outcome.fitted
    assert isinstance(fitted, Refit)
    assert {method.map for method in outcome.scores} == {"refit"}
    assert fitted.strength == Refit.strengths[outcome.method.step]
    path = list(Refit.fit_path(outcome.logits.reduce(features=True)))
    np.testing.assert_array_equal(fitted.delta, path[outcome.method.step].delta)


def test_steps_that_only_a_flattered_weight_reaches_do_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path may end earlier on the weights that are searched again for each fold."""
    made: list[Scores] = []

    def fake(n: int, seed: int, fits: Any, *_: Any) -> Scores:
        before = toy("none", "none").logits_of(toy("none", "none").weight).scores()
        steps = (3, 1)[len(made)]
        tilted = {Method(tilted=True, map="refit", step=k): before for k in range(steps)}
        made.append(tilted if made else {Method(tilted=False, map="refit"): before, **tilted})
        return made[-1]

    monkeypatch.setattr(module, "cross_scores", fake)
    monkeypatch.setattr(Rule, "choose", lambda self, scores, before: max(scores, key=lambda m: (m.tilted, -m.step)))
    outcome = run(toy("auto", "refit", settings=BY_NLL))
    assert [(m.tilted, m.step) for m in outcome.scores] == [(False, 0), (True, 0)]


# --- maps


@pytest.mark.parametrize("name", ["none", "ts", "sms", "isotonic"])
def test_maps_that_read_no_features_need_no_head(name: str) -> None:
    strategy = toy("none", name, head=False)
    outcome = run(strategy)
    assert (outcome.weight, outcome.map) == (None, name)
    assert len(strategy.cross_fitted(outcome)) == N


def test_an_option_reaches_the_map_that_declares_it_and_no_other() -> None:
    options = {"ets_loss": "nll"}
    by_nll, by_square = (run(toy("none", "ets", options=each)) for each in (options, {"ets_loss": "squared"}))
    assert by_nll.parameters["weights"] != by_square.parameters["weights"]
    assert run(toy("none", "ts", options=options)).parameters == run(toy("none", "ts")).parameters


# ---- Logits of the source are computed once for all stages


def test_all_stages_share_the_logits_of_the_source(task: Task) -> None:
    first = task.logits(task.weight)
    assert task.logits(task.weight) is first
    assert task.logits(np.copy(task.weight)) is not first  # another weight, whatever its numbers
    held_out = replace(task.calibration)
    assert task.logits(task.weight, on=held_out) is not first
