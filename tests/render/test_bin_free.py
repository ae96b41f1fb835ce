"""Calibration without bins in words, of one model and of two."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.numerics.bernoulli import confidences, scores
from tna_onnx.render.rows import bin_free_lines, bin_free_rows, bin_free_sentence
from tna_onnx.results.details import BinFree


@pytest.fixture(scope="module")
def stages() -> tuple[BinFree, BinFree]:
    """Confidences that are ten points too high, and right ones."""
    confidence, hit = confidences(800, seed=0)
    return BinFree.of(scores(np.minimum(confidence + 0.1, 1), hit)), BinFree.of(scores(confidence, hit))


def test_lines_of_one_model(stages: tuple[BinFree, BinFree]) -> None:
    one = stages[0]
    first, second = bin_free_lines(one)
    assert first == (
        f"bin-free Kuiper {100 * one.cumulative.kuiper:.2f} % (p < 0.001); "
        f"ECE with less bias {100 * one.ece_debiased:.2f} %, by chance alone {100 * one.ece_expected:.2f} %"
    )
    parts = one.corp.nll
    assert second == (
        f"NLL      of it miscalibrated confidence {parts.miscalibration:.4f} nats, by chance alone {parts.expected:.4f}"
    )


def test_rows_have_a_cell_for_each_stage(stages: tuple[BinFree, BinFree]) -> None:
    for row in bin_free_rows(*stages):
        assert len(row) == 3
        assert all(row)
    parts = {title: values for title, *values in bin_free_rows(*stages)}
    assert parts["p-value of Kuiper"][0] == "< 0.001"
    assert parts["NLL: uncertainty, nats"][0] == f"{stages[0].corp.nll.uncertainty:.4f}"


def test_why_there_is_no_p_value() -> None:
    confidence, hit = confidences(800, seed=0)
    sampled = scores(confidence, hit)
    clustered = BinFree.of(replace(sampled, clusters=np.arange(800) // 2))
    assert "of one sample depend on one another" in bin_free_sentence(clustered, cross_fitted=False)
    fitted = BinFree.of(sampled, cross_fitted=True)
    assert "the errors of the folds partly cancel" in bin_free_sentence(fitted, cross_fitted=True)
    assert "(p " in bin_free_sentence(BinFree.of(sampled), cross_fitted=False)
