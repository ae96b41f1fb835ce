"""Recall by class and balanced accuracy: against scikit-learn, by simulation, and where samples come in clusters."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import balanced_accuracy_score, recall_score

from tna_onnx.numerics.operating_points import Recalls
from tna_onnx.numerics.scores import SampleScores

Array = NDArray[Any]


def scored(hit: Array, labels: Array | None = None, clusters: Array | None = None) -> SampleScores:
    values = np.zeros(len(hit), np.float32)
    return SampleScores(values, hit, values, values, clusters, labels=labels)


def drawn(seed: int, shares: Array, n: int = 400) -> tuple[Array, Array, Array]:
    """Labels with these shares, and predictions before and after, more often right than not."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(len(shares), n, p=shares)
    sides = [np.where(rng.random(n) < p, labels, rng.integers(0, len(shares), n)) for p in (0.6, 0.5)]
    return labels, *sides


def test_as_scikit_learn_has_them() -> None:
    labels, old, new = drawn(0, np.array([0.6, 0.3, 0.1]))
    found = Recalls.of(scored(old == labels, labels), scored(new == labels))
    for predicted, recall, balanced in (
        (old, found.before, found.balanced_before),
        (new, found.after, found.balanced_after),
    ):
        np.testing.assert_allclose(recall, recall_score(labels, predicted, average=None), rtol=1e-12)
        assert balanced == pytest.approx(balanced_accuracy_score(labels, predicted), rel=1e-12)
    np.testing.assert_array_equal(found.samples, np.bincount(labels))


def test_a_class_without_a_sample_has_no_recall() -> None:
    labels = np.array([0, 0, 3])
    found = Recalls.of(scored(np.array([True, False, True]), labels), scored(np.ones(3, bool)))
    assert found.classes.tolist() == [0, 3]
    assert found.after.tolist() == [1, 1]


def test_errors_are_those_of_means_of_changes() -> None:
    labels, old, new = drawn(1, np.array([0.5, 0.4, 0.1]))
    found = Recalls.of(scored(old == labels, labels), scored(new == labels))
    change = (new == labels).astype(float) - (old == labels)
    for c in range(3):
        own = change[labels == c]
        assert found.error[c] == pytest.approx(own.std() / np.sqrt(len(own)), rel=1e-12)
    assert found.balanced_error == pytest.approx(np.sqrt(np.sum(found.error**2)) / 3, rel=1e-12)


def test_of_several_labels_those_with_it_and_those_without() -> None:
    holds = np.array([[1, 0], [1, 1], [0, 1], [0, 0]], bool)
    before = np.array([[1, 1], [0, 1], [0, 1], [1, 1]], bool)
    after = holds
    sides = [
        SampleScores(
            *(np.zeros((4, 2), np.float32),), side == holds, *[np.zeros((4, 2), np.float32)] * 2, predicted=side
        )
        for side in (before, after)
    ]
    found = Recalls.of(*sides)
    assert found.classes.tolist() == [0, 1, 2, 3]
    assert found.before.tolist() == [0.5, 1.0, 0.5, 0.0]
    assert found.after.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.9, 0.1), (0.55, 0.25, 0.1, 0.06, 0.04)])
def test_intervals_hold_the_truth(shares: tuple[float, ...]) -> None:
    """Of the draws above, a change of recall is (0.5 - 0.6) (1 - 1 / C) whatever the class."""
    truth = -0.1 * (1 - 1 / len(shares))
    inside = []
    balanced = []
    for seed in range(400):
        labels, old, new = drawn(seed, np.array(shares))
        found = Recalls.of(scored(old == labels, labels), scored(new == labels))
        low, high = found.ends(1.96)
        inside.append((low <= truth) & (truth <= high))
        low, high = found.balanced_ends(1.96)
        balanced.append(low <= truth <= high)
    coverage = np.mean(inside, axis=0)
    # a standard error of a share of 400 runs is 1.1 points
    assert np.all((coverage > 0.92) & (coverage < 0.99)), coverage
    assert 0.92 < np.mean(balanced) < 0.985, np.mean(balanced)


@pytest.mark.parametrize("rare", [10, 30])
def test_an_interval_of_balanced_accuracy_allows_for_what_few_samples_of_a_class_do_not_show(rare: int) -> None:
    """Of a class of 10 samples nothing changes in a third of the draws, where 14 % are lost on average."""
    rng = np.random.default_rng(rare)
    sizes = np.array([2000, 300, 30, rare])
    won, lost = np.array([0.1, 0.1, 0.1, 0.0]), np.array([0.01, 0.01, 0.02, 0.2])
    truth = np.mean(0.3 * won - 0.7 * lost)
    inside = []
    for _ in range(400):
        labels = np.repeat(np.arange(4), rng.multinomial(sizes.sum(), sizes / sizes.sum()))
        old, draw = rng.random(len(labels)) < 0.7, rng.random(len(labels))
        new = np.where(old, draw >= lost[labels], draw < won[labels])
        low, high = Recalls.of(scored(old, labels), scored(new)).balanced_ends(1.96)
        inside.append(low <= truth <= high)
    assert np.mean(inside) > 0.91
