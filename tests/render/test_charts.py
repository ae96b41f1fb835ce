"""The bars of a reliability diagram against the samples that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tna_onnx.numerics.reliability import Bins
from tna_onnx.render.charts import bars


@given(st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_bars_have_the_samples_between_their_sides(bins: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    confidence = draw.uniform(size=100)
    hit = draw.uniform(size=100) < confidence
    drawn = bars(Bins.of(confidence, hit, bins))
    assert len(drawn) == bins
    assert drawn[0].left == 0
    assert drawn[-1].right == 1
    for bar in drawn:
        inside = (confidence > bar.left) & (confidence <= bar.right)
        assert bar.count == inside.sum()
        if bar.count:
            # the same float64 sums, in another order
            assert bar.confidence == pytest.approx(confidence[inside].mean(), abs=1e-12)
            assert bar.height == pytest.approx(hit[inside].mean(), abs=1e-12)
