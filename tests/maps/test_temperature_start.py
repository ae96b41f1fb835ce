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
    ("samples", "classes"),
    [
        (200, 3),
        (60_000, 10),  # rows from class to class
        (6000, 100),
    ],
)
# float32: the slope is a difference of sums with 24 bits
@pytest.mark.parametrize(("dtype", "bound"), [(np.float64, 1e-9), (np.float32, 1e-6)])
def test_the_slope_vanishes_there(samples: int, classes: int, dtype: type, bound: float) -> None:
    logits, labels = problem(samples, classes, dtype)
    expected = least(logits, labels)
    for cuts in ((), (samples // 2,), tuple(range(100, samples, samples // 7))):
        assert Temperature.fit(reduce_of(logits, labels, cuts=cuts)).temperature == pytest.approx(expected, rel=bound)


@pytest.mark.parametrize("right", [True, False])
def test_samples_that_are_fitted_first_and_have_no_temperature(right: bool) -> None:
    """Every 16th row has the largest logit at its label, or the smallest: the others decide."""
    logits, labels = problem(2**16, 32)
    chosen = slice(None, None, 16)
    labels[chosen] = logits[chosen].argmax(axis=1) if right else logits[chosen].argmin(axis=1)
    found = Temperature.fit(reduce_of(logits, labels)).temperature
    assert found == pytest.approx(least(logits, labels), rel=1e-9)


def test_many_chunks_give_no_more_samples_than_a_few() -> None:
    """The first fit's samples are halved as they add up: 14 chunks of 120,000 logits are more than the limit."""
    logits, labels = problem(2**16, 24)
    cuts = tuple(range(5000, 2**16, 5000))
    found = Temperature.fit(reduce_of(logits, labels, cuts=cuts)).temperature
    assert found == pytest.approx(least(logits, labels), rel=1e-9)
    torch = pytest.importorskip("torch", reason="torch is in the extra 'gpu'")
    assert Temperature.fit(reduce_of(torch.from_numpy(logits), labels)).temperature == pytest.approx(found, rel=1e-9)
