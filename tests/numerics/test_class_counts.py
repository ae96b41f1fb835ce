"""Counts per class, against scikit-learn, and any split gives the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from tna_onnx.numerics.reliability import ClassCounts


@pytest.mark.parametrize("classes", [2, 7, 1000])
def test_counts_are_those_of_scikit_learn(classes: int) -> None:
    rng = np.random.default_rng(classes)
    labels = rng.integers(0, classes, 400)
    predicted = np.where(rng.uniform(size=400) < 0.7, labels, rng.integers(0, classes, 400))
    found = ClassCounts.of(predicted, labels, classes)
    precision, recall, _, samples = precision_recall_fscore_support(
        labels, predicted, labels=range(classes), zero_division=0
    )
    np.testing.assert_allclose(found.right, recall * samples, atol=1e-9)
    np.testing.assert_allclose(found.right, precision * found.predicted, atol=1e-9)
    matrix = confusion_matrix(labels, predicted, labels=range(classes))
    assert dict(found.errors) == {(int(a), int(b)): int(matrix[a, b]) for a, b in np.argwhere(matrix) if a != b}


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40), st.integers(0, 40))
def test_any_split_gives_the_same(pairs: list[tuple[int, int]], at: int) -> None:
    labels, predicted = np.array(pairs).T
    whole = ClassCounts.of(predicted, labels, 5)
    parts = ClassCounts.of(predicted[:at], labels[:at], 5) + ClassCounts.of(predicted[at:], labels[at:], 5)
    np.testing.assert_array_equal(whole.predicted, parts.predicted)
    np.testing.assert_array_equal(whole.right, parts.right)
    assert whole.errors == parts.errors
    assert whole.confused(2) == parts.confused(2)
