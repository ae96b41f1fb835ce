"""ECE and NLL of a stated confidence: the definition, the edges, and how often the intervals hold them."""

from __future__ import annotations

import numpy as np
import pytest

from tna_onnx.numerics.metrics import ece
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.numerics.top_label import top_label_errors


def test_values_are_those_of_the_definition() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.4, 1, 500).astype(np.float32)
    hit = rng.random(500) < confidence**2
    found = top_label_errors(confidence, hit, 0.9)
    loss = -np.where(hit, np.log(confidence), np.log1p(-confidence))
    assert found["nll"].difference == pytest.approx(loss.mean(), rel=1e-5)
    nothing = np.zeros_like(confidence)
    assert found["ece"].difference == pytest.approx(ece(SampleScores(confidence, hit, nothing, nothing)))
    wider = top_label_errors(confidence, hit, 0.99)
    for name in ("ece", "nll"):
        assert found[name].low <= found[name].difference or name == "ece"
        assert wider[name].low <= found[name].low < found[name].high <= wider[name].high


@pytest.mark.parametrize("hits", ["all", "none"])
@pytest.mark.parametrize("n", [1, 3, 40])
def test_certainty_is_right_or_wrong(hits: str, n: int) -> None:
    found = top_label_errors(np.ones(n, np.float32), np.full(n, hits == "all"), 0.95)
    assert found["ece"].difference == (0 if hits == "all" else 1)
    assert all(np.isfinite([each.low, each.high, each.difference]).all() for each in found.values())
    assert found["nll"].low >= 0
    if hits == "none":
        assert found["nll"].difference == pytest.approx(24 * np.log(2), rel=1e-3)


@pytest.mark.parametrize("scale", [1.0, 0.6])
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
        held += [found["ece"].low <= error <= found["ece"].high, found["nll"].low <= loss <= found["nll"].high]
    assert (held >= 88).all()
