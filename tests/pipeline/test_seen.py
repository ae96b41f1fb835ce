"""Of very many samples, searches and fits of folds see some; all are scored, and the final fit sees all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.pipeline.toys import BY_NLL, SETTINGS, N, run, toy
from tna_onnx.maps import MAPS
from tna_onnx.pipeline import crossfit
from tna_onnx.pipeline.crossfit import folds
from tna_onnx.pipeline.methods import FOLDS
from tna_onnx.pipeline.strategy import Strategy

Rows = NDArray[np.intp]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Rows:
    """150 of the 300 samples."""
    monkeypatch.setattr(crossfit, "SEEN", N // 2)
    return crossfit.fit_rows(N, SETTINGS.seed)


def alone(strategy: Strategy) -> Strategy:
    """Return the strategy that has nothing but the part."""
    assert strategy.part is not None
    return replace(strategy, logits_of=strategy.part.logits_of, part=None)


@pytest.mark.parametrize(("search", "map_"), [("sparse", "ts"), ("complete", "ts"), ("complete", "bias")])
def test_a_search_finds_what_it_finds_on_the_part_alone(search: str, map_: str, seen: Rows) -> None:
    strategy = toy(search, map_, seen=seen)
    found = run(strategy)
    few = run(alone(strategy))
    assert len(found.candidates) > 1
    assert len(found.before) == N
    for mine, its in zip(found.candidates, few.candidates, strict=True):
        assert (mine.angle, mine.ensemble_size) == (its.angle, its.ensemble_size)
        np.testing.assert_array_equal(mine.scores.nll, its.scores.nll)
    assert found.chosen.angle == few.chosen.angle
    # the final fit sees all
    on_all = MAPS[map_].fit(found.logits.reduce())
    assert found.fitted is not None
    assert found.fitted.brief == on_all.brief
    assert few.fitted is not None
    assert found.fitted.brief != few.fitted.brief
    # what the report shows of the chosen pair is what is written
    assert found.chosen in found.candidates
    if search == "complete":
        assert found.chosen.fitted is found.fitted


def test_labels_that_are_not_seen_have_no_say_in_the_search(seen: Rows) -> None:
    others = np.ones(N, bool)
    others[seen] = False
    first, second = (run(toy("sparse", "none", seen=seen, relabelled=rows)) for rows in (None, others))
    for mine, its in zip(first.candidates, second.candidates, strict=True):
        assert mine.angle == its.angle
        np.testing.assert_array_equal(mine.scores.nll, its.scores.nll)
    assert not np.array_equal(first.before.nll, second.before.nll)


def test_every_sample_is_scored_by_fits_to_the_part_of_the_other_folds(seen: Rows) -> None:
    strategy = toy("none", "auto", seen=seen)
    outcome = run(strategy)
    fold = folds(N, SETTINGS.seed)
    logits = strategy.logits_of(strategy.weight)
    assert strategy.part is not None
    few = strategy.part.logits_of(strategy.weight)
    for method, scores in outcome.scores.items():
        if method.map not in ("ts", "bias", "none"):
            continue
        assert len(scores) == N
        for k in range(FOLDS):
            fitted = None if method.map == "none" else MAPS[method.map].fit(few.reduce(fold[seen] != k))
            expected = logits.mapped_scores(fitted, fold == k)
            np.testing.assert_array_equal(scores.take(fold == k).nll, expected.nll)
    final = outcome.logits.mapped_scores(outcome.fitted)
    assert len(final) == N


@pytest.mark.parametrize(("search", "map_"), [("none", "ts"), ("sparse", "ts"), ("complete", "ts"), ("auto", "auto")])
def test_labels_of_a_fold_do_not_touch_its_own_scores(search: str, map_: str, seen: Rows) -> None:
    held = folds(N, BY_NLL.seed) == 3

    def confidences(relabelled: Any) -> NDArray[Any]:
        strategy = toy(search, map_, seen=seen, relabelled=relabelled, settings=BY_NLL)
        return strategy.cross_fitted(run(strategy)).confidence

    before, after = confidences(None), confidences(held)
    if map_ != "auto":  # what is chosen for a fold has seen how far all of them got
        np.testing.assert_array_equal(before[held], after[held])
    assert before.shape == after.shape == (N,)
