"""Logits of several stores as one: the same as those of the parts, one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tna_onnx.engine.logits import HeadLogits, JoinedLogits
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.maps.refit import Refit

SIZES = (7, 1, 12)
N = sum(SIZES)
ZEROS = np.zeros(3, np.float32)


def parts() -> list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
    """(features, labels, weight) of each part."""
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> NDArray[Any]:
        return rng.standard_normal(shape).astype(np.float32)

    return [(draw(size, 4), rng.integers(0, 3, size), draw(3, 4)) for size in SIZES]


@pytest.fixture
def joined() -> JoinedLogits:
    return JoinedLogits([HeadLogits(FeatureTable(z, y, 64), w, ZEROS) for z, y, w in parts()])


def test_logits_labels_and_features_follow_one_another(joined: JoinedLogits) -> None:
    expected = np.concatenate([z @ w.T for z, _, w in parts()])
    labels = np.concatenate([y for _, y, _ in parts()])
    rows = np.array([0, 6, 7, 8, 19])
    assert len(joined) == N
    for _ in range(2):  # kept logits are the same
        np.testing.assert_array_equal(joined.at(np.arange(N)), expected)
        np.testing.assert_array_equal(joined.at(rows), expected[rows])
        joined.forget()
    np.testing.assert_array_equal(joined.predictions(), expected.argmax(axis=1))
    for scores in (joined.scores(), joined.mapped_scores(None)):
        np.testing.assert_array_equal(scores.hit, expected.argmax(axis=1) == labels)
    half = np.arange(N) % 2 == 0
    assert joined.mapped_scores(None, half).confidence.tolist() == joined.scores().confidence[half].tolist()


def test_arrays_of_all_samples_and_features_stay_beside_their_samples(joined: JoinedLogits) -> None:
    def sums(_: Any, labels: NDArray[Any], features: Any, index: NDArray[Any]) -> NDArray[Any]:
        return np.array([np.sum(labels * index), np.sum(features[:, 0] * index)])

    z = np.concatenate([z for z, _, _ in parts()])
    y = np.concatenate([y for _, y, _ in parts()])
    found = joined.reduce(features=True)(sums, np.arange(N))
    np.testing.assert_allclose(found, [np.sum(y * np.arange(N)), np.sum(z[:, 0] * np.arange(N))], rtol=1e-5)


def test_a_map_on_the_features_is_that_of_the_samples_put_together(joined: JoinedLogits) -> None:
    """One weight for all: the joined samples are those of one store."""
    z, y, w = (np.concatenate(each) for each in zip(*parts(), strict=True))
    one = HeadLogits(FeatureTable(z, y, 64), w[:3], ZEROS)
    same = JoinedLogits([HeadLogits(FeatureTable(z, y, 64), w[:3], ZEROS) for z, y, _ in parts()])
    expected, found = (Refit.fit(each.reduce(features=True)) for each in (one, same))
    np.testing.assert_allclose(found.delta, expected.delta, atol=1e-5)  # a minimum, from products of other shapes
