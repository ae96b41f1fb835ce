"""ECE and NLL of a stated confidence: the definition, the edges, and how often the intervals hold them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import ece
from tna_onnx.numerics.corp import top_label_errors
from tna_onnx.numerics.scores import SampleScores


def test_values_are_those_of_the_definition() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.4, 1, 500).astype(np.float32)
    hit = rng.random(500) < confidence**2
    found = top_label_errors(confidence, hit, 0.9)
    loss = -np.where(hit, np.log(confidence), np.log1p(-confidence))
    assert found.nll == pytest.approx(loss.mean(), rel=1e-5)
    nothing = np.zeros_like(confidence)
    assert found.ece == pytest.approx(ece(SampleScores(confidence, hit, nothing, nothing)))
    wider = top_label_errors(confidence, hit, 0.99)
    for name in ("ece_interval", "nll_interval"):
        (low, high), (lowest, highest) = getattr(found, name), getattr(wider, name)
        assert lowest <= low < high <= highest
    assert found.nll_interval is not None
    assert found.nll_interval[0] <= found.nll


@pytest.mark.parametrize("scale", [1.0, pytest.param(0.6, marks=pytest.mark.slow)])
def test_intervals_hold_the_errors(scale: float) -> None:
    """Of 100 runs 88 or more: below 95 % by 3 standard errors at most."""
    rng = np.random.default_rng(1)

    def drawn(n: int) -> tuple[np.ndarray, np.ndarray]:
        logit = np.abs(rng.normal(1.8, 1.5, n))
        return 1 / (1 + np.exp(-scale * logit)), 1 / (1 + np.exp(-logit))

    stated, true = drawn(400_000)
    place = np.ceil(15 * stated).astype(int)
    error = np.abs(np.bincount(place, true - stated)).sum() / len(stated)
    loss = np.mean(-true * np.log(stated) - (1 - true) * np.log1p(-stated))
    held = np.zeros(2, int)
    for _ in range(100):
        stated, true = drawn(500)
        found = top_label_errors(stated, rng.random(500) < true, 0.95)
        assert found.ece_interval is not None
        assert found.nll_interval is not None
        held += [
            low <= value <= high for (low, high), value in ((found.ece_interval, error), (found.nll_interval, loss))
        ]
    assert (held >= 88).all()


@pytest.mark.parametrize("wrong", [0, 9, 10, 30, 31, 40])
def test_few_that_are_right_or_wrong_give_no_interval_of_the_nll(wrong: int) -> None:
    found = top_label_errors(np.full(40, 0.8), np.arange(40) >= wrong, 0.95)
    assert (found.nll_interval is not None) == (10 <= wrong <= 30)
    assert found.ece_interval is not None
    assert np.isfinite(found.nll)


@pytest.mark.parametrize("n", [2, 3, 5, 12])
def test_an_interval_of_the_ece_is_one_of_shares(n: int) -> None:
    """Few samples that are all wrong or all right: a quantile of t is large."""
    rng = np.random.default_rng(n)
    for hit in (np.zeros(n, bool), np.ones(n, bool), np.arange(n) % 2 == 0):
        interval = top_label_errors(rng.uniform(0.2, 1, n), hit, 0.99).ece_interval
        assert interval is not None
        assert 0 <= interval[0] <= interval[1] <= 1
