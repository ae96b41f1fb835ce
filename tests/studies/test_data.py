"""Splits and subsets of samples: sizes, classes, and what they leave alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.studies.problems import problem
from tna_onnx.studies.study_data import StudyData, stratified


@pytest.mark.parametrize("seed", range(20))
def test_a_stratified_draw_has_its_size_and_each_class_its_share(seed: int) -> None:
    draws = np.random.default_rng(seed)
    counts = draws.integers(1, 40, draws.integers(1, 7))
    share = draws.random()
    labels = np.repeat(np.arange(len(counts)), counts)
    wanted = round(share * len(labels))
    rows = stratified(labels, wanted, np.random.default_rng(seed))
    assert len(rows) == wanted
    assert list(rows) == sorted(set(rows.tolist()))
    for label, count in enumerate(counts):
        # place k of a class of m lies within one step of k / m
        assert abs((labels[rows] == label).sum() - count * wanted / len(labels)) <= 2


def test_splits_hold_all_samples_once_and_differ_between_repeats() -> None:
    data = problem()
    both = np.concatenate([data.calibration.features, data.held_out.features])
    splits = [data.split(repeat, 0) for repeat in (0, 0, 1)]
    for each in splits:
        assert len(each.calibration) == len(data.calibration)
        joined = np.concatenate([each.calibration.features, each.held_out.features])
        assert np.array_equal(np.sort(joined, axis=0), np.sort(both, axis=0))
    assert np.array_equal(splits[0].calibration.features, splits[1].calibration.features)
    assert not np.array_equal(splits[0].calibration.features, splits[2].calibration.features)


@pytest.mark.parametrize("scaled", [True, False])
def test_the_bias_follows_the_weight_only_where_it_should(scaled: bool) -> None:
    base = problem()
    data = StudyData(base.weight, base.bias, base.calibration, base.held_out, tilt_bias=scaled)
    logits = np.concatenate([chunk for chunk, _, _ in data.logits(data.held_out, 0.5 * data.weight).chunks()])
    bias = data.bias * (0.5 if scaled else 1)
    assert np.allclose(logits, data.held_out.features @ (0.5 * data.weight).T + bias, atol=1e-5)
