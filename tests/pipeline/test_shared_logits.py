"""Logits of the source are computed once for all stages, and those of a turned weight without the weight."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import Small
from tests.pipeline.samples import opened
from tna_onnx.engine import logits as engine_logits
from tna_onnx.numerics.averages import TurnedWeight
from tna_onnx.pipeline.task import Task


def test_all_stages_share_the_logits_of_the_source(task: Task) -> None:
    first = task.logits(task.weight)
    assert task.logits(task.weight) is first
    assert task.logits(np.copy(task.weight)) is not first  # another weight, whatever its numbers
    held_out = replace(task.calibration)
    assert task.logits(task.weight, on=held_out) is not first
    assert task.on_host("no memory").logits(task.weight) is not first  # those may lie on a device


def test_forgotten_logits_are_computed_again(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = task.logits(task.weight)
    logits.predictions()
    before = logits.scores()
    trims = []
    monkeypatch.setattr(engine_logits, "trim_memory", lambda: trims.append(1))
    logits.forget()
    logits.forget()
    assert trims == [1]  # where there was something to give back
    np.testing.assert_array_equal(logits.scores().nll, before.nll, strict=True)


@pytest.mark.parametrize("tilt_bias", [False, True])
def test_features_are_turned_in_place_of_the_weight(task: Task, *, tilt_bias: bool) -> None:
    task = replace(task, tilt_bias=tilt_bias)
    assert task.weight is not None
    n = task.weight.shape[1]
    matrix = np.random.default_rng(0).normal(size=(n, n)).astype(task.weight.dtype) / n + 0.7 * np.eye(n, dtype="f4")
    turned = TurnedWeight(task.weight, matrix.astype(task.weight.dtype))
    rows = np.arange(0, len(task.source), 7, dtype=np.int64)
    found = task.logits(turned).at(rows)
    expected = task.logits(turned.product()).at(rows)
    # two roundings of float32 sums over n terms
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def test_the_session_ends_with_the_collection_and_opens_again(small: Small) -> None:
    task = opened(small, small.model, small.calib)
    assert task.opened._whole is None
    assert [spec.name for spec in task.opened.inputs] == ["x"]
    assert task.opened._whole is None  # the inputs are known
    first = task.opened.session
    assert task.opened.session is first
    task.opened.close()
    assert task.opened.session is not first
