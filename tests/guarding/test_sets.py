"""A penalty of their own for sets: smaller sets, the same coverage, thresholds from other samples."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.special import softmax

from tests.conftest import Small
from tests.guarding.conftest import guard
from tna_onnx.numerics.conformal import (
    conformal_quantile,
    coverage_band,
    rank_penalty,
    set_scores,
    set_sizes,
    small_set_penalty,
)


def drawn(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities that are right, of 8 classes."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, 8))
    labels = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    return softmax(z, axis=1), labels


def test_the_size_by_definition() -> None:
    p, labels = drawn(120)
    scores = np.array([[row[row > row[c]].sum() + row[c] / 2 for c in range(8)] for row in p])
    own = np.sort(scores[np.arange(120), labels])
    limit = own[int(np.ceil(121 * 0.9)) - 1]
    found = set_sizes(p, labels, 0.9, np.zeros(8), allow_empty=True)
    np.testing.assert_allclose(found.mean(), (scores <= limit + 1e-6).sum(axis=1).mean(), atol=0.02)


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_penalty_has_the_smallest_sets_of_its_choices(level: float) -> None:
    p, labels = drawn(1500)
    free, weight = small_set_penalty(p, labels, level)
    ranks = 1 + np.sum(p > p[np.arange(1500), labels][:, None], axis=1)
    assert free in (1, conformal_quantile(ranks, level))
    size = set_sizes(p, labels, level, rank_penalty(8, free, weight)).mean()
    for other in (0.001, 0.01, 0.1, 0.5):
        assert size <= set_sizes(p, labels, level, rank_penalty(8, free, other)).mean()


@pytest.mark.parametrize(("penalty", "level"), [(np.zeros(8), 0.9), (rank_penalty(8, 2, 0.05), 0.6)])
def test_no_sample_loses_the_likeliest_class_by_being_surer(penalty: np.ndarray, level: float) -> None:
    p, labels = drawn(400)
    order, scores = set_scores(p, penalty)
    threshold = conformal_quantile(scores[np.arange(400), np.argmax(order == labels[:, None], axis=1)], level)
    sizes = []
    for temperature in (4.0, 1.0, 0.25, 0.05):
        held = set_scores(softmax(np.log(p) / temperature, axis=1), penalty)[1] <= threshold
        assert held[:, 0].all()
        sizes.append(held.sum(axis=1))
    # more classes of a sample only where the model is less sure of it
    assert all((surer <= less).all() for less, surer in itertools.pairwise(sizes))


@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
def test_the_penalty_is_fitted_to_half_of_the_samples(small: Small, score: str) -> None:
    found = guard(small.model, small.calib, add=["set"], set_score=score, eval=small.test)
    assert found.fitted_on == (750 if score == "raps" else 0)
    assert (found.set_penalty > 0) == (score == "raps")
    # of fewer samples that give the threshold, the band is wider
    assert found.decisions.coverage >= coverage_band(1500 - found.fitted_on, 0.95, 1500, 0.999)[0]
    assert found.decisions.empty_sets == 0
