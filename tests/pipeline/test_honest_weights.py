"""Scores of a tilted weight come from a search that has not seen the samples that they are of."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.pipeline.toys import BY_NLL, SETTINGS, TNA, TS, N, run, toy
from tna_onnx.maps import MAPS
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline import crossfit
from tna_onnx.pipeline import strategy as module
from tna_onnx.pipeline.crossfit import folds
from tna_onnx.pipeline.methods import FOLDS, Choice, Method, Rule
from tna_onnx.pipeline.strategy import Strategy
from tna_onnx.search.candidates import Scorer, candidate_weight, choose
from tna_onnx.search.sparse import search_sparse


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


@pytest.mark.parametrize("wanted", [TNA, TS])
def test_weights_are_searched_again_where_a_tilted_one_would_be_chosen(
    wanted: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[int] = []

    def spy(scored: Scorer, given: Any, progress: Any, rows: Any) -> Any:
        searches.append(N if rows is None else int(np.sum(rows)))
        return search_sparse(scored, given, progress, rows)

    monkeypatch.setattr(module, "search_sparse", spy)
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
    searches = []

    def spy(*given: Any) -> Any:
        searches.append(1)
        return search_sparse(*given)

    asked: list[int] = []

    def choose_once(self: Rule, scores: Any, before: SampleScores) -> Method:
        asked.append(len(before))
        return TNA if len(asked) == 3 else TS

    monkeypatch.setattr(module, "search_sparse", spy)
    monkeypatch.setattr(Rule, "choose", choose_once)
    outcome = run(toy("auto", "auto", allowed=("none", "ts"), settings=BY_NLL))
    assert len(searches) == 1 + FOLDS
    assert outcome.method == TS
