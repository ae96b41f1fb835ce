"""CORP: the fit and its parts against scikit-learn, the chain rule of the NLL, and resamples under calibration."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.numerics.bernoulli import confidences, scores
from tna_onnx.numerics import corp
from tna_onnx.numerics.corp import Corp, Decomposition
from tna_onnx.numerics.scores import SampleScores


def total(parts: Decomposition) -> float:
    return parts.miscalibration - parts.discrimination + parts.uncertainty


def test_the_parts_are_those_of_an_isotonic_regression() -> None:
    isotonic = pytest.importorskip("sklearn.isotonic")
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    confidence, hit = confidences(700, seed=1)
    # ties, and not calibrated
    confidence = np.float32(np.round(confidence**1.5, 2).clip(0.01, 0.99)).astype(np.float64)
    found = Corp.of(scores(confidence, hit))
    fit = isotonic.IsotonicRegression(y_min=0, y_max=1).fit(confidence, hit)
    refined = fit.predict(confidence)
    constant = np.full(700, hit.mean())
    for parts, score in (
        (found.nll, lambda p: sklearn_metrics.log_loss(hit, p)),
        (found.brier, lambda p: sklearn_metrics.brier_score_loss(hit, p)),
    ):
        # float32 scores
        assert parts.miscalibration == pytest.approx(score(confidence) - score(refined), abs=1e-6)
        assert parts.discrimination == pytest.approx(score(constant) - score(refined), abs=1e-6)
        assert parts.uncertainty == pytest.approx(score(constant), abs=1e-9)
    curve = found.curve
    assert curve.accuracy == pytest.approx(fit.predict(curve.confidence), abs=1e-6)
    assert (curve.confidence[0], curve.confidence[-1]) == (confidence.min(), confidence.max())


@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("sharp", [0.5, 1.0, 30.0])
def test_the_parts_and_the_other_classes_add_up_to_the_nll(classes: int, sharp: float) -> None:
    """At 30 most confidences are 1 in float32, and some of them are wrong."""
    rng = np.random.default_rng(classes)
    logits = rng.standard_normal((400, classes))
    made = SampleScores.of_logits(sharp * logits, np.argmax(logits + rng.gumbel(size=logits.shape), axis=1))
    found = Corp.of(made)
    assert total(found.nll) + found.others == pytest.approx(float(np.mean(made.nll, dtype=np.float64)), rel=1e-6)
    squared = np.mean((made.hit - made.confidence.astype(np.float64)) ** 2)
    assert total(found.brier) == pytest.approx(squared, abs=1e-9)
    if classes == 2:
        # there are no others; at 30 the confidence of a miss has few digits of 1 - c, and its NLL is 5 nats
        assert found.others == pytest.approx(0, abs=1e-6 if sharp <= 1 else 0.01)
    else:
        assert found.others > 0
    for value in dataclasses.astuple(found.nll) + dataclasses.astuple(found.brier):
        assert 0 <= value < np.inf


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0.0625, 1, width=16), st.booleans()), min_size=1, max_size=12), st.integers(0, 99))
def test_laws(samples: list[tuple[float, bool]], seed: int) -> None:
    confidence = np.array([c for c, _ in samples])
    hit = np.array([h for _, h in samples])
    found = Corp.of(scores(confidence, hit))
    curve = found.curve
    for ends in (curve.accuracy, curve.low, curve.high):
        assert np.all(np.diff(ends) >= -1e-12)
        assert len(ends) == len(curve.confidence)
    assert np.all(np.array(curve.low) <= np.array(curve.high))
    # whatever order the samples come in
    order = np.random.default_rng(seed).permutation(len(hit))
    again = Corp.of(scores(confidence[order], hit[order]))
    assert again.curve == curve
    assert dataclasses.astuple(again.nll) == pytest.approx(dataclasses.astuple(found.nll), abs=1e-12)


def test_one_confidence_for_all() -> None:
    found = Corp.of(scores(np.full(8, 0.75), np.array([1, 1, 1, 1, 1, 1, 0, 0], bool)))
    assert found.curve.confidence == (0.75,)
    assert found.curve.accuracy == (0.75,)
    assert found.nll.miscalibration == pytest.approx(0, abs=1e-7)
    assert found.nll.discrimination == 0
    certain = Corp.of(scores(np.ones(8), np.ones(8, bool)))
    assert certain.nll == Decomposition(0, 0, 0, 0)
    assert certain.curve.low == certain.curve.high == (1.0,)


def test_the_expected_miscalibration_is_that_of_calibrated_models() -> None:
    drawn, expected = [], []
    for seed in range(40):
        found = Corp.of(scores(*confidences(400, seed)))
        drawn.append(found.nll.miscalibration)
        expected.append(found.nll.expected)
    # three standard errors of the mean of what was drawn
    assert np.mean(drawn) == pytest.approx(np.mean(expected), abs=3 * np.std(drawn) / np.sqrt(40))


@pytest.mark.slow
def test_the_band_holds_the_curves_of_calibrated_models_at_its_level() -> None:
    inside = []
    for seed in range(200):
        curve = Corp.of(scores(*confidences(300, seed))).curve
        at = np.searchsorted(curve.confidence, [0.6, 0.75, 0.9])
        low, fit, high = (np.array(values)[at] for values in (curve.low, curve.accuracy, curve.high))
        inside.append((low <= fit) & (fit <= high))
    # four standard errors of a share of 200; three confidences of one curve are not independent
    assert np.all(np.abs(np.mean(inside, axis=0) - corp.BAND_LEVEL) < 4 * np.sqrt(0.95 * 0.05 / 200))


def test_groups_of_neighbours_change_little(monkeypatch: pytest.MonkeyPatch) -> None:
    made = scores(*confidences(6000, seed=2))
    grouped = Corp.of(made)
    monkeypatch.setattr(corp, "_MAX_GROUPS", 6000)
    single = Corp.of(made)
    # what is fitted is not grouped, only what is drawn
    assert grouped.nll.miscalibration == single.nll.miscalibration
    assert grouped.curve.accuracy == single.curve.accuracy
    assert grouped.nll.expected == pytest.approx(single.nll.expected, rel=0.1)
    # 200 draws of quantiles: their standard deviation is about a tenth of the band
    width = np.subtract(single.curve.high, single.curve.low).mean()
    assert np.subtract(grouped.curve.high, grouped.curve.low).mean() == pytest.approx(width, rel=0.1)
