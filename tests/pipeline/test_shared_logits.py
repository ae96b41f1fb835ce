"""Logits of the source are computed once for all stages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tna_onnx.engine import logits as engine_logits
from tna_onnx.pipeline.job import Task


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
