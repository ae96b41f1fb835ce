"""Roll-up: numbers of groups, the rule by brute force, thresholds level by level, and how often promises are broken."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import binom

from tna_onnx.numerics.conformal import accept_above
from tna_onnx.numerics.roll_up import RollUp, level_thresholds

LEVELS = ("species", "genus", "family")
MEMBERS = [["lion", "wolf", "tiger", "fox", "dog"], ["cat", "dog", "cat", "fox", "dog"], ["f", "c", "f", "c", "c"]]
RULE = RollUp.of(LEVELS, MEMBERS)


def sums(p: np.ndarray) -> np.ndarray:
    """Probabilities of classes and groups."""
    return np.concatenate([p, p @ RULE.sums], axis=1).astype(np.float32)


def test_groups_are_numbered_by_their_first_class() -> None:
    assert RULE.groups.tolist() == [[0, 1, 2, 3, 4], [5, 6, 5, 7, 6], [8, 9, 8, 9, 9]]
    assert RULE.names == ("cat", "dog", "fox", "f", "c")
    assert RULE.place.tolist() == [0] * 5 + [1] * 3 + [2] * 2
    assert not RULE.wrong


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([[0, 1, 2, 3, 4], [5, 5, 6, 6, 7], [8, 9, 8, 9, 9]], "one genus is in several"),
        ([[0, 1, 2, 3, 4], [6, 5, 6, 7, 5], [8, 9, 8, 9, 9]], "numbers"),
        ([[0, 1, 2, 3, 4], [5, 6, 5, 7, 6], [8, 8, 8, 8, 8]], "numbers"),
        ([[0, 1, 2, 3, 4], [5, 6, 5, 7, 6]], "at least one level"),
    ],
)
def test_what_are_no_levels(groups: list[list[int]], message: str) -> None:
    assert message in RollUp(LEVELS, np.array(groups), RULE.names).wrong


def test_the_first_level_that_is_sure_enough_answers() -> None:
    rng = np.random.default_rng(0)
    p = sums(softmax(3 * rng.standard_normal((500, 5)), axis=1))
    t = np.array([0.7, 0.8, 0.9], np.float32)
    expected = []
    for row in p:
        answer = -1
        for level in (2, 1, 0):
            groups = [g for g in range(10) if RULE.place[g] == level]
            best = max(groups, key=lambda g: row[g])
            if row[best] >= t[level]:
                answer = best
        expected.append(answer)
    assert RULE.decide(p, t).tolist() == expected
    assert {*np.append(RULE.place, -1)[expected]} == {-1, 0, 1, 2}


def drawn(rng: np.random.Generator, n: int, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, and labels from those at a temperature; classes of one genus are often confused."""
    genus, family = np.array([0, 1, 0, 2, 1]), np.array([0, 1, 0, 1, 1])
    z = rng.standard_normal((n, 5)) + 3 * rng.standard_normal((n, 3))[:, genus]
    z += 3 * rng.standard_normal((n, 2))[:, family]
    labels = (softmax(z, axis=1).cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return sums(softmax(z * temperature, axis=1)), np.minimum(labels, 4)


def test_thresholds_are_those_of_accept_on_what_is_left() -> None:
    p, labels = drawn(np.random.default_rng(1), 3000, 1.5)
    thresholds, counts = level_thresholds(RULE, p, labels, 0.1, 0.05)
    left = np.ones(len(p), bool)
    for level, t in enumerate(thresholds):
        own = np.flatnonzero(RULE.place == level)
        best = own[p[:, own].argmax(axis=1)]
        accepted = accept_above(p[left][:, own].max(axis=1), (best == RULE.groups[level, labels])[left], 0.1, 0.05)
        assert counts[level] == left.sum()
        assert accepted is not None
        assert t == np.float32(accepted.threshold)
        left &= p[:, own].max(axis=1) < t


def test_a_group_of_all_classes_needs_no_samples() -> None:
    rule = RollUp.of(("class", "all"), [["0", "1"], ["x", "x"]])
    p = np.array([[0.5, 0.5, 1.0]] * 3, np.float32)
    thresholds, _ = level_thresholds(rule, p, np.array([0, 1, 0]), 0.05, 0.05)
    assert thresholds.tolist() == [2.0, 0.0]
    assert rule.decide(p, thresholds).tolist() == [2, 2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_promises_are_rarely_broken(temperature: float) -> None:
    """Of 300 draws, no more than chance would make of 5 %, with a probability of 0.1 %."""
    pool, truth = drawn(np.random.default_rng(2), 40_000, temperature)
    broken, answered = np.zeros(3, int), np.zeros(3, int)
    for seed in range(300):
        p, labels = drawn(np.random.default_rng(seed), 1000, temperature)
        thresholds, _ = level_thresholds(RULE, p, labels, 0.1, 0.05)
        decided = RULE.decide(pool, thresholds)
        for level in range(3):
            at = np.flatnonzero((decided >= 0) & (RULE.place[decided] == level))
            if len(at):
                answered[level] += 1
                broken[level] += np.mean(decided[at] != RULE.groups[level, truth[at]]) > 0.1
    assert answered.min() > 50
    assert broken.max() <= binom.isf(0.001, 300, 0.05)
