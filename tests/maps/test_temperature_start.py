"""Where the temperature's fit begins: some of many samples are fitted first, and the end is the same."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import softmax

from tests.maps.samples import reduce_of
from tna_onnx.maps.temperature import Temperature

Array = np.ndarray


def problem(samples: int, classes: int, dtype: type = np.float64) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    honest = 2 * rng.standard_normal((samples, classes))
    labels = (honest + rng.gumbel(size=honest.shape)).argmax(axis=1)
    return (2.5 * honest).astype(dtype), labels


def least(logits: Array, labels: Array) -> float:
    """The T where the slope of the NLL vanishes, from its definition."""
    s = logits.astype(np.float64)
    own = s[np.arange(len(s)), labels]

    def slope(beta: float) -> float:
        return float(np.mean(np.sum(softmax(beta * s, axis=1) * s, axis=1) - own))

    return 1 / float(brentq(slope, 1e-3, 1e3, xtol=1e-15, rtol=1e-14))


@pytest.mark.parametrize(
    ("samples", "classes", "dtype", "bound"),
    [
        (200, 3, np.float32, 1e-6),  # the slope is a difference of sums with 24 bits
        (60_000, 10, np.float64, 1e-9),  # rows from class to class
        (6000, 100, np.float32, 1e-6),
    ],
)
def test_the_slope_vanishes_there(samples: int, classes: int, dtype: type, bound: float) -> None:
    logits, labels = problem(samples, classes, dtype)
    expected = least(logits, labels)
    for cuts in ((), (samples // 2,), tuple(range(100, samples, samples // 7))):
        assert Temperature.fit(reduce_of(logits, labels, cuts=cuts)).temperature == pytest.approx(expected, rel=bound)
