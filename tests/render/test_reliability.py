"""The bars of a reliability diagram against the samples that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tna_onnx.numerics.reliability import Bins
from tna_onnx.render.reliability import Bar, bars

BINS = Bins((0, 10, 30, 60), (0.0, 0.5, 0.7, 1.0), (0.0, 0.25, 0.8, 1.0))


def test_a_bar_is_its_bin() -> None:
    drawn = bars(BINS)
    assert [(bar.left, bar.right, bar.count) for bar in drawn] == [
        (0.0, 0.25, 0), (0.25, 0.5, 10), (0.5, 0.75, 30), (0.75, 1.0, 60)
    ]  # fmt: skip
    assert [bar.height for bar in drawn] == list(BINS.accuracy)
    assert [bar.confidence for bar in drawn] == list(BINS.confidence)
    assert [bar.sign for bar in drawn] == [0, 1, -1, 0]
    assert [bar.gap for bar in drawn] == pytest.approx([0, 0.25, -0.1, 0])
    assert drawn[1].span == (0.25, 0.5)
    assert (drawn[1].width, drawn[1].middle) == (0.25, 0.375)


def test_the_last_bar_has_the_remainder() -> None:
    low, high = bars(BINS, 3)
    assert (low.left, low.right, low.count) == (0.0, 0.75, 40)
    assert (high.left, high.right, high.count) == (0.75, 1.0, 60)
    assert low.confidence == pytest.approx((10 * 0.5 + 30 * 0.7) / 40)
    assert low.height == pytest.approx((10 * 0.25 + 30 * 0.8) / 40)


@given(st.integers(1, 60), st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_bars_have_the_samples_between_their_sides(bins: int, per_bar: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    confidence = draw.uniform(size=100)
    hit = draw.uniform(size=100) < confidence
    drawn = bars(Bins.of(confidence, hit, bins), per_bar)
    assert len(drawn) == -(-bins // per_bar)
    assert drawn[0].left == 0
    assert drawn[-1].right == 1
    for bar in drawn:
        inside = (confidence > bar.left) & (confidence <= bar.right)
        assert bar.count == inside.sum()
        if bar.count:
            # the same float64 sums, in another order
            assert bar.confidence == pytest.approx(confidence[inside].mean(), abs=1e-12)
            assert bar.height == pytest.approx(hit[inside].mean(), abs=1e-12)


def test_a_diagram_without_samples_has_bars_of_no_height() -> None:
    assert bars(Bins((0, 0), (0.0, 0.0), (0.0, 0.0)), 2) == (Bar(0.0, 1.0, 0, 0.0, 0.0),)
