"""Classes that labels do not cover."""

from __future__ import annotations

import numpy as np
import pytest

from tna_onnx.data.suspicion import FEW, Coverage


def test_classes_are_named_by_their_counts() -> None:
    labels = np.repeat([0, 1, 3], [FEW, FEW - 1, 20])
    found = Coverage.of(labels, 5)
    assert (found.unseen, found.scarce, found.left_out) == ((2, 4), (1,), True)
    assert found.text("the data") == (
        "the data have no sample of 2 of 5 classes (2, 4) and fewer than 5 of 1 of 5 classes (1)"
    )
    assert found.text("the data", list("abcde")).startswith("the data have no sample of 2 of 5 classes (c, e) and")


def test_full_coverage_says_nothing() -> None:
    found = Coverage.of(np.repeat(np.arange(3), FEW), 3)
    assert (found.unseen, found.scarce, found.left_out) == ((), (), False)
    assert found.text("the data") == ""


def test_a_long_list_is_cut() -> None:
    assert Coverage.of(np.zeros(99, np.int64), 1001).text("the data").endswith("(1, 2, 3, 4, 5, 6, 7, 8, 992 more)")


@pytest.mark.parametrize("size", [1000, 2000, 5000, 8000])
def test_classes_that_sampling_misses_are_not_left_out(size: int) -> None:
    """A thousand classes, equally frequent or not: what the sample lacks, it nearly lacks of many others."""
    rng = np.random.default_rng(size)
    weights = rng.dirichlet(np.ones(1000))
    for p in (None, weights):
        assert not Coverage.of(rng.choice(1000, size, p=p), 1000).left_out


@pytest.mark.parametrize("size", [40, 1000, 20_000])
def test_half_of_the_classes_is_left_out(size: int) -> None:
    assert Coverage.of(np.random.default_rng(size).integers(0, 5, size), 10).left_out
