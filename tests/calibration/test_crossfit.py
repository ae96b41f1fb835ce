"""Cross-fitting: each sample is scored once, by what was chosen and fitted without it."""

import functools
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tna_onnx.calibration.crossfit import FOLDS, choose_map, cross_fit, cross_score, folds
from tna_onnx.engine.logits import HeadLogits, score_all
from tna_onnx.errors import DataError
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.maps import MAPS
from tna_onnx.maps.base import CalibrationMap, Reduce, apply_map
from tna_onnx.maps.ensemble_temperature import EnsembleTemperature
from tna_onnx.numerics.metrics import ece
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.search.candidates import Candidate, candidate_weight, choose
from tna_onnx.search.settings import SearchSettings
from tna_onnx.search.sparse import search_sparse

Array = NDArray[Any]
SETTINGS = SearchSettings(angle_step=15.0, max_ensemble_size=40, seed=4)


def data(samples: int = 600, n: int = 16, classes: int = 4) -> tuple[Array, NDArray[np.int64], Array, Array]:
    """Features, labels, weight and bias of a classifier whose logits are twice too large."""
    rng = np.random.default_rng([samples, n, classes])
    features = rng.normal(size=(samples, n))
    honest = 2 * rng.normal(size=(classes, n)) / math.sqrt(n)
    labels = (features @ honest.T + rng.gumbel(size=(samples, classes))).argmax(axis=1)
    return features.astype(np.float32), labels, (2 * honest).astype(np.float32), np.zeros(classes, np.float32)


class Run:
    """One cross-fit, with the maps it fitted and the candidates it took, fold by fold."""

    def __init__(
        self,
        features: Array,
        labels: NDArray[np.int64],
        weight: Array,
        bias: Array,
        name: str | None = "ts",
        settings: SearchSettings = SETTINGS,
    ) -> None:
        self.store, self.weight, self.bias, self.name, self.settings = (
            FeatureTable(features, labels),
            weight,
            bias,
            name,
            settings,
        )
        self.candidates = search_sparse(
            weight,
            lambda weights: score_all([HeadLogits(self.store, w, bias) for w in weights]),
            settings,
            lambda *_: None,
        )
        self.maps: list[CalibrationMap | None] = []
        self.rows: list[int] = []
        self.before, self.after = cross_fit(self.candidates, self.logits_of, self.fit, settings)

    def logits_of(self, candidate: Candidate) -> HeadLogits:
        return HeadLogits(self.store, candidate_weight(self.weight, candidate, self.settings), self.bias)

    def fit(self, reduce: Reduce) -> CalibrationMap | None:
        self.rows.append(reduce(lambda _, labels, *__: len(labels)))
        self.maps.append(None if self.name is None else MAPS[self.name].fit(reduce))
        return self.maps[-1]

    @property
    def fold(self) -> Array:
        return folds(len(self.store), self.settings.seed)

    @property
    def order(self) -> Array:
        """Rows in the order of the scores."""
        return np.concatenate([np.flatnonzero(self.fold == k) for k in range(FOLDS)])


@functools.cache
def plain(name: str | None = "ts") -> Run:
    return Run(*data(), name=name)


def equal(one: SampleScores, other: SampleScores) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True))


@pytest.mark.parametrize("samples", [600, 601, 603])
def test_every_sample_once_in_folds_of_nearly_equal_size(samples: int) -> None:
    run = Run(*data(samples))
    assert len(run.before) == len(run.after) == samples
    assert sorted(run.order) == list(range(samples))
    assert [samples - rows for rows in run.rows] == [int(np.sum(run.fold == k)) for k in range(FOLDS)]
    assert max(run.rows) - min(run.rows) <= 1
    # every label is there: which of them were hit before is known from the original weight
    assert equal(run.before, run.candidates[0].scores.take(run.order))


def test_each_fold_is_scored_by_the_choice_and_the_map_of_the_others() -> None:
    run = plain("ets")
    features, labels = run.store.features, run.store.labels
    start = 0
    for k, fitted in enumerate(run.maps):
        held = run.fold == k
        chosen = choose(run.candidates, run.settings, ~held)
        weight = candidate_weight(run.weight, run.candidates[chosen], run.settings)
        train = (features[~held] @ weight.T + run.bias, labels[~held], None)
        expected = EnsembleTemperature.fit(lambda of, train=train: of(*train))
        assert fitted is not None
        # rows are multiplied in another block: float32 logits differ by a few 2^-24 of 10, the fit by less
        for name, value in vars(expected).items():
            np.testing.assert_allclose(getattr(fitted, name), value, rtol=1e-4, atol=1e-4)
        scores = SampleScores.of_logits(apply_map(fitted, features[held] @ weight.T + run.bias), labels[held])
        part = run.after.take(np.arange(start, start + len(scores)))
        np.testing.assert_array_equal(part.hit, scores.hit)
        np.testing.assert_allclose(part.nll, scores.nll, rtol=1e-4, atol=1e-5)  # as above
        start += len(scores)


@pytest.mark.parametrize("name", ["ts", "ets"])
@pytest.mark.parametrize("fold", range(FOLDS))
def test_labels_of_a_fold_do_not_touch_its_own_map(name: str, fold: int) -> None:
    features, labels, weight, bias = data()
    run = plain(name)
    held = run.fold == fold
    changed = labels.copy()
    changed[held] = np.random.default_rng(fold).integers(0, 4, int(held.sum()))
    other = Run(features, changed, weight, bias, name)
    # which angles are tried depends on all samples and is shared by all folds: keep those of the first search
    pool = _scored(other, run.candidates)
    maps: list[CalibrationMap | None] = []

    def fit(reduce: Reduce) -> CalibrationMap | None:
        maps.append(MAPS[name].fit(reduce))
        return maps[-1]

    _, after = cross_fit(pool, other.logits_of, fit, SETTINGS)
    assert maps[fold] == run.maps[fold]
    assert all(maps[k] != run.maps[k] for k in range(FOLDS) if k != fold)  # the others did see them
    mine = held[run.order]
    np.testing.assert_array_equal(after.confidence[mine], run.after.confidence[mine])


def _scored(run: Run, pool: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """The same candidates, scored with the labels of a run."""
    return tuple(Candidate(c.angle, c.ensemble_size, c.rotations, run.logits_of(c).scores()) for c in pool)


def test_features_of_a_fold_do_not_touch_its_own_map() -> None:
    features, labels, weight, bias = data()
    run, moved = plain(), features.copy()
    held = run.fold == 2
    moved[held] = moved[held][::-1]
    maps: list[CalibrationMap | None] = []
    store = FeatureTable(moved, labels)

    def logits_of(candidate: Candidate) -> HeadLogits:
        return HeadLogits(store, candidate_weight(weight, candidate, SETTINGS), bias)

    def fit(reduce: Reduce) -> CalibrationMap | None:
        maps.append(MAPS["ts"].fit(reduce))
        return maps[-1]

    pool = tuple(Candidate(c.angle, c.ensemble_size, c.rotations, logits_of(c).scores()) for c in run.candidates)
    cross_fit(pool, logits_of, fit, SETTINGS)
    # BLAS may multiply the other rows of a changed block in the same way only: equal, not close
    assert maps[2] == run.maps[2]


def test_without_map_and_search_nothing_changes() -> None:
    features, labels, weight, bias = data()
    logits = HeadLogits(FeatureTable(features, labels), weight, bias)
    original = (Candidate(0.0, 1, 0.0, logits.scores()),)
    before, after = cross_fit(original, lambda _: logits, lambda _: None, SETTINGS)
    assert equal(before, after)


def test_the_result_is_better_than_the_input() -> None:
    run = plain()
    # twice too large logits: ECE of about 0.15 before; a plug-in ECE of 600 calibrated samples is about 0.04
    assert ece(run.after) < 0.7 * ece(run.before)


def test_the_seed_draws_the_folds() -> None:
    features, labels, weight, bias = data()
    again = Run(features, labels, weight, bias)
    other = Run(features, labels, weight, bias, settings=SearchSettings(angle_step=15.0, max_ensemble_size=40, seed=5))
    assert equal(plain().after, again.after)
    assert not np.array_equal(plain().order, other.order)


def test_logits_of_a_candidate_are_computed_once() -> None:
    run = plain()
    asked: list[Candidate] = []

    def logits_of(candidate: Candidate) -> HeadLogits:
        asked.append(candidate)
        return run.logits_of(candidate)

    cross_fit(run.candidates, logits_of, lambda _: None, SETTINGS)
    assert len(asked) == len({id(c) for c in asked}) <= FOLDS


def test_a_fold_that_cannot_be_fitted() -> None:
    """A fold holds the only error: the others are all right."""
    features, _, weight, bias = data()
    labels = (features @ weight.T).argmax(axis=1)
    labels[7] = (features @ weight.T).argmin(axis=1)[7]
    with pytest.raises(DataError, match="every calibration sample is classified right"):
        Run(features, labels, weight, bias)


@pytest.mark.parametrize("n", [1, 4, 5, 17, 1000])
def test_folds_are_of_nearly_equal_size_and_drawn_by_the_seed(n: int) -> None:
    fold = folds(n, 3)
    sizes = np.bincount(fold, minlength=FOLDS)
    assert sizes.sum() == n
    assert sizes.max() - sizes.min() <= 1
    np.testing.assert_array_equal(folds(n, 3), fold)
    assert n < 17 or not np.array_equal(folds(n, 4), fold)


def test_cross_score_asks_for_each_fold_with_the_others() -> None:
    features, labels, weight, bias = data(603)
    logits = HeadLogits(FeatureTable(features, labels), weight, bias)
    asked: list[Array] = []

    def propose(train: Array) -> tuple[HeadLogits, None]:
        asked.append(train)
        return logits, None

    scores, rows = cross_score(603, 9, propose)
    assert len(asked) == FOLDS
    np.testing.assert_array_equal(np.sum(asked, axis=0), FOLDS - 1)  # each sample is left out once
    np.testing.assert_array_equal(rows, np.concatenate([np.flatnonzero(~train) for train in asked]))
    assert equal(scores, logits.scores().take(rows))


def test_maps_are_compared_by_their_cross_validated_nll() -> None:
    features, labels, weight, bias = data()
    logits = HeadLogits(FeatureTable(features, labels), weight, bias)

    def refuse(reduce: Reduce) -> CalibrationMap | None:
        raise DataError("no")

    fits = {"none": lambda _: None, "refused": refuse, "ts": MAPS["ts"].fit}
    values = choose_map(600, logits, fits, seed=4)
    assert list(values) == ["ts", "none"]  # the best first: logits are twice too large
    assert values["ts"] < values["none"]
    nll = logits.scores().nll
    assert values["none"] == pytest.approx(float(np.mean(nll, dtype=np.float64)), rel=1e-12)  # 600 terms of float64
    held = folds(600, 4)
    by_hand = np.concatenate(
        [
            logits.mapped_scores(MAPS["ts"].fit(logits.reduce(held != k, features=True)), held == k).nll
            for k in range(FOLDS)
        ]
    )
    assert values["ts"] == float(np.mean(by_hand, dtype=np.float64))
    with pytest.raises(DataError, match="no map can be fitted"):
        choose_map(600, logits, {"refused": refuse}, seed=4)
