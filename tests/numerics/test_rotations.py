"""Class vectors, feature-major, and a large weight in float64, block by block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tna_onnx.numerics import rotations as blocks
from tna_onnx.numerics.rotations import ClassVectors, class_blocks


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("columns", [1, 3, 128])
def test_a_block_is_some_columns(order: Any, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_COLUMNS", columns)
    weight = np.asarray(np.random.default_rng(0).normal(size=(7, 5)), order=order)
    start = ClassVectors.of(weight)
    for classes in (slice(None), slice(0, 3), slice(3, 9), slice(6, 7)):
        block = start.block(classes)
        np.testing.assert_array_equal(block, weight.T[:, classes], strict=True)
        assert block.flags.c_contiguous


@pytest.mark.parametrize(("classes", "n"), [(1, 7), (10, 3), (5, 100), (3, 0)])
def test_blocks_are_the_weight(classes: int, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_BLOCK", 12)
    weight = np.random.default_rng(0).normal(size=(classes, n)).astype(np.float32)
    found = list(class_blocks(weight))
    assert all(wide.dtype == np.float64 and wide.size <= max(12, n) for _, wide in found)
    np.testing.assert_array_equal(np.concatenate([wide for _, wide in found]), weight)
    np.testing.assert_array_equal(np.concatenate([np.arange(classes)[block] for block, _ in found]), np.arange(classes))
