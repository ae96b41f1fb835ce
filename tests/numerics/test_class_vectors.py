"""Class vectors, feature-major."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tna_onnx.numerics import rotations as module
from tna_onnx.numerics.rotations import ClassVectors


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("columns", [1, 3, 128])
def test_a_block_is_some_columns(order: Any, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_COLUMNS", columns)
    weight = np.asarray(np.random.default_rng(0).normal(size=(7, 5)), order=order)
    start = ClassVectors.of(weight)
    for classes in (slice(None), slice(0, 3), slice(3, 9), slice(6, 7)):
        block = start.block(classes)
        np.testing.assert_array_equal(block, weight.T[:, classes], strict=True)
        assert block.flags.c_contiguous


def test_features_that_come_first_are_not_copied() -> None:
    weight = np.asfortranarray(np.ones((4, 3), np.float32))
    assert np.shares_memory(ClassVectors.of(weight).block(slice(None)), weight)
