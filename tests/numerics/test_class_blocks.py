"""A large weight in float64, block by block."""

from __future__ import annotations

import numpy as np
import pytest

from tna_onnx.numerics import rotations as blocks
from tna_onnx.numerics.rotations import class_blocks


@pytest.mark.parametrize(("classes", "n"), [(1, 7), (10, 3), (5, 100), (3, 0)])
def test_blocks_are_the_weight(classes: int, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_BLOCK", 12)
    weight = np.random.default_rng(0).normal(size=(classes, n)).astype(np.float32)
    found = list(class_blocks(weight))
    assert all(wide.dtype == np.float64 and wide.size <= max(12, n) for _, wide in found)
    np.testing.assert_array_equal(np.concatenate([wide for _, wide in found]), weight)
    np.testing.assert_array_equal(np.concatenate([np.arange(classes)[block] for block, _ in found]), np.arange(classes))
