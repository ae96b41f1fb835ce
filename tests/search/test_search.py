"""The search over angles and ensemble sizes: what is tried, what is chosen, and that a candidate can be made again."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.numerics.bernoulli import equal
from tests.support import pairwise
from tna_onnx.engine.logits import HeadLogits, score_all
from tna_onnx.errors import UsageError
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.averages import LIMIT, Draws, averages
from tna_onnx.numerics.metric import Objective
from tna_onnx.numerics.metrics import metric_value
from tna_onnx.numerics.rotations import TiltParameters
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.search.candidates import Candidate, Score, Scorer, SearchSettings, candidate_weight, choose
from tna_onnx.search.sparse import search_complete, search_sparse

Array = NDArray[Any]
QUICK = SearchSettings(angle_step=6.0, max_ensemble_size=40)


@dataclass(frozen=True, eq=False)
class Classifier:
    """Gaussian features under a linear head whose logits are `temperature` times too large for its labels."""

    features: Array
    labels: NDArray[np.int64]
    weight: Array
    bias: Array

    @classmethod
    def make(
        cls, n: int = 64, classes: int = 5, samples: int = 900, temperature: float = 1.8, seed: int = 0
    ) -> "Classifier":
        rng = np.random.default_rng([n, classes, samples, seed])
        features = rng.normal(size=(samples, n))
        honest = 2 * rng.normal(size=(classes, n)) / math.sqrt(n)
        bias = 0.02 * rng.normal(size=classes)
        labels = (features @ honest.T + bias + rng.gumbel(size=(samples, classes))).argmax(axis=1)
        f32 = np.float32
        return cls(features.astype(f32), labels, (temperature * honest).astype(f32), (temperature * bias).astype(f32))

    def logits(self, weight: Array) -> HeadLogits:
        return HeadLogits(FeatureTable(self.features, self.labels), weight, self.bias)

    def score(self, weight: Array) -> SampleScores:
        return self.logits(weight).scores()

    def score_all(self, weights: Sequence[Array]) -> list[SampleScores]:
        return score_all([self.logits(weight) for weight in weights])

    def search(self, settings: SearchSettings) -> tuple[Candidate, ...]:
        return sparse(self.weight, self.score_all, settings)


def sparse(
    weight: Array,
    score: Score,
    settings: SearchSettings,
    score_scaled: Callable[[float], SampleScores] | None = None,
    rows: NDArray[np.bool_] | None = None,
) -> tuple[Candidate, ...]:
    return search_sparse(Scorer(settings.ensemble(weight), score, score_scaled), settings, lambda *_: None, rows)


class Recorder:
    """Scores with a classifier and keeps every weight that was asked for."""

    def __init__(self, classifier: Classifier) -> None:
        self._classifier = classifier
        self.seen: list[tuple[Array, SampleScores]] = []

    def __call__(self, weights: Sequence[Array]) -> list[SampleScores]:
        scores = self._classifier.score_all(weights)
        self.seen += zip(weights, scores, strict=True)
        return scores


@functools.cache
def searched(
    n: int, settings: SearchSettings
) -> tuple[Classifier, tuple[Candidate, ...], list[tuple[Array, SampleScores]]]:
    classifier = Classifier.make(n)
    score = Recorder(classifier)
    limit = classifier.logits(classifier.weight).scaled_scores
    return classifier, sparse(classifier.weight, score, settings, limit), score.seen


def value(candidate: Candidate, settings: SearchSettings) -> float:
    return metric_value(candidate.scores, settings.objective, settings.bins)


def members(candidate: Candidate) -> float:
    """Members of its ensemble; those of the limit are many."""
    return math.inf if candidate.ensemble_size == LIMIT else candidate.ensemble_size


def drop(candidates: Sequence[Candidate], chosen: Candidate) -> float:
    return float(np.mean(candidates[0].scores.hit)) - float(np.mean(chosen.scores.hit))


OBJECTIVES: tuple[Objective, ...] = ("ece", "adaece", "nll", "brier")


# ---- what is tried ----


@given(step=st.floats(0.05, 89.9))
@hypothesis_settings(deadline=None)
def test_any_grid_ascends_between_0_and_90(step: float) -> None:
    grid = SearchSettings(angle_step=step).grid
    assert all(a < b for a, b in itertools.pairwise([0, *grid, 90]))
    # the next multiple would be 90 or more, up to rounding of one product
    assert grid[-1] + step >= 90 * (1 - 1e-15)
    assert len(grid) == math.ceil(90 / step) - 1 or math.isclose(len(grid) * step, 90, rel_tol=1e-12)


@pytest.mark.parametrize(
    "wrong", [{"ensemble_size": -1}, {"angle_step": 0.0}, {"angle_step": 90.0}, {"angle_step": math.nan}]
)
def test_settings_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(wrong))} is out of its range"):
        SearchSettings(**wrong)


@pytest.mark.parametrize("n", [64, 128])
def test_an_adaptive_search_goes_from_coarse_to_fine(n: int) -> None:
    settings = SearchSettings(angle_step=1.0, grows=False, max_accuracy_drop=0.1)
    _, candidates, _ = searched(n, settings)
    angles = [c.angle for c in candidates]
    assert len(set(angles)) == len(angles)
    coarse = [a for a in angles if a % 8 == 0]
    assert angles[: len(coarse)] == [8.0 * k for k in range(len(coarse))]  # from below, without a gap
    chosen = candidates[choose(candidates, settings)]
    assert coarse[-1] > chosen.angle > 8
    assert {chosen.angle - 0.25, chosen.angle + 0.25} <= set(angles)  # as fine as it gets, on both sides
    full = searched(n, dataclasses.replace(settings, adaptive=False))[1]
    assert len(candidates) < len(full) / 2
    # one ECE bin of 900 samples holds 60: the curves jump by about a percent, and both searches see some jumps only
    assert value(chosen, settings) < value(full[choose(full, settings)], settings) + 0.005


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.1, 1.4, 1.8, 2.5, 4.0])
def test_a_smooth_curve_has_its_minimum_found(temperature: float) -> None:
    """In the limit of many members the NLL is a smooth curve with one minimum: both searches end at the same angle."""
    classifier = Classifier.make(64, temperature=temperature)
    settings = SearchSettings(objective="nll", ensemble_size=LIMIT, max_ensemble_size=LIMIT)
    some, every = (classifier.search(dataclasses.replace(settings, adaptive=a)) for a in (True, False))
    assert some[choose(some, settings)].angle == every[choose(every, settings)].angle > 0
    assert len(some) < len(every) / 2


@pytest.mark.parametrize(("n", "objective", "max_accuracy_drop"), pairwise([6, 24, 128], OBJECTIVES, [0.0, 0.003, 0.5]))
def test_the_choice_is_better_and_keeps_the_constraint(n: int, objective: Objective, max_accuracy_drop: float) -> None:
    settings = SearchSettings(
        angle_step=6.0, objective=objective, max_accuracy_drop=max_accuracy_drop, max_ensemble_size=40, seed=2
    )
    _, candidates, _ = searched(n, settings)
    chosen = candidates[choose(candidates, settings)]
    assert value(chosen, settings) <= value(candidates[0], settings)
    assert drop(candidates, chosen) <= max_accuracy_drop + 1e-12  # a difference of two means
    if n == 128:  # room enough to be better
        share = 0.8 if objective in ("ece", "adaece") else 1.0
        assert value(chosen, settings) < share * value(candidates[0], settings)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_of_the_largest_ensembles_the_best_is_chosen(objective: Objective) -> None:
    settings = SearchSettings(angle_step=6.0, objective=objective, max_ensemble_size=160)
    _, candidates, _ = searched(24, settings)
    chosen = candidates[choose(candidates, settings)]
    largest = max(map(members, candidates))
    allowed = [c for c in candidates if drop(candidates, c) <= settings.max_accuracy_drop + 1e-12]
    if members(chosen) == largest and chosen.angle > 0:
        allowed = [c for c in allowed if members(c) == largest or c.angle == 0]
    assert value(chosen, settings) == min(value(c, settings) for c in allowed)


def make_scores(hit: Sequence[bool], confidence: float) -> SampleScores:
    n = len(hit)
    c = np.full(n, confidence, np.float32)
    return SampleScores(c, np.array(hit), np.full(n, 1 - confidence, np.float32), np.zeros(n, np.float32))


def hits(right: int) -> list[bool]:
    return [True] * right + [False] * (100 - right)


SMALL = SearchSettings(bins=1, max_accuracy_drop=0.02)


def test_the_constraint_includes_its_border() -> None:
    """Accuracy 0.80; 0.78 is a drop of exactly 0.02, 0.77 is too much."""
    original = Candidate(0, 1, 0, make_scores(hits(80), 0.95))
    at, past = Candidate(10, 10, 5, make_scores(hits(78), 0.80)), Candidate(20, 10, 9, make_scores(hits(77), 0.77))
    assert choose([original, at, past], SMALL) == 1
    assert choose([original, past], SMALL) == 0


def test_equals_go_to_the_first() -> None:
    scores = make_scores(hits(80), 0.9)
    assert choose([Candidate(0, 1, 0, scores), Candidate(10, 10, 5, scores)], SMALL) == 0
    better = make_scores(hits(80), 0.82)
    pool = [Candidate(0, 1, 0, scores), Candidate(10, 10, 5, better), Candidate(20, 10, 5, better)]
    assert choose(pool, SMALL) == 1


def test_the_largest_ensemble_goes_first_while_it_is_better_than_the_original() -> None:
    original = Candidate(0, 1, 0, make_scores(hits(80), 0.95))
    lucky = Candidate(20, 10, 9, make_scores(hits(80), 0.80))
    large = Candidate(20, 40, 9, make_scores(hits(80), 0.85))
    worse = Candidate(20, 40, 9, make_scores(hits(80), 0.99))
    costly = Candidate(20, 40, 9, make_scores(hits(60), 0.60))
    assert choose([original, lucky, large], SMALL) == 2
    assert choose([original, lucky, worse], SMALL) == 1
    assert choose([original, lucky, costly], SMALL) == 1
    assert choose([original, worse, costly], SMALL) == 0
    assert choose([original], SMALL) == 0


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_choosing_by_rows_uses_no_other_row(objective: Objective) -> None:
    settings = SearchSettings(angle_step=6.0, objective=objective, max_ensemble_size=40)
    _, candidates, _ = searched(24, settings)
    rng = np.random.default_rng(0)
    mask = rng.random(len(candidates[0].scores)) < 0.6
    expected = choose(candidates, settings, mask)
    assert choose(candidates, settings, np.flatnonzero(mask)) == expected
    assert choose([_alone(c, mask) for c in candidates], settings) == expected
    for seed in range(5):
        rng = np.random.default_rng(seed)
        assert choose([_mutated(c, ~mask, rng) for c in candidates], settings, mask) == expected


def _alone(candidate: Candidate, rows: Array) -> Candidate:
    return Candidate(candidate.angle, candidate.ensemble_size, candidate.rotations, candidate.scores.take(rows))


def _mutated(candidate: Candidate, rows: NDArray[np.bool_], rng: np.random.Generator) -> Candidate:
    s, n = candidate.scores, len(candidate.scores)
    scores = SampleScores(
        np.where(rows, rng.uniform(0.2, 1, n), s.confidence).astype(np.float32),
        np.where(rows, rng.random(n) < 0.5, s.hit),
        np.where(rows, rng.uniform(0, 9, n), s.nll).astype(np.float32),
        np.where(rows, np.nan, s.brier).astype(np.float32),
    )
    return Candidate(candidate.angle, candidate.ensemble_size, candidate.rotations, scores)


# ---- more members ----


@pytest.mark.parametrize("cap", [10, 25, 40, 100, 640])
def test_short_features_get_more_members_up_to_the_cap_and_then_the_limit(cap: int) -> None:
    """n = 6: ten members cost accuracy, so the search asks for twice as many, and again, never past the cap."""
    settings = SearchSettings(angle_step=6.0, max_ensemble_size=cap, max_accuracy_drop=0.0, seed=1)
    _, candidates, _ = searched(6, settings)
    sizes = sorted({members(c) for c in candidates[1:]})
    allowed = sorted({10, *(min(32 * 2**k, cap) for k in range(6))})
    finite = [size for size in sizes if size < math.inf]
    assert finite == allowed[: len(finite)]
    assert cap == 10 or len(finite) > 1
    # the limit takes the place of more than the cap, and only of that
    if math.inf in sizes:
        assert finite[-1] == cap
        chosen = candidates[choose(candidates, settings)]
        assert members(chosen) in (cap, math.inf) or chosen.angle == 0


def test_the_limit_behind_the_cap_is_looked_at_around_the_target() -> None:
    settings = SearchSettings(angle_step=6.0, max_ensemble_size=25, max_accuracy_drop=0.0, seed=1)
    classifier, candidates, _ = searched(6, settings)
    behind = [c for c in candidates if members(c) == math.inf]
    assert len(behind) > 8
    scaled = classifier.logits(classifier.weight).scaled_scores
    for candidate in behind:
        expected = scaled(math.cos(math.radians(candidate.angle)))
        # weights are scaled here, and logits there: two float32 roundings of logits below 10
        np.testing.assert_allclose(candidate.scores.nll, expected.nll, rtol=0, atol=1e-5)
    chosen = candidates[choose(candidates, settings)]
    assert value(chosen, settings) == min(value(c, settings) for c in [candidates[0], *behind])


def test_a_level_of_more_members_lies_near_the_target() -> None:
    """Two grid steps to either side of the best angle of the limit, W' = cos(angle) W."""
    settings = SearchSettings(angle_step=6.0, max_ensemble_size=40, max_accuracy_drop=0.0, seed=1)
    classifier, candidates, _ = searched(6, settings)
    scaled = classifier.logits(classifier.weight).scaled_scores
    quarters = np.arange(1.5, 90, 1.5)
    limits = [candidates[0], *(Candidate(a, LIMIT, 0, scaled(math.cos(math.radians(a)))) for a in quarters)]
    target = limits[choose(limits, settings)].angle
    assert target > 12
    (check,) = (c.angle for c in candidates if c.ensemble_size == 32)  # more members are asked for at one angle
    level = [c.angle for c in candidates if c.ensemble_size == 40]
    assert level[0] == check  # and once they are enough, or as many as may be, at the others
    assert abs(check - target) <= 1.5  # the limit was looked at from coarse to fine
    near = [check + k for k in (-12, -6, -3, -1.5, 1.5, 3, 6, 12)]
    assert level[1 : 1 + len(near)] == [a for a in near if 0 < a < 90]
    assert all(a < near[0] or abs(a - check) < 12 for a in level[1 + len(near) :])  # smaller ones, or finer ones


# ---- candidates made again ----


@pytest.mark.parametrize(
    ("n", "settings"),
    [
        (64, QUICK),
        (6, SearchSettings(angle_step=12.0, max_ensemble_size=100, max_accuracy_drop=0.0, seed=1)),
        (24, SearchSettings(angle_step=12.0, ensemble_size=16, max_ensemble_size=17, max_accuracy_drop=0.0)),
        (24, SearchSettings(angle_step=12.0, ensemble_size=1, max_ensemble_size=33, tilt=TiltParameters(n_t=7))),
        (24, SearchSettings(angle_step=12.0, ensemble_size=LIMIT, max_ensemble_size=LIMIT)),
        (24, SearchSettings(angle_step=12.0, ensemble_size=10, max_ensemble_size=10, antithetic=True)),
        (24, SearchSettings(angle_step=12.0, ensemble_size=37, max_ensemble_size=37, antithetic=True)),
    ],
)
def test_a_candidate_can_be_made_again_bit_for_bit(n: int, settings: SearchSettings) -> None:
    classifier, candidates, seen = searched(n, settings)
    assert n > 6 or max(c.ensemble_size for c in candidates) > 16  # sums kept per group of 16 paths
    for candidate in candidates:
        again = candidate_weight(classifier.weight, replace(candidate, weight=None), settings)
        if candidate.ensemble_size != LIMIT:  # the limit is scored without its weight
            scored = next(weight for weight, scores in seen if scores is candidate.scores)
            np.testing.assert_array_equal(again, scored, strict=True)
    assert candidate_weight(classifier.weight, candidates[0], settings) is classifier.weight


@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("members", [5, 37])
def test_a_candidate_is_the_average_of_its_members(members: int, antithetic: bool) -> None:
    settings = SearchSettings(
        angle_step=30.0, ensemble_size=members, max_ensemble_size=members, antithetic=antithetic, seed=5
    )
    classifier, candidates, _ = searched(24, settings)
    for candidate in candidates[1:3]:
        average = next(averages(classifier.weight, [candidate.angle], members, Draws(5, antithetic)))
        assert (candidate.rotations, candidate.reached) == (average.rotations, average.reached)
        made = candidate_weight(classifier.weight, replace(candidate, weight=None), settings)
        np.testing.assert_array_equal(made, average.weight, strict=True)


# ---- the limit of many members ----


@pytest.mark.parametrize("cap", [LIMIT, 2560])
def test_in_the_limit_the_weight_is_scaled(cap: int) -> None:
    settings = SearchSettings(ensemble_size=LIMIT, max_ensemble_size=cap, angle_step=6.0)
    classifier, candidates, _ = searched(6, settings)
    assert {c.ensemble_size for c in candidates[1:]} == {LIMIT}
    assert {c.rotations for c in candidates} == {0.0}
    chosen = candidates[choose(candidates, settings)]
    assert chosen.angle > 0
    assert value(chosen, settings) == min(value(c, settings) for c in candidates if drop(candidates, c) <= 0.003)
    scaled = candidate_weight(classifier.weight, chosen, settings)
    expected = classifier.weight.astype(np.float64) * math.cos(math.radians(chosen.angle))
    np.testing.assert_allclose(scaled, expected, rtol=2.0**-22)  # the factor and the product are rounded to float32
    assert scaled.dtype == np.float32


# ---- the complete search ----


class Fitting:
    """Fits a temperature for a weight and scores with it; keeps what it was asked for."""

    def __init__(self, classifier: Classifier) -> None:
        self._classifier = classifier
        self.calls: list[tuple[Array, Any, SampleScores, Temperature]] = []

    def __call__(self, weight: Array, start: Any) -> tuple[SampleScores, Temperature]:
        logits = self._classifier.logits(weight)
        fitted = Temperature.fit(logits.reduce(), start=start)
        scores = logits.mapped_scores(fitted)
        self.calls.append((weight, start, scores, fitted))
        return scores, fitted


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_complete_search_scores_pairs(objective: Objective) -> None:
    classifier = Classifier.make(64)
    settings = SearchSettings(angle_step=12.0, objective=objective, max_accuracy_drop=0.01)
    fit, progress = Fitting(classifier), []
    candidates = search_complete(
        settings.ensemble(classifier.weight), fit, settings, lambda *call: progress.append(call)
    )
    assert len(fit.calls) == len(candidates)
    for candidate, (weight, _, scores, fitted) in zip(candidates, fit.calls, strict=True):
        np.testing.assert_array_equal(candidate_weight(classifier.weight, candidate, settings), weight, strict=True)
        assert equal(candidate.scores, scores)
        assert candidate.fitted is fitted
    assert candidates[0].angle == 0
    assert [c.angle for c in candidates[1:]][: len(settings.grid)] == pytest.approx(settings.grid)  # coarse enough
    # the ensemble keeps its size, and nothing is said about more
    assert {c.ensemble_size for c in candidates[1:]} == {settings.ensemble_size}
    chosen = candidates[choose(candidates, settings)]
    assert value(chosen, settings) <= value(candidates[0], settings)
    assert drop(candidates, chosen) <= settings.max_accuracy_drop + 1e-12  # a difference of two means
    assert progress[-1] == (len(candidates), len(candidates))
    assert [done for done, _ in progress] == sorted(done for done, _ in progress)


def test_fits_start_from_a_neighbour() -> None:
    classifier, settings = Classifier.make(64), SearchSettings(angle_step=12.0, max_accuracy_drop=0.1, seed=1)
    fit = Fitting(classifier)
    candidates = search_complete(settings.ensemble(classifier.weight), fit, settings, lambda *_: None)
    assert fit.calls[0][1] is None
    for k, (_, start, _, fitted) in enumerate(fit.calls[1:], start=1):
        nearest = min(abs(c.angle - candidates[k].angle) for c in candidates[:k])
        assert any(start is c.fitted and abs(c.angle - candidates[k].angle) == nearest for c in candidates[:k])
        assert candidates[k].fitted is fitted
    assert len(candidates) > 1 + len(settings.grid)  # finer angles too


def test_the_limit_of_many_members_may_come_from_logits_that_are_there() -> None:
    """scaled_scores gives what scoring the scaled weight gives, so the search is the same with either."""
    classifier = Classifier.make(24)
    logits = classifier.logits(classifier.weight)
    for scale in (0.99, 0.5, 0.05):
        quick = logits.scaled_scores(scale)
        full = classifier.score((classifier.weight * np.float32(scale)).astype(np.float32))
        np.testing.assert_array_equal(quick.hit, full.hit)
        # logits of about 10, each a float32 sum of 24 terms or such a sum scaled: 24 * 10 * 2^-24 = 1.4e-5
        np.testing.assert_allclose(quick.nll, full.nll, rtol=0, atol=5e-5)


def test_a_search_on_some_samples_makes_and_scores_nothing_twice() -> None:
    """The candidates are those of a search that has never seen the other samples, bit for bit."""
    settings = SearchSettings(angle_step=6.0, max_ensemble_size=40, max_accuracy_drop=0.0, seed=1, objective="nll")
    classifier = Classifier.make(6)
    score = Recorder(classifier)
    limit = classifier.logits(classifier.weight).scaled_scores
    scored = Scorer(settings.ensemble(classifier.weight), score, limit)
    fold = np.random.default_rng(0).permutation(len(classifier.labels)) % 3
    looked_at: set[tuple[float, int]] = set()
    for k in range(3):
        rows = fold != k
        found = search_sparse(scored, settings, lambda *_: None, rows)
        part = replace(classifier, features=classifier.features[rows], labels=classifier.labels[rows])
        alone = sparse(part.weight, part.score_all, settings, part.logits(part.weight).scaled_scores)
        assert [(c.angle, c.ensemble_size) for c in found] == [(c.angle, c.ensemble_size) for c in alone]
        assert all(equal(one.scores, other.scores) for one, other in zip(found, alone, strict=True))
        chosen = found[choose(found, settings)]
        np.testing.assert_array_equal(
            candidate_weight(classifier.weight, replace(chosen, weight=None), settings),
            candidate_weight(part.weight, replace(alone[choose(alone, settings)], weight=None), settings),
        )
        looked_at |= {(c.angle, c.ensemble_size) for c in found if c.ensemble_size != LIMIT}
    assert len(score.seen) == len(looked_at)


def test_scores_for_another_search_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not kept is made again, to the same bits."""
    settings = SearchSettings(angle_step=6.0, max_ensemble_size=40, max_accuracy_drop=0.0, seed=1)
    classifier = Classifier.make(6)
    expected = classifier.search(settings)
    monkeypatch.setattr("tna_onnx.search.candidates._KEPT_BYTES", 3 * 13 * 900)
    score = Recorder(classifier)
    scored = Scorer(settings.ensemble(classifier.weight), score)
    for _ in range(2):
        again = search_sparse(scored, settings, lambda *_: None)
        assert all(equal(one.scores, other.scores) for one, other in zip(again, expected, strict=True))
    assert len({weight.tobytes() for weight, _ in score.seen}) < len(score.seen)


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_search_ends_where_paths_do(adaptive: bool) -> None:
    """More tilt is better and better here, and the next coarse angle is past the end of the paths."""
    weight = Classifier.make(8, classes=3).weight
    scores = itertools.count()

    def score(weights: Sequence[Array]) -> list[SampleScores]:
        return [make_scores(hits(80), 0.99 - 0.001 * next(scores)) for _ in weights]

    for step in (2.0, 89.9):
        settings = SearchSettings(angle_step=step, adaptive=adaptive, ensemble_size=10, max_ensemble_size=10)
        assert sparse(weight, score, settings)
