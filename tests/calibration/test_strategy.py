"""What each search chooses and fits: against the minimum of the NLL that SciPy finds, and against one another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from tests.calibration.samples import probabilities
from tna_onnx.calibration.strategy import Outcome, Strategy
from tna_onnx.engine.logits import HeadLogits, StoredLogits
from tna_onnx.errors import DataError
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.maps import MAPS
from tna_onnx.search.candidates import accuracy_drop
from tna_onnx.search.settings import SearchSettings

SETTINGS = SearchSettings(angle_step=30.0, ensemble_size=4, max_ensemble_size=8, max_accuracy_drop=0.01, seed=1)


def toy(search: str, name: str, *, head: bool = True, **fields: Any) -> Strategy:
    """Labels drawn at temperature 3, on features (300, 12) or on their logits alone."""
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((4, 12)).astype(np.float32)
    features = rng.standard_normal((300, 12)).astype(np.float32)
    logits = features @ weight.T
    labels = np.argmax(logits / 3 + rng.gumbel(size=logits.shape), axis=1)
    if not head:
        stored = StoredLogits(FeatureTable(logits, labels, 64))
        return Strategy(lambda _: stored, None, search, name, SETTINGS, **fields)
    table = FeatureTable(features, labels, 64)
    bias = np.zeros(4, np.float32)
    return Strategy(lambda w: HeadLogits(table, w, bias), weight, search, name, SETTINGS, **fields)


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


@pytest.mark.parametrize("search", ["none", "sparse", "complete"])
def test_auto_takes_the_smallest_nll_of_the_maps_that_it_may_take(search: str) -> None:
    outcome = run(toy(search, "auto", allowed=("none", "ts", "irova")))
    assert set(outcome.map_nll) == {"none", "ts", "irova"}
    assert outcome.map == min(outcome.map_nll, key=lambda name: outcome.map_nll[name]) == "ts"
    assert run(toy(search, "auto", allowed=("none",))).map == "none"


@pytest.mark.parametrize(
    "name", ["none", *(name for name in MAPS if not (MAPS[name].needs_features or MAPS[name].binary))]
)
def test_maps_that_read_no_features_need_no_head(name: str) -> None:
    strategy = toy("none", name, head=False)
    outcome = run(strategy)
    assert (outcome.weight, outcome.map) == (None, name)
    before, after = strategy.cross_fitted(outcome)
    assert len(before) == len(after) == 300


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
