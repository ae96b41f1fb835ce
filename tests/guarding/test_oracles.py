"""Thresholds, intervals and curves against their definitions, SciPy and scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import tna_onnx
from tests.conftest import Small
from tests.guarding.conftest import run
from tna_onnx.numerics.conformal import (
    errorless_needed,
    share_interval,
)
from tna_onnx.numerics.outliers import area_under, roc_points


def guarded(small: Small, folder: Path, **words: Any) -> Path:
    tna_onnx.guard(small.model, small.calib, output=folder / "g.onnx", device="cpu", **words)
    return folder / "g.onnx"


def by_definition(confidence: np.ndarray, hit: np.ndarray, risk: float, delta: float) -> int:
    """How many samples are accepted: the tests of the docstring one after the other."""
    n = len(confidence)
    order = np.argsort(-confidence)
    first = errorless_needed(risk, delta)
    starts = [round(first * (n / first) ** (k / 3)) for k in range(3)]
    steps = [first]
    while steps[-1] < n:
        steps.append(min(n, steps[-1] + max(1, steps[-1] // 200)))
    falling = confidence[order]
    # samples of one confidence are accepted together
    steps, starts = ([int(np.sum(falling >= falling[rank - 1])) for rank in ranks] for ranks in (steps, starts))
    level, passed = 0.0, 0
    for rank in sorted({*steps, *starts}):
        level += delta / 3 * starts.count(rank)
        wrong = int((~hit[order[:rank]]).sum())
        if stats.binom.cdf(wrong, rank, risk) <= level:
            passed = rank
        else:
            level = 0.0
    return passed


@pytest.mark.parametrize("risk", [15, 25])
def test_accept(small: Small, data: dict[str, np.ndarray], risk: float, tmp_path: Path) -> None:
    path = guarded(small, tmp_path, add=["confidence", "accept"], risk=risk)
    found = run(path, data["x"])
    hit = found["logits"].argmax(axis=1) == data["y"]
    accepted = by_definition(found["confidence"], hit, risk / 100, 0.05)
    assert 0 < accepted < len(hit)
    assert found["accept"].sum() == accepted
    assert found["confidence"][found["accept"]].min() > found["confidence"][~found["accept"]].max()


@pytest.mark.parametrize(("count", "n"), [(0, 30), (3, 30), (30, 30), (123, 4567)])
def test_clopper_pearson(count: int, n: int) -> None:
    """By quantiles of the beta distribution (Clopper and Pearson 1934), and statsmodels where it is installed."""
    low = 0.0 if count == 0 else stats.beta.ppf(0.025, count, n - count + 1)
    high = 1.0 if count == n else stats.beta.ppf(0.975, count + 1, n - count)
    np.testing.assert_allclose(share_interval(np.arange(n) < count, 0.95), (low, high), rtol=1e-9)


def test_clopper_pearson_of_statsmodels() -> None:
    proportion = pytest.importorskip("statsmodels.stats.proportion")
    expected = proportion.proportion_confint(7, 90, 0.05, "beta")
    np.testing.assert_allclose(share_interval(np.arange(90) < 7, 0.95), expected, rtol=1e-9)


@pytest.mark.parametrize("decimals", [0, 1, 8])
def test_roc(decimals: int) -> None:
    """With ties and without."""
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(1)
    known = np.round(rng.standard_normal(300), decimals)
    unknown = np.round(rng.standard_normal(90) + 1, decimals)
    truth = np.repeat([0, 1], [300, 90])
    scores = np.concatenate([known, unknown])
    np.testing.assert_allclose(area_under(known, unknown), metrics.roc_auc_score(truth, scores), rtol=1e-12)
    false_alarms, detected = roc_points(known, unknown)
    assert (false_alarms[0], detected[0], false_alarms[-1], detected[-1]) == (0, 0, 1, 1)
    x, y, _ = metrics.roc_curve(truth, scores, drop_intermediate=False)
    points = {(round(a, 9), round(b, 9)) for a, b in zip(x, y, strict=True)}
    assert {(round(a, 9), round(b, 9)) for a, b in zip(false_alarms, detected, strict=True)} <= points
