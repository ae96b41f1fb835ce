"""Intervals and tests of class frequencies: coverage, false alarms, and what they are there to see."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.numerics.test_prior_shift import FloatArray, posterior, world
from tna_onnx.numerics.prior_shift import (
    Observed,
    disagreement,
    fit_em,
    invertible,
    p_of_distance,
    p_of_normal,
    redraw,
    surprise,
    unexplained,
)

CLASSES = 4


def observed(seed: int, q: FloatArray, *, old: int = 400, new: int = 400, changed: float = 0.0) -> Observed:
    """Samples under p and q of a world whose probabilities are right; `changed` mixes in samples of no class."""
    likelihood, p = world(1, CLASSES, sharp=2.5)
    rng = np.random.default_rng(seed)
    labels = rng.choice(CLASSES, old, p=p)
    kinds = np.array([rng.choice(len(likelihood), p=likelihood[:, y]) for y in labels])
    mixed = (1 - changed) * likelihood @ q + changed / len(likelihood)
    seen = posterior(likelihood, p)
    old_seen = seen[kinds]
    new_seen = seen[rng.choice(len(likelihood), new, p=mixed)]
    return Observed(labels, old_seen.argmax(axis=1), old_seen.max(axis=1), new_seen, p, counted=False)


def p_values(found: Observed, draws: int = 50) -> tuple[float, float]:
    em = fit_em(found.probabilities, found.source).priors[0]
    drawn = redraw(found, em, draws, 0, with_black_box=True)
    assert drawn.unexplained is not None
    first = p_of_distance(unexplained(found, em), drawn.unexplained)
    return first, p_of_normal(surprise(found, em), drawn.surprise)


Q = np.array([0.55, 0.25, 0.15, 0.05])


def test_false_alarms_are_as_rare_as_they_say() -> None:
    """Of 40 runs at a level of 10 %, at most 10: more have a probability of 0.4 % where the level holds."""
    found = np.array([p_values(observed(seed, Q)) for seed in range(40)])
    assert np.all(np.count_nonzero(found < 0.1, axis=0) <= 10)


def test_frequencies_at_the_edge_are_no_other_kind_of_shift() -> None:
    """One class for nearly all, where the black box is cut off at 0: of 40 runs at 1 %, at most 3."""
    found = [p_values(observed(seed, np.array([0.97, 0.01, 0.01, 0.01])), draws=150)[0] for seed in range(40)]
    assert np.count_nonzero(np.array(found) < 0.01) <= 3


def test_intervals_hold_the_frequencies() -> None:
    held = []
    for seed in range(40):
        each = observed(seed, Q)
        em = fit_em(each.probabilities, each.source).priors[0]
        drawn = redraw(each, em, 60, 0, with_black_box=False)
        low, high = np.quantile(drawn.em, [0.05, 0.95], axis=0)
        held.append((low <= Q) & (high >= Q))
    # 90 % intervals, 40 runs: below 75 % has a probability of 0.3 % for a class
    assert np.all(np.mean(held, axis=0) >= 0.75)


def test_samples_of_no_class_are_seen() -> None:
    assert min(p_values(observed(0, Q, changed=0.5, new=2000))) < 0.01


def test_counted_frequencies_have_noise_of_their_own() -> None:
    each = observed(0, Q, old=200)
    em = fit_em(each.probabilities, each.source).priors[0]
    known = redraw(each, em, 100, 0, with_black_box=False)
    counted = Observed(
        each.labels, each.old_predicted, each.old_confidence, each.probabilities, each.source, counted=True
    )
    assert redraw(counted, em, 100, 0, with_black_box=False).em.std() > known.em.std()


@pytest.mark.parametrize(
    ("labels", "predicted", "reason"),
    [
        (np.repeat([0, 1], 50), np.repeat([0, 1], 50), ""),
        (np.repeat([0, 1], 50), np.tile([0, 1], 50), "singular"),
        (np.zeros(9, np.int64), np.zeros(9, np.int64), "class 1 has no sample"),
    ],
)
def test_whether_the_confusion_matrix_can_be_inverted(
    labels: NDArray[np.int64], predicted: NDArray[np.int64], reason: str
) -> None:
    n = len(labels)
    found = Observed(labels, predicted, np.ones(n), np.full((5, 2), 0.5), np.full(2, 0.5), counted=False)
    assert (reason in invertible(found, 0)) if reason else not invertible(found, 0)


def test_a_class_that_a_draw_loses_keeps_its_column() -> None:
    labels = np.array([0] * 30 + [1])
    found = Observed(labels, labels, np.ones(31), np.eye(2)[[0] * 20 + [1] * 5], np.full(2, 0.5), counted=True)
    drawn = redraw(found, np.array([0.8, 0.2]), 50, 0, with_black_box=True)
    assert drawn.black_box is not None
    assert np.all(np.isfinite(drawn.black_box))
    assert np.all(np.isfinite(drawn.surprise))


def test_the_p_values_by_their_definitions() -> None:
    assert p_of_distance(np.array([1.0, -1.0]), np.array([[1.0, -1.0]] * 9)) == pytest.approx(0.1)
    assert p_of_distance(np.zeros(2), np.array([[1.0, -1.0]] * 9)) == 1
    assert p_of_normal(1.959964, np.array([-1.0, 1.0])) == pytest.approx(0.05, abs=1e-6)
    assert p_of_normal(0.0, np.zeros(3)) == 1
    assert p_of_normal(0.1, np.zeros(3)) == 0
    assert disagreement(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 1
