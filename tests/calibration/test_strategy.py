"""What each search chooses and fits: against the minimum of the NLL that SciPy finds, and against one another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from tests.calibration.samples import probabilities
from tna_onnx.calibration import strategy as module
from tna_onnx.calibration.crossfit import FOLDS, Scores, folds
from tna_onnx.calibration.methods import INPUT, Method, Rule
from tna_onnx.calibration.outcome import Outcome
from tna_onnx.calibration.strategy import Strategy
from tna_onnx.engine.logits import HeadLogits, StoredLogits
from tna_onnx.errors import DataError
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.maps import MAPS
from tna_onnx.maps.refit import Refit
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.search.candidates import accuracy_drop, candidate_weight, choose
from tna_onnx.search.settings import SearchSettings
from tna_onnx.search.sparse import search_sparse

SETTINGS = SearchSettings(angle_step=30.0, ensemble_size=4, max_ensemble_size=8, max_accuracy_drop=0.01, seed=1)
BY_NLL = replace(SETTINGS, objective="nll")

N = 300
ALL = ("none", *(name for name in MAPS if not MAPS[name].binary))
FEATURELESS = tuple(name for name in ALL if name == "none" or not MAPS[name].needs_features)
TNA = Method(tilted=True, map="none")
TS = Method(tilted=False, map="ts")


def toy(
    search: str,
    name: str,
    *,
    head: bool = True,
    temperature: float = 3.0,
    relabelled: Any = None,
    settings: SearchSettings = SETTINGS,
    **fields: Any,
) -> Strategy:
    """Labels drawn at a temperature, on features (300, 12) or on their logits alone; some can be drawn anew."""
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((4, 12)).astype(np.float32)
    features = rng.standard_normal((N, 12)).astype(np.float32)
    logits = features @ weight.T
    labels = np.argmax(logits / temperature + rng.gumbel(size=logits.shape), axis=1)
    if relabelled is not None:
        labels[relabelled] = rng.integers(0, 4, int(np.sum(relabelled)))
    if not head:
        stored = StoredLogits(FeatureTable(logits, labels, 64))
        return Strategy(lambda _: stored, None, search, name, settings, **fields)
    table = FeatureTable(features, labels, 64)
    bias = np.zeros(4, np.float32)
    return Strategy(lambda w: HeadLogits(table, w, bias), weight, search, name, settings, **fields)


def run(strategy: Strategy) -> Outcome:
    return strategy.run(lambda *_: None)


def labels_of(outcome: Outcome) -> NDArray[np.int64]:
    return np.concatenate([labels for _, labels, _ in outcome.logits.chunks()])


@pytest.mark.parametrize(("search", "head"), [("none", True), ("none", False), ("sparse", True)])
def test_the_temperature_is_the_minimum_of_the_nll_on_the_weight_chosen(search: str, *, head: bool) -> None:
    strategy = toy(search, "ts", head=head)
    outcome = run(strategy)
    logits = outcome.logits.at(np.arange(300))
    rows, labels = np.arange(300), labels_of(outcome)

    def nll(log_temperature: float) -> float:
        return -float(np.mean(np.log(probabilities(logits / np.exp(log_temperature))[rows, labels])))

    best = np.exp(minimize_scalar(nll, bounds=(-3, 5), method="bounded", options={"xatol": 1e-9}).x)
    assert outcome.parameters["temperature"] == pytest.approx(best, rel=1e-4)  # the minimum is flat: root of rounding
    if search == "none":
        assert outcome.weight is strategy.weight
        assert len(outcome.candidates) == 1


@pytest.mark.parametrize("search", ["sparse", "complete"])
def test_the_choice_keeps_the_constraint_on_accuracy(search: str) -> None:
    outcome = run(toy(search, "ts"))
    drop, _ = accuracy_drop(outcome.before, outcome.chosen.scores)
    assert drop <= SETTINGS.max_accuracy_drop + 1e-12
    assert outcome.candidates[0].angle == 0
    assert outcome.chosen in outcome.candidates


def test_a_complete_search_scores_each_weight_with_its_own_map() -> None:
    outcome = run(toy("complete", "ts"))
    temperatures = {candidate.parameters["temperature"] for candidate in outcome.candidates}
    assert len(temperatures) == len(outcome.candidates) > 1
    assert outcome.fitted is outcome.chosen.fitted
    mapped = outcome.logits.mapped_scores(outcome.fitted)
    np.testing.assert_allclose(mapped.confidence, outcome.chosen.scores.confidence, rtol=1e-5)


def test_a_complete_search_without_a_map_is_the_sparse_one() -> None:
    sparse, complete = run(toy("sparse", "none")), run(toy("complete", "none"))
    assert [c.angle for c in sparse.candidates] == [c.angle for c in complete.candidates]
    assert (sparse.chosen.angle, sparse.fitted, sparse.parameters) == (complete.chosen.angle, None, {})
    np.testing.assert_array_equal(np.asarray(sparse.weight), np.asarray(complete.weight))


# --- the choice


@pytest.mark.parametrize("search", ["auto", "none", "sparse"])
@pytest.mark.parametrize("objective", ["nll", "brier", "ece"])
def test_auto_takes_what_the_rule_takes_of_all_that_was_compared(search: str, objective: Any) -> None:
    outcome = run(toy(search, "auto", settings=replace(SETTINGS, objective=objective)))
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


def test_auto_may_take_only_what_is_allowed() -> None:
    outcome = run(toy("none", "auto", allowed=("none", "ts", "bias"), settings=BY_NLL))
    assert {method.map for method in outcome.scores} == {"none", "ts", "bias"}
    assert run(toy("none", "auto", allowed=("none",))).unchanged


def test_a_calibrated_model_stays_as_it_is() -> None:
    outcome = run(toy("auto", "auto", temperature=1.0, settings=BY_NLL))
    assert outcome.method == INPUT
    assert outcome.unchanged
    assert outcome.parameters == {}


def test_where_no_angle_is_better_nothing_tilted_is_compared() -> None:
    """Logits are too small: every tilt makes them smaller."""
    outcome = run(toy("auto", "auto", temperature=0.3, settings=BY_NLL))
    assert len(outcome.candidates) > 1
    assert outcome.candidates[choose(outcome.candidates, BY_NLL)].angle == 0
    assert not any(method.tilted for method in outcome.scores)
    assert outcome.map != "none"


def test_predictions_are_kept() -> None:
    strategy = toy("auto", "auto", settings=BY_NLL, keep_predictions=True)
    outcome = run(strategy)
    assert {method.map for method in outcome.scores} == {
        name for name in ALL if name == "none" or MAPS[name].keeps_order
    }
    assert not any(method.tilted for method in outcome.scores)
    assert len(outcome.candidates) == 1  # what may not be taken is not searched
    np.testing.assert_array_equal(outcome.logits.predictions(outcome.fitted), outcome.logits.predictions())


@pytest.mark.parametrize(("search", "name"), [("sparse", "ts"), ("none", "bias"), ("sparse", "auto")])
def test_what_was_asked_for_by_name_is_done_though_predictions_are_to_be_kept(search: str, name: str) -> None:
    outcome = run(toy(search, name, keep_predictions=True))
    if search == "sparse":
        assert outcome.method.tilted
    if name != "auto":
        assert outcome.map == name


@pytest.mark.parametrize("search", ["none", "sparse", "complete"])
@pytest.mark.parametrize("name", ["ts", "bias"])
def test_one_search_and_one_map_are_taken_as_given(search: str, name: str) -> None:
    outcome = run(toy(search, name))
    assert outcome.scores == {}
    assert outcome.method == Method(tilted=search != "none", map=name)


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


# --- honest scores of tilted weights


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

        candidates = search_sparse(weight, score, strategy.settings, lambda *_: None)
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


@pytest.mark.parametrize("fold", [0, 3])
@pytest.mark.parametrize(("search", "name"), [("sparse", "ts"), ("sparse", "none"), ("complete", "ts")])
def test_labels_of_a_fold_touch_neither_its_weight_nor_its_map(search: str, name: str, fold: int) -> None:
    held = folds(N, SETTINGS.seed) == fold
    one, other = toy(search, name), toy(search, name, relabelled=held)
    confidences = [each.cross_fitted(run(each)).confidence for each in (one, other)]
    np.testing.assert_array_equal(confidences[0][held], confidences[1][held])
    assert not np.array_equal(confidences[0], confidences[1])  # the others did see them


@pytest.mark.parametrize("wanted", [TNA, TS])
def test_weights_are_searched_again_where_a_tilted_one_would_be_chosen(
    wanted: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[int] = []

    def spy(weight: Any, score: Any, *rest: Any) -> Any:
        searches.append(len(score([weight])[0]))
        return search_sparse(weight, score, *rest)

    monkeypatch.setattr(module, "search_sparse", spy)
    monkeypatch.setattr(Rule, "choose", lambda self, scores, before: wanted)
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
    searches = []

    def spy(weight: Any, score: Any, *rest: Any) -> Any:
        searches.append(1)
        return search_sparse(weight, score, *rest)

    asked: list[int] = []

    def choose_once(self: Rule, scores: Any, before: SampleScores) -> Method:
        asked.append(len(before))
        return TNA if len(asked) == 3 else TS

    monkeypatch.setattr(module, "search_sparse", spy)
    monkeypatch.setattr(Rule, "choose", choose_once)
    outcome = run(toy("auto", "auto", allowed=("none", "ts"), settings=BY_NLL))
    assert len(searches) == 1 + FOLDS
    assert outcome.method == TS


def test_without_a_search_and_a_map_the_scores_are_those_of_the_input() -> None:
    strategy = toy("none", "none")
    outcome = run(strategy)
    after = strategy.cross_fitted(outcome)
    for name, values in vars(outcome.before).items():
        np.testing.assert_array_equal(getattr(after, name), values)


# --- maps


@pytest.mark.parametrize("name", FEATURELESS)
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


def test_one_class_cannot_be_fitted() -> None:
    table = FeatureTable(np.ones((50, 3), np.float32), np.zeros(50, np.int64), 16)
    weight = np.ones((1, 3), np.float32)
    strategy = Strategy(lambda w: HeadLogits(table, w, np.zeros(1, np.float32)), weight, "none", "ts", SETTINGS)
    with pytest.raises(DataError):
        run(strategy)
