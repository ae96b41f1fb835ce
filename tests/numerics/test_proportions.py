"""Intervals of shares, against statsmodels, SciPy and each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from tna_onnx.numerics.conformal import LEVEL, consistent_range, wilson_interval


@given(st.integers(1, 3000), st.data())
def test_wilson_is_that_of_scipy(n: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, n))
    expected = binomtest(hits, n).proportion_ci(LEVEL, method="wilson")
    assert wilson_interval(hits / n, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


@given(st.floats(0, 1), st.integers(1, 500), st.data())
def test_both_are_one_test(p: float, n: int, data: st.DataObject) -> None:
    """A share is in the range of a probability if and only if the probability is in the interval of the share."""
    share = data.draw(st.integers(0, n)) / n
    low, high = wilson_interval(share, n)
    least, most = consistent_range(p, n)
    # at the very ends rounding decides
    assume(min(abs(p - low), abs(p - high), abs(share - least), abs(share - most)) > 1e-9)
    assert (low < p < high) == (least < share < most)


@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.9])
def test_a_calibrated_bin_is_in_its_range_as_often_as_the_level_says(p: float) -> None:
    n = 2000
    low, high = consistent_range(p, n)
    inside = binom.cdf(np.floor(n * high), n, p) - binom.cdf(np.ceil(n * low) - 1, n, p)
    # two lattice points may be in or out: each has a probability of at most 0.4 / sqrt(n p q)
    assert inside == pytest.approx(LEVEL, abs=0.01)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_a_probability_that_leaves_no_doubt(p: float) -> None:
    assert consistent_range(p, 7) == (p, p)
