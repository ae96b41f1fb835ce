"""Operating points: thresholds against brute force and scikit-learn, bounds against the binomial distribution."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tna_onnx.numerics.operating_points import (
    DecisionRule,
    best_thresholds,
    bounded_threshold,
    confusion,
    crossfitted,
    goal_interval,
    goal_value,
    needed_for,
    reachable_bound,
)

metrics = pytest.importorskip("sklearn.metrics")

NO_COST = np.zeros((0, 0), np.float32)
POSITIVE = DecisionRule("positive", 1, NO_COST)

ORACLES = {
    "f1": lambda y, d: metrics.f1_score(y, d, zero_division=0),
    "macro-f1": lambda y, d: metrics.f1_score(y, d, average="macro", zero_division=0),
    "balanced-accuracy": metrics.balanced_accuracy_score,
    "mcc": metrics.matthews_corrcoef,
}


def two(scores: np.ndarray) -> np.ndarray:
    """Probabilities of two classes."""
    return np.stack([1 - scores, scores], axis=1).astype(np.float32)


@pytest.mark.parametrize("goal", ORACLES)
def test_goals_are_those_of_scikit_learn(goal: str) -> None:
    rng = np.random.default_rng(0)
    y, decided = rng.integers(0, 2, 300), rng.integers(0, 2, 300)
    # sums of counts in another order
    assert float(goal_value(confusion(decided, y, 2)[:, :2], goal)) == pytest.approx(
        ORACLES[goal](y, decided), rel=1e-9
    )
    if goal != "f1":
        y, decided = rng.integers(0, 7, 300), rng.integers(0, 7, 300)
        assert float(goal_value(confusion(decided, y, 7), goal)) == pytest.approx(ORACLES[goal](y, decided), rel=1e-9)


@given(
    st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=4, max_size=40).filter(
        lambda rows: len({row[1] for row in rows}) == 2 and len({row[0] for row in rows}) > 1
    ),
    st.sampled_from([*ORACLES]),
)
def test_no_threshold_is_better(rows: list[tuple[int, bool]], goal: str) -> None:
    """With ties: scores are eighths."""
    scores = np.array([row[0] for row in rows], np.float32) / 8
    y = np.array([row[1] for row in rows]).astype(np.int64)
    t = best_thresholds(POSITIVE, two(scores), y, goal)
    reached = ORACLES[goal](y, POSITIVE.decide(two(scores), t))
    # a threshold at or below the lowest score decides nothing, and is left out
    others = [ORACLES[goal](y, (scores >= cut).astype(np.int64)) for cut in np.unique(scores)[1:]]
    assert reached >= max(others) - 1e-9


@given(st.integers(1, 400), st.sampled_from([0.01, 0.05, 0.1, 0.5]), st.sampled_from([0.01, 0.05, 0.3]))
def test_a_bound_is_the_exact_rank(n: int, share: float, delta: float) -> None:
    """The threshold misses j - 1 of the samples, and j would be broken more often than delta."""
    scores = np.arange(1, n + 1, dtype=np.float32) / 500
    t = bounded_threshold(scores, np.ones(n, np.bool_), "recall", 1 - share, delta)
    j = np.arange(1, n + 1)
    ranks = j[stats.beta.sf(share, j, n - j + 1) <= delta]
    assert (t is None) == (not len(ranks))
    if t is not None:
        assert int(np.count_nonzero(scores < t)) == max(ranks) - 1
    mirrored = bounded_threshold(-scores, np.zeros(n, np.bool_), "fpr", share, delta)
    assert (mirrored is None) == (t is None)
    if mirrored is not None:
        assert int(np.count_nonzero(-scores >= mirrored)) == max(ranks) - 1


@pytest.mark.parametrize("bound", ["recall", "fpr"])
def test_as_many_samples_as_it_says_are_enough(bound: str) -> None:
    level = 0.95 if bound == "recall" else 0.05
    n = needed_for(bound, level, 0.05)
    holds = np.full(n, bound == "recall")
    scores = np.linspace(0, 1, n, dtype=np.float32)
    assert bounded_threshold(scores, holds, bound, level, 0.05) is not None
    assert bounded_threshold(scores[1:], holds[1:], bound, level, 0.05) is None
    best = reachable_bound(scores[1:], holds[1:], bound, 0.05)
    assert best is not None
    inside = best - 1e-6 if bound == "recall" else best + 1e-6
    assert bounded_threshold(scores[1:], holds[1:], bound, inside, 0.05) is not None


@pytest.mark.parametrize(("bound", "level"), [("recall", 0.9), ("precision", 0.8), ("fpr", 0.1)])
def test_bounds_are_broken_as_rarely_as_promised(bound: str, level: float) -> None:
    """300 draws, of which 5 % may break a promise of 95 % certainty."""
    rng = np.random.default_rng(1)
    norm = stats.norm
    broken = tested = 0
    for _ in range(300):
        y = rng.random(400) < 0.3
        z = rng.standard_normal(400) + 2 * y
        t = bounded_threshold(norm.cdf(z).astype(np.float32), y, bound, level, 0.05)
        if t is None:
            continue
        tested += 1
        cut = norm.ppf(float(t))
        recall, fpr = norm.sf(cut - 2), norm.sf(cut)
        precision = 0.3 * recall / max(0.3 * recall + 0.7 * fpr, 1e-12)
        broken += {"recall": recall < level, "precision": precision < level, "fpr": fpr > level}[bound]
    assert tested > 240
    assert stats.binomtest(broken, tested, 0.05, "greater").pvalue > 1e-3


def test_costs_are_least_where_the_probabilities_say() -> None:
    """With right probabilities, deciding by them costs what the definition gives, and abstaining is -1."""
    rng = np.random.default_rng(2)
    p = rng.dirichlet(np.ones(3), 500).astype(np.float32)
    cost = np.array([[0, 1, 2, 0.3], [1, 0, 1, 0.3], [5, 1, 0, 0.3]], np.float32)
    rule = DecisionRule("ratio", 2, cost)
    expected = (p.astype(np.float64) @ cost).argmin(axis=1)
    decided = rule.decide(p, np.ones(3, np.float32))
    np.testing.assert_array_equal(decided, np.where(expected == 3, -1, expected))
    y = rng.integers(0, 3, 500)
    value = goal_value(confusion(decided, y, 3), "cost", cost)
    assert -float(value) == pytest.approx(float(cost[y, np.where(decided < 0, 3, decided)].mean()), rel=1e-6)


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_an_interval_of_a_cost_is_that_of_the_number_of_errors(level: float) -> None:
    labels = np.arange(200) % 2
    decided = np.where(np.arange(200) < 40, 1 - labels, labels)
    rule = DecisionRule("ratio", 1, np.float32([[0, 1], [1, 0]]))
    value, low, high = goal_interval(rule, decided, labels, "cost", level, 2)
    most, least = stats.binom.ppf([(1 + level) / 2, (1 - level) / 2], 200, 0.2)
    assert value == pytest.approx(-0.2)
    # ends of 1,000 draws have a standard error of about a twentieth of the interval
    assert [-low * 200, -high * 200] == pytest.approx([most, least], abs=3)


@pytest.mark.slow
def test_intervals_hold_what_new_samples_reach() -> None:
    """Cross-fitted F1 with its interval, 100 draws; a correct 95 % interval misses more than 14 with p < 0.001."""
    rng = np.random.default_rng(3)

    def drawn(n: int) -> tuple[np.ndarray, np.ndarray]:
        y = (rng.random(n) < 0.2).astype(np.int64)
        return two(stats.norm.cdf(rng.standard_normal(n) + 1.5 * y)), y

    new, new_y = drawn(100_000)
    outside = 0
    for _ in range(100):
        p, y = drawn(500)
        _, low, high = goal_interval(POSITIVE, crossfitted(POSITIVE, p, y, "f1"), y, "f1", 0.95, 2)
        t = best_thresholds(POSITIVE, p, y, "f1")
        reached = metrics.f1_score(new_y, POSITIVE.decide(new, t))
        outside += not low <= reached <= high
    assert outside <= 14
