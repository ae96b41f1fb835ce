"""Copies among samples: pairs that are planted are found, others are not, and groups are connected components."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from tna_onnx.numerics.copies import connected, equal_pairs, near_copies, order_dependence


def blobs(n: int, dimensions: int, classes: int = 10, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return Gaussian features (n, dimensions) around a mean for each class, and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    return rng.standard_normal((classes, dimensions))[labels] + rng.standard_normal((n, dimensions)), labels


@given(st.integers(1, 40), st.data())
def test_groups_are_the_connected_components(n: int, data: st.DataObject) -> None:
    index = st.integers(0, n - 1)
    links = data.draw(st.lists(st.tuples(index, index), max_size=60))
    pairs = np.array(links, np.int64).reshape(-1, 2)
    matrix = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(n, n))
    _, component = connected_components(matrix, directed=False)
    groups = connected(n, pairs)
    # one group a component, named by its first sample
    np.testing.assert_array_equal(groups, [np.flatnonzero(component == each)[0] for each in component])


@given(st.lists(st.integers(0, 5), max_size=50))
def test_equal_digests_are_one_group(digests: list[int]) -> None:
    values = np.array(digests, np.uint64)
    groups = connected(len(values), equal_pairs(values))
    assert len(np.unique(groups)) == len(set(digests))
    for group in np.unique(groups):
        assert len(np.unique(values[groups == group])) == 1


@pytest.mark.parametrize(("dimensions", "seed"), [(16, 0), (64, 1), (512, 2)])
def test_independent_samples_are_no_copies(dimensions: int, seed: int) -> None:
    features, _labels = blobs(2000, dimensions, seed=seed)
    assert len(near_copies(features)) == 0


@pytest.mark.parametrize(("copies", "dimensions"), [(2, 256), (4, 16), (10, 64)])
def test_noisy_copies_are_found(copies: int, dimensions: int) -> None:
    features, _labels = blobs(250, dimensions)
    rng = np.random.default_rng(1)
    repeated = np.repeat(features, copies, axis=0)
    noisy = repeated + 0.02 * rng.standard_normal(repeated.shape)
    groups = connected(len(noisy), near_copies(noisy))
    np.testing.assert_array_equal(groups, np.repeat(np.arange(250) * copies, copies))


def test_order_and_scale_of_the_samples_do_not_matter() -> None:
    features, _labels = blobs(600, 32)
    features[100:150] = features[:50] + 0.05 * np.random.default_rng(2).standard_normal((50, 32))
    pairs = {tuple(pair) for pair in near_copies(features).tolist()}
    assert pairs == {(k, k + 100) for k in range(50)}
    order = np.random.default_rng(3).permutation(600)
    moved = {tuple(sorted(order[pair].tolist())) for pair in near_copies(1000 * features[order])}
    assert moved == pairs


def test_a_few_among_many_are_found() -> None:
    features, _labels = blobs(4000, 64)
    features[2000:3000] = features[:1000] + 0.01
    assert len(near_copies(features)) == 1000


def test_features_that_are_all_the_same_tell_nothing() -> None:
    assert len(near_copies(np.ones((100, 16)))) == 0


def test_few_features_or_samples_tell_nothing() -> None:
    assert len(near_copies(np.zeros((100, 15)))) == 0
    assert len(near_copies(np.zeros((15, 16)))) == 0


def test_rare_classes_are_searched_together() -> None:
    features, _labels = blobs(400, 64, classes=200)
    features[100:120] = features[:20] + 0.001
    assert near_copies(features).tolist() == [[k, k + 100] for k in range(20)]


def test_a_single_pair_may_be_chance() -> None:
    features, _labels = blobs(400, 64)
    features[7] = features[3] + 0.001
    assert len(near_copies(features)) == 0


def test_kinds_within_a_class_are_no_copies() -> None:
    """Twenty well separated kinds: samples of one are much closer to each other than to the rest."""
    for spread in (1.0, 0.3, 0.1):
        centres = np.random.default_rng(1).standard_normal((20, 32))
        kind = np.arange(2000) % 20
        noise = np.random.default_rng(2).standard_normal((2000, 32))
        assert len(near_copies(centres[kind] + spread * noise)) == 0


def test_copies_are_found_in_tight_classes_too() -> None:
    rng = np.random.default_rng(4)
    first = rng.standard_normal((1, 64)) + 0.5 * rng.standard_normal((300, 64))
    second = rng.standard_normal((300, 64)) * 1.0 + 3
    features = np.concatenate([first, second])
    noisy = features + 0.02 * rng.standard_normal(features.shape)
    pairs = near_copies(np.concatenate([features, noisy]))
    np.testing.assert_array_equal(pairs[:, 1] - pairs[:, 0], 600)
    assert len(pairs) >= 590


def test_equal_features_of_unequal_samples_are_no_copies() -> None:
    bits = np.random.default_rng(5).integers(0, 2, (1500, 20)).astype(np.float32)
    assert len(near_copies(bits)) == 0


def test_very_wide_features_take_little_memory() -> None:
    assert len(near_copies(np.random.default_rng(6).standard_normal((20, 100_000)).astype(np.float32))) == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_features_count_where_they_are_no_chance(dtype: type[np.floating]) -> None:
    features = blobs(300, 32)[0].astype(dtype)
    features[200:250] = features[:50]
    features[250:] = 0
    assert len(near_copies(features)) == 0
    assert near_copies(features, equal=True).tolist() == [[k, k + 200] for k in range(50)]


@pytest.mark.parametrize("ordered", ["shuffled", "by class"])
@pytest.mark.parametrize("offset", [0.0, 2.0])
def test_independent_samples_hardly_ever_look_like_sequences(ordered: str, offset: float) -> None:
    """At most 1 % of 200 sets, though the model prefers a class."""
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(200):
        logits = 1.5 * rng.standard_normal((400, 5))
        labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        if ordered == "by class":
            order = np.argsort(labels, kind="stable")
            logits, labels = logits[order], labels[order]
        predicted = (logits + offset * (np.arange(5) == 0)).argmax(axis=1)
        alarms += order_dependence((predicted == labels) - 0.6, labels, predicted) > 4
    assert alarms <= 2


@pytest.mark.parametrize("shared", ["difficulty", "classes"])
def test_sequences_in_file_order_are_seen_and_not_when_shuffled(shared: str) -> None:
    """Ten samples each share how hard they are, or which classes are mistaken for which."""
    rng = np.random.default_rng(1)
    noise = rng.standard_normal((100, 5)).repeat(10, axis=0)
    logits = 1.5 * rng.standard_normal((1000, 5))
    scale, added = (np.exp(1.5 * noise[:, :1]), 0) if shared == "difficulty" else (1, 1.2 * noise)
    labels = (scale * logits + added + rng.gumbel(size=logits.shape)).argmax(axis=1)
    predicted = logits.argmax(axis=1)
    residuals = (predicted == labels) - 0.6
    order = rng.permutation(1000)
    assert order_dependence(residuals, labels, predicted) > 4
    assert order_dependence(residuals[order], labels[order], predicted[order]) < 4
