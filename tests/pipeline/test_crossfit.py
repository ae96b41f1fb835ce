"""Cross-fitting: each sample is scored once, by what was fitted and chosen without it, and the choice on that."""

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.pipeline.toys import SETTINGS, Fits, run, toy
from tests.pipeline.toys import N as FEW
from tna_onnx.engine.logits import HeadLogits
from tna_onnx.errors import DataError
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.maps import MAPS
from tna_onnx.maps.base import CalibrationMap
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline import crossfit
from tna_onnx.pipeline.crossfit import Fit, Scores, chosen_per_fold, cross_scores, folds
from tna_onnx.pipeline.methods import FOLDS, INPUT, Method, Rule
from tna_onnx.pipeline.strategy import Strategy

Array = NDArray[Any]

SEED = 4
N = 603
TS = Method(tilted=False, map="ts")
BIAS = Method(tilted=False, map="bias")


def data(samples: int = N, n: int = 16, classes: int = 4) -> tuple[Array, NDArray[np.int64], Array, Array]:
    """Features, labels, weight and bias of a classifier whose logits are twice too large."""
    rng = np.random.default_rng([samples, n, classes])
    features = rng.normal(size=(samples, n))
    honest = 2 * rng.normal(size=(classes, n)) / math.sqrt(n)
    labels = (features @ honest.T + rng.gumbel(size=(samples, classes))).argmax(axis=1)
    return features.astype(np.float32), labels, (2 * honest).astype(np.float32), np.zeros(classes, np.float32)


def logits_of(labels: NDArray[np.int64] | None = None) -> HeadLogits:
    features, drawn, weight, bias = data()
    return HeadLogits(FeatureTable(features, drawn if labels is None else labels), weight, bias)


class Maps(Fits):
    """Fits of maps by name, which keeps what was fitted for each fold."""

    def __init__(self, *names: str, labels: NDArray[np.int64] | None = None) -> None:
        super().__init__({Method(tilted=False, map=name): functools.partial(self._fit, name) for name in names})
        self.logits = logits_of(labels)
        self.fitted: dict[tuple[str, int], CalibrationMap | None] = {}
        self.masks: list[Array] = []

    def __call__(self, k: int, train: Array) -> Iterator[tuple[Method, Iterator[Fit]]]:
        self.masks.append(train)
        return super().__call__(k, train)

    def _fit(self, name: str, k: int, train: Array) -> tuple[HeadLogits, CalibrationMap | None]:
        self.fitted[name, k] = None if name == "none" else MAPS[name].fit(self.logits.reduce(train))
        return self.logits, self.fitted[name, k]

    def scores(self) -> Scores:
        return cross_scores(N, SEED, self)


def equal(one: SampleScores, other: SampleScores) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True))


# --- folds


@pytest.mark.parametrize("n", [1, 4, 5, 17, 1000])
def test_folds_are_of_nearly_equal_size_and_drawn_by_the_seed(n: int) -> None:
    fold = folds(n, 3)
    sizes = np.bincount(fold, minlength=FOLDS)
    assert sizes.sum() == n
    assert sizes.max() - sizes.min() <= 1
    np.testing.assert_array_equal(folds(n, 3), fold)
    assert n < 17 or not np.array_equal(folds(n, 4), fold)


# --- scores


def test_every_sample_is_left_out_once_and_scores_are_in_the_order_of_the_samples() -> None:
    maps = Maps("none", "ts")
    scores = maps.scores()
    np.testing.assert_array_equal(np.sum(maps.masks, axis=0), FOLDS - 1)
    for k, train in enumerate(maps.masks):
        np.testing.assert_array_equal(train, folds(N, SEED) != k)
    # without a map, cross-fitted scores are the scores
    assert equal(scores[INPUT], maps.logits.scores())


# --- of very many samples


def test_a_fit_sees_so_many_samples_at_most_and_all_are_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crossfit, "SEEN", 125)
    maps = Maps("ts")
    scores = maps.scores()[TS]
    assert len(scores) == N
    fold = folds(N, SEED)
    for k, seen in enumerate(maps.masks):
        assert seen.sum() == 100
        assert not np.any(seen & (fold == k))
        own = MAPS["ts"].fit(maps.logits.reduce(seen))
        assert maps.fitted["ts", k] == own
        held = fold == k
        assert equal(scores.take(held), maps.logits.mapped_scores(own, held))
    # at random, and in order of the folds
    chosen = crossfit.fit_rows(N, SEED)
    np.testing.assert_array_equal(fold[chosen], np.repeat(range(FOLDS), 25))
    assert not np.array_equal(chosen[:25], np.flatnonzero(fold == 0)[:25])
    assert not np.array_equal(np.sort(chosen), np.sort(crossfit.fit_rows(N, SEED + 1)))
    again = Maps("ts")
    assert equal(again.scores()[TS], scores)


# --- what cannot be fitted


def refusing(name: str, fold: int | None) -> Fits:
    """Fits of `ts` and of a map that cannot be fitted without one fold, or any."""
    maps = Maps("ts")

    def refuse(k: int, _: Array) -> tuple[HeadLogits, None]:
        if fold in (None, k):
            raise DataError(f"no {name}")
        return maps.logits, None

    return Fits({Method(tilted=False, map=name): refuse, **maps.made})


@pytest.mark.parametrize("fold", [None, 0, 3])
def test_a_map_that_fails_is_no_candidate(fold: int | None) -> None:
    failed: dict[Method, str] = {}
    scores = cross_scores(N, SEED, refusing("ets", fold), failed=failed)
    assert list(scores) == [TS]
    assert list(failed) == [Method(tilted=False, map="ets")]
    # the first of the folds is named
    assert failed[Method(tilted=False, map="ets")].startswith(f"without fold {(fold or 0) + 1} of 5: ")
    assert equal(scores[TS], cross_scores(N, SEED, Maps("ts"))[TS])


@pytest.mark.parametrize("fails", [False, True])
def test_what_lost_against_a_method_that_fails_later_comes_back(*, fails: bool) -> None:
    rival, loser = (Method(tilted=False, map=name) for name in ("ets", "bias"))
    maps = Maps("ts")

    def fit(k: int, train: Array) -> tuple[HeadLogits, CalibrationMap]:
        if fails and k == FOLDS - 1:
            raise DataError("no ets")
        return maps.logits, MAPS["ts"].fit(maps.logits.reduce(train))

    scores = cross_scores(N, SEED, Fits({rival: fit, loser: lambda *_: (maps.logits, Temperature(9))}))
    assert list(scores) == [loser if fails else rival]


def test_where_none_can_be_fitted_the_first_reason_is_given() -> None:
    """A fold holds the only error: without it, all are right."""
    features, _, weight, bias = data()
    labels = (features @ weight.T + bias).argmax(axis=1)
    labels[7] = (features @ weight.T + bias).argmin(axis=1)[7]
    with pytest.raises(DataError, match=r"^cross-fitting: without fold \d of 5: .*sample is classified right"):
        cross_scores(N, SEED, Maps("ts", labels=labels))


# --- paths

SCALES = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 8.0)


def refit(step: int) -> Method:
    return Method(tilted=False, map="refit", step=step)


class Path:
    """A path of temperatures, best at 2, which keeps how far it was asked for."""

    def __init__(self, best: Iterable[float] = (2.0,) * FOLDS, scales: Iterable[float] = SCALES) -> None:
        self.logits = logits_of()
        self.best = tuple(best)
        self.scales = tuple(scales)
        self.reached = [0] * FOLDS

    def __call__(self, k: int, train: Array) -> Iterator[tuple[Method, Iterator[Fit]]]:
        yield refit(0), self._steps(k)

    def _steps(self, k: int) -> Iterator[Fit]:
        for step, scale in enumerate(self.scales):
            self.reached[k] = step
            yield refit(step), self.logits, Temperature(scale * 2 / self.best[k])


def test_only_steps_that_all_folds_share_stay() -> None:
    """In one fold the same steps go twice as far, so that it is left earlier; later folds take no more steps."""
    path = Path((2.0, 2.0, 1.0, 2.0, 2.0))
    scores = cross_scores(N, SEED, path)
    assert path.reached[2] < min(path.reached[:2])
    assert path.reached[3:] == [path.reached[2]] * 2
    assert list(scores) == [refit(step) for step in range(path.reached[2] + 1)]
    for each in scores.values():
        assert len(each) == N


@pytest.mark.parametrize(("last", "folds_with_it"), [(2.2, FOLDS), (50.0, 1)])
def test_a_last_step_that_has_clearly_lost_is_not_fitted_again(
    last: float, folds_with_it: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crossfit, "_ENOUGH", 2)
    path = Path(scales=(2.0, last))
    scores = cross_scores(N, SEED, path)
    assert path.reached == [1] * folds_with_it + [0] * (FOLDS - folds_with_it)
    assert list(scores) == [refit(step) for step in range(2 if folds_with_it == FOLDS else 1)]


# --- the choice


def spoilt(scores: Scores, fold: int) -> Scores:
    """The same scores but those of one fold, which are drawn at random."""
    rng = np.random.default_rng(fold)
    held = folds(N, SEED) == fold
    changed = {}
    for method, each in scores.items():
        nll, hit = each.nll.copy(), each.hit.copy()
        nll[held] = rng.gamma(2, 5, int(held.sum()))
        hit[held] = rng.random(int(held.sum())) < 0.1
        changed[method] = SampleScores(each.confidence, hit, nll, each.brier)
    return changed


@pytest.mark.parametrize("fold", [0, 3])
def test_scores_of_a_fold_have_no_part_in_its_choice(fold: int) -> None:
    scores = Maps("none", "ts", "bias").scores()
    before = scores[INPUT]
    chosen = chosen_per_fold(scores, before, Rule(), SEED)
    changed = spoilt(scores, fold)
    assert chosen_per_fold(changed, changed[INPUT], Rule(), SEED)[fold] == chosen[fold]


# --- Of very many samples, searches and fits of folds see some; all are scored, and the final fit sees all


Rows = NDArray[np.intp]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Rows:
    """150 of the 300 samples."""
    monkeypatch.setattr(crossfit, "SEEN", FEW // 2)
    return crossfit.fit_rows(FEW, SETTINGS.seed)


def alone(strategy: Strategy) -> Strategy:
    """Return the strategy that has nothing but the part."""
    return replace(strategy, logits_of=strategy.part.logits_of, part=None)


@pytest.mark.parametrize(("search", "map_"), [("sparse", "ts"), ("complete", "ts"), ("complete", "bias")])
def test_a_search_finds_what_it_finds_on_the_part_alone(search: str, map_: str, seen: Rows) -> None:
    strategy = toy(search, map_, seen=seen)
    found = run(strategy)
    few = run(alone(strategy))
    assert len(found.candidates) > 1
    assert len(found.before) == FEW
    for mine, its in zip(found.candidates, few.candidates, strict=True):
        assert (mine.angle, mine.ensemble_size) == (its.angle, its.ensemble_size)
        np.testing.assert_array_equal(mine.scores.nll, its.scores.nll)
    assert found.chosen.angle == few.chosen.angle
    # the final fit sees all
    on_all = MAPS[map_].fit(found.logits.reduce())
    assert found.fitted.brief == on_all.brief
    assert found.fitted.brief != few.fitted.brief
    # what the report shows of the chosen pair is what is written
    assert found.chosen in found.candidates
    if search == "complete":
        assert found.chosen.fitted is found.fitted


def test_every_sample_is_scored_by_fits_to_the_part_of_the_other_folds(seen: Rows) -> None:
    strategy = toy("none", "auto", seen=seen)
    outcome = run(strategy)
    fold = folds(FEW, SETTINGS.seed)
    logits = strategy.logits_of(strategy.weight)
    few = strategy.part.logits_of(strategy.weight)
    for method, scores in outcome.scores.items():
        if method.map not in ("ts", "bias", "none"):
            continue
        assert len(scores) == FEW
        for k in range(FOLDS):
            fitted = None if method.map == "none" else MAPS[method.map].fit(few.reduce(fold[seen] != k))
            expected = logits.mapped_scores(fitted, fold == k)
            # a fit starts at that of the last fold
            np.testing.assert_allclose(scores.take(fold == k).nll, expected.nll, rtol=1e-5)
    final = outcome.logits.mapped_scores(outcome.fitted)
    assert len(final) == FEW
