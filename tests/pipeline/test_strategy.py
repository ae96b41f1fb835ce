"""What each search chooses and fits, against one another and against the fits that it may choose from."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.pipeline.toys import BY_NLL, SETTINGS, TNA, TS, N, run, toy
from tna_onnx.maps import CLAMPED, MAPS, maps_of
from tna_onnx.maps.refit import Refit
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline import crossfit
from tna_onnx.pipeline import strategy as module
from tna_onnx.pipeline.crossfit import Scores, folds
from tna_onnx.pipeline.job import Task
from tna_onnx.pipeline.methods import FOLDS, Choice, Method, Rule
from tna_onnx.pipeline.strategy import Strategy
from tna_onnx.search.candidates import Scorer, candidate_weight, choose
from tna_onnx.search.sparse import search_sparse

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


# ---- Scores of a tilted weight come from a search that has not seen the samples that they are of


def weights_by_hand(strategy: Strategy) -> list[NDArray[Any]]:
    """The weight that a search on the samples outside of each fold chooses."""
    fold = folds(N, strategy.settings.seed)
    weight = strategy.weight
    assert weight is not None
    found = []
    for k in range(FOLDS):
        rows = fold != k

        def score(several: Any, rows: Any = rows) -> list[SampleScores]:
            return [strategy.logits_of(w).scores().take(rows) for w in several]

        candidates = search_sparse(
            Scorer(strategy.settings.ensemble(weight), score), strategy.settings, lambda *_: None
        )
        chosen = candidates[choose(candidates, strategy.settings)]
        found.append(candidate_weight(weight, chosen, strategy.settings))
    return found


def test_a_sparse_search_is_done_again_for_each_fold() -> None:
    strategy = toy("sparse", "ts")
    scores = strategy.cross_fitted(run(strategy))
    fold = folds(N, SETTINGS.seed)
    weights = weights_by_hand(strategy)
    assert len({w.tobytes() for w in weights}) > 1  # folds do differ
    for k, weight in enumerate(weights):
        logits = strategy.logits_of(weight)
        fitted = MAPS["ts"].fit(logits.reduce(fold != k))
        expected = logits.mapped_scores(fitted, fold == k)
        np.testing.assert_array_equal(scores.take(fold == k).confidence, expected.confidence)
        np.testing.assert_array_equal(scores.take(fold == k).hit, expected.hit)


@pytest.mark.parametrize(
    ("search", "name", "fold", "part"),
    [("sparse", "ts", 0, True), ("sparse", "none", 3, False), ("complete", "ts", 3, True), ("none", "ts", 0, False)],
)
def test_labels_of_a_fold_touch_neither_its_weight_nor_its_map(
    search: str, name: str, fold: int, part: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crossfit, "SEEN", N // 2 if part else N)
    seen = crossfit.fit_rows(N, SETTINGS.seed) if part else None
    held = folds(N, SETTINGS.seed) == fold
    one, other = (toy(search, name, seen=seen, relabelled=rows) for rows in (None, held))
    confidences = [each.cross_fitted(run(each)).confidence for each in (one, other)]
    np.testing.assert_array_equal(confidences[0][held], confidences[1][held])
    assert not np.array_equal(confidences[0], confidences[1])  # the others did see them


def searches_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Keep of each search on how many samples it is."""
    searches: list[int] = []

    def spy(scored: Scorer, given: Any, progress: Any, rows: Any) -> Any:
        searches.append(N if rows is None else int(np.sum(rows)))
        return search_sparse(scored, given, progress, rows)

    monkeypatch.setattr(module, "search_sparse", spy)
    return searches


@pytest.mark.parametrize("wanted", [TNA, TS])
def test_weights_are_searched_again_where_a_tilted_one_would_be_chosen(
    wanted: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = searches_of(monkeypatch)
    monkeypatch.setattr(Rule, "choice", lambda self, scores, before: Choice(wanted, {}))
    monkeypatch.setattr(Rule, "gains", lambda *_: True)
    strategy = toy("auto", "auto", allowed=("none", "ts"), settings=BY_NLL)
    outcome = run(strategy)
    assert searches[0] == N
    if not wanted.tilted:
        assert len(searches) == 1  # flattered ones were not good enough: nothing to be honest about
        return
    fold = folds(N, BY_NLL.seed)
    assert searches[1:] == [int(np.sum(fold != k)) for k in range(FOLDS)]
    for k, weight in enumerate(weights_by_hand(strategy)):
        expected = strategy.logits_of(weight).scores().take(fold == k)
        np.testing.assert_array_equal(outcome.scores[TNA].take(fold == k).nll, expected.nll)
    assert np.array_equal(strategy.cross_fitted(outcome).nll, outcome.scores[TNA].nll)


def test_the_choice_outside_of_one_fold_is_enough_to_search_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tilted weight that one fold would take: its estimate must not come from a weight that has seen the fold."""
    searches = searches_of(monkeypatch)
    asked: list[int] = []

    def choose_once(self: Rule, scores: Any, before: SampleScores) -> Method:
        asked.append(len(before))
        return TNA if len(asked) == 3 else TS

    monkeypatch.setattr(Rule, "choose", choose_once)
    outcome = run(toy("auto", "auto", allowed=("none", "ts"), settings=BY_NLL))
    assert len(searches) == 1 + FOLDS
    assert outcome.method == TS
